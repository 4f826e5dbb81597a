"""Which files of the code are not shipped: .gitignore files, as git reads them, and .tflaunchignore files.

Both have the same language.  The nearest .tflaunchignore with a line that matches a path decides; only where there is
none do the .gitignore files decide.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from tflaunch.inputs.patterns import IgnoreLine, ignore_lines
from tflaunch.protocol.errors import UsageError

NAME, OWN = ".gitignore", ".tflaunchignore"


class Ignore(NamedTuple):
    """The lines of one ignore file, last one first; their paths are below `base`."""

    base: str  # "" or with a slash at its end
    rules: tuple[IgnoreLine, ...]
    file: Path

    def verdict(self, path: str, is_directory: bool) -> IgnoreLine | None:
        """The line that leaves this path out, or takes it back; None: no line matches."""
        below = path.removeprefix(self.base)
        return next((rule for rule in self.rules if rule.matches(below, is_directory)), None)


def left_out_by(path: str, is_directory: bool, ignores: tuple[Ignore, ...]) -> tuple[Path, IgnoreLine] | None:
    """Which line of these files, those of lowest rank first, leaves out `path` (below the work tree), if one does."""
    for ignore in reversed(ignores):  # the nearest file with a line that matches decides
        if (rule := ignore.verdict(path, is_directory)) is not None:
            return None if rule.takes_back else (ignore.file, rule)
    return None


def is_ignored(path: str, is_directory: bool, ignores: tuple[Ignore, ...]) -> bool:
    """Whether these files leave out `path`."""
    return left_out_by(path, is_directory, ignores) is not None


def with_those_in(
    directory: Path, base: str, ignores: tuple[Ignore, ...], names: Collection[str] = (NAME, OWN)
) -> tuple[Ignore, ...]:
    """`ignores` and the ignore files in `directory` that are among `names`; raises UsageError, as `read` does."""
    found = [read(directory / name, base) for name in (NAME, OWN) if name in names]
    if not any(found):
        return ignores
    return tuple(sorted((*ignores, *filter(None, found)), key=lambda ignore: ignore.file.name == OWN))


def work_tree(directory: Path) -> Path | None:
    """The top of the git work tree that `directory` is in, if it is in one."""
    return next((folder for folder in (directory, *directory.parents) if (folder / ".git").exists()), None)


def above(
    directory: Path, top: Path | None, never: Collection[str] = ()
) -> tuple[str, tuple[Ignore, ...], bool]:
    """(its path below the work tree `top`, the ignore files above it, whether they leave it out itself).

    The path is "" or has a closing slash.  When git ignores `directory`, or a part of its path is in `never` (never
    shipped), no ignore file above it counts for its content.  Raises UsageError, as `read` does.
    """
    if top is None:
        return "", (), False
    lowest = read(top / ".git" / "info" / "exclude", "")
    ignores: tuple[Ignore, ...] = () if lowest is None else (lowest,)
    prefix = ""
    for part in directory.relative_to(top).parts:
        ignores = with_those_in(top / prefix, prefix, ignores)
        if part in never or is_ignored(prefix + part, True, ignores):
            return "", (), True
        prefix += f"{part}/"
    return prefix, ignores, False


def read(path: Path, base: str) -> Ignore | None:
    """The ignore file of that path, if there is one; raises UsageError when it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            return None
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # .git is a file in a linked work tree
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    lines = os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")).replace("\r\n", "\n").split("\n")
    return Ignore(base, tuple(reversed(ignore_lines(lines))), path)


def unreadable(path: Path | str, error: OSError) -> UsageError:
    """The error for a file to ship that cannot be read."""
    return UsageError(
        f"{path}: cannot be read: {error.strerror}",
        f"chmod u+r {shlex.quote(str(path))}, or add it to .gitignore or .tflaunchignore if the program does not need"
        " it.",
    )
