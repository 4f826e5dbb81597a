"""The run directory, where an agent keeps what outlives its channel: `<parent>/<run>/<host>/`, private to its user.

    agent.json     which processes serve the run: pid and start time of agent and guard, the user, since when
    guard.json     whether the guard has swept behind an agent
    agent.sock     the socket by which visits reach a living agent
    plan.json      what the launcher has staged
    logs/ps-0.log  what a task wrote, byte for byte; ps-0.1.log after its first restart
    events.jsonl   the journal: starts, exits, the end
    holds.json     what is wrong with the run now, as the watchdog says, and what it cannot see
    samples.jsonl  what the tasks of a detached run have used, on its coordinator's host (tally_file)
    work/          the shipped code, and the tasks' working directory
    own/           for trials, which run side by side: a working directory each, with the directories of work/ and
                   links to its files, so that no trial finds the new files of another
    shipped.json   which files in work/ are shipped code, and their modification time as shipped
    agent.log      what the agent itself prints
    python/        what has each Python of a task tell its stacks, see python_site
    reserve        bytes that the agent frees, piece by piece, when the disk is full: for its own files; gone at the end
    *.PID.new      a file that the process of that pid is writing; where it was killed, `close` removes it

`<parent>/code/` is the store of shipped code (code_store), `<parent>/.environments/` holds virtual environments.
"""

import errno
import os
import stat

from tflaunch.agent.host import foreign, processes
from tflaunch.agent.host.reserve import PIECE, Reserve
from tflaunch.protocol import directories, wire
from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

HOLDS = "holds.json"
PYTHON = "python"
NOWHERE = "/dev/null/tflaunch"  # a directory that nobody can make
CONTAINERS = "container.json"  # names the engine, for a guard or visit that removes containers which are left
CODE = "code"  # beside the runs; no run id can be this (they end in a random part)
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_MORE = (*FULL, errno.EROFS, errno.EIO)  # a disk that takes nothing more
ENVIRONMENTS = ".environments"  # likewise, see tflaunch.agent.tasks.environment


class HostError(Exception):
    """A failure on this host: a sentence for the user, and the next step."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def explain(error: OSError, path: str) -> HostError:
    """The sentence and the next step for an error of the system at `path`."""
    where = getattr(error, "filename", None) or path
    if error.errno in FULL:
        try:
            space = os.statvfs(os.path.dirname(path) if not os.path.isdir(path) else path)
            free = ", %.1f MiB and %d inodes are free" % (
                space.f_bavail * space.f_frsize / 2.0**20,
                space.f_favail,
            )
        except OSError:
            free = ""
        return HostError(
            "%s: %s%s" % (where, os.strerror(error.errno), free),
            "make room there, or set `run_dir:` to another disk in the hostfile",
        )
    if error.errno == errno.EAGAIN:  # by fork: no other call here fails so
        return HostError(
            "this host lets the user start no more processes",
            "end some there, or have the limit raised: ulimit -u, or TasksMax of systemd",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostError(
            "%s: %s" % (where, os.strerror(error.errno)),
            "set `run_dir:` in the hostfile to a directory that you may write",
        )
    return HostError(
        "%s: %s" % (where, os.strerror(error.errno) if error.errno else error),
        "look at that path on the host, or set `run_dir:` in the hostfile to another directory",
    )


def must_answer(path: str, key: str, limit_s: float) -> None:
    """Raise HostError for a directory, named by that key of the hostfile, whose file server does not answer in time."""
    limit_s = min(limit_s, foreign.LIMIT_S)
    if not foreign.answers(path, limit_s):
        raise away(path, key, limit_s)


def away(path: str, key: str, limit_s: float) -> HostError:
    """The error for a file server that has not answered for so long."""
    return HostError(
        "%s does not answer: nothing came for %g s" % (path, limit_s),
        "is its file server up? `df %s` there hangs, too; or set `%s` in the hostfile to another place"
        % (path, key),
    )


def parent_directory(configured: str) -> str:
    """The directory that holds this user's runs on this host."""
    # On a local disk: the home directory may be one NFS share for all hosts, and slow.  Always a directory of the
    # user's own below the configured one: that may be /scratch, which others use, and whose mode must stay.
    parent = os.path.expanduser(configured or "/var/tmp")  # noqa: S108 - checked by `private`
    return os.path.join(parent, "tflaunch-%d" % os.getuid())


def check_way(parent: str) -> None:
    """Raise HostError when another user could put another directory in the place of `parent`."""
    try:
        directories.check_way(parent)
    except directories.WeakPlace as weak:
        raise _weak(weak) from weak
    except OSError as error:
        raise explain(error, parent) from error


def _weak(weak: directories.WeakPlace) -> HostError:
    place, info = weak.place, weak.info
    hint = (
        "set `run_dir:` in the hostfile to a directory where no other user can rename yours, or leave it out"
    )
    if info.st_uid not in (0, os.getuid()):
        return HostError(
            "%s belongs to uid %d, who could put another directory in the place of %s"
            % (place, info.st_uid, weak.path),
            hint,
        )
    if stat.S_ISLNK(info.st_mode):
        return HostError("%s: too many links lead to %s" % (place, weak.path), hint)
    others = "everybody" if info.st_mode & 0o002 else "everybody in the group %s" % _group(info.st_gid)
    return HostError(
        "%s has no sticky bit (its mode is %04o): %s could put another directory in the place of %s"
        % (place, stat.S_IMODE(info.st_mode), others, weak.path),
        "chmod +t %s, by its owner or root; or %s" % (place, hint),
    )


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return "%d" % gid


def private(path: str) -> None:
    """Make the directory `path`, for this user alone; raises HostError when something else is in its place."""
    try:
        descriptor = directories.make_private(path)
    except directories.WeakPlace as weak:
        raise _weak(weak) from weak
    except OSError as error:
        error.filename = path  # not one name on the way
        raise _not_a_directory(error, path) from error
    _check(descriptor, path)


def inner(path: str) -> None:
    """Make a directory inside one that `private` has made: its mode is the user's affair.  Raises HostError."""
    try:
        directories.make(path, 0o700)
        descriptor = os.open(path, directories.DIRECTORY)
    except OSError as error:
        raise _not_a_directory(error, path) from error
    _check(descriptor, path, 0)


def is_there(parent: str) -> bool:
    """Whether the directory of this user's runs is there; raises HostError when something else is in its place.

    Call this before reading there.  Once it is there, no other user can put anything in its place.  Until then anybody
    may: whoever hears that it is not there must not look again by its path.
    """
    check_way(parent)
    try:
        descriptor = os.open(parent, directories.DIRECTORY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _not_a_directory(error, parent) from error
    _check(descriptor, parent)
    return True


def _not_a_directory(error: OSError, path: str) -> HostError:
    try:
        info = os.lstat(path)
    except OSError:
        return explain(error, path)
    if not stat.S_ISDIR(info.st_mode):
        return HostError(
            "%s is not your directory but a %s" % (path, directories.described(info)),
            "remove it, or set `run_dir:`",
        )
    return _of_another(info, path) if info.st_uid != os.getuid() else explain(error, path)


def _of_another(info: os.stat_result, path: str) -> HostError:
    return HostError(
        "%s belongs to uid %d, not to you (uid %d)" % (path, info.st_uid, os.getuid()),
        "have its owner or root remove it, or set `run_dir:` in the hostfile",
    )


def _check(descriptor: int, path: str, closed: int = 0o077) -> None:
    """Raise HostError unless that directory is this user's, and its mode has none of the bits `closed`; close it."""
    info = os.fstat(descriptor)
    os.close(descriptor)
    if info.st_uid != os.getuid():
        raise _of_another(info, path)
    if info.st_mode & closed:
        # Others may have put something there; whoever sets the mode has to look.
        raise HostError(
            "%s has the mode %04o: other users may look or write there" % (path, stat.S_IMODE(info.st_mode)),
            "look whether all in there is yours, then: chmod 700 %s; where that changes nothing, the file system keeps "
            "no modes: set `run_dir:` to another" % path,
        )


def _mirror(source: str, target: str) -> None:
    """Make the directories of `source` in `target`, too, and link its files; what is there stays.  Raises OSError."""
    with os.scandir(source) as entries:
        for entry in entries:
            path = os.path.join(target, entry.name)
            if entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                if not os.path.lexists(path):
                    os.mkdir(path, 0o700)
                if not os.path.islink(path) and os.path.isdir(path):
                    _mirror(entry.path, path)
            elif not os.path.lexists(path):
                # A link in the code leads to something in the code: the same link leads to this directory's copy.
                os.symlink(
                    os.readlink(entry.path) if entry.is_symlink() else os.path.relpath(entry.path, target),
                    path,
                )


class RunDirectory:
    """One host's directory of one run."""

    def __init__(self, parent: str, run: str, host: str) -> None:
        for part in (run, host):  # they come over the wire, and must not lead out of `parent`
            if not part or "/" in part or "\0" in part or part.startswith("."):
                raise HostError("%r cannot be a directory name" % part)
        self.parent = parent
        self.run = run
        self.host = host
        self.path = os.path.join(parent, run, host)
        self.work = os.path.join(self.path, "work")
        self.logs = os.path.join(self.path, "logs")
        self.own = os.path.join(self.path, "own")  # with a directory for each trial of a sweep
        self.trouble = None  # type: Optional[HostError]  # why this disk takes nothing more
        self.lasting = False  # that cannot change by itself, or nothing is left of the reserve
        self.reserve = Reserve(self.path)
        self.first = False  # this agent has made the directory: no other of this run was in it
        self._bound = None  # type: Optional[Tuple[int, int]]  # this process's socket there: device and inode

    def create(self) -> None:
        """Make the directory and what it always holds; raises HostError."""
        private(self.parent)
        check_way(self.parent)  # again: `private` may have made some of it just now
        self.first = not os.path.lexists(self.path)
        for path in (os.path.dirname(self.path), self.path, self.logs, self.work):
            inner(path)
        try:  # to find a full disk now, not in the middle of the run
            self.write("agent.json", {})
            self.write("guard.json", {})  # the run may have been here before, and be planned again
            self.reserve.fill()
        except OSError as error:
            raise explain(error, self.path) from error

    def log_path(self, task: str, attempt: int = 0) -> str:
        name = task.replace("/", "-")
        return os.path.join(self.logs, name + (".%d" % attempt if attempt else "") + ".log")

    def own_work(self, task: str) -> str:
        """Make a working directory for that task alone, with links to the shipped code; raises OSError."""
        path = os.path.join(self.own, task.replace("/", "-"))
        os.makedirs(path, mode=0o700, exist_ok=True)
        _mirror(self.work, path)
        return path

    @property
    def outputs(self) -> str:
        """The tasks' working directory unless the plan names one; of trials, the directory that holds theirs."""
        return self.own if os.path.isdir(self.own) else self.work

    def write(self, name: str, value: "Any") -> None:
        """Replace the JSON file `name` in one step, readable for this user alone; raises OSError."""
        self._with_reserve(lambda: replace(os.path.join(self.path, name), wire.dumps(value)))

    def append(self, name: str, value: "Any") -> None:
        """Add a line to the JSON-lines file `name`, the whole of it or nothing; raises OSError."""
        line = (wire.dumps(value) + "\n").encode("ascii")

        def add() -> None:
            with open(os.path.join(self.path, name), "ab", 0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    if file.write(line) != len(line):  # the rest found no room
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
                except OSError:
                    file.truncate(end)
                    raise

        self._with_reserve(add)

    def _with_reserve(self, write: "Callable[[], None]") -> None:
        """Do `write`; while the disk is full, free a piece of the reserve and do it again.  Raises OSError."""
        while True:
            try:
                write()
                return
            except OSError as error:
                if error.errno in NO_MORE and self.trouble is None:
                    self.trouble = explain(error, self.path)
                if error.errno not in FULL or not self.reserve.free_piece():
                    self.lasting = self.lasting or error.errno in NO_MORE
                    raise

    def has_room(self) -> bool:
        """Whether a disk that was full has room again, beyond the reserve, of which all is there again then."""
        try:
            self.reserve.fill(PIECE)  # with the reserve alone an agent can go on for long, but not its tasks
        except OSError:
            return False
        self.trouble = None
        return True

    def read(self, name: str) -> "Dict[str, Any]":
        """The JSON object in the file `name`; {} when there is none, or it cannot be read."""
        try:
            with open(os.path.join(self.path, name)) as file:
                value = wire.loads(file.read())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def agent(self) -> "Dict[str, Any]":
        """What agent.json tells; {} where it is damaged.  Other versions may leave some of it out."""
        agent = self.read("agent.json")
        machine = agent.get("machine") or ["", ""]
        kinds = [type(agent.get(each, 0)) for each in ("pid", "start", "guard", "guard_start")]
        kinds += map(type, machine if isinstance(machine, list) else ())
        return agent if kinds == [int] * 4 + [str] * 2 else {}

    # A socket's path has at most 107 bytes, a directory's far more: both ends reach it through an open directory.
    def listen(self) -> socket.socket:
        """Listen for visits; raises OSError."""
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(self.path, directories.DIRECTORY)
        try:
            name = "/proc/self/fd/%d/agent.sock" % directory
            try:
                os.unlink("agent.sock", dir_fd=directory)
            except FileNotFoundError:
                pass
            listener.bind(name)
            self._bound = _identity("agent.sock", directory)
        finally:
            os.close(directory)
        listener.listen(16)
        return listener

    def connect(self) -> "Optional[socket.socket]":
        """A connection to the agent, or None when none lives."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(
            False
        )  # where an agent hangs, and many wait for it already, this would never return
        try:
            directories.connect(connection, os.path.join(self.path, "agent.sock"))
        except OSError:
            connection.close()
            return None
        connection.setblocking(True)
        return connection

    def remove(self) -> None:
        """Remove the directory, and the run's if no other host on this machine uses it."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(self.path))
        except OSError:
            pass

    def close(self) -> None:
        """Remove what only a living agent needs, unless it is another living agent's: the socket and the reserve.

        With them goes what killed processes of the run were writing.
        """
        try:
            directory = os.open(self.path, directories.DIRECTORY)
        except OSError:
            return
        try:
            seen = _identity("agent.sock", directory)
            if seen is not None and seen != self._bound and self.is_served():
                return  # the run has been planned again, and has its next agent already
            self.reserve.free()
            for place in (self.path, os.path.join(self.path, PYTHON)):
                _remove_unfinished(place)
            if seen is not None and seen == _identity("agent.sock", directory):
                os.unlink("agent.sock", dir_fd=directory)
        except OSError:
            pass
        finally:
            os.close(directory)

    def is_served(self) -> bool:
        """Whether an agent lives here; one that hangs counts, too."""
        connection = self.connect()
        if connection is not None:
            connection.close()
        return connection is not None


def replace(path: str, text: str) -> None:
    """Replace that file of a run directory in one step, readable for this user alone; raises OSError.

    Bytes that are no text, as a variable may have them, stand for themselves.
    """
    unfinished = "%s.%d.new" % (path, os.getpid())
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        os.rename(unfinished, path)
    except OSError:
        _remove(unfinished)
        raise


def _remove_unfinished(place: str) -> None:
    """Remove the files there that processes were writing by `replace` when they were killed."""
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        _, _, pid = name[: -len(".new")].rpartition(".")
        if name.endswith(".new") and pid.isdigit() and not processes.read(int(pid)):
            _remove(os.path.join(place, name))


def _identity(name: str, directory: int) -> "Optional[Tuple[int, int]]":
    """Device and inode of what has that name in an open directory; None where nothing has."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def all_runs(parent: str) -> "List[Tuple[str, str]]":
    """(run, host) of every run directory below `parent`."""
    try:
        runs = sorted(os.listdir(parent))
    except OSError:
        return []
    return [
        (run, host)
        for run in runs
        if run != CODE and not run.startswith(".")
        for host in hosts_of(parent, run)
    ]


def hosts_of(parent: str, run: str) -> "List[str]":
    """The hosts that have a directory in that run; links do not count."""
    path = os.path.join(parent, run)
    try:
        if os.path.islink(path):
            return []
        with os.scandir(path) as entries:  # a leading dot: .nfs0000... of a file that is open elsewhere
            return sorted(
                each.name
                for each in entries
                if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []
