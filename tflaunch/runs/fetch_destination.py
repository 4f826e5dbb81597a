"""A directory on this machine that files are brought into: each whole or not at all, none outside of it.

What comes is written below a temporary name, beside where it will be:

    .tflaunch-<which file>-<which content>.part

so that it goes on where it stopped, also in another process.  No link below the directory is followed.  What comes is
marked (tflaunch.code.fetched_mark), before it does: it is not code, and no run ships it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tflaunch.code import fetched_mark
from tflaunch.code.fetched_mark import PART_PREFIX, PART_SUFFIX
from tflaunch.inputs.gitignore import OWN
from tflaunch.inputs.patterns import is_git, same_name
from tflaunch.inputs.sizes import amount
from tflaunch.protocol.errors import FetchError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_BYTES, PATH_BYTES = 255, 4095  # as Linux has them
# No other file can be written then either.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class Refused(Exception):
    """One file cannot be put there, and why; others can."""


def leads_elsewhere(path: str) -> bool:
    """Whether that is no path below a directory: absolute, with `..`, without a name, with NUL."""
    return not all(name not in ("", ".", "..") and "\0" not in name for name in path.split("/"))


def why_not(path: str) -> str:
    """Why no file is brought here by that name; "" if it is one like others."""
    names = path.split("/")
    try:
        if max(map(len, map(os.fsencode, names))) > NAME_BYTES or len(os.fsencode(path)) > PATH_BYTES:
            return f"its name is longer than {NAME_BYTES} bytes, or its path than {PATH_BYTES:,}"
    except UnicodeEncodeError:
        return "its name is no text"
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in path):
        return "its name holds control characters; have the program choose another one"
    if any(map(is_git, names)):
        return "git takes that name for its own directory, and runs what lies there"
    if any(map(fetched_mark.is_part, names)):
        return "its name is one of tflaunch's own, for files that are on their way"
    if any(same_name(name, own) for name in names for own in (fetched_mark.NAME, OWN)):
        return "its name is one of tflaunch's own, which says what of the code is shipped"
    return ""


class Destination:
    """The directory; it is made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []  # what this fetch has made and marked, the directory first
        self._names: frozenset[str] | None = None  # in its mark, as fetched_mark.read has them
        self._announced: set[str] = set()  # those of them that are there for what is to come now

    def mark(self, paths: Collection[str]) -> None:
        """Mark what is to come there: all of the directory where that is made now, else the names of these files.

        Raises FetchError.
        """
        try:
            self._make()
            self._names = fetched_mark.read(str(self.path))
            if self._made or self._names == frozenset():  # all of it
                return
            for path in paths:
                if self.has(path) is None and not self.is_marked(path):
                    self._announced.add(self._name_of(path))
            self._note(self._announced)
        except OSError as error:
            raise cannot_write(self.path / fetched_mark.NAME, error) from None

    def is_marked(self, path: str) -> bool:
        """Whether the mark says that the file of that path was fetched, or will be."""
        names = self._names
        if self._made or names == frozenset():
            return True
        parts = path.split("/")
        above = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
        return names is not None and (path in names or any(each in names for each in above))

    def settle(self, came: Collection[str]) -> None:
        """Have the mark say what is there: also files that came in the place of others, and none that did not come.

        A directory that was made for nothing is removed.  Raises FetchError.
        """
        try:
            if self._made:
                for path in self._made:
                    if [each.name for each in path.iterdir()] == [fetched_mark.NAME]:
                        (path / fetched_mark.NAME).unlink()
                        path.rmdir()
            elif self._names is None or self._names:
                more = {self._name_of(path) for path in came if not self.is_marked(path)}
                gone = {name for name in self._announced if self.has(name) is None}
                self._note(more, gone)
        except OSError as error:
            raise cannot_write(self.path / fetched_mark.NAME, error) from None

    def _make(self) -> None:
        """Make the directory and those above it that lack, each with its mark."""
        lacking = []
        there = self.path
        while not there.exists() and there != there.parent:
            lacking.append(there)
            there = there.parent
        for path in reversed(lacking):
            try:
                path.mkdir()
            except FileExistsError:
                continue
            self._made.insert(0, path)
            with _opened(path) as directory:
                fetched_mark.write(directory, ())

    def _name_of(self, path: str) -> str:
        """The file, or the first directory on the way to it that is not here yet."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return next((f"{folder}/" for folder in above if self.has(folder) is None), path)

    def _note(self, more: Collection[str], gone: Collection[str] = ()) -> None:
        """Change the mark, which other fetches to the same directory change, too."""
        if not more and not gone:
            return
        with _opened(self.path) as directory:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(directory, fcntl.LOCK_EX)
            names = fetched_mark.read(str(self.path))
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
        """The directory of the file `path`, opened (and made), and its name there; raises Refused, FetchError."""
        if leads_elsewhere(path):
            raise Refused("its name leads elsewhere")
        if why := why_not(path):
            raise Refused(why)
        *parents, name = path.split("/")
        try:
            self._make()
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        """What is there by that name, if anything can be looked at."""
        with contextlib.suppress(OSError, ValueError):
            return (self.path / path).lstat()
        return None

    def has_part(self, path: str, which: str, content: str) -> int:
        """How much of a file has come before, in bytes."""
        part = self.has(str(Path(path).with_name(part_name(which, content))))
        return part.st_size if part is not None else 0

    def _enter(self, directory: int, name: str) -> int:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
            return os.open(name, _DIRECTORY, dir_fd=directory)
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
    """What a disk can still take: bytes, of so many in all, and files, if it counts them; in whole blocks."""

    bytes: int
    whole: int
    files: int | None
    block: int

    def taken_by(self, size: int) -> int:
        """Bytes that a file of that size takes."""
        return -(-size // self.block) * self.block

    def __str__(self) -> str:
        files = f" and {self.files:,} more files" if self.files is not None else ""
        return f"{amount(self.bytes)}{files}"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def cannot_write(path: Path, error: OSError) -> FetchError:
    """The error for a disk that says no."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return FetchError(
        f"cannot write to {path}: {why}", "make room there, or name another directory; what has come stays"
    )


def present(directory: int, name: str) -> int | None:
    """The regular file of that name, opened, or None when there is nothing; raises Refused."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"what is here by that name cannot be read: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise Refused("here that is no file")


def part_name(which: str, content: str) -> str:
    """What a file is called while it is on its way."""
    return f"{PART_PREFIX}{_short(which)}-{_short(content)}{PART_SUFFIX}"


def make_executable(file: int) -> None:
    """Whoever may read it may run it."""
    mode = os.fstat(file).st_mode
    os.fchmod(file, stat.S_IMODE(mode | (mode & 0o444) >> 2))


class Part:
    """A file that is on its way; `have` is how much of it has come before.  Raises Refused, OSError."""

    def __init__(self, directory: int, name: str, which: str, content: str) -> None:
        self._directory, self._name = directory, name
        mine = f"{PART_PREFIX}{_short(which)}-"
        self._part = part_name(which, content)
        for other in os.listdir(directory):
            if other.startswith(mine) and other.endswith(PART_SUFFIX) and other != self._part:
                with contextlib.suppress(OSError):
                    os.unlink(other, dir_fd=directory)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.open(self._part, flags, 0o666, dir_fd=directory)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self.file), os.stat(self._part, dir_fd=directory)):
                raise FileExistsError  # it was just finished
        except OSError:
            os.close(self.file)
            raise Refused("another tflaunch is bringing it just now") from None
        self.have = os.fstat(self.file).st_size

    def forget(self) -> None:
        """Begin anew."""
        os.ftruncate(self.file, 0)
        self.have = 0

    def write(self, offset: int, data: bytes) -> None:
        """Store bytes that begin at `offset` there; `have` grows with those that leave no hole."""
        follows = offset == self.have
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.file, rest, offset)
            rest, offset = rest[written:], offset + written
        self.have = offset if follows else self.have

    def finish(self, modified_ns: int, executable: bool, overwrite: bool) -> bool:
        """Give it its name; False when that was taken meanwhile."""
        if executable:
            make_executable(self.file)
        with contextlib.suppress(OSError, OverflowError):  # a time that this disk does not know
            os.utime(self.file, ns=(modified_ns, modified_ns))
        os.fsync(self.file)
        here = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
        if not overwrite:
            try:
                os.link(self._part, self._name, follow_symlinks=False, **here)
                os.unlink(self._part, dir_fd=self._directory)
                return True
            except FileExistsError:
                self.forget()
                return False
            except (OSError, NotImplementedError):  # a disk without hard links
                if _exists(self._directory, self._name):
                    self.forget()
                    return False
        os.replace(self._part, self._name, **here)  # noqa: PTH105
        return True

    def close(self) -> None:
        """What has come stays, for the next time; nothing leaves nothing."""
        with contextlib.suppress(OSError):
            if os.fstat(self.file).st_size == 0:
                os.unlink(self._part, dir_fd=self._directory)
        os.close(self.file)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
