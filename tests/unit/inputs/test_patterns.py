"""Patterns as in .gitignore: what they match, as git has it; none takes long; what is wrong is said with its place."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patterns import PATHS, regex
from tflaunch.code.bundle import bundle
from tflaunch.inputs.patterns import Pattern, WantedPaths, is_git


def plainly(parts: list[str], names: list[str]) -> bool:
    """Whether a pattern in parts matches a path, its wildcards no leading dot; each way is tried."""
    if not parts:
        return all(not name.startswith(".") for name in names)  # all that is below
    if parts[0] == "**":
        if parts == ["**"]:
            return bool(names) and plainly([], names)
        return plainly(parts[1:], names) or (
            bool(names) and not names[0].startswith(".") and plainly(parts, names[1:])
        )
    if not names or (names[0].startswith(".") and not parts[0].startswith(".")):
        return False
    if not re.fullmatch(parts[0].replace(".", r"\.").replace("*", ".*"), names[0]):
        return False
    return (parts != ["*"] or not names[1:]) and plainly(parts[1:], names[1:])


@given(
    parts=st.lists(st.sampled_from(["**", "*", "a", ".a", ".*", "a*", "*a", "*.*"]), min_size=2, max_size=5),
    path=PATHS,
)
def test_wildcards_match_no_leading_dot(parts: list[str], path: str) -> None:
    parts = [part for part, _ in itertools.groupby(parts)] if "**" in parts else parts
    if parts == ["**"]:
        return
    assert bool(regex("/" + "/".join(parts), dots=False).match(path)) == plainly(parts, path.split("/"))


@pytest.mark.parametrize(
    ("pattern", "come", "stay"),
    [
        ("**", {"a", "a/b"}, {".a", "a/.b", ".a/b"}),
        ("*", {"a", "a/b"}, {".a", "a/.b"}),
        ("*.txt", {"a.txt", "b/a.txt"}, {".txt", ".b/a.txt", ".a.txt"}),
        ("results", {"results/a", "x/results/a/b"}, {"results/.a", ".x/results"}),
        ("results/*.txt", {"results/a.txt"}, {".git/hooks/x", "results/.a.txt", "x/results/a.txt"}),
        (".cache/**", {".cache/a", ".cache/a/b"}, {".cache/.b", "a/.cache/b"}),
        (".*", {".a", ".a/b", "a/.b"}, {"a", ".a/.b", ".git", ".git/config", ".GIT/config"}),
        ("**/.*/**", {".a/b"}, {".a", ".git/hooks/x", "a/.git/hooks/x"}),
        ("?cache", {"acache"}, {".cache"}),
        ("[.]cache", set(), {".cache"}),
        ("__pycache__", set(), {"__pycache__/a.pyc"}),
    ],
)
def test_what_comes_for_a_pattern(pattern: str, come: set[str], stay: set[str]) -> None:
    wanted = WantedPaths([Pattern.parse(pattern)])
    assert {path for path in come | stay if wanted.says(path)} == come


def test_what_is_taken_away_is_so_with_its_dots() -> None:
    wanted = WantedPaths([Pattern.parse(text) for text in ("**", ".*", "!*.tmp")])
    assert [wanted.says(path) for path in ("a.tmp", ".x/a.tmp", ".x/.tmp", ".x/a")] == [
        False,
        False,
        False,
        True,
    ]


def test_no_pattern_takes_long() -> None:
    # With regular expressions that go back, each of these runs for minutes to years.
    stars = [
        "*a" * 50 + "*b",
        "**/" * 60 + "b",
        "**/*a*a*a*a*a*a*a*b/**/c",
        "?*" * 60 + "b",
        "**/a/" * 40 + "b",
    ]
    names = ["a" * 200, "a/" * 100 + "a", "a" * 255 + "/" + "a" * 255, "a/" * 2000 + "a"]
    for dots, below, glob, name in itertools.product((True, False), (True, False), stars, names):
        assert not regex(glob, dots=dots, below=below).match(name)


def test_what_git_takes_for_its_own_directory() -> None:
    for name in (
        ".git",
        ".GIT",
        ".gIt ",
        ".git.",
        "git~1",
        "GIT~1",
        ".g\u200cit",
        "\ufeff.git",
        ".git::$DATA",
        "x\\.git",
    ):
        assert is_git(name), name
    for name in ("git", ".gitignore", "agit", "git~", ".git~1", "x.git"):
        assert not is_git(name), name


def test_an_ignore_file_full_of_stars_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*a" * 40 + "*b\n" + "**/*a" * 30 + "/b\n")
    deep = tmp_path / "/".join(["a" * 200] * 5)
    deep.mkdir(parents=True)
    (deep / ("a" * 250)).write_text("")
    assert bundle(tmp_path).files == 2
