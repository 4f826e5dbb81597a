"""Host names as people write them: ranges unfolded into names, names folded back into ranges."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from ClusterShell.RangeSet import RangeSet

from tflaunch.protocol.errors import UsageError

MOST_HOSTS = 10_000
LONGEST_NAME = 100  # names become file names on hosts
FOLD_ALL_AXES = 500  # names

_BRACKETS = re.compile(r"(\[[^\[\]]*\])")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,18}))?)?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

# What OpenSSH refuses (valid_hostname and valid_ruser of its ssh.c): names reach a shell here by the %h, %n and %r
# of ProxyCommand and Match exec.  `$` of a user is ours: `x$IFS-oProxyCommand=...` would be two words.
_NOT_IN_MACHINE = re.compile(r"""['`"$\\;&<>|(){},\s\x00-\x1f\x7f-\x9f]""")
_NOT_IN_USER = re.compile(r"""['`"$;&<>|(){}\x00-\x1f\x7f-\x9f]|\s(?=-)|\\\Z""")


def split(text: str, separators: str = ",") -> list[tuple[str, str, int]]:
    """Cut `text` at separators outside brackets: (separator before it or "", part, its offset)."""
    cut = re.compile(rf"(?P<separator>[{re.escape(separators)}])|\[[^\]]*\]?|[^\[{re.escape(separators)}]+")
    parts = [("", "", 0)]
    for found in cut.finditer(text):
        if found["separator"]:
            parts.append((found["separator"], "", found.end()))
        else:
            separator, part, offset = parts[-1]
            parts[-1] = (separator, part + found[0], offset)
    return parts


def check(pattern: str, *, also: str = "") -> int:
    """How many names one pattern such as `gpu[01-16].lab` stands for, without expanding it.

    Characters in `also` are let through.  Raises ValueError with a phrase that follows the quoted pattern.
    """
    count, width = 1, 0
    pieces = _BRACKETS.split(pattern)
    if any(not between for between in pieces[2:-1:2]):
        raise ValueError("has two ranges side by side; put a character between them: r[1-2]n[1-4]")
    for piece in pieces:
        if piece.startswith("[") and piece.endswith("]"):
            sizes, widths = zip(*(_measure(part) for part in piece[1:-1].split(",")), strict=True)
            count *= sum(sizes)
            width += max(widths)
        elif odd := re.search(rf"[^A-Za-z0-9._{re.escape(also)}-]", piece):
            if odd[0] in "[]":
                raise ValueError(f"has an unmatched {odd[0]!r}; write a range as gpu[01-16]")
            raise ValueError(
                f"has {odd[0]!r} in it; a host name is made of letters, digits, '.', '_' and '-'"
            )
        else:
            width += len(piece)
    if not pattern:
        raise ValueError("is empty; write a host name")
    if pattern[0] in "-.":
        raise ValueError(f"begins with {pattern[0]!r}; a host name begins with a letter, a digit or '_'")
    if width > LONGEST_NAME:
        raise ValueError(f"makes names of {width} characters; at most {LONGEST_NAME} are allowed")
    if count > MOST_HOSTS:
        raise ValueError(f"stands for {count:,} hosts; at most {MOST_HOSTS:,} are allowed in all")
    return count


def check_machine(text: str) -> None:
    """Raise ValueError, with a phrase that follows it in quotes, for what OpenSSH would not take as a host name."""
    _refuse(text, _NOT_IN_MACHINE, "hostname contains invalid characters")


def check_user(text: str) -> None:
    """Raise ValueError, with a phrase that follows it in quotes, for what OpenSSH would not take as a user name."""
    _refuse(text, _NOT_IN_USER, "remote username contains invalid characters")


def _refuse(text: str, odd: re.Pattern[str], words: str) -> None:
    if found := odd.search(text):
        raise ValueError(f"is refused, as by ssh: {words} ({found[0]!r})")
    if text.startswith("-"):
        raise ValueError(f"is refused, as by ssh: {words} ('-' in front)")


def _measure(part: str) -> tuple[int, int]:
    """Size of one range and the width of its widest number."""
    found = _RANGE.fullmatch(part)
    if found is None:
        raise ValueError(f"has {_short(part)} as a range; write it as [01-16], [1,3,5] or [0-14/2]")
    first, last, step = found[1], found[2] or found[1], int(found[3] or 1)
    if len(first) != len(last) and ((first.startswith("0") and first != "0") or last.startswith("0")):
        raise ValueError(f"pads {part!r} to two widths; write both ends with as many digits")
    if int(last) < int(first) or not step:
        raise ValueError(f"has an empty range {part!r}; the smaller number goes first")
    return (int(last) - int(first)) // step + 1, len(last)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def expand(pattern: str, *, also: str = "") -> list[str]:
    """The names that a comma-separated list of names and ranges stands for, in its order, each once.

    Raises UsageError for what is no name or range, and for more than 10,000 names.
    """
    names: dict[str, None] = {}
    for _, part, _ in split(pattern):
        try:
            check(part, also=also)
        except ValueError as error:
            raise UsageError(f"{_short(part)} {error}") from None
        choices: list[list[str]] = []
        for piece in _BRACKETS.split(part):
            ranges = piece[1:-1].split(",") if piece.startswith("[") else []
            choices.append([number for text in ranges for number in RangeSet(text)] or [piece])
        names.update(dict.fromkeys(map("".join, itertools.product(*choices))))
        if len(names) > MOST_HOSTS:
            raise UsageError(f"{_short(pattern)} stands for more than {MOST_HOSTS:,} hosts")
    return list(names)


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which node2 comes before node10, and worker/2 before worker/10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", name)]


def fold(names: Iterable[str]) -> str:
    """Names for a message, ranges folded: `gpu[01-16].lab,login`; what is no host name follows as it is.

    Names of one pattern are one range, which stands where the first of them stood.
    """
    plain: list[str] = []
    odd: list[str] = []
    for name in dict.fromkeys(names):
        (plain if _NAME.fullmatch(name) else odd).append(name)
    # NodeSet folds along every number in a name, which takes seconds for thousands of scattered ones.
    groups: dict[str, list[str]] = {}
    for name in plain:
        many = len(plain) > FOLD_ALL_AXES
        key = re.split(r"[0-9]+[^0-9]*$", name)[0] if many else re.sub(r"[0-9]+", "#", name)
        groups.setdefault(key, []).append(name)
    folded = (str(NodeSet.fromlist(group, resolver=RESOLVER_NOGROUP)) for group in groups.values())
    return ",".join([*folded, *odd])
