"""Looks at the tasks of a run, again and again, from any machine: what `tflaunch top` shows.

Nothing here steers the run: its agents are asked what the watchdog asks them, and tell of their events, without logs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tflaunch.lifecycle.driver import understand
from tflaunch.lifecycle.tallies import Tallies
from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, TaskExit
from tflaunch.protocol.wire import Message
from tflaunch.runs.follow import Follower
from tflaunch.runs.run_states import RunState, TaskState
from tflaunch.runs.samples import HOST_NAMES, NAMES
from tflaunch.runs.sampling import Rates
from tflaunch.sessions.group import Typed
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.watcher import Watcher

PATIENCE_S = 30.0  # for the answer to a look, before the next one is asked
SHOWN_S = 1.0  # between two looks that are shown: the answers of many hosts come one after another
MOST_TASKS = 10_000
MOST_SAID = 5

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class SeenTask:
    """A task, and what it used by the last look at it."""

    task: str
    host: str
    state: str  # of TaskState; "exited" has its code or signal in `end`
    end: str = ""
    values: Values | None = None  # by the names of the samples' columns; None: not looked at twice yet
    says: str = ""  # the last line of its log
    seen: float = 0.0  # when it was looked at, monotonic


@dataclass(frozen=True)
class SeenHost:
    """What a host does beside the run, and how its programs have to wait."""

    others: float  # cores that processes beside the run use
    values: Values | None = None  # by the names of the samples' columns of hosts; None: not known
    seen: float = 0.0  # when it was looked at, monotonic


@dataclass(frozen=True)
class SeenRun:
    """The run as its hosts have told of it by now."""

    run: RunState
    at: float  # monotonic
    clock: float  # epoch seconds
    tasks: tuple[SeenTask, ...]
    hosts: Mapping[str, SeenHost]
    down: Mapping[str, str]  # host -> why nothing comes from there
    # When, in epoch seconds, the run's launcher or coordinator said what.
    said: tuple[tuple[float, str], ...] = ()
    ended: str = ""  # how the run ended; "": it goes on


class Looking(Linked):
    """Looks at one run, over connections that are open already; those that are lost come back."""

    def __init__(self, follower: Follower, watcher: Watcher, every_s: float) -> None:
        super().__init__(follower.sessions, watcher)
        self._follower = follower
        self._every_s = every_s
        # By this an agent knows the watch after a reconnect.
        self._client = secrets.token_hex(8)
        run = follower.run
        self._tasks = {task.task: _seen(task) for task in run.tasks}
        ports = {task.task: task.port for task in run.tasks}
        self._rates = Rates(Tallies(ports, {task.task: task.gpus for task in run.tasks}, set()))
        self._asked: dict[str, float] = {}  # host -> since when its answer is awaited
        self._hosts: dict[str, SeenHost] = {}
        self._over: dict[str, str] = {}  # host -> why no more comes from there
        self._said: list[tuple[float, str]] = []
        self._ended = ""
        self._going = True
        self._changed = True

    def stop(self) -> None:
        """Have `looks` end soon; any thread may call it."""
        self._going = False
        self._sessions.put(Typed(""))

    def looks(self) -> Iterator[SeenRun]:
        """What the hosts have told by now, again whenever there is more, until `stop`.  Raises Stopped."""
        hosts = self._follower.hosts
        self.link(hosts)
        for host in self.links.up:
            self.watch(host, 0)
        look_at = show_at = self.awake_s
        while self._going:
            if self.awake_s >= look_at:
                look_at = self.awake_s + self._every_s
                self._ask()
            if self._changed and self.awake_s >= show_at:
                show_at = self.awake_s + min(SHOWN_S, self._every_s)
                self._changed = False
                yield self._seen()
            self.turn(min(look_at, show_at) if self._changed else look_at)

    def _ask(self) -> None:
        """Look at the hosts that have answered the look before: over a slow link, they are looked at more rarely."""
        now = self.awake_s
        for host in self.links.up:
            if now - self._asked.get(host, -PATIENCE_S) >= PATIENCE_S:
                self._asked[host] = now
                self._sessions.send([host], "look", gpus_s=self._every_s)

    def _seen(self) -> SeenRun:
        down = {**self._over, **self.links.down}
        return SeenRun(
            self._follower.run,
            time.monotonic(),
            time.time(),
            tuple(self._tasks.values()),
            dict(self._hosts),
            down if not self._ended else {},
            tuple(self._said),
            self._ended,
        )

    # What happens.

    def said(self, host: str, message: Message) -> None:
        """Take what a host says of its tasks."""
        if message.type == "looked":
            self._asked.pop(host, None)
            self._looked(host, message.fields)
        elif "n" in message.fields and self.links.takes(host, message["n"]):
            self._happened(host, message)
        self._changed = True

    def _looked(self, host: str, fields: Mapping[str, Any]) -> None:
        now = time.monotonic()
        machine = fields.get("machine") or {}
        others = sum(cores for _, _, cores in machine.get("others", ()))
        pressures = self._rates.of_host(host, machine, now)
        known = None if pressures is None else dict(zip(HOST_NAMES, pressures, strict=True))
        self._hosts[host] = SeenHost(others, known, now)
        for name, look in fields["tasks"].items():
            before = self._tasks.get(name)
            if before is None and len(self._tasks) >= MOST_TASKS:
                continue
            row = self._rates.row(name, look, fields.get("gpus") or {}, now)
            values = before.values if before is not None else None
            if row is not None:
                values = dict(zip(NAMES, row, strict=True))
            self._tasks[name] = SeenTask(name, host, "running", "", values, look["says"], now)

    def _happened(self, host: str, message: Message) -> None:
        fields = message.fields
        if message.type == "said":
            self._said = [*self._said, (fields.get("time", 0.0), fields["text"])][-MOST_SAID:]
        elif message.type == "outcome":
            outcome = fields["outcome"]
            self._ended = f"{outcome['status']} (exit code {outcome['exit_code']})"
        elif message.type == "swept":
            self._over[host] = "the run has ended there"
        if not tasks_of(message) or len(self._tasks) < MOST_TASKS:
            event = understand(host, message.type, fields, message.body)
            if isinstance(event, TaskStarted):
                self._tasks[str(event.task)] = SeenTask(str(event.task), host, "running")
            elif isinstance(event, TaskExit):
                self._exited(str(event.task), host, event)
            elif isinstance(event, HostLost):
                self._over[host] = event.reason

    def _exited(self, task: str, host: str, exit: TaskExit) -> None:
        how = "stopped" if exit.stopped else exit.signal_name or f"exit code {exit.code}"
        before = self._tasks.get(task) or SeenTask(task, host, "exited")
        self._tasks[task] = replace(before, host=host, state="exited", end=how, values=None)

    def dead(self, host: str, error: ConnectError) -> None:
        """Nothing more comes from that host."""
        self._over.setdefault(host, error.message)
        self._changed = True

    def disconnected(self, host: str) -> None:
        """Dial a host again, unless it has ended its part."""
        self._asked.pop(host, None)
        self._changed = True
        if host in self._over:
            self.links.forget(host)

    def unreachable(self, host: str, reason: str) -> None:
        """The next look has it."""

    def back(self, host: str, away_s: float) -> None:
        """The next look has it."""

    def dial(self, host: str) -> None:
        """Connect to that host again."""
        self._follower.dial(host)

    def watch(self, host: str, after: int) -> None:
        """Ask for the events after number `after`, and for no logs."""
        self._sessions.send([host], "watch", after=after, logs=None, client=self._client)


def _seen(task: TaskState) -> SeenTask:
    end = ""
    if task.state == "exited":
        end = "stopped" if task.stopped else task.signal_name or f"exit code {task.code}"
    return SeenTask(task.task, task.host, task.state, end)
