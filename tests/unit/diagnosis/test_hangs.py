"""Who waits for whom: sentences from facts as the agents tell them, recorded from TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tflaunch.diagnosis.hangs import Hangs, waits_for
from tflaunch.diagnosis.rule import Place, Watched
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.protocol.dialling import NO_ROUTE, SILENT, STRANGER
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit

LOOK_S, WAIT_S, STOPPED_S = Thresholds.look_s, Thresholds.wait_s, Thresholds.stopped_s

PORT = {
    **{"ps/0": 2222, "ps/1": 2223, "chief/0": 2222, "worker/0": 2222, "worker/1": 2222, "data/0": 2224},
    "evaluator/0": None,
}
HOST = {
    **{"ps/0": "gpu01", "ps/1": "gpu01", "chief/0": "gpu02", "worker/0": "gpu03", "worker/1": "gpu04"},
    **{"data/0": "gpu01", "evaluator/0": "gpu01"},
}
ADDRESS = {"gpu01": "10.0.0.1", "gpu02": "10.0.0.2", "gpu03": "10.0.0.3", "gpu04": "node4.cluster"}
NODE4 = "10.0.0.4"
# The line as TensorFlow 2.21 writes it, every 10 s.
STILL = (
    "I0000 00:00:1795262334.973198   20749 master.cc:278] "
    "CreateSession still waiting for response from worker: /job:%s/replica:0/task:%d"
)


def endpoint(task: str) -> list[Any]:
    address = ADDRESS[HOST[task]]
    return [NODE4 if address == "node4.cluster" else address, PORT[task]]


class Run:
    """A run whose agents are asked every LOOK_S; `tasks` are what they see, changed as time goes on."""

    def __init__(self, *tasks: str) -> None:
        places = {task: Place(HOST[task], ADDRESS[HOST[task]], PORT[task]) for task in tasks}
        self.rule = Hangs(Watched(places, {"node4.cluster": [NODE4]}))
        self.now = 1000.0
        self.answers: dict[tuple[str, str], Any] = {}  # (host, address) -> what a call from there meets
        self.dialled: list[tuple[str, str, int]] = []
        self.tasks = {task: self.look() for task in tasks}
        self.rate = dict.fromkeys(tasks, 0.9)  # cores
        self.waits = dict.fromkeys(tasks, 0.0)  # for a processor, in each second
        self.waited = dict.fromkeys(tasks, 0.0)
        self.bytes_s = dict.fromkeys(tasks, 0)  # over one connection

    @staticmethod
    def look(**facts: Any) -> dict[str, Any]:
        return {
            "listens": True,
            "connected": [],
            "calling": [],
            "processes": [[4711, "python3", "S"]],
            "waits_in": "futex_do_wait",
            "cpu_s": 3.0,
            "quiet_s": 1.0,
            "log_bytes": 100,
            "says": "step 7",
            **facts,
        }

    def see(
        self, task: str, *, to: tuple[str, ...] = (), calling: tuple[str, ...] = (), **facts: Any
    ) -> None:
        """From now on `task` is seen like this."""
        self.tasks[task] = self.look(
            connected=[endpoint(each) for each in to],
            calling=[endpoint(each) for each in calling],
            cpu_s=self.tasks[task]["cpu_s"],
            **facts,
        )

    def idle(self, *tasks: str) -> None:
        """From now on these use as little processor time as TensorFlow does while it waits."""
        self.rate.update(dict.fromkeys(tasks, 0.003))

    def end(self, task: str, code: int = 0) -> None:
        del self.tasks[task]
        self.exited(task, code)

    def exited(self, task: str, code: int) -> None:
        exit = TaskExit(TaskId.parse(task), HOST.get(task, ""), code, None, 1.0)
        self.rule.exited(exit, self.now)

    def on(self, seconds: float, silent: tuple[str, ...] = ()) -> list[str]:
        """Let time go on; what is said meanwhile. Of `silent` hosts nothing is heard."""
        said: list[str] = []
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            for task, look in self.tasks.items():
                look["cpu_s"] += self.rate[task] * LOOK_S
                self.waited[task] += self.waits[task] * LOOK_S
                look["waited_s"] = self.waited[task]
                look["flows"] = [["10.0.0.9", 2222, 40000, int(self.bytes_s[task] * self.now), 0, 0, 0, 0.2]]
                if HOST[task] not in silent:
                    self.rule.looked(HOST[task], {"tasks": {task: dict(look)}}, self.now)
            for host, _, dial in self.rule.questions(self.now):
                targets = dial["targets"]
                self.dialled += [(host, address, port) for address, port, _ in targets]
                results = [self.answers.get((host, address), [STRANGER, ""]) for address, _, _ in targets]
                self.rule.answered(host, "dialled", {"results": results}, self.now + 0.1)
            said += [sentence.text for sentence in self.rule.sentences(self.now + 0.2, set())]
        return said


def test_tensorflows_line_names_the_task() -> None:
    assert waits_for(STILL % ("ps", 0)) == "ps/0"
    assert waits_for(STILL % ("worker", 12)) == "worker/12"
    assert waits_for("step 7: still waiting for the data") == ""


# ---- healthy


def healthy() -> Run:
    run = Run("ps/0", "worker/0", "worker/1")
    run.see("ps/0", to=("worker/0", "worker/1"))
    run.see("worker/0", to=("ps/0", "worker/1"))
    run.see("worker/1", to=("ps/0", "worker/0"))
    return run


def test_of_a_run_that_trains_nothing_is_said() -> None:
    run = healthy()
    assert run.on(3600) == []
    assert run.dialled == []


def test_a_slow_start_and_the_pause_before_a_chief_is_ready_are_no_hang() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    for task in run.tasks:
        run.see(task, listens=False, says="", log_bytes=0)
    assert run.on(45) == []  # all import TensorFlow from a slow disk
    run.see("worker/1")
    run.idle("worker/1")
    assert run.on(40) == []
    run.see("ps/0")
    run.see("worker/0", to=("ps/0", "worker/1"))
    run.see("worker/1", to=("ps/0", "worker/0"), waits_in="hrtimer_nanosleep")
    assert run.on(30) == []


def test_idle_tasks_with_all_their_connections_are_no_hang() -> None:
    run = healthy()
    run.idle("ps/0", "worker/0", "worker/1")  # or they compute on a GPU
    assert run.on(600) == []


def test_a_program_that_opens_no_ports_is_left_alone() -> None:
    run = Run("worker/0", "worker/1")
    for task in run.tasks:
        run.see(task, listens=False)
    run.idle("worker/0", "worker/1")
    assert run.on(600) == []


def test_the_end_of_a_run_is_no_hang() -> None:
    run = healthy()
    run.on(60)
    run.see("worker/1", to=("ps/0",))
    run.end("worker/0")
    assert run.on(600) == []  # it trains on


def test_the_last_evaluation_of_a_worker_that_never_listened_is_left_alone() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.see("worker/1", listens=False)
    run.idle("worker/1")
    run.end("worker/0")
    assert run.on(600) == []


# ---- a ps that never opens its port: connects to it are refused, which leaves no trace


def test_a_ps_that_does_not_open_its_port_is_named_and_who_waits_for_it() -> None:
    run = Run("ps/0", "ps/1", "worker/0", "worker/1")
    run.see("ps/0", to=())
    run.see("ps/1", listens=False, quiet_s=58.0, says="loading the vocabulary")
    run.idle("ps/0", "ps/1", "worker/0", "worker/1")
    for task, other in (("worker/0", "worker/1"), ("worker/1", "worker/0")):
        run.see(task, to=("ps/0", other), says=STILL % ("ps", 1), quiet_s=3.0)
    said = run.on(WAIT_S + 2 * LOOK_S)
    assert said == [
        "ps/1 on gpu01 has not opened its port for 60 s (its last output was 58 s ago);"
        " worker/0, worker/1 wait for it"
    ]
    assert run.on(600) == []  # once
    run.see("ps/1")
    for task in ("worker/0", "worker/1"):
        run.see(task, to=("ps/0", "ps/1"))
    assert run.on(30) == ["ps/1 on gpu01 has opened its port"]


def test_it_is_named_also_when_tensorflow_is_told_to_say_nothing() -> None:
    run = Run("ps/0", "worker/0")
    run.see("ps/0", listens=False, log_bytes=0, says="")
    run.see("worker/0", says="")
    run.idle("ps/0", "worker/0")
    assert run.on(WAIT_S + 2 * LOOK_S) == [
        "ps/0 on gpu01 has not opened its port for 60 s (no output yet); worker/0 waits for it"
    ]


def test_who_waited_and_ended_did_not_see_the_port_opened() -> None:
    run = Run("ps/0", "worker/0")
    run.see("ps/0", listens=False)
    run.see("worker/0", says=STILL % ("ps", 0))
    assert len(run.on(WAIT_S + 2 * LOOK_S)) == 1
    run.end("worker/0", 1)
    assert run.on(60) == []


# ---- something is in the way: SYN_SENT, nearly without a gap


def blocked(verdict: str = SILENT) -> Run:
    run = Run("ps/0", "worker/0", "worker/1")
    run.see("worker/0", to=("ps/0", "worker/1"))
    run.see("worker/1", to=("worker/0",), calling=("ps/0",))
    run.idle("worker/1")
    run.answers["gpu04", "10.0.0.1"] = [verdict, ""]
    return run


def test_a_firewall_is_named_with_the_pair_and_the_port() -> None:
    run = blocked()
    assert run.on(WAIT_S - LOOK_S) == []
    [said] = run.on(3 * LOOK_S)
    assert said.startswith("worker/1 on gpu04 has waited 6")
    assert said.endswith("s for ps/0 at 10.0.0.1:2222: silently dropped (a firewall?)")
    assert run.dialled == [("gpu04", "10.0.0.1", 2222)]
    assert run.on(300) == []
    assert len(run.dialled) <= 7, "asked again now and then only"


def test_another_cause_is_said_again_and_the_end_too() -> None:
    run = blocked()
    assert len(run.on(WAIT_S + 3 * LOOK_S)) == 1
    run.answers["gpu04", "10.0.0.1"] = [NO_ROUTE, ""]
    [said] = run.on(90)
    assert "no route" in said
    run.see("worker/1", to=("ps/0", "worker/0"))
    assert run.on(30) == ["worker/1 on gpu04 waits no longer for ps/0"]
    assert run.on(600) == []


def test_the_gap_between_two_tries_is_no_end_of_the_wait() -> None:
    run = blocked()
    run.on(30)
    run.see("worker/1", to=("worker/0",))  # 0.2 s as recorded; a look may fall into it
    run.on(LOOK_S)
    run.see("worker/1", to=("worker/0",), calling=("ps/0",))
    assert len(run.on(40)) == 1


def test_many_who_wait_for_one_are_one_sentence() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    for task, host in (("worker/0", "gpu03"), ("worker/1", "gpu04")):
        run.see(task, calling=("ps/0",))
        run.answers[host, "10.0.0.1"] = [SILENT, ""]
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert said.startswith("worker/0, worker/1 have waited 6")


def test_an_address_that_is_a_name_is_known_by_what_it_stands_for() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.see("worker/0", to=("ps/0",), calling=("worker/1",))
    run.answers["gpu03", "node4.cluster"] = [SILENT, ""]
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert "for worker/1 at node4.cluster:2222: silently dropped" in said


def test_a_host_that_is_not_heard_of_says_nothing_new() -> None:
    run = blocked()
    run.on(30)
    assert run.on(600, silent=("gpu04",)) == []
    assert len(run.on(WAIT_S + 3 * LOOK_S)) == 1


# ---- others


def test_a_worker_that_came_after_the_chief_had_ended() -> None:
    run = Run("ps/0", "chief/0", "worker/0")
    run.see("chief/0", to=("ps/0", "worker/0"))
    run.on(10)
    run.end("chief/0")
    run.see("worker/0", to=("ps/0",), says=STILL % ("chief", 0), quiet_s=4.0)
    run.idle("ps/0", "worker/0")
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert said.startswith("worker/0 on gpu03 has waited 60 s for chief/0, which has ended with 0; ")
    assert "device_filters" in said


def test_the_same_without_tensorflows_line_is_said_with_less_certainty() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.end("worker/0")  # the chief of a cluster without one
    run.see("worker/1", to=("ps/0",), says="")
    run.idle("ps/0", "worker/1")
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert said.startswith(
        "worker/1 on gpu04 has done nothing for 60 s and has no connection to worker/0, which"
    )


@pytest.mark.parametrize(
    ("cores", "waits", "bytes_s", "said"),
    [(0.004, 0.98, 0, 0), (0.004, 0.3, 1400, 1), (0.02, 0.07, 240_000, 0)],
    ids=["crowded", "still-on-a-crowded-host", "trains-far-away"],
)
def test_who_uses_little_of_a_processor_may_want_more_or_train(
    cores: float, waits: float, bytes_s: int, said: int
) -> None:
    """As recorded with 50 other programs on 2 cores, and with hosts 50 ms from each other."""
    run = Run("ps/0", "worker/0", "worker/1")
    run.see("worker/1", to=("ps/0",), says="")
    run.rate["worker/1"], run.waits["worker/1"], run.bytes_s["worker/1"] = cores, waits, bytes_s
    assert run.on(100) == []
    run.end("worker/0")
    assert len(run.on(20)) == said


@pytest.mark.parametrize(("cores", "waits", "said"), [(0.003, 0.98, 0), (0.003, 0.3, 1), (3.9, 2.0, 1)])
@pytest.mark.parametrize("listens", [True, False])
def test_a_ps_that_gets_no_processor_does_not_answer(
    cores: float, waits: float, said: int, listens: bool
) -> None:
    """The last computes, with more threads than cores."""
    run = Run("ps/0", "worker/0")
    run.see("ps/0", listens=listens, says="")
    run.see("worker/0", to=("ps/0",) if listens else (), says=STILL % ("ps", 0))
    run.idle("worker/0")
    run.rate["ps/0"], run.waits["ps/0"] = cores, waits
    assert len(run.on(WAIT_S + 3 * LOOK_S)) == said


@pytest.mark.parametrize("listens", [True, False])
def test_a_wait_that_was_told_is_not_over_when_the_host_of_its_peer_is_crowded(listens: bool) -> None:
    run = Run("ps/0", "worker/0")
    run.see("ps/0", listens=listens, says="")
    run.see("worker/0", to=("ps/0",) if listens else (), says=STILL % ("ps", 0))
    run.idle("ps/0", "worker/0")
    assert len(run.on(WAIT_S + 3 * LOOK_S)) == 1
    run.waits["ps/0"] = 0.98
    assert run.on(120) == []
    run.waits["ps/0"] = 0.0
    assert run.on(120) == []
    run.see("ps/0", says="")
    run.see("worker/0", to=("ps/0",))
    assert len(run.on(60)) == 1


def test_a_stopped_task_is_named_soon() -> None:
    run = healthy()
    run.see("worker/1", to=("ps/0", "worker/0"), processes=[[4712, "python3", "T"]])
    run.rate["worker/1"] = 0.0
    [said] = run.on(STOPPED_S + 2 * LOOK_S)
    assert said == "worker/1 on gpu04 is stopped (state T): kill -CONT 4712 on gpu04 lets it go on"
    run.see("worker/1", to=("ps/0", "worker/0"))
    assert run.on(30) == ["worker/1 on gpu04 goes on"]


def test_a_task_that_is_stopped_and_continued_in_turns_goes_on() -> None:
    run = healthy()
    run.see("worker/1", to=("ps/0", "worker/0"), processes=[[4712, "python3", "T"]])
    run.idle("worker/1")  # it waits for its peers most of the time that it gets
    assert run.on(300) == []


def test_a_task_that_waits_for_a_disk() -> None:
    run = healthy()
    run.see("worker/1", to=("ps/0",), processes=[[1, "python3", "D"]], waits_in="nfs_wait_bit_killable")
    [said] = run.on(WAIT_S)
    assert said == (
        "worker/1 on gpu04 has waited in the kernel for 30 s"
        " (state D, in nfs_wait_bit_killable: a disk? NFS?)"
    )


def test_a_task_that_reads_much_is_not_one_that_waits_for_a_disk() -> None:
    run = healthy()
    said: list[str] = []
    for state in "DSDRDSDRDSDRDSDR":
        run.see("worker/1", to=("ps/0", "worker/0"), processes=[[1, "python3", state]])
        said += run.on(LOOK_S)
    assert said == []


def test_a_task_that_reads_all_the_time_from_a_slow_disk() -> None:
    run = healthy()
    said: list[str] = []
    for look in range(20):
        disk = {"processes": [[1, "python3", "D"]], "io": look * 20_000_000}
        run.see("worker/1", to=("ps/0", "worker/0"), **disk)
        said += run.on(LOOK_S)
    assert said == []


def test_a_call_before_a_long_time_without_looks_does_not_count() -> None:
    run = healthy()
    run.answers["gpu04", "10.0.0.1"] = 0.01
    run.see("worker/1", calling=("ps/0",))
    assert run.on(2 * LOOK_S) == []
    run.now += 10 * WAIT_S  # its host was away
    assert run.on(2 * LOOK_S) == [], "it has called for 10 s, as far as anybody has seen"


def test_a_task_that_has_ended_before_its_host_was_lost() -> None:
    run = Run("ps/0", "chief/0", "worker/1")
    run.end("chief/0")
    run.rule.lost("chief/0", run.now)
    run.see("worker/1", to=("ps/0",))
    run.idle("worker/1")
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert "no connection to chief/0, which has ended with 0" in said


def test_a_peer_that_takes_connections_and_does_not_answer() -> None:
    run = Run("ps/0", "worker/0")
    run.see("worker/0", to=("ps/0",), says=STILL % ("ps", 0))
    run.idle("ps/0", "worker/0")
    [said] = run.on(WAIT_S + 3 * LOOK_S)
    assert said.startswith("worker/0 on gpu03 has waited 6")
    assert said.endswith("s for ps/0 at 10.0.0.1:2222, which takes connections but does not answer")


def test_a_task_that_was_started_again_starts_anew() -> None:
    run = blocked()
    assert len(run.on(WAIT_S + 3 * LOOK_S)) == 1
    run.exited("worker/1", 1)
    run.rule.started("worker/1", run.now)
    run.see("worker/1", to=("ps/0",))
    assert run.on(60) == ["worker/1 on gpu04 waits no longer for ps/0"]


@pytest.mark.parametrize("odd", [{"unknown/7": {}}, {}])
def test_tasks_that_are_not_of_the_plan_are_passed_over(odd: Mapping[str, Any]) -> None:
    run = healthy()
    run.rule.looked("gpu01", {"tasks": odd}, run.now)
    run.exited("unknown/7", 0)
    run.rule.answered("gpu99", "dialled", {"results": []}, run.now)
    assert run.on(60) == []


def test_roles_that_wait_to_be_asked_are_no_hang() -> None:
    run = Run("ps/0", "data/0", "evaluator/0", "chief/0", "worker/0")
    run.see("ps/0", listens=False)  # which would be a worker's sorrow
    run.see("evaluator/0", listens=None)
    run.see("worker/0", to=("chief/0",), calling=())
    run.idle("data/0", "evaluator/0")
    run.end("chief/0")
    assert run.on(2 * WAIT_S) == []
