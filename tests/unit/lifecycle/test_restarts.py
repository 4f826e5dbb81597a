"""What starts again when a task fails, how often, how soon: the decisions alone, without processes or clocks."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tflaunch.lifecycle.actions import Action, End, Restart, Say, StartTimer, StopTasks
from tflaunch.lifecycle.states import BACKOFF_S, RESTART, Restarts, State, step
from tflaunch.protocol.errors import EXIT_INTERRUPTED
from tflaunch.protocol.events import HostSwept, Interrupted, TaskStarted, TimerFired
from tflaunch.protocol.job import Done, RestartPolicy, RoleEnd, TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit

PS, W0, W1 = TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)
EVALUATOR, DATA = TaskId("evaluator", 0), TaskId("data", 0)
HOSTS = {PS: "a", W0: "b", W1: "c"}
STOP = StopTasks((PS, W0, W1), 10.0)
SWEPT = [HostSwept("a"), HostSwept("b"), HostSwept("c")]


def ended(task: TaskId, code: int = 1, attempt: int = 0) -> TaskExit:
    return TaskExit(task, {**HOSTS, EVALUATOR: "d", DATA: "d"}[task], code, None, 1.5, attempt=attempt)


class Run:
    """A state, the clock that goes on, and what was to be done at the last step."""

    def __init__(
        self,
        done: Done = "workers",
        hosts: Mapping[TaskId, str] = HOSTS,
        ends: Mapping[str, RoleEnd] | None = None,
        **restarts: Any,
    ) -> None:
        self.state = State(hosts, done=done, ends=ends or {}, restarts=Restarts(**{"most": 3, **restarts}))
        self.now = 1000.0
        self.said: list[str] = []
        for task in hosts:
            self.started(task)

    def feed(self, event: Any, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        self.state, actions = step(self.state, event, self.now)
        self.said = [action.text for action in actions if isinstance(action, Say)]
        return [action for action in actions if not isinstance(action, Say)]

    def started(self, task: TaskId, attempt: int = 0) -> list[Action]:
        return self.feed(TaskStarted(task, self.state.hosts[task], attempt))

    def fails(self, task: TaskId, code: int = 1, after_s: float = 0.0) -> list[Action]:
        attempt = self.state.attempts.get(task, 0)
        return self.feed(ended(task, code, attempt), after_s)

    def again(self, task: TaskId) -> None:
        """The back-off of a task is over, and its next attempt starts."""
        attempt = self.state.attempts[task] + 1
        assert self.feed(TimerFired(f"{RESTART} {task}")) == [Restart({task: attempt})]
        self.started(task, attempt)

    def all_again(self) -> None:
        """Likewise for the cluster; all its tasks have ended."""
        [order] = self.feed(TimerFired(RESTART))
        assert isinstance(order, Restart)
        assert order.tasks.keys() == HOSTS.keys()
        assert len({*order.tasks.values()}) == 1
        for task, attempt in order.tasks.items():
            self.started(task, attempt)

    def ends_with(self) -> int:
        for event in SWEPT:
            self.feed(event)
        assert self.state.phase == "over"
        return self.state.exit_code(clean=True)


def test_one_task_starts_again_and_the_run_succeeds() -> None:
    run = Run()
    assert run.fails(W1, 3) == [StartTimer(f"{RESTART} worker/1", 1.0)]
    assert run.said == [
        "worker/1 on c exited with code 3 after 1.5 s; it starts again in 1 s (restart 1 of 3)"
    ]
    run.again(W1)
    run.fails(W0, 0)
    run.fails(W1, 0)
    assert run.state.phase == "draining"
    assert run.fails(PS, 143)[0] == End(10.0)
    assert run.ends_with() == 0
    assert (run.state.attempts[W1], run.state.attempts[W0]) == (1, 0)


def test_each_restart_waits_twice_as_long_up_to_a_minute() -> None:
    run = Run(most=100)
    delays = []
    for _ in range(8):
        [timer] = run.fails(PS)
        assert isinstance(timer, StartTimer)
        delays.append(timer.seconds)
        run.again(PS)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    [timer] = run.fails(W0)
    assert timer == StartTimer(f"{RESTART} worker/0", BACKOFF_S[0])  # each task has its own


def test_the_budget_is_that_of_a_task_within_the_window() -> None:
    run = Run(most=2, window_s=60.0)
    for _ in range(2):
        run.fails(W0)
        run.again(W0)
    run.fails(W1)
    run.again(W1)  # another task has its own
    run.fails(W0, after_s=60.0)  # the first two are forgotten
    run.again(W0)
    run.fails(W0, after_s=10.0)
    run.again(W0)
    actions = run.fails(W0, 5, after_s=49.0)
    assert actions[0] == End(10.0)
    assert run.said[0] == "worker/0 was started again 2 times (--restarts 2); no more"
    assert run.state.first_failure == ended(W0, 5, 4)
    assert run.ends_with() == 5


@pytest.mark.parametrize(("code", "again"), [(1, False), (127, False), (128, True), (137, True), (255, True)])
def test_only_what_comes_from_outside_the_program_is_retryable(code: int, again: bool) -> None:
    run = Run(on="retryable")
    assert (run.fails(W0, code) == [StartTimer(f"{RESTART} worker/0", 1.0)]) is again
    assert (run.state.phase == "ending") is not again


def test_a_signal_is_retryable() -> None:
    run = Run(on="retryable")
    assert run.feed(TaskExit(W0, "b", None, signal.SIGKILL, 1.0))
    assert run.state.phase == "running"


def test_a_job_has_its_own_policy() -> None:
    run = Run(policy={"ps": "never", "worker": "cluster"})
    run.fails(W0)
    assert run.state.phase == "restarting"
    assert Run(policy={"ps": "never"}).fails(PS, 9)[0] == End(10.0)


def test_the_cluster_starts_again_when_all_its_tasks_have_ended() -> None:
    run = Run(default="cluster", most=1)
    assert run.fails(W0) == [STOP]
    assert run.said == [
        "worker/0 on b exited with code 1 after 1.5 s; all tasks are stopped and start again in 1 s (restart 1 of 1)"
    ]
    assert run.fails(W1) == []  # its peer is gone: no failure of its own
    assert run.fails(PS, 143) == [StartTimer(RESTART, 1.0)]
    run.all_again()
    assert run.state.phase == "running"
    assert set(run.state.attempts.values()) == {1}
    run.fails(W1, 4)
    assert run.said[0] == "the cluster was started again once (--restarts 1); no more"
    assert run.ends_with() == 4


def test_a_task_that_waits_for_its_own_restart_starts_with_the_cluster() -> None:
    run = Run(policy={"ps": "task", "worker": "cluster"})
    run.fails(PS)
    assert run.fails(W0) == [STOP]
    assert run.fails(W1, 143) == [StartTimer(RESTART, 1.0)]  # the ps has ended already
    assert run.feed(TimerFired(f"{RESTART} ps/0")) == []  # it goes with the others
    run.all_again()
    run.fails(W0, 0)
    run.fails(W1, 0)
    assert run.state.phase == "draining"


def test_one_that_fails_again_before_the_others_have_started() -> None:
    run = Run(default="cluster")
    run.fails(W0)
    run.fails(W1, 143)
    run.fails(PS, 143)
    assert run.feed(TimerFired(RESTART)) == [Restart(dict.fromkeys(HOSTS, 1))]
    run.started(W0, 1)
    assert run.fails(W0) == [STOP]  # those that are on their way, too
    run.started(PS, 1)
    run.fails(PS, 143)
    assert run.fails(W1, 137) == [StartTimer(RESTART, 2.0)]  # it never came to its start
    run.all_again()
    assert set(run.state.attempts.values()) == {2}


def test_what_an_earlier_attempt_did_is_no_news() -> None:
    run = Run()
    run.fails(W0)
    run.again(W0)
    assert run.feed(ended(W0, 7, attempt=0)) == []
    assert run.started(W0, 0) == []
    assert W0 not in run.state.exits
    assert run.state.attempts[W0] == 1


def test_ctrl_c_while_a_restart_waits() -> None:
    run = Run()
    run.fails(W0)
    assert run.feed(Interrupted(signal.SIGINT))[0] == End(10.0)
    assert "stopping 2 tasks" in run.said[0]
    assert run.feed(TimerFired(f"{RESTART} worker/0")) == []
    assert run.ends_with() == EXIT_INTERRUPTED


def test_ctrl_c_while_the_cluster_is_stopped_for_a_restart() -> None:
    run = Run(default="cluster")
    run.fails(W0)
    run.fails(PS, 143)
    assert run.feed(Interrupted(signal.SIGINT))[0] == End(10.0)
    assert "stopping 1 task," in run.said[0]
    run.fails(W1, 143)
    assert run.feed(TimerFired(RESTART)) == []
    assert run.ends_with() == EXIT_INTERRUPTED


def test_work_that_is_done_does_not_wait_for_a_ps_that_waits() -> None:
    run = Run()
    run.fails(W0, 0)
    run.fails(PS)
    assert run.fails(W1, 0)[0] == End(10.0)
    assert run.ends_with() == 0


@pytest.mark.parametrize("done", ["all", "never"])
def test_work_is_not_done_while_a_task_waits(done: Done) -> None:
    run = Run(done)
    run.fails(W0, 1)
    run.fails(W1, 0)
    assert run.fails(PS, 0) == []
    assert run.state.phase == "running"
    run.again(W0)
    run.fails(W0, 0)
    assert run.ends_with() == 0


BESIDE = {PS: "a", W0: "b", W1: "c", EVALUATOR: "d"}


def test_an_evaluator_is_left_alone_when_the_cluster_starts_again() -> None:
    run = Run(hosts=BESIDE, default="cluster", policy={"evaluator": "task"})
    assert run.fails(W0) == [STOP]
    assert "all tasks but evaluator/0 are stopped and start again in 1 s" in run.said[0]
    assert run.fails(W1) == []
    assert run.fails(EVALUATOR, 5) == [StartTimer(f"{RESTART} evaluator/0", 1.0)]  # meanwhile, for itself
    assert run.fails(PS, 143) == [StartTimer(RESTART, 1.0)]
    run.again(EVALUATOR)
    run.all_again()
    assert run.state.attempts == dict.fromkeys(BESIDE, 1)
    assert run.fails(EVALUATOR, 0) == []  # its end is no end of the run, nor a part of the work
    assert run.fails(W0) == [STOP]
    assert "all tasks are stopped" in run.said[0]


def test_an_evaluator_of_which_that_is_said_starts_again_with_the_cluster() -> None:
    run = Run(hosts=BESIDE, default="cluster")
    assert run.fails(EVALUATOR) == [StopTasks((*HOSTS, EVALUATOR), 10.0)]


def test_a_cluster_whose_sidecar_is_lost_starts_again_without_it() -> None:
    run = Run(hosts={**HOSTS, DATA: "d"}, ends={"data": "sidecar"}, default="cluster")
    run.fails(W0)
    run.fails(W1, 143)
    run.fails(PS, 143)
    assert run.feed(HostLost("d", "gone")) == [StartTimer(RESTART, 1.0)]  # nobody waits for its end
    run.all_again()
    assert run.state.phase == "running"


def test_a_sidecar_that_waits_for_its_restart_does_not_start_on_a_lost_host() -> None:
    run = Run(hosts={**HOSTS, DATA: "d"}, ends={"data": "sidecar"})
    run.fails(DATA)
    assert run.feed(HostLost("d", "gone")) == []
    assert run.said == ["the run goes on without d and data/0"]
    assert run.feed(TimerFired(f"{RESTART} data/0")) == []


def test_a_host_that_is_lost_ends_the_run_also_where_tasks_may_start_again() -> None:
    run = Run()
    run.fails(W0)
    assert run.feed(HostLost("a", "gone"))[0] == End(10.0)
    assert run.ends_with() == 76


class World:
    """Hosts that do what they are told, and tasks that end as `data` has it, at any moment."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.alive: dict[TaskId, int] = dict.fromkeys(state.hosts, 0)
        self.coming: dict[TaskId, int] = {}  # ordered, not yet started
        self.stopping: set[TaskId] = set()
        self.timers: set[str] = set()
        self.swept: set[str] = set()
        self.now = 0.0

    def feed(self, event: Any) -> None:
        self.state, actions = step(self.state, event, self.now)
        for action in actions:
            if isinstance(action, Restart):
                for task, attempt in action.tasks.items():
                    assert task not in self.alive, f"{task} starts while it runs"
                    assert task not in self.coming, f"{task} starts twice"
                    self.coming[task] = attempt
            elif isinstance(action, (StopTasks, End)):
                running = self.alive.keys() | self.coming.keys()
                self.stopping |= running if isinstance(action, End) else running.intersection(action.tasks)
            elif isinstance(action, StartTimer):
                self.timers.add(action.name)

    def possible(self) -> list[tuple[str, Any]]:
        """What can happen next."""
        if self.state.phase == "ending":
            return [("sweep", host) for host in sorted({*self.state.hosts.values()} - self.swept)]
        kinds: Mapping[str, Any] = {"start": self.coming, "end": self.alive, "timer": self.timers}
        found = [(kind, each) for kind, which in kinds.items() for each in sorted(which)]
        # Now and then the evaluator's host is lost, but nothing waits for that.
        return [*found, ("lose", "d")] if found and "d" not in self.state.lost else found

    def happens(self, kind: str, which: Any, code: int) -> None:
        self.now += 1.0
        if kind == "sweep":
            self.swept.add(which)
            self.feed(HostSwept(which))
        elif kind == "lose":
            for tasks in (self.alive, self.coming):
                tasks.pop(EVALUATOR, None)
            self.swept.add(which)
            self.feed(HostLost(which, "gone"))
        elif kind == "start":
            self.alive[which] = self.coming.pop(which)
            self.feed(TaskStarted(which, self.state.hosts[which], self.alive[which]))
        elif kind == "timer":
            self.timers.remove(which)
            self.feed(TimerFired(which))
        else:
            stopped = which in self.stopping
            self.stopping.discard(which)
            attempt = self.alive.pop(which)
            code = 143 if stopped else code
            self.feed(TaskExit(which, self.state.hosts[which], code, None, 1.0, b"", stopped, "", attempt))


policies = st.sampled_from(["task", "cluster", "never"])


@settings(max_examples=400)
@given(
    done=st.sampled_from(["workers", "chief", "all"]),
    policy=st.dictionaries(st.sampled_from(["ps", "worker", "evaluator"]), policies),
    ends=st.dictionaries(
        st.sampled_from(["ps", "worker", "evaluator"]), st.sampled_from(["decides", "stopped", "sidecar"])
    ),
    default=policies,
    most=st.integers(0, 3),
    data=st.data(),
)
def test_no_run_waits_for_ever(
    *,
    done: Done,
    policy: dict[str, RestartPolicy],
    ends: dict[str, RoleEnd],
    default: RestartPolicy,
    most: int,
    data: st.DataObject,
) -> None:
    cluster = {PS: "a", W0: "b", W1: "c", EVALUATOR: "d"}
    restarts = Restarts(most, 1000.0, policy, default)
    world = World(State(cluster, done=done, drains_s={"evaluator": 60.0}, ends=ends, restarts=restarts))
    for _ in range(200):
        if world.state.phase == "over":
            break
        possible = world.possible()
        assert possible, f"nothing can happen any more: {world.state}"
        kind, which = data.draw(st.sampled_from(possible))
        world.happens(kind, which, data.draw(st.sampled_from([0, 0, 1])))
    assert world.state.phase == "over"
    used = [who for _, who in world.state.restarted]
    assert all(used.count(who) <= most for who in used)
    left = replace(world.state, phase="running")
    missed = done == "all" or ends.get("evaluator", "sidecar") != "sidecar"
    assert left.exit_code(clean=True) in ((0, 1, 76, 143) if missed else (0, 1, 143))
