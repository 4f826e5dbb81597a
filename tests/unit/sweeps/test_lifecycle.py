"""The rules by which trials are given to seats: the state machine of a sweep, without hosts."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tflaunch.lifecycle.actions import Action, End, Order, Say, StartTimer
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.protocol.events import AgentGaveUp, HostSwept, Interrupted, TaskStarted, TimerFired
from tflaunch.protocol.outcome import HostLost, TaskExit
from tflaunch.sweeps.lifecycle import LOOK, BadTrial, GpusSeen, Seat, SweepState, begin, step
from tflaunch.sweeps.trials import Trial


def make(trial: Trial, seat: Seat) -> Mapping[str, Any]:
    return {"id": str(trial.task), "gpus": seat.gpus}


class Hosts:
    """Hosts that do what they are told, and the sweep that tells them."""

    def __init__(self, trials: int, *seats: Seat, **more: Any) -> None:
        hosts = {seat.host: seat.host for seat in seats} | {host: host for host in more.get("others", ())}
        trial_of = {number: Trial(number, {"x": str(number)}) for number in range(trials)}
        self.state = SweepState(hosts, trials=trial_of, make=make, seats=seats, queue=tuple(trial_of), **more)
        self.orders: list[Order] = []
        self.done: list[Action] = []
        self._take(*begin(self.state))

    def _take(self, state: SweepState, actions: list[Action]) -> None:
        self.state = state
        self.done = actions
        self.orders += [action for action in actions if isinstance(action, Order)]

    def feed(self, event: Any) -> Hosts:
        self._take(*step(self.state, event, 0.0))
        return self

    def exit(self, number: int, code: int = 0, stopped: bool = False) -> Hosts:
        attempt = self.state.running[number]
        task, host = Trial(number, {}).task, attempt.seat.host
        self.feed(TaskStarted(task, host, attempt.number))
        return self.feed(TaskExit(task, host, code, None, 1.0, stopped=stopped, attempt=attempt.number))

    def sweep(self) -> Hosts:
        assert any(isinstance(action, End) for action in self.done)
        for host in self.state.hosts.keys() - self.state.lost.keys():
            self.feed(HostSwept(host))
        assert self.state.phase == "over"
        return self

    @property
    def where(self) -> dict[int, str]:
        """Which trial runs where."""
        return {number: str(attempt.seat) for number, attempt in sorted(self.state.running.items())}


def seat(host: str, *gpus: int, share: int = 0) -> Seat:
    return Seat(host, tuple(f"GPU-{host}{gpu}" for gpu in gpus), tuple(map(str, gpus)), share)


def test_a_seat_that_becomes_free_is_the_next_trials() -> None:
    hosts = Hosts(4, seat("a", 0), seat("b", 0))
    assert hosts.where == {0: "a:0", 1: "b:0"}
    assert hosts.orders[0].fields == {"tasks": [{"id": "trial/0", "gpus": ("GPU-a0",)}], "attempt": 0}
    assert hosts.exit(1).where == {0: "a:0", 2: "b:0"}
    assert hosts.exit(2).exit(0).where == {3: "b:0"}
    assert hosts.exit(3).where == {}
    outcome = outcome_of(hosts.sweep().state, "run", 1.0)
    assert (outcome.status, outcome.exit_code, len(outcome.exits)) == ("succeeded", 0, 4)


def test_what_fails_is_tried_again_elsewhere_and_in_the_end_it_has_failed() -> None:
    hosts = Hosts(2, seat("a"), seat("b"), retries=1)
    assert hosts.exit(0, 3).where == {0: "a", 1: "b"}  # no other host is free
    hosts = Hosts(3, seat("a"), seat("b"), retries=1)
    assert hosts.exit(0, 3).where == {1: "b", 2: "a"}
    assert hosts.exit(1).where == {0: "b", 2: "a"}
    assert hosts.state.running[0].number == 1
    assert hosts.exit(0, 4).exit(2).where == {}
    outcome = outcome_of(hosts.sweep().state, "run", 1.0)
    assert (outcome.status, outcome.exit_code) == ("failed", 4)


def test_a_trial_that_may_run_elsewhere_lets_another_go_first() -> None:
    hosts = Hosts(4, seat("a"), seat("b"), retries=1)
    hosts.exit(0, 1)  # 2 runs on a, 3 and 0 wait
    hosts.exit(2)
    assert hosts.where == {1: "b", 3: "a"}
    assert hosts.exit(1).where == {0: "b", 3: "a"}


def test_trials_of_a_lost_host_run_elsewhere_and_that_counts_for_nothing() -> None:
    hosts = Hosts(3, seat("a"), seat("b"), retries=0)
    hosts.feed(HostLost("b", "gone"))
    assert hosts.where == {0: "a"}
    assert hosts.state.queue == (1, 2)
    assert hosts.exit(0).where == {1: "a"}
    assert hosts.state.running[1].number == 1
    late = TaskExit(Trial(1, {}).task, "b", 0, None, 1.0, attempt=0)
    assert hosts.feed(late).where == {1: "a"}
    assert outcome_of(hosts.exit(1).exit(2).sweep().state, "run", 1.0).exit_code == 0


def test_trials_that_may_run_on_in_a_lost_slot_run_elsewhere_only_afterwards() -> None:
    hosts = Hosts(3, seat("a"), seat("b"), retries=0)
    hosts.feed(HostLost("b", "the node has failed", reclaimed=True, runs_on_s=66.0))
    assert hosts.done[-1] == StartTimer("back b", 66.0)
    assert "trial/1 will run elsewhere in 66 s, when they have certainly ended there" in str(hosts.done[-2])
    assert hosts.exit(0).where == {2: "a"}
    assert hosts.exit(2).where == {}
    assert hosts.state.phase == "running"
    assert hosts.state.queued == 1
    assert hosts.feed(TimerFired("back b")).where == {1: "a"}
    assert hosts.state.running[1].number == 1
    assert outcome_of(hosts.exit(1).sweep().state, "run", 1.0).exit_code == 0


def test_a_host_on_which_no_trial_can_start_gets_no_more_of_them() -> None:
    hosts = Hosts(2, seat("a"), seat("b"))
    hosts.feed(TaskExit(Trial(1, {}).task, "b", 1, None, 0.0, tail=b"oh\ntflaunch: setup failed\n"))
    assert Say("b: no trial can start there: setup failed; trial/1 will run elsewhere") in hosts.done
    assert hosts.exit(0).where == {1: "a"}
    hosts.feed(TaskExit(Trial(1, {}).task, "a", 127, None, 0.0, attempt=1)).sweep()
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 70


def test_a_trial_that_takes_too_long_is_ended_and_has_failed() -> None:
    hosts = Hosts(2, seat("a"), retries=1, timeout_s=5.0)
    task = Trial(0, {}).task
    hosts.feed(TaskStarted(task, "a", 0))
    assert hosts.done == [StartTimer("late 0.0", 5.0)]
    hosts.feed(TimerFired("late 0.0"))
    stop = {"tasks": ["trial/0"], "grace_s": 10.0}
    assert hosts.orders[-1] == Order("a", "restart trial/0", "stop", stop)
    hosts.feed(TaskExit(task, "a", 0, None, 5.1, stopped=True))  # it caught the signal
    assert hosts.exit(1).where == {0: "a"}
    asked = len(hosts.orders)
    hosts.feed(TimerFired("late 0.0"))  # of an attempt that is over
    hosts.feed(TaskStarted(task, "a", 1)).feed(TimerFired("late 0.1"))
    assert [order.type for order in hosts.orders[asked:]] == ["stop"]
    hosts.feed(TaskExit(task, "a", None, 15, 5.1, stopped=True, attempt=1)).sweep()
    outcome = outcome_of(hosts.state, "run", 1.0)
    assert (outcome.status, outcome.exit_code) == ("failed", 124)


def test_one_that_ends_by_itself_in_time_has_not_taken_too_long() -> None:
    hosts = Hosts(1, seat("a"), timeout_s=5.0)
    task = Trial(0, {}).task
    hosts.feed(TaskStarted(task, "a", 0)).feed(TimerFired("late 0.0"))
    hosts.feed(TaskExit(task, "a", 0, None, 5.0)).sweep()
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 0


def failed_alike(
    hosts: Hosts, number: int, tail: bytes = b"ImportError: no\n", seconds: float = 1.0
) -> Hosts:
    """The trial ends with code 1 and that last line."""
    attempt = hosts.state.running[number]
    task = Trial(number, {}).task
    hosts.feed(TaskStarted(task, attempt.seat.host, attempt.number))
    return hosts.feed(TaskExit(task, attempt.seat.host, 1, None, seconds, tail, attempt=attempt.number))


def test_first_trials_that_fail_at_once_and_alike_end_the_sweep() -> None:
    hosts = Hosts(10, Seat("a"))
    for number in range(3):
        assert hosts.state.phase == "running"
        failed_alike(hosts, number, f"in trial-{number}: ImportError: no\n".encode())
    assert hosts.state.phase == "ending"
    (said,) = [action for action in hosts.done if isinstance(action, Say)]
    assert said.text == (
        "the first 3 trials exited with code 1: in trial: ImportError: no, each within 30 s; the other 7 are not run "
        "(--keep-going runs them)"
    )
    assert hosts.sweep().state.exit_code(True) == 1


def test_other_failures_do_not_end_it() -> None:
    for change in ("keep going", "other words", "slow", "a success"):
        hosts = Hosts(10, Seat("a"), keep_going=change == "keep going")
        failed_alike(hosts, 0)
        if change == "a success":
            hosts.exit(1)
        else:
            failed_alike(
                hosts,
                1,
                b"ValueError\n" if change == "other words" else b"ImportError: no\n",
                31.0 * (change == "slow"),
            )
        for number in range(2, 9):
            failed_alike(hosts, number)
        assert hosts.state.phase == "running", change


def test_a_bad_trial_is_stopped_and_is_no_failure() -> None:
    hosts = Hosts(3, Seat("a"), retries=1)
    hosts.feed(TaskStarted(Trial(0, {}).task, "a", 0))
    hosts.feed(BadTrial(0, 1, "is bad")).feed(BadTrial(1, 0, "does not run"))
    assert not [order for order in hosts.orders if order.type == "stop"]
    hosts.feed(BadTrial(0, 0, "is bad"))
    assert (hosts.orders[-1].type, hosts.orders[-1].fields["tasks"]) == ("stop", ["trial/0"])
    hosts.feed(TaskExit(Trial(0, {}).task, "a", None, 15, 1.0, stopped=True))
    assert 0 in hosts.state.ended
    assert list(hosts.state.running) == [1]
    hosts.exit(1).exit(2).sweep()
    outcome = outcome_of(hosts.state, "s", 1.0)
    assert (outcome.status, outcome.exit_code) == ("succeeded", 0)


def test_without_any_host_it_ends() -> None:
    hosts = Hosts(2, seat("a"), seat("b"))
    hosts.feed(AgentGaveUp("a", "the lease")).feed(HostLost("b", "gone"))
    assert hosts.where == {}
    hosts.feed(HostSwept("a"))
    assert hosts.state.phase == "over"
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 76


def test_where_the_last_slot_is_taken_back_it_ends_as_that() -> None:
    hosts = Hosts(2, seat("a"), seat("b"))
    hosts.feed(AgentGaveUp("a", "PREEMPTED", ends_in=30.0))
    assert hosts.state.phase == "running"
    hosts.feed(AgentGaveUp("b", "PREEMPTED", ends_in=30.0))
    assert End(29.0) in hosts.done
    hosts.feed(HostSwept("a")).feed(HostSwept("b"))
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 75


def test_ctrl_c_keeps_what_has_ended_and_nothing_else() -> None:
    hosts = Hosts(4, seat("a"), seat("b"))
    hosts.exit(0).feed(Interrupted(signal.SIGINT))
    assert End(10.0) in hosts.done
    hosts.exit(1, 0, stopped=True).exit(2, 1)
    assert hosts.state.ended.keys() == {0, 2}
    hosts.feed(Interrupted(signal.SIGINT))
    assert End(0.0) in hosts.done
    hosts.sweep()
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 130
    hosts = Hosts(2, seat("a"))
    for _ in range(3):
        hosts.feed(Interrupted(signal.SIGTERM))
    assert hosts.state.phase == "over"
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 143


def test_stopped_from_elsewhere() -> None:
    hosts = Hosts(2, seat("a"))
    hosts.feed(AgentGaveUp("a", "tflaunch stop ends the run", asked=True)).sweep()
    assert outcome_of(hosts.state, "run", 1.0).exit_code == 143


def test_gpus_that_become_free_are_taken_while_trials_wait() -> None:
    hosts = Hosts(3, seat("a", 0), others={"a": ("GPU-a1",), "b": ("GPU-b0",)})
    hosts.feed(TimerFired(LOOK))
    probes = {order.host: order.fields["lease"] for order in hosts.orders if order.type == "probe"}
    assert probes == {"a": ["GPU-a1"], "b": ["GPU-b0"]}
    hosts.feed(GpusSeen("b", (seat("b", 0),)))
    assert hosts.where == {0: "a:0", 1: "b:0"}
    assert hosts.orders[-2] == Order("b", "keep", "keep", {"gpus": ["GPU-b0"]})
    hosts.feed(GpusSeen("a", ()))
    assert hosts.orders[-1] == Order("a", "keep", "keep", {"gpus": ["GPU-a0"]})
    hosts.exit(0)
    seen = hosts.feed(GpusSeen("a", (seat("a", 1),)))  # nobody waits any more
    assert seen.orders[-1].fields == {"gpus": ["GPU-a0"]}
    hosts.exit(1)
    assert hosts.orders[-1] == Order("b", "keep", "keep", {"gpus": []})
    asked = len(hosts.orders)
    hosts.feed(TimerFired(LOOK))
    assert len(hosts.orders) == asked


def test_a_shared_gpu_goes_back_when_no_trial_is_on_it() -> None:
    hosts = Hosts(3, seat("a", 0), seat("a", 1), seat("a", 0, share=1), seat("a", 1, share=1))
    assert hosts.where == {0: "a:0", 1: "a:1", 2: "a:0"}
    hosts.exit(0)
    assert not [order for order in hosts.orders if order.type == "keep"][1:]
    hosts.exit(2)
    assert hosts.orders[-1].fields == {"gpus": ["GPU-a1"]}


@given(st.integers(0, 2), st.integers(0, 2**32).map(random.Random))
def test_whatever_happens_no_seat_has_two_trials_and_each_trial_one_end(
    retries: int, dice: random.Random
) -> None:
    hosts = Hosts(6, seat("a", 0), seat("a", 1), seat("b", 0), seat("c", 0), retries=retries, keep_going=True)
    runs: dict[int, set[int]] = {}
    while hosts.state.phase == "running":
        seats = [attempt.seat for attempt in hosts.state.running.values()]
        assert len(set(seats)) == len(seats)
        assert not {each.host for each in seats} & hosts.state.lost.keys()
        for number, attempt in hosts.state.running.items():
            runs.setdefault(number, set()).add(attempt.number)
        waiting = set(hosts.state.queue)
        held = [number for trials in hosts.state.held.values() for number in trials]
        everything = waiting.union(held) | hosts.state.running.keys() | hosts.state.ended.keys()
        assert everything == set(range(6))
        assert len(everything) == hosts.state.queued + len(hosts.state.running) + len(hosts.state.ended)
        if held and (not hosts.state.running or dice.randrange(3) == 0):
            hosts.feed(TimerFired(f"back {dice.choice(sorted(hosts.state.held))}"))
        elif not hosts.state.running:  # the GPUs had been given back before a host was lost
            asked = len(hosts.orders)
            hosts.feed(TimerFired(LOOK))
            for order in hosts.orders[asked:]:
                gpus = [int(each[-1]) for each in order.fields["lease"]]
                hosts.feed(GpusSeen(order.host, tuple(seat(order.host, gpu) for gpu in gpus)))
        elif dice.randrange(10) == 0:
            hosts.feed(HostLost(dice.choice("abc"), "gone", runs_on_s=dice.choice([0.0, 66.0])))
        else:
            hosts.exit(dice.choice(sorted(hosts.state.running)), dice.choice([0, 0, 1]))
    if len(hosts.state.lost) < 3:
        assert hosts.state.ended.keys() == set(range(6))
        failed = {number for number, exit in hosts.state.ended.items() if exit.exit_code}
        assert all(len(hosts.state.failed_on[number]) == retries + 1 for number in failed)
