"""The queue for GPUs: a ticket for each run that waits, in a directory that all users of this host share.

A ticket is a file that its run's agent locks (flock): when its holder ends, the kernel frees the lock, and the ticket
is void.  It names the devices that the run could use if all were free; no run that comes later takes one of them.

Tickets are served in the order of (since, run).  The launcher gives `since`, the same to all its hosts, so the order is
the same on every host, and two runs never wait for each other.  A run that lies about the time gains little: where
`since` is older than the file by more than clocks may differ, the age of the file counts.  That only moves a ticket
back, so no run waits for more others because of it.
"""

import fcntl
import os
import stat
import time

from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.gpus import leases
from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

QUEUE = os.path.join(leases.DIRECTORY, "queue")
FIELDS = (("run", str), ("since", float), ("wants", int), ("uuids", list), ("planning", bool))
READ_LIMIT = 64 * 1024
LISTED = 2000  # files in the queue that an agent looks at; with more, some user has made the queue useless
DEVICES = 256  # that one ticket may name
CLOCKS_S = (
    600.0  # how much the clocks of launchers and hosts may differ, and the times when a launcher asks them
)
TRIES = 50  # an agent that only looks is in the way for an instant


class Place:
    """The place of one run in the queue of this host, if it has one."""

    def __init__(self, run: str = "", host: str = "") -> None:
        self._refused = ""  # why the run could get no place
        self._unseen = ""  # why the other tickets could not be read
        self._run = run
        self._host = host
        self._ticket = None  # type: Optional[Tuple[float, str, int]]
        self._wanted = None  # type: Optional[Tuple[float, int, List[str], bool]]

    @property
    def error(self) -> str:
        """Why there is no queue here, or no place in it; "" if all is well."""
        return self._refused or self._unseen

    @property
    def taken(self) -> bool:
        return self._ticket is not None

    def take(self, since: float, wants: int, uuids: "List[str]", planning: bool) -> None:
        """Queue for `wants` of these devices; when that fails, `error` says why."""
        wanted = (since, wants, uuids, planning)
        if self._ticket is not None and wanted == self._wanted:
            return  # a new file would be a younger one
        self.leave()
        self._wanted = wanted
        name = (_beginning(since, self._run) + self._host)[:250]
        about = {"run": self._run, "since": since, "wants": wants, "uuids": uuids, "planning": planning}
        try:
            leases.prepare(leases.DIRECTORY)
            leases.prepare(QUEUE)
            directory = _directory()
            try:
                self._ticket = (since, name, _hold(directory, name, wire.dumps(about).encode("ascii")))
            finally:
                os.close(directory)
            self._refused = ""
        except HostError as error:
            self._refused = error.reason
        except OSError as error:
            self._refused = "%s: %s" % (QUEUE, os.strerror(error.errno or 0))

    def check(self) -> None:
        """Take the place again if that failed, or if another user has removed the ticket."""
        wanted = self._wanted
        if wanted is None or (self._ticket is not None and os.fstat(self._ticket[2]).st_nlink):
            return
        self.leave()
        self.take(*wanted)

    def leave(self) -> None:
        """Give the place up."""
        self._wanted = None
        if self._ticket is None:
            return
        _, name, descriptor = self._ticket
        self._ticket = None
        try:
            directory = _directory()
            try:
                os.unlink(name, dir_fd=directory)
            finally:
                os.close(directory)
        except OSError:
            pass  # without its lock it is void
        os.close(descriptor)

    def ahead(self) -> "List[Dict[str, Any]]":
        """The live tickets of other runs before this run's, in order; without a place, all of them."""
        self._unseen = ""
        try:
            for place in (leases.DIRECTORY, QUEUE):
                if os.path.lexists(place):
                    leases.prepare(place)
            directory = _directory()
        except FileNotFoundError:
            return []  # no run has ever waited here
        except HostError as error:
            self._unseen = error.reason
            return []
        except OSError as error:
            self._unseen = "%s: %s" % (QUEUE, os.strerror(error.errno or 0))
            return []
        try:
            names = _listed(directory)
            read = [_read(directory, name) for name in names]
        except HostError as error:
            self._unseen = error.reason
            return []
        finally:
            os.close(directory)
        mine = (self._ticket[0], self._run) if self._ticket else None
        tickets = [ticket for ticket in read if ticket is not None and ticket["run"] != self._run]
        return sorted((each for each in tickets if mine is None or _order(each) < mine), key=_order)


def promise(uuid: str, tickets: "Iterable[Dict[str, Any]]") -> "Optional[Dict[str, Any]]":
    """The first of these tickets that names that device, or None."""
    for ticket in tickets:
        if uuid in ticket["uuids"]:
            return {name: ticket[name] for name in ("user", "run", "since", "planning")}
    return None


def _order(ticket: "Dict[str, Any]") -> "Tuple[float, str]":
    return ticket["since"], ticket["run"]


def _beginning(since: float, run: str) -> str:
    return "%017.6f-%s-" % (since, run)


def _directory() -> int:
    # All goes by this descriptor: a link that another user plants later leads nowhere.
    return os.open(QUEUE, os.O_RDONLY | os.O_DIRECTORY | leases.FLAGS)


def _listed(directory: int) -> "List[str]":
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
    most = max(owners, key=lambda uid: owners[uid], default=0)
    raise HostError(
        "%s holds more than %d files, %d of the first are of %s (uid %d): runs cannot wait in turn until he or root"
        " has removed them" % (QUEUE, LISTED, owners.get(most, 0), leases.user_name(most), most)
    )


def _hold(directory: int, name: str, content: bytes) -> int:
    """A descriptor that holds the lock on a new file of that name; raises OSError, HostError."""
    for _ in range(TRIES):
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | leases.FLAGS
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
        except FileExistsError:
            _read(directory, name)  # removes the ticket of an agent of this run that was killed
            time.sleep(leases.PAUSE_S)
            continue
        try:
            if os.write(descriptor, content) < len(content):
                raise HostError("%s: no room for a ticket" % QUEUE)
            for _ in range(TRIES):  # written before it is locked: others must be able to read a live ticket
                if leases.lock(descriptor, fcntl.LOCK_EX):
                    os.fchmod(descriptor, 0o644)  # only now, or another user could lock it first
                    break
                time.sleep(leases.PAUSE_S)
            else:
                raise HostError("%s: another process holds the ticket %s" % (QUEUE, name))
        except BaseException:
            os.unlink(name, dir_fd=directory)
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another agent took it for a dead one just before it was locked, and removed it
    raise HostError("%s: there is a ticket %s already" % (QUEUE, name))


def _read(directory: int, name: str) -> "Optional[Dict[str, Any]]":
    """The ticket of that name if it is live; removes a dead one of this user's."""
    try:
        descriptor = os.open(name, os.O_RDONLY | leases.FLAGS, dir_fd=directory)
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
        ticket["user"] = leases.user_name(info.st_uid)  # the file's owner, whatever its content says
        # With a `since` that is no time (NaN, infinity) the order would be undefined.
        if not (
            leases.is_time(ticket["since"])
            and name.startswith(_beginning(ticket["since"], ticket["run"]))
            and leases.fit(ticket["run"])
            and 0 <= ticket["wants"] < 1 << 31
            and len(ticket["uuids"]) <= DEVICES
            and all(map(leases.fit, ticket["uuids"]))
        ):
            return None
        if not leases.lock(descriptor, fcntl.LOCK_SH):
            if info.st_ctime - ticket["since"] > CLOCKS_S:
                ticket["since"] = info.st_ctime
            return ticket if _held_by(info) else None
        if info.st_uid == os.getuid():
            _remove(directory, name, descriptor)
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # what is no ticket does not count
    finally:
        os.close(descriptor)


def _held_by(info: os.stat_result) -> bool:
    """Whether the ticket's owner may hold its lock: any user may lock what another's dead run has left."""
    owners = []
    for pid in leases.lockers(info):
        try:
            owners.append(os.stat("/proc/%d" % pid).st_uid)
        except OSError:
            return True  # the process has left its lock to a child, or /proc hides it
    return info.st_uid in owners or not owners


def _remove(directory: int, name: str, descriptor: int) -> None:
    # While the file is locked and has its one name, no other file can have that name.
    if leases.lock(descriptor, fcntl.LOCK_EX) and os.fstat(descriptor).st_nlink == 1:
        os.unlink(name, dir_fd=directory)
