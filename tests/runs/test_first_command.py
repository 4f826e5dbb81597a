"""The first command: the default hostfile, and errors in one style."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.support.launcher import TELL, Launcher, told


def test_a_run_finds_the_hostfile_that_is_there_and_says_which(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    script = launcher.script(TELL)
    hosts = launcher.hostfile(["a", "b"], "code/hosts.yaml", connection="local")
    (launcher.code / "job.yaml").write_text(
        f"program: trainer.py\nargs: [1]\nenv: {{OUT: {out}}}\nroles: {{ps: 0}}\n"
    )
    done = launcher.run("run", "job.yaml", "--workers=2", "--", "--epochs", "3").ran()
    assert f"hosts: {hosts} (none was named): 2 hosts" in done.sentences
    assert {each.host for each in told(out).values()} == {"a", "b"}
    assert told(out)["worker/1"].argv[-3:] == (b"1", b"--epochs", b"3")
    for words in (("trainer.py",), ("-m", "trainer"), (script, "--json")):
        done = launcher.run("run", "--dry-run", *words, env={"TFLAUNCH_HOSTS": "localhost"}).ran()
        assert "hosts: localhost ($TFLAUNCH_HOSTS): 1 host" in done.err + done.out
    for verb in (("sweep", "--grid=x=1,2", "trainer.py"), ("up",)):
        done = launcher.run(*verb, "--dry-run").ran()
        assert f"hosts: {hosts} (none was named): 2 hosts" in done.sentences
    (launcher.code / "hosts.yaml").chmod(0o666)
    done = launcher.run("run", "trainer.py").ran(2)
    assert f"{hosts} does not count as the default hostfile: it may be written by everybody" in done.sentences


def test_there_is_one_style_of_error(launcher: Launcher) -> None:
    for words in (("run", "h", "t.py", "--workers=many"), ("kill",), ("run", "h", "t.py")):
        done = launcher.run(*words).ran(2)
        first, second, *rest = done.err.splitlines()
        assert (first[:2], second[:4], rest, done.out) == ("✗ ", "  → ", [], "")


def test_a_current_directory_that_is_gone_is_told_and_no_traceback(
    launcher: Launcher, tmp_path: Path
) -> None:
    for words in (("run", "a", "t.py"), ("ps",), ("gpus",), ("stop",), ("logs",), ("ps", "--json")):
        gone = tmp_path / "gone"
        gone.mkdir()
        command = shlex.join(map(str, launcher.argv(*words)))
        done = subprocess.run(
            ["/bin/sh", "-c", f"cd {gone} && rmdir {gone} && exec {command}"],
            env=launcher.env(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "the current directory is gone: it was removed" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_for_programs_every_error_is_json(launcher: Launcher) -> None:
    [event] = launcher.run("run", "h", "t.py", "--json", "--workers=many").ran(2).events
    assert (event["event"], event["kind"], event["exit_code"]) == ("error", "UsageError", 2)
    assert event["message"] == "--workers: 'many' is not a whole number"
    done = launcher.run("run", "h", "t.py", "--workers=many", "--", "--json").ran(2)
    assert (done.out, done.err[:1]) == ("", "✗")  # the trainer's own --json
