"""A program that the Python of the tasks cannot read ends the run before any task starts."""

from __future__ import annotations

import pytest

from tests.support.agent_over_pipes import interpreters
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork

OLD = [path for path in interpreters() if "/3.8" in path or "/3.9" in path]
NEWER = "import os\nmatch os.name:\n    case x:\n        print('read by', os.environ['TFLAUNCH_TASK'])\n"
FOR_ALL = "name another Python there by `python:`, `venv:` or `conda:` in the hostfile"


@pytest.mark.skipif(not OLD, reason="no Python here that is older than the match statement")
def test_what_an_older_python_cannot_read_starts_nowhere_and_is_told_once(
    network: SshNetwork, launcher: Launcher
) -> None:
    hosts = [{"name": network.add().name, "python": python} for python in ("python3", OLD[0], OLD[0])]
    launcher.script(NEWER, name="model.py")
    done = launcher.run("run", launcher.hostfile(hosts), "-m", "model", "--ps=0", "--workers=6")
    assert done.code == 70
    assert "read by" not in done.out
    version = ".".join(OLD[0].split("/versions/")[-1].split("/")[0].split(".")[:3])
    assert done.sentences.count(f"model.py:2:7: SyntaxError: invalid syntax (by Python {version} there)") == 1
    assert "match os.name:" in done.sentences
    assert FOR_ALL in done.sentences
    launcher.wait_until_nothing_is_left()


def test_a_program_that_no_python_can_read_starts_nowhere(launcher: Launcher) -> None:
    script = launcher.script("print('started')\ndef f(:\n    pass\n")
    done = launcher.run("run", launcher.local(2), script, "--ps=0", "--workers=4", "--detach")
    assert done.code == 70
    assert f"{script.name}:2:7: SyntaxError: invalid syntax" in done.sentences
    assert "started" not in done.out
    assert not done.err.count("Traceback")


def test_the_program_of_a_role_is_read_too(launcher: Launcher) -> None:
    launcher.script("def f(:\n", name="server.py")
    script = launcher.script("print('started')\n")
    words = (launcher.local(1), script, "--ps=0", "--workers=1", "--no-flags", "--job=data=1")
    done = launcher.run("run", *words, f"--job-program=data={launcher.code / 'server.py'}").ran(70)
    assert "server.py:1:7: SyntaxError: invalid syntax" in done.sentences
    assert "started" not in done.out
    (launcher.code / "server.sh").write_text("#!/bin/sh\necho served | cat\nsleep 100\n")
    (launcher.code / "server.sh").chmod(0o755)
    shell = launcher.run(
        "run", *words, f"--job-program=data={launcher.code / 'server.sh'}", "--ps-grace=5"
    ).ran()
    assert "started" in shell.out
    missing = launcher.run("run", *words, f"--job-program=data={launcher.code / 'serve.py'}").ran(2).sentences
    assert f"--job-program data={launcher.code / 'serve.py'}: " in missing
    assert "Did you mean" in missing


def test_an_interpreter_that_is_no_python_runs_what_it_likes(launcher: Launcher) -> None:
    wrapper = launcher.code / "wrapper"
    wrapper.write_text(
        "#!/bin/sh\ncase $1 in *.py) echo wrapped;; *) echo no such option >&2; exit 3;; esac\n"
    )
    wrapper.chmod(0o755)
    hosts = launcher.hostfile([{"name": "a", "connection": "local", "python": str(wrapper)}])
    done = launcher.run("run", hosts, launcher.script("not Python at all\n"), "--ps=0", "--workers=1").ran()
    assert "worker/0 │ wrapped" in done.out
