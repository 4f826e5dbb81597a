"""The directory on this machine that `fetch` brings files into: each whole or not at all, and none outside of it.

A file that is on its way has a temporary name, beside its place:

    .tflaunch-<which file>-<which content>.part

so that the next fetch goes on where this one stopped, also in another process.  No link below the directory is
followed.  `mark` notes which files are to come (tflaunch.code.fetched_mark), so that no run ships them as code.
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
from tflaunch.inputs.ownership import written_by_others
from tflaunch.inputs.patterns import is_git, same_name
from tflaunch.inputs.sizes import amount
from tflaunch.protocol import directories
from tflaunch.protocol.errors import FetchError

NAME_BYTES, PATH_BYTES = 255, 4095  # as Linux has them
# Errors after which no other file can be written either.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class Refused(Exception):
    """The destination cannot take this one file, for the reason given; it can take others."""


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
        self._made: list[Path] = []  # what this fetch has made and marked, the directory first
        self._names: frozenset[str] | None = None  # in the directory's mark, see fetched_mark.read
        self._announced: set[str] = set()  # names that `mark` added

    def mark(self, paths: Collection[str]) -> None:
        """Mark these files before they come; if this fetch makes the directory, mark it as a whole.

        Raises FetchError.
        """
        try:
            self._make()
            self._names = fetched_mark.read(str(self.path))
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
        """Make the directory, and the missing ones above it, each with its mark."""
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
        """The name that marks this file: the first directory on its path that is missing here, else its path."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return next((f"{folder}/" for folder in above if self.has(folder) is None), path)

    def _note(self, more: Collection[str], gone: Collection[str] = ()) -> None:
        """Add names to the mark and remove some; other fetches into the same directory may do so at the same time."""
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
        """Make and open the directory of the file `path`; yields its descriptor and the file's name.

        Raises Refused, FetchError.
        """
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
        """The stat of what exists at `path`, links not followed; None if nothing does."""
        with contextlib.suppress(OSError, ValueError):
            return (self.path / path).lstat()
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


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


class Part:
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
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
