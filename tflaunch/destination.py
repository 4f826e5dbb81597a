"""A directory on this machine that files are brought into: each whole or not at all, none outside of it.

What comes is written below a temporary name, beside where it will be:

    .tflaunch-<which file>-<which content>.part

so that it goes on where it stopped, also in another process.  No link below the directory is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tflaunch.errors import FetchError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PREFIX, _SUFFIX = ".tflaunch-", ".part"


class Refused(Exception):
    """One file cannot be put there, and why; others can."""


class Destination:
    """The directory; it is made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def beside(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory of the file `path`, opened (and made), and its name there; raises Refused, FetchError."""
        *parents, name = path.split("/")
        if not all(part not in ("", ".", "..") and "\0" not in part for part in (*parents, name)):
            raise Refused("its name leads elsewhere")
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

    def _enter(self, directory: int, name: str) -> int:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except NotADirectoryError:
            raise Refused(f"{name} is a file or a link here, not a directory") from None
        except OSError as error:
            if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
                raise Refused(f"{name} is a link here, which is not followed") from None
            raise cannot_write(self.path, error) from None


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


class Part:
    """A file that is on its way; `have` is how much of it has come before.  Raises Refused, OSError."""

    def __init__(self, directory: int, name: str, which: str, content: str) -> None:
        self._directory, self._name = directory, name
        mine = f"{_PREFIX}{_short(which)}-"
        self._part = f"{mine}{_short(content)}{_SUFFIX}"
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
        """Store bytes that begin at `offset` there."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.file, rest, offset)
            rest, offset = rest[written:], offset + written

    def finish(self, modified_ns: int, executable: bool, overwrite: bool) -> bool:
        """Give it its name; False when that was taken meanwhile."""
        if executable:
            mode = os.fstat(self.file).st_mode
            os.fchmod(self.file, stat.S_IMODE(mode | (mode & 0o444) >> 2))
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
