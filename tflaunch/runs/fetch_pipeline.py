"""Questions to agents and their answers: many under way to each host, asked anew when its wire was lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.wire import Message
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.watcher import Watcher

AHEAD = 8  # questions to one host that are under way
REST_S = 20.0  # for a host whose connection is lost
STALLED_S = 600.0  # for one that lives, and answers nothing: a walk over a slow disk may take minutes


ANSWERS = {"find": "found", "read": "piece"}


class Dishonest(Exception):
    """A host has answered what no agent answers: nothing more is taken from it."""


@dataclass
class Request:
    """What an agent is asked; `take` gets each answer and says whether it was the last one, or raises Dishonest."""

    type: str
    fields: Mapping[str, Any]
    take: Callable[[Message], bool]


# A host's requests, each made when there is room for it; None: not before all that was asked is answered.
_Result = TypeVar("_Result")
Part = Generator[Request | None, None, _Result]
Steps = Part[None]


@dataclass
class _Thread:
    """One thing after another; `open` of its requests are not answered yet."""

    steps: Steps
    open: int = 0
    waits: bool = False
    over: bool = False


@dataclass
class _Lane:
    """What is asked of one host; it answers in order."""

    threads: list[_Thread]
    answered: float  # when it last did, or was first asked
    asked: deque[tuple[Request, _Thread]] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        return not self.asked and all(thread.over for thread in self.threads)

    def close(self) -> None:
        self.asked.clear()
        for thread in self.threads:
            thread.over = True
            thread.steps.close()


class Pipeline(Linked):
    """The wires to these hosts, which are open already; `dial` goes in again to one that is lost."""

    def __init__(
        self, sessions: Sessions, hosts: Sequence[str], dial: Callable[[str], None], watcher: Watcher
    ) -> None:
        super().__init__(sessions, watcher)
        self.unreached: dict[str, ConnectError] = {}  # hosts that nothing more is asked of, each with why
        self._dial = dial
        self._lanes: dict[str, _Lane] = {}
        self._given_up: dict[str, ConnectError] = {}  # maybe when nothing was asked of them
        self.link(hosts)
        self.unreached |= self._given_up

    def work(self, steps: Mapping[str, Sequence[Steps]]) -> None:
        """Take each host through its steps, several side by side, as fast as it answers. Raises Stopped."""
        awake = self.awake_s
        self.unreached |= {host: error for host, error in self._given_up.items() if host in steps}
        self._lanes = {
            host: _Lane(list(map(_Thread, each)), awake)
            for host, each in steps.items()
            if host not in self.unreached
        }
        try:
            for host in self._lanes:
                self._pump(host)
            while not all(lane.over for lane in self._lanes.values()):
                self._turn()
        finally:
            for lane in self._lanes.values():
                lane.close()

    def _turn(self) -> None:
        self.turn()
        now = time.monotonic()
        for host, why in self.links.down.items():
            if self.links.away_s(host, now) > REST_S:
                self.give_up(host, ConnectError(f"not all of it has come: {why}", "fetch again"))
        for host, lane in self._lanes.items():
            if not lane.over and self.awake_s - lane.answered > STALLED_S:
                why = f"not all of it has come: it has answered nothing for {STALLED_S / 60:g} minutes"
                self.give_up(host, ConnectError(why, "fetch again, with patterns that look through less"))

    def said(self, host: str, message: Message) -> None:
        """Take an answer; messages of other types are none of a fetch's business."""
        lane = self._lanes.get(host)
        if lane is None or not lane.asked or message.type not in ANSWERS.values():
            return
        lane.answered = self.awake_s
        request, thread = lane.asked[0]
        try:
            if message.type != ANSWERS[request.type]:
                raise Dishonest(f"it answered {request.type!r} by {message.type!r}")
            last = request.take(message)
        except Dishonest as lie:
            why = f"{lie}; nothing more is taken from it"
            self.give_up(host, ConnectError(why, "find out who else has a say on that host"))
            return
        if last:
            lane.asked.popleft()
            thread.open -= 1
            self._pump(host)

    def _pump(self, host: str) -> None:
        """Ask for as much as may be under way."""
        lane = self._lanes[host]
        for thread in lane.threads:
            while not thread.over and not (thread.waits and thread.open) and len(lane.asked) < AHEAD:
                try:
                    step = next(thread.steps)
                except StopIteration:
                    thread.over = True
                    break
                thread.waits = step is None
                if step is not None:
                    thread.open += 1
                    lane.asked.append((step, thread))
                    self._ask(host, step)

    def _ask(self, host: str, request: Request) -> None:
        if host in self.links.up:
            self._sessions.send([host], request.type, **request.fields)

    def dead(self, host: str, error: ConnectError) -> None:
        """Go on without that host."""
        self._given_up.setdefault(host, error)
        if host in self._lanes and not self._lanes[host].over:
            self.unreached[host] = error
            self._lanes[host].close()

    def dial(self, host: str) -> None:
        """Go in again."""
        self._dial(host)

    def watch(self, host: str, after: int) -> None:  # noqa: ARG002
        """Ask anew for what was under way."""
        if host in self._lanes:
            for request, _ in self._lanes[host].asked:
                self._ask(host, request)
