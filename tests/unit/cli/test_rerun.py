"""`tflaunch rerun`: the words that it makes of a record, and what it says is otherwise."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tflaunch.cli import application
from tflaunch.cli.recorded_words import filled, repeated
from tflaunch.cli.rerun import differences, from_here
from tflaunch.cli.trainer_words import Line, Word
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import plain

HERE = "/home/ada/mnist"


@functools.cache
def read_with() -> Any:
    command: Any = typer.main.get_command(application(["run"]))
    run = command.commands["run"]
    return functools.partial(Line.read, run.params, run.optional_values)


def task(name: str, host: str = "gpu01", gpus: Sequence[str] = ()) -> TaskPlan:
    return TaskPlan(TaskId.parse(name), host, host, 2222, tuple(gpus), tuple(gpus), (), {}, (), None)


def record(*words: str, tasks: Sequence[str] = ("worker/0", "worker/1")) -> Record:
    plan = ClusterPlan("mnist-a3k2xq", tuple(map(task, tasks)))
    return Record(Path("mnist-a3k2xq"), {"command": ["tflaunch", *words], "cwd": HERE, "plan": plain(plan)})


COUNTS = ("--ps=0", "--workers=2")


@pytest.mark.parametrize(
    ("before", "more", "words", "variables"),
    [
        (["hosts.yaml", "t.py"], [], [*COUNTS, "hosts.yaml", "t.py"], ()),
        (["h", "t.py", "--workers", "2", "--ps=0"], [], ["h", "t.py", "--workers", "2", "--ps=0"], ()),
        (["h", "t.py"], ["--workers=8"], ["--ps=0", "h", "t.py", "--workers=8"], ()),
        (["h", "t.py", "--", "-n", "3"], [], [*COUNTS, "h", "t.py", "--", "-n", "3"], ()),
        (["h", "t.py", "--", "-n", "3"], ["--", "-n", "4"], [*COUNTS, "h", "t.py", "--", "-n", "4"], ()),
        (["h", "t.py", "--json", "--dry-run"], [], [*COUNTS, "h", "t.py"], ()),
        (
            ["h", "t.py", "--env", "LR=***", "-eA=***", "-e", "B=***", "--job-env", "ps=C=***"],
            [],
            [*COUNTS, "h", "t.py", "--env", "LR", "-eA", "-e", "B", "--job-env", "ps=C"],
            ("LR", "A", "B", "C"),
        ),
        (
            ["h", "t.py", "--env=LR=***", "--env=KEPT"],
            ["--env=LR=0.2"],
            [*COUNTS, "h", "t.py", "--env=KEPT", "--env=LR=0.2"],
            (),
        ),
        (["h", "t.py", "-deA=***"], ["-eA=2"], [*COUNTS, "h", "t.py", "-d", "-eA=2"], ()),
        (["h", "t.py", "--job", "worker=2"], [], ["--ps=0", "h", "t.py", "--job", "worker=2"], ()),
        (
            ["h", "t.py", "--job=worker=2"],
            ["--job", "worker=3"],
            ["--ps=0", "h", "t.py", "--job", "worker=3"],
            (),
        ),
        (["h", "t.py", "--no-flags"], ["--flags"], [*COUNTS, "h", "t.py", "--flags"], ()),
        (["h", "t.py", "--env-file", "a.env"], [], [*COUNTS, "h", "t.py", "--env-file", "a.env"], ()),
    ],
)
def test_words(before: list[str], more: list[str], words: list[str], variables: tuple[str, ...]) -> None:
    found = repeated(record("run", *before), read_with()(more), read_with())
    assert list(filled(found.words, lambda _: "")) == words
    assert list(filled(found.words, lambda name: f"=<{name}>")) == [
        f"{word}=<{name}>" if (name := re.sub(".*[=e]", "", word)) in variables else word for word in words
    ]
    assert found.variables == variables
    assert found.directory == HERE


def test_a_program_that_is_one_task_by_itself_stays_one() -> None:
    """A number of workers would have it get cluster flags."""
    alone = record("run", "h", "t.py", tasks=["worker/0"])
    assert list(repeated(alone, read_with()([]), read_with()).words) == ["h", "t.py"]


def test_two_values_of_one_name_cannot_be_told_apart() -> None:
    both = record("run", "h", "t.py", "--job-env=ps=C=***", "--job-env=worker=C=***")
    with pytest.raises(UsageError, match="had several values of C"):
        repeated(both, read_with()([]), read_with())


def test_tasks_under_other_names_are_counted_by_their_own_words() -> None:
    found = repeated(
        record("run", "h", "t.py", "--job=data=1", tasks=["worker/0", "data/0"]), read_with()([]), read_with()
    )
    assert list(found.words) == ["h", "t.py", "--job=data=1"]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("sweep", "h", "t.py", "--grid=a=1"), "once more: tflaunch sweep --resume mnist-a3k2xq"),
        (("up", "h", "--workers=2"), "once more: tflaunch up h --workers=2"),
    ],
)
def test_what_is_no_run_of_a_program(command: tuple[str, ...], hint: str) -> None:
    with pytest.raises(UsageError, match="was not started by tflaunch run") as error:
        repeated(record(*command), read_with()([]), read_with())
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--env-file", "my.env"), ("--env-file", "HERE/my.env")),
        (("--env-file=my.env",), ("--env-file=HERE/my.env",)),
        (("--env-file", "/etc/my.env"), ("--env-file", "/etc/my.env")),
        (("--name", "my.env"), ("--name", "my.env")),
        (("--no-sync",), ("--no-sync",)),
    ],
)
def test_a_path_holds_where_it_was_typed(
    words: tuple[str, ...], expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = from_here(Word(words, "option"), {"--env-file"})
    assert found.texts == tuple(each.replace("HERE", str(tmp_path)) for each in expected)


def test_differences() -> None:
    before = ClusterPlan(
        "a", (task("worker/0", "gpu01", ["GPU-1"]), task("worker/1", "gpu02", ["GPU-2"]), task("ps/0"))
    )
    now = ClusterPlan(
        "b", (task("worker/0", "gpu01", ["GPU-3"]), task("worker/1", "gpu03", ["GPU-2"]), task("worker/2"))
    )
    assert differences("a", before, now) == [
        "a had no worker/2",
        "a also had ps/0",
        "other hosts than in a: worker/1 on gpu03 (was on gpu02)",
        "other GPUs than in a: worker/0",
    ]
    assert differences("a", before, before) == []
