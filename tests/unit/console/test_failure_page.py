"""What is shown of errors and of how a run ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.endings import FAILED, FAILURES, PLAN
from tests.support.screen import PS0, W0, W1, Reader, on_terminal, pipe, plain, shown, terminal
from tflaunch.console.opening import open_reporter
from tflaunch.documents.log_tail import tail_lines
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.errors import (
    ConnectError,
    ConnectErrors,
    HostfileError,
    LaunchError,
    PlanError,
    Problem,
)
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import GpuLeft, HostLost, Outcome, TaskExit


def test_hosts_with_one_cause_are_one_row_and_the_remedy_names_the_first() -> None:
    _, err = shown(lambda reporter: reporter.error(FAILURES))
    assert err.splitlines() == [
        "✗ 3 of 64 hosts could not be used",
        "  gpu[03-04]  the host key is unknown",
        "              → ssh-keyscan gpu03 >> known_hosts",
        "  gpu09       no answer within 10 s",
    ]
    _, err = shown(lambda reporter: reporter.failures(LaunchError({"a": "disk\x1b[2J full"}, "make room")))
    assert err.splitlines() == [
        "✗ 1 host could not start its tasks; nothing is left running",
        "  a  disk full",
        "  → make room",
    ]


def test_a_long_list_of_hosts_breaks_between_two_of_them() -> None:
    names = ("login.cluster.example.org", "gpu1.example.org", "gpu3.example.org", "x")
    errors = ConnectErrors({name: ConnectError("no") for name in names}, 9)
    rows = shown(lambda reporter: reporter.failures(errors))[1].splitlines()[1:]
    assert rows == ["  login.cluster.example.org,  no", "  gpu[1,3].example.org,x"]


def test_rows_of_one_size_stay_in_their_order() -> None:
    errors = ConnectErrors({"b": ConnectError("one"), "c": ConnectError("two"), "a": ConnectError("one")}, 9)
    errors.failures["d"] = ConnectError("two")
    rows = shown(lambda reporter: reporter.failures(errors))[1].splitlines()[1:]
    assert rows == ["  b,a  one", "  c,d  two"]


def test_the_only_host_is_not_1_of_1_hosts() -> None:
    err = shown(lambda reporter: reporter.failures(ConnectErrors({"a": ConnectError("no")}, 1)))[1]
    assert err == "✗ the only host could not be used\n  a  no\n"


def test_hosts_that_could_not_be_told_to_stop_are_not_called_clean() -> None:
    error = LaunchError({"a": "disk full"}, "make room", {"gpu2": "no answer", "gpu1": "no answer"})
    assert shown(lambda reporter: reporter.error(error))[1].splitlines() == [
        "✗ 1 host could not start its tasks",
        "  a  disk full",
        "! gpu[1-2]: could not check that nothing is left: no answer",
        "  → make room",
    ]
    event = json.loads(shown(lambda reporter: reporter.error(error), json=True)[0])
    assert event["message"] == "1 host could not start its tasks"
    assert event["unconfirmed"] == {"gpu2": "no answer", "gpu1": "no answer"}
    assert (error.exit_code, LaunchError({"a": "disk full"}).exit_code) == (76, 70)


def test_a_file_full_of_problems_does_not_fill_the_screen() -> None:
    problems = [Problem("hosts.yaml", line, 1, "bad") for line in range(1, 50)]
    err = shown(lambda reporter: reporter.error(HostfileError(problems)))[1].splitlines()
    assert err[0] == "✗ 49 problems in the hosts; nothing was contacted"
    assert err[1:] == [f"  hosts.yaml:{line}:1: bad" for line in range(1, 21)] + ["  and 29 more"]
    told = json.loads(shown(lambda reporter: reporter.error(HostfileError(problems)), json=True)[0])
    assert len(told["problems"]) == 49


def test_every_problem_of_a_hostfile_is_shown() -> None:
    problems = [Problem("hosts.yaml", 3, 5, "unknown key 'prot'"), Problem("<inline>", 0, 0, "no hosts")]
    _, err = shown(lambda reporter: reporter.error(HostfileError(problems, "see `tflaunch schema`")))
    assert err.splitlines() == [
        "✗ 2 problems in the hosts; nothing was contacted",
        "  hosts.yaml:3:5: unknown key 'prot'",
        "  <inline>: no hosts",
        "  → see `tflaunch schema`",
    ]


def test_the_report_tells_the_first_failure_first() -> None:
    _, err = shown(lambda reporter: reporter.report(FAILED))
    lines = err.splitlines()
    assert lines[0] == "✗ worker/1 on gpu02 was killed by SIGKILL after 12 s; its last lines:"
    assert lines[1:31] == [f"  │ line {number}" for number in range(20, 50)]
    assert lines[31:] == [
        "  its whole log: /state/trainer-abc234/logs/worker-1.log",
        "  and on gpu02: /var/tmp/run/logs/worker-1.log",
        "  → the kernel may have killed it when memory ran out: ssh gpu02 'dmesg -T | grep -i oom' shows whether",
        "✗ then worker/0 exited with code 1",
        "✗ gpu02: still alive: pid 12 python (D)",
        "! gpu[07-08]: could not check that nothing is left: no connection",
        "  → tflaunch stop trainer-abc234",
        "✗ trainer-abc234 failed after 1 min 15 s, exit code 137 (of worker/1)",
        "  logs: /state/trainer-abc234/logs",
    ]


def test_gpus_that_are_not_free_again_are_in_the_report() -> None:
    stuck = GpuLeft("GPU 0 is still in use by this run's pid 12 (D: waits in the kernel)", own=True)
    foreign = GpuLeft("GPU 3 is still in use by pid 4 of eve, notebook", own=False)
    outcome = Outcome("r-1", "succeeded", 76, 3.0, gpus={"gpu01": (stuck,), "gpu02": (foreign,)})
    assert shown(lambda reporter: reporter.report(outcome))[1].splitlines() == [
        f"✗ gpu01: {stuck.text}",
        f"! gpu02: {foreign.text}",
        "  → look again: tflaunch gpus; on the host: nvidia-smi",
        "✓ r-1 succeeded: 0 tasks in 3.0 s, exit code 76",
    ]
    told = json.loads(shown(lambda reporter: reporter.report(outcome), json=True)[0])
    assert told["gpus"]["gpu01"] == [{"text": stuck.text, "own": True}]


def failing(lines: int, others: int = 0) -> Callable[[Reporter], None]:
    """A task that writes so many lines and fails, while another writes `others` lines."""
    tail = b"".join(b"step %d\n" % number for number in range(lines))
    first = TaskExit(W1, "gpu02", 1, None, 1.1, tail)

    def act(reporter: Reporter) -> None:
        reporter.phase("training", 0, 2)
        reporter.log(W1, "gpu02", 0, tail)
        reporter.exited(first)
        reporter.exited(TaskExit(W0, "gpu01", 2, None, 1.2))
        reporter.log(W0, "gpu01", 0, b"working\n" * others)
        exits = {W1: first, W0: TaskExit(W0, "gpu01", 2, None, 1.2)}
        logs = {W1: "/run/logs/worker-1.log"}
        reporter.report(Outcome("r-1", "failed", 1, 2.0, exits, first, {}, {}, "/state/r-1", logs))

    return act


def test_what_stands_on_the_screen_already_is_not_repeated() -> None:
    assert plain(on_terminal(failing(40))) == [
        "training 2 tasks",
        *(f"worker/1 │ step {number}" for number in range(40)),
        "✗ worker/1 on gpu02 exited with code 1 after 1.1 s",
        "✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1; nothing is left running",
        "  its whole log: /state/r-1/logs/worker-1.log",
        "  and on gpu02: /run/logs/worker-1.log",
        "✗ then worker/0 exited with code 2",
    ]
    assert plain(on_terminal(failing(0)))[1:4] == [
        "✗ worker/1 on gpu02 exited with code 1 after 1.1 s",
        "✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1; nothing is left running",
        "  it wrote nothing",
    ]


TAIL_OF_40 = [f"  │ step {number}" for number in range(10, 40)]


@pytest.mark.parametrize("options", [{"quiet": True}, {"only": {W0}}])
def test_what_was_not_shown_is_in_the_report(options: dict[str, Any]) -> None:
    lines = plain(on_terminal(failing(40), **options))
    first = lines.index("✗ worker/1 on gpu02 exited with code 1 after 1.1 s; its last lines:")
    assert lines[first + 1 : first + 31] == TAIL_OF_40
    assert lines[first + 31] == "  its whole log: /state/r-1/logs/worker-1.log"


def test_what_scrolled_away_or_went_elsewhere_is_in_the_report() -> None:
    lines = plain(on_terminal(failing(40, others=100)))  # of 40 rows
    assert lines[-35:-5] == TAIL_OF_40
    assert "  │ " not in "\n".join(plain(on_terminal(failing(40, others=12))))
    assert lines[-5:-3] == plain(on_terminal(failing(40)))[-3:-1]
    err = shown(failing(40))[1].splitlines()
    assert err[2:33] == ["✗ worker/1 on gpu02 exited with code 1 after 1.1 s; its last lines:", *TAIL_OF_40]
    assert err[-1] == "  logs: /state/r-1/logs"
    reading, out = pipe()  # `tflaunch run ... > train.log`
    ours, theirs = terminal()
    screen = Reader(ours)
    reporter = open_reporter(stdout=out, stderr=theirs)
    failing(40)(reporter)
    reporter.close()
    out.close()
    theirs.close()
    assert reading.text().count("step") == 40
    assert [line for line in plain(screen.text()) if "│" in line] == TAIL_OF_40


def test_lines_of_a_progress_bar_and_of_colour_are_known_again() -> None:
    tail = b"\x1b[31mred\x1b[0m\n1%\r50%\r100%\nlast"
    first = TaskExit(W1, "gpu02", 1, None, 1.1, tail)

    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, tail)
        reporter.log_end(W1)
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: first}, first))

    lines = plain(on_terminal(act))
    assert lines[-1].startswith("✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1")
    assert sum("red" in line for line in lines) == 1


def test_later_failures_are_one_line() -> None:
    first = TaskExit(W0, "a", 1, None, 1.0, b"x\n")
    later = [TaskExit(TaskId("worker", index), "a", 1, None, 2.0) for index in range(1, 20)]

    def act(reporter: Reporter) -> None:
        for exit in (first, *later, TaskExit(PS0, "a", 0, None, 3.0)):
            reporter.exited(exit)
        exits = {exit.task: exit for exit in (first, *later)}
        reporter.report(Outcome("r-1", "failed", 1, 2.0, exits, first))

    err = shown(act)[1].splitlines()
    assert [line for line in err if "exited" in line] == [
        "✗ worker/0 on a exited with code 1 after 1.0 s",
        "✗ worker/0 on a exited with code 1 after 1.0 s; its last lines:",
        f"✗ then {', '.join(f'worker/{index}' for index in range(1, 9))} … (19 in all) exited with code 1",
    ]


@pytest.mark.parametrize(
    ("tail", "module"),
    [
        (b"Traceback ...\nModuleNotFoundError: No module named 'tensorflow'\n", "tensorflow"),
        (b"ModuleNotFoundError: No module named 'a.b'", "a.b"),
        (b"/usr/bin/python3: No module named trainer\n", "trainer"),
        (
            b"/usr/bin/python3: Error while finding module specification for 'a.b' "
            b"(ModuleNotFoundError: No module named 'a')\n",
            "a",
        ),
        (b"we have No module named 'x' but go on\n", None),
    ],
)
def test_a_missing_module_has_a_next_step(tail: bytes, module: str | None) -> None:
    first = TaskExit(W0, "gpu01", 1, None, 1.0, tail)

    def act(reporter: Reporter) -> None:
        reporter.plan(PLAN, brief=True)
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W0: first}, first))

    hints = [line for line in shown(act)[1].splitlines() if "→" in line]
    expected = (
        f"python on gpu01 has no {module}: name another Python by `python:`, `venv:` or `conda:` in the "
    )
    assert [hint.startswith(f"  → {expected}") for hint in hints] == ([True] if module else [])
    report = json.loads(shown(act, json=True)[0].splitlines()[-1])
    assert report["hint"].startswith(expected) if module else report["hint"] == ""


def test_a_signal_has_the_name_that_its_host_gives_it() -> None:
    def report(**named: Any) -> str:
        first = TaskExit(W0, "mac", None, 10, 1.0, **named)  # SIGBUS there, SIGUSR1 here
        return shown(lambda reporter: reporter.exited(first))[1]

    assert "was killed by SIGBUS" in report(signal_name="SIGBUS")
    assert f"was killed by {signal.Signals(10).name}" in report()


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome("r-1", "succeeded", 0, 3.0), "✓ r-1 succeeded: 0 tasks in 3.0 s; nothing is left running"),
        (
            Outcome("r-1", "interrupted", 130, 3.0),
            "! r-1 stopped by Ctrl-C after 3.0 s; nothing is left running",
        ),
        (
            Outcome("r-1", "interrupted", 143, 3.0),
            "! r-1 stopped by SIGTERM or `tflaunch stop` after 3.0 s; nothing is left running",
        ),
        (
            Outcome("r-1", "failed", 76, 3.0, first_failure=HostLost("gpu01", "no heartbeat for 60 s")),
            "✗ gpu01 was lost\n  no heartbeat for 60 s\n"
            "✗ r-1 failed after 3.0 s, exit code 76; nothing is left running",
        ),
    ],
)
def test_the_other_ways_to_end(outcome: Outcome, line: str) -> None:
    assert shown(lambda reporter: reporter.report(outcome))[1] == line + "\n"


def test_long_lines_are_left_for_the_terminal_to_wrap_where_they_are_copied_from() -> None:
    path = "/state/" + "x" * 150
    screen = on_terminal(
        lambda reporter: reporter.report(Outcome("r-1", "succeeded", 0, 3.0, record=path)), columns=60
    )
    assert f"{path}/logs" in screen


def test_a_hint_breaks_between_words_only() -> None:
    hint = "write more of the id, or name the hosts by --hosts hosts.yaml, or both: tflaunch ps --hosts hosts.yaml"
    lines = plain(on_terminal(lambda reporter: reporter.error(PlanError("no", hint)), columns=60))
    assert " ".join(" ".join(lines).split()) == f"✗ no → {hint}"
    assert max(map(len, lines)) <= 60


def test_what_is_not_quoted_of_a_log() -> None:
    log = (ROOT / "tests/unit/ends/logs/keras_per_replica.log").read_bytes()
    lines = tail_lines(log)
    at = lines.index("  0: <tf.Tensor: shape=(32, 784), dtype=float32, numpy=")
    assert lines[at + 2 : at + 4] == [
        "… 11 lines of numbers",
        "        0.2786842 ]], shape=(32, 784), dtype=float32)>",
    ]
    start = (
        "I0000 00:00:1795262334.973198   20749 port.cc:153] oneDNN custom operations are on. You may see\n"
    )
    assert tail_lines(f"{start}ValueError: x\n{start}".encode()) == ["ValueError: x"]
    assert tail_lines(start.encode()) == [start.rstrip("\n")]  # it wrote nothing else
    few = "step 1\n 0.5\n 0.25\n[1, 2]\nstep 2\n"
    assert tail_lines(few.encode()) == few.split("\n")[:-1]
