"""Variables and arguments that cannot reach the tasks as they were meant: told before the tasks start."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.launcher import TELL, Launcher, told
from tests.support.sshd import SshNetwork


def test_a_path_that_no_shell_expands_is_told_with_the_setup_that_does_it(
    network: SshNetwork, launcher: Launcher, out: Path
) -> None:
    host, script = network.add().name, launcher.script(TELL)
    words = (script, "--ps=0", "--workers=1", "--grace=2", f"--env=OUT={out}")
    wrong = launcher.hostfile([host], env={"PATH": "/opt/bin:$PATH"})
    failed = launcher.run("run", wrong, *words).ran(70)
    assert "env: $PATH in PATH stays as it is: tflaunch expands nothing" in failed.sentences
    line = re.search(r"in the hostfile, setup: (export PATH=\S+)", failed.sentences)
    assert line
    right = launcher.hostfile([host], "right.yaml", setup=line[1])
    done = launcher.run("run", right, *words).ran()
    assert "expands nothing" not in done.sentences
    path = told(out)["worker/0"].env["PATH"]
    assert path.startswith("/opt/bin:/")
    for verb in (("sweep", right, script, "--grid=a=1", "--dry-run"), ("check", right, "--no-tensorflow")):
        done = launcher.run(*verb, "--env=DATA=~/data").ran()
        assert "--env: ~ in DATA stays as it is" in done.sentences


def test_what_is_too_long_is_told_before_any_host_is_contacted(launcher: Launcher) -> None:
    hosts, script = launcher.local(1), launcher.script(TELL)
    (launcher.code / "big.env").write_text(f"A={'x' * 140_000}\n")
    (launcher.code / "many.env").write_text("".join(f"A{n}={'x' * 100_000}\n" for n in range(30)))
    (launcher.code / "job.yaml").write_text(f"program: trainer.py\nargs: ['{'x' * 165_000}']\n")
    long = launcher.hostfile(["a"], "long.yaml", connection="local", setup=f"echo {'x' * 140_000}")
    grid = [f"--grid={name}={'x' * 70_000}" for name in "ab"]
    big, many = "--env-file=big.env", "--env-file=many.env"
    for words, fact in (
        (("run", hosts, script, big), "A of --env-file is 140,002 bytes long; Linux takes 131,071"),
        (("up", hosts, big), "A of --env-file is 140,002 bytes long; Linux takes 131,071"),
        (("check", hosts, big), "A of --env-file is 140,002 bytes long; Linux takes 131,071"),
        (("sweep", hosts, script, "--grid=a=1", big), "A of --env-file is 140,002 bytes long"),
        (("run", hosts, script, many), "Linux takes 2,097,152 in all"),
        (("run", hosts, "job.yaml"), "argument 1 in the job file is 165,000 bytes long"),
        (("sweep", hosts, script, *grid), "TFLAUNCH_PARAMS is 140,0"),
        (("run", long, script), "has 140,005 characters; 65,536 are the most"),
    ):
        done = launcher.run(*words).ran(2)
        assert fact in done.sentences
        assert "connected" not in done.err
    assert launcher.records() == []
