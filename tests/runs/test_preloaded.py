"""A command that tests fork from a process that has imported tflaunch does what one does that Python starts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tests.support.preloaded import Preloaded


@pytest.fixture(autouse=True)
def _preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFLAUNCH_PRELOADED", raising=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "--help"), 0),
        (("runn",), 2),
        (("run", "none.yaml", "ü\udce9.py"), 2),
        (("run", "--dry-run", "x[1-2]", "t.py", "--ps=0", "--workers=2", "--local"), 2),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_it_says_and_ends_as_a_new_process_does(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    with launcher.start(*words) as forked:
        assert isinstance(forked.process, Preloaded)
        one = forked.done()
    monkeypatch.setenv("TFLAUNCH_PRELOADED", "0")
    with launcher.start(*words) as started:
        assert not isinstance(started.process, Preloaded)
        assert started.done() == one
    assert one.code == code, one


def test_a_signal_ends_it_and_its_session_is_its_own(launcher: Launcher) -> None:
    forever = launcher.script("import signal; signal.pause()")
    with launcher.start("run", launcher.local(1), forever, "--ps=0", "--workers=1") as running:
        running.wait_for("training")
        stat = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
        assert stat[3] == str(running.process.pid), "its session"
        assert running.process.poll() is None
        running.signal(signal.SIGTERM)
        assert running.end() == 143
        running.process.kill()
        assert running.process.poll() == 143


def test_a_variable_that_python_reads_at_its_start_needs_a_new_process(launcher: Launcher) -> None:
    with launcher.start("ps", "--help", env={"PYTHONVERBOSE": "1"}) as running:
        assert not isinstance(running.process, Preloaded)
        assert "import 'tflaunch.cli'" in running.done().err
