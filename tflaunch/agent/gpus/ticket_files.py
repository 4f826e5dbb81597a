"""The files of the queue for GPUs (tickets): written, looked at and removed, in a directory that all users share.

    <since>-<run>-<host>          the ticket: which devices the run could use if all were free
    <since>-<run>-<host>.until    empty; its time of modification says until when the ticket counts

That time is no part of the ticket, since the kernel takes a file that is changed in any way for a young one.
"""

import fcntl
import os
import stat
import time

from tflaunch.agent.gpus import lease_files
from tflaunch.agent.gpus.leases import fit, is_time
from tflaunch.agent.gpus.locks import PAUSE_S, lock, lockers, table
from tflaunch.agent.host.foreign import user_name
from tflaunch.agent.host.rundir import HostError
from tflaunch.protocol import directories, wire
from tflaunch.protocol.directories import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from tflaunch.agent.gpus.locks import Table

QUEUE = os.path.join(lease_files.DIRECTORY, "queue")
FIELDS = (("run", str), ("since", float), ("wants", int), ("uuids", list), ("planning", bool))
RENEWED = "renewed"  # a field of tickets that count only until a time; an older tflaunch's count while they are locked
UNTIL = ".until"
NAME_BYTES = 255 - len(UNTIL)
FILE_MODE, UNLOCKED_MODE = 0o644, 0o600
READ_LIMIT = 64 * 1024
LISTED = 2000  # files in the queue that an agent looks at; with more, some user has made the queue useless
LISTED_BYTES = 2 * 1024 * 1024  # in all of them: an agent that reads them does nothing else meanwhile
DEVICES = 256  # that one ticket may name
# How much the clocks of launchers and hosts may differ, and the times when a launcher asks them.
CLOCKS_S = 600.0
REST_S = 60.0  # what is left of a ticket that is gone is removed so long after its time
TRIES = 50  # an agent that only looks is in the way for an instant


def opened(make: bool = True) -> int:
    """A descriptor of the queue; raises HostError, and unless `make` is set FileNotFoundError."""
    shared = lease_files.opened(make)
    try:
        return lease_files.open_shared(QUEUE, os.path.basename(QUEUE), make, shared)
    finally:
        os.close(shared)


def beginning(since: float, run: str) -> str:
    """How the names of that run's tickets begin."""
    return "%017.6f-%s-" % (since, run)


class HeldTicket:
    """A ticket of this run, locked."""

    def __init__(self, since: float, run: str, host: str, about: "Dict[str, Any]", until: float) -> None:
        """Write it; it counts until `until` (epoch seconds).  Raises OSError, HostError."""
        self._name = os.fsdecode(os.fsencode(beginning(since, run) + host)[:NAME_BYTES])
        self._directory = opened()
        self._until = self._file = -1
        try:
            self._until = _make_until(self._directory, self._name + UNTIL)
            self.put_off(until)
            content = wire.dumps(dict(about, run=run, since=since, **{RENEWED: True})).encode("ascii")
            self._file = _hold(self._directory, self._name, content)
        except BaseException:
            self.close()
            raise

    def put_off(self, until: float) -> None:
        """Have it count until then (epoch seconds); raises OSError."""
        os.utime(self._until, (until, until))

    def in_place(self) -> bool:
        """Whether everybody sees it."""
        try:
            queue = opened(make=False)
        except (OSError, HostError):
            return False
        try:
            pairs = ((self._file, self._name), (self._until, self._name + UNTIL))
            return all(directories.is_at(descriptor, name, queue) for descriptor, name in pairs)
        finally:
            os.close(queue)

    def close(self) -> None:
        """Remove it."""
        for descriptor, name in ((self._file, self._name), (self._until, self._name + UNTIL)):
            if descriptor < 0:
                continue
            try:
                directories.remove_file(descriptor, name, self._directory)
            except OSError:
                pass  # without its lock it is void
            os.close(descriptor)
        os.close(self._directory)


def listed(directory: int) -> "List[str]":
    """The names in the queue; raises HostError when there are too many."""
    names = []  # type: List[str]
    owners = {}  # type: Dict[int, int]
    with os.scandir(directory) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > LISTED:
                break
    if len(names) <= LISTED:
        return names
    for name in names:
        try:
            owner = os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid
        except OSError:
            continue  # gone meanwhile
        owners[owner] = owners.get(owner, 0) + 1
    raise _full("%d files" % LISTED, owners)


def _full(what: str, owners: "Dict[int, int]") -> HostError:
    """The queue holds more than that; `owners` says how much of it is whose, of what was looked at."""
    most = max(owners, key=lambda uid: owners[uid], default=0)
    return HostError(
        "%s holds more than %s, %d of the first are of %s (uid %d): runs cannot wait in turn until he or root"
        " has removed them" % (QUEUE, what, owners.get(most, 0), user_name(most), most)
    )


def live(directory: int, names: "List[str]") -> "List[Dict[str, Any]]":
    """The tickets of these names that are live; removes dead ones of this user's.  Raises HostError.

    Somebody may have locked them all: so there is one look at the locks.
    """
    found = []  # type: List[Tuple[Dict[str, Any], os.stat_result]]
    owners = {}  # type: Dict[int, int]
    for name in names:
        try:
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        owners[info.st_uid] = owners.get(info.st_uid, 0) + min(info.st_size, READ_LIMIT)
        if sum(owners.values()) > LISTED_BYTES:
            raise _full("%d bytes" % LISTED_BYTES, owners)
        ticket = read(directory, name)
        if ticket is not None:
            found.append(ticket)
    locks = table()
    return [ticket for ticket, info in found if _held_by(info, locks)]


def read(directory: int, name: str) -> "Optional[Tuple[Dict[str, Any], os.stat_result]]":
    """The ticket of that name, and its file, if it counts and is locked; removes a dead one of this user's."""
    try:
        descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=directory)
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return None
        said = wire.loads(os.pread(descriptor, READ_LIMIT, 0).decode("ascii"))
        if any(type(said[field]) is not kind for field, kind in FIELDS):
            return None
        ticket = {field: said[field] for field, _ in FIELDS}
        ticket["user"] = user_name(info.st_uid)  # the file's owner, whatever its content says
        # With a `since` that is no time (NaN, infinity) the order would be undefined.
        if not (
            is_time(ticket["since"])
            and name.startswith(beginning(ticket["since"], ticket["run"]))
            and fit(ticket["run"])
            and 0 <= ticket["wants"] < 1 << 31
            and len(ticket["uuids"]) <= DEVICES
            and all(map(fit, ticket["uuids"]))
        ):
            return None
        if lock(descriptor, fcntl.LOCK_SH):
            if info.st_uid == os.getuid():
                _remove(directory, name, descriptor)
            return None
        if info.st_ctime - ticket["since"] > CLOCKS_S:
            ticket["since"] = info.st_ctime
        counts = said.get(RENEWED) is not True or _counts_still(directory, name + UNTIL, info.st_uid)
        return (ticket, info) if counts else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # what is no ticket does not count
    finally:
        os.close(descriptor)


def clear(directory: int, names: "List[str]") -> None:
    """Remove what is left of tickets of this user's that are gone."""
    there = set(names)
    for name in names:
        if not name.endswith(UNTIL) or name[: -len(UNTIL)] in there:
            continue
        descriptor = _open_until(directory, name)
        if descriptor is None:
            continue
        try:
            # Not a young one, whose ticket is just being written.
            if time.time() - os.fstat(descriptor).st_mtime > REST_S:
                directories.remove_file(descriptor, name, directory)
        except OSError:
            pass  # another agent was quicker
        finally:
            os.close(descriptor)


def _make_until(directory: int, name: str) -> int:
    """The file that says until when a ticket counts; raises OSError, HostError."""
    for _ in range(TRIES):
        try:
            return directories.make_file(name, FILE_MODE, directory)
        except FileExistsError:
            pass
        left = _open_until(directory, name)  # by an agent of this run that was killed
        if left is None:
            path = os.path.join(QUEUE, name)
            raise HostError("%s is not of this run: its owner or root may: mv %s DIRECTORY" % (path, path))
        try:
            directories.remove_file(left, name, directory)
        except FileNotFoundError:
            pass
        finally:
            os.close(left)
    raise HostError("%s comes and goes" % os.path.join(QUEUE, name))


def _open_until(directory: int, name: str) -> "Optional[int]":
    """Open such a file of this user's; None for anything else of that name."""
    try:
        descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=directory)
    except OSError:
        return None
    info = os.fstat(descriptor)
    mine = info.st_uid == os.getuid() and info.st_nlink == 1 and stat.S_ISREG(info.st_mode)
    if mine and stat.S_IMODE(info.st_mode) == FILE_MODE and not info.st_size:
        return descriptor
    os.close(descriptor)
    return None


def _hold(directory: int, name: str, content: bytes) -> int:
    """A descriptor that holds the lock on a new file of that name; raises OSError, HostError."""
    for _ in range(TRIES):
        try:
            # For this user alone until it is locked, or another user could lock it first.
            descriptor = directories.make_file(name, UNLOCKED_MODE, directory)
        except FileExistsError:
            read(directory, name)  # removes the ticket of an agent of this run that was killed
            time.sleep(PAUSE_S)
            continue
        try:
            if os.write(descriptor, content) < len(content):
                raise HostError("%s: no room for a ticket" % QUEUE)
            for _ in range(TRIES):  # written before it is locked: others must be able to read a live ticket
                if lock(descriptor, fcntl.LOCK_EX):
                    os.fchmod(descriptor, FILE_MODE)
                    break
                time.sleep(PAUSE_S)
            else:
                raise HostError("%s: another process holds the ticket %s" % (QUEUE, name))
        except BaseException:
            directories.remove_file(descriptor, name, directory)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another agent took it for a dead one just before it was locked, and removed it
    raise HostError("%s: there is a ticket %s already" % (QUEUE, name))


def _counts_still(directory: int, name: str, owner: int) -> bool:
    """Whether the time until which a ticket counts is still to come."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == owner and time.time() < info.st_mtime


def _held_by(info: os.stat_result, locks: "Table") -> bool:
    """Whether the ticket's owner may hold its lock: any user may lock what another's dead run has left."""
    owners = []
    for pid in lockers(info, locks):
        try:
            owners.append(os.stat("/proc/%d" % pid).st_uid)
        except OSError:
            return True  # the process has left its lock to a child, or /proc hides it
    return info.st_uid in owners or not owners


def _remove(directory: int, name: str, descriptor: int) -> None:
    """Remove a ticket that is dead; raises OSError."""
    # While the file is locked and has its one name, no other file can have that name.
    info = os.fstat(descriptor)
    if not lock(descriptor, fcntl.LOCK_EX) or info.st_nlink != 1:
        return
    if stat.S_IMODE(info.st_mode) not in (FILE_MODE, UNLOCKED_MODE):
        return
    directories.remove_file(descriptor, name, directory)
