"""Ignore files, given anything, leave the files that git leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.code import files, grow
from tflaunch.code.bundle import bundle

NAMES = st.sampled_from(["a", "b", "foo", "build", "x.py", "y.log", "z.txt"])
LINES = st.sampled_from(
    [
        "*.log", "build/", "/build", "foo/", "foo/*", "foo/**", "**/foo", "a/**/b", "!y.log", "!foo/", "/",
        "!foo/x.py", "!/a", "/*", "!*.py", "*", "!*/", "a/", "!a/b/", "**/", "[ab]", "[!a]", "?", "*.t?t",
        "# c", "", "foo", "x.*", "a/*/x.py", "**/*.py", "!", "z.txt ", "/foo/**/y.log", "\\#x", "y.log\\",
        "fo[o", "!foo", "b/**/", "[z-a]", "[!z-a]", "[z-af]oo", "fo[[:no:]]", "![[:no:]]*",
    ]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


IGNORES = st.dictionaries(
    st.one_of(st.just("."), PATHS), st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=3
)


def work_tree(folder: str, paths: set[str]) -> Path:
    root = Path(folder).resolve()
    subprocess.run(["git", "init", "-q", root], check=True)
    for path in sorted(paths, reverse=True):  # the longest first: a shorter one may be its directory
        if not (root / path).exists() and not any((root / p).is_file() for p in Path(path).parents):
            grow(root, {path: ""})
    return root


def seen_by_git(root: Path, *excluding: str) -> set[str]:
    listing = ["git", "-C", str(root), "ls-files", "-z", "--others", *excluding]
    seen = subprocess.run(listing, check=True, stdout=subprocess.PIPE).stdout
    return {os.fsdecode(name) for name in seen.split(b"\0") if name}


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@pytest.mark.parametrize("name", [".gitignore", ".tflaunchignore"])
@settings(deadline=None, max_examples=60)  # git is another process, on a busy machine
@given(paths=st.sets(PATHS, min_size=1, max_size=20), ignores=IGNORES)
def test_git_sees_the_same_files(name: str, paths: set[str], ignores: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = work_tree(folder, paths)
        for path, lines in ignores.items():
            if (root / path).is_dir():
                grow(root, {f"{path}/{name}": "\n".join(lines)})
        assert files(bundle(root)) == seen_by_git(root, f"--exclude-per-directory={name}")


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@settings(deadline=None, max_examples=30)
@given(
    paths=st.sets(PATHS, min_size=1, max_size=20),
    lines=st.lists(LINES, max_size=4),
    more=st.lists(LINES, max_size=4),
)
def test_a_tflaunchignore_is_read_after_the_gitignore_beside_it(
    paths: set[str], lines: list[str], more: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = work_tree(folder, paths)
        grow(root, {".gitignore": "\n".join(lines), ".tflaunchignore": "\n".join(more)})
        packed = files(bundle(root))
        grow(root, {".gitignore": "\n".join([*lines, *more])})
        assert packed == seen_by_git(root, "--exclude-standard")
