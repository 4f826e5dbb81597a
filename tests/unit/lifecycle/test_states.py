"""The state machine of a run: which events lead to which end, for every completion rule."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.lifecycle.actions import Action, End, Restart, Say, Signal, StartTimer
from tflaunch.lifecycle.driver import understand
from tflaunch.lifecycle.ending import NOT_AWAITED, PURGE_DUE, PURGE_MARGIN_S, outcome_of
from tflaunch.lifecycle.states import DRAIN, RESTART, Restarts, State, decisive, state_data, state_from, step
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_TIMEOUT, EXIT_UNCLEAN
from tflaunch.protocol.events import (
    AgentGaveUp,
    Event,
    HostSwept,
    Interrupted,
    LimitNears,
    TaskStarted,
    TimerFired,
)
from tflaunch.protocol.job import Done, RoleEnd, TaskId
from tflaunch.protocol.outcome import (
    GpuLeft,
    HostLost,
    Reclaimed,
    TaskExit,
    TimedOut,
    outcome_data,
    outcome_from,
)

PS, W0, W1, CHIEF = TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1), TaskId("chief", 0)
EVALUATOR, DATA = TaskId("evaluator", 0), TaskId("data", 0)
HOSTS = {PS: "a", W0: "b", W1: "c"}
GRACE, DRAIN_S = 10.0, 3.0

ENDING = [End(GRACE), StartTimer(PURGE_DUE, GRACE + PURGE_MARGIN_S)]
DRAINED = f"{DRAIN} {DRAIN_S}"
DRAINING = [StartTimer(DRAINED, DRAIN_S)]
INT, TERM = Interrupted(signal.SIGINT), Interrupted(signal.SIGTERM)
SWEPT = [HostSwept("a"), HostSwept("b"), HostSwept("c")]


def state(done: Done = "workers", hosts: dict[TaskId, str] | None = None) -> State:
    return State(hosts or HOSTS, done=done, grace_s=GRACE, drain_s=DRAIN_S)


def ended(task: TaskId, code: int | None = 0, killed_by: int | None = None, **other: Any) -> TaskExit:
    host = {**HOSTS, CHIEF: "b", EVALUATOR: "a", DATA: "c"}[task]
    return TaskExit(task, host, None if killed_by else code, killed_by, 1.5, **other)


def follow(start: State, events: Sequence[Event]) -> tuple[State, list[list[Action]]]:
    """The last state, and what each event led to; the words for the user left out."""
    done: list[list[Action]] = []
    for event in events:
        start, actions = step(start, event)
        done.append([action for action in actions if not isinstance(action, Say)])
    return start, done


def said(actions: Sequence[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


# ---- the completion rules


@pytest.mark.parametrize(
    ("done", "events", "actions", "phase"),
    [
        # workers: their end is the run's; ps get a while to end by themselves
        ("workers", [ended(W0), ended(W1)], [[], DRAINING], "draining"),
        ("workers", [ended(W0), ended(W1), ended(PS)], [[], DRAINING, ENDING], "ending"),
        ("workers", [ended(W0), ended(W1), TimerFired(DRAINED)], [[], DRAINING, ENDING], "ending"),
        ("workers", [ended(PS)], [[]], "running"),  # a ps that ends well says nothing about the work
        ("workers", [ended(PS), ended(W0), ended(W1)], [[], [], ENDING], "ending"),
        ("workers", [ended(W0), ended(PS)], [[], []], "running"),
        # chief: there is none here, worker/0 has its part
        ("chief", [ended(W1)], [[]], "running"),
        ("chief", [ended(W0)], [DRAINING], "draining"),
        ("chief", [ended(W0), ended(W1), TimerFired(DRAINED)], [DRAINING, [], ENDING], "ending"),
        ("chief", [ended(W0), ended(W1), ended(PS)], [DRAINING, [], ENDING], "ending"),
        # all: nobody is asked to end
        ("all", [ended(W0), ended(W1)], [[], []], "running"),
        ("all", [ended(W0), ended(W1), ended(PS)], [[], [], ENDING], "ending"),
        # never: it is over only when nothing is left
        ("never", [ended(W0), ended(W1)], [[], []], "running"),
        ("never", [ended(W0), ended(W1), ended(PS)], [[], [], ENDING], "ending"),
        # a drain timer of earlier, when the end has begun for another reason
        (
            "workers",
            [ended(W0), ended(W1), ended(PS), TimerFired(DRAINED)],
            [[], DRAINING, ENDING, []],
            "ending",
        ),
        ("workers", [TimerFired(DRAINED), TimerFired(PURGE_DUE)], [[], []], "running"),
    ],
)
def test_success(done: Done, events: list[Event], actions: list[list[Action]], phase: str) -> None:
    last, took = follow(state(done), events)
    assert took == actions
    assert last.phase == phase
    assert (last.status, last.exit_code(clean=True)) == ("succeeded", 0)
    if phase == "ending":
        last, took = follow(last, SWEPT)
        assert last.phase == "over"
        assert took == [[], [], []]
        assert (last.status, last.exit_code(clean=True)) == ("succeeded", 0)
        assert last.exit_code(clean=False) == EXIT_UNCLEAN


@pytest.mark.parametrize(
    ("done", "tasks", "wanted"),
    [
        ("workers", [PS, W0, W1], {W0, W1}),
        ("workers", [PS, CHIEF, W0], {CHIEF, W0}),
        ("workers", [PS], set()),
        ("chief", [PS, CHIEF, W0], {CHIEF}),
        ("chief", [PS, W0, W1], {W0}),
        ("all", [PS, W0], {PS, W0}),
        ("never", [PS, W0], set()),
    ],
)
def test_the_tasks_that_decide(done: Done, tasks: list[TaskId], wanted: set[TaskId]) -> None:
    assert decisive(dict.fromkeys(tasks, "a"), done) == wanted


MASTER = TaskId("master", 0)


@pytest.mark.parametrize(
    ("done", "ends", "wanted"),
    [
        ("workers", {}, {CHIEF, W0}),
        ("workers", {"data": "decides"}, {CHIEF, W0, DATA}),
        ("workers", {"worker": "stopped"}, {CHIEF}),
        ("chief", {}, {CHIEF}),
        ("chief", {"evaluator": "decides"}, {CHIEF, EVALUATOR}),
        ("chief", {"chief": "stopped", "worker": "decides"}, {W0}),
        ("all", {}, {PS, CHIEF, W0, EVALUATOR, DATA}),
        ("all", {"ps": "stopped", "data": "sidecar"}, {CHIEF, W0, EVALUATOR}),
        ("never", {}, set()),
        ("never", {"evaluator": "decides"}, {EVALUATOR}),
    ],
)
def test_what_is_said_of_a_role_goes_before_the_rule(
    done: Done, ends: dict[str, RoleEnd], wanted: set[TaskId]
) -> None:
    assert decisive(dict.fromkeys([PS, CHIEF, W0, EVALUATOR, DATA], "a"), done, ends) == wanted


def test_a_master_is_a_chief() -> None:
    assert decisive(dict.fromkeys([PS, MASTER, W0], "a"), "chief") == {MASTER}
    assert decisive(dict.fromkeys([PS, MASTER, W0], "a"), "workers") == {MASTER, W0}


BESIDE = {PS: "a", EVALUATOR: "a", DATA: "c", W0: "b"}
LONG = f"{DRAIN} 60.0"


def test_the_evaluator_has_longer_than_the_others_to_end_by_itself() -> None:
    begun = dataclasses.replace(state("workers", BESIDE), drains_s={"evaluator": 60.0})
    drains = [StartTimer(DRAINED, DRAIN_S), StartTimer(LONG, 60.0)]
    last, took = follow(begun, [ended(W0), TimerFired(DRAINED), ended(PS)])
    assert took == [drains, [], []]  # data/0 is late, and still nobody ends it
    assert follow(last, [ended(EVALUATOR)])[1] == [ENDING]
    assert follow(last, [TimerFired(LONG)])[1] == [ENDING]
    assert follow(begun, [ended(EVALUATOR), ended(W0), TimerFired(DRAINED)])[1] == [[], drains[:1], ENDING]
    early, took = follow(begun, [ended(W0), ended(EVALUATOR), TimerFired(DRAINED)])
    assert (took, early.status) == ([drains, [], ENDING], "succeeded")
    told = step(begun, ended(W0))[1]
    assert said(told) == [
        "the work is done; 2 tasks may take 3 s to end (--ps-grace), evaluator/0 60 s (--job-grace evaluator=TIME)"
    ]


def test_what_was_said_of_roles_reaches_the_agent_that_decides() -> None:
    begun = dataclasses.replace(state("workers", BESIDE), drains_s={"data": 9.0}, ends={"data": "sidecar"})
    assert state_from(json.loads(json.dumps(state_data(begun)))) == begun


@pytest.mark.parametrize("task", [EVALUATOR, DATA])
def test_a_role_that_does_not_decide_fails_the_run_unless_it_is_a_sidecar(task: TaskId) -> None:
    failed = ended(task, 3)
    last, took = follow(state("workers", BESIDE), [failed])
    assert (last.first_failure, took) == (failed, [ENDING])
    begun = dataclasses.replace(state("workers", BESIDE), ends={task.job: "sidecar"})
    last, actions = step(begun, failed)
    assert (last.phase, last.status) == ("running", "succeeded")
    assert said(actions) == [f"{task} on {failed.host} exited with code 3; the run goes on without it"]
    last, took = follow(last, [ended(W0), TimerFired(DRAINED), *SWEPT])
    assert (last.phase, last.exit_code(clean=True)) == ("over", 0)
    again = dataclasses.replace(begun, restarts=Restarts(1))
    last, took = follow(again, [failed, TimerFired(f"{RESTART} {task}"), TaskStarted(task, failed.host, 1)])
    assert took[1] == [Restart({task: 1})]
    last, actions = step(last, dataclasses.replace(failed, attempt=1))
    assert said(actions)[0].endswith("(--restarts 1); no more")
    assert (last.phase, last.first_failure) == ("running", None)


def test_a_sidecar_that_is_the_last_to_end_ends_the_run() -> None:
    begun = dataclasses.replace(state("never", {PS: "a", DATA: "c"}), ends={"data": "sidecar"})
    last, took = follow(begun, [ended(PS), ended(DATA, 1)])
    assert (took, last.status) == ([[], ENDING], "succeeded")


@pytest.mark.parametrize("done", ["workers", "chief", "all", "never"])
def test_a_cluster_of_ps_alone_ends_when_all_have_ended(done: Done) -> None:
    hosts = {PS: "a", TaskId("ps", 1): "b"}
    last, took = follow(
        state(done, hosts), [ended(PS), dataclasses.replace(ended(PS), task=TaskId("ps", 1), host="b")]
    )
    assert took == [[], ENDING]
    assert (last.phase, last.status) == ("ending", "succeeded")


# ---- failures


@pytest.mark.parametrize("done", ["workers", "chief", "all", "never"])
@pytest.mark.parametrize("task", [PS, W0, W1])
@pytest.mark.parametrize(
    ("code", "killed_by", "exit_code"),
    [
        (3, None, 3),
        (255, None, 255),
        (None, signal.SIGSEGV, 139),
        (None, signal.SIGKILL, 137),
        (None, 40, 168),
    ],
)
def test_the_first_failure_ends_the_run(
    done: Done, task: TaskId, *, code: int | None, killed_by: int | None, exit_code: int
) -> None:
    first = ended(task, code, killed_by)
    last, actions = step(state(done), first)
    assert [words for words in said(actions) if "stopping the 2 tasks left, 10 s" not in words] == []
    assert [action for action in actions if not isinstance(action, Say)] == ENDING
    assert (last.phase, last.first_failure) == ("ending", first)
    # What falls with it is not what is reported.
    others = [ended(each, 1, stopped=True) for each in HOSTS if each != task]
    last, took = follow(last, [*others, *SWEPT])
    assert took == [[]] * 5
    assert (last.phase, last.status, last.first_failure) == ("over", "failed", first)
    assert last.exit_code(clean=True) == last.exit_code(clean=False) == exit_code


def test_what_fails_when_the_work_is_done_is_no_failure() -> None:
    last, took = follow(state(), [ended(W0), ended(W1), ended(PS, None, signal.SIGTERM), *SWEPT])
    assert took[2] == ENDING
    assert (last.phase, last.status, last.exit_code(True)) == ("over", "succeeded", 0)


# ---- lost hosts


def test_a_host_that_is_lost_while_tasks_run_fails_the_run() -> None:
    lost = HostLost("b", "the connection broke")
    last, actions = step(state(), lost)
    assert [action for action in actions if not isinstance(action, Say)] == ENDING
    last, took = follow(last, [HostSwept("a"), HostLost("b", "once more"), HostSwept("c")])
    assert took == [[], [], []]
    assert (last.phase, last.status, last.first_failure) == ("over", "failed", lost)
    assert last.lost == {"b": "the connection broke"}
    assert last.exit_code(clean=False) == EXIT_UNCLEAN


APART = {PS: "a", W0: "b", W1: "c", EVALUATOR: "d"}


@pytest.mark.parametrize(
    "event", [HostLost("d", "gone"), AgentGaveUp("d", "no launcher"), AgentGaveUp("d", "taken", ends_in=9.0)]
)
def test_a_host_with_nothing_but_an_evaluator_is_missed_by_nobody(event: Event) -> None:
    last, actions = step(state(hosts=APART), event)
    assert (
        said(actions)[-1 if isinstance(event, HostLost) else 1] == "the run goes on without d and evaluator/0"
    )
    assert (last.phase, last.first_failure, last.lost.keys()) == ("running", None, {"d"})
    late = TaskExit(EVALUATOR, "d", None, signal.SIGTERM, 1.0, stopped=True)
    last, took = follow(last, [late, HostSwept("d")] if isinstance(event, AgentGaveUp) else [])
    assert last.phase == "running"
    last, took = follow(last, [ended(W0), ended(W1), ended(PS), *SWEPT])
    assert took[1:3] == [DRAINING, ENDING]  # nobody waits for the evaluator
    assert (last.phase, last.status, last.exit_code(clean=True)) == ("over", "succeeded", 0)
    assert last.exit_code(clean=False) == EXIT_UNCLEAN


@pytest.mark.parametrize(
    ("hosts", "done", "ends"),
    [
        ({**APART, DATA: "d"}, "workers", {}),
        ({**APART, TaskId("worker", 2): "d"}, "workers", {}),
        (APART, "all", {}),
        (APART, "workers", {"evaluator": "decides"}),
        (APART, "workers", {"evaluator": "stopped"}),
    ],
)
def test_a_host_that_is_missed_ends_the_run(
    hosts: dict[TaskId, str], done: Done, ends: dict[str, RoleEnd]
) -> None:
    last, _ = step(dataclasses.replace(state(done, hosts), ends=ends), HostLost("d", "gone"))
    assert (last.phase, last.first_failure) == ("ending", HostLost("d", "gone"))


def test_the_last_task_that_was_left_goes_with_its_host() -> None:
    begun = dataclasses.replace(state("never", {PS: "a", DATA: "c"}), ends={"data": "sidecar"})
    last, took = follow(begun, [ended(PS), HostLost("c", "gone"), HostSwept("a")])
    assert took == [[], ENDING, []]
    assert (last.phase, last.status) == ("over", "succeeded")


def test_a_host_that_is_lost_when_the_work_is_done_is_only_not_checked() -> None:
    last, took = follow(state(), [ended(W0), ended(W1), HostLost("a", "gone")])
    assert took[2] == ENDING
    last, _ = follow(last, SWEPT[1:])
    assert (last.phase, last.status, last.lost) == ("over", "succeeded", {"a": "gone"})
    assert last.exit_code(clean=False) == EXIT_UNCLEAN


def test_hosts_that_are_lost_while_the_run_ends_do_not_hold_it_up() -> None:
    last, took = follow(state(), [ended(W0, 1), HostSwept("a"), HostLost("b", "x"), HostLost("c", "y")])
    assert took[1:] == [[], [], []]
    assert (last.phase, last.lost) == ("over", {"b": "x", "c": "y"})
    assert last.exit_code(clean=False) == 1


def test_all_hosts_lost_at_once() -> None:
    last, took = follow(state(), [HostLost("a", "x"), HostLost("b", "x"), HostLost("c", "x")])
    assert took == [ENDING, [], []]
    assert (last.phase, last.exit_code(False)) == ("over", EXIT_UNCLEAN)


def test_the_only_host_lost_is_the_end() -> None:
    last, took = follow(state(hosts={W0: "b"}), [HostLost("b", "x")])
    assert took == [ENDING]
    assert last.phase == "over"


def test_a_host_that_is_swept_cannot_be_lost_any_more() -> None:
    last, _ = follow(state(), [ended(W0, 1), HostSwept("a"), HostLost("a", "the agent has left")])
    assert last.lost == {}


def test_hosts_that_do_not_report_in_time_are_lost() -> None:
    last, took = follow(state(), [ended(W0, 1), HostSwept("a"), HostLost("c", "x"), TimerFired(PURGE_DUE)])
    assert took[-1] == []
    assert (last.phase, last.lost) == ("over", {"b": "its agent did not report in time", "c": "x"})


def test_an_answer_that_comes_late_counts_after_all() -> None:
    last, _ = follow(state(), [ended(W0, 1), HostSwept("a"), HostLost("b", "silent"), HostSwept("b")])
    assert (last.phase, last.lost, last.swept) == ("ending", {}, {"a": (), "b": ()})
    last, _ = follow(last, [TimerFired(PURGE_DUE), HostSwept("c", ("pid 4 python (D)",))])
    assert (last.phase, last.lost, last.swept["c"]) == ("over", {}, ("pid 4 python (D)",))


# ---- time limits


def test_a_limit_that_is_reached_fails_the_run_and_asks_for_stacks() -> None:
    limit = TimedOut("no task has written anything for 60 s", (PS, W0, W1))
    end, actions = follow(state(), [limit])
    assert actions == [[End(GRACE, stacks=True), StartTimer(PURGE_DUE, GRACE + PURGE_MARGIN_S)]]
    assert (end.status, end.phase, end.first_failure) == ("failed", "ending", limit)
    end, _ = follow(end, [ended(W0, None, signal.SIGABRT, stopped=True), *SWEPT])
    assert (end.phase, end.first_failure) == ("over", limit)
    assert end.exit_code(True) == end.exit_code(False) == EXIT_TIMEOUT == 124
    _, [said, *_] = step(state(), limit)
    assert isinstance(said, Say)
    assert said.text.startswith(limit.reason), "the reason first"


@pytest.mark.parametrize("before", [[ended(W0, 1)], [ended(W0), ended(W1)], [INT]])
def test_a_limit_that_is_reached_when_the_run_ends_changes_nothing(before: list[Event]) -> None:
    at_end, _ = follow(state(), before)
    assert step(at_end, TimedOut("too long", (PS,))) == (at_end, [])


# ---- Ctrl-C


@pytest.mark.parametrize("before", [[], [ended(W0)]])
@pytest.mark.parametrize(
    ("event", "name", "exit_code"), [(INT, "Ctrl-C", EXIT_INTERRUPTED), (TERM, "SIGTERM", 143)]
)
def test_once_stops_twice_kills_three_times_leaves(
    before: list[Event], event: Interrupted, name: str, exit_code: int
) -> None:
    last, _ = follow(state(), before)
    alive = 3 - len(before)
    last, actions = step(last, event)
    (words,) = said(actions)
    assert words.startswith(f"{name}: stopping {alive} task")
    assert "10 s" in words and "once more" in words
    assert actions[1:] == ENDING
    assert last.phase == "ending"
    last, actions = step(last, event)
    (words,) = said(actions)
    assert words.startswith(f"{name} again: killing {alive} task")
    assert actions[1:] == [End(0.0), StartTimer(PURGE_DUE, PURGE_MARGIN_S)]
    last, _ = follow(last, [HostSwept("b")])
    assert last.phase == "ending"
    last, actions = step(last, event)
    assert actions == []
    assert (last.phase, last.status) == ("over", "interrupted")
    assert last.lost == dict.fromkeys("ac", NOT_AWAITED)
    assert last.exit_code(clean=False) == last.exit_code(clean=True) == exit_code


@pytest.mark.parametrize("event", [INT, TERM])
def test_work_that_is_done_stays_done(event: Interrupted) -> None:
    last, _ = follow(state(), [ended(W0), ended(W1)])
    assert last.phase == "draining"
    last, actions = step(last, event)
    assert End(10.0) in actions
    last, _ = follow(last, [HostSwept("a"), HostSwept("b"), HostSwept("c")])
    assert (last.phase, last.status, last.exit_code(clean=True)) == ("over", "succeeded", 0)


def test_once_and_patience_ends_clean() -> None:
    stopped = [ended(each, None, signal.SIGTERM, stopped=True) for each in HOSTS]
    last, took = follow(state(), [INT, *stopped, *SWEPT])
    assert took == [ENDING, *[[]] * 6]
    assert (last.phase, last.status, last.first_failure) == ("over", "interrupted", None)
    assert last.exit_code(clean=True) == EXIT_INTERRUPTED


def test_the_first_of_two_signals_makes_the_exit_code() -> None:
    last, _ = follow(state(), [TERM, INT, *SWEPT])
    assert last.exit_code(clean=True) == 143


def test_ctrl_c_while_a_failed_run_is_being_stopped() -> None:
    last, _ = follow(state(), [ended(W0, 9)])
    last, actions = step(last, INT)
    (words,) = said(actions)
    assert "stopped already" in words and len(actions) == 1
    last, actions = step(last, INT)
    assert [type(each) for each in actions] == [Say, End, StartTimer]
    assert actions[1] == End(0.0)
    last, _ = follow(last, SWEPT)
    assert (last.phase, last.status, last.exit_code(True)) == ("over", "failed", 9)


# ---- agents that end the run


def test_a_run_whose_lease_ran_out_has_failed() -> None:
    last, actions = step(state(), AgentGaveUp("b", "no launcher has renewed the lease"))
    assert [action for action in actions if not isinstance(action, Say)] == ENDING
    last, _ = follow(last, [AgentGaveUp("a", "it too"), *SWEPT])
    assert (last.phase, last.status, last.exit_code(True)) == ("over", "failed", EXIT_UNCLEAN)
    assert last.first_failure == HostLost("b", "no launcher has renewed the lease")


@pytest.mark.parametrize(("ends_in", "grace_s"), [(30.0, 29.0), (0.2, 0.0), (0.0, 0.0)])
def test_where_an_engine_takes_a_slot_back_all_hosts_get_the_time_that_is_left(
    ends_in: float, grace_s: float
) -> None:
    last, actions = step(state(), AgentGaveUp("b", "PREEMPTED", ends_in=ends_in))
    assert [action for action in actions if not isinstance(action, Say)] == [
        End(grace_s),
        StartTimer(PURGE_DUE, grace_s + PURGE_MARGIN_S),
    ]
    assert said(actions) == [f"b: PREEMPTED; stopping the 3 tasks left, {grace_s:g} s to end by themselves"]
    last, took = follow(
        last, [AgentGaveUp("a", "CANCELLED", ends_in=3.0), ended(W0, 3, stopped=True), *SWEPT]
    )
    assert took == [[]] * 5  # its agent tells its own tasks
    assert (last.phase, last.status, last.first_failure) == ("over", "failed", Reclaimed("PREEMPTED", "b"))
    assert (last.exit_code(True), last.exit_code(False)) == (75, 75)
    outcome = outcome_of(last, "run", 1.0)
    told = json.loads(json.dumps(outcome_data(outcome)))
    first = {"reason": "PREEMPTED", "host": "b", "tasks": [], "states": [], "exit_code": 75}
    assert told["first_failure"] == first
    assert outcome_from("run", told, outcome.exits) == outcome


def test_a_slot_that_its_engine_says_is_over_ends_the_run_as_one_that_is_taken_back() -> None:
    """Of the others nobody has said that they end: they have the time that the user gave."""
    last, actions = step(state(), HostLost("b", "NotFound", reclaimed=True))
    assert [action for action in actions if not isinstance(action, Say)] == ENDING
    last, _ = follow(last, [HostSwept("a"), HostSwept("c")])
    assert (last.phase, last.first_failure) == ("over", Reclaimed("NotFound", "b"))


def test_a_slot_that_is_taken_back_when_the_work_is_done_is_no_failure() -> None:
    last, _ = follow(state(), [ended(W0), ended(W1)])
    assert last.phase == "draining"
    last, actions = step(last, AgentGaveUp("a", "PREEMPTED", ends_in=3.0))
    assert actions == [End(2.0), StartTimer(PURGE_DUE, 2.0 + PURGE_MARGIN_S)]
    last, _ = follow(last, [ended(PS, 3, stopped=True), *SWEPT])
    assert (last.status, last.exit_code(True)) == ("succeeded", 0)


def test_a_run_that_is_stopped_from_elsewhere_is_interrupted() -> None:
    stop = AgentGaveUp("b", "tflaunch stop ends the run", asked=True)
    last, actions = step(state(), stop)
    assert said(actions) == ["b: tflaunch stop ends the run"]  # said by the agent
    assert actions[1:] == ENDING  # also where nobody has asked
    last, took = follow(last, [stop._replace(host="a"), ended(W0, None, signal.SIGTERM), *SWEPT])
    assert took == [[]] * 5
    assert (last.phase, last.status, last.exit_code(True)) == ("over", "interrupted", 143)


# ---- whatever happens

tasks = st.lists(
    st.sampled_from([PS, TaskId("ps", 1), CHIEF, W0, W1, TaskId("worker", 2), EVALUATOR, DATA]),
    min_size=1,
    unique=True,
)
JOBS, ENDS = ["ps", "worker", "chief", "evaluator", "data"], ["decides", "stopped", "sidecar"]
Draw = st.DataObject


def any_event(data: Draw, now: State, asked_to_end: set[str]) -> Event:
    """Anything that can happen now; agents report that they have swept only once something made them."""
    kinds = ["exit", "lost", "interrupt", "gave up", "timer", "near", "limit"]
    hosts = sorted(set(now.hosts.values()))
    if asked_to_end:
        kinds.append("swept")
    host = data.draw(st.sampled_from(hosts))
    match data.draw(st.sampled_from(kinds)):
        case "exit":
            task = data.draw(st.sampled_from(sorted(now.hosts)))
            code = data.draw(st.sampled_from([0, 0, 0, 1, None]))
            return TaskExit(task, now.hosts[task], code, None if code is not None else 9, 1.0)
        case "lost":
            return HostLost(host, "gone")
        case "interrupt":
            return data.draw(st.sampled_from([INT, TERM]))
        case "gave up":
            asked = data.draw(st.booleans())
            return AgentGaveUp(
                host, "why", asked, None if asked else data.draw(st.sampled_from([None, 0.0, 30.0]))
            )
        case "near":
            return LimitNears(60.0, tuple(sorted(now.hosts.keys() - now.exits.keys())))
        case "limit":
            return TimedOut("too long", tuple(sorted(now.hosts.keys() - now.exits.keys())))
        case "timer":
            return TimerFired(
                data.draw(st.sampled_from([f"{DRAIN} {now.drain_s}", f"{DRAIN} 60.0", PURGE_DUE]))
            )
        case _:
            return HostSwept(data.draw(st.sampled_from(sorted(asked_to_end))))


@given(tasks, st.sampled_from(["workers", "chief", "all", "never"]), st.data())
def test_no_sequence_of_events_is_wrong(cluster: list[TaskId], done: Done, data: Draw) -> None:
    now = State(
        {task: data.draw(st.sampled_from("abc")) for task in cluster}, done=done, drains_s={"evaluator": 60.0}
    )
    now = dataclasses.replace(
        now, ends=data.draw(st.dictionaries(st.sampled_from(JOBS), st.sampled_from(ENDS)))
    )
    hosts = set(now.hosts.values())
    asked: set[str] = set()
    order = ["running", "draining", "ending", "over"]

    def feed(event: Event) -> None:
        nonlocal now, asked
        before = now
        now, actions = step(now, event)
        if any(isinstance(action, End) for action in actions):
            asked |= hosts
        if isinstance(event, AgentGaveUp):
            asked.add(event.host)
        assert order.index(now.phase) >= order.index(before.phase), "a run went back"
        if now.phase in ("ending", "over"):
            assert asked == hosts, "not every host was told to end"
        if now.phase == "draining" and before.phase == "running":
            times = {now.drains_s.get(task.job, now.drain_s) for task in now.hosts.keys() - now.exits.keys()}
            assert {StartTimer(f"{DRAIN} {s}", s) for s in times} <= set(actions), "a drain without an end"
        if now.phase == "ending" and before.phase != "ending":
            assert any(isinstance(action, StartTimer) and action.name == PURGE_DUE for action in actions)
        assert not now.swept.keys() & now.lost.keys()
        for clean in (True, False):
            if now.exit_code(clean) == 0:
                assert (now.status, clean) == ("succeeded", True)

    for _ in range(data.draw(st.integers(0, 8))):
        feed(any_event(data, now, asked))
    # From anywhere: once no host is left to answer, the run is over.
    for host in sorted(hosts):
        feed(HostLost(host, "gone"))
        if now.phase != "over" and host in asked:
            feed(HostSwept(host))
    assert now.phase == "over"


# ---- GPUs that are not free after the end


@pytest.mark.parametrize(
    ("shared", "left", "code", "told"),
    [
        (
            False,
            [{"text": "GPU 0 is in use", "own": True}],
            EXIT_UNCLEAN,
            (GpuLeft("GPU 0 is in use", True),),
        ),
        (False, [{"text": "GPU 0 is in use", "own": False}], 0, (GpuLeft("GPU 0 is in use", False),)),
        (
            True,
            [{"text": "GPU 0 is in use", "own": True}],
            EXIT_UNCLEAN,
            (GpuLeft("GPU 0 is in use", True),),
        ),
        (True, [{"text": "GPU 0 is in use", "own": False}], 0, None),  # others were on it before
        (False, [], 0, None),
    ],
)
def test_gpus_that_are_not_free(
    shared: bool, left: list[dict[str, Any]], code: int, told: tuple[GpuLeft, ...] | None
) -> None:
    # As the agent that decides for a detached run has it, and who attaches gets it: through JSON both times.
    begun = state_from(json.loads(json.dumps(state_data(State({W0: "b"}, share_gpus=shared)))))
    swept = understand("b", "swept", {"survivors": [], "gpus": left})
    assert swept is not None
    last, _ = follow(begun, [ended(W0), swept])
    outcome = outcome_of(last, "run", 1.0)
    assert outcome.exit_code == code
    assert outcome.gpus == ({"b": told} if told else {})
    assert outcome_from("run", json.loads(json.dumps(outcome_data(outcome))), {}).gpus == outcome.gpus


# ---- before the time limit


def test_the_tasks_that_run_get_a_signal_before_the_limit() -> None:
    again, _ = follow(state("all"), [ended(PS), TaskStarted(W1, "c", 2)])
    _, actions = step(again, LimitNears(89.7, (PS, W0, W1)))
    assert actions[0] == Signal({W0: 0, W1: 2})
    assert said(actions) == ["90 s before the time limit: 2 tasks got SIGUSR1 (--warn-before)"]


def test_no_task_gets_a_signal_once_the_run_ends() -> None:
    for events in ([INT], [ended(W0), ended(W1)], [ended(W0, 3)]):
        begun, _ = follow(state(), events)
        assert step(begun, LimitNears(90.0, (PS, W0, W1))) == (begun, [])
    assert step(state(), LimitNears(90.0, ()))[1] == []
