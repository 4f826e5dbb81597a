"""Tasks that do not keep to the plan, are not ready, or have lost a peer: sentences from facts as agents tell them.

The facts are recorded from TensorFlow 2.21: what ps and workers say, listen on, use and move in each case.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tflaunch.diagnosis.rule import Place, Watched
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.lifecycle.watchdog import rules_for
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import FROM_AGENT, check
from tflaunch.protocol.outcome import TaskExit
from tflaunch.protocol.wire import Message

PORT = 22001
LIMITS = Thresholds()
LOOK_S, WAIT_S = LIMITS.look_s, LIMITS.wait_s
STARTED = "I0000 grpc_server_lib.cc:462] Started server with target: grpc://localhost:%d"
NOT_READY = "INFO: Waiting for model to be ready.  Ready:  Variables not initialized: w, ready: w"


class Run:
    """A run of one task on each of the hosts h0, h1, ..., watched over by all rules but the one of standstills."""

    def __init__(self, *tasks: str, stillness: bool = False, ports: bool = True) -> None:
        self.hosts = {task: f"h{number}" for number, task in enumerate(tasks)}
        self.inside: dict[str, Any] = {}  # task -> its processes, as an inspection shows them
        self.places = {
            task: Place(
                host, f"10.0.0.{host[1:]}", PORT if ports and not task.startswith("evaluator") else None
            )
            for task, host in self.hosts.items()
        }
        self.rules = self.made(stillness)
        self.now = 1000.0
        self.cpu = dict.fromkeys(tasks, 0.9)  # cores
        self.rate = dict.fromkeys(tasks, 1e6)  # bytes a second on each connection
        self.moved = dict.fromkeys(tasks, 0.0)
        self.used = dict.fromkeys(tasks, 3.0)
        self.waits = dict.fromkeys(tasks, 0.0)  # for a processor, in each second
        self.waited = dict.fromkeys(tasks, 0.0)
        self.held = dict.fromkeys(tasks, 0.0)  # by its quota, in each second
        self.peers: dict[str, list[list[Any]]] = {task: [] for task in tasks}
        self.signed: dict[str, dict[str, list[Any]]] = {
            task: {} for task in tasks
        }  # with the time, not the age
        self.facts: dict[str, dict[str, Any]] = {task: {} for task in tasks}

    def made(self, stillness: bool = False) -> dict[str, Any]:
        rules = rules_for(Watched(self.places))
        return rules if stillness else {name: rule for name, rule in rules.items() if name != "stillness"}

    def see(self, task: str, *, to: tuple[str, ...] = (), **facts: Any) -> None:
        """From now on `task` is seen like this, connected to these."""
        self.facts[task] = facts
        self.peers[task] = [[self.places[peer].address, PORT] for peer in to]

    def train(self, *tasks: str) -> None:
        for task in tasks:
            self.see(task, to=tuple(each for each in tasks if each != task))

    def still(self, *tasks: str) -> None:
        """From now on these do as little as TensorFlow does while it waits: heartbeats."""
        for task in tasks:
            self.cpu[task], self.rate[task] = 0.004, 60.0

    def sign(self, task: str, name: str, line: str) -> None:
        count = self.signed[task].get(name, [0])[0]
        self.signed[task][name] = [count + 1, line, self.now]

    def look(self, task: str) -> dict[str, Any]:
        listens = self.facts[task].get("listens", True if self.places[task].port else None)
        flows = [
            [address, port, 40000, int(self.moved[task]), int(self.moved[task]), 0, 0, 0.2]
            for address, port in self.peers[task]
        ]
        return {
            "listens": listens,
            "connected": self.peers[task],
            "calling": [],
            "processes": [[4711, "python3", "S"]],
            "waits_in": "futex_do_wait",
            "cpu_s": self.used[task],
            "waited_s": self.waited[task],
            "held_s": self.held[task] * self.now,
            "quiet_s": 1.0,
            "log_bytes": 100,
            "says": "step 7",
            "listens_on": [PORT] if listens else [],
            "flows": flows,
            "signs": {
                name: [count, line, self.now - at] for name, (count, line, at) in self.signed[task].items()
            },
            **self.facts[task],
        }

    def end(self, task: str, code: int | None = 0, signal: int | None = None) -> None:
        exit = TaskExit(
            TaskId.parse(task), self.hosts[task], code, signal, 1.0, signal_name="SIGKILL" if signal else ""
        )
        for rule in self.rules.values():
            rule.exited(exit, self.now)
        del self.facts[task]

    def on(self, seconds: float, repeating: tuple[str, str, str, float] | None = None) -> list[str]:
        """Let time go on; what is said meanwhile.  `repeating`: a task writes a sign's line every so often."""
        said: list[str] = []
        until, spoke_at = self.now + seconds, self.now - 1e9
        while self.now < until:
            self.now += LOOK_S
            if repeating and self.now - spoke_at >= repeating[3]:
                self.sign(*repeating[:3])
                spoke_at = self.now
            for task in self.facts:
                self.used[task] += self.cpu[task] * LOOK_S
                self.waited[task] += self.waits[task] * LOOK_S
                self.moved[task] += self.rate[task] * LOOK_S
                message = Message("looked", {"tasks": {task: json.loads(json.dumps(self.look(task)))}}, b"")
                fields = check(message, FROM_AGENT).fields
                for rule in self.rules.values():
                    rule.looked(self.hosts[task], fields, self.now)
            for name, rule in self.rules.items():
                for host, type, asked in rule.questions(self.now):
                    if type == "dial":
                        results = [["no route", ""] for _ in asked["targets"]]
                        rule.answered(host, "dialled", {"results": results, "asker": name}, self.now)
                    elif type == "inspect":
                        inside = {task: self.inside[task] for task in asked["tasks"] if task in self.inside}
                        rule.answered(host, "inspected", {"tasks": inside, "asker": name}, self.now)
            explained: set[str] = set()
            for rule in self.rules.values():
                said += [sentence.text for sentence in rule.sentences(self.now, explained)]
                explained.update(rule.explains(self.now))
        return said

    def handed_on(self) -> None:
        """Another watchdog takes over, as for a detached run."""
        memory = json.loads(json.dumps({name: rule.memory() for name, rule in self.rules.items()}))
        self.rules = self.made()
        for name, rule in self.rules.items():
            rule.resume(memory[name])


ALL = ("ps/0", "chief/0", "worker/0", "worker/1")


# ---- healthy


def test_of_a_run_that_trains_nothing_is_said() -> None:
    run = Run(*ALL, stillness=True)
    run.train(*ALL)
    assert run.on(1800) == []


def test_a_start_of_50_s_and_the_pause_for_the_chief_are_no_fault() -> None:
    run = Run(*ALL, stillness=True)
    for task in ALL:
        run.see(task, listens=False, says="", log_bytes=0)
    assert run.on(20) == []
    run.see("ps/0")
    run.still("ps/0", "worker/0")
    run.see("worker/0", to=("ps/0",))
    assert run.on(30, ("worker/0", "not_initialized", NOT_READY, 30.0)) == []
    run.see("chief/0", to=("ps/0",))
    run.see("worker/1")
    assert run.on(30, ("worker/0", "not_initialized", NOT_READY, 30.0)) == []
    run.train(*ALL)
    run.cpu.update(dict.fromkeys(ALL, 0.9))
    run.rate.update(dict.fromkeys(ALL, 1e6))
    assert run.on(600) == []


def test_a_program_that_opens_no_port_is_left_alone() -> None:
    run = Run("worker/0", "worker/1", "worker/2")
    for task in run.facts:
        run.see(task, listens=False)
    assert run.on(900) == []
    run.see("worker/0", listens=False, listens_on=[6006, 8888])  # TensorBoard, a notebook
    run.still("worker/1")
    assert run.on(900) == []


def test_tasks_without_a_port_and_clients_that_never_listen_are_left_alone() -> None:
    run = Run("ps/0", "worker/0", "evaluator/0")
    run.see("worker/0", listens=False, to=("ps/0",))  # tf.Session("grpc://ps"): it needs no server
    run.still("evaluator/0")
    assert run.on(900) == []
    torch = Run("worker/0", "worker/1", ports=False)
    torch.see("worker/0", listens_on=[29500])
    torch.still("worker/1")
    assert torch.on(900) == []


def test_ports_and_calls_of_ones_own_are_fine_while_all_train() -> None:
    run = Run(*ALL, stillness=True)
    run.train(*ALL)
    run.see("ps/0", listens=False, listens_on=[2222])  # addresses of its own that fit
    run.see("worker/0", to=("ps/0",), calling=[["10.9.9.9", 443]])  # telemetry that nobody lets out
    assert run.on(900) == []


def test_an_early_end_is_no_fault_while_the_others_train() -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.on(60)
    run.end("worker/1")
    assert run.on(900) == []
    run.end("worker/0", 1)
    assert run.on(900) == []


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("silent", "its peers, called again at once: ps/0 on h0: silently dropped (a firewall?)"),
        ("no route", "its peers, called again at once: ps/0 on h0: no route (another network"),
        (
            "refused",
            "its peers, called again at once: ps/0 on h0: refused (it has just ended, or a firewall rejects)",
        ),
        ("open", "called again at once, ps/0 answered: something between these hosts cuts connections"),
    ],
)
def test_what_a_call_after_a_reset_has_shown(verdict: str, said: str) -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    assert run.on(60) == []
    facts = {"dialled": [["10.0.0.0", PORT, verdict], ["10.9.9.9", PORT, verdict]]}
    exit = TaskExit(TaskId.parse("worker/1"), "h2", 1, None, 60.0, facts=facts)
    why = run.rules["lost_peers"].why_ended(exit, run.now)
    assert why.startswith(f"a connection of worker/1 on h2 was reset; {said}")
    run.end("ps/0", 1)  # then that is the reason
    assert not run.rules["lost_peers"].why_ended(exit, run.now)
    assert not run.rules["lost_peers"].why_ended(dataclasses.replace(exit, facts={}), run.now)


# ---- strangers


def test_a_ps_with_a_port_of_its_own_is_named() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.see("ps/0", listens=False, listens_on=[2222, 6006])
    run.sign("ps/0", "server_started", STARTED % 2222)
    run.still("ps/0", "worker/0", "worker/1")
    run.see("worker/0", to=("worker/1",))
    run.see("worker/1", to=("worker/0",))
    [said] = run.on(300)
    assert said == (
        "ps/0 on h0 listens on 2222, not on 22001, its port in this run; worker/0, worker/1 wait: does the program take"
        " its cluster from --ps_hosts or TF_CONFIG, or has it addresses of its own?"
    )
    run.cpu.update({"worker/0": 0.9, "worker/1": 0.9})
    assert run.on(60) == ["worker/0, worker/1 go on"]


def test_a_program_with_addresses_of_its_own_gets_one_sentence() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    for number, task in enumerate(run.facts):
        run.see(task, listens=False, listens_on=[2222 + number])
    run.still(*run.facts)
    [said] = run.on(300, ("worker/0", "still_waiting", "CreateSession still waiting", 10.0))
    assert said.startswith(
        "ps/0 on h0 listens on 2222, not on 22001, its port in this run; worker/0, worker/1 do so, too"
    )


OF_MIRRORED = "I0000 00:00:1795714930.982340      12 grpc_server_lib.cc:467] Started server with target: grpc://%s:22001"


def test_a_program_whose_workers_are_in_another_order() -> None:
    run = Run("worker/0", "worker/1", "worker/2")
    for task, posed in (("worker/0", "10.0.0.1"), ("worker/1", "10.0.0.0"), ("worker/2", "10.0.0.2")):
        # Recorded: all call the leader of the program's own cluster, the leader itself, too.
        run.see(task, to=("worker/1",))
        run.sign(task, "server_started", OF_MIRRORED % posed)
    run.still("worker/0", "worker/1", "worker/2")
    [said] = run.on(70)
    assert said == (
        "worker/0 on h0 takes itself for worker/1 on h1 (its server is 10.0.0.1:22001), worker/1 for worker/0; worker/2"
        " waits: the program has another cluster than this run, its tasks in another order, or another index; let it"
        " take both, as they are, from TF_CONFIG or the cluster flags"
    )
    exit = TaskExit(TaskId.parse("worker/2"), "h2", 1, None, 1.0)
    assert (
        run.rules["strangers"].why_ended(exit, run.now).startswith("worker/0 on h0 takes itself for worker/1")
    )


def test_a_task_that_listens_on_the_port_of_another_on_its_host() -> None:
    run = Run("worker/0", "worker/1")
    run.places["worker/1"] = Place("h1", "10.0.0.1", 22002)
    run.rules = run.made()
    # Somebody on that host listens on each port: the other one.
    run.see("worker/0", listens=True, listens_on=[22002])
    run.see("worker/1", listens=True, listens_on=[22001])
    [said] = run.on(100)
    assert said.startswith(
        "worker/0 on h0 takes itself for worker/1 on h1 (its server is 10.0.0.1:22002), worker/1 for worker/0: the"
    )


@pytest.mark.parametrize("target", ["localhost:22001", "10.0.0.0:22001", "example.org:22001"])
def test_a_server_with_its_own_name_is_where_it_should_be(target: str) -> None:
    run = Run("worker/0", "worker/1")
    run.train("worker/0", "worker/1")
    run.sign("worker/0", "server_started", f"Started server with target: grpc://{target}")
    assert run.on(300) == []
    assert not run.rules["strangers"].why_ended(
        TaskExit(TaskId.parse("worker/0"), "h0", 1, None, 1.0), run.now
    )


@pytest.mark.parametrize(
    ("peer", "what"),
    [
        (
            ["10.0.0.99", 2222],
            "called 10.0.0.99:2222 for 60 s without an answer; no task of this run is there: does",
        ),
        (["169.254.169.254", 80], "that is a cloud's metadata server"),
        (["93.184.216.34", 443], "that is a web server"),
        (
            ["10.0.0.2", 53],
            "has waited 60 s for the name server 10.0.0.2, which does not answer: try `getent hosts",
        ),
        (["fd00::9", 2222], "called [fd00::9]:2222 for"),
    ],
)
def test_a_call_out_of_the_cluster_that_nobody_answers(peer: list[Any], what: str) -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.see("worker/1", to=("ps/0",), calling=[peer])
    run.still("worker/1")
    [said] = run.on(WAIT_S + 4 * LOOK_S)
    assert said.startswith("worker/1 on h2 has")
    assert what in said
    assert run.on(300) == []
    run.train("ps/0", "worker/0", "worker/1")
    run.cpu["worker/1"] = 0.9
    assert run.on(60) == ["worker/1 on h2 goes on"]


def test_a_server_that_an_earlier_run_has_left() -> None:
    run = Run("ps/0", "worker/0")
    run.train("ps/0", "worker/0")
    run.still("worker/0")
    run.peers["worker/0"] = [["10.0.0.77", 2222]]
    [said] = run.on(WAIT_S + 4 * LOOK_S)
    assert "it is connected to 10.0.0.77:2222, where no task of this run listens" in said


# ---- unready


def test_variables_that_the_chief_does_not_initialise() -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.see("chief/0", to=("ps/0",), says="opening the data", quiet_s=88.0)
    run.still("chief/0", "worker/1", "worker/0", "ps/0")
    [said] = run.on(150, ("worker/1", "not_initialized", NOT_READY, 30.0))
    assert said == (
        "worker/1 on h3 has waited 90 s for the variables, which chief/0 on h1 must initialise; chief/0 has done"
        ' nothing for 90 s (its last output was 88 s ago: "opening the data"): what does it do before its session?'
    )
    assert run.on(60) == ["worker/1 on h3 waits no longer for the variables"]


def test_a_chief_that_is_shut_busy_or_gone() -> None:
    for facts, cpu, what in (
        ({"listens": False, "log_bytes": 0}, 0.004, "chief/0 has not opened its port (no output yet)"),
        ({}, 0.7, "chief/0 uses 0.7 cores (its last output was 1 s ago"),
    ):
        run = Run(*ALL)
        run.train(*ALL)
        run.see("chief/0", **facts)
        run.cpu["chief/0"] = cpu
        said = run.on(110, ("worker/1", "not_initialized", NOT_READY, 30.0))
        assert [what in each for each in said if "variables" in each] == [True], said
    run = Run(*ALL)
    run.train(*ALL)
    run.on(30)
    run.end("chief/0")
    said = run.on(110, ("worker/1", "not_initialized", NOT_READY, 30.0))
    assert "chief/0 ended with 0: a worker that starts after" in said[0]


HARDLY = 'wants to run and hardly gets a processor (its last output was 1 s ago: "step 7")'


@pytest.mark.parametrize(
    ("cores", "waits", "held", "what"),
    [
        (0.004, 0.98, 0.0, f"{HARDLY}: what else computes on h1?"),
        (
            0.004,
            0.98,
            0.9,
            f"{HARDLY}: the quota of its cgroup, 0.02 cores, stops it in 90% of the time; raise its",
        ),
        (0.004, 0.3, 0.0, "has done nothing"),
        (3.9, 1.5, 0.0, "uses 3.9 cores"),
    ],
    ids=["crowded", "quota", "still", "more-threads-than-cores"],
)
def test_a_chief_on_a_crowded_host(cores: float, waits: float, held: float, what: str) -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.still("chief/0", "worker/1")
    run.cpu["chief/0"], run.waits["chief/0"], run.held["chief/0"] = cores, waits, held
    run.facts["chief/0"]["cores"] = 0.02
    said = run.on(150, ("worker/1", "not_initialized", NOT_READY, 30.0))
    [text] = [each for each in said if "waited 90 s for the variables" in each]
    assert f"chief/0 {what}" in text


def test_a_program_without_a_chief() -> None:
    run = Run("ps/0", "worker/0")
    run.train("ps/0", "worker/0")
    run.still("ps/0", "worker/0")
    [said] = run.on(110, ("worker/0", "not_initialized", NOT_READY, 30.0))
    assert "which no task initialises: one task must be the chief: is_chief=(task_index == 0)" in said


@pytest.mark.parametrize(
    ("cores", "waits", "port", "crowd"), [(0.004, 0.98, 0, 1), (0.004, 0.3, 1, 0), (3.9, 1.5, 1, 0)]
)
def test_a_worker_that_starts_late_on_a_crowded_host(
    cores: float, waits: float, port: int, crowd: int
) -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0")
    run.see("worker/1", listens=False)
    run.still("worker/0", "worker/1")
    run.cpu["worker/1"], run.waits["worker/1"] = cores, waits
    said = run.on(150)
    assert sum("worker/1 on h2 has not opened its port" in each for each in said) == port
    assert (
        sum(
            each.startswith("h2 has too few processors for worker/1 on h2: it had one for 0.2 s")
            for each in said
        )
        == crowd
    )
    assert len(said) == port + crowd


def test_that_a_port_is_shut_is_not_told_again_once_its_host_was_crowded() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0")
    run.see("worker/1", listens=False)
    run.still("worker/0", "worker/1")
    [said] = run.on(150)
    assert "worker/1 on h2 has not opened its port" in said
    run.waits["worker/1"] = 0.98
    assert [text for text in run.on(150) if "its port" in text] == []
    run.waits["worker/1"] = 0.0
    assert [text for text in run.on(150) if "its port" in text] == []
    run.train("ps/0", "worker/0", "worker/1")
    assert "worker/1 on h2 has opened its port" in run.on(30)


def test_a_worker_of_a_mirrored_strategy_that_starts_late() -> None:
    run = Run("worker/0", "worker/1", "worker/2")
    run.see("worker/0")
    run.see("worker/2", to=("worker/0",))
    run.see("worker/1", listens=False, quiet_s=58.0, says="reading the data")
    run.still("worker/0", "worker/2")
    [said] = run.on(WAIT_S + 4 * LOOK_S)
    assert said == (
        "worker/1 on h1 has not opened its port for 60 s (its last output was 58 s ago) and uses 0.9 cores; worker/0,"
        " worker/2 wait, maybe for it: see its log for what it does before its server starts (data, downloads, a"
        " look-up of a name)"
    )
    assert run.on(300) == []
    run.train("worker/0", "worker/1", "worker/2")
    assert run.on(60) == ["worker/1 on h1 has opened its port"]


def test_a_worker_that_nobody_waits_for_is_told_too() -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.see("worker/1", listens=False, log_bytes=0)
    run.still("worker/1")
    run.inside["worker/1"] = [
        {
            "pid": 4711,
            "name": "python3",
            "threads": [[4711, "python3", "S", "wait_for_partner", 1.0]],
            "stacks": [
                {"main": True, "frames": [["trainer.py", 12, "read"], ["trainer.py", 40, "<module>"]]}
            ],
            "why_none": "",
        }
    ]
    [said] = run.on(WAIT_S + 4 * LOOK_S)
    assert (
        "has not opened its port for 60 s (no output yet) and is at trainer.py:12 in read() and opens a FIFO that"
        " nobody has opened at its other end; no trainer stands still for it yet" in said
    )


def test_without_an_answer_it_is_told_without_a_place() -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.see("worker/1", listens=False, log_bytes=0)
    run.still("worker/1")
    assert run.on(WAIT_S + 2 * LOOK_S) == []
    [said] = run.on(30)
    assert "(no output yet) and does nothing; no trainer stands still for it yet" in said


def test_a_worker_that_prepares_its_data_while_nobody_waits_has_more_time() -> None:
    run = Run(*ALL)
    run.train(*ALL)
    run.see("worker/1", listens=False)
    assert run.on(115) == []
    [said] = run.on(30)
    assert "worker/1 on h3 has not opened its port for 12" in said
    assert "uses 0.9 cores" in said


def test_a_ps_that_workers_visibly_wait_for_is_told_once() -> None:
    run = Run("ps/0", "ps/1", "worker/0")
    run.train("ps/0", "worker/0")
    run.see("ps/1", listens=False)
    run.still("ps/0", "ps/1", "worker/0")
    said = run.on(400)
    assert [each for each in said if "ps/1" in each] == said
    assert len(said) == 1, said


# ---- lost peers


def test_the_survivor_of_synchronous_training() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.on(60)
    run.end("worker/1", None, 9)
    run.still("worker/0", "ps/0")
    [said] = run.on(WAIT_S + 4 * LOOK_S)
    assert said.startswith(
        "worker/0 on h1 has done nothing for 60 s, since worker/1 on h2 was ended by SIGKILL 6"
    )
    assert "--restarts" in said
    run.handed_on()
    assert run.on(300) == [], "the other watchdog knows what was told"


def test_a_shard_that_ends_early() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.on(60)
    run.end("worker/1")
    run.still("worker/0", "ps/0")
    [said] = run.on(300)
    assert "since worker/1 on h2 ended with 0" in said
    assert "enough data (repeat())" in said


def test_a_ps_that_is_gone() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.on(60)
    run.end("ps/0", None, 9)
    run.still("worker/0", "worker/1")
    [said] = run.on(300)
    assert said.startswith("worker/0, worker/1 have done nothing")
    assert "its variables are gone" in said


def test_a_peer_that_had_ended_long_before_its_host_was_lost() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.on(60)
    run.end("worker/1")
    assert run.on(600) == []
    for rule in run.rules.values():
        rule.lost("worker/1", run.now)
    run.still("worker/0", "ps/0")
    assert run.on(300) == [], "it does not stand still since then"


def test_who_trains_on_while_the_watchdogs_change_is_not_told() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.on(60)
    run.end("worker/1")
    run.still("worker/0", "ps/0")
    assert run.on(30) == []
    run.handed_on()
    run.now += 200  # until the next coordinator has taken over, it trained and paused again
    assert run.on(LOOK_S) == []
    run.cpu["worker/0"], run.rate["worker/0"] = 0.9, 1e6
    assert run.on(300) == []


def test_who_stood_still_before_does_not_wait_for_whom_has_ended_since() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.still("worker/0")
    run.on(50)
    run.end("worker/1")
    assert run.on(300) == []


def test_where_the_kernel_tells_no_bytes_nothing_is_guessed() -> None:
    run = Run("ps/0", "worker/0", "worker/1")
    run.train("ps/0", "worker/0", "worker/1")
    run.see("worker/0", to=("ps/0",), flows=None)
    run.on(60)
    assert list(run.rules["lost_peers"].blind()) == [
        "who waits for whom on h1: the kernel there does not tell how many bytes connections carry"
    ]
    run.end("worker/1")
    run.still("worker/0")
    assert run.on(300) == []


# ---- throttled


def test_a_task_that_is_throttled_is_not_stopped() -> None:
    run = Run("ps/0", "worker/0")
    run.train("ps/0", "worker/0")
    run.see("worker/0", to=("ps/0",), processes=[[4711, "python3", "T"]])  # always seen in its pause
    run.cpu["worker/0"] = 0.3
    assert run.on(300) == []
    run.cpu["worker/0"] = 0.0
    [said] = run.on(30)
    assert "worker/0 on h1 is stopped (state T): kill -CONT 4711" in said
