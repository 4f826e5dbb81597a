"""Locks (flock) that all users of this host see: taking one, and who has one."""

import errno
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

    Table = Dict[bytes, List[Tuple[int, bytes, bytes]]]  # pid, device and number of the file, kind

TRIES = 5
TRIES_SHARED = 20  # one who only looks has a shared lock for an instant, which is longer on a busy host
PAUSE_S = 0.01


class Busy(Exception):
    """Another process has a lock on that file."""

    def __init__(self, info: os.stat_result) -> None:
        super().__init__()
        self.info = info


def lock(descriptor: int, how: int) -> bool:
    """Lock that file unless another process's lock is in the way; returns whether it is locked."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def lock_alone(descriptor: int) -> os.stat_result:
    """Take the exclusive lock; raises Busy."""
    info = os.fstat(descriptor)
    for attempt in range(TRIES_SHARED):
        if attempt:
            time.sleep(PAUSE_S)
        if lock(descriptor, fcntl.LOCK_EX):
            return info
        if attempt + 1 >= TRIES and b"READ" not in _locks(info).values():
            break
    raise Busy(info)


def look_at(descriptor: int) -> None:
    """Raise Busy when somebody has any lock of it: one that is shared keeps others from it just as well.

    Others who only look have a shared lock for an instant, again and again: one who holds it has it at every look.
    """
    info = os.fstat(descriptor)
    always = None  # type: Optional[Set[int]]
    for attempt in range(TRIES_SHARED):
        if attempt:
            time.sleep(PAUSE_S)
        if not lock(descriptor, fcntl.LOCK_SH):
            break
        others = set(lockers(info))
        lock(descriptor, fcntl.LOCK_UN)
        always = others if always is None else always & others
        if not always:
            return
    raise Busy(info)


def lockers(info: os.stat_result, table: "Optional[Table]" = None) -> "List[int]":
    """The pids of the other processes that have locked that file, as far as this PID namespace shows them."""
    return [pid for pid in _locks(info, table) if pid != os.getpid()]


def table() -> "Table":
    """All locks (flock) of this host, for many files: with thousands of locks every look at them takes its time."""
    return _table(b"")


def _table(part: bytes) -> "Table":
    """The locks by the number of their file, from the lines of the kernel's table that hold `part`."""
    found = {}  # type: Table
    try:
        with open("/proc/locks", "rb") as file:
            lines = [line.split() for line in file if part in line]
    except OSError:
        return found
    for each in lines:
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
        if each[1] == b"FLOCK":
            found.setdefault(each[5].rpartition(b":")[2], []).append((int(each[4]), each[5], each[3]))
    return found


def _locks(info: os.stat_result, table: "Optional[Table]" = None) -> "Dict[int, bytes]":
    """The locks on that file by pid: READ, which is shared, or WRITE."""
    number = b"%d" % info.st_ino
    end = b":" + number
    found = (_table(end) if table is None else table).get(number, [])
    # Some file systems (btrfs) have one device here and another one in `stat`: our own lock tells which.
    place = b"%02x:%02x" % (os.major(info.st_dev), os.minor(info.st_dev)) + end
    places = {place, *(where for pid, where, _ in found if pid == os.getpid())}
    return {pid: kind for pid, where, kind in found if where in places}
