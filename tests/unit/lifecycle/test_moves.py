"""What happens when a host is lost and a spare waits: the decisions alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.lifecycle.test_restarts import HOSTS, PS, W0, W1, Run, ended
from tflaunch.lifecycle.actions import End, Move, StartTimer, StopTasks
from tflaunch.lifecycle.memory import memory_of, remembered
from tflaunch.lifecycle.states import RESTART, State, state_data, state_from
from tflaunch.protocol.events import AgentGaveUp, HostSwept, TimerFired
from tflaunch.protocol.outcome import HostLost, Reclaimed
from tflaunch.protocol.wire import LAST_GRACE_S

RESERVE = {"a": ("s", "t"), "b": (), "c": ("s", "t")}


class Spared(Run):
    """A run with two spares."""

    def __init__(self, **restarts: Any) -> None:
        super().__init__(**restarts)
        self.state = State(HOSTS, reserve=RESERVE, restarts=self.state.restarts)

    def all_ended(self, *tasks: Any) -> None:
        for task in tasks:
            self.feed(ended_on(self.state, task))


def ended_on(state: State, task: Any) -> Any:
    exit = ended(task, 143, state.attempts.get(task, 0))
    return type(exit)(**{**vars(exit), "host": state.hosts[task], "stopped": True})


def test_its_tasks_move_and_all_start_again_as_one_attempt() -> None:
    run = Spared()
    [stop] = run.feed(HostLost("c", "no power"))
    assert stop == StopTasks((PS, W0), 10.0)
    assert "worker/1 moves to s, and all tasks start again (restart 1 of 3)" in run.said[0]
    run.all_ended(PS)
    assert run.state.phase == "restarting"
    run.all_ended(W0)
    [move] = run.feed(TimerFired(RESTART), 7.0)
    assert isinstance(move, Move)
    assert (move.places, set(move.tasks), move.attempt) == ({"c": "s"}, {PS, W0, W1}, 1)
    assert run.state.phase == "running"
    assert run.state.hosts == {PS: "a", W0: "b", W1: "s"}


def test_each_spare_takes_one_host_and_those_that_are_lost_none() -> None:
    run = Spared()
    run.feed(HostLost("s", "no power"))
    assert run.said == ["the run goes on without s"]
    run.feed(HostLost("a", "no power"))
    assert run.state.places == {"a": "t"}
    assert any(isinstance(each, End) for each in run.feed(HostLost("c", "no power")))
    assert run.state.first_failure == HostLost("c", "no power")


def test_a_spare_that_has_taken_over_may_be_lost_too() -> None:
    run = Spared()
    run.feed(HostLost("c", "no power"))
    run.all_ended(PS, W0)
    run.feed(TimerFired(RESTART), 7.0)
    run.feed(HostLost("s", "no power"))
    assert run.state.places == {"c": "t"}
    assert run.state.hosts[W1] == "t"


def test_without_a_spare_for_it_or_a_restart_the_run_ends() -> None:
    run = Spared()
    assert any(isinstance(each, End) for each in run.feed(HostLost("b", "no power")))
    run = Spared(most=0)
    assert any(isinstance(each, End) for each in run.feed(HostLost("c", "no power")))


def test_the_end_waits_for_the_spares_too() -> None:
    run = Spared()
    run.feed(HostLost("b", "no power"))
    for host in ("a", "c", "s"):
        run.feed(HostSwept(host))
    assert run.state.phase == "ending"
    run.feed(HostSwept("t"))
    assert run.state.phase == "over"


def test_the_next_coordinator_knows_where_the_tasks_are() -> None:
    run = Spared()
    run.feed(HostLost("c", "no power"))
    at_first = state_from(state_data(State(HOSTS, reserve=RESERVE, restarts=run.state.restarts)))
    assert remembered(at_first, memory_of(run.state)) == run.state
    wrong = {**memory_of(run.state), "places": {"c": "b"}}
    with pytest.raises(ValueError, match="no spare"):
        remembered(at_first, wrong)


def test_they_start_there_only_when_the_lost_host_has_ended_them() -> None:
    """Its agent gives them some time once its lease has run out: until then they may still write."""
    run = Spared()
    run.feed(HostLost("c", "not heard of for 60 s"))
    run.all_ended(PS, W0)
    [wait] = run.feed(TimerFired(RESTART), 2.0)
    assert wait == StartTimer(RESTART, LAST_GRACE_S + 1.0 - 2.0)
    assert run.state.phase == "restarting"
    [move] = run.feed(TimerFired(RESTART), wait.seconds)
    assert isinstance(move, Move)


def test_tasks_that_may_run_on_in_a_slot_that_is_gone_start_only_once_their_lease_is_over() -> None:
    """Its engine has not ended them, and nobody reaches their agent."""
    run = Spared()
    run.feed(HostLost("c", "the node has failed", reclaimed=True, runs_on_s=66.0))
    assert run.state.places == {"c": "s"}
    run.all_ended(PS, W0)
    [wait] = run.feed(TimerFired(RESTART), 20.0)
    assert wait == StartTimer(RESTART, 66.0 - 20.0)
    [move] = run.feed(TimerFired(RESTART), wait.seconds)
    assert isinstance(move, Move)


def test_tasks_that_an_agent_has_given_up_move_too() -> None:
    """A host that shuts down ends its agent, or its lease runs out before the coordinator calls it lost."""
    run = Spared()
    run.feed(AgentGaveUp("c", "the agent was told to end (SIGTERM)"))
    assert run.state.places == {"c": "s"}
    assert "c is lost (the agent was told to end (SIGTERM)): worker/1 moves to s" in run.said[0]
    run.all_ended(PS, W0)
    run.feed(HostSwept("c"))
    [move] = run.feed(TimerFired(RESTART), 7.0)
    assert isinstance(move, Move)
    assert run.state.phase == "running"
    assert any(isinstance(each, End) for each in run.feed(AgentGaveUp("b", "no launcher")))


@pytest.mark.parametrize(("ends_in", "places"), [(LAST_GRACE_S + 1.0, {"c": "s"}), (60.0, {})])
def test_tasks_of_a_slot_that_is_taken_back_move_where_they_end_soon_enough(
    ends_in: float, places: dict[str, str]
) -> None:
    run = Spared()
    run.feed(AgentGaveUp("c", "PREEMPTED", ends_in=ends_in))
    assert run.state.places == places
    assert run.state.first_failure == (None if places else Reclaimed("PREEMPTED", "c"))
