"""The recipes of CONTRIBUTING.md: whoever follows one has the new thing wherever such things are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tflaunch.protocol.errors import EXIT_USAGE

GROUP = "inputs/options/job_groups.py"
USER = "api/requests/run.py"
DECLARED = """
    patience: float = option(7.0, help="Be patient for this time, whatever --restarts says.", also_of=("up",))
"""
USED = """
    if options.restarts.patience != 7:
        raise UsageError(f"patient for {options.restarts.patience:g} s")
"""
TABLE = "frameworks/table.py"
FRAMEWORK = """
from tflaunch.frameworks.framework import Framework, Rank

def _environment(rank: Rank) -> "dict[str, str]":
    return {"ABACUS_BEAD": f"{rank.rank}/{rank.size}"}

FRAMEWORK = Framework(
    name="abacus", title="Abacus", packages=("abacus",), launching=frozenset({"abacus"}), by_rank=True,
    environment=_environment,
)
"""
# What the suite asks of options in general.
CHECKS = (
    "api/test_keywords.py::test_every_option_of_run_is_a_keyword",
    "api/test_keywords.py::test_a_keyword_means_what_its_option_means[patience]",
    "cli/test_configured.py::test_each_option_of_run_is_a_key_or_of_one_run",
    "cli/test_configured.py::test_each_key_is_an_option_of_its_verb[up]",
    "inputs/test_job_file.py::test_every_option_of_run_can_be_said_in_it",
    "inputs/test_job_file.py::test_schema_describes_every_key",
    "inputs/test_config.py::test_the_schema_has_every_key",
    "test_reference.py::test_the_keywords_of_the_api_are_those_of_the_options",
)


def insert(file: Path, behind: str, text: str) -> None:
    """Write `text` into the file behind the first text that matches the pattern."""
    found = re.search(behind, file.read_text("utf-8"), re.DOTALL)
    assert found is not None
    whole = found.string
    file.write_text(whole[: found.end()] + text + whole[found.end() :], "utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree."""
    leave = shutil.ignore_patterns("__pycache__", "*.whl", "*.png", "*.svg", "reference", "logs")
    for part in ("tflaunch", "docs", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=leave)
    for part in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples"):
        (tmp_path / part).symlink_to(ROOT / part)
    return tmp_path


def named_in(recipe: str) -> set[str]:
    """The files and scripts that the recipe of that name has one go to."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (found,) = re.findall(rf"^\*\*{recipe}\*\*.*?\n\n", text, re.M | re.S)
    return set(re.findall(r"`([^`]+)`", found))


def run(at: Path, *words: str, code: int = 0) -> str:
    """What Python prints in that directory, with the tflaunch of the copy."""
    root = at if (at / "tflaunch").exists() else at.parent
    places = dict.fromkeys(("PYTHONPATH", "HOME", "TFLAUNCH_ETC", "XDG_CONFIG_HOME"), str(root))
    env = {**os.environ, **places, "COLUMNS": "300"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=at,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_an_option_that_is_declared_and_used_is_everywhere(tree: Path) -> None:
    assert {GROUP, USER, "scripts/docs"} <= named_in("An option")
    insert(tree / "tflaunch" / GROUP, r"class RestartOptions:.*?panel = \w+\n", DECLARED)
    insert(tree / "tflaunch" / USER, r"Raise UsageError for options that exclude each other\.\"\"\"\n", USED)
    run(tree / "docs", "-m", "generator.keywords")  # as scripts/docs does
    (tree / "t.py").write_text("")
    (tree / "job.yaml").write_text("program: t.py\npatience: 2m\n")
    start = ("-m", "tflaunch", "run", "h1", "--dry-run")
    assert "patient for 60 s" in run(tree, *start, "--patience", "1m", "t.py", code=EXIT_USAGE)
    assert "patient for 120 s" in run(tree, *start, "job.yaml", code=EXIT_USAGE)
    assert "--patience: 'soon' is not a time" in run(tree, *start, "t.py", "--patience=soon", code=EXIT_USAGE)
    program = "from tflaunch import api; api.make_plan('h1', 't.py', patience='5m')"
    assert "patient for 300 s" in run(tree, "-c", program, code=1)
    (tree / "job.yaml").write_text("program: t.py\npatience: soon\n")
    assert "job.yaml:2:11: patience: 'soon' is not a time: 90 (seconds)" in run(
        tree, *start, "job.yaml", code=EXIT_USAGE
    )
    (tree / "config.toml").write_text("[run]\npatience = '3m'\n")
    assert "patient for 180 s" in run(tree, *start, "t.py", code=EXIT_USAGE)
    (tree / "config.toml").unlink()

    meaning = "Be patient for this time, whatever `restarts` says."
    assert (
        json.loads(run(tree, "-m", "tflaunch", "schema", "job"))["properties"]["patience"]["description"]
        == meaning
    )
    tables = json.loads(run(tree, "-m", "tflaunch", "schema", "config"))["$defs"]
    assert [name for name, table in tables.items() if "patience" in table["properties"]] == [
        "RunTable",
        "UpTable",
    ]

    run(tree / "docs", "-c", "import pathlib, generator; generator.write(pathlib.Path('reference'))")
    pages = {page.stem for page in (tree / "docs/reference").glob("*.md") if "Be patient" in page.read_text()}
    assert pages == {"run", "up", "job-file-keys", "config-keys", "python-api", "tflaunch.1"}
    run(
        tree,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        *(f"tests/unit/{each}" for each in CHECKS),
    )


def test_a_framework_that_has_its_file_and_its_place_is_everywhere(tree: Path) -> None:
    assert {"frameworks/", TABLE, "scripts/docs"} <= named_in("A framework")
    (tree / "tflaunch/frameworks/abacus.py").write_text(FRAMEWORK)
    insert(tree / "tflaunch" / TABLE, r"import (?=horovod)", "abacus, ")
    insert(tree / "tflaunch" / TABLE, r"\nALL = \(", "abacus.FRAMEWORK, ")
    run(tree / "docs", "-m", "generator.keywords")
    (tree / "t.py").write_text("import abacus.cluster\n")
    here = "- {name: %s, connection: local, run_dir: %s}\n"
    (tree / "hosts.yaml").write_text("".join(here % (name, tree / name) for name in ("h1", "h2")))
    start = ("-m", "tflaunch", "run", "hosts.yaml", "--dry-run", "--workers=2")
    for words in (("t.py",), ("t.py", "--framework=abacus")):
        plan = json.loads(run(tree, *start, "--json", "--quiet", *words).splitlines()[-1])
        tasks = {task["task"]: task for task in plan["tasks"]}
        assert tasks.keys() == {"worker/0", "worker/1"}
        assert tasks["worker/1"]["env"]["ABACUS_BEAD"] == "1/2"
        assert "RANK" not in tasks["worker/1"]["env"]
        assert "--job_name=worker" not in tasks["worker/1"]["argv"]
    (tree / "job.yaml").write_text("program: t.py\nframework: abakus\n")
    wrong = run(tree, "-m", "tflaunch", "run", "h1", "job.yaml", code=EXIT_USAGE)
    assert "is none of auto, abacus, tensorflow, jax, torch" in wrong
    assert '"abacus"' in (tree / "tflaunch/api/keywords.py").read_text()
    run(tree, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/unit/test_house.py")
