"""The text of a program that nobody meant to run: it is read in a moment, and never ends the launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.code.imports import imported_files

MUCH = 200_000


@pytest.mark.parametrize(
    "text",
    [
        f"import {'a' * 300}",  # no file can have that name
        f"import {'.'.join('a' * 5000)}",
        # What the Python here cannot read.
        f"def (\nfrom {'.' * MUCH}",
        f"def (\nfrom{' ' * MUCH}x",
    ],
    ids=["long-name", "many-names", "dots", "blanks"],
)
def test_it_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert imported_files(tmp_path, "train.py") == ["train.py"]


def test_of_text_that_the_python_here_cannot_read_the_imports_are_found(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "five"):
        (tmp_path / f"{name}.py").touch()
    text = "print 'old'\nif x:\n\timport one, two as too # five\nfrom  three  import \\\n  x\n"
    (tmp_path / "train.py").write_text(text)
    assert imported_files(tmp_path, "train.py") == ["train.py", "one.py", "two.py", "three.py"]
