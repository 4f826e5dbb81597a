"""GPU leases: locks (flock) that all users of this host see, on the kernel's own files where it has such.

    /sys/bus/pci/devices/<bus id>/vendor           of a GPU: root's, all may open it, no user can delete it
    /proc/driver/nvidia/capabilities/.../access    of a MIG instance: likewise
    /var/tmp/tflaunch-leases/<uuid>                a lease file, of either: it says which run has the device since when.
                                                   An older tflaunch looks only at its lock; where the kernel has no
                                                   such file, it is the only lock

The kernel frees a lock when its holder ends, whatever ends it; the files stay, and mean nothing by themselves.  Any
user may lock a file that he may open: /proc/locks then names him.  What a lease file says about its holder is for
people to read; nothing else relies on it.
"""

import errno
import fcntl
import os
import stat
import time

from tflaunch.agent import foreign, processes
from tflaunch.agent.files.rundir import HostError, Unaged
from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

# One place for all users and runs, or they would not see each other; tests have a place and devices of their own.
_OWN = os.environ.get("TFLAUNCH_LEASES")
DIRECTORY = _OWN or "/var/tmp/tflaunch-leases"  # noqa: S108
DEVICES = os.path.join(_OWN, "devices") if _OWN else ""  # in front of the paths of the kernel's files
READ_LIMIT = 4096
TEXT_LIMIT = 255
TRIES = 5
TRIES_SHARED = 20  # one who only looks has a shared lock for an instant, which is longer on a busy host
PAUSE_S = 0.01
SPARE = 3  # how many more names are tried where something else stands in a lease file's place
TOUCH_S = 3600.0
# Never through a link, never waiting for the other end of a planted fifo.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Busy(Exception):
    """Another process has a lock on that file."""

    def __init__(self, info: os.stat_result) -> None:
        super().__init__()
        self.info = info


class Leases:
    """The devices that this agent holds."""

    def __init__(self, run: str) -> None:
        self._run = run
        # By UUID: the descriptor of the kernel's file, or -1, and the lease files (path, descriptor).
        self._held = {}  # type: Dict[str, Tuple[int, List[Tuple[str, int]]]]
        self._planning = {}  # type: Dict[str, bool]
        self._since = {}  # type: Dict[str, float]
        self._unaged = Unaged()
        self._touched = 0.0

    def take(self, uuid: str, device: str = "") -> "Optional[Dict[str, Any]]":
        """Take the lease of a GPU or MIG instance; None when this agent has it now, else who holds it.

        `device` is the path of the kernel's own file for it, if it has one.  Raises HostError.
        """
        if uuid in self._held:
            return None
        kernels = _device(device)
        try:
            if kernels >= 0:
                _lock_alone(kernels)
            try:
                files = _take_files(uuid)
            except HostError:
                if kernels < 0:
                    raise
                files = []  # the kernel's file is locked: that is enough
        except BaseException as error:
            if kernels >= 0:
                os.close(kernels)
            if isinstance(error, _Busy):
                return _who(uuid, error.info)
            raise
        self._held[uuid] = kernels, files
        self._planning[uuid], self._since[uuid] = True, time.time()
        self._sign(uuid)
        self._unaged.add(DIRECTORY)
        return None

    def keep(self, uuids: "Iterable[str]") -> None:
        """Give up all other leases; these are the run's until the agent ends."""
        wanted = set(uuids)
        for uuid in list(self._held):
            if uuid in wanted:
                self._planning[uuid] = False
                self._sign(uuid)
                continue
            kernels, files = self._held.pop(uuid)
            for _, descriptor in files:
                _write(
                    descriptor, b""
                )  # or it would name this run as the next holder's, until that has signed
                os.close(descriptor)
            if kernels >= 0:
                os.close(kernels)

    def check(self, now: float) -> "List[str]":
        """Take lease files anew that another user has removed; returns a sentence for the user about each."""
        touch = now - self._touched >= TOUCH_S
        self._touched = now if touch else self._touched
        self._unaged.check()
        sentences = []
        for uuid, (kernels, files) in list(self._held.items()):
            gone = [path for path, descriptor in files if not same(descriptor, path)]
            if gone:
                sentences.append(self._mend(uuid, kernels, files, gone[0]))
            elif touch and not files:
                try:
                    self._held[uuid] = kernels, _take_files(uuid)
                    self._sign(uuid)
                except (HostError, _Busy):
                    pass  # the user has been told before
            elif touch:
                for _, descriptor in files:
                    try:
                        os.utime(descriptor)  # some programs that remove old files do not look at locks
                    except OSError:
                        pass  # another user's
        return sentences

    def _mend(self, uuid: str, kernels: int, files: "List[Tuple[str, int]]", path: str) -> str:
        """Take the lease file anew; returns a sentence for the user about it."""
        for _, descriptor in files:
            os.close(descriptor)
        said = "%s was removed while this run held it" % path
        try:
            files = _take_files(uuid)
        except HostError as error:
            self._held[uuid] = kernels, []
            return "%s, and cannot be taken anew: %s" % (said, error.reason)
        except _Busy as error:
            self._held[uuid] = kernels, []
            who = _who(uuid, error.info)
            other = "%s's run %s" % (who["user"] or "another user", who["run"])
            if kernels >= 0:
                return "%s; %s holds the new one, but not the GPU's own lock, which is this run's" % (
                    said,
                    other,
                )
            return "%s, and %s has taken that GPU: two runs are on it" % (said, other)
        self._held[uuid] = kernels, files
        self._sign(uuid)
        return "%s; it is taken anew" % said

    def _sign(self, uuid: str) -> None:
        about = {
            "user": user_name(os.getuid()),
            "run": self._run,
            "since": self._since[uuid],
            "planning": self._planning[uuid],
        }
        for _, descriptor in self._held[uuid][1][:1]:
            _write(descriptor, wire.dumps(about).encode("ascii"))


def holder(uuid: str, device: str = "") -> "Optional[Dict[str, Any]]":
    """Who holds the lease of that device, or None; takes nothing.  Raises HostError."""
    kernels = _device(device)
    descriptors = [kernels] if kernels >= 0 else []
    try:
        for descriptor in descriptors:
            _look_at(descriptor)
        try:
            if os.path.lexists(DIRECTORY):
                prepare(DIRECTORY)
                in_the_way = []  # type: List[str]
                for name in _names(uuid):
                    path = os.path.join(DIRECTORY, name)
                    try:
                        descriptor = _open(path)
                        descriptors.append(descriptor)
                        _look_at(descriptor)
                    except FileNotFoundError:
                        pass
                    except HostError as error:
                        in_the_way.append(error.reason)
                _no_room(in_the_way)
        except HostError:
            if kernels < 0:
                raise
    except _Busy as busy:
        return _who(uuid, busy.info)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def prepare(directory: str) -> None:
    """Make the directory, sticky and writable for all users; raises HostError when another one is in its place."""
    try:
        before = os.umask(0)  # with its final mode at once: another agent may look just now
        try:
            os.mkdir(directory, 0o1777)
        except FileExistsError:
            pass
        finally:
            os.umask(before)
        info = os.lstat(directory)
        if stat.S_ISDIR(info.st_mode) and info.st_mode & 0o1777 != 0o1777 and info.st_uid == os.getuid():
            os.chmod(directory, 0o1777)  # noqa: S103 - for all users, as /tmp is
            info = os.lstat(directory)
    except OSError as error:
        raise HostError("%s: %s" % (directory, os.strerror(error.errno or 0))) from error
    owner = "%s (uid %d)" % (user_name(info.st_uid), info.st_uid)
    if not stat.S_ISDIR(info.st_mode):
        raise HostError(
            "%s is a link or a file of %s, where GPU leases are kept; he or root may: rm %s"
            % (directory, owner, directory)
        )
    if info.st_mode & 0o1777 != 0o1777:
        raise HostError(
            "%s has the mode %04o, where GPU leases of all users are kept; its owner %s or root may: chmod 1777 %s"
            % (directory, stat.S_IMODE(info.st_mode), owner, directory)
        )


# -- the kernel's own files


def _device(path: str) -> int:
    """The kernel's file, open; -1 where there is none.  Raises HostError."""
    if not path:
        return -1
    try:
        descriptor = os.open(DEVICES + path, os.O_RDONLY | FLAGS)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise HostError("%s: %s" % (path, os.strerror(error.errno))) from error
        return -1
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return -1


# -- lease files


def _names(uuid: str) -> "List[str]":
    if not uuid or "/" in uuid or uuid.startswith("."):
        raise HostError("%r is no device" % uuid)
    return [uuid, *("%s.%d" % (uuid, number) for number in range(1, SPARE + 1))]


def _take_files(uuid: str) -> "List[Tuple[str, int]]":
    """The lease files of that device, locked; raises HostError, and _Busy when another process has locked one.

    There is one, as a rule.  Where something else stands in its place, the file has the next name.  This locks all that
    are there, so that it does not matter when what stood in the way is removed.
    """
    prepare(DIRECTORY)
    taken = []  # type: List[Tuple[str, int]]
    in_the_way = []  # type: List[str]
    try:
        for name in _names(uuid):
            path = os.path.join(DIRECTORY, name)
            try:
                taken.append((path, _take_file(path, make=not taken)))
            except FileNotFoundError:
                pass
            except HostError as error:
                in_the_way.append(error.reason)
        if not taken:
            _no_room(in_the_way)
    except BaseException:
        for _, descriptor in taken:
            os.close(descriptor)
        raise
    return taken


def _no_room(in_the_way: "List[str]") -> None:
    if len(in_the_way) > SPARE:
        raise HostError("%s, and likewise under %d other names" % (in_the_way[0], SPARE))


def _take_file(path: str, make: bool) -> int:
    for _ in range(TRIES):
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            if not make:
                raise
            try:
                descriptor = _make(path)
            except FileExistsError:
                continue  # another agent was quicker
        try:
            info = _lock_alone(descriptor)
            if same(descriptor, path):
                if info.st_nlink > 1:
                    raise HostError("%s has another name elsewhere: rm %s" % (path, path))
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed while this waited
    raise HostError("%s comes and goes" % path)


def _make(path: str) -> int:
    before = os.umask(0)  # other users must be able to lock it later
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o666)
    except FileExistsError:
        raise
    except OSError as error:
        raise HostError("%s: %s" % (path, os.strerror(error.errno or 0))) from error
    finally:
        os.umask(before)


def _open(path: str) -> int:
    """Open a lease file; raises FileNotFoundError, _Busy, and HostError when something else is in its place."""
    # Without O_CREAT: Linux refuses that for other users' files in a sticky directory.  A file that this user may only
    # read can still be locked.
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(path, access | FLAGS)
            break
        except FileNotFoundError:
            raise
        except OSError as error:
            failure = error
    else:
        if failure.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise HostError("%s: %s" % (path, os.strerror(failure.errno))) from failure
        info = os.lstat(path)
        if stat.S_ISREG(info.st_mode) and lockers(info):
            raise _Busy(info)
        raise _in_the_way(path, info)
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise _in_the_way(path, info)
    if info.st_uid == os.getuid() and info.st_mode & 0o666 != 0o666:
        os.fchmod(descriptor, 0o666)  # made by an agent that was killed before it could do this
    return descriptor


def _in_the_way(path: str, info: os.stat_result) -> HostError:
    kinds = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
    )
    kind = next((name for is_one, name in kinds if is_one(info.st_mode)), "file that others may not read")
    owner = "%s (uid %d)" % (user_name(info.st_uid), info.st_uid)
    remove = "rm -r" if kind == "directory" else "rm"
    return HostError(
        "%s is a %s of %s, where a GPU's lease is kept; he or root may: %s %s"
        % (path, kind, owner, remove, path)
    )


def same(descriptor: int, path: str) -> bool:
    """Whether the open file is the one that has that name now."""
    try:
        there = os.lstat(path)
    except OSError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


# -- locks


def lock(descriptor: int, how: int) -> bool:
    """Lock that file unless another process's lock is in the way; returns whether it is locked."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _lock_alone(descriptor: int) -> os.stat_result:
    """Take the exclusive lock; raises _Busy."""
    info = os.fstat(descriptor)
    for attempt in range(TRIES_SHARED):
        if attempt:
            time.sleep(PAUSE_S)
        if lock(descriptor, fcntl.LOCK_EX):
            return info
        if attempt + 1 >= TRIES and b"READ" not in _locks(info).values():
            break
    raise _Busy(info)


def _look_at(descriptor: int) -> None:
    """Raise _Busy when somebody has any lock of it: one that is shared keeps others from it just as well.

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
    raise _Busy(info)


def lockers(info: os.stat_result) -> "List[int]":
    """The pids of the other processes that have locked that file, as far as this PID namespace shows them."""
    return [pid for pid in _locks(info) if pid != os.getpid()]


def _locks(info: os.stat_result) -> "Dict[int, bytes]":
    """The locks on that file by pid: READ, which is shared, or WRITE."""
    end = b":%d" % info.st_ino
    try:
        with open("/proc/locks", "rb") as file:
            lines = [line.split() for line in file if end in line]
    except OSError:
        return {}
    # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
    found = [
        (int(each[4]), each[5], each[3]) for each in lines if each[1] == b"FLOCK" and each[5].endswith(end)
    ]
    # Some file systems (btrfs) have one device here and another one in `stat`: our own lock tells which.
    place = b"%02x:%02x" % (os.major(info.st_dev), os.minor(info.st_dev)) + end
    places = {place, *(where for pid, where, _ in found if pid == os.getpid())}
    return {pid: kind for pid, where, kind in found if where in places}


# -- who it is


def _who(uuid: str, info: os.stat_result) -> "Dict[str, Any]":
    """Who has locked that file of that device: what the kernel says, else what is written in its lease file.

    `pid` is 0 for an agent, and the process's own for any other program.
    """
    said = _said(uuid)
    for pid in lockers(info):
        try:
            user = user_name(os.stat("/proc/%d" % pid).st_uid)
        except OSError:
            continue  # the process has left its lock to a child, or /proc hides it
        run = processes.serves(processes.command(pid))
        if not fit(run):
            run = ""
        if said["user"] == user and said["run"] and run in ("", said["run"]):
            return said
        since = processes.started(pid)
        return {"user": user, "run": run, "since": since, "planning": bool(run), "pid": 0 if run else pid}
    return said


def _said(uuid: str) -> "Dict[str, Any]":
    # One that has not signed yet has only just taken it.
    about = {"user": "", "run": "", "since": 0.0, "planning": True, "pid": 0}  # type: Dict[str, Any]
    for name in _names(uuid):
        try:
            descriptor = os.open(os.path.join(DIRECTORY, name), os.O_RDONLY | FLAGS)
        except OSError:
            continue
        try:
            said = wire.loads(os.pread(descriptor, READ_LIMIT, 0).decode("utf-8", "replace"))
            fits = fit(said["user"]) and fit(said["run"]) and is_time(said["since"])
            if fits and isinstance(said["planning"], bool):
                about.update((each, said[each]) for each in ("user", "run", "since", "planning"))
                break
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass
        finally:
            os.close(descriptor)
    return about


def fit(text: "Any") -> bool:
    """Whether that can be a name: any user may write anything into such a file."""
    return isinstance(text, str) and len(text) <= TEXT_LIMIT and text.isprintable()


def is_time(value: "Any") -> bool:
    """Whether that can be a time in epoch seconds; NaN cannot."""
    return isinstance(value, float) and 0 <= value < 1e10


def _write(descriptor: int, content: bytes) -> None:
    try:
        # With more links it may be another file of this user, which another user has linked there.
        if os.fstat(descriptor).st_nlink == 1:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
    except OSError:
        pass  # a full disk, or a file that another user made: the lock holds all the same


def user_name(uid: int) -> str:
    """The name of that user, or the uid where it has no name."""
    return foreign.user_name(uid)
