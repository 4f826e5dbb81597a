"""Requests to agents, several under way to each host at a time; after a lost connection they are sent again."""

from __future__ import annotations

import math
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

AHEAD = 8  # at most so many requests to one host are unanswered
REST_S = 20.0  # for how long the fetch waits for a host whose connection is lost
STALLED_S = 600.0  # and for a connected host that does not answer: a walk over a slow disk may take minutes
LOOK_S = 0.5  # between two looks at all hosts
ANSWERS = {"find": "found", "read": "piece"}


class Dishonest(Exception):
    """A host sent an answer that no agent sends; the fetch takes nothing more from it."""


@dataclass
class FetchRequest:
    """A request to an agent; `take` gets each answer and says whether it was the last one, or raises Dishonest."""

    type: str
    fields: Mapping[str, Any]
    take: Callable[[Message], bool]


# A generator of requests to one host.  The pipeline takes the next request when it has room for one; after None,
# when the host has answered all requests of this generator.
_Result = TypeVar("_Result")
Part = Generator[FetchRequest | None, None, _Result]
Steps = Part[None]


@dataclass
class _Thread:
    """One of the parallel sequences of steps of a host; `open` counts its unanswered requests."""

    steps: Steps
    open: int = 0
    waits: bool = False  # until `open` is 0
    over: bool = False


@dataclass
class _Lane:
    """The requests to one host, which answers them in order."""

    threads: list[_Thread]
    answered: float  # when the host last answered, or was first asked
    asked: deque[tuple[FetchRequest, _Thread]] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        return not self.asked and all(thread.over for thread in self.threads)

    def close(self) -> None:
        self.asked.clear()
        for thread in self.threads:
            thread.over = True
            thread.steps.close()


class Pipeline(Linked):
    """Sends the requests of several sequences of steps to several hosts, and hands each answer to its request."""

    def __init__(
        self, sessions: Sessions, hosts: Sequence[str], dial: Callable[[str], None], watcher: Watcher
    ) -> None:
        """The hosts are connected already; `dial` reconnects to a host whose connection was lost."""
        super().__init__(sessions, watcher)
        self.unreached: dict[str, ConnectError] = {}  # hosts that did not answer everything, each with why
        self._dial = dial
        self._lanes: dict[str, _Lane] = {}
        self._open: set[str] = set()  # hosts whose lane is not over
        self._look_at = 0.0  # when all hosts are looked at next
        self._given_up: dict[
            str, ConnectError
        ] = {}  # all lost hosts, also those that had answered everything
        self.link(hosts)
        self.unreached |= self._given_up

    def work(self, steps: Mapping[str, Sequence[Steps]], deadline: float = math.inf) -> bool:
        """Run the steps of all hosts, the sequences of each host in parallel, until they end.  Raises Stopped.

        Returns whether they have ended by `deadline` (of `awake_s`).
        """
        awake = self.awake_s
        self.unreached |= {host: error for host, error in self._given_up.items() if host in steps}
        self._lanes = {
            host: _Lane(list(map(_Thread, each)), awake)
            for host, each in steps.items()
            if host not in self.unreached
        }
        self._open = set(self._lanes)
        try:
            for host in self._lanes:
                self._pump(host)
            while self._open:
                if self.awake_s >= deadline:
                    return False
                self._turn(deadline)
        finally:
            self._open.clear()
            for lane in self._lanes.values():
                lane.close()
        return True

    def _turn(self, deadline: float) -> None:
        self.turn(deadline)
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for host, why in self.links.down.items():
            if self.links.away_s(host, now) > REST_S:
                self.give_up(host, ConnectError(f"not all of its files came: {why}", "fetch again"))
        for host in sorted(self._open):
            if self.awake_s - self._lanes[host].answered > STALLED_S:
                why = f"not all of its files came: it has not answered for {STALLED_S / 60:g} minutes"
                self.give_up(
                    host, ConnectError(why, "fetch again, with patterns that search fewer directories")
                )

    def said(self, host: str, message: Message) -> None:
        """Take an answer; messages of other types do not concern a fetch."""
        lane = self._lanes.get(host)
        if lane is None or not lane.asked or message.type not in ANSWERS.values():
            return
        lane.answered = self.awake_s
        request, thread = lane.asked[0]
        try:
            if message.type != ANSWERS[request.type]:
                raise Dishonest(f"it answered {request.type!r} with {message.type!r}")
            last = request.take(message)
        except Dishonest as lie:
            why = f"{lie}; nothing more is taken from it"
            self.give_up(host, ConnectError(why, "find out who else controls that host"))
            return
        if last:
            lane.asked.popleft()
            thread.open -= 1
            self._pump(host)

    def _pump(self, host: str) -> None:
        """Send requests to that host until AHEAD are unanswered, or no sequence of steps can go on."""
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
        if lane.over:
            self._open.discard(host)

    def _ask(self, host: str, request: FetchRequest) -> None:
        if host in self.links.up:
            self._sessions.send([host], request.type, **request.fields)

    def dead(self, host: str, error: ConnectError) -> None:
        """Fetch nothing more from that host."""
        self._given_up.setdefault(host, error)
        if host in self._open:
            self._open.discard(host)
            self.unreached[host] = error
            self._lanes[host].close()

    def dial(self, host: str) -> None:
        """Connect to that host again."""
        self._dial(host)

    def watch(self, host: str, after: int) -> None:  # noqa: ARG002
        """Send all unanswered requests again."""
        if host in self._lanes:
            for request, _ in self._lanes[host].asked:
                self._ask(host, request)
