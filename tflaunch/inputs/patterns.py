"""Patterns as in .gitignore: read before any host is contacted; no pattern can make matching slow.

Each becomes a regular expression that never tries a star again with another length, `(?=(?P<s1>...))(?P=s1)`: Python
has atomic groups only from 3.11 on.  Launcher and hosts match by the same expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_END = r"(?:/|\Z)"  # of one name in a path
# `[[:alpha:]]` and so on: ASCII, as git has them.
_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r" \t-\r", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip
# Characters that HFS+ ignores in a name (as git's utf8.c has them).
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
EVERYTHING = "**"
# Never fetched: compiled Python, and what git would run.  Regular expressions, as a host takes them.
NEVER = ((r"(?:[^/]+/)*?__pycache__/", False), (r"(?i:(?:[^/]+/)*?\.git(?:/|\Z))", False))


@dataclass(frozen=True)
class Pattern:
    """Which outputs are wanted: a line as in .gitignore, its regular expression, and where to look.

    Its wildcards match no leading dot, as in a shell: write the dot, as in `.cache/**`.  Those of a line with `!`
    match a leading dot, too.
    """

    text: str
    regex: str
    wanted: bool
    root: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read it; raises ValueError with a phrase that follows the quoted text."""
        plain = _stripped(text).removeprefix("!")
        if not plain or text.startswith("#"):
            raise ValueError("is no pattern; it is one as in .gitignore: 'checkpoints/**'")
        parts = plain.removeprefix("/").rstrip("/").split("/")
        if ".." in parts or plain.startswith("~"):
            raise ValueError(
                "leads out of the tasks' working directory; what lies elsewhere cannot be fetched"
            )
        wanted = not text.startswith("!")
        regex = translated(plain, dots=not wanted)
        if wanted and any(is_git(re.sub(r"\\(.)", r"\1", part)) for part in parts):
            raise ValueError("is never fetched: git runs what lies there; have a task pack it into one file")
        literal = len(parts) - 1 if "/" in plain.rstrip("/") else 0
        for number, part in enumerate(parts[:literal]):
            if re.search(r"[*?\[\\]", part):
                literal = number
                break
        return cls(text, regex, wanted, "/".join(parts[:literal]))


@dataclass(frozen=True)
class Wish:
    """Which outputs are to be brought here, and how."""

    patterns: tuple[Pattern, ...]
    to: Path | None = None  # None: ./RUN
    overwrite: bool = False  # also files that exist here with other content
    keep_mode: bool = False  # a file that is executable on its host is executable here
    most_bytes: int | None = None  # None: as much as there is room for


class WantedPaths:
    """Several patterns together: the last one that matches a path decides, here as on the hosts."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.regexes = [*((each.regex, each.wanted) for each in patterns), *NEVER]
        self._last_first = [(re.compile(regex, re.DOTALL), yes) for regex, yes in reversed(self.regexes)]

    def says(self, path: str) -> bool | None:
        """True: it is fetched; False: it is not; None: no pattern matches it."""
        return next((yes for regex, yes in self._last_first if regex.match(path)), None)


def is_git(name: str) -> bool:
    """Whether that is `.git` on some disk: in any case, NTFS's `git~1`, or with characters that HFS+ ignores."""
    return same_name(name, ".git", "git~1")


def same_name(name: str, *others: str) -> bool:
    """Whether that is one of `others` (in lower case) on some disk, or leads to one on NTFS."""
    parts = name.translate(_UNSEEN).split("\\")
    return any(part.partition(":")[0].rstrip(" .").casefold() in others for part in parts)


@dataclass(frozen=True)
class IgnoreLine:
    """One line of an ignore file of git's."""

    regex: re.Pattern[str]
    takes_back: bool  # a line with `!`
    directories_only: bool  # a line with a slash at its end
    number: int  # of the line, from 1
    text: str
    odd: str = ""  # what the user cannot mean, and how git reads it

    def matches(self, path: str, is_directory: bool) -> bool:
        """Whether the line matches `path` itself; a match of a directory above it does not count."""
        return (is_directory or not self.directories_only) and self.regex.match(path) is not None


def ignore_lines(lines: Sequence[str]) -> list[IgnoreLine]:
    """The lines of an ignore file, without comments, empty lines and those that git skips.

    What no user means is read as git reads it: a range the wrong way round holds nothing, and a line with an unknown
    class matches nothing.
    """
    found = []
    for number, line in enumerate(lines, 1):
        plain = _stripped(line)
        text = plain.removesuffix("/").removeprefix("!")
        if not text or plain.startswith("#") or _is_cut_off(text):
            continue
        regex, odd = _as_git_reads(text)
        found.append(
            IgnoreLine(
                re.compile(regex, re.DOTALL), plain.startswith("!"), plain.endswith("/"), number, plain, odd
            )
        )
    return found


def _as_git_reads(glob: str) -> tuple[str, str]:
    """(the regular expression of a line, what is odd about it)."""
    try:
        return translated(glob, below=False), ""
    except ValueError as error:
        try:
            return translated(glob, below=False, strict=False), f"{error}: as in git, that range is empty"
        except ValueError as unknown:
            return "(?!)", f"{unknown}: as in git, the line matches nothing"


def _stripped(line: str) -> str:
    return line if line.endswith("\\ ") else line.rstrip(" ")


def _is_cut_off(text: str) -> bool:
    """Whether a backslash at its end quotes nothing."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def translated(glob: str, *, dots: bool = True, below: bool = True, strict: bool = True) -> str:
    """The regular expression, for `re.match`, of the paths that a line of .gitignore matches, its `!` aside.

    `dots`: whether wildcards match a leading dot; `below`: whether a name also stands for all that is below it;
    `strict`: whether a range the wrong way round is an error, or empty.  Raises ValueError with a phrase.
    """
    if _is_cut_off(glob):
        raise ValueError("ends with a backslash that quotes nothing")
    groups = (f"s{number}" for number in range(len(glob) + 1))
    name = "[^/]+" if dots else r"(?!\.)[^/]+"
    gap, rest = f"(?:{name}/)*?", rf"(?:{name}{_END})*\Z"
    blocks = _blocks(re.sub(r"\\(.)", lambda pair: "/" if pair[1] == "/" else pair[0], glob))
    whole = ""
    for number, block in enumerate(blocks):
        text = "".join(f"{_translated_name(part, dots, groups, strict)}{_END}" for part in block)
        if number == len(blocks) - 1:  # a star alone stands for one name, not for what is below it
            if not block:
                return whole + ("(?<=/)" if whole else "") + rest
            if not below or block[-1] == "*":
                return whole + (gap if number else "") + text + r"\Z"
        if number and text:
            group = next(groups)
            text = f"(?=(?P<{group}>{gap}{text}))(?P={group})"
        whole += text
    return whole + rest


def _blocks(glob: str) -> list[list[str]]:
    """The names in the pattern, in a list for each part of it before, between and behind its `**`."""
    parts = glob.split("/")
    if not parts[0]:
        del parts[0]  # a slash in front: only at the top
    elif len(parts) == 1 or (len(parts) == 2 and not parts[1]):
        parts.insert(0, "**")  # at any depth
    if not parts[-1]:  # all that is below it
        parts[-1:] = ["*", "**"] if parts[-2:-1] == ["**"] else ["**"]
    blocks: list[list[str]] = [[]]
    for part, before in zip(parts, ["", *parts], strict=False):
        if part != "**":
            blocks[-1].append(part)
        elif before != "**":
            blocks.append([])
    return blocks


def _translated_name(glob: str, dots: bool, groups: Iterator[str], strict: bool) -> str:
    pieces, at = [""], 0
    while at < len(glob):
        char, at = glob[at], at + 1
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "[^/]"
        elif char == "[" and (found := _bracket(glob, at, strict)):
            pieces[-1] += found[0]
            at = found[1]
        else:
            if char == "\\":
                char, at = glob[at], at + 1
            pieces[-1] += re.escape(char)
    first, *middle, last = pieces if len(pieces) > 1 else (pieces[0], None)
    begin = "" if glob[:1] not in ("*", "?", "[") else "(?=[^/])" if dots else "(?=[^/.])"
    if last is None:
        return begin + first
    stars = [(next(groups), piece) for piece in middle if piece]
    taken = "".join(f"(?=(?P<{group}>[^/]*?{piece}))(?P={group})" for group, piece in stars)
    return f"{begin}{first}{taken}[^/]*{last}"


def _bracket(glob: str, at: int, strict: bool) -> tuple[str, int] | None:
    """The set whose `[` is just before `at`, and where it ends; None where it has no end: that is a plain `[`."""
    taken = "^" if glob[at : at + 1] in ("!", "^") else ""
    at += len(taken)
    start, members = at, ""
    while at < len(glob):
        if glob[at] == "]" and at > start:
            if not members:  # only ranges that are empty
                return "[^/]" if taken else "(?!)", at + 1
            return f"(?!/)[{taken}{members}]", at + 1
        if glob.startswith("[:", at) and (end := glob.find(":]", at)) > 0:
            if glob[at + 2 : end] not in _CLASSES:
                raise ValueError(f"holds {glob[at : end + 2]}, which is no class; want {', '.join(_CLASSES)}")
            members += _CLASSES[glob[at + 2 : end]]
            at = end + 2
            continue
        low, at = _member(glob, at)
        high = low
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(glob, at + 1)
            if high < low:
                if strict:
                    raise ValueError(f"holds the range {low}-{high}, whose ends are the wrong way round")
                continue
        members += re.escape(low) + ("" if high == low else f"-{re.escape(high)}")
    return None


def _member(glob: str, at: int) -> tuple[str, int]:
    at += glob[at] == "\\" and at + 1 < len(glob)
    return glob[at], at + 1
