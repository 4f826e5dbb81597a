"""A file that `fetch` brings, on its way: it has a temporary name beside its place, and is given its own at the end.

    .tflaunch-<which file>-<which content>.part

so that the next fetch goes on where this one stopped, also in another process.  Where other users may put files into
that directory, nothing that is there is gone on with: each file has a fresh name then, and is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat

from tflaunch.code.fetched_mark import PART_PREFIX, PART_SUFFIX
from tflaunch.inputs.ownership import written_by_others
from tflaunch.protocol import directories


class Refused(Exception):
    """The destination cannot take this one file, for the reason given; it can take others."""


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
    raise Refused("what is here by that name is not a regular file")


def part_name(which: str, content: str) -> str:
    """The temporary name of a file on its way: `which` identifies the file, `content` its version."""
    return f"{PART_PREFIX}{_short(which)}-{_short(content)}{PART_SUFFIX}"


def others_write(directory: int) -> bool:
    """Whether other users may put files into that directory: nothing there is changed then but what comes now."""
    return bool(written_by_others(directory, os.fstat(directory)))


def make_executable(file: int) -> None:
    """Let those who may read a file run it, too."""
    mode = os.fstat(file).st_mode
    os.fchmod(file, stat.S_IMODE(mode | (mode & 0o444) >> 2))


def _lock(file: int) -> None:
    """Lock a file, where the file system has locks; raises BlockingIOError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


class FilePart:
    """A file that is on its way; `have` is how many bytes of it are here.

    `which` identifies the file, `content` the version of its content.  Raises Refused, OSError.
    """

    def __init__(self, directory: int, name: str, which: str, content: str) -> None:
        self._directory, self._name = directory, name
        self._part = part_name(which, content)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        if others_write(directory):
            # Whatever is here may have been put here, also a file of this user's: nothing is gone on with.
            self._part = part_name(which, content + os.urandom(8).hex())
            flags |= os.O_EXCL
        else:
            self._clear(f"{PART_PREFIX}{_short(which)}-")
        self.file = os.open(self._part, flags, 0o666, dir_fd=directory)
        try:
            _lock(self.file)
            if not os.path.samestat(os.fstat(self.file), os.stat(self._part, dir_fd=directory)):
                raise FileExistsError  # it was just finished
        except OSError:
            os.close(self.file)
            raise Refused("another tflaunch is fetching it at this moment") from None
        self.have = os.fstat(self.file).st_size

    def _clear(self, mine: str) -> None:
        """Remove what came of other versions of that file."""
        for other in os.listdir(self._directory):  # noqa: PTH208 - a descriptor
            if other.startswith(mine) and other.endswith(PART_SUFFIX) and other != self._part:
                with contextlib.suppress(OSError):
                    os.unlink(other, dir_fd=self._directory)

    def forget(self) -> None:
        """Drop what has come, and begin again."""
        os.ftruncate(self.file, 0)
        self.have = 0

    def write(self, offset: int, data: bytes) -> None:
        """Store bytes that begin at `offset` of the file; `have` grows unless they leave a hole."""
        follows = offset == self.have
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.file, rest, offset)
            rest, offset = rest[written:], offset + written
        self.have = offset if follows else self.have

    def finish(self, modified_ns: int, executable: bool, overwrite: bool) -> bool:
        """Give the file its name; False when the name was taken meanwhile, and `overwrite` is false."""
        if executable:
            make_executable(self.file)
        with contextlib.suppress(OSError, OverflowError):  # a time that this disk cannot store
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
        """Close the file.  What has come stays for the next fetch; a part that is empty, or of no use, is removed."""
        with contextlib.suppress(OSError):
            there = directories.is_at(self.file, self._part, self._directory)
            if there and (os.fstat(self.file).st_size == 0 or others_write(self._directory)):
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
