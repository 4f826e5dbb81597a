"""The mark of what `fetch` brought here, so that the next run does not ship it back to the hosts.

A directory that fetch made holds a file `.tflaunch-fetched`, which stands for all of the directory.  Where fetch
brought files into a directory of the user's, that file names them, a line each, and each directory that fetch made
there, as .gitignore would: `/checkpoints/`, `/metrics.csv`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

NAME = ".tflaunch-fetched"
PART_PREFIX, PART_SUFFIX = ".tflaunch-", ".part"  # of a file that is on its way
_LIMIT_BYTES = 64 * 2**20  # more than is ever written
_ALL = "# tflaunch fetched this directory: no run ships it, unless --ship names it.\n"
_NAMED = "# tflaunch fetched these: no run ships them, unless --ship names them.\n"


def read(directory: str, only_of: int | None = None) -> frozenset[str] | None:
    """The names in the mark of `directory`, those of directories with a slash at their end.

    None: it has no mark; empty: all of it was fetched.  A link is no mark, nor, with `only_of`, what another user owns.
    Raises OSError when it cannot be read.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(os.path.join(directory, NAME), flags)  # noqa: PTH118
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if os.path.islink(os.path.join(directory, NAME)):  # noqa: PTH114, PTH118
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
    """Mark the open `directory` as these names, or with none as all of it; whole or not at all, and never by a link.

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
    """Whether a file of that name is on its way here."""
    return name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)
