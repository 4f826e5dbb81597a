"""How a run ends and how a sweep ends: the same rules for both."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tflaunch.lifecycle import states
from tflaunch.lifecycle.actions import Action, End, Say, StartTimer
from tflaunch.lifecycle.ending import (
    NO_REPORT,
    NOT_AWAITED,
    PURGE_DUE,
    PURGE_MARGIN_S,
    Ending,
    outcome_of,
)
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_UNCLEAN
from tflaunch.protocol.events import AgentGaveUp, HostSwept, Interrupted, TaskStarted, TimerFired
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import GpuLeft, HostLost, TaskExit
from tflaunch.sweeps import lifecycle
from tflaunch.sweeps.trials import Trial

BUSY = (GpuLeft("GPU 0 is in use by another", own=False),)
OWN = (GpuLeft("GPU 0 is in use by the run", own=True),)
CTRL_C = Interrupted(signal.SIGINT)


def a_run(**more: Any) -> states.State:
    return states.State({TaskId("worker", 0): "a", TaskId("worker", 1): "b"}, **more)


def a_sweep(**more: Any) -> lifecycle.SweepState:
    seats = (lifecycle.Seat("a"), lifecycle.Seat("b"))
    state = lifecycle.SweepState(
        {"a": "a", "b": "b"},
        trials={number: Trial(number, {}) for number in range(2)},
        make=lambda trial, seat: {"id": str(trial.task), "gpus": seat.gpus},
        seats=seats,
        queue=(0, 1),
        **more,
    )
    return lifecycle.begin(state)[0]


BOTH = pytest.mark.parametrize("make", [a_run, a_sweep])


def after(state: Any, *events: Any) -> tuple[Any, list[Action]]:
    """The state after these events, and what the last one led to."""
    actions: list[Action] = []
    for event in events:
        state, actions = state.step(event, 0.0)
    return state, actions


def succeeded(state: Any) -> list[Any]:
    """The events of a start and a good end of all its tasks."""
    if isinstance(state, states.State):
        tasks = dict(state.hosts)
    else:
        tasks = {state.trials[number].task: each.seat.host for number, each in state.running.items()}
    started = [TaskStarted(task, host) for task, host in tasks.items()]
    return started + [TaskExit(task, host, 0, None, 1.0) for task, host in tasks.items()]


@pytest.mark.parametrize(("make", "what"), [(a_run, "2 tasks"), (a_sweep, "2 trials")])
def test_ctrl_c_once_twice_three_times(make: Any, what: str) -> None:
    state, actions = after(make(), CTRL_C)
    assert state.phase == "ending"
    assert actions == [
        Say(f"Ctrl-C: stopping {what}, 10 s to end by themselves; once more kills at once"),
        End(10.0),
        StartTimer(PURGE_DUE, 10.0 + PURGE_MARGIN_S),
    ]
    state, actions = after(state, CTRL_C)
    assert actions == [
        Say(f"Ctrl-C again: killing {what}"),
        End(0.0),
        StartTimer(PURGE_DUE, PURGE_MARGIN_S),
    ]
    state, actions = after(state, HostSwept("b"), CTRL_C)
    assert (state.phase, state.lost, actions) == ("over", {"a": NOT_AWAITED}, [])
    assert outcome_of(state, "run", 1.0, unverified=state.lost).exit_code == EXIT_INTERRUPTED


@BOTH
def test_ctrl_c_once_it_ends_asks_for_patience(make: Any) -> None:
    begun = make()
    state, actions = after(begun, *succeeded(begun), CTRL_C)
    (said,) = actions
    assert isinstance(said, Say)
    assert said.text == f"Ctrl-C: the {state.what} is being stopped already; once more kills at once"
    state, _ = after(state, HostSwept("a"), HostSwept("b"))
    assert (state.phase, state.status, state.exit_code(clean=True)) == ("over", "succeeded", 0)


@BOTH
def test_tflaunch_stop_ends_it(make: Any) -> None:
    state, actions = after(make(), AgentGaveUp("a", "tflaunch stop ends the run", asked=True))
    assert actions[:2] == [Say("a: tflaunch stop ends the run"), End(10.0)]
    state, actions = after(state, AgentGaveUp("b", "tflaunch stop ends the run", asked=True))
    assert actions == []
    state, _ = after(state, HostSwept("a"), HostSwept("b"))
    assert (state.phase, outcome_of(state, "run", 1.0).exit_code) == ("over", EXIT_STOPPED)


@BOTH
def test_a_host_that_does_not_report_is_lost_and_a_late_report_counts(make: Any) -> None:
    begun = make()
    ended, _ = after(begun, *succeeded(begun), HostSwept("a"))
    assert ended.phase == "ending"
    state, _ = after(ended, TimerFired(PURGE_DUE))
    assert (state.phase, state.lost) == ("over", {"b": NO_REPORT})
    assert outcome_of(state, "run", 1.0, unverified=state.lost).exit_code == EXIT_UNCLEAN
    state, _ = after(state, HostSwept("b"))
    assert (state.lost, outcome_of(state, "run", 1.0).exit_code) == ({}, 0)
    state, _ = after(
        ended, HostLost("a", "too late: it is swept"), HostLost("b", "cut"), HostLost("b", "again")
    )
    assert (state.phase, state.lost) == ("over", {"b": "cut"})


@BOTH
@pytest.mark.parametrize(
    ("shared", "gpus", "told", "code"),
    [
        (False, BUSY, BUSY, 0),
        (False, OWN, OWN, EXIT_UNCLEAN),
        (True, BUSY, (), 0),
        (True, OWN, OWN, EXIT_UNCLEAN),
    ],
)
def test_of_shared_gpus_only_its_own_use_is_told(
    make: Any,
    shared: bool,
    gpus: tuple[GpuLeft, ...],
    told: tuple[GpuLeft, ...],
    code: int,
) -> None:
    begun: Ending = make(share_gpus=shared)
    state, _ = after(begun, *succeeded(begun), HostSwept("a", gpus=gpus), HostSwept("b"))
    outcome = outcome_of(state, "run", 1.0)
    assert (outcome.gpus, outcome.exit_code) == ({"a": told} if told else {}, code)


@BOTH
def test_what_could_not_be_killed_is_in_the_exit_code(make: Any) -> None:
    begun = make()
    state, _ = after(begun, *succeeded(begun), HostSwept("a", ("pid 12 python (D)",)), HostSwept("b"))
    outcome = outcome_of(state, "run", 1.0)
    assert (outcome.survivors, outcome.exit_code) == ({"a": ("pid 12 python (D)",)}, EXIT_UNCLEAN)
    assert outcome_of(state, "run", 1.0, survivors={}).exit_code == 0
