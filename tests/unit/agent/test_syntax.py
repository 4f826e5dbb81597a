"""What is told of a program that some Python cannot read."""

from __future__ import annotations

import py_compile
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent.tasks import syntax
from tflaunch.code.bundle import code_of
from tflaunch.code.program import find_program

HERE = ".".join(map(str, sys.version_info[:2]))


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
    known = syntax.who_checks(requests, {"": {"file": "a.py", "read_by": HERE}})
    assert sorted(known) == ["worker/1", "worker/3", "worker/4", "worker/5"]
    assert set(known.values()) == {"a.py"}
    for unknown in ("", "2.7"):
        found = syntax.who_checks(requests, {"": {"file": "a.py", "read_by": unknown}})
        assert sorted(found) == ["worker/0", *sorted(known), "worker/7"]


def test_the_interpreter_is_the_first_program_of_that_name_and_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"": {"file": "a.py", "read_by": HERE}}
    (tmp_path / "first" / "python3").mkdir(parents=True)
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/last")
    assert not syntax.who_checks([request("worker/0")], known), "a shell passes over a directory, too"
    (tmp_path / "first" / "python3").rmdir()
    (tmp_path / "first" / "python3").touch(0o755)
    assert syntax.who_checks([request("worker/0")], known) == {"worker/0": "a.py"}, "another interpreter"
    (tmp_path / "first" / "python3").chmod(0o644)
    assert not syntax.who_checks([request("worker/0")], known)


def test_the_tasks_of_a_job_with_a_program_of_its_own_read_that_one() -> None:
    requests = [request("worker/0"), request("data/0"), request("data/1"), request("shell/0")]
    own = {"file": "server.py", "read_by": ""}
    programs = {"": {"file": "a.py", "read_by": "2.7"}, "data": own, "shell": None}
    assert syntax.who_checks(requests, programs) == {"worker/0": "a.py", "data/0": "server.py"}
    assert syntax.who_checks(requests, {"data": own}) == {"data/0": "server.py"}
    assert syntax.who_checks(requests, {"": None, "data": own}) == {"data/0": "server.py"}


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
