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
from tflaunch.ssh.failures import or_openssh
from tflaunch.ssh.target import shortened

CORRECT = "correct it, or give another file with --ssh-config"

_LARGEST = 4 * 1024 * 1024  # bytes of one file, and of all that it includes
_LONGEST_PATH = 4096  # PATH_MAX
_INCLUDE_DEPTH = 16  # OpenSSH's own limit
# Their value is one word; OpenSSH, too, refuses a second one.
_SINGLE = frozenset(
    {
        "addressfamily",
        "connecttimeout",
        "hashknownhosts",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityagent",
        "identityfile",
        "port",
        "proxyusefdpass",
        "stricthostkeychecking",
        "user",
    }
)
# Their value is a command, to the end of the line: `#` and quotes are for the shell.
_COMMANDS = frozenset({"proxycommand", "localcommand", "remotecommand", "knownhostscommand"})
_CRITERIA = frozenset({"all", "canonical", "final", "exec", "host", "originalhost", "user", "localuser"})
_ALONE = frozenset({"all", "canonical", "final"})  # the criteria that take no argument


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


EVERYWHERE = Block(patterns=("*",))  # before the first Host or Match line


@dataclass(frozen=True)
class Setting:
    """A line that sets something, for the hosts of its block."""

    block: Block
    keyword: str  # in lower case
    words: tuple[str, ...]  # the value; that of a command is one


@dataclass
class _Source:
    """The file that the user named, or one of the default files, with all that it includes."""

    beside: Path  # where relative Includes look
    size: int = 0  # bytes read so far
    hosts: list[str] = field(default_factory=list)  # every pattern of a Host line


def read_settings(path: Path, beside: Path, *, trusted: bool) -> list[Setting]:
    """Every setting of an ssh_config and of what it includes, in order; relative Includes look in `beside`.

    As with ssh, other users may be able to write a `trusted` file, but no other one, nor one that a file includes.
    Raises ConnectError for a file that cannot be read, and for what tflaunch would have to ignore.
    """
    return list(_settings(path, _Source(beside), trusted=trusted))


def host_names(path: Path) -> list[str]:
    """The hosts that an ssh_config spells out, with what it includes, in their order, without patterns.

    Empty where there is no such file.  Raises ConnectError for what cannot be read.
    """
    if not os.path.exists(path):  # noqa: PTH110  Path.exists may raise
        return []
    source = _Source(Path.home() / ".ssh" if path == Path.home() / ".ssh/config" else path.parent)
    for _ in _settings(path, source, trusted=True):
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


def _settings(
    path: Path, source: _Source, *, trusted: bool = False, inside: Block = EVERYWHERE, depth: int = 0
) -> Iterator[Setting]:
    """The settings of a file that is included by the block `inside`."""
    if depth > _INCLUDE_DEPTH:
        raise ConnectError(f"{path}: Too many recursive configuration includes", CORRECT)
    block = inside
    for number, line in enumerate(_lines(path, source, trusted), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        keyword, words = _keyword(line, where)
        if keyword == "include":
            for file in _included(words, source.beside, where):
                yield from _settings(file, source, inside=block, depth=depth + 1)
        elif keyword not in ("host", "match"):
            yield Setting(block, keyword, tuple(words))
        elif inside is not EVERYWHERE:
            # It would hold only where the block around the Include holds.
            raise ConnectError(
                f"{where}: {line.strip()!r} in a file that is included by a block",
                or_openssh(CORRECT, "reads it"),
            )
        elif keyword == "host":
            source.hosts += words
            block = Block(patterns=tuple(words))
        else:
            block = Block(criteria=tuple(_criteria(words, where)))


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


def _keyword(line: str, where: str) -> tuple[str, list[str]]:
    """A line's keyword in lower case and the words of its value; raises ConnectError."""
    found = re.match(r'\s*(?:"(\w+)"|(\w+))(?:\s*=\s*|\s+)(\S.*?)\s*$', line)
    if not found:
        raise ConnectError(f"{where}: {shortened(line)} is not a keyword and a value", CORRECT)
    keyword = (found[1] or found[2]).lower()
    try:
        words = split(found[3])
    except ValueError:
        raise ConnectError(f"{where}: invalid quotes: {shortened(line)}", CORRECT) from None
    if keyword in _COMMANDS:
        return keyword, [found[3]]
    if not words:
        raise ConnectError(f'{where}: no argument after keyword "{keyword}"', CORRECT)
    if keyword in _SINGLE and len(words) > 1:
        raise ConnectError(f"{where}: keyword {keyword} extra arguments at end of line", CORRECT)
    if keyword == "host" and not all(words):
        raise ConnectError(f"{where}: keyword host empty argument", CORRECT)
    return keyword, words


def _included(words: list[str], beside: Path, where: str) -> Iterator[Path]:
    """The files that an Include names; like ssh it takes no offence at one that is missing, or at an unknown user."""
    for word in words:
        pattern = os.path.join(beside, os.path.expanduser(word))  # noqa: PTH111, PTH118  Path's raises for no user
        if len(os.fsencode(pattern)) > _LONGEST_PATH:
            raise ConnectError(f"{where}: bad include path {shortened(word)}: it is too long", CORRECT)
        try:
            found = sorted(glob.glob(pattern))  # noqa: PTH207  Path's matches names with a dot in front
        except RecursionError:
            raise ConnectError(
                f"{where}: bad include path {shortened(word)}: it is too deep", CORRECT
            ) from None
        yield from (Path(path) for path in found if not os.path.isdir(path))  # noqa: PTH112


def _criteria(words: list[str], where: str) -> Iterator[Criterion]:
    """The conditions of a Match line; raises ConnectError for those that tflaunch does not know."""
    rest = iter(words)
    names = []
    for word in rest:
        name = word.removeprefix("!").lower()
        if name not in _CRITERIA:
            known = ", ".join(sorted(_CRITERIA))
            raise ConnectError(
                f"{where}: tflaunch does not know Match {shortened(name)} (only {known})",
                or_openssh(CORRECT, "may know it"),
            )
        names.append(name)
        argument = "" if name in _ALONE else next(rest, "")
        if not argument and name not in _ALONE:
            raise ConnectError(f"{where}: Missing Match criteria for {name}", CORRECT)
        yield Criterion(name, argument, negated=word.startswith("!"))
    if "all" in names and names not in (["all"], ["canonical", "all"], ["final", "all"]):
        raise ConnectError(f"{where}: Match all stands alone, or behind canonical or final", CORRECT)
