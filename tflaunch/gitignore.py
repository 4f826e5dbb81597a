"""What git would not see: the lines of .gitignore files, as git reads them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from tflaunch.errors import UsageError
from tflaunch.patterns import IgnoreLine, ignore_lines

NAME = ".gitignore"


class Ignore(NamedTuple):
    """The lines of one ignore file, last one first; they speak of paths below `base`."""

    base: str  # "" or with a slash at its end
    rules: tuple[IgnoreLine, ...]

    def verdict(self, path: str, is_directory: bool) -> bool | None:
        """True: left out; False: taken back by a `!` line; None: nothing is said."""
        below = path.removeprefix(self.base)
        for rule in self.rules:
            if rule.matches(below, is_directory):
                return not rule.takes_back
        return None


def is_ignored(path: str, is_directory: bool, ignores: tuple[Ignore, ...]) -> bool:
    """Whether these files, those of lowest rank first, leave out `path` (below the work tree)."""
    for ignore in reversed(ignores):  # the nearest file that says anything decides
        verdict = ignore.verdict(path, is_directory)
        if verdict is not None:
            return verdict
    return False


def work_tree(directory: Path) -> Path | None:
    """The top of the git work tree that `directory` is in, if it is in one."""
    return next((folder for folder in (directory, *directory.parents) if (folder / ".git").exists()), None)


def above(
    directory: Path, top: Path | None, never: Collection[str] = ()
) -> tuple[str, tuple[Ignore, ...], bool]:
    """(its path below the work tree `top`, what speaks of its content from above, whether it is left out itself).

    The path is "" or has a closing slash.  When git ignores `directory`, or it lies in one of a name that is
    `never` shipped, what is above has nothing to say about its content.  Raises UsageError, as `read` does.
    """
    if top is None:
        return "", (), False
    ignores = [read(top / ".git" / "info" / "exclude", "")]  # of lowest rank
    prefix = ""
    for part in directory.relative_to(top).parts:
        ignores.append(read(top / prefix / NAME, prefix))
        if part in never or is_ignored(prefix + part, True, _there(ignores)):
            return "", (), True
        prefix += f"{part}/"
    return prefix, _there(ignores), False


def read(path: Path, base: str) -> Ignore | None:
    """The ignore file of that path, if there is one; raises UsageError when it or a line of it cannot be read."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # .git is a file in a linked work tree
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    lines = os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")).replace("\r\n", "\n").split("\n")
    return Ignore(base, tuple(reversed(ignore_lines(lines, str(path)))))


def _there(ignores: list[Ignore | None]) -> tuple[Ignore, ...]:
    return tuple(ignore for ignore in ignores if ignore is not None)


def unreadable(path: Path | str, error: OSError) -> UsageError:
    """What to say of a file to ship that cannot be read."""
    return UsageError(
        f"{path}: cannot be read: {error.strerror}",
        f"chmod u+r {shlex.quote(str(path))}, or add it to .gitignore if the program does not need it.",
    )
