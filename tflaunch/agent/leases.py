"""GPU leases: one `flock` per device in a directory that all users of this host share.

The kernel frees a lock with its holder, whatever ends it; the files stay, and mean nothing by themselves.
What is written in them says who holds the lock, for other people to read; it is never believed further.
"""

import errno
import fcntl
import os
import pwd
import stat
import time

from tflaunch import wire
from tflaunch.agent.rundir import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional, Tuple

# One place for all users and runs, or they would not see each other; tests have a place of their own.
DIRECTORY = os.environ.get("TFLAUNCH_LEASES") or "/var/tmp/tflaunch-leases"  # noqa: S108
READ_LIMIT = 4096
TRIES = 5  # somebody who only looks holds a lock for an instant
PAUSE_S = 0.01


class Leases:
    """The devices that this agent holds."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._held = {}  # type: Dict[str, int]

    def take(self, uuid: str) -> "Optional[Dict[str, Any]]":
        """Hold that device; None when it is held now, else who holds it.  Raises HostError."""
        if uuid in self._held:
            return None
        prepare(DIRECTORY)
        descriptor = _open(uuid)
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S)
            if lock(descriptor, fcntl.LOCK_EX):
                self._held[uuid] = descriptor
                self._sign(descriptor, planning=True)
                return None
        holder = _read(descriptor)
        os.close(descriptor)
        return holder

    def keep(self, uuids: "Iterable[str]") -> None:
        """Let go of all others; these are the run's until the agent ends."""
        wanted = set(uuids)
        for uuid in list(self._held):
            if uuid in wanted:
                self._sign(self._held[uuid], planning=False)
            else:
                _write(self._held[uuid], b"")  # or it would be said of the next holder, until he has signed
                os.close(self._held.pop(uuid))

    def _sign(self, descriptor: int, planning: bool) -> None:
        about = {"user": user_name(os.getuid()), "run": self._run, "since": time.time(), "planning": planning}
        _write(descriptor, wire.dumps(about).encode("ascii"))


def holder(uuid: str) -> "Optional[Dict[str, Any]]":
    """Who holds that device, or None; only looks.  Raises HostError."""
    if not os.path.isdir(DIRECTORY):
        return None
    prepare(DIRECTORY)
    try:
        descriptor = os.open(_path(uuid), os.O_RDONLY | FLAGS)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise HostError("%s: %s" % (_path(uuid), os.strerror(error.errno or 0))) from error
    try:
        _check(descriptor, uuid)
        return None if lock(descriptor, fcntl.LOCK_SH) else _read(descriptor)
    finally:
        os.close(descriptor)


# Never through a link, never waiting for the other end of a planted fifo.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _path(uuid: str) -> str:
    if not uuid or "/" in uuid or uuid.startswith("."):
        raise HostError("%r is no device" % uuid)
    return os.path.join(DIRECTORY, uuid)


def prepare(directory: str) -> None:
    """That directory, sticky and open to all; raises HostError when it cannot serve."""
    try:
        try:
            os.mkdir(directory, 0o1777)
            os.chmod(directory, 0o1777)  # noqa: S103 - for all users, as /tmp is, whatever the umask
        except FileExistsError:
            pass
        info = os.lstat(directory)
    except OSError as error:
        raise HostError("%s: %s" % (directory, os.strerror(error.errno or 0))) from error
    if not stat.S_ISDIR(info.st_mode):
        raise HostError("%s is a link or a file, where GPU leases are kept" % directory, "remove it")


def _open(uuid: str) -> int:
    path = _path(uuid)
    # First without O_CREAT: Linux refuses that for other people's files in a sticky directory.
    attempts = (
        (os.O_RDWR, 0),
        (os.O_RDONLY, 0),  # another user's file that may not be written can still be locked
        (os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666),
        (os.O_RDONLY, 0),  # somebody was quicker
    )  # type: Tuple[Tuple[int, int], ...]
    failure = None  # type: Optional[OSError]
    for flags, mode in attempts:
        try:
            descriptor = os.open(path, flags | FLAGS, mode)
        except OSError as error:
            failure = error
            continue
        if mode:
            os.fchmod(descriptor, mode)  # whatever the umask: others must be able to hold it later
        _check(descriptor, uuid)
        return descriptor
    raise HostError("%s: %s" % (path, os.strerror(failure.errno or 0) if failure else "?"))


def _check(descriptor: int, uuid: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HostError("%s is not a plain file" % _path(uuid), "remove it")


def lock(descriptor: int, how: int) -> bool:
    """Lock that file, if nobody is in the way; whether it was done."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _write(descriptor: int, content: bytes) -> None:
    try:
        if (
            os.fstat(descriptor).st_nlink == 1
        ):  # else it may be another file of ours that somebody linked there
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
    except OSError:
        pass  # a full disk, or a file that another user made: the lock holds all the same


def _read(descriptor: int) -> "Dict[str, Any]":
    # Whoever has not signed yet has only just taken it.
    about = {"user": "", "run": "", "since": 0.0, "planning": True}
    try:
        said = wire.loads(os.pread(descriptor, READ_LIMIT, 0).decode("utf-8", "replace"))
        about.update((name, said[name]) for name in about if isinstance(said.get(name), type(about[name])))
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    return about


def user_name(uid: int) -> str:
    """The name of that user, or the number if he has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
