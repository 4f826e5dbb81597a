"""The watchdog of a run as its drive has it: what is asked, what is said, and how a limit ends the run."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tflaunch.diagnosis.rule import Rule, Sentence, Stop
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.lifecycle.states import State
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.dialling import SILENT
from tflaunch.protocol.events import Event
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import FROM_PEER, TO_AGENT, check
from tflaunch.protocol.outcome import EndedByRule, TaskExit, TimedOut, outcome_data, outcome_from
from tflaunch.protocol.wire import Message

PS, WORKER = TaskId("ps", 0), TaskId("worker", 0)
PLACES = {"ps/0": ("gpu01", "10.0.0.1", 2222), "worker/0": ("gpu02", "10.0.0.2", 2222)}
LOOK: dict[str, Any] = {
    "listens": True,
    "connected": [],
    "calling": [],
    "processes": [[1, "python3", "S"]],
    "waits_in": "",
    "cpu_s": 1.0,
    "quiet_s": 1.0,
    "log_bytes": 10,
    "says": "step 7",
}


class Scribe:
    """Writes down what the drive wants done."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.said: list[str] = []
        self.warned: list[str] = []
        self.slow: list[str] = []

    def send(self, host: str, type: str, **fields: Any) -> None:
        self.sent.append((host, type, fields))

    def say(self, text: str, urgent: bool) -> None:  # noqa: ARG002
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def slowed(self, text: str) -> None:
        self.slow.append(text)

    def happened(self, event: Event) -> None: ...
    def dial(self, host: str) -> None: ...
    def hang_up(self, host: str) -> None: ...
    def answers(self, host: str) -> bool: ...
    def watch(self, host: str, after: int) -> None: ...
    def unreachable(self, host: str, reason: str) -> None: ...
    def back(self, host: str, away_s: float) -> None: ...


class Run:
    """A run of two hosts; both answer at once to what they are asked."""

    def __init__(self, up: bool = True, **limits_s: float) -> None:
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.scribe = Scribe()
        # As the coordinator of a detached run gets it: through JSON.
        data = json.loads(json.dumps(Watchdog(PLACES, {}, limits_s, {}).data()))
        watchdog = Watchdog(**data)
        watchdog.begin(1000.0)
        self.watchdog = watchdog
        self.now = 1000.0
        state = State({PS: "gpu01", WORKER: "gpu02"})
        self.drive = Driver(state, self.scribe, 60.0, self.now, up=up, monitor=watchdog)
        self.looks = {"gpu01": {"ps/0": dict(LOOK)}, "gpu02": {"worker/0": dict(LOOK)}}

    def on(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = max(self.now + 0.01, min(self.drive.wake_at(self.now), until))
            self.drive.tick(self.now)
            for host in ("gpu01", "gpu02"):
                self.drive.said(host, "beat", {}, b"", self.now)
            sent, self.scribe.sent = self.scribe.sent, []
            self.told += sent
            for host, type, fields in sent:
                if type == "look":
                    self.drive.said(host, "looked", {"tasks": self.looks[host]}, b"", self.now)
                elif type == "dial":
                    results = [[SILENT, ""]] * len(fields["targets"])
                    self.drive.said(
                        host,
                        "dialled",
                        {"results": results, "addresses": {}, "asker": fields["asker"]},
                        b"",
                        self.now,
                    )
                else:
                    self.scribe.sent.append((host, type, fields))


def test_the_agents_are_asked_and_who_waits_is_said() -> None:
    run = Run()
    run.looks["gpu02"]["worker/0"]["calling"] = [["10.0.0.1", 2222]]
    run.on(Thresholds.wait_s + 3 * Thresholds.look_s)
    [warned] = run.scribe.warned
    assert warned.startswith("worker/0 on gpu02 has waited 6")
    assert warned.endswith("for ps/0 at 10.0.0.1:2222: silently dropped (a firewall?)")
    run.looks["gpu02"]["worker/0"].update(calling=[], connected=[["10.0.0.1", 2222]])
    run.on(2 * Thresholds.look_s)
    assert run.scribe.said == ["worker/0 on gpu02 waits no longer for ps/0"]
    assert run.drive.state.phase == "running"


def test_a_limit_ends_the_run_with_stacks_and_124() -> None:
    run = Run(stall_s=30.0)
    for look in (run.looks["gpu01"]["ps/0"], run.looks["gpu02"]["worker/0"]):
        look["quiet_s"] = 100.0
    run.on(35)
    ends = {host: fields for host, type, fields in run.scribe.sent if type == "end"}
    assert ends.keys() == {"gpu01", "gpu02"}
    assert all(fields["stacks"] for fields in ends.values())
    state = run.drive.state
    assert state.phase == "ending"
    failure = state.first_failure
    assert isinstance(failure, TimedOut)
    assert failure.tasks == (PS, WORKER)
    outcome = outcome_of(state, "run", 60.0)
    assert outcome.exit_code == 124
    told = json.loads(json.dumps(outcome_data(outcome)))
    assert outcome_from("run", told, {}).first_failure == failure


class Strict(Rule):
    """Ends the run."""

    def stop(self, now: float) -> Stop | None:
        return Stop("worker/0 uses no GPU (--require-gpu)", ("worker/0",), 65) if now >= 1020.0 else None


def test_a_rule_ends_the_run() -> None:
    run = Run(timeout_s=60.0)
    run.watchdog.rules["strict"] = Strict()
    run.on(15)
    assert run.drive.state.phase == "running"
    run.on(10)
    state = run.drive.state
    assert state.phase == "ending"
    assert state.first_failure == EndedByRule("worker/0 uses no GPU (--require-gpu)", (WORKER,), 65)
    assert run.scribe.said == [
        "worker/0 uses no GPU (--require-gpu): stopping the 2 tasks left, 10 s to end by themselves"
    ]
    outcome = outcome_of(state, "run", 60.0)
    assert (outcome.status, outcome.exit_code) == ("failed", 65)
    told = json.loads(json.dumps(outcome_data(outcome)))
    assert outcome_from("run", told, {}).first_failure == state.first_failure
    # A tflaunch that does not know such an end takes it for a time limit, and shows the reason.
    del told["first_failure"]["exit_code"]
    failure = outcome_from("run", told, {}).first_failure
    assert failure == TimedOut("worker/0 uses no GPU (--require-gpu)", (WORKER,))


def held(run: Run) -> list[tuple[str, tuple[str, ...]]]:
    """The sentences that the hosts were told since the last time of what holds, each once."""
    told = dict.fromkeys(
        (host, tuple(fields["sentences"])) for host, type, fields in run.told if type == "holds"
    )
    run.told.clear()
    return list(told)


def test_the_hosts_keep_what_holds() -> None:
    run = Run()
    run.on(30)
    held(run)
    run.looks["gpu02"]["worker/0"]["processes"] = [[7, "python3", "T"]]
    run.on(30)
    (text,) = run.scribe.warned
    assert [("gpu01", (text,)), ("gpu02", (text,))] == [each for each in held(run) if each[1]]
    run.drive.attached("gpu02", run.now)  # it may have missed it
    run.on(10)
    assert ("gpu02", (text,)) in held(run)
    run.looks["gpu02"]["worker/0"]["processes"] = [[7, "python3", "S"]]
    run.on(30)
    assert [host for host, sentences in held(run) if not sentences] == ["gpu01", "gpu02"]


class Wordy(Rule):
    """Quotes what a host says of its stacks, where a file and a function may have 64 kB each."""

    def sentences(self, now: float, explained: object) -> list[Sentence]:  # noqa: ARG002
        return [Sentence("x" * 200_000, False)]

    def holds(self) -> list[str]:
        return ["x" * 200_000]

    def stop(self, now: float) -> Stop | None:
        return Stop("x" * 200_000, ("worker/0",), 65) if now >= 1020.0 else None


def test_no_sentence_is_longer_than_the_agents_of_other_hosts_take() -> None:
    run = Run()
    run.watchdog.rules["wordy"] = Wordy()
    run.on(15)
    assert any(text for _, texts in held(run) for text in texts)
    run.on(10)
    assert run.drive.state.first_failure is not None
    data = outcome_data(outcome_of(run.drive.state, "run", 60.0))
    check(Message("outcome", {"outcome": json.loads(json.dumps(data))}), FROM_PEER)
    assert run.scribe.warned
    for text in (*run.scribe.warned, *run.scribe.said):
        check(Message("said", {"text": text}), TO_AGENT)
    for _, type, fields in run.told:
        check(Message(type, dict(fields)), TO_AGENT)


class Slow(Rule):
    """Says once that the run is slow."""

    said = False

    def sentences(self, now: float, explained: object) -> list[Sentence]:  # noqa: ARG002
        before, self.said = self.said, True
        return [] if before else [Sentence("worker/0 waits for its input", False, slows=True)]


def test_what_makes_a_run_slow_is_told_apart() -> None:
    run = Run()
    run.watchdog.rules["slow"] = Slow()
    run.on(10)
    assert run.scribe.slow == ["worker/0 waits for its input"]
    assert not run.scribe.warned


def test_one_that_takes_over_tells_all_hosts_anew() -> None:
    run = Run(up=False)
    for host in ("gpu01", "gpu02"):
        run.drive.attached(host, run.now)
    run.on(10)
    assert held(run) == [("gpu01", ()), ("gpu02", ())]


def test_a_limit_does_not_wait_for_a_lost_host() -> None:
    run = Run(stall_s=30.0)
    run.drive.state = dataclasses.replace(run.drive.state, ends={"ps": "sidecar"})
    run.looks["gpu02"]["worker/0"]["quiet_s"] = 100.0
    run.drive.dead("gpu01", "its agent is gone", run.now)
    run.on(40)
    failure = run.drive.state.first_failure
    assert isinstance(failure, TimedOut)
    assert failure.tasks == (WORKER,)


def test_a_run_that_ends_is_not_watched_over() -> None:
    run = Run(timeout_s=10.0)
    run.on(11)
    assert run.drive.state.phase == "ending"
    run.scribe.sent.clear()
    run.drive.tick(run.now + 5 * Thresholds.look_s)
    assert not [type for _, type, _ in run.scribe.sent if type in ("look", "dial")]


def test_one_that_takes_over_counts_from_the_start() -> None:
    watchdog = Watchdog(PLACES, {}, {"timeout_s": 100.0}, {})
    watchdog.begin(5.0 - 90.0)
    assert watchdog.next_event(14.0) is None
    assert watchdog.next_event(15.0) is not None


def test_a_success_that_is_none_is_told() -> None:
    watchdog = Watchdog(PLACES, {}, {}, {})
    exit = TaskExit(WORKER, "gpu02", 0, None, 0.4, facts={"left_running": ["pid 4711 python (S)"]})
    [why] = watchdog.happened(exit, 1001.0)
    assert why.startswith(
        "worker/0 on gpu02 ended with 0 after 0.4 s, and its program goes on in the background (pid 4711 python (S))"
    )
    exit = dataclasses.replace(exit, facts={"nothing_left": [1000, "--train_steps 1000"]})
    assert watchdog.happened(exit, 1002.0) == [
        "worker/0 on gpu02 has trained nothing: its checkpoint is at step 1000, and --train_steps 1000 is the last one;"
        " a larger number trains on, another directory begins anew"
    ]
    exit = dataclasses.replace(exit, facts={"nothing_left": [5, "--epochs 5"]})
    assert (
        "its checkpoint is at epoch 5, and --epochs 5 is the last one" in watchdog.happened(exit, 1003.0)[0]
    )
    assert not watchdog.happened(dataclasses.replace(exit, facts={}), 1004.0)


def test_the_tasks_are_warned_of_the_limit_once() -> None:
    run = Run(timeout_s=60.0, warn_s=20.0)
    run.on(39.0)
    assert not [sent for sent in run.told if sent[1] == "signal"]
    run.on(15.0)
    signals = [sent for sent in run.scribe.sent if sent[1] == "signal"]
    assert signals == [
        ("gpu01", "signal", {"tasks": {"ps/0": 0}}),
        ("gpu02", "signal", {"tasks": {"worker/0": 0}}),
    ]
    for _, type, fields in signals:
        check(Message(type, fields), TO_AGENT)
    assert [text for text in run.scribe.said if "SIGUSR1" in text] == [
        "20 s before the time limit: 2 tasks got SIGUSR1 (--warn-before)"
    ]
    assert run.drive.state.phase == "running"
    run.on(10.0)
    assert isinstance(run.drive.state.first_failure, TimedOut)
