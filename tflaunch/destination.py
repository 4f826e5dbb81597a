"""A directory on this machine that files are brought into: each whole or not at all, none outside of it.

What comes is written below a temporary name, beside where it will be:

    .tflaunch-<which file>-<which content>.part

so that it goes on where it stopped, also in another process.  No link below the directory is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tflaunch.errors import FetchError
from tflaunch.patterns import is_git
from tflaunch.sizes import amount

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PREFIX, _SUFFIX = ".tflaunch-", ".part"
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
    if any(name.startswith(_PREFIX) and name.endswith(_SUFFIX) for name in names):
        return "its name is one of tflaunch's own, for files that are on their way"
    return ""


class Destination:
    """The directory; it is made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def beside(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory of the file `path`, opened (and made), and its name there; raises Refused, FetchError."""
        if leads_elsewhere(path):
            raise Refused("its name leads elsewhere")
        if why := why_not(path):
            raise Refused(why)
        *parents, name = path.split("/")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
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
    return f"{_PREFIX}{_short(which)}-{_short(content)}{_SUFFIX}"


def make_executable(file: int) -> None:
    """Whoever may read it may run it."""
    mode = os.fstat(file).st_mode
    os.fchmod(file, stat.S_IMODE(mode | (mode & 0o444) >> 2))


class Part:
    """A file that is on its way; `have` is how much of it has come before.  Raises Refused, OSError."""

    def __init__(self, directory: int, name: str, which: str, content: str) -> None:
        self._directory, self._name = directory, name
        mine = f"{_PREFIX}{_short(which)}-"
        self._part = part_name(which, content)
        for other in os.listdir(directory):
            if other.startswith(mine) and other.endswith(_SUFFIX) and other != self._part:
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
