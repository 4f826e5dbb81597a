"""Patterns that are wrong: told with their place before anything is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launcher import Launcher

WRONG = [
    ("[z-a]*", "it holds the range z-a, whose ends are the wrong way round"),
    ("a/[[:nonsense:]]", "it holds [:nonsense:], which is no class"),
    ("x\\", "it ends with a backslash that quotes nothing"),
    (".git/hooks/*", "it is never fetched: git runs what lies there"),
    ("**/.GIT", "it is never fetched: git runs what lies there"),
    ("", "it is no pattern"),
    ("#x", "it is no pattern"),
]


@pytest.mark.parametrize(("pattern", "sentence"), WRONG)
def test_a_bad_pattern_is_told_before_anything_is_contacted(
    pattern: str, sentence: str, launcher: Launcher
) -> None:
    trainer = launcher.script("")
    hosts = launcher.hostfile(["nowhere.invalid"])
    done = launcher.run("run", hosts, trainer, f"--fetch={pattern}").ran(2)
    assert f"--fetch {pattern}: {sentence}" in done.sentences
    if pattern != WRONG[0][0]:
        return
    done = launcher.run("fetch", "no-such-run", "-H", str(hosts), "--", pattern).ran(2)
    assert f"{pattern}: {sentence}" in done.sentences
    done = launcher.run("sweep", "--grid=a=1,2", hosts, trainer, f"--fetch=a/{pattern}").ran(2)
    assert f"--fetch a/{pattern}: {sentence}" in done.sentences


def test_a_bad_pattern_in_a_job_file_is_told_with_its_place(launcher: Launcher) -> None:
    launcher.script("")
    job = launcher.code / "job.yaml"
    job.write_text("program: trainer.py\nfetch:\n  - results/*\n  - '[z-a]*'\n")
    done = launcher.run("run", launcher.hostfile(["nowhere.invalid"]), job).ran(2)
    assert f"{job}:4:5: fetch: '[z-a]*' holds the range z-a" in done.sentences


def test_a_bad_line_in_an_ignore_file_is_told_with_its_place_and_stops_nothing(launcher: Launcher) -> None:
    trainer = launcher.script("")
    ignore = launcher.code / "lib/.gitignore"
    ignore.parent.mkdir()
    ignore.write_text("*.log\n\n!data[9-0]/\na[[:nonsense:]]\n")
    done = launcher.run("run", launcher.local(1), trainer, "--ps=0").ran()
    assert f"{ignore}:3:1: '!data[9-0]/' holds the range 9-0" in done.sentences
    assert "as in git, that range is empty" in done.sentences
    assert f"{ignore}:4:1: 'a[[:nonsense:]]' holds [:nonsense:], which is no class" in done.sentences
    assert "as in git, the line matches nothing" in done.sentences


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("run --worker-hosts=[z", "'[z'"),
        ("run --ps-hosts=nobody*", "'nobody*'"),
        ("run --job=data=1 --job-hosts=data=gpu[9-1]", "'gpu[9-1]'"),
        ("run --restarts=1 --spares=nobody", "no host nobody"),
        ("run --only=worker", "worker"),
        ("run --include=nowhere.invalid:x", "--include nowhere.invalid:x"),
        ("run --exclude=[z", "'[z'"),
        ("sweep --grid=a=1 --exclude=nobody", "no host nobody"),
        ("sweep --grid=a=1 --metric=loss:([0-9", "--metric loss:([0-9"),
        ("up --worker-hosts=nobody", "no host nobody"),
        ("up --include=nobody:0", "no host nobody"),
        ("logs x --grep=[z-a]", "--grep [z-a]"),
        ("attach x --grep=(", "--grep ("),
        ("logs x worker", "worker"),
    ],
)
def test_every_other_pattern_is_read_before_anything_is_contacted(
    words: str, named: str, launcher: Launcher
) -> None:
    verb, *options = words.split()
    hosts = launcher.hostfile(["nowhere.invalid"])
    where: tuple[str | Path, ...] = (hosts, launcher.script(""))
    if verb in ("logs", "attach"):
        where = ("-H", hosts)
    done = launcher.run(verb, *options, *where[: 1 if verb == "up" else 2]).ran(2)
    assert named in done.sentences
