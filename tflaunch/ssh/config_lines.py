"""The lines of ssh_config files as OpenSSH reads them: words, comments, Includes in their place."""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tflaunch.inputs import hostnames
from tflaunch.inputs.documents import open_regular
from tflaunch.inputs.ownership import written_by_others
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.config_keywords import ALIASES, KEYWORDS
from tflaunch.ssh.failures import CORRECT, or_openssh
from tflaunch.ssh.target import shortened
from tflaunch.ssh.tokens import check_variables

_LARGEST = 4 * 1024 * 1024  # bytes of one file, and of all that it includes
_LONGEST_PATH = 4096  # PATH_MAX
_INCLUDE_DEPTH = 16  # OpenSSH's own limit
_WHITE = " \t\r\n"
_CRITERIA = frozenset({"all", "canonical", "final", "exec", "host", "originalhost", "user", "localuser"})
_ALONE = frozenset({"canonical", "final"})  # the criteria that take no argument


@dataclass(frozen=True)
class Criterion:
    """One condition of a Match line: `!user ann`."""

    name: str  # one of _CRITERIA
    argument: str = ""
    negated: bool = False


@dataclass(frozen=True)
class Block:
    """The Host or Match line under which settings stand: it says for which hosts they hold."""

    patterns: tuple[str, ...] = ()  # of a Host line
    criteria: tuple[Criterion, ...] = ()  # of a Match line
    outer: Block | None = None  # the block whose Include brought the file: it must hold as well


EVERYWHERE = Block(patterns=("*",))  # before the first Host or Match line


@dataclass(frozen=True)
class SshSetting:
    """A line that sets something, for the hosts of its block."""

    block: Block
    keyword: str  # in lower case
    words: tuple[str, ...]  # the value; one to the end of the line is one word
    where: str  # FILE:LINE, or "hostfile"


@dataclass
class _Source:
    """The file that the user named, or one of the default files, with all that it includes."""

    beside: Path  # where relative Includes look
    system: bool = False  # the system's file: it has no `~`
    size: int = 0  # bytes read so far
    hosts: list[str] = field(default_factory=list)  # every pattern of a Host line


def read_settings(path: Path, *, trusted: bool, system: bool = False) -> list[SshSetting]:
    """Every setting of an ssh_config and of what it includes, in order.

    As with ssh, other users may be able to write a `trusted` file, but no other one, nor one that a file includes;
    relative Includes look in ~/.ssh, those of the `system`'s file beside it.  A line whose keyword nobody knows is
    there, too: IgnoreUnknown may speak of it.  Raises ConnectError for a file that cannot be read, and for a line that
    ssh would not take.
    """
    return list(_settings(path, _source(path, system=system), EVERYWHERE, trusted=trusted))


def host_names(path: Path) -> list[str]:
    """The hosts that an ssh_config spells out, with what it includes, in their order, without patterns.

    Empty where there is no such file.  Raises ConnectError for what cannot be read.
    """
    if not os.path.exists(path):  # noqa: PTH110  Path.exists may raise
        return []
    source = _source(path, system=False)
    for _ in _settings(path, source, EVERYWHERE, trusted=True):
        pass
    found: dict[str, None] = {}
    for name in source.hosts:
        try:
            hostnames.check(name)
        except ValueError:
            continue
        if not re.search(r"[*?!\[\],/]", name):
            found[name] = None
    return list(found)


def split(text: str) -> list[str]:
    """The words of a line as OpenSSH cuts it, up to a comment (argv_split of its misc.c); raises ValueError."""
    words: list[str] = []
    word: str | None = None  # None: between words
    quote = ""
    rest = iter(range(len(text)))
    for at in rest:
        letter, after = text[at], text[at + 1 : at + 2]
        if not quote and letter in " \t":
            words += [] if word is None else [word]
            word = None
        elif word is None and letter == "#":
            return words
        elif letter == "\\" and after and (after in "\"'\\" or (after == " " and not quote)):
            word = (word or "") + after
            next(rest)
        elif quote == letter:
            quote = ""
        elif not quote and letter in "\"'":
            word, quote = word or "", letter
        else:
            word = (word or "") + letter
    if quote:
        raise ValueError("invalid quotes")
    return words if word is None else [*words, word]


def _source(path: Path, *, system: bool) -> _Source:
    return _Source(path.parent if system else Path.home() / ".ssh", system=system)


def _settings(
    path: Path, source: _Source, inside: Block, *, trusted: bool = False, depth: int = 0
) -> Iterator[SshSetting]:
    """The settings of a file that is included by the block `inside`."""
    if depth > _INCLUDE_DEPTH:
        raise ConnectError(f"{path}: Too many recursive configuration includes", CORRECT)
    block = inside
    outer = inside if depth else None
    for number, line in enumerate(_lines(path, source, trusted), 1):
        where = f"{path}:{number}"
        keyword, value = _keyword(line, where)
        if not keyword:
            continue
        words = _words(keyword, value, where)
        if keyword == "include":
            for file in _included(words, source, where):
                yield from _settings(file, source, block, depth=depth + 1)
        elif keyword == "host":
            source.hosts += words
            block = Block(patterns=tuple(words), outer=outer)
        elif keyword == "match":
            block = Block(criteria=tuple(_criteria(value, where)), outer=outer)
            yield SshSetting(block, keyword, (), where)  # it is asked here, whatever follows
        else:
            yield SshSetting(block, keyword, tuple(words), where)


def _lines(path: Path, source: _Source, trusted: bool) -> list[str]:
    try:
        with open_regular(path) as file:
            if not trusted and (reason := written_by_others(path, os.fstat(file.fileno()))):
                raise ConnectError(
                    f"Bad owner or permissions on {path}: it {reason}",
                    f"look into it, then: chown {shlex.quote(getpass.getuser())} {shlex.quote(str(path))}; "
                    f"chmod go-w {shlex.quote(str(path))}",
                )
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConnectError(f"{path}: {error.strerror}", CORRECT) from None
    source.size += len(content)
    if source.size > _LARGEST:
        what = (
            "is larger than"
            if len(content) > _LARGEST
            else "and the files before it are together larger than"
        )
        raise ConnectError(f"{path}: {what} {_LARGEST // 1024**2} MiB; is it an ssh_config?", CORRECT)
    if (at := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, at) + 1
        raise ConnectError(f"{path}:{line}: a binary file; is it an ssh_config?", CORRECT)
    return content.decode(errors="surrogateescape").split("\n")


def _keyword(line: str, where: str) -> tuple[str, str]:
    """A line's keyword in lower case, "" where it has none, and its value as it is written; raises ConnectError."""
    line = line.rstrip(_WHITE + "\f")
    word, rest = _delimited(line)
    if word == "":  # white space before the keyword
        word, rest = _delimited(rest or "")
    if not word or word.startswith("#"):
        return "", ""
    keyword = word.lower()
    value = (rest or "").lstrip(_WHITE)
    if not value:
        raise ConnectError(f"{where}: {shortened(line)} is not a keyword and a value", CORRECT)
    return ALIASES.get(keyword, keyword), value


def _delimited(text: str) -> tuple[str | None, str | None]:
    """The first word of a text and what follows it (strdelim of OpenSSH's misc.c).

    A word ends at white space, at one `=`, or at its quote; None for the word: its quote has no end; None for the rest:
    there is none.
    """
    found = re.search(r'[ \t\r\n"=]', text)
    if not found:
        return text, None
    at = found.start()
    if text[at] == '"':
        before, text = text[:at], text[at + 1 :]
        end = text.find('"')
        if end < 0:
            return None, None
        return before + text[:end], text[end + 1 :].lstrip(_WHITE)
    rest = text[at + 1 :].lstrip(_WHITE)
    if text[at] != "=" and rest.startswith("="):
        rest = rest[1:].lstrip(_WHITE)
    return text[:at], rest


def _words(keyword: str, value: str, where: str) -> list[str]:
    """The words of a keyword's value; raises ConnectError for what ssh would not take."""
    try:
        words = split(value)
    except ValueError:
        raise ConnectError(f"{where}: invalid quotes: {shortened(value)}", CORRECT) from None
    known = KEYWORDS.get(keyword)
    if known is None or known.takes == "anything":
        return words
    if known.takes == "rest":
        words = [value.lstrip(_WHITE + "=")]
    elif not words or (known.takes == "word" and not words[0]):
        raise ConnectError(f'{where}: no argument after keyword "{keyword}"', CORRECT)
    if known.takes == "word" and len(words) > 1:
        raise ConnectError(f"{where}: keyword {keyword} extra arguments at end of line", CORRECT)
    if not all(words):
        raise ConnectError(f"{where}: keyword {keyword} empty argument", CORRECT)
    if keyword not in ("host", "include") and len(words) > 1 and "none" in (word.lower() for word in words):
        raise ConnectError(f'{where}: keyword {keyword} "none" argument must appear alone', CORRECT)
    for word in words:
        if not known.is_valid(word):
            raise ConnectError(f"{where}: {keyword} {shortened(word)}: ssh takes no such value", CORRECT)
    if keyword == "identityagent":
        check_variables(words[0], where)
        if re.match(r"\$(?!\{|[A-Za-z_][A-Za-z0-9_]*$)", words[0]):
            raise ConnectError(f"{where}: {shortened(words[0])} is no name of a variable", CORRECT)
    return words


def _included(words: list[str], source: _Source, where: str) -> Iterator[Path]:
    """The files that an Include names; like ssh it takes no offence at one that is missing, or at an unknown user."""
    for word in words:
        if source.system and word.startswith("~"):
            raise ConnectError(f"{where}: bad include path {shortened(word)}", CORRECT)
        # Newer ones of ssh fill these in; the older ones, like the C library's glob, read a backslash otherwise.
        if re.search(r"\$\{|%|\\", word):
            raise ConnectError(
                f"{where}: Include {shortened(word)} means another file to one version of ssh than to another",
                or_openssh(CORRECT, "reads it as your ssh does"),
            )
        pattern = os.path.join(source.beside, os.path.expanduser(word))  # noqa: PTH111, PTH118  Path's raises for no user
        if len(os.fsencode(pattern)) > _LONGEST_PATH:
            raise ConnectError(f"{where}: bad include path {shortened(word)}: it is too long", CORRECT)
        try:
            found = sorted(glob.glob(pattern))  # noqa: PTH207  Path's matches names with a dot in front
        except RecursionError:
            raise ConnectError(
                f"{where}: bad include path {shortened(word)}: it is too deep", CORRECT
            ) from None
        yield from (Path(path) for path in found if not os.path.isdir(path))  # noqa: PTH112


def _criteria(value: str, where: str) -> Iterator[Criterion]:
    """The conditions of a Match line; raises ConnectError for those that tflaunch does not know."""
    count = 0
    rest: str | None = value
    while rest:
        word, rest = _delimited(rest)
        if not word or word.startswith("#"):
            break
        name = word.removeprefix("!").lower()
        if name not in _CRITERIA:
            known = ", ".join(sorted(_CRITERIA))
            raise ConnectError(
                f"{where}: tflaunch does not know Match {shortened(name)} (only {known})",
                or_openssh(CORRECT, "may know it"),
            )
        argument: str | None = ""
        if name not in _ALONE:
            argument, rest = _delimited(rest) if rest is not None else (None, None)
        given = argument and not argument.startswith("#")
        if name == "all":
            if count > 1 or given:
                raise ConnectError(f"{where}: Match all stands alone, or behind canonical or final", CORRECT)
            yield Criterion(name, negated=word.startswith("!"))
            return
        count += 1
        if name not in _ALONE and not given:
            raise ConnectError(f"{where}: Missing Match criteria for {name}", CORRECT)
        yield Criterion(name, argument or "", negated=word.startswith("!"))
    if not count:
        raise ConnectError(f"{where}: Match needs a condition", CORRECT)
