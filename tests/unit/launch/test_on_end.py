"""--on-end: which command is called, when, with which variables; the shell is a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import until
from tflaunch.launch import on_end
from tflaunch.launch.on_end import OnEnd
from tflaunch.protocol.errors import StopError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit

NAMES = ("RUN", "STATUS", "EXIT_CODE", "FAILURE", "SECONDS", "COMMAND")
LINE = ("tflaunch", "run", "hosts.yaml", "my train.py")
WORKER = TaskId("worker", 1)


class Reporter:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def report(self, outcome: Outcome) -> None:
        self.told.append(outcome)

    def error(self, error: StopError) -> None:
        self.told.append(error)

    def handed_over(self, *told: Any) -> None:
        self.told.append(told)

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    return tmp_path / "heard"


def made(heard: Path) -> OnEnd:
    values = "".join(f"$TFLAUNCH_{name}|" for name in NAMES)
    return OnEnd(f'printf "%s\\n" "{values}" >> "{heard}"')


def failed(first: Any) -> Outcome:
    return Outcome("mnist-a3k2xq", "failed", 7, 12.34, {}, first)


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        (Outcome("mnist-a3k2xq", "succeeded", 0, 12.34), 0, "succeeded|0||12.3|"),
        (Outcome("mnist-a3k2xq", "succeeded", 0, 12.34), 74, "failed|74||12.3|"),  # not all was fetched
        (Outcome("mnist-a3k2xq", "interrupted", 130, 12.34), 130, "interrupted|130||12.3|"),
        (
            failed(TaskExit(WORKER, "gpu02", 7, None, 3.0)),
            7,
            "failed|7|worker/1 on gpu02 exited with code 7|12.3|",
        ),
        (failed(HostLost("gpu02", "cut\nhere")), 76, r"failed|76|gpu02 is lost: cut\nhere|12.3|"),
    ],
)
def test_a_run_that_is_over(heard: Path, outcome: Outcome, code: int, expected: str) -> None:
    called, reporter = made(heard), Reporter()
    shown = called.begin("mnist-a3k2xq", LINE, reporter)
    shown.note("as before")
    shown.report(outcome)
    called.call(code)
    assert reporter.told == ["as before", outcome]
    assert heard.read_text() == f"mnist-a3k2xq|{expected}tflaunch run hosts.yaml 'my train.py'|\n"


def test_a_run_that_could_not_start(heard: Path) -> None:
    called = made(heard)
    called.begin("mnist-a3k2xq", LINE, Reporter()).error(StopError("no host can be used", ""))
    called.call(69)
    assert heard.read_text().startswith("mnist-a3k2xq|failed|69|no host can be used||")


def test_a_host_cannot_say_so_much_that_the_command_is_not_called(heard: Path) -> None:
    called = made(heard)
    lost = failed(HostLost("gpu02", "\N{WARNING SIGN}" * 65536))
    called.begin("mnist-a3k2xq", ["tflaunch", "run", *["x" * 1000] * 200], Reporter()).report(lost)
    called.call(76)
    assert heard.read_text().startswith("mnist-a3k2xq|failed|76|gpu02 is lost: \N{WARNING SIGN}")


def test_what_is_not_the_end_of_a_run(heard: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made(heard).call(2)  # no run began
    handed_over = made(heard)
    handed_over.begin("mnist-a3k2xq", LINE, Reporter()).handed_over("mnist-a3k2xq", 2, "gpu01")
    handed_over.call(0)
    assert not heard.exists()
    assert (
        capfd.readouterr().err == "tflaunch: --on-end is not called: the run goes on without this command\n"
    )


def test_a_run_that_may_go_on(heard: Path, capfd: pytest.CaptureFixture[str]) -> None:
    in_doubt = StopError("gpu01 has not confirmed that it coordinates the run", "")
    in_doubt.may_go_on = True
    called = made(heard)
    called.begin("mnist-a3k2xq", LINE, Reporter()).error(in_doubt)
    called.call(76)
    assert not heard.exists()
    assert "not called: the run may go on" in capfd.readouterr().err


def test_a_sweep_in_which_nothing_was_left_to_do(heard: Path) -> None:
    called = made(heard)
    called.begin("sweep-a3k2xq", LINE, Reporter())
    called.call(0)
    assert heard.read_text().startswith("sweep-a3k2xq|succeeded|0||")


def test_without_a_command_the_reporter_is_left_alone() -> None:
    reporter = Reporter()
    assert OnEnd("").begin("mnist-a3k2xq", LINE, reporter) is reporter


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 4", "it ended with exit code 4"),
        ("kill -TERM $$", "it was killed by SIGTERM"),
        ("kill -40 $$", "it was killed by signal 40"),
        ("sleep 600 & wait", "killed, since it did not end within 0 s"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_what_is_wrong_with_the_command_is_told(
    command: str, why: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_end, "LIMIT_S", 0.3)
    called = OnEnd(command)
    called.begin("mnist-a3k2xq", LINE, Reporter()).report(failed(None))
    called.call(7)
    assert capfd.readouterr().err.endswith(f": {why}\n")


def test_what_the_command_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    called = OnEnd("echo told; echo wrong >&2")
    called.begin("mnist-a3k2xq", LINE, Reporter()).report(failed(None))
    called.call(7)
    assert capfd.readouterr() == ("", "told\nwrong\n")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """It raises KeyboardInterrupt; a test in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_the_command_is_started(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(on_end.subprocess, "Popen", Interrupted)
    called = OnEnd("sleep 600")
    called.begin("mnist-a3k2xq", LINE, Reporter()).report(failed(None))
    called.call(7)
    assert capfd.readouterr().err.endswith("killed by Ctrl-C\n")
    assert not _alive(started[0])


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_command_and_all_that_it_has_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    called = OnEnd(f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    called.begin("mnist-a3k2xq", LINE, Reporter()).report(failed(None))

    def interrupt() -> None:
        until(pid.exists, "the command")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    called.call(7)
    thread.join()
    assert capfd.readouterr().err.endswith("killed by Ctrl-C\n")
    until(lambda: not _alive(int(pid.read_text())), "all of it to be gone")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
