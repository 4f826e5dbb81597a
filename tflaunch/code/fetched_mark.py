"""The mark of what `fetch` brought here, so that the next run does not ship it back to the hosts.

A directory that fetch made holds a file `.tflaunch-fetched`: all of the directory was fetched.  In a directory of the
user's, that file names what fetch brought, a line each: files, and directories that fetch made, as .gitignore would
name them: `/checkpoints/`, `/metrics.csv`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from tflaunch.inputs.gitignore import unreadable

NAME = ".tflaunch-fetched"
PART_PREFIX, PART_SUFFIX = ".tflaunch-", ".part"  # of a file that is on its way
_LIMIT_BYTES = 64 * 2**20  # more than tflaunch writes into a mark
_ALL = "# tflaunch fetched this directory: no run ships it, unless --ship names it.\n"
_NAMED = "# tflaunch fetched these: no run ships them, unless --ship names them.\n"


def read(directory: str | int, only_of: int | None = None) -> frozenset[str] | None:
    """The names in the mark of `directory` (a path or a descriptor), those of directories with a slash at their end.

    None: it has no mark; empty: all of it was fetched.  A symbolic link is no mark and, with `only_of` (a user id),
    neither is a file of another user.  Raises OSError when the mark cannot be read.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        if isinstance(directory, int):
            file = os.open(NAME, flags, dir_fd=directory)
        else:
            file = os.open(os.path.join(directory, NAME), flags)  # noqa: PTH118
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):  # a link
            return None
        raise
    info = os.fstat(file)
    if not stat.S_ISREG(info.st_mode) or only_of not in (None, info.st_uid):
        os.close(file)
        return None
    with os.fdopen(file, "rb") as stream:
        lines = os.fsdecode(stream.read(_LIMIT_BYTES)).split("\n")
    return frozenset(line[1:] for line in lines if line.startswith("/") and line.strip("/"))


def write(directory: int, names: Collection[str]) -> None:
    """Mark these names in `directory` (a descriptor), or without names all of it; the old mark is replaced as a whole.

    Raises OSError.
    """
    text = _NAMED if names else _ALL
    text += "".join(f"/{name}\n" for name in sorted(names, key=os.fsencode))
    part = f"{PART_PREFIX}{os.urandom(8).hex()}-mark{PART_SUFFIX}"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(os.fsencode(text))
            stream.flush()
            os.fsync(file)
        os.replace(part, NAME, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(part, dir_fd=directory)
        raise


def is_part(name: str) -> bool:
    """Whether that is the name of a file that is on its way here."""
    return name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)


class FetchedMarks:
    """What the marks in a code directory say, and those in the directories above it."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        # Directories whose marks were read: was all of the directory fetched?
        self._whole: dict[str, bool] = {}
        self._named: set[str] = set()  # the paths that marks name; directories with a slash at their end
        for above in root.parents:
            self.read(str(above), os.getuid())

    def read(self, directory: str, only_of: int | None = None) -> bool:
        """Read the mark in `directory`, once; returns whether all of the directory was fetched.

        Raises UsageError when it cannot be read, unless `only_of` is given: other users may close directories above.
        """
        if directory not in self._whole:
            try:
                names = read(directory, only_of)
            except OSError as error:
                if only_of is None:
                    raise unreadable(os.path.join(directory, NAME), error) from None  # noqa: PTH118
                names = None
            self._whole[directory] = names is not None and not names
            self._named.update(os.path.join(directory, name) for name in names or ())  # noqa: PTH118
        return self._whole[directory]

    def has(self, path: str, is_directory: bool) -> bool:
        """Whether the marks read so far name that path, or it is a file that is on its way."""
        if path + "/" * is_directory in self._named:
            return True
        return is_part(os.path.basename(path)) and not is_directory  # noqa: PTH119

    def covers(self, path: str) -> bool:
        """Whether the file `path`, relative to the code directory, was fetched; reads the marks on the way to it."""
        folder = self._root
        self.read(folder)
        for part in Path(path).parts[:-1]:
            folder = os.path.join(folder, part)  # noqa: PTH118
            if f"{folder}/" in self._named or self.read(folder):
                return True
        return os.path.join(self._root, path) in self._named  # noqa: PTH118
