"""The matrix: every scenario x every message of the hostile host x every field x everything that may stand there."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.hostile.mutations import BETWEEN, BODIES, DROP, FRAMES, VALUES, Mutation, changed, paths
from tests.hostile.record import RECORDINGS
from tests.hostile.whole import whole
from tflaunch.protocol import wire

HOSTILE = "local1"
# Other ways to look at the same answers.
VIEWS = {
    "run": ("run", "--json"),
    "with-gpus": ("with-gpus", "--dry-run"),
    "attach": ("attach", "--json"),
    "logs": ("logs", "--json"),
    "fetch": ("fetch", "--json"),
    "ps": ("ps", "--json", "-q"),
    "status": ("status", "--json"),
    "status-dead": ("status-dead", "--json"),
    "stacks": ("stacks", "--json", "--all-threads"),
    "bandwidth": ("bandwidth", "--json"),
    "clean": ("clean", "--json"),
    "gpus": ("gpus", "--json", "--csv", "--oneline --free"),
    "topology": ("topology", "--json"),
    "check": ("check", "--json"),
    "stop": ("stop", "--json"),
    "sweep": ("sweep", "--json"),
}
EACH = 0  # of a mutation: every message of the type


class Case(NamedTuple):
    """A command, and one lie that it hears."""

    scenario: str
    view: str  # more words of the command; "": none
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.scenario}{' ' + self.view if self.view else ''}/{self.mutation}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case of that text; raises ValueError."""
        command, _, mutation = text.partition("/")
        scenario, _, view = command.partition(" ")
        return cls(scenario, view, Mutation.parse(mutation))


@cache
def recordings() -> dict[str, Any]:
    """What real agents have said, by scenario."""
    every: dict[str, Any] = json.loads(RECORDINGS.read_text())
    return every


def messages(scenario: str, host: str = HOSTILE) -> Iterator[wire.Message]:
    """What that host said in that scenario."""
    for name, channels in recordings()[scenario]["channels"].items():
        for groups in channels if name.endswith(f" {host}") else ():
            for _, said in groups:
                for kind, fields, body in said:
                    yield wire.Message(kind, fields, base64.b64decode(body))


@cache
def samples() -> dict[str, list[Any]]:
    """A message of each type, the largest that was recorded: fields and body."""
    found: dict[str, list[Any]] = {"beat": [{}, ""]}
    for scenario in recordings():
        for message in messages(scenario):
            best = found.get(message.type)
            if best is None or len(json.dumps(best)) < len(json.dumps(message.fields)):
                found[message.type] = [message.fields, message.body.decode("latin-1")]
    return found


def matrix() -> Iterator[Case]:
    """All of it, the same in each run."""
    for scenario in recordings():
        said: dict[str, list[wire.Message]] = {}
        for message in messages(scenario):
            said.setdefault(message.type, []).append(message)
        for view in ("", *VIEWS.get(scenario, ())[1:]):
            for kind, heard in said.items():
                for mutation in _mutations(kind, heard, frames=not view):
                    yield Case(scenario, view, mutation)


def _mutations(kind: str, heard: list[wire.Message], frames: bool) -> Iterator[Mutation]:
    heard = [*heard, *(wire.Message(kind, whole(kind, message.fields)) for message in heard[:1])]
    for path in dict.fromkeys(path for message in heard for path in paths(message.fields)):
        for name, change in VALUES.items():
            if any(_differs(message.fields, path, change) for message in heard):
                yield Mutation(kind, EACH, path, name)
    if any(message.body for message in heard):
        for name in BODIES:
            yield Mutation(kind, EACH, "@body", name)
    if frames:
        for name in FRAMES:
            yield Mutation(kind, 1, "@frame", name)
        for other in samples():
            yield Mutation(kind, 1, "@frame", f"then-{other}")
            yield Mutation(kind, 1, "@frame", f"instead-{other}")


def _differs(fields: dict[str, Any], path: str, change: Any) -> bool:
    old = fields
    for step in path.split(BETWEEN):
        if isinstance(old, dict) and step in old:
            old = old[step]
        elif isinstance(old, list) and int(step) < len(old):
            old = old[int(step)]
        else:
            return False
    new = change(old)
    return new is DROP or type(new) is not type(old) or new != old


def selection(seed: int = 0, each: int = 1, coarse: bool = False) -> list[Case]:
    """Of each place in each type `each` cases, spread over scenarios, views and mutations; none that is slow.

    `coarse`: of each field of a message, and of each way to spoil a frame.
    """
    places: dict[tuple[str, str], list[Case]] = {}
    for case in matrix():
        kind, _, path, name = case.mutation
        if case.mutation.slow:
            continue
        if path == "@frame":
            place = (name, path) if coarse and not name.startswith(("then-", "instead-")) else (kind, path)
        else:
            place = (kind, path.split(BETWEEN)[0] if coarse else path)
        places.setdefault(place, []).append(case)
    choose = random.Random(seed)  # noqa: S311 - the same in each run
    return [case for place in places.values() for case in choose.sample(place, min(each, len(place)))]


__all__ = ["Case", "changed", "matrix", "messages", "recordings", "samples", "selection"]
