"""The files that all users of this host share: the directory of leases, and a lease file in it for each device.

    /var/tmp/tflaunch-leases/<uuid>     an older tflaunch looks only at its lock; where the kernel has no file for a
                                        device, it is the only lock

Any user can put anything there under any name, also a private file of somebody who may move files from one directory
to another with him.  So only what looks like a lease file is written to, and that anybody may write: a plain file with
one name, the mode 0666 and at most READ_LIMIT bytes.  Anything else stays as it is; the lease has the next name then.
"""

import errno
import os
import stat

from tflaunch.agent.gpus.locks import TRIES, Busy, lock_alone, lockers, look_at
from tflaunch.agent.host.foreign import user_name
from tflaunch.agent.host.rundir import HostError
from tflaunch.protocol import directories
from tflaunch.protocol.directories import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

# One place for all users and runs, or they would not see each other; tests have a place and devices of their own.
OWN = os.environ.get("TFLAUNCH_LEASES")
DIRECTORY = OWN or "/var/tmp/tflaunch-leases"  # noqa: S108
SHARED_MODE = 0o1777  # as /tmp has it
FILE_MODE = 0o666  # other users must be able to lock it later
READ_LIMIT = 4096
SPARE = 3  # how many more names are tried where something else stands in a lease file's place
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def opened(make: bool = True) -> int:
    """A descriptor of the directory of leases; raises HostError, and unless `make` is set FileNotFoundError."""
    return open_shared(DIRECTORY, DIRECTORY, make)


def open_shared(shown: str, name: str, make: bool, inside: "Optional[int]" = None) -> int:
    """A descriptor of a directory that all users share; `shown` is its path.  Raises as `opened` does."""
    try:
        if make:
            directories.make(name, SHARED_MODE, inside)
        descriptor = os.open(name, directories.DIRECTORY, dir_fd=inside)
        info = os.fstat(descriptor)
    except FileNotFoundError:
        if not make:
            raise
        raise HostError("%s comes and goes" % shown) from None
    except OSError as error:
        raise _no_directory(shown, name, inside, error) from error
    if info.st_mode & SHARED_MODE == SHARED_MODE:
        return descriptor
    os.close(descriptor)
    raise HostError(
        "%s has the mode %04o, where GPU leases of all users are kept; its owner %s or root may: chmod %o %s"
        % (shown, stat.S_IMODE(info.st_mode), owner(info), SHARED_MODE, shown)
    )


def _no_directory(shown: str, name: str, inside: "Optional[int]", error: OSError) -> HostError:
    try:
        info = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except OSError:
        info = None
    if info is None or stat.S_ISDIR(info.st_mode):
        return HostError("%s: %s" % (shown, os.strerror(error.errno or 0)))
    return HostError(
        "%s is a link or a file of %s, where GPU leases are kept; he or root may: rm %s"
        % (shown, owner(info), shown)
    )


def names(uuid: str) -> "List[str]":
    """The names that the lease file of that device may have; raises HostError."""
    if not uuid or "/" in uuid or uuid.startswith("."):
        raise HostError("%r is no device" % uuid)
    return [uuid, *("%s.%d" % (uuid, number) for number in range(1, SPARE + 1))]


class Taken:
    """The lease files of one device, locked."""

    def __init__(self, uuid: str) -> None:
        """Raises HostError, and Busy when another process has locked one.

        There is one file, as a rule.  This locks all that there are under any of the names, and makes sure that nobody
        has locked what only looks like one, as an older tflaunch might: so it does not matter when what stands in the
        way is removed.
        """
        self._files = []  # type: List[Tuple[str, int]]
        self.yours = ""  # a sentence about a file of this user's that somebody has put there
        in_the_way = []  # type: List[HostError]
        others = []  # type: List[int]
        directory = opened()
        try:
            for name in names(uuid):
                try:
                    self._files.append((name, _take(directory, name, not self._files, others)))
                except FileNotFoundError:
                    pass
                except HostError as error:
                    in_the_way.append(error)
                    if isinstance(error, _Yours):
                        self.yours = error.reason
            _no_room(in_the_way)
            for descriptor in others:  # only now: whoever comes later finds what this has locked
                look_at(descriptor)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in (directory, *others):
                os.close(descriptor)

    def gone(self) -> str:
        """The path of a file that has lost its name; "" if all have theirs."""
        try:
            directory = opened(make=False)
        except (HostError, FileNotFoundError):
            return os.path.join(DIRECTORY, self._files[0][0])
        try:
            missing = [name for name, held in self._files if not directories.is_at(held, name, directory)]
        finally:
            os.close(directory)
        return os.path.join(DIRECTORY, missing[0]) if missing else ""

    def touch(self) -> None:
        """Make the files young: some programs that remove old files do not look at locks."""
        for _, descriptor in self._files:
            try:
                if not why_none(os.fstat(descriptor)):
                    os.utime(descriptor)
            except OSError:
                pass  # another user's

    def write(self, content: bytes, everywhere: bool = False) -> None:
        """Write that into the first file, or into all."""
        for _, descriptor in self._files if everywhere else self._files[:1]:
            try:
                if not why_none(os.fstat(descriptor)):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, content, 0)
            except OSError:
                pass  # a full disk, or a file that this user may only read: the lock holds all the same

    def close(self) -> None:
        for _, descriptor in self._files:
            os.close(descriptor)


def look(uuid: str) -> None:
    """Raise Busy when somebody has locked a lease file of that device, HostError when there can be none."""
    in_the_way = []  # type: List[HostError]
    try:
        directory = opened(make=False)
    except FileNotFoundError:
        return
    try:
        for name in names(uuid):
            try:
                descriptor, why = _open(directory, name)
            except FileNotFoundError:
                continue
            except HostError as error:
                in_the_way.append(error)
                continue
            try:
                look_at(descriptor)
            finally:
                os.close(descriptor)
            if why is not None:
                in_the_way.append(why)
    finally:
        os.close(directory)
    _no_room(in_the_way)


def read(uuid: str) -> "List[bytes]":
    """What the lease files of that device say; anybody may have written it."""
    found = []  # type: List[bytes]
    try:
        directory = opened(make=False)
    except (HostError, FileNotFoundError):
        return found
    for name in names(uuid):
        try:
            descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=directory)
        except OSError:
            continue
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found.append(os.pread(descriptor, READ_LIMIT, 0))
        except OSError:
            pass
        finally:
            os.close(descriptor)
    os.close(directory)
    return found


def _no_room(in_the_way: "List[HostError]") -> None:
    if len(in_the_way) > SPARE:
        raise HostError("%s, and likewise under %d other names" % (in_the_way[0].reason, SPARE))


def _take(directory: int, name: str, make: bool, others: "List[int]") -> int:
    """The lease file of that name, locked; opens what is none for `others`.

    Raises FileNotFoundError, HostError, Busy.
    """
    for _ in range(TRIES):
        try:
            descriptor, why = _open(directory, name)
        except FileNotFoundError:
            if not make:
                raise
            try:
                descriptor, why = directories.make_file(name, FILE_MODE, directory), None
            except FileExistsError:
                continue  # another agent was quicker
            except OSError as error:
                path = os.path.join(DIRECTORY, name)
                raise HostError("%s: %s" % (path, os.strerror(error.errno or 0))) from error
        if why is not None:
            others.append(descriptor)
            raise why
        try:
            lock_alone(descriptor)
            if directories.is_at(descriptor, name, directory):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed while this waited
    raise HostError("%s comes and goes" % os.path.join(DIRECTORY, name))


def _open(directory: int, name: str) -> "Tuple[int, Optional[HostError]]":
    """Open a plain file of that name; with it comes why it is no lease file, if it is none.

    Raises FileNotFoundError, Busy, and HostError when it cannot be opened, or is no file.
    """
    # Without O_CREAT: Linux refuses that for other users' files in a sticky directory.  A file that this user may only
    # read can still be locked.
    path = os.path.join(DIRECTORY, name)
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(name, access | FILE, dir_fd=directory)
            break
        except FileNotFoundError:
            raise
        except OSError as error:
            failure = error
    else:
        if failure.errno in _NO_MORE:
            raise HostError("%s: %s" % (path, os.strerror(failure.errno))) from failure
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(info.st_mode) and lockers(info):
            raise Busy(info)
        raise _in_the_way(path, info)
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise _in_the_way(path, info)
    return descriptor, _in_the_way(path, info) if why_none(info) else None


def why_none(info: os.stat_result) -> str:
    """Why that is no lease file, which this user may write to whoever made it; "" if it is one."""
    if not stat.S_ISREG(info.st_mode):
        return "it is a %s" % directories.described(info)
    if info.st_nlink != 1:
        return "it has %d names" % info.st_nlink
    if stat.S_IMODE(info.st_mode) != FILE_MODE:
        return "its mode is %04o" % stat.S_IMODE(info.st_mode)
    return "it has %d bytes" % info.st_size if info.st_size > READ_LIMIT else ""


class _Yours(HostError):
    """About a file of this user's."""


def _in_the_way(path: str, info: os.stat_result) -> HostError:
    if not stat.S_ISREG(info.st_mode):
        kind = directories.described(info)
        remove = "rm -r" if kind == "directory" else "rm"
        return HostError(
            "%s is a %s of %s, where a GPU's lease is kept; he or root may: %s %s"
            % (path, kind, owner(info), remove, path)
        )
    error = _Yours if info.st_uid == os.getuid() else HostError
    return error(
        "%s is a file of %s, where a GPU's lease is kept, but no lease file (%s): it stays as it is; its owner or root "
        "may: mv %s DIRECTORY" % (path, owner(info), why_none(info) or "others may not read it", path)
    )


def owner(info: os.stat_result) -> str:
    """Whose that is: `ann (uid 1000)`."""
    return "%s (uid %d)" % (user_name(info.st_uid), info.st_uid)
