"""A run seen from anywhere: its events and logs come from its hosts; nothing here steers it.

Several may look at one run at once.  A host that is lost is gone back to, and what it said meanwhile is not missed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tflaunch.hosts import Host, Hostfile
from tflaunch.inputs.times import duration
from tflaunch.lifecycle.driver import understand
from tflaunch.lifecycle.links import Links
from tflaunch.protocol.errors import Breach, ConnectError
from tflaunch.protocol.events import AgentGaveUp, TaskStarted
from tflaunch.protocol.job import TRIAL, TaskId, deciding
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, outcome_from
from tflaunch.protocol.wire import Message
from tflaunch.runs.states import RunState
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.log_feed import STALL_S, LogFeed
from tflaunch.sessions.watcher import Watcher

ANSWER_S = 30.0
GONE_S = 60.0  # a host out of reach for so long is not waited for, once all others have ended their part
REST_S = 15.0  # for a host that is lost while its logs are printed
SAID = 200  # texts of a host that are shown
OUTCOME_S = 10.0  # for who decides to say how it ended, once every host has ended its part


@dataclass(frozen=True)
class Wanted:
    """Which part of the logs: `since` in epoch seconds, `tail` lines of each task; None: from the start."""

    tasks: tuple[TaskId, ...] = ()  # none: all
    since: float | None = None
    tail: int | None = None

    def fields(self) -> dict[str, Any]:
        """As an agent takes it."""
        tasks = [str(task) for task in self.tasks] or None
        return {"tasks": tasks, "since": self.since, "tail": self.tail}


@dataclass
class _Seen:
    """What is known of the run so far."""

    tasks: set[TaskId] = field(default_factory=set)
    exits: dict[TaskId, TaskExit] = field(default_factory=dict)
    over: dict[str, str] = field(
        default_factory=dict
    )  # host -> why nothing more happens there; "": it is swept
    replanned: bool = False  # a host was lost, and the launcher makes another plan
    expired: bool = False  # a host has ended its part because nobody who decides was heard of
    gone: set[str] = field(default_factory=set)  # hosts on which its agent is gone
    through: set[str] = field(default_factory=set)
    outcomes: dict[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # host -> how the run has ended, as it tells
    said: dict[str, set[str]] = field(default_factory=dict)  # host -> texts
    strange: set[str] = field(default_factory=set)  # hosts that spoke of tasks of others


class Follower(Linked):
    """One run, over wires to visits on its hosts that are open already."""

    def __init__(
        self,
        run: RunState,
        sessions: Sessions,
        hostfile: Hostfile,
        watcher: Watcher,
        wanted: Wanted,
        *,
        before: Follower | None = None,
    ) -> None:
        """`before` has seen the run by an earlier plan."""
        super().__init__(sessions, watcher)
        self.run = run
        self.sessions = sessions
        self._there = {
            share.asked: share.host for share in run.shares if share.asked
        }  # whose directory it is
        self._hosts = {host.name: host for host in hostfile.hosts if host.name in self._there}
        self._wanted = wanted
        self._feed = LogFeed(sessions, len(self._hosts), watcher)
        if before is not None:
            self._feed.go_on(before._feed, {TaskId.parse(task.task): task.host for task in run.tasks})
        self._seen = _Seen()
        self._places = {TaskId.parse(task.task): task.host for task in run.tasks}
        self._events = False
        self.troubles: list[str] = []  # what was found on the hosts that are lost
        self.unreached: dict[str, ConnectError] = {}  # hosts whose logs were not printed to their end

    @property
    def hosts(self) -> list[str]:
        """Those that are attached."""
        return list(self._hosts)

    def host(self, name: str) -> Host:
        """One of them."""
        return self._hosts[name]

    @property
    def unknown(self) -> list[TaskId]:
        """The tasks that are wanted and that the run does not have."""
        return [task for task in self._wanted.tasks if task not in self._seen.tasks]

    @property
    def lost(self) -> list[str]:
        """The hosts that can be asked, and on which its agent is gone, if events are seen."""
        return [host for host in self._hosts if self._events and host in self._seen.gone]

    @property
    def replanned(self) -> bool:
        """Whether the run goes on by another plan than the one that was seen."""
        return self._seen.replanned

    def attach(self) -> dict[str, ConnectError]:
        """Turn the visits into views; returns the hosts that do not answer. Raises Stopped."""
        names = list(self._hosts)
        for name in names:
            self._sessions.send([name], "attach", run=self.run.run_id, host=self._there[name])
        _, failures = self._sessions.gather("hello", names, ANSWER_S)
        for name in failures:
            del self._hosts[name]
            if name in self._sessions.by_host:
                self._sessions.drop(name)
        return failures

    def follow(self, events: bool = True) -> Outcome | None:
        """Show all that happens until the run is over; returns how it ended, if that is known. Raises Stopped.

        Without `events` only the logs are shown.
        """
        self._events = events
        links = self._begin()
        over_at = 0.0
        while True:
            item = self.turn()
            now = time.monotonic()
            left = self._hosts.keys() - self._seen.over.keys()
            # All that can be asked have ended their part.  The others may be off for good; they are certainly not
            # waited for when nobody decides any more.
            patience_s = 0.0 if self._seen.expired else GONE_S
            if (
                left
                and left <= links.down.keys()
                and all(links.away_s(host, now) > patience_s for host in left)
            ):
                for host in left:
                    why = links.down[host]
                    self._end(host, f"not heard of for {duration(links.away_s(host, now))} ({why})")
                    links.forget(host)
            elif not left and self._feed.end(self._may_come):
                over_at = over_at or self.awake_s + OUTCOME_S
                # A host that has nothing more to say hangs up; then nobody is left who would tell.
                late = item is None and self.awake_s > over_at  # all that has come is taken first
                if self._decided(links.up) or not links.up or late:
                    break
        told = self._seen.outcomes
        if not told:
            return None
        # Where they differ, one of them lies: no end is taken for better than any host says.
        outcome = max(told.values(), key=lambda each: (each["exit_code"] != 0, each["exit_code"]))
        if differing := sorted(host for host in told if told[host]["exit_code"] != outcome["exit_code"]):
            others = ", ".join(f"{host} says {told[host]['exit_code']}" for host in differing)
            self._watcher.warn(
                f"the hosts differ about how the run ended: {outcome['exit_code']}, but {others}"
            )
        return outcome_from(self.run.run_id, outcome, self._seen.exits)

    def _decided(self, up: Collection[str]) -> bool:
        """Whether most hosts have told how the run ended, or all that can: who decided has left it on all of them."""
        told = self._seen.outcomes
        return 2 * len(told) > len(self._hosts) or (bool(told) and told.keys() >= set(up))

    @property
    def _decider(self) -> str:
        """The host whose agent decides for a detached run, as `Cluster.entrust` chooses it."""
        chosen = min(self._places, key=deciding, default=None)
        return self._places[chosen] if chosen is not None else ""

    def _owns(self, host: str, tasks: Iterable[str]) -> bool:
        """Whether those tasks may be that host's: by the plan, but for trials, which move, and for other plans."""
        there = self._there[host]
        for task in map(TaskId.parse, tasks):
            place = self._places.get(task, there)
            if place != there and task.job != TRIAL and not self._seen.replanned:
                if host not in self._seen.strange:
                    self._seen.strange.add(host)
                    self._watcher.warn(f"{host} speaks of {task}, which is on {place}: that is left out")
                return False
        return True

    def print_logs(self) -> None:
        """Show what the tasks have printed until now. Raises Stopped."""
        links = self._begin()
        while not self._hosts.keys() <= self._seen.through:
            self.turn()
            now = time.monotonic()
            for host, why in links.down.items():
                if links.away_s(host, now) > REST_S:
                    self.unreached[host] = ConnectError(
                        f"the rest of its logs did not come: {why}", "try again"
                    )
                    self._seen.through.add(host)
                    links.forget(host)
            for host in self._hosts.keys() - self._seen.through - links.down.keys():
                if host not in links.up:
                    why = "it hung up before"
                elif self._feed.stalls(host):
                    why = f"it sent nothing of them for {STALL_S:g} s"
                else:
                    continue
                self.unreached[host] = ConnectError(f"the rest of its logs did not come: {why}", "try again")
                self._seen.through.add(host)
        self._feed.end()

    def _begin(self) -> Links:
        self.link(self._hosts)
        for host in self.links.up:
            self.watch(host, 0)
        return self.links

    def _may_come(self, host: str) -> bool:
        return host in self.links.up

    def written(self, host: str, size: int) -> None:
        """Let that host send more."""
        self._feed.written(host, size)

    def disconnected(self, host: str) -> None:
        """A host that has said all is not dialled again."""
        if self._seen.over.get(host) is not None:
            self.links.forget(host)

    def dead(self, host: str, error: ConnectError) -> None:
        """Nothing more comes from that host."""
        if isinstance(error, Breach):
            self.unreached[host] = error
        self._seen.through.add(host)
        self._end(host, error.message)

    def said(self, host: str, message: Message) -> None:
        """Show what a host says of its own tasks."""
        if not self._owns(host, tasks_of(message)):
            return
        if message.type == "log":
            self._feed.take(host, message)
        elif message.type == "through":
            self._seen.through.add(host)
        elif "n" in message.fields and self.links.takes(host, message["n"]):
            self._happened(host, message.type, message.fields, message.body)

    def _happened(self, host: str, type: str, fields: Mapping[str, Any], body: bytes) -> None:
        if type == "swept":
            self._feed.swept(host, fields["logs"])
            self._seen.over[host] = ""
        elif type == "outcome":
            self._seen.outcomes[host] = fields["outcome"]
        elif type == "started":
            self._seen.tasks.add(TaskId.parse(fields["task"]))
        elif type == "gone":
            self._seen.over[host] = fields["reason"]
            self._seen.gone.add(host)
        elif type == "said":
            self._seen.replanned |= fields.get("replanned", False)
        elif type == "expired" and not fields["asked"]:
            self._seen.expired = True
        if not self._events:
            return
        if type == "said":
            self._note(host, fields["text"])
        event = understand(host, type, fields, body)
        if isinstance(event, TaskStarted):
            self._watcher.started(event)
        elif isinstance(event, TaskExit):
            self._seen.exits[event.task] = event
            self._watcher.exited(event)
        elif isinstance(event, AgentGaveUp):
            self._watcher.note(f"{host}: {event.reason}")
        elif isinstance(event, HostLost):
            self._end(host, event.reason)

    def _note(self, host: str, text: str) -> None:
        """Show what who decides has said; who else says something is named, and may not say much."""
        said = self._seen.said.setdefault(host, set())
        if text not in said and len(said) < SAID:
            said.add(text)
            self._watcher.note(text if self._there[host] == self._decider else f"{host}: {text}")

    def _end(self, host: str, reason: str) -> None:
        self._seen.over[host] = reason
        if self._events:
            self._watcher.lost(HostLost(host, reason))

    # What the links want done.

    def dial(self, host: str) -> None:
        """Go in again."""
        self._sessions.attach(self._hosts[host], self.run.run_id, self._there[host])

    def watch(self, host: str, after: int) -> None:
        """Ask for what is wanted."""
        self._feed.watch(host, after, **self._wanted.fields())
