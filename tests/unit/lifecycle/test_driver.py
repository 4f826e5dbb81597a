"""Links and orders of a run, without wires or clocks: silence, back-off, what is repeated, and when a host is lost."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.links import LOOK_S, REDIAL_S, SILENCE_S, Links
from tflaunch.lifecycle.states import Restarts, State
from tflaunch.protocol.events import Event, Interrupted, TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit

W0, W1, PS0 = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0)
LEASE_S = 60.0


class Transport:
    """Writes down what it is told to do."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.events: list[Event] = []
        self.words: list[str] = []
        self.kernel_answers = False

    def dial(self, host: str) -> None:
        self.did.append(("dial", host))

    def hang_up(self, host: str) -> None:
        self.did.append(("hang up", host))

    def answers(self, host: str) -> bool:  # noqa: ARG002
        return self.kernel_answers

    def watch(self, host: str, after: int) -> None:
        self.did.append(("watch", host, after))

    def unreachable(self, host: str, reason: str) -> None:
        self.did.append(("unreachable", host, reason))

    def back(self, host: str, away_s: float) -> None:
        self.did.append(("back", host, away_s))

    def send(self, host: str, type: str, **fields: Any) -> None:
        self.did.append(("send", host, type, fields))

    def say(self, text: str, urgent: bool) -> None:  # noqa: ARG002
        self.words.append(text)

    def happened(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> list[tuple[Any, ...]]:
        """What was done since the last time."""
        did, self.did = self.did, []
        return did


@pytest.fixture
def transport() -> Transport:
    return Transport()


def redialled(links: Links, transport: Transport, now: float) -> float:
    """When the next dial of host `a` comes."""
    while ("dial", "a") not in transport.take():
        now += 0.01
        links.tick(now)
    return now


# ---- links


def test_a_host_that_is_silent_is_dialled_again_and_its_events_asked_for(transport: Transport) -> None:
    links = Links(["a", "b"], transport, 0.0)
    assert links.takes("a", 1)
    links.heard("b", SILENCE_S)
    links.tick(SILENCE_S / 2)
    links.tick(SILENCE_S)
    assert transport.take() == []
    links.tick(SILENCE_S + 0.1)
    assert transport.take() == [("hang up", "a"), ("unreachable", "a", "no sign of life for 9 s")]
    assert (links.up, links.down) == (["b"], {"a": "no sign of life for 9 s"})
    now = redialled(links, transport, SILENCE_S + 0.1)
    links.attached("a", now)
    assert transport.take() == [("watch", "a", 1), ("back", "a", now)]
    assert links.away_s("a", now + 5) == 0


def test_a_host_is_dialled_less_and_less_often(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0)
    waits, now = [], 0.0
    for _ in range(9):
        links.ended("a", "refused", now)
        now, before = redialled(links, transport, now), now
        waits.append(now - before)
    least, most = REDIAL_S
    for tries, wait in enumerate(waits):
        full = min(most, least * 2**tries)
        assert full / 2 <= wait <= full + LOOK_S + 0.02
    links.attached("a", now)
    links.ended("a", "cut", now)
    assert redialled(links, transport, now) - now <= least + LOOK_S + 0.02  # from the beginning


def test_it_is_told_once_that_a_host_is_out_of_reach(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0)
    links.ended("a", "cut", 1.0)
    links.ended("a", "refused", 2.0)
    assert transport.take() == [("unreachable", "a", "cut")]
    assert links.down == {"a": "refused"}
    assert links.away_s("a", 10.0) == 10.0  # since it was heard of, not since it was missed


def test_a_host_that_is_being_dialled_is_not_dialled_twice(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0, up=False)
    links.tick(0.0)
    links.tick(10.0)
    assert transport.take() == [("dial", "a")]


def test_an_event_is_taken_once(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0)
    assert [links.takes("a", number) for number in (1, 2, 1, 2, 3)] == [True, True, False, False, True]
    assert not links.takes("nobody", 1)


def test_nobody_was_silent_while_the_launcher_slept(transport: Transport) -> None:
    links = Links(["a", "b"], transport, 0.0)
    links.ended("b", "cut", 0.0)
    transport.take()
    links.tick(1.0)
    transport.take()
    links.heard("a", 3601.0)  # what it has said meanwhile comes first
    links.tick(3601.0)
    assert transport.take() == []
    assert links.away_s("b", 3601.0) == 1.0  # as long as somebody was awake to miss it
    links.heard("b", 3601.0)
    links.tick(3605.0)
    links.tick(3610.0)
    assert transport.take() == [], "silent for 9 s at most since it woke"
    links.tick(3610.1)
    assert ("hang up", "a") in transport.take()


def test_who_is_forgotten_is_left_alone(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0)
    links.forget("a")
    links.ended("a", "cut", 1.0)
    links.attached("a", 2.0)
    links.tick(1000.0)
    assert transport.take() == []


def test_when_there_is_something_to_do_next(transport: Transport) -> None:
    links = Links(["a"], transport, 0.0)
    assert links.wake_at(5.0) == 6.0
    links.ended("a", "cut", 5.0)
    assert 5.0 + REDIAL_S[0] / 2 <= links.wake_at(5.0) <= 5.0 + REDIAL_S[0]


# ---- orders


class Run:
    """Two workers on hosts `a` and `b`, and what their agents say."""

    def __init__(self, transport: Transport, begun: float = 0.0, up: bool = True, **restarts: Any) -> None:
        self.transport = transport
        state = State({W0: "a", W1: "b"}, restarts=Restarts(**{"most": 3, **restarts}))
        self.drive = Driver(state, transport, LEASE_S, begun, up=up)
        self.numbers = {"a": 0, "b": 0}

    def event(self, host: str, type: str, now: float, **fields: Any) -> None:
        self.numbers[host] += 1
        task = {"a": "worker/0", "b": "worker/1"}[host]
        told = {"task": task, "attempt": 0, "n": self.numbers[host], "time": 1e9 + now, **fields}
        self.drive.said(host, type, told, b"", now)

    def started(self, host: str, now: float = 0.0, attempt: int = 0, **fields: Any) -> None:
        self.event(host, "started", now, attempt=attempt, pid=1, **fields)

    def ended(self, host: str, code: int, now: float, attempt: int = 0, **fields: Any) -> None:
        said = {"code": code, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}
        self.event(host, "exit", now, attempt=attempt, **{**said, **fields})

    def sent(self) -> list[tuple[Any, ...]]:
        """Messages since the last time."""
        return [each[1:] for each in self.transport.take() if each[0] == "send"]


RESTART = ("b", "restart", {"tasks": {"worker/1": 1}})


def test_a_host_that_was_silent_gets_its_orders_with_its_next_word(transport: Transport) -> None:
    transport.kernel_answers = True
    run = Run(transport)
    run.started("a")
    run.started("b")
    for second in range(1, int(SILENCE_S) + 3):
        run.drive.heard("a", float(second))
        run.drive.tick(float(second))
    assert list(run.drive.links.down) == ["b"]
    run.drive.order("b", "signal", "signal", tasks=["worker/1"])
    assert ("hang up", "b") not in transport.did
    assert run.sent() == []
    run.drive.heard("b", SILENCE_S + 4.0)
    assert run.sent() == [("b", "signal", {"tasks": ["worker/1"]})]


def test_an_order_is_repeated_until_it_is_carried_out(transport: Transport) -> None:
    run = Run(transport)
    run.started("a")
    run.started("b")
    run.ended("b", 3, 1.0)
    run.drive.links.ended("b", "cut", 1.5)
    run.drive.tick(2.1)
    assert run.sent() == []  # nobody is there to hear it
    for now in (3.0, 4.0):
        run.drive.attached("b", now)
        assert run.sent() == [RESTART]
        run.drive.links.ended("b", "cut", now)
    run.drive.attached("b", 5.0)
    run.started("b", 5.0, attempt=1)
    run.sent()
    run.drive.links.ended("b", "cut", 6.0)
    run.drive.attached("b", 7.0)
    assert run.sent() == []


def test_the_end_is_repeated_until_the_host_is_swept(transport: Transport) -> None:
    run = Run(transport)
    run.drive.feed(Interrupted(2), 1.0)
    end = ("end", {"grace_s": 10.0, "stacks": False})
    assert sorted(run.sent()) == [("a", *end), ("b", *end)]
    run.drive.links.ended("b", "cut", 1.5)
    run.drive.attached("b", 2.0)
    assert run.sent() == [("b", *end)]
    run.event("b", "swept", 3.0, survivors=[])
    run.drive.attached("b", 4.0)
    assert run.sent() == []
    run.event("a", "swept", 5.0, survivors=[])
    assert run.drive.state.phase == "over"


def test_a_restart_takes_the_place_of_the_stop_before_it(transport: Transport) -> None:
    run = Run(transport, default="cluster")
    run.started("a")
    run.started("b")
    run.ended("b", 3, 1.0)
    stops = [
        (host, "stop", {"tasks": [task], "grace_s": 10.0})
        for host, task in (("a", "worker/0"), ("b", "worker/1"))
    ]
    assert sorted(run.sent()) == stops
    run.ended("a", 143, 2.0, stopped=True)
    run.drive.tick(3.1)
    run.sent()
    run.drive.links.ended("b", "cut", 4.0)
    run.drive.attached("b", 5.0)
    assert run.sent() == [RESTART]


def test_a_host_is_lost_when_its_lease_has_run_out(transport: Transport) -> None:
    run = Run(transport)
    run.started("a")
    run.drive.links.ended("a", "cut", 1.0)
    for second in range(2, int(LEASE_S) + 1):
        run.drive.links.heard("b", float(second))
        run.drive.tick(float(second))
    assert run.drive.state.phase == "running"
    run.drive.tick(LEASE_S + 0.1)
    assert run.drive.state.lost.keys() == {"a"}
    reason = "not heard of for 60 s: by then its agent ends the run there (no answer within 20 s)"
    assert transport.events[-1] == run.drive.state.first_failure == HostLost("a", reason)
    assert ("b", "end", {"grace_s": 10.0, "stacks": False}) in run.sent()


def test_a_host_without_an_agent_is_lost_at_once(transport: Transport) -> None:
    run = Run(transport)
    run.event("a", "gone", 1.0, reason="its agent is gone")
    assert run.drive.state.first_failure == HostLost("a", "its agent is gone")


def test_what_was_heard_twice_happens_once(transport: Transport) -> None:
    run = Run(transport)
    run.started("b")
    run.ended("b", 3, 1.0)
    run.numbers["b"] -= 1
    run.ended("b", 3, 1.1)
    assert len(run.drive.state.restarted) == 1


# ---- one that takes over


def test_one_that_takes_over_knows_what_was_ordered_and_what_it_has_heard(transport: Transport) -> None:
    run = Run(transport)
    run.started("a")
    run.started("b")
    run.ended("b", 3, 1.0)
    run.drive.tick(2.1)
    assert run.sent() == [RESTART]
    memory = json.loads(json.dumps(run.drive.memory()))

    other = Run(transport, 3.0, up=False)
    other.drive.resume(memory)
    other.numbers = dict(run.numbers)
    transport.take()
    for host in ("a", "b"):
        other.drive.attached(host, 3.0)
    assert transport.take() == [
        ("watch", "a", 1),
        ("watch", "b", 2),
        ("send", *RESTART),
    ]  # it may not have arrived
    other.started("b", 3.1, attempt=1)
    other.ended("b", 3, 4.0, attempt=1)
    assert "(restart 2 of 3)" in transport.words[-1]


# ---- looks


class Monitor:
    """Has found something out whenever an agent has spoken."""

    def __init__(self) -> None:
        self.found: list[Event] = []

    def happened(self, event: Event, now: float) -> list[str]:  # noqa: ARG002
        return []

    def said(self, host: str, type: str, fields: Any, now: float) -> None:  # noqa: ARG002
        self.found.append(TaskStarted({"a": W0, "b": W1}[host], host, 0, 1))

    def questions(self, hosts: Any, now: float) -> list[Any]:  # noqa: ARG002
        return []

    def sentences(self, now: float) -> list[Any]:  # noqa: ARG002
        return []

    def holds(self) -> tuple[list[str], list[str]]:
        return [], []

    def next_event(self, now: float) -> Event | None:  # noqa: ARG002
        return self.found.pop(0) if self.found else None

    def wake_at(self) -> float:
        return float("inf")


def test_what_all_have_said_is_looked_at_together_and_soon(transport: Transport) -> None:
    drive = Driver(State({W0: "a", W1: "b"}), transport, LEASE_S, 0.0, monitor=Monitor())
    drive.tick(0.0)
    for host in ("a", "b"):
        drive.said(host, "facts", {}, b"", 0.5 * LOOK_S)
        drive.tick(0.5 * LOOK_S)
    assert transport.events == []
    at = drive.wake_at(0.5 * LOOK_S)
    assert at == LOOK_S
    drive.tick(at)
    assert transport.events == [TaskStarted(W0, "a", 0, 1), TaskStarted(W1, "b", 0, 1)]
    assert drive.wake_at(at) > at + LOOK_S  # and nobody spins


class Odd(Monitor):
    """Finds something odd in each event."""

    def happened(self, event: Event, now: float) -> list[str]:  # noqa: ARG002
        return [f"odd: {type(event).__name__}"]


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (TaskExit(W0, "a", 0, None, 9.0), ["odd: TaskExit", "odd: TaskExit"]),
        (TaskExit(W0, "a", 1, None, 9.0), ["odd: TaskExit"]),  # what follows a failure is no news
        (Interrupted(signal.SIGINT), ["odd: Interrupted"]),
    ],
)
def test_what_is_odd_of_a_task_that_is_stopped_is_told_after_the_work_alone(
    transport: Transport, first: Event, told: list[str]
) -> None:
    warned: list[str] = []
    transport.warn = warned.append  # type: ignore[attr-defined]
    drive = Driver(State({W0: "a", PS0: "b"}), transport, LEASE_S, 0.0, monitor=Odd())
    drive.feed(first, 10.0)
    drive.feed(TaskExit(PS0, "b", None, signal.SIGTERM, 13.0, stopped=True), 13.0)
    assert warned == told
