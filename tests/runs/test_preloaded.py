"""A command that tests fork from a process that has imported tflaunch does what one does that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.launcher import TFLAUNCH, Launcher
from tests.support.preloaded import Preloaded, forked


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


def test_what_is_typed_into_a_shell_is_forked_but_for_the_first_of_each_verb(
    launcher: Launcher, tmp_path: Path
) -> None:
    command = tmp_path / "tflaunch"
    command.write_text(forked(TFLAUNCH[2], launcher.env(), tmp_path / "typed"))
    command.chmod(0o755)

    def typed(text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", text],
            env=launcher.env(PATH=f"{tmp_path}:{os.environ['PATH']}"),
            cwd=launcher.code,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    anew, again = (
        typed("tflaunch ps --help | cat; tflaunch ps --non; echo $?").communicate()[0] for _ in range(2)
    )
    assert "Usage: tflaunch ps" in anew
    assert anew.endswith("\n2\n")
    assert again == anew

    script = launcher.script("import signal; print('waits', flush=True); signal.pause()")
    words = f"tflaunch run {launcher.local(1)} {script} --ps=0 --workers=1 --grace=1"
    for attempt in ("anew", "forked"):
        run = typed(f"exec {words}")
        assert run.stdout is not None
        assert any("waits" in line for line in run.stdout), attempt
        name = Path(f"/proc/{run.pid}/comm").read_text().strip()
        assert (name == "forked") == (attempt == "forked"), name
        os.killpg(run.pid, signal.SIGINT)
        run.communicate()
        assert run.returncode == 130, attempt
