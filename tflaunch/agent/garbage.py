"""What runs leave on this host: how much it is, and its removal; a run that is alive is never removed.

A removal first renames a run's directory, beside where it was, so that it is there completely or not at all; then it
looks once more whether the run lives.  The next clean removes what an interrupted one has left.
"""

import errno
import fcntl
import itertools
import os
import stat
import time

from tflaunch.agent import ledger
from tflaunch.agent.files.checked import CHECKED
from tflaunch.agent.files.code_store import FILES, REST_S, TREE, contents_of
from tflaunch.agent.host import mounts
from tflaunch.agent.host.journal import read as read_journal
from tflaunch.agent.host.rundir import CODE, ENVIRONMENTS, HostError, RunDirectory, hosts_of
from tflaunch.agent.tasks import environment
from tflaunch.protocol import directories, wire
from tflaunch.protocol.machine import this_machine
from tflaunch.protocol.removal import ALIVE, GOING, Size, free, sentence, set_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

# An environment belongs to no run: its age decides, this one if the user names none.
KEPT_S = 14 * 86400.0
PART = ".part"


def usage(parent: str) -> "Dict[str, Any]":
    """The fields of a `usage` message: every run in `parent`, its size, and why it must stay if it must.

    Raises OSError when the directory cannot be read.
    """
    census = ledger.Census()
    kept = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    names = [name for name in kept if name != CODE and not name.startswith(".")]
    runs = sorted((_run(parent, name, census) for name in names), key=lambda run: -run["idle_s"])
    sizes = itertools.accumulate(len(wire.dumps(run)) for run in runs)
    return {
        "machine": this_machine(),
        "directory": parent,
        "place": ledger.place(parent),
        # As many as fit into a message, beginning with the longest unused: the others another time.
        "runs": [run for run, size in zip(runs, sizes) if size <= ledger.LISTED_BYTES],  # noqa: B905 - Python 3.8
        "code_bytes": sum(size.bytes for _, size in _kept_code(parent) + _contents(parent)),
        "environment_bytes": sum(Size(path).bytes for path in _environments(parent)),
        "rest_bytes": sum(Size(path).bytes for path in _rest(parent)),
    }


def _run(parent: str, run: str, census: ledger.Census) -> "Dict[str, Any]":
    directories = [RunDirectory(parent, run, host) for host in hosts_of(parent, run)]
    everywhere = {each.host for each in directories}
    for directory in directories:
        about = directory.read("plan.json").get("about")
        if isinstance(about, dict) and isinstance(about.get("hosts"), list):
            everywhere.update(map(str, about["hosts"]))
    size = Size(os.path.join(parent, run))
    keep = _keep(parent, run, census)
    return {
        "run": run,
        "here": [each.host for each in directories],
        "hosts": sorted(everywhere),  # of the whole run, as far as this host knows
        "ended": any(map(_run_ended, directories)),
        "bytes": size.bytes,
        "idle_s": size.idle_s,
        "alive": keep == ALIVE,
        "keep": keep,
        "unread": size.unread[:3],
    }


def _run_ended(directory: RunDirectory) -> bool:
    """Whether this host knows that the whole run has ended, not just this host's part (when its lease expired)."""
    events = read_journal(directory).events
    ended = any(
        each["type"] == "outcome" or (each["type"] == "expired" and each.get("asked")) for each in events
    )
    return ended and bool(directory.agent().get("over", False))


def _keep(parent: str, run: str, census: ledger.Census) -> str:
    """Why that run must stay, or ""."""
    path = os.path.join(parent, run)
    try:
        info = os.lstat(path)
    except OSError as error:
        return sentence(path, error)
    if not stat.S_ISDIR(info.st_mode):
        return "%s is a link or a file" % path
    if info.st_uid != os.getuid():
        return "%s belongs to uid %d" % (path, info.st_uid)
    # An agent's process is there before its directory is.
    if census.alive(run):
        return ALIVE
    known = False
    for host in hosts_of(parent, run):
        directory = RunDirectory(parent, run, host)
        agent = directory.agent()
        elsewhere = ledger.foreign(agent)
        if elsewhere and not agent.get("over", False):
            return "it belongs to the machine %s, which shares this disk" % elsewhere
        if ledger.lives(agent) or _answers(directory):
            return ALIVE
        known |= os.path.lexists(os.path.join(directory.path, "agent.json"))
    if not known and _holds_files(path):
        return "%s is no run directory: no agent.json in it" % path
    mount = mounts.below(os.path.realpath(path))  # what is mounted there does not belong to the run
    return "%s is mounted in it: umount it first" % mount if mount else ""


def _answers(directory: RunDirectory) -> bool:
    connection = directory.connect()
    if connection is not None:
        connection.close()
    return connection is not None


def _holds_files(path: str) -> bool:
    return any(files for _, _, files in os.walk(path))


def clean(
    parent: str, runs: "List[str]", code_older_s: "Optional[float]", dry_run: bool = False
) -> "Dict[str, Any]":
    """Remove these runs, then the shipped code that only they used; returns the fields of a `cleaned` message.

    Unless `code_older_s` is None, also removes other code that no remaining run uses and that was not used for so long,
    old environments, and what an interrupted clean has left.  With `dry_run`, removes nothing.  Raises HostError.
    """
    done = {"removed": {}, "left": {}, "code": {"files": 0, "bytes": 0}, "rest_bytes": 0}  # type: Dict[str, Any]
    done["environments"] = {"files": 0, "bytes": 0}
    if not os.path.isdir(parent):
        return done
    lock = _lock(parent)
    try:
        wanted = {run: _code_of(parent, run) for run in map(_checked, runs)}
        done["removed"], done["left"] = _clean_runs(parent, list(wanted), dry_run)
        gone = [run for run in done["removed"] if run not in done["left"]]
        staying = [name for name in _names(parent) if name not in gone and not name.startswith(".")]
        of_gone = {name for run in gone for name in wanted[run]}
        done["code"] = _clean_code(parent, staying, of_gone, code_older_s, dry_run)
        if code_older_s is not None:
            done["environments"], left = _clean_environments(parent, code_older_s, dry_run)
            if left:
                done["left"][ENVIRONMENTS] = "; ".join(left[:3])
            done["rest_bytes"] = sum(Size(path).bytes if dry_run else free(path)[0] for path in _rest(parent))
    finally:
        os.close(lock)
    return done


def _lock(parent: str) -> int:
    """A lock that only one clean has at a time: so what is set aside is its own.  Raises HostError."""
    descriptor = os.open(parent, directories.DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise HostError("another tflaunch clean is at work on this host", "wait for its end") from error
        # A network disk may have no locks.
    return descriptor


def _checked(run: str) -> str:
    RunDirectory("", run, "any")  # raises HostError for what could lead elsewhere
    if run == CODE:
        raise HostError("%r is no run" % run)
    return run


def _clean_runs(parent: str, runs: "List[str]", dry_run: bool) -> "Tuple[Dict[str, int], Dict[str, str]]":
    """({run: bytes} of those that are removed, {run: why} of those that are not, or not completely)."""
    census = ledger.Census()
    removed = {}  # type: Dict[str, int]
    left = {}  # type: Dict[str, str]
    going = {}  # type: Dict[str, str]
    for run in runs:
        path = os.path.join(parent, run)
        if not os.path.lexists(path):
            continue  # another clean was quicker
        why = _keep(parent, run, census)
        if why:
            left[run] = why
        elif dry_run:
            removed[run] = Size(path).bytes
        else:
            try:
                going[run] = set_aside(path)
            except OSError as error:
                left[run] = sentence(path, error)
    census = ledger.Census() if going else census
    for run, aside in going.items():
        if census.alive(run):
            left[run] = ALIVE
            try:
                os.rename(aside, os.path.join(parent, run))
            except (
                OSError
            ) as error:  # its agent has made a new one; the old one stays, for the user to look at
                left[run] = sentence(aside, error)
            continue
        removed[run], problems = free(aside)
        if problems:
            left[run] = "; ".join(problems[:3])
    return removed, left


def _rest(parent: str) -> "List[str]":
    """What a clean that was interrupted has set aside, and not removed."""
    return [
        os.path.join(directory, name)
        for directory in (parent, *_code_directories(parent), os.path.join(parent, ENVIRONMENTS))
        if not os.path.islink(directory)
        for name in _names(directory)
        if name.startswith(GOING)
    ]


def _code_of(parent: str, run: str) -> "set[str]":
    """The names, in the store, of the code that this run uses: a manifest, or an older tflaunch's archive."""
    plans = [RunDirectory(parent, run, host).read("plan.json") for host in hosts_of(parent, run)]
    return {"%s%s" % (plan.get("code"), kind) for plan in plans for kind in (TREE, ".tar.gz")}


def _clean_code(
    parent: str, staying: "Iterable[str]", of_gone: "set[str]", older_s: "Optional[float]", dry_run: bool
) -> "Dict[str, int]":
    """Remove manifests that are not used, then the contents that only they name."""
    done = {"files": 0, "bytes": 0}
    used = set().union(*(_code_of(parent, run) for run in staying if run != CODE))  # type: set[str]
    needed = set()  # type: set[str]
    free_now = set()  # type: set[str]
    for path, size in _kept_code(parent):
        name = os.path.basename(path)
        contents = contents_of(path) if name.endswith(TREE) else set()
        stays = name in used or (older_s is None and name not in of_gone)
        ours = name in of_gone or name.endswith(PART)
        if stays or size.idle_s < (REST_S if ours or older_s is None else max(REST_S, older_s)):
            needed |= contents
        elif dry_run or _remove_code(path):
            done["files"] += 1
            done["bytes"] += size.bytes
            free_now |= contents
        else:
            needed |= contents
    for path, size in _contents(parent):
        name = os.path.basename(path)
        if name in needed or (older_s is None and name not in free_now) or size.idle_s < REST_S:
            continue
        if dry_run or _remove_code(path):
            done["files"] += 1
            done["bytes"] += size.bytes
    return done


def _remove_code(path: str) -> bool:
    """Remove shipped code, unless an agent has just now said to a launcher that it is here."""
    try:
        aside = set_aside(path)
        if time.time() - os.lstat(aside).st_mtime < REST_S:
            os.rename(aside, path)
            return False
        os.unlink(aside)
    except OSError:
        return False  # another clean was quicker
    return True


def _environments(parent: str) -> "List[str]":
    """The virtual environments, complete or not; links do not count."""
    directory = environment.directory_of(parent)
    paths = [os.path.join(directory, name) for name in _names(directory) if not name.startswith(".")]
    return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]


def _clean_environments(parent: str, older_s: float, dry_run: bool) -> "Tuple[Dict[str, int], List[str]]":
    """Remove those that no run uses now or has used for so long, and incomplete ones; also returns what stays."""
    done, left = {"files": 0, "bytes": 0}, []  # type: Tuple[Dict[str, int], List[str]]
    directory = environment.directory_of(parent)
    locks = [os.path.join(directory, name) for name in _names(directory) if name.endswith(".lock")]
    for path in sorted({*_environments(parent), *(lock[: -len(".lock")] for lock in locks)}):
        lock = environment.unused(path, max(REST_S, older_s or KEPT_S))
        if lock is None:
            continue
        try:
            if os.path.isdir(path):
                size, problems = (Size(path).bytes, []) if dry_run else free(set_aside(path))
                left += problems
                done["files"] += 1
                done["bytes"] += size
            if not dry_run:
                os.unlink(path + ".lock")
        except OSError as error:
            left.append(sentence(path, error))
        os.close(lock)
    return done, left


def _code_directories(parent: str) -> "List[str]":
    """The directories of manifests and of contents; links do not count."""
    code = os.path.join(parent, CODE)
    paths = [] if os.path.islink(code) else [code, os.path.join(code, FILES)]
    return [path for path in paths if not os.path.islink(path)]


def _kept_code(parent: str) -> "List[Tuple[str, Size]]":
    """The manifests, what has been checked, complete or not, and the agent's own modules, packed and compiled.

    Links do not count.
    """
    # An older tflaunch has shipped archives.
    kinds = (TREE, ".tar.gz", PART, ".pyc", ".z", CHECKED, ".new")
    return [
        each for place in _code_directories(parent)[:1] for each in _files(place) if each[0].endswith(kinds)
    ]


def _contents(parent: str) -> "List[Tuple[str, Size]]":
    """The contents that the manifests name, complete or not."""
    return [each for place in _code_directories(parent)[1:] for each in _files(place)]


def _files(directory: str) -> "List[Tuple[str, Size]]":
    paths = [os.path.join(directory, name) for name in _names(directory) if not name.startswith(GOING)]
    return [(path, Size(path)) for path in paths if os.path.isfile(path) and not os.path.islink(path)]


def _names(path: str) -> "List[str]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
