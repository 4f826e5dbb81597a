"""The threads of a process, from /proc: which of them sleep, which compute, and a signal to one that sleeps."""

import os

from tflaunch.protocol.machine import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    # Start time, state, seconds that it has run, and waited for a processor, switches (both kinds), blocked signals.
    Seen = Tuple[int, str, float, float, Tuple[int, ...], int]

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # the numbers of these system calls, on all machines
PIDFD_THREAD = os.O_EXCL  # a flag of pidfd_open, from Linux 6.9 on
TGKILL = {"x86_64": 234, "aarch64": 131, "riscv64": 131, "ppc64le": 250, "s390x": 241}
MOST = 4096


def look(pid: int) -> "Dict[int, Seen]":
    """All threads of a process now, by their numbers; {} when it has ended."""
    try:
        numbers = sorted(map(int, os.listdir("/proc/%d/task" % pid)))[:MOST]
    except OSError:
        return {}
    seen = ((tid, look_at(pid, tid)) for tid in numbers)
    return {tid: each for tid, each in seen if each is not None}


def look_at(pid: int, tid: int) -> "Optional[Seen]":
    """One thread now; None when it has ended."""
    place = "/proc/%d/task/%d/" % (pid, tid)
    try:
        with open(place + "stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        with open(place + "status", "rb") as status:
            lines = [line.split() for line in status]
        switches = tuple(int(line[1]) for line in lines if line[0].endswith(b"voluntary_ctxt_switches:"))
        blocked = next(int(line[1], 16) for line in lines if line[0] == b"SigBlk:")
        ran_s, waited_s = _times(place, int(fields[11]) + int(fields[12]))
        return int(fields[19]), fields[0].decode(), ran_s, waited_s, switches, blocked
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _times(place: str, ticks: int) -> "Tuple[float, float]":
    try:
        with open(place + "schedstat", "rb") as times:
            ran, waited, _ = times.read().split()
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):  # this kernel counts ticks only
        return ticks / float(os.sysconf("SC_CLK_TCK")), 0.0


def blocks(seen: "Seen", signal: int) -> bool:
    """Whether the thread blocks that signal."""
    return bool(seen[5] >> (signal - 1) & 1)


def asleep(before: "Dict[int, Seen]", now: "Dict[int, Seen]") -> "List[int]":
    """Those that sleep in the kernel, and have not run in between."""
    return [tid for tid, seen in now.items() if seen[1] == "S" and before.get(tid) == seen]


def computing(before: "Dict[int, Seen]", now: "Dict[int, Seen]", seconds: float) -> "List[Tuple[int, float]]":
    """(thread, cores) of those that have run for at least half of these seconds, who used most first.

    On a busy host they wait for a processor in between.  Who waits for the interpreter's lock does so, too, as it wakes
    every 5 ms, but runs for a thousandth of that.
    """
    used = []
    for tid, seen in now.items():
        if tid in before and before[tid][0] == seen[0]:
            ran_s, waited_s = seen[2] - before[tid][2], seen[3] - before[tid][3]
            if ran_s >= 0.02 * seconds and ran_s + waited_s >= 0.5 * seconds:
                used.append((tid, ran_s / seconds))
    return sorted(used, key=lambda each: -each[1])


def name_of(pid: int, tid: int) -> str:
    """The name of a thread; "" when it has ended."""
    try:
        with open("/proc/%d/task/%d/comm" % (pid, tid), "rb") as name:
            return name.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""


def waits_in(pid: int, tid: int) -> str:
    """The kernel's function that a thread waits in; "" when it runs, and where the kernel hides it."""
    try:
        with open("/proc/%d/task/%d/wchan" % (pid, tid)) as wchan:
            function = wchan.read().strip()
    except OSError:
        return ""
    return "" if function == "0" else function


def send(pid: int, tid: int, signal: int, still: "Callable[[], bool]") -> bool:
    """Send a signal to this thread alone, if it is `still` what it was; returns whether it was sent.

    `still` is asked as late as can be: where the kernel has descriptors of threads, no other thread can get the signal.
    """
    try:
        thread = libc("syscall", PIDFD_OPEN, tid, PIDFD_THREAD)
    except (OSError, AttributeError):
        thread = -1
    try:
        if not still():
            return False
        if thread >= 0:
            return libc("syscall", PIDFD_SEND_SIGNAL, thread, signal, None, 0) == 0
        return _tgkill(pid, tid, signal)
    finally:
        if thread >= 0:
            os.close(thread)


def _tgkill(pid: int, tid: int, signal: int) -> bool:
    try:
        return libc("tgkill", pid, tid, signal) == 0
    except (OSError, AttributeError):  # an older C library
        number = TGKILL.get(os.uname().machine)
        return number is not None and libc("syscall", number, pid, tid, signal) == 0
