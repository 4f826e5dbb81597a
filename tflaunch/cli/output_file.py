"""A file that the user names for what a command writes: exchanged whole; a pipe or a device is written into."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import TextIO

from tflaunch.inputs.ownership import MOST_LINKS, exchanged_by_others
from tflaunch.protocol.errors import UsageError

_MODE = 0o644  # writable for this user alone: else tflaunch refuses a hostfile that it finds by itself


class OutputFile:
    """Takes one text.

    A plain file is, at every moment, absent, old or complete; a link to it stays.  A pipe, a terminal or another device
    stays what it is, and gets the text, also behind a link.  A link or a pipe that another user may have put there is
    itself exchanged for a plain file.
    """

    def __init__(self, path: Path, option: str) -> None:
        """`option` is what the user named it by.  Raises UsageError where it cannot be written."""
        self.path = path
        self._into: TextIO | None = None
        said = f"{option} {path}"
        if path.is_dir():
            raise UsageError(f"{said}: a directory", f"name a file in it: {option} FILE")
        try:
            place = _exchanged(path)
        except OSError as error:
            raise UsageError(f"{said}: {error.strerror}", f"name another file: {option} FILE") from None
        if place is None:
            if not os.access(path, os.W_OK):
                raise UsageError(f"{said}: you may not write to it", f"name another file: {option} FILE")
        elif not place.parent.is_dir():
            parent = place.parent if path.is_symlink() else path.parent
            raise UsageError(f"{said}: there is no directory {parent}", "make it, or name another")
        elif not os.access(place.parent, os.W_OK):
            raise UsageError(
                f"{said}: you may not write in {place.parent.absolute()}",
                f"name a file elsewhere: {option} FILE",
            )

    @property
    def replaces(self) -> bool:
        """Whether there is something that `write` would put an end to.  Raises OSError."""
        return os.path.lexists(self.path) and _exchanged(self.path) is not None

    def open(self) -> None:
        """Wait for the reader of a named pipe; for where Ctrl-C would not end that in `write`.  Raises OSError."""
        if _exchanged(self.path) is None:
            self._into = self._opened()

    def write(self, text: str, *, new: bool = False) -> None:
        """Write it, and close the file; `new`: unless a file is there by now.  Raises OSError."""
        place = None if self._into else _exchanged(self.path)
        if place is None:
            with self._into or self._opened() as file:
                file.write(text)
        elif new:
            _write_new(self.path, text, _MODE)
        else:
            _exchange(place, text)

    def _opened(self) -> TextIO:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY | os.O_CLOEXEC)
        return os.fdopen(descriptor, "w", encoding="utf-8")


def _exchanged(path: Path) -> Path | None:
    """The plain file, there or not, that is exchanged; None: what `path` leads to is written into.  Raises OSError."""
    for _ in range(MOST_LINKS):
        directory = path.parent.resolve()
        path = directory / path.name
        try:
            entry = path.lstat()
        except FileNotFoundError:
            return path
        # Nothing is written through what another user may have put there.
        if (
            stat.S_ISREG(entry.st_mode)
            or entry.st_uid not in (0, os.getuid())
            or exchanged_by_others(directory)
        ):
            return path
        if not stat.S_ISLNK(entry.st_mode):
            return None
        further = directory / path.readlink()
        # A link to what is open, as /dev/stdout is one, leads also to what has no name, or none any more.
        if path.exists() and not (further.exists() and further.samefile(path)):
            return None
        path = further
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _exchange(place: Path, text: str) -> None:
    """Who could not read the file before cannot later."""
    mode = _MODE
    with contextlib.suppress(FileNotFoundError):
        mode &= place.lstat().st_mode
    # Others may write to that directory: never into what is there, and by no name that they can foresee.
    building = place.parent / f".tflaunch-{secrets.token_hex(8)}"
    _write_new(building, text, mode)
    try:
        building.replace(place)
    except OSError:
        building.unlink(missing_ok=True)
        raise


def _write_new(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
