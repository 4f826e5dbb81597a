"""What the host knows about the end of a task: the `facts` of its `exit`, read once, after that end.

Of a task that ended with 0:

left_running                  its program, where that goes on in the background: `pid 4711 python (S)`
nothing_left                  [number, flag]: it has restored the step, or epoch, that its argument names as the last
                              one, and trained nothing (last_step.py)

Of one that failed:

oom_kills, oom_kills_cgroup   processes that the kernel has killed for want of memory since the tasks' start: on
                              the whole host, and in the agent's own cgroup
memory_limit                  what that cgroup, or one above it, may use
peak_bytes                    the most memory that a process of the task has had
memory_bytes, memory_available_bytes   of the host, now
shm_bytes, shm_free_bytes     of /dev/shm
open_files                    how many files the task's program might open (`ulimit -n`)
warned                        the agent has sent it SIGUSR1, for the time limit was near (--warn-before)
cpu                           which vector instructions the processor has; only after SIGILL
disks                         free bytes and files of the disks that the task may have written to
python                        the version of the task's Python
read_only                     the directory of the task's log, if its disk takes no more writes
xids                          [index, Xid] of its GPUs' errors that their driver has told of since its start
dialled                       [address, port, verdict] of its peers, where its connection was reset (dialled_again.py)
packages                      versions of the packages that its Python has, of those that hosts must have in common
"""

import errno
import os
import time

from tflaunch.agent.host import foreign, processes
from tflaunch.agent.tasks import last_step, oom_kills

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Tuple

    from tflaunch.agent.tasks.task import Task

SIGILL = 4
SOON_S = 60.0  # a program that goes to the background does so early
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
FILES_S = 2.0  # how long a look at files may take: a file server that is away holds its caller for ever
# Until then no files are looked at: all tasks of a run may end at once, and each look would hang.
_away_until = 0.0
VECTORS = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "sve")


def open_files(pid: int) -> int:
    """How many files that process may open; also of one that has ended and was not waited for; 0 where not known."""
    try:
        with open("/proc/%d/limits" % pid) as table:
            for line in table:
                if line.startswith("Max open files"):
                    return int(line.split()[3])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def of_success(task: "Task", run: str, host: str) -> "Dict[str, Any]":
    """The facts of a task that has ended with 0, soon after its start: what that end need not mean."""
    if task.seconds >= SOON_S:
        return {}
    return dict(left_running(task, run, host), **last_step.nothing_left(task))


def left_running(task: "Task", run: str, host: str) -> "Dict[str, Any]":
    """The program of that task, which has ended with 0, where it runs on: forked, or started by a shell with `&`.

    Helpers that a program leaves behind (TensorBoard, a tracker) are none of it.
    """
    words = [os.path.basename(word) for word in task.request["argv"]]
    texts = {word.encode() for word in words if word.endswith(".py")}
    # To look into a process takes a child process: most tasks leave nothing but the agent's own.
    below = [each for each in processes.at_hand(os.getpid()) if each.name not in foreign.NAMES]
    if not below:
        return {}
    found = [
        each
        for each in processes.marked(below, run, host, task.id)
        if (words[0] in SHELLS and each.name.startswith("python"))
        or texts.intersection(map(os.path.basename, processes.command(each.pid)))
    ]
    return {"left_running": [processes.describe(each) for each in found[:4]]} if found else {}


def facts(task: "Task", before: "Mapping[str, int]") -> "Dict[str, Any]":
    """The facts about the end of that task; `before`: the counters (oom_kills) at the tasks' start."""
    global _away_until  # noqa: PLW0603 - a file server, which all tasks of this agent share
    found = {}  # type: Dict[str, Any]
    if time.monotonic() >= _away_until:
        try:
            found = foreign.in_time(lambda: _of_files(task), FILES_S) or {}
        except foreign.Late:
            _away_until = time.monotonic() + foreign.AWAY_S
        except OSError:
            pass
    if task.stopped:
        return found
    now = oom_kills.counters()
    found["oom_kills"] = max(0, now.get("host", 0) - before.get("host", now.get("host", 0)))
    found["oom_kills_cgroup"] = max(0, now.get("cgroup", 0) - before.get("cgroup", now.get("cgroup", 0)))
    limit = _memory_limit()
    if limit:
        found["memory_limit"] = limit
    if task.peak_bytes:
        found["peak_bytes"] = task.peak_bytes
    for name, word in (("memory_bytes", "MemTotal"), ("memory_available_bytes", "MemAvailable")):
        number = oom_kills.number_after("/proc/meminfo", word)
        if number is not None:
            found[name] = number * 1024
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 - nothing is written
        found["shm_bytes"], found["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    except OSError:
        pass
    if task.warned:
        found["warned"] = True
    if task.open_files:
        found["open_files"] = task.open_files
    if task.signal == SIGILL or task.code == 128 + SIGILL:
        found["cpu"] = _vectors()
    return found


def _of_files(task: "Task") -> "Dict[str, Any]":
    first = task.request["env"].get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    found = _packages(os.path.expanduser(task.request["argv"][0]), task.cwd, first)
    return found if task.stopped else dict(found, disks=_disks(_written(task)), **_read_only(task.log_path))


def _written(task: "Task") -> "List[str]":
    """The directories that a task writes to: its working directory, /tmp, and those that its command line names."""
    given = [word.rpartition("=")[2] for word in task.request["argv"]]
    return [task.cwd, "/tmp", *[os.path.dirname(each) for each in given if each.startswith("/")][:8]]  # noqa: S108 - nothing is written


def _read_only(log: str) -> "Dict[str, Any]":
    # Nothing else tells: after an error of the disk, neither statvfs nor access does.
    try:
        os.close(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.EROFS:
            return {"read_only": os.path.dirname(log)}
    return {}


def _disks(directories: "Iterable[str]") -> "List[Dict[str, Any]]":
    found = {}  # type: Dict[Tuple[int, int], Dict[str, Any]]
    for path in directories:
        try:
            info, device = os.statvfs(path), os.stat(path).st_dev
        except (OSError, ValueError):
            continue
        free_files = info.f_favail if info.f_files else None
        entry = {"path": path, "free_bytes": info.f_bavail * info.f_frsize, "free_files": free_files}
        found.setdefault((device, info.f_blocks), entry)
    return list(found.values())


def _memory_limit() -> int:
    """The smallest limit of the cgroup's memory and of those above it, 0 for none."""
    limits = []
    path = oom_kills.cgroup()
    while len(path) > len(oom_kills.CGROUPS):
        limits.append(_number(path + "/memory.max"))
        path = path.rpartition("/")[0]
    limits.append(_number(oom_kills.cgroup(old="memory") + "/memory.limit_in_bytes"))
    limits.append(
        _number(oom_kills.CGROUPS + "/memory.max")
    )  # in a container, its own cgroup looks like the top
    return min((each for each in limits if 0 < each < 2**60), default=0)


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # the word `max`
        return 0


def _vectors() -> "List[str]":
    try:
        with open("/proc/cpuinfo") as table:
            for line in table:
                name, _, words = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return [each for each in VECTORS if each in words.split()]
    except OSError:
        pass
    return []


def _packages(python: str, cwd: str, first: str) -> "Dict[str, Any]":
    """The version of that Python and of its packages, by the names of files: nothing is started.

    `first` is the task's PYTHONPATH: what lies there, Python takes before its own.
    """
    if "/" not in python:
        import shutil

        python = shutil.which(python) or ""
    elif not os.path.isabs(python):
        python = os.path.join(cwd, python)
    if "python" not in os.path.basename(python):
        return {}
    home = os.path.dirname(os.path.dirname(python))
    true = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    version = ""
    packages = {}  # type: Dict[str, str]
    try:
        with open(home + "/pyvenv.cfg", errors="replace") as config:
            lines = [line.partition("=") for line in config]
        version = next((value.strip() for name, _, value in lines if name.strip().startswith("version")), "")
        homes = [home]
    except OSError:
        base = os.path.basename(os.path.realpath(python))[len("python") :]
        version = base if base.startswith("3.") else ""
        homes = [home, true, "/usr/local", os.path.expanduser("~/.local")]
    for each in first.split(":") if first else ():
        _read_packages(os.path.join(cwd, each), packages)
    short = ".".join(version.split(".")[:2])
    for each in homes:
        for library in _libraries(each, short):
            _read_packages(library, packages)
    found = {"python": version[:40]} if version else {}  # type: Dict[str, Any]
    if packages:
        found["packages"] = packages
    return found


def _libraries(home: str, version: str) -> "List[str]":
    pythons = ["python" + version] if version else []
    if not version:
        try:
            pythons = [name for name in os.listdir(home + "/lib") if name.startswith("python3.")]
        except OSError:
            pass
        if len(pythons) != 1:
            return []  # which of them it runs by is not known
    found = [
        "%s/lib/%s/%s" % (home, each, kind) for each in pythons for kind in ("site-packages", "dist-packages")
    ]
    return [*found, home + "/lib/python3/dist-packages"]


def _read_packages(library: str, packages: "Dict[str, str]") -> None:
    try:
        names = os.listdir(library)
    except OSError:
        return
    # Here, in the child process that looks after a failure: it brings dataclasses, which take longer than the agent.
    from tflaunch.frameworks.table import OTHER_NAMES, PACKAGES

    for name in names:
        if name.endswith(".dist-info"):
            package, _, version = name[: -len(".dist-info")].rpartition("-")
            package = package.lower()
            package = OTHER_NAMES.get(package, package)
            if package in PACKAGES or package == "grpcio":
                packages.setdefault(package, version[:40])
