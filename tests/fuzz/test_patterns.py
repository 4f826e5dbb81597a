"""Patterns, given anything, mean what they mean to git."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.patterns import PATHS
from tflaunch.inputs.patterns import ignore_lines

PARTS = st.sampled_from(
    [
        "a", "b", "*", "**", "?", ".*", ".a", "*a", "a*", "*a*b", "a**b", "[ab]", "[!a]*", "[^.]a", "[]-]", "[a-c]",
        "[[:alpha:]]", "[[:digit:]x]*", "[!]a]", "\\a", "a\\*", "[.]a", "?a", "*.*", "[\\]]", "-", "a b",
        "[z-a]", "[z-a]*", "[!z-a]", "[z-ab]b", "a[[:no:]]", "[a[:no:]]*",
    ]
)  # fmt: skip
GLOBS = st.tuples(
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
    st.sampled_from(["", "/"]),
).map("".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@settings(deadline=None)
@given(globs=st.sets(GLOBS, min_size=1, max_size=6), paths=st.sets(PATHS, min_size=1, max_size=20))
def test_a_line_speaks_of_what_git_takes_it_for(globs: set[str], paths: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for glob in sorted(globs):
            Path(folder, ".git/info/exclude").write_text(glob)
            asked = subprocess.run(
                ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"],
                input="\0".join(sorted(paths)),
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert asked.returncode in (0, 1)
            [line] = ignore_lines([glob]) or [None]

            def ignored(path: str, line: object = line) -> bool:
                names = path.split("/")
                places = ["/".join(names[: number + 1]) for number in range(len(names))]
                return line is not None and any(line.matches(place, place != path) for place in places)  # type: ignore[attr-defined]

            assert {path for path in paths if ignored(path)} == set(asked.stdout.split("\0")) - {""}, glob
