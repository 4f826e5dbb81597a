"""Frames of Python stacks, as `inspected` messages have them: (file, line, function), the innermost first.

A file below the task's working directory is relative there, any other absolute.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PACKAGES = ("site-packages/", "dist-packages/")
_SHOWN = 300  # characters: a host may tell names of 64 kB
_TYPED = ("<string>", "<stdin>")  # python -c; a program that comes by a pipe
_GENERATED = "__autograph_generated_file"  # TensorFlow's own copy of a function, with other line numbers


def is_own(file: str) -> bool:
    """Whether a file is the user's: of no installed package, and not of Python's own library."""
    if file.startswith("<"):
        return file in _TYPED
    return _GENERATED not in file and not any(name in file for name in _PACKAGES) and not _library(file)


def owned(frames: Sequence[Sequence[Any]]) -> list[bool]:
    """Of each frame, whether it is of the user's own code; a text that a library has compiled is not."""
    found: list[bool] = []
    for file, _, _ in reversed(frames):
        compiled = file in _TYPED and bool(found) and not found[-1]
        found.append(is_own(file) and not compiled)
    return found[::-1]


def own_frame(frames: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    """The innermost frame of the user's own code; None where there is none."""
    return next(compress(frames, owned(frames)), None)


def short(file: str) -> str:
    """`keras/src/trainer.py` for a file of a package, `threading.py` for one of Python's library, else all of it."""
    for name in _PACKAGES:
        if name in file:
            return file.rpartition(name)[2]
    return _library(file) or file


def place(frame: Sequence[Any]) -> str:
    """`mwms.py:26 in batches()`."""
    file, line, function = frame
    function = function[:_SHOWN]
    called = function if function.endswith(">") else f"{function}()"
    return f"{short(file)[-_SHOWN:]}:{line} in {called}"


def _library(file: str) -> str:
    """The path below `lib/python3.11/`; "" for a file of no Python's library."""
    parts = file.split("/")
    for number in range(len(parts) - 2, 0, -1):
        name = parts[number]
        if name.startswith("python") and name[6:7].isdigit() and parts[number - 1] in ("lib", "lib64"):
            return "/".join(parts[number + 1 :])
    return ""
