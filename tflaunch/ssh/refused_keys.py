"""Host keys that are unknown or have changed, and how hosts that fail alike are told together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tflaunch.hosts import fold
from tflaunch.protocol.errors import ConnectError

LINES_SHOWN = 16  # of hosts with one cause
_COMPARE = (
    "compare these fingerprints with what their administrator says (on each host: ssh-keygen -lf {file})"
)
_FILES = {"ssh-rsa": "rsa", "ssh-ed25519": "ed25519", "ssh-dss": "dsa"}


class RefusedKey(ConnectError):
    """A host key that is unknown, or not the known one.

    `message` and `hint` are those of this host alone.  For several such hosts there are `together`, and a `line` for
    each.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        kind: str,
        fingerprint: str,
        place: str = "",
        known_as: str = "",
        otherwise: str = "",
    ) -> None:
        """`place`: the line of the other key, FILE:LINE, "" for an unknown one; `known_as`: whose line that is.

        `otherwise`: what ends the hint of several hosts.
        """
        super().__init__(message, hint)
        self.known_as = known_as
        self.path = place.rpartition(":")[0] or place
        self.line = (fingerprint or "a key that it has not shown again") + (
            f", not the one in {place}" if place else ""
        )
        self.together = self.message.replace(place, self.path) if place else self.message
        self._compare = _COMPARE.format(file=f"/etc/ssh/ssh_host_{_FILES.get(kind, 'ecdsa')}_key.pub")
        self._otherwise = otherwise

    @property
    def step(self) -> str:
        """The next step for several hosts; where keys have changed, the commands that remove them follow it."""
        if not self.known_as:
            return f"{self._compare}, then --accept-new records them all{self._otherwise}"
        return (
            "either these hosts were installed anew or someone intercepts the connections: "
            f"{self._compare}, then remove the old keys, and --accept-new records the new ones"
        )


@dataclass(frozen=True)
class Together:
    """Hosts that failed for one and the same cause."""

    hosts: tuple[str, ...]
    cause: str
    hint: str
    lines: tuple[str, ...] = ()  # what differs: a line for each host, in the order of `hosts`
    commands: tuple[str, ...] = ()  # that carry the hint out; a terminal must not break them

    @property
    def whole_hint(self) -> str:
        """The hint, with the commands in lines of their own."""
        return "\n".join([self.hint, *self.commands])


def together(failures: Mapping[str, ConnectError | str]) -> list[Together]:
    """The failed hosts, grouped by cause, the most frequent cause first."""
    causes: dict[str, dict[str, ConnectError | str]] = {}
    for host, failure in failures.items():
        cause = failure if isinstance(failure, str) else failure.message
        if isinstance(failure, RefusedKey):
            cause = failure.together
        causes.setdefault(cause, {})[host] = failure
    return sorted((_row(cause, failed) for cause, failed in causes.items()), key=lambda row: -len(row.hosts))


def some_lines(lines: Sequence[str]) -> list[str]:
    """The first of these lines, for people, and how many more there are."""
    left = len(lines) - LINES_SHOWN
    return [*lines[:LINES_SHOWN], *([f"and {left} more; --json has all"] if left > 0 else [])]


def _row(cause: str, failed: Mapping[str, ConnectError | str]) -> Together:
    keys = {host: failure for host, failure in failed.items() if isinstance(failure, RefusedKey)}
    if len(keys) == len(failed) > 1:
        first = next(iter(keys.values()))
        width = max(map(len, keys))
        lines = tuple(f"{host:{width}}  {failure.line}" for host, failure in keys.items())
        return Together(tuple(keys), cause, first.step, lines, tuple(_commands(keys.values())))
    hints = {
        host: "" if isinstance(failure, str) else failure.hint_for(host) for host, failure in failed.items()
    }
    if len(failed) == 1:
        only = next(iter(failed.values()))
        cause = only if isinstance(only, str) else only.message
    hint = next(iter(hints.values()))
    if len({each.replace(host, "") for host, each in hints.items()}) > 1:
        hint = f"{next(iter(hints))}: {hint}"  # the hints differ: name the host of this one
    return Together(tuple(hints), cause, hint)


def _commands(keys: Iterable[RefusedKey]) -> list[str]:
    """The shell's command that removes the keys that have changed, one for each file."""
    names: dict[str, list[str]] = {}
    for key in keys:
        if key.known_as:
            names.setdefault(key.path, []).append(key.known_as)
    return [
        f'for host in {_words(known)}; do ssh-keygen -R "$host" -f {shlex.quote(path)}; done'
        for path, known in names.items()
    ]


def _words(names: list[str]) -> str:
    """The names as a shell expands them: `gpu{01..64} login`."""
    if any(not re.fullmatch(r"[\w.-]+", name) for name in names):
        return shlex.join(names)
    words = re.split(r",(?![^\[\]]*\])", fold(names))
    return " ".join(_braces(word) for word in words)


def _braces(folded: str) -> str:
    """`gpu{01..16}` for `gpu[01-16]`, `gpu{1,{3..5}}` for `gpu[1,3-5]`."""

    def spelt(found: re.Match[str]) -> str:
        ranges = [re.sub(r"(\d+)-(\d+)", r"\1..\2", each) for each in found[1].split(",")]
        if len(ranges) == 1:
            return f"{{{ranges[0]}}}"
        return "{" + ",".join(f"{{{each}}}" if ".." in each else each for each in ranges) + "}"

    return re.sub(r"\[([\d,-]+)\]", spelt, folded)
