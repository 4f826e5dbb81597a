"""The effects of a run, in order: open, ship, stage, release, drive, drain, close; and visits, for stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tflaunch import payload, wire
from tflaunch.command import DECIDED
from tflaunch.errors import ConnectError, ConnectErrors, LaunchError
from tflaunch.hosts import Host
from tflaunch.inventory import HostFacts, Inventory
from tflaunch.job import TaskId
from tflaunch.plan import ClusterPlan
from tflaunch.session import Ended, Item, Opener, Said, Sessions, Stopped, Written
from tflaunch.sources import Bundle
from tflaunch.supervise import (
    AgentGaveUp,
    End,
    Event,
    HostLost,
    HostSwept,
    Interrupted,
    Say,
    StartTimer,
    State,
    TaskExit,
    TimerFired,
    step,
)

BLOB_BYTES = 256 * 1024
SILENCE_S = 15.0  # an agent that has said nothing for so long (it beats every 3 s) is lost
WINDOW_BYTES = 32 * 1024 * 1024  # log bytes under way from all hosts together ...
WINDOW_RANGE = (64 * 1024, 2 * 1024 * 1024)  # ... and from one
PROBE_S = 30.0
FINISH_MARGIN_S = 60.0  # beyond the grace: what a visit may take

Record = Callable[[TaskId, int, bytes], None]  # task, offset, data: the launcher's copy of a log


class Watcher(Protocol):
    """Who is shown what happens: `tflaunch.console`."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None: ...
    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def started(self, task: TaskId, host: str, pid: int) -> None: ...
    def exited(self, exit: TaskExit) -> None: ...
    def lost(self, lost: HostLost) -> None: ...
    def log(
        self, task: TaskId, host: str, offset: int, data: bytes, written: Callable[[int], None]
    ) -> None: ...
    def log_end(self, task: TaskId) -> None: ...


@dataclass
class _Log:
    """How far a task's log has come; `total` is known once its host is swept."""

    host: str
    received: int = 0
    total: int | None = None
    end_told: bool = False

    @property
    def missing(self) -> int:
        return max(0, (self.total or 0) - self.received)


class Cluster:
    """The agents of one run."""

    def __init__(self, run_id: str, opener: Opener, watcher: Watcher, lease_s: float) -> None:
        self._run_id = run_id
        self._watcher = watcher
        self._sessions = Sessions(opener, watcher.phase, lease_s)
        self._timers: dict[str, float] = {}
        self._logs: dict[TaskId, _Log] = {}
        self._record: Record | None = None
        self._window = 0
        self._owed: dict[str, int] = {}
        self.interrupts = self._sessions.interrupts

    # -- before the tasks run

    def open(
        self, hosts: Collection[Host], ports_wanted: int, connect_s: float, lease: bool = True
    ) -> Inventory:
        """Connect to every host, boot its agent and learn its facts: one round trip after the handshake.

        With `lease`, every card that nobody has is leased in the same step, until `stage` or `let_go`.
        Raises ConnectErrors with every host that failed, after all are closed; Stopped.
        """
        self._sessions.connect(
            hosts,
            "start",
            self._run_id,
            lambda host: wire.encode("probe", ports=host.ports, count=ports_wanted, lease=lease),
        )
        names = [host.name for host in hosts]
        patience_s = self._sessions.patience_s(len(names), connect_s)
        facts, failures = self._sessions.gather("facts", names, patience_s, "connecting")
        lacking = {name: said["lacks"] for name, said in facts.items() if said["lacks"]}
        if lacking and not failures:
            for name, module in lacking.items():
                self._sessions.send([name], "module", payload.module_source(module), name=module)
            more, failures = self._sessions.gather("facts", lacking, PROBE_S, "probing")
            facts.update(more)
        if failures:
            self.abandon()
            raise ConnectErrors(failures, len(names))
        return {name: HostFacts.from_wire(name, facts[name].fields) for name in names}

    def let_go(self) -> None:
        """Give all cards back, to look again later."""
        self._sessions.send(self._sessions.by_host, "let_go")

    def look_again(self, hosts: Collection[Host], ports_wanted: int, wait_s: float) -> Inventory:
        """Wait, then lease and look once more; raises ConnectErrors, after all are closed; Stopped."""
        deadline = time.monotonic() + wait_s
        while (item := self._sessions.next(deadline)) is not None:
            if isinstance(item, Interrupted):
                raise Stopped(item)
        for host in hosts:
            self._sessions.send([host.name], "probe", ports=host.ports, count=ports_wanted, lease=True)
        facts, failures = self._sessions.gather("facts", [host.name for host in hosts], PROBE_S)
        if failures:
            self.abandon()
            raise ConnectErrors(failures, len(hosts))
        return {name: HostFacts.from_wire(name, said.fields) for name, said in facts.items()}

    def keep(self, hosts: Collection[str]) -> None:
        """Let go of the hosts that the plan has no task for."""
        for name in set(self._sessions.by_host) - set(hosts):
            self._sessions.send([name], "end", grace_s=0.0)
            self._sessions.drop(name)

    def ship(self, bundle: Bundle, hosts: Collection[str], timeout_s: float) -> None:
        """Bring the code to those hosts that do not have this very content yet.

        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
        """
        self._sessions.send(hosts, "code", digest=bundle.digest, size=bundle.size)
        replies, failures = self._sessions.gather("code", hosts, timeout_s)
        lacking = [name for name, said in replies.items() if not said["have"]]
        if lacking and not failures:
            for name in lacking:
                self._sessions.by_host[name].upload(_blobs(bundle))
            _, failures = self._sessions.gather("code", lacking, timeout_s, "shipping")
        self._refuse(failures)

    def stage(self, plan: ClusterPlan, digest: str | None, timeout_s: float) -> None:
        """Make every task ready, so that all can start in the same moment.

        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
        """
        tasks_of: dict[str, list[dict[str, object]]] = {}
        ports_of: dict[str, list[int]] = {}
        gpus_of: dict[str, list[str]] = {}
        for task in plan.tasks:
            tasks_of.setdefault(task.host, []).append(
                {
                    "id": str(task.id),
                    "argv": list(task.argv),
                    "env": dict(task.env),
                    "cwd": task.cwd,
                    "setup": list(task.setup),
                    "decided": [name for name in DECIDED if name in task.env],
                }
            )
            ports_of.setdefault(task.host, []).append(task.port)
            gpus_of.setdefault(task.host, []).extend(task.gpus)
        for name, tasks in tasks_of.items():
            code = digest if any(task["cwd"] is None for task in tasks) else None
            self._sessions.send(
                [name], "stage", tasks=tasks, code=code, ports=ports_of[name], gpus=gpus_of[name]
            )
        _, failures = self._sessions.gather("staged", tasks_of, timeout_s, "staging")
        self._refuse(failures)

    def _refuse(self, failures: Mapping[str, ConnectError]) -> None:
        if failures:
            unconfirmed = {host: why for host, why in self.abandon().items() if host not in failures}
            reasons = {name: error.message for name, error in failures.items()}
            hints = sorted({error.hint for error in failures.values() if error.hint})
            raise LaunchError(reasons, "; ".join(hints), unconfirmed)

    def abandon(self, timeout_s: float = 10.0) -> dict[str, str]:
        """End everything on every host now; returns the hosts that did not confirm it, each with why."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "end", grace_s=0.0)
        try:
            _, failures = self._sessions.gather("swept", names, timeout_s)
        except Stopped:
            failures = {name: ConnectError("tflaunch was told not to wait") for name in names}
        self.close()
        return {name: error.message for name, error in failures.items()}

    def close(self) -> None:
        """Take leave of every agent."""
        self._sessions.close()

    # -- while they run

    def release(self) -> None:
        """Open every gate: all tasks start now, and their logs come."""
        smallest, largest = WINDOW_RANGE
        self._window = min(largest, max(smallest, WINDOW_BYTES // len(self._sessions.by_host)))
        self._sessions.send(self._sessions.by_host, "follow", offsets={}, window=self._window)
        self._sessions.send(self._sessions.by_host, "release")

    def drive(self, state: State, record: Record) -> State:
        """Feed everything that happens to the state machine and do what it says, until the run is over."""
        self._record = record
        self._logs = {task: _Log(host) for task, host in state.hosts.items()}
        self._sessions.heard = dict.fromkeys(self._sessions.by_host, time.monotonic())
        while state.phase != "over":
            wake = min([*self._timers.values(), time.monotonic() + 1.0])
            for event in self._events(self._sessions.next(wake)):
                state = self._advance(state, event)
            for event in self._due(state):
                state = self._advance(state, event)
        return state

    def _due(self, state: State) -> list[Event]:
        """What time alone has brought about."""
        now = time.monotonic()
        fired = [name for name, at in self._timers.items() if at <= now]
        for name in fired:
            del self._timers[name]
        silent = [
            HostLost(host, f"no sign of life for {SILENCE_S:g} s")
            for host, heard in self._sessions.heard.items()
            if now - heard > SILENCE_S and host not in state.swept and host not in state.lost
        ]
        return [*map(TimerFired, fired), *silent]

    def _advance(self, state: State, event: Event) -> State:
        if isinstance(event, HostLost) and event.host not in state.lost and event.host not in state.swept:
            self._watcher.lost(event)
        state, actions = step(state, event)
        for action in actions:
            match action:
                case End(grace_s):
                    self._sessions.send(self._sessions.by_host, "end", grace_s=grace_s)
                case StartTimer(name, seconds):
                    at = time.monotonic() + seconds
                    self._timers[name] = min(at, self._timers.get(name, at))
                case Say(text, urgent):
                    (self._watcher.say if urgent else self._watcher.note)(text)
        return state

    def _events(self, item: Item | None) -> list[Event]:
        match item:
            case Interrupted():
                return [item]
            case Ended(host, error):
                return [HostLost(host, error.message)]
            case Said(host, message):
                return self._understand(host, message)
            case Written(host, size):
                self._grant(host, size)
        return []

    def _understand(self, host: str, message: wire.Message) -> list[Event]:
        match message.type:
            case "log":
                self._take_log(host, TaskId.parse(message["task"]), message["offset"], message.body)
            case "started":
                self._watcher.started(TaskId.parse(message["task"]), host, message["pid"])
            case "exit":
                exited = TaskExit(
                    task=TaskId.parse(message["task"]),
                    host=host,
                    code=message["code"],
                    signal=message["signal"],
                    signal_name=message["signal_name"],
                    seconds=message["seconds"],
                    tail=message.body,
                    stopped=message["stopped"],
                )
                self._watcher.exited(exited)
                return [exited]
            case "expired":
                return [AgentGaveUp(host, message["reason"], message["asked"])]
            case "swept":
                for name, total in message["logs"].items():
                    task = TaskId.parse(name)
                    self._logs[task].total = total
                    self._maybe_log_end(task)
                return [HostSwept(host, tuple(message["survivors"]))]
            case "failed":
                return [HostLost(host, message["reason"])]
        return []

    def _take_log(self, host: str, task: TaskId, offset: int, data: bytes) -> None:
        if self._record is not None:
            self._record(task, offset, data)
        self._logs[task].received = offset + len(data)
        self._watcher.log(task, host, offset, data, lambda size: self._sessions.put(Written(host, size)))
        self._maybe_log_end(task)

    def _maybe_log_end(self, task: TaskId) -> None:
        log = self._logs[task]
        if log.total is not None and log.missing == 0:
            self._log_end(task)

    def _log_end(self, task: TaskId) -> None:
        if not self._logs[task].end_told:
            self._logs[task].end_told = True
            self._watcher.log_end(task)

    def _grant(self, host: str, size: int) -> None:
        """Credit for more log bytes, in portions: one message for many lines."""
        owed = self._owed.get(host, 0) + size
        if owed >= self._window // 4:
            self._sessions.send([host], "credit", bytes=owed)
            owed = 0
        self._owed[host] = owed

    def drain(self, timeout_s: float = 1e9) -> dict[TaskId, int]:
        """Bring in what is left of the logs; returns the missing bytes of each task that has any.

        It ends when every byte is here, no host that has some is heard of, the time is up or Ctrl-C comes.
        """
        deadline = time.monotonic() + timeout_s
        while any(log.missing and self._hears(log.host) for log in self._logs.values()):
            item = self._sessions.next(min(deadline, time.monotonic() + 1.0))
            if time.monotonic() >= deadline or isinstance(item, Interrupted):
                break
            self._events(item)
        for task in self._logs:
            self._log_end(task)
        return {task: log.missing for task, log in self._logs.items() if log.missing}

    def _hears(self, host: str) -> bool:
        silence = time.monotonic() - self._sessions.heard.get(host, 0.0)
        return host not in self._sessions.ended and silence < SILENCE_S

    def log_paths(self) -> dict[TaskId, str]:
        """Where each task's log lies on its host."""
        return {
            task: f"{self._sessions.by_host[log.host].directory}/logs/{task.job}-{task.index}.log"
            for task, log in self._logs.items()
            if log.host in self._sessions.by_host
        }


def _blobs(bundle: Bundle) -> Iterator[bytes]:
    data = memoryview(bundle.data)
    for start in range(0, len(data), BLOB_BYTES):
        piece = bytes(data[start : start + BLOB_BYTES])
        yield wire.encode("blob", piece, last=start + BLOB_BYTES >= len(data))


# ---- from outside a run


@dataclass(frozen=True)
class Finished:
    """What ending a run met on one host; `survivors` should be empty."""

    known: bool  # there is a directory of it, or something of it was alive
    found: bool  # something of it was alive
    killed: tuple[str, ...]
    survivors: tuple[str, ...]
    unsure: bool = False  # agent and guard were both killed: what hid well would not be found


@dataclass(frozen=True)
class LiveRun:
    """A run that something is alive of: its tasks and where they are, as far as agents tell."""

    run_id: str
    hosts: tuple[str, ...]
    tasks: tuple[str, ...]
    started: float | None  # epoch seconds


class Visits:
    """Short-lived agents that look after any run: they need no record of it and no agent that lives."""

    def __init__(self, opener: Opener, watcher: Watcher) -> None:
        self._sessions = Sessions(opener, watcher.phase)
        self.interrupts = self._sessions.interrupts

    def open(
        self, hosts: Collection[Host], connect_s: float, phase: str = "connecting"
    ) -> dict[str, ConnectError]:
        """Connect to all; returns the hosts that could not be reached. Raises Stopped."""
        self._sessions.connect(hosts, "visit", "", lambda _: b"")
        names = [host.name for host in hosts]
        patience_s = self._sessions.patience_s(len(names), connect_s)
        _, failures = self._sessions.gather("hello", names, patience_s, phase)
        for name in failures.keys() & self._sessions.by_host.keys():
            self._sessions.drop(name)
        return failures

    def runs(self, timeout_s: float) -> tuple[list[LiveRun], dict[str, ConnectError]]:
        """Every run of this user that is alive on these hosts, and the hosts that did not answer."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "list")
        replies, failures = self._sessions.gather("runs", names, timeout_s)
        found: dict[str, LiveRun] = {}
        for name in names:
            for entry in replies[name]["runs"] if name in replies else ():
                before = found.get(entry["run"], LiveRun(entry["run"], (), (), None))
                found[entry["run"]] = LiveRun(
                    entry["run"],
                    (*before.hosts, name),
                    tuple(dict.fromkeys((*before.tasks, *entry["tasks"]))),
                    min(filter(None, (before.started, entry["started"])), default=None),
                )
        return sorted(found.values(), key=lambda run: run.started or 0.0), failures

    def finish(
        self, run_id: str, grace_s: float, phase: str = "stopping"
    ) -> tuple[dict[str, Finished], dict[str, ConnectError]]:
        """End that run on every connected host, whatever is left of it, and check. Raises Stopped."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "finish", run=run_id, grace_s=grace_s)
        replies, failures = self._sessions.gather("finished", names, grace_s + FINISH_MARGIN_S, phase)
        return {
            name: Finished(
                said["known"],
                said["found"],
                tuple(said["killed"]),
                tuple(said["survivors"]),
                said["unsure"],
            )
            for name, said in replies.items()
        }, failures

    def close(self) -> None:
        """Take leave of all."""
        self._sessions.close()
