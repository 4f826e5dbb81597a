"""Drives a run, or a sweep, over the links to its agents; pure: its owner has the clock, the wires and the screen.

The owner is a launcher, which reaches the agents over SSH, or the coordinator of a detached run, which reaches them
over TCP.  The rules and the messages are the same.  The driver turns messages into events of the state machine, carries
out the actions that follow, repeats the orders that a host has not carried out when that host is back, and decides when
a host that is out of reach is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tflaunch.lifecycle.actions import End, Move, Order, Restart, Say, Signal, StartTimer, StopTasks
from tflaunch.lifecycle.links import DEAF_S, LOOK_S, Links, Transport
from tflaunch.protocol.events import AgentGaveUp, HostSwept, TaskStarted, TimerFired
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, TaskExit, gpus_left
from tflaunch.protocol.wire import LAST_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tflaunch.diagnosis.rule import Sentence
    from tflaunch.lifecycle.actions import Action
    from tflaunch.lifecycle.states import State
    from tflaunch.protocol.events import Event
    from tflaunch.protocol.wire import Message

HELD_S = 5.0  # what holds is not sent to a host more often, however often it changes


class Driven(Protocol):
    """A state that a driver can drive: that of a run, or of a sweep."""

    @property
    def hosts(self) -> Mapping[Any, str]:
        """A mapping whose values are the hosts."""

    @property
    def all_hosts(self) -> frozenset[str]:
        """The hosts that have an agent."""

    @property
    def phase(self) -> str:
        """`running` while the monitor is asked for events, `over` at the end."""

    @property
    def status(self) -> str:
        """How it ends, as far as is known now: `succeeded`, `failed`, `interrupted`."""

    @property
    def lost(self) -> Mapping[str, str]:
        """The hosts that are lost, each with the reason."""

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]:
        """The hosts that are swept, each with the processes that could not be killed."""

    def has_task(self, host: str, task: TaskId) -> bool:
        """Whether that task runs, or ran, on that host."""

    def is_busy(self, host: str) -> bool:
        """Whether tasks run on that host, and nothing has been done to end them."""

    def step(self: S, event: Any, now: float) -> tuple[S, list[Action]]:
        """The next state, and what to do at once."""


S = TypeVar("S", bound=Driven)


class Monitor(Protocol):
    """Sees all events and messages, and finds out more: the watchdog of a run, or the controller of a sweep."""

    def happened(self, event: Event, now: float) -> Iterable[str]:
        """Take note of an event; the state machine gets it after this.  Returns what the user should know of it."""

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        """Take note of a message of an agent."""

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the agents now: (host, message type, fields); `hosts` are those that can be reached."""

    def sentences(self, now: float) -> list[Sentence]:
        """What the user should know since the last call."""

    def holds(self) -> tuple[list[str], list[str]]:
        """What is wrong with the run now, and what the monitor cannot see: the agents keep both for `status`."""

    def next_event(self, now: float) -> Any:
        """The next event that the monitor has found out itself; None when there is none."""

    def wake_at(self) -> float:
        """The time by which the monitor wants to be asked again."""


class DriverOwner(Transport, Protocol):
    """Carries out what the driver decides, and shows what happens: a launcher, or a coordinator."""

    def send(self, host: str, type: str, **fields: Any) -> None:
        """Send a message over a link that is up."""

    def say(self, text: str, urgent: bool) -> None:
        """Show the user a sentence; an urgent one goes before waiting log lines."""

    def warn(self, text: str) -> None:
        """Show the user a sentence about something that needs attention."""

    def slowed(self, text: str) -> None:
        """Show the user what makes the run slower than it could be."""

    def happened(self, event: Event) -> None:
        """Show the user an event; called before the state machine gets it."""


class Driver(Generic[S]):
    """Drives one run, from the release of its tasks until every host is swept or lost.

    A host is lost when its agent has not been heard of for `lease_s`: then the agent has ended the tasks by itself.
    With `up=False`, no link is up yet, and the driver dials the hosts.
    """

    def __init__(
        self,
        state: S,
        owner: DriverOwner,
        lease_s: float,
        now: float,
        *,
        up: bool = True,
        monitor: Monitor | None = None,
    ) -> None:
        self.state = state
        self._monitor = monitor
        self._owner = owner
        self.lease_s = lease_s
        self.links = Links(sorted(state.all_hosts), owner, now, up, deaf_s=min(DEAF_S, lease_s / 3))
        # What each host was told last of what holds.  A driver that takes over does not know: it tells all.
        self._held_at: dict[str, float] = {}
        self._held: dict[str, Any] = dict.fromkeys(self.links.up, ([], []))
        self._look_at = now  # when the hosts and the monitor are looked at next
        self._look_due = False  # events may have come since the last look
        self._timers: dict[str, float] = {}
        # host -> name -> message: orders that were sent, and whose effect has not been seen yet
        self._orders: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}

    def memory(self: Driver[State]) -> dict[str, Any]:
        """All that has happened since the run began, as JSON can hold it, for the next coordinator's `resume`."""
        from tflaunch.lifecycle.memory import memory_of

        return {
            "state": memory_of(self.state),
            "after": self.links.after,
            "timers": self._timers,
            "orders": self._orders,
        }

    def resume(self: Driver[State], memory: Any) -> None:
        """Continue from the `memory` of another driver, which began with the same state and used the same clock.

        Call it before any other method.  Raises ValueError where `memory` does not fit this run; then nothing
        has changed.
        """
        from tflaunch.lifecycle.memory import check_driver, remembered

        check_driver(self.state, memory)
        self.state = remembered(self.state, memory["state"])
        self._timers = memory["timers"]
        self._orders = {
            host: {name: (type, fields) for name, (type, fields) in orders.items()}
            for host, orders in memory["orders"].items()
        }
        self.links.resume(memory["after"])
        for host in self.state.lost:
            self.links.forget(host)

    def attached(self, host: str, now: float) -> None:
        """A link is up again: ask for the events that were missed, and repeat the orders."""
        self.links.attached(host, now)
        self._held.pop(host, None)  # what was sent last may not have arrived
        self._held_at.pop(host, None)
        self._repeat_orders(host)

    def _repeat_orders(self, host: str) -> None:
        for type, fields in self._orders.get(host, {}).values():
            self._owner.send(host, type, **fields)

    def heard(self, host: str, now: float) -> None:
        """A message of any type has come from that host."""
        if self.links.heard(host, now):
            self._repeat_orders(host)

    def order(self, host: str, name: str, type: str, **fields: Any) -> None:
        """Send a message now, or when the host is back; it replaces an earlier order of the same `name`."""
        self._orders.setdefault(host, {})[name] = (type, fields)
        if host in self.links.up:
            self._owner.send(host, type, **fields)

    def dead(
        self, host: str, reason: str, now: float, *, reclaimed: bool = False, runs_on: bool = False
    ) -> None:
        """The agent of that host is gone, or breaks the protocol, or its slot is over: the host is lost.

        runs_on: its agent may live, out of reach, until its lease has run out.
        """
        runs_on_s = self.lease_s + LAST_GRACE_S + 1.0 if runs_on else 0.0
        self.feed(HostLost(host, reason, reclaimed, runs_on_s), now)

    def foreign(self, host: str, message: Message) -> str:
        """Why that message cannot be true, or "".

        It cannot be true if it is about a task that was never on that host, or if the agent says that its host is
        swept before it has reported the exits of all tasks there: without this check, the work of that host would
        count as done.
        """
        for task in tasks_of(message):
            if not self.state.has_task(host, TaskId.parse(task)):
                return f"a message of the type {message.type} is about {task}, which is not on that host"
        if message.type == "swept" and self.state.is_busy(host):
            return "it says that all has ended there, and has not reported the exits of its tasks"
        return ""

    def said(self, host: str, type: str, fields: Mapping[str, Any], body: bytes, now: float) -> None:
        """Take a message of an agent; one that is no event goes to the monitor only."""
        self.heard(host, now)
        if self._monitor is not None:
            self._monitor.said(host, type, fields, now)
        if "n" not in fields or not self.links.takes(host, fields["n"]):
            return
        event = understand(host, type, fields, body)
        if event is not None:
            self.feed(event, now)

    def feed(self, event: Event, now: float) -> None:
        """Give an event to the state machine, and carry out the actions that follow."""
        if isinstance(event, TaskStarted):
            self._orders.get(event.host, {}).pop(f"restart {event.task}", None)
        if isinstance(event, (HostSwept, HostLost)):
            self._orders.pop(event.host, None)
            self.links.forget(event.host)
        if not (isinstance(event, HostLost) and event.host in {**self.state.lost, **self.state.swept}):
            self._owner.happened(event)
        if self._monitor is not None:
            for text in self._monitor.happened(event, now):
                if self.state.phase == "running" or self._stopped_after_work(event):
                    self._owner.warn(text)
        self.state, actions = self.state.step(event, now)
        for action in actions:
            if isinstance(action, End):
                self._all("end", "end", grace_s=action.grace_s, stacks=action.stacks)
            elif isinstance(action, StopTasks):
                self._stop(action)
            elif isinstance(action, Signal):
                self._signal(action)
            elif isinstance(action, Restart):
                self._restart(action.tasks)
            elif isinstance(action, Move):
                self._move(action)
            elif isinstance(action, Order):
                self.order(action.host, action.name, action.type, **action.fields)
            elif isinstance(action, StartTimer):
                at = now + action.seconds
                self._timers[action.name] = min(at, self._timers.get(action.name, at))
            elif isinstance(action, Say):
                self._owner.say(action.text, action.urgent)

    def _stopped_after_work(self, event: Event) -> bool:
        """Whether that is the end of a task that was stopped because all work was done."""
        done = self.state.phase in ("draining", "ending") and self.state.status == "succeeded"
        return done and isinstance(event, TaskExit) and event.stopped

    def tick(self, now: float) -> None:
        """Do what is due: timers, links, the monitor's questions and sentences, hosts whose lease has run out."""
        for name in [name for name, at in self._timers.items() if at <= now]:
            del self._timers[name]
            self.feed(TimerFired(name), now)
        self.links.tick(now)
        self._look_due = now < self._look_at
        if self._look_due:
            return
        self._look_at = now + LOOK_S
        if self._monitor is not None and self.state.phase == "running":
            self._consult(self._monitor, now)
        for host, why in self.links.down.items():
            if self.links.away_s(host, now) > self.lease_s:
                reason = (
                    f"not heard of for {self.lease_s:.12g} s: by then its agent ends the run there ({why})"
                )
                self.feed(HostLost(host, reason), now)

    def _consult(self, monitor: Monitor, now: float) -> None:
        while (found := monitor.next_event(now)) is not None:
            self.feed(found, now)
            if self.state.phase != "running":
                return
        for host, type, fields in monitor.questions(self.links.up, now):
            self._owner.send(host, type, **fields)
        for sentence in monitor.sentences(now):
            if sentence.over:
                self._owner.say(sentence.text, urgent=False)
            else:
                (self._owner.slowed if sentence.slows else self._owner.warn)(sentence.text)
        held = monitor.holds()
        for host in self.links.up:
            if self._held.get(host) != held and now - self._held_at.get(host, -HELD_S) >= HELD_S:
                self._held[host], self._held_at[host] = held, now
                self._owner.send(host, "holds", sentences=held[0], blind=held[1])

    def wake_at(self, now: float) -> float:
        """The time by which `tick` must be called."""
        wakes = [self.links.wake_at(now), *self._timers.values()]
        if self._look_due:
            wakes.append(self._look_at)
        if self._monitor is not None and self.state.phase == "running":
            wakes.append(max(self._monitor.wake_at(), self._look_at))
        return min(wakes)

    def _all(self, name: str, type: str, **fields: Any) -> None:
        for host in self.state.all_hosts - self.state.swept.keys() - self.state.lost.keys():
            self.order(host, name, type, **fields)

    def _stop(self, action: StopTasks) -> None:
        by_host: dict[str, list[str]] = {}
        for task in action.tasks:
            by_host.setdefault(self.state.hosts[task], []).append(str(task))
        for host, tasks in by_host.items():
            self.order(host, "stop", "stop", tasks=tasks, grace_s=action.grace_s)

    def _signal(self, action: Signal) -> None:
        by_host: dict[str, dict[str, int]] = {}
        for task, attempt in action.tasks.items():
            by_host.setdefault(self.state.hosts[task], {})[str(task)] = attempt
        for host, tasks in by_host.items():
            self.order(host, "signal", "signal", tasks=tasks)

    def _restart(self, tasks: Mapping[TaskId, int]) -> None:
        for task, attempt in tasks.items():
            host = self.state.hosts[task]
            orders = self._orders.get(host, {})
            if "stop" in orders and str(task) in orders["stop"][1]["tasks"]:
                del orders["stop"]
            self.order(host, f"restart {task}", "restart", tasks={str(task): attempt})

    def _move(self, action: Move) -> None:
        tasks = [str(task) for task in action.tasks]
        for host in self.state.all_hosts - self.state.swept.keys() - self.state.lost.keys():
            orders = self._orders.get(host, {})
            for name in ["stop", *(f"restart {task}" for task in tasks)]:
                orders.pop(name, None)
            self.order(host, "move", "move", places=dict(action.places), tasks=tasks, attempt=action.attempt)

    def replace_monitor(self, monitor: Monitor) -> None:
        """From now on another monitor watches: the tasks are elsewhere."""
        self._monitor = monitor


def understand(host: str, type: str, fields: Mapping[str, Any], body: bytes = b"") -> Event | None:
    """The event that a message of an agent stands for; None where it changes nothing for the run."""
    if type == "started":
        return TaskStarted(TaskId.parse(fields["task"]), host, fields["attempt"], fields["pid"])
    if type == "exit":
        return TaskExit(
            task=TaskId.parse(fields["task"]),
            host=host,
            code=fields["code"],
            signal=fields["signal"],
            seconds=fields["seconds"],
            tail=body,
            stopped=fields["stopped"],
            signal_name=fields["signal_name"],
            attempt=fields["attempt"],
            log_bytes=fields.get("log_bytes", 0),
            facts=fields.get("facts", {}),
        )
    if type == "expired":
        return AgentGaveUp(host, fields["reason"], fields["asked"], fields.get("ends_in"))
    if type == "swept":
        return HostSwept(host, tuple(fields["survivors"]), gpus_left(fields.get("gpus", ())))
    if type == "gone":
        return HostLost(host, fields["reason"])
    return None
