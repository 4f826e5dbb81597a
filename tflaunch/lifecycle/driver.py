"""Drives a run over the links to its agents; pure: clock, wires and screen belong to who calls.

A launcher drives over SSH, the coordinating agent of a detached run over TCP: by the same rules, with the same
messages.  Here is what both share: what a message means for the state, which orders a host has not carried out
yet (they are repeated when it is back), and when a host that is out of reach is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tflaunch.lifecycle.links import LOOK_S, Links, Transport
from tflaunch.lifecycle.states import End, Order, Restart, Say, StartTimer, StopTasks
from tflaunch.protocol.events import AgentGaveUp, HostSwept, TaskStarted, TimerFired
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, TaskExit, cards_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tflaunch.diagnosis.hangs import Sentence
    from tflaunch.lifecycle.states import Action, State
    from tflaunch.protocol.events import Event
    from tflaunch.protocol.wire import Message


class Driven(Protocol):
    """What is driven: a state that knows what follows from an event."""

    @property
    def hosts(self) -> Mapping[Any, str]:
        """The hosts are its values."""

    @property
    def phase(self) -> str:
        """`running` while there is something to watch over, `over` at the end."""

    @property
    def lost(self) -> Mapping[str, str]:
        """Hosts that are lost, each with why."""

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]:
        """Hosts on which all has ended."""

    def had(self, host: str, task: TaskId) -> bool:
        """Whether that task runs, or ran, on that host."""

    def works(self, host: str) -> bool:
        """Whether tasks of that host have not ended, and nothing ends them."""

    def step(self: S, event: Any, now: float) -> tuple[S, list[Action]]:
        """The next state, and what to do at once."""


S = TypeVar("S", bound=Driven)


class Monitor(Protocol):
    """Who looks on: `tflaunch.lifecycle.watchdog` describes the methods."""

    def happened(self, event: Event, now: float) -> None:
        """Something has happened."""

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        """A message of an agent."""

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What is to be asked now."""

    def sentences(self, now: float) -> list[Sentence]:
        """What is new to say."""

    def next_event(self, now: float) -> Any:
        """An event that it has found out itself, if any; asked until there is none, or the run goes on no more."""

    def wake_at(self) -> float:
        """When it has something to do."""


class DriverOwner(Transport, Protocol):
    """What does the work, and who is shown what happens."""

    def send(self, host: str, type: str, **fields: Any) -> None:
        """Send a message over a link that is up."""

    def say(self, text: str, urgent: bool) -> None:
        """Tell the user."""

    def warn(self, text: str) -> None:
        """Tell the user what should be looked at."""

    def happened(self, event: Event) -> None:
        """Something that a user wants to see; before anything is done about it."""


class Driver(Generic[S]):
    """One run, from the moment in which its tasks are released until every host is swept or lost."""

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
        self._lease_s = lease_s
        self.links = Links(dict.fromkeys(state.hosts.values()), owner, now, up)
        self._look_at = now  # at all hosts and tasks
        self._look_due = False  # something may have happened since the last look
        self._timers: dict[str, float] = {}
        # host -> name -> message: what it was told and has not confirmed by what it did
        self._orders: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}

    def memory(self: Driver[State]) -> dict[str, Any]:
        """All that it knows of a run, as JSON can hold it, for `resume`; what it began with is left out."""
        from tflaunch.lifecycle.memory import memory_of

        return {
            "state": memory_of(self.state),
            "after": self.links.after,
            "timers": self._timers,
            "orders": self._orders,
        }

    def resume(self: Driver[State], memory: Any) -> None:
        """Go on where another one has been that began with the same; the clock must be the same, too.

        To be called before anything else.  Raises ValueError for what is no such memory; then nothing has changed.
        """
        from tflaunch.lifecycle.memory import check_drive, remembered

        check_drive(self.state, memory)
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
        """A link is up again: what happened meanwhile is asked for, what was ordered is repeated."""
        self.links.attached(host, now)
        for type, fields in self._orders.get(host, {}).values():
            self._owner.send(host, type, **fields)

    def order(self, host: str, name: str, type: str, **fields: Any) -> None:
        """Tell a host, now or when it is back; `name` replaces an earlier order of that name."""
        self._orders.setdefault(host, {})[name] = (type, fields)
        if host in self.links.up:
            self._owner.send(host, type, **fields)

    def dead(self, host: str, reason: str, now: float) -> None:
        """There is no agent any more behind that link."""
        self.feed(HostLost(host, reason), now)

    def foreign(self, host: str, message: Message) -> str:
        """Why an agent must not say that; "" if it may.

        It speaks of a task that it never had, or all has ended there and nobody has heard of its tasks' ends: without
        these a host that says so would be one whose work is done.
        """
        for task in tasks_of(message):
            if not self.state.had(host, TaskId.parse(task)):
                return (
                    f"in a message of the type {message.type}, it speaks of {task}, which is not on that host"
                )
        if message.type == "swept" and self.state.works(host):
            return "it says that all has ended there, and has told of no end of its tasks"
        return ""

    def said(self, host: str, type: str, fields: Mapping[str, Any], body: bytes, now: float) -> None:
        """An agent's message; those that are no events are none of this module's business."""
        self.links.heard(host, now)
        if self._monitor is not None:
            self._monitor.said(host, type, fields, now)
        if "n" not in fields or not self.links.takes(host, fields["n"]):
            return
        event = understand(host, type, fields, body)
        if event is not None:
            self.feed(event, now)

    def feed(self, event: Event, now: float) -> None:
        """Something has happened: the state follows, and what it says is done."""
        if isinstance(event, TaskStarted):
            self._orders.get(event.host, {}).pop(f"restart {event.task}", None)
        if isinstance(event, (HostSwept, HostLost)):
            self._orders.pop(event.host, None)
            self.links.forget(event.host)
        if not (isinstance(event, HostLost) and event.host in {**self.state.lost, **self.state.swept}):
            self._owner.happened(event)
        if self._monitor is not None:
            self._monitor.happened(event, now)
        self.state, actions = self.state.step(event, now)
        for action in actions:
            if isinstance(action, End):
                self._all("end", "end", grace_s=action.grace_s, stacks=action.stacks)
            elif isinstance(action, StopTasks):
                self._stop(action)
            elif isinstance(action, Restart):
                self._restart(action.tasks)
            elif isinstance(action, Order):
                self.order(action.host, action.name, action.type, **action.fields)
            elif isinstance(action, StartTimer):
                at = now + action.seconds
                self._timers[action.name] = min(at, self._timers.get(action.name, at))
            elif isinstance(action, Say):
                self._owner.say(action.text, action.urgent)

    def tick(self, now: float) -> None:
        """What time alone brings about."""
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
            if self.links.away_s(host, now) > self._lease_s:
                reason = f"not heard of for {self._lease_s:g} s: its lease has run out there ({why})"
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
                self._owner.warn(sentence.text)

    def wake_at(self, now: float) -> float:
        """When `tick` has something to do at the latest."""
        wakes = [self.links.wake_at(now), *self._timers.values()]
        if self._look_due:
            wakes.append(self._look_at)
        if self._monitor is not None and self.state.phase == "running":
            wakes.append(max(self._monitor.wake_at(), self._look_at))
        return min(wakes)

    def _all(self, name: str, type: str, **fields: Any) -> None:
        for host in set(self.state.hosts.values()) - self.state.swept.keys() - self.state.lost.keys():
            self.order(host, name, type, **fields)

    def _stop(self, action: StopTasks) -> None:
        by_host: dict[str, list[str]] = {}
        for task in action.tasks:
            by_host.setdefault(self.state.hosts[task], []).append(str(task))
        for host, tasks in by_host.items():
            self.order(host, "stop", "stop", tasks=tasks, grace_s=action.grace_s)

    def _restart(self, tasks: Mapping[TaskId, int]) -> None:
        for task, attempt in tasks.items():
            host = self.state.hosts[task]
            orders = self._orders.get(host, {})
            if "stop" in orders and str(task) in orders["stop"][1]["tasks"]:
                del orders["stop"]
            self.order(host, f"restart {task}", "restart", tasks={str(task): attempt})


def understand(host: str, type: str, fields: Mapping[str, Any], body: bytes = b"") -> Event | None:
    """What an agent's event means for the run; None for those that only a user looks at."""
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
        )
    if type == "expired":
        return AgentGaveUp(host, fields["reason"], fields["asked"])
    if type == "swept":
        return HostSwept(host, tuple(fields["survivors"]), cards_left(fields.get("cards", ())))
    if type == "gone":
        return HostLost(host, fields["reason"])
    return None
