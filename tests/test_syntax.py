"""A program that the Python of the tasks cannot read ends the run before any task starts."""

from __future__ import annotations

import py_compile
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest
from tflaunch.agent.tasks import syntax

from tests.agent_over_pipes import interpreters
from tests.launcher import Launcher
from tests.sshd import SshNetwork
from tflaunch.code.bundle import code_of
from tflaunch.code.program import find_program

HERE = ".".join(map(str, sys.version_info[:2]))
OLD = [path for path in interpreters() if "/3.8" in path or "/3.9" in path]
NEWER = "import os\nmatch os.name:\n    case x:\n        print('read by', os.environ['TFLAUNCH_TASK'])\n"
FOR_ALL = "name another Python there by `python:`, `venv:` or `conda:` in the hostfile"


def request(task: str, **more: Any) -> dict[str, Any]:
    return {"id": task, "argv": ["python3", "a.py"], "env": {}, "setup": [], "cwd": None, **more}


def test_one_task_of_each_interpreter_reads_the_program_unless_it_is_known_what_that_reads() -> None:
    venv = {"setup": ["export PATH=/venv/bin"]}
    requests = [
        request("worker/0"),
        request("worker/1", **venv),
        request("worker/2", **venv),
        request("worker/3", argv=["/opt/python", "a.py"]),
        request("worker/4", argv=["/opt/python", "a.py"], container={"image": "tf"}),
        request("worker/5", env={"PATH": "/opt/bin"}),
        request("worker/6", cwd="/code", **venv),
        request("worker/7", argv=[sys.executable, "a.py"]),
    ]
    known = syntax.who_checks(requests, {"file": "a.py", "read_by": HERE})
    assert sorted(known) == ["worker/1", "worker/3", "worker/4", "worker/5"]
    assert set(known.values()) == {"a.py"}
    for unknown in ("", "2.7"):
        found = syntax.who_checks(requests, {"file": "a.py", "read_by": unknown})
        assert sorted(found) == ["worker/0", *sorted(known), "worker/7"]


def test_what_is_told_of_a_program_is_what_this_python_makes_of_it(tmp_path: Path) -> None:
    for name, text in {"a.py": "x = 1\n", "b.py": "def f(:\n", "c.py": "return\n", "d.sh": "ls\n"}.items():
        (tmp_path / name).write_text(text)
    read = {name: code_of(find_program(name, False, tmp_path)).to_read for name in ("a.py", "b.py", "c.py")}
    assert [each and each["read_by"] for each in read.values()] == [HERE, "", ""]
    assert code_of(find_program("d.sh", False, tmp_path)).to_read is None
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").touch()
    module = code_of(find_program("pkg", True, tmp_path)).to_read
    assert module == {"file": "pkg/__main__.py", "read_by": HERE}


def test_what_python_runs_without_reading_its_text_is_not_read_before(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("print()\n")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    (tmp_path / "a.py").write_text("print()\n")
    py_compile.compile(str(tmp_path / "a.py"), str(tmp_path / "a.pyc"))
    for name in ("app.pyz", "a.pyc"):
        assert code_of(find_program(name, False, tmp_path)).to_read is None


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


def test_an_interpreter_that_is_no_python_runs_what_it_likes(launcher: Launcher) -> None:
    wrapper = launcher.code / "wrapper"
    wrapper.write_text(
        "#!/bin/sh\ncase $1 in *.py) echo wrapped;; *) echo no such option >&2; exit 3;; esac\n"
    )
    wrapper.chmod(0o755)
    hosts = launcher.hostfile([{"name": "a", "connection": "local", "python": str(wrapper)}])
    done = launcher.run("run", hosts, launcher.script("not Python at all\n"), "--ps=0", "--workers=1").ran()
    assert "worker/0 │ wrapped" in done.out
