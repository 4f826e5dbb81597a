"""What tells of a task, beside agent/tasks/look.py, how fast it goes and what holds it up: more fields of its look.

    waited_s   how long all threads of its processes have been ready to run without a processor, so far
    held_s     how long its cgroup has been over its quota of processor time, so far; left out without a quota
    cores      how many cores it may use, by its affinity and its quota
    memory     [bytes in memory, bytes swapped out], of all its processes
    step       the number that follows "step" in its last lines; left out where they have none

This costs 10 us for a thread, and 1.5 ms for a task: some 17 ms on a host with 8 tasks of 60 threads, every 5 s.
"""

import os

from tflaunch.diagnosis.steps import last_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from tflaunch.agent.host.processes import Process

THREADS = 2048  # of a task: more are not asked
TAIL_BYTES = 2048
CGROUPS = "/sys/fs/cgroup"


def pace_of(tree: "List[Process]", tail: str) -> "Dict[str, Any]":
    """The fields above of a task with these processes, its program first, and these last lines."""
    if not tree:
        return {}
    seen = {"waited_s": _waited_s(tree), "memory": _memory(tree)}  # type: Dict[str, Any]
    quota, held_s = quota_of(tree[0].pid)
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


def _waited_s(tree: "List[Process]") -> float:
    left, waited_ns = THREADS, 0
    for process in tree:
        directory = "/proc/%d/task" % process.pid
        try:
            threads = os.listdir(directory)[:left]
        except OSError:
            continue  # it has ended meanwhile
        left -= len(threads)
        for thread in threads:
            try:
                waited_ns += int(_read("%s/%s/schedstat" % (directory, thread)).split()[1])
            except (OSError, IndexError, ValueError):
                continue
    return round(waited_ns / 1e9, 2)


def _memory(tree: "List[Process]") -> "List[int]":
    memory, swapped = 0, 0
    for process in tree:
        try:
            for line in _read("/proc/%d/status" % process.pid).splitlines():
                if line.startswith(b"VmRSS:"):
                    memory += int(line.split()[1]) * 1024
                elif line.startswith(b"VmSwap:"):
                    swapped += int(line.split()[1]) * 1024
        except (OSError, IndexError, ValueError):
            continue
    return [memory, swapped]


def _allowed(pid: int) -> int:
    try:
        return len(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return 0


def quota_of(pid: int, cgroups: str = CGROUPS) -> "Tuple[Optional[float], Optional[float]]":
    """(cores, seconds that the quota has held it so far) of the tightest cgroup above that process; None: no quota."""
    found = (None, None)  # type: Tuple[Optional[float], Optional[float]]
    try:
        lines = _read("/proc/%d/cgroup" % pid).decode("utf-8", "replace").splitlines()
    except OSError:
        return found
    for line in lines:
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
        most, period = _read(os.path.join(place, "cpu.max")).split()
        quota = None if most == b"max" else int(most) / float(period)
        return quota, _stat(place, b"throttled_usec", 1e6)
    except (OSError, ValueError, ZeroDivisionError):
        return None, None


def _of_first(place: str) -> "Tuple[Optional[float], Optional[float]]":
    try:
        most = int(_read(os.path.join(place, "cpu.cfs_quota_us")))
        period = float(_read(os.path.join(place, "cpu.cfs_period_us")))
        return (None if most < 0 else most / period), _stat(place, b"throttled_time", 1e9)
    except (OSError, ValueError, ZeroDivisionError):
        return None, None


def _stat(place: str, name: bytes, unit: float) -> "Optional[float]":
    for line in _read(os.path.join(place, "cpu.stat")).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1]) / unit
    return None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)
