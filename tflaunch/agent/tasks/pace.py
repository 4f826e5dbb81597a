"""What tells of a task, beside agent/tasks/look.py, how fast it goes and what holds it up: more fields of its look.

    waited_s   how long all threads of its processes have been ready to run without a processor, so far
    held_s     how long its cgroup has been over its quota of processor time, so far; left out without a quota
    cores      how many cores it may use, by its affinity and its quota
    disk       [bytes that these processes have moved from and to disks so far, threads that wait for one now]
    memory     [bytes in memory, bytes swapped out], of all its processes
    faults     how often they have waited for a disk to bring a page of their memory back, so far
    step       the number that follows "step" in its last lines; left out where they have none

What threads have waited stands in a file of each: of many, a look reads a quarter, and takes the others as they were;
which threads there are, it asks as rarely, unless their number has changed.  Whether they wait for a disk stands in
such files, too: it is read only while the bytes of disks grow, by more than a log makes, or did so at the look before.
"""

import os

from tflaunch.agent.host.processes import contents
from tflaunch.agent.tasks.oom_kills import CGROUPS
from tflaunch.diagnosis.steps import last_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, List, Optional, Tuple

    from tflaunch.agent.host.processes import Process

THREADS = 2048  # of a task: more are not asked
FEW = 8  # threads, which are all asked
PARTS = 4
TAIL_BYTES = 2048
GROWN_BYTES = 65536  # from and to disks between two looks; the lines of a log make some pages


class Waits:
    """How long threads have waited for a processor, and by which quotas, from look to look."""

    def __init__(self) -> None:
        self._turn = 0
        self._waited = {}  # type: Dict[int, Dict[str, int]]  # pid -> thread -> nanoseconds
        self._quotas = {}  # type: Dict[bytes, Tuple[Optional[float], Optional[float]]]  # in this look

    def begin(self, pids: "Container[int]") -> None:
        """A look begins; forget all but these processes."""
        self._turn += 1
        self._quotas = {}
        self._waited = {pid: threads for pid, threads in self._waited.items() if pid in pids}

    def of(self, tree: "List[Process]") -> float:
        """The seconds that all threads of these processes have waited."""
        left, waited_ns = THREADS, 0
        for process in tree:
            threads = list(self._waited.get(process.pid, ()))
            if len(threads) <= FEW or len(threads) != process.threads or self._turn % PARTS == 0:
                try:
                    threads = os.listdir("/proc/%d/task" % process.pid)
                except OSError:
                    continue  # it has ended meanwhile
            threads = threads[:left]
            left -= len(threads)
            waited_ns += self._of(process.pid, threads)
        return round(waited_ns / 1e9, 2)

    def quota_of(self, pid: int) -> "Tuple[Optional[float], Optional[float]]":
        """As `quota_of`; the files of a cgroup are read once in a look."""
        try:
            table = contents("/proc/%d/cgroup" % pid)
        except OSError:
            return None, None
        if table not in self._quotas:
            self._quotas[table] = _quota_in(table, CGROUPS)
        return self._quotas[table]

    def _of(self, pid: int, threads: "List[str]") -> int:
        before = self._waited.get(pid, {})
        # The numbers of threads that were started together follow each other.
        due = [
            thread
            for thread in threads
            if len(threads) <= FEW or thread not in before or (int(thread) + self._turn) % PARTS == 0
        ]
        now = {thread: before[thread] for thread in threads if thread in before}
        for thread in due:
            try:
                now[thread] = int(contents("/proc/%d/task/%s/schedstat" % (pid, thread)).split()[1])
            except (OSError, IndexError, ValueError):
                now.pop(thread, None)
        self._waited[pid] = now
        return sum(now.values())


class DiskWaits:
    """How many threads wait for a disk or a file server (state D), from look to look."""

    def __init__(self) -> None:
        self._before = {}  # type: Dict[int, Tuple[int, int]]  # pid of the program -> `disk`

    def begin(self, pids: "Container[int]") -> None:
        """A look begins; forget all but these processes."""
        self._before = {pid: disk for pid, disk in self._before.items() if pid in pids}

    def of(self, tree: "List[Process]", moved: int) -> "Tuple[int, int]":
        """The field `disk`; `moved` are its bytes."""
        if not tree:
            return moved, 0
        bytes_before, waited = self._before.get(tree[0].pid, (moved, 0))
        waiting = sum(each.state == "D" for each in tree)
        if waiting or waited or moved > bytes_before + GROWN_BYTES:
            waiting = _in_disk(tree)
        self._before[tree[0].pid] = found = (moved, waiting)
        return found


def _in_disk(tree: "List[Process]") -> int:
    left, waiting = THREADS, 0
    for process in tree:
        try:
            threads = os.listdir("/proc/%d/task" % process.pid)[:left]
        except OSError:
            continue
        left -= len(threads)
        for thread in threads:
            try:
                text = contents("/proc/%d/task/%s/stat" % (process.pid, thread))
            except OSError:
                continue
            waiting += text[text.rindex(b")") + 2 :][:1] == b"D"
    return waiting


def pace_of(tree: "List[Process]", waits: Waits, tail: str) -> "Dict[str, Any]":
    """The fields above of a task with these processes, its program first, and these last lines; and its `turns`."""
    if not tree:
        return {"turns": 0}
    seen = {"waited_s": waits.of(tree), **_statuses(tree)}  # type: Dict[str, Any]
    seen["faults"] = sum(each.faults for each in tree)
    quota, held_s = waits.quota_of(tree[0].pid)
    allowed = _allowed(tree[0].pid)
    cores = [each for each in (quota, allowed) if each]
    if cores:
        seen["cores"] = round(min(cores), 2)
    if held_s is not None:
        seen["held_s"] = round(held_s, 2)
    step = last_step(tail)
    if step is not None:
        seen["step"] = step
    return seen


def _statuses(tree: "List[Process]") -> "Dict[str, Any]":
    """`memory`, and `turns`: both stand in one file."""
    memory = swapped = turns = 0
    for process in tree:
        try:
            text = contents("/proc/%d/status" % process.pid)
        except OSError:
            continue
        memory += _number(text, b"\nVmRSS:") * 1024
        swapped += _number(text, b"\nVmSwap:") * 1024
        turns += _number(text, b"\nvoluntary_ctxt_switches:")
    return {"memory": [memory, swapped], "turns": turns}


def _number(text: bytes, name: bytes) -> int:
    words = text.partition(name)[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0


def _allowed(pid: int) -> int:
    try:
        return len(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return 0


def quota_of(pid: int, cgroups: str = CGROUPS) -> "Tuple[Optional[float], Optional[float]]":
    """(cores, seconds that the quota has held it so far) of the tightest cgroup above that process; None: no quota."""
    try:
        return _quota_in(contents("/proc/%d/cgroup" % pid), cgroups)
    except OSError:
        return None, None


def _quota_in(table: bytes, cgroups: str) -> "Tuple[Optional[float], Optional[float]]":
    """The same of a process with that table of cgroups."""
    found = (None, None)  # type: Tuple[Optional[float], Optional[float]]
    for line in table.decode("utf-8", "replace").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "cpu" in controllers.split(","):
            root = next(
                (each for each in (controllers, "cpu") if os.path.isdir(os.path.join(cgroups, each))), ""
            )
            read = _of_first
        elif not controllers:
            root, read = "", _of_second
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(
            len(parts), -1, -1
        ):  # a container sees its own as the root, whatever the path says
            quota, held_s = read(os.path.join(cgroups, root, *parts[:depth]))
            if quota is not None and (found[0] is None or quota < found[0]):
                found = (quota, held_s)
    return found


def _of_second(place: str) -> "Tuple[Optional[float], Optional[float]]":
    try:
        most, period = contents(os.path.join(place, "cpu.max")).split()
        if most == b"max":
            return None, None
        return int(most) / float(period), _stat(place, b"throttled_usec", 1e6)
    except (OSError, ValueError, ZeroDivisionError):
        return None, None


def _of_first(place: str) -> "Tuple[Optional[float], Optional[float]]":
    try:
        most = int(contents(os.path.join(place, "cpu.cfs_quota_us")))
        if most < 0:
            return None, None
        period = float(contents(os.path.join(place, "cpu.cfs_period_us")))
        return most / period, _stat(place, b"throttled_time", 1e9)
    except (OSError, ValueError, ZeroDivisionError):
        return None, None


def _stat(place: str, name: bytes, unit: float) -> "Optional[float]":
    for line in contents(os.path.join(place, "cpu.stat")).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1]) / unit
    return None
