""".ci/run, in a project of its own: which failed tests are tried once more, and what is said of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

CONFTEST = """\
import pathlib

def tried(name):
    place = pathlib.Path(name)
    before = place.exists()
    place.touch()
    return before
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose checks pass; its test_it.py learns from `tried(NAME)` whether it ran before."""
    scripts = {
        ".ci/run": (ROOT / ".ci/run").read_text(),
        "scripts/check": "#!/bin/sh\n",
        "scripts/engines": '#!/bin/sh\necho "asked for $*"\n',
        "scripts/test": f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m pytest -n 1 "$@"\n',
    }
    for name, text in scripts.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    made = tmp_path / "project"
    (made / ".venv/bin").mkdir(parents=True)
    (made / ".venv/bin/python").symlink_to(sys.executable)
    (made / "pytest.ini").write_text("[pytest]\npython_files = test_it.py\n")
    (made / "conftest.py").write_text(CONFTEST)
    return made


def ci(project: Path, tests: str) -> tuple[int, list[str]]:
    """The exit code of .ci/run with these tests, and its lines."""
    (project / "test_it.py").write_text("import pytest\nfrom conftest import tried\n" + tests)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([project / ".ci/run"], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_one_that_passes_alone_is_named(project: Path) -> None:
    code, lines = ci(project, "def test_a(): assert tried('a')\ndef test_b(): pass\n")
    assert code == 0
    assert lines[-3:-1] == [
        "flaky: 1 tests failed at first and passed alone:",
        "  test_it.py::test_a",
    ]
    assert "1 passed" in lines[-1]
    assert any("1 failed, 1 passed" in line for line in lines), "the first try is shown"


def test_one_that_fails_again_fails(project: Path) -> None:
    code, lines = ci(project, "def test_a(): assert tried('a')\ndef test_b(): assert False\n")
    assert code == 1
    assert "  test_it.py::test_a" in lines
    assert "1 failed, 1 passed" in lines[-1]


SKIPPED = "def test_a():\n    if tried('a'): pytest.skip()\n    assert 0\n"
RENAMED = "@pytest.mark.parametrize('n', [tried('n')])\ndef test_a(n): assert n\n"


@pytest.mark.parametrize("tests", [SKIPPED, RENAMED], ids=["skipped", "renamed"])
def test_one_that_is_not_tried_again_has_not_passed(project: Path, tests: str) -> None:
    code, lines = ci(project, tests)
    assert code == 1
    assert not any(line.startswith("flaky") for line in lines)


def test_a_teardown_that_fails_again_fails(project: Path) -> None:
    code, lines = ci(project, "@pytest.fixture\ndef f(): yield; assert 0\ndef test_a(f): pass\n")
    assert code == 1
    assert not any(line.startswith("flaky") for line in lines)


def test_many_are_not_tried_again(project: Path) -> None:
    many = "@pytest.mark.parametrize('n', range(11))\ndef test_a(n): assert tried(f'a{n}')\n"
    code, lines = ci(project, many)
    assert code == 1
    assert "11 failed" in lines[-1]


def test_neither_is_what_cannot_be_collected(project: Path) -> None:
    code, _ = ci(project, "assert tried('collected')\n")
    assert code not in (0, 1)


@pytest.mark.parametrize(("code", "lines"), [("0", 0), ("1", 1)], ids=["built", "no compiler"])
def test_horovod_is_built_before_the_tests_and_is_not_needed(project: Path, code: str, lines: int) -> None:
    with (project / "scripts/engines").open("a") as engines:
        engines.write(f"exit {code}\n")
    (project / "test_it.py").write_text("def test_a(): pass\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([project / ".ci/run"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("asked for horovod\n")
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert done.stderr.count("Horovod cannot be built here: its tests are skipped") == lines
