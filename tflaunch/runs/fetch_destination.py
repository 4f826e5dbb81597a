"""The directory on this machine that `fetch` brings files into: each whole or not at all, and none outside of it.

A file that is on its way has a temporary name, beside its place (fetch_part).  The directory is opened once, for others
may be able to put another one in its place, and no link below it is followed.  `mark` notes which files are to come
(tflaunch.code.fetched_mark), so that no run ships them as code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tflaunch.code import fetched_mark
from tflaunch.inputs.gitignore import OWN
from tflaunch.inputs.patterns import is_git, same_name
from tflaunch.protocol import directories
from tflaunch.protocol.errors import FetchError
from tflaunch.runs.fetch_part import Refused, others_write, part_name
from tflaunch.text.numbers import amount

NAME_BYTES, PATH_BYTES = 255, 4095  # as Linux has them
# Errors after which no other file can be written either.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


def leads_elsewhere(path: str) -> bool:
    """Whether `path` is not a plain path below its directory: absolute, or with `..`, `.`, `//` or NUL."""
    return not all(name not in ("", ".", "..") and "\0" not in name for name in path.split("/"))


def why_not(path: str) -> str:
    """Why `fetch` stores no file at `path`; "" if it may store one there."""
    names = path.split("/")
    try:
        if max(map(len, map(os.fsencode, names))) > NAME_BYTES or len(os.fsencode(path)) > PATH_BYTES:
            return f"its name is longer than {NAME_BYTES} bytes, or its path than {PATH_BYTES:,}"
    except UnicodeEncodeError:
        return "its name is not text"
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in path):
        return "its name holds control characters; have the program choose another one"
    if any(map(is_git, names)):
        return "git takes that name for its own directory, and runs programs in it"
    if any(map(fetched_mark.is_part, names)):
        return "tflaunch itself uses such names, for files that are on their way"
    if any(same_name(name, own) for name in names for own in (fetched_mark.NAME, OWN)):
        return "tflaunch itself uses that name, for a file that says which code is shipped"
    return ""


class Destination:
    """The directory that `fetch` writes into; it is made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None  # its descriptor: others may put another one in its place
        # What this fetch has made and marked, the directory first: (descriptor of where it is, name, its descriptor).
        self._made: list[tuple[int, str, int]] = []
        self._names: frozenset[str] | None = None  # in the directory's mark, see fetched_mark.read
        self._announced: set[str] = set()  # names that `mark` added

    def mark(self, paths: Collection[str]) -> None:
        """Mark these files before they come; if this fetch makes the directory, mark it as a whole.

        Raises FetchError.
        """
        try:
            self._names = fetched_mark.read(self._directory())
            if self._made or self._names == frozenset():  # the whole directory is marked
                return
            for path in paths:
                if self.has(path) is None and not self.is_marked(path):
                    self._announced.add(self._name_of(path))
            self._note(self._announced)
        except OSError as error:
            raise cannot_write(self.path / fetched_mark.NAME, error) from None

    def is_marked(self, path: str) -> bool:
        """Whether the mark says that the file of that path was fetched, or is to come."""
        names = self._names
        if self._made or names == frozenset():
            return True
        parts = path.split("/")
        above = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
        return names is not None and (path in names or any(each in names for each in above))

    def settle(self, came: Collection[str]) -> None:
        """Correct the mark: add the files that replaced others, remove those that did not come.

        Also removes each directory that this fetch made and brought nothing into.  Raises FetchError.
        """
        try:
            if self._made:
                for where, name, made in self._made:
                    if os.listdir(made) == [fetched_mark.NAME]:  # noqa: PTH208 - a descriptor
                        os.unlink(fetched_mark.NAME, dir_fd=made)
                        if directories.is_at(made, name, where):
                            os.rmdir(name, dir_fd=where)
            elif self._names is None or self._names:
                more = {self._name_of(path) for path in came if not self.is_marked(path)}
                gone = {name for name in self._announced if self.has(name) is None}
                self._note(more, gone)
        except OSError as error:
            raise cannot_write(self.path / fetched_mark.NAME, error) from None

    def close(self) -> None:
        """Close what it has open; may be called twice."""
        mine = {descriptor for where, _, made in self._made for descriptor in (where, made)}
        for descriptor in mine | ({self._held} if self._held is not None else set()):
            os.close(descriptor)
        self._held, self._made = None, []

    def _directory(self) -> int:
        """The directory's descriptor; makes it, and the missing ones above it, each with its mark.  Raises OSError."""
        if self._held is None:
            self._held = self._make()
        return self._held

    def _make(self) -> int:
        lacking = []
        there = self.path.absolute()
        while not there.exists() and there != there.parent:
            lacking.append(there.name)
            there = there.parent
        here = _open_named(there)
        for name in reversed(lacking):
            try:
                os.mkdir(name, dir_fd=here)
                made = True
            except FileExistsError:
                made = False
            below = os.open(name, directories.DIRECTORY, dir_fd=here)
            if os.fstat(below).st_uid != os.getuid():
                raise PermissionError(errno.EACCES, "another user has just made a directory there")
            if made:
                self._made.insert(0, (here, name, below))
                fetched_mark.write(below, ())
            here = below
        return here

    def _name_of(self, path: str) -> str:
        """The name that marks this file: the first directory on its path that is missing here, else its path."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return next((f"{folder}/" for folder in above if self.has(folder) is None), path)

    def _note(self, more: Collection[str], gone: Collection[str] = ()) -> None:
        """Add names to the mark and remove some; other fetches into the same directory may do so at the same time."""
        if not more and not gone:
            return
        with _opened(self._directory()) as directory:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(directory, fcntl.LOCK_EX)
            names = fetched_mark.read(directory)
            if names == frozenset():
                return
            self._names = (names or frozenset()).union(more).difference(gone)
            if self._names:
                fetched_mark.write(directory, self._names)
            elif names is not None:
                os.unlink(fetched_mark.NAME, dir_fd=directory)
                self._names = None

    @contextlib.contextmanager
    def beside(self, path: str) -> Iterator[tuple[int, str]]:
        """Make and open the directory of the file `path`; yields its descriptor and the file's name.

        Raises Refused, FetchError.
        """
        if leads_elsewhere(path):
            raise Refused("its name leads elsewhere")
        if why := why_not(path):
            raise Refused(why)
        *parents, name = path.split("/")
        try:
            directory = os.dup(self._directory())
        except OSError as error:
            raise cannot_write(self.path, error) from None
        try:
            for parent in parents:
                below = self._enter(directory, parent)
                os.close(directory)
                directory = below
            yield directory, name
        finally:
            os.close(directory)

    def room(self) -> Room:
        """How much can be written there now."""
        there = self.path.absolute()
        while not there.is_dir() and there != there.parent:
            there = there.parent
        try:
            disk = os.statvfs(there)
        except OSError as error:
            raise cannot_write(self.path, error) from None
        files = disk.f_favail if disk.f_files else None
        return Room(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, files, disk.f_frsize)

    def has(self, path: str) -> os.stat_result | None:
        """The stat of what exists at `path`, links not followed; None if nothing does."""
        with contextlib.suppress(OSError, ValueError):
            if self._held is None:
                return (self.path / path).lstat()
            return os.stat(path, dir_fd=self._held, follow_symlinks=False)
        return None

    def has_part(self, path: str, which: str, content: str) -> int:
        """How many bytes of an unfinished file an earlier fetch has stored."""
        part = self.has(str(Path(path).with_name(part_name(which, content))))
        return part.st_size if part is not None else 0

    def _enter(self, directory: int, name: str) -> int:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
            return os.open(name, directories.DIRECTORY, dir_fd=directory)
        except NotADirectoryError:
            raise Refused(f"{name} is a file or a link here, not a directory") from None
        except OSError as error:
            with contextlib.suppress(OSError):
                if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
                    raise Refused(f"{name} is a link here, which is not followed") from None
            if error.errno in FATAL:
                raise cannot_write(self.path, error) from None
            raise Refused(f"the directory {name} cannot be made here: {error.strerror}") from None


@dataclass(frozen=True)
class Room:
    """What a disk can still hold."""

    bytes: int
    whole: int  # bytes of the whole disk
    files: int | None  # None: the disk does not count them
    block: int  # bytes

    def taken_by(self, size: int) -> int:
        """How many bytes a file of that size takes, in whole blocks."""
        return -(-size // self.block) * self.block

    def __str__(self) -> str:
        files = f" and {self.files:,} more files" if self.files is not None else ""
        return f"{amount(self.bytes)}{files}"


def _open_named(path: Path) -> int:
    """Open the directory that the user has named; a link only where nobody else could have put it.  Raises OSError."""
    parent = os.open(path.parent, directories.WAY)
    try:
        return os.open(path.name or ".", directories.DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise
        if others_write(parent):
            raise PermissionError(
                errno.EACCES, "it is a link or a file, in a directory that others may write to"
            ) from None
        return os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


@contextlib.contextmanager
def _opened(held: int) -> Iterator[int]:
    """That directory, opened once more: so a lock on it ends with this."""
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
    try:
        yield directory
    finally:
        os.close(directory)


def cannot_write(path: Path, error: OSError) -> FetchError:
    """The error for a disk that refuses to write `path`."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return FetchError(
        f"cannot write to {path}: {why}", "make room there, or name another directory; what has come stays"
    )
