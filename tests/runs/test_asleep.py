"""Ctrl-Z and `fg`, a lid that is closed: who was asleep goes on where it was, and hangs up on nobody."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

from tests.support.launcher import Launcher
from tests.support.patience import until
from tflaunch.lifecycle.links import SILENCE_S

# Says a line each 0.1 s, and ends, once $OUT/go is there, with an output.
TALKS = """
    import os, time
    number = 0
    while not os.path.exists(os.environ["OUT"] + "/go"):
        print("line", number, flush=True)
        number += 1
        time.sleep(0.1)
    print("that was", number, flush=True)
"""


def sleep(process: subprocess.Popen[bytes]) -> None:
    """Longer than a host may be silent."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(SILENCE_S + 2)
    process.send_signal(signal.SIGCONT)


def test_who_watches_and_was_asleep_has_hung_up_on_nobody_and_missed_no_line(
    launcher: Launcher, out: Path
) -> None:
    hosts = launcher.local(2)
    words = (hosts, launcher.script(TALKS), "--ps=0", "--workers=2", f"--env=OUT={out}", "--detach")
    launcher.run("run", *words).ran()
    with launcher.start("attach") as attached, launcher.start("logs", "-f") as followed:
        for each in (attached, followed):
            each.wait_for("line 5")
            each.signal(signal.SIGSTOP)
        time.sleep(SILENCE_S + 2)
        for each in (attached, followed):
            each.signal(signal.SIGCONT)
            each.wait_for("line 130")
        (out / "go").touch()
        for each in (attached, followed):
            done = each.done().ran()
            assert "out of reach" not in done.err, done.err
            for worker in ("worker/0", "worker/1"):
                lines = [line.split()[-1] for line in done.out.splitlines() if line.startswith(worker)]
                assert lines[:-1] == [str(number) for number in range(len(lines) - 1)]
                assert lines[-1] == str(len(lines) - 1)
    launcher.wait_until_nothing_is_left()


def some_of_it(directory: Path) -> bool:
    """Whether a file there, or one on its way, has a content."""
    with contextlib.suppress(FileNotFoundError):  # it has got its name meanwhile
        return any(each.stat().st_size for each in directory.rglob("*") if each.is_file())
    return False


def test_a_fetch_that_was_asleep_goes_on(launcher: Launcher, out: Path) -> None:
    size = 200 * 2**20
    trainer = launcher.script(
        f"""
        import os
        with open("large", "wb") as file:
            file.write(os.urandom(2**20) * {size >> 20})
        """
    )
    words = (launcher.local(3), trainer, "--ps=0", "--workers=3")
    done = launcher.run("run", *words).ran()
    run = done.sentences.partition("run ")[2].split()[0]
    with launcher.start("fetch", run, "large", "--to", out) as fetching:
        until(lambda: some_of_it(out), "some of it")
        sleep(fetching.process)
        done = fetching.done().ran()
    assert "out of reach" not in done.err, done.err
    assert [each.stat().st_size for each in out.rglob("large")] == [size] * 3


def test_the_last_lines_come_to_who_was_asleep_when_the_tasks_had_ended(
    launcher: Launcher, out: Path
) -> None:
    count = 300_000
    trainer = launcher.script(
        f"""
        import os
        for number in range({count}):
            print(number, "x" * 100)
        open(os.environ["OUT"] + "/ended", "w").close()
        """
    )
    argv = launcher.argv("run", launcher.local(1), trainer, "--ps=0", "--workers=1", f"--env=OUT={out}")
    with (launcher.directory / "err").open("w+") as err:
        running = subprocess.Popen(
            argv, env=launcher.env(), cwd=launcher.code, stdout=subprocess.PIPE, stderr=err
        )
        with running:
            until((out / "ended").exists, "the task's end")  # most of what it wrote waits for a reader
            time.sleep(1)  # its end is told, and the launcher is at its last lines
            sleep(running)
            assert running.stdout is not None
            said = running.stdout.read().splitlines()
        err.seek(0)
        told = err.read()
    assert running.returncode == 0, told
    assert "out of reach" not in told, told
    assert len(said) == count
    launcher.wait_until_nothing_is_left()
