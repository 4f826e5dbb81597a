"""Processes as /proc shows them: by descent, by a run's marks, and how to kill all of them."""

import os
import time

from tflaunch.agent.host import foreign
from tflaunch.protocol.light_stdlib import signal
from tflaunch.protocol.machine import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Set


class Process:
    """A process when it was read.  A named tuple would take longer to load than everything else in this file."""

    __slots__ = ("faults", "name", "parent", "pid", "reaped_ticks", "start", "state", "threads", "ticks")

    def __init__(self, pid: int, parent: int, state: str, start: int, name: str) -> None:
        self.pid = pid
        self.parent = parent
        self.state = state
        self.start = start  # clock ticks since boot: with the pid, the process's identity
        self.name = name
        self.ticks = 0  # of processor time that it has used ...
        self.reaped_ticks = 0  # ... and its children that have ended, and theirs
        self.threads = 0
        self.faults = 0  # pages of memory that it had to wait for a disk for


# The environment of every task has these; by them `tflaunch stop` finds processes that no agent knows of.
RUN_MARK = "TFLAUNCH_RUN"
HOST_MARK = "TFLAUNCH_HOST"
TASK_MARK = "TFLAUNCH_TASK"
ATTEMPT = "TFLAUNCH_ATTEMPT"  # not a mark: how often the task has been restarted, for its program
MARKS = (RUN_MARK, HOST_MARK, TASK_MARK, ATTEMPT)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PF_KTHREAD = 0x00200000
_READ = 65536
_MOST = 8 << 20  # of a file of /proc: the kernel starts no program with more, but may show more


SHUT_S = 10.0  # a process that keeps whoever looks into it waiting is not looked into again for so long
_shut = {}  # type: Dict[tuple[int, int], float]  # pid and start of such processes, and until when


def contents(path: str) -> bytes:
    """Read a file of /proc; raises OSError.  A file object costs six more system calls; a scan reads thousands."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        text = part = os.read(descriptor, _READ)
        while len(part) == _READ and len(text) < _MOST:  # a shorter part is the last one
            part = os.read(descriptor, _READ)
            text += part
        return text
    finally:
        os.close(descriptor)


def read(pid: int) -> "Optional[Process]":
    """The process `pid` now, or None when there is none.

    A zombie does not count, since it only waits for its parent; but it counts if only its first thread has ended and
    others run on.  A kernel thread does not count; a large host has thousands of these.
    """
    try:
        text = contents("/proc/%d/stat" % pid)
    except OSError:
        return None
    end = text.rindex(b")")  # the name may contain one, too
    state, parent, *fields = text[end + 2 :].split(None, 20)
    if int(fields[4]) & PF_KTHREAD or state == b"X" or (state == b"Z" and int(fields[15]) <= 1):
        return None
    name = text[text.index(b"(") + 1 : end]
    process = Process(pid, int(parent), state.decode(), int(fields[17]), name.decode("utf-8", "replace"))
    process.ticks = int(fields[9]) + int(fields[10])
    process.reaped_ticks = int(fields[11]) + int(fields[12])
    process.threads, process.faults = int(fields[15]), int(fields[7])
    return process


def every() -> "Dict[int, Process]":
    """All live processes by pid."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read(int(entry))
            if process:
                found[process.pid] = process
    return found


def alive(pid: int, start: int) -> bool:
    """Whether the process `pid` that started at `start` (clock ticks since boot) still lives."""
    process = read(pid)
    return process is not None and process.start == start


def children_of(processes: "Dict[int, Process]") -> "Dict[int, List[Process]]":
    """The children of each that has some."""
    children = {}  # type: Dict[int, List[Process]]
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    return children


def descendants(root: int, processes: "Dict[int, Process]") -> "List[Process]":
    """Everything below `root`, `root` itself left out."""
    return below(root, children_of(processes))


def below(root: int, children: "Dict[int, List[Process]]") -> "List[Process]":
    """Everything below `root`, of processes with these `children_of`."""
    found = []  # type: List[Process]
    pending = [root]
    while pending:
        next_ones = children.get(pending.pop(), [])
        found += next_ones
        pending += [process.pid for process in next_ones]
    return found


def at_hand(root: int) -> "List[Process]":
    """Everything below `root`, without a look at all other processes of the host, which may be thousands.

    Where processes begin or end meanwhile, the kernel may leave one out: for what is only told, not for a purge.
    """
    found = []  # type: List[Process]
    pending = [root]
    while pending:
        pid = pending.pop()
        try:
            for thread in os.listdir("/proc/%d/task" % pid):
                children = map(int, contents("/proc/%d/task/%s/children" % (pid, thread)).split())
                below = [each for each in map(read, children) if each]
                found += below
                pending += [each.pid for each in below]
        except OSError:
            if pid == root:  # a kernel that does not tell
                return descendants(root, every())
    return found


def _of(pid: int, what: str) -> bytes:
    """That file of a process; raises OSError.

    One that waits in the kernel may keep its reader waiting, too.  Another user can have the memory of his own process
    behind it: a file server that never answers, or terabytes.
    """
    process = read(pid)
    if not mine(pid):
        return foreign.of_process(pid, what, foreign.OTHERS_BYTES)
    if process is not None and process.state == "D":
        return foreign.of_process(pid, what)
    return contents("/proc/%d/%s" % (pid, what))


def status(pid: int, field: bytes) -> bytes:
    """The last word of that field of /proc/PID/status; raises OSError, and IndexError for a field that it lacks."""
    # As bytes: the name, cut at 15 of them, may end within a letter.
    text = contents("/proc/%d/status" % pid).partition(b"\n%s:" % field)[2]
    return text.partition(b"\n")[0].split()[-1]


def environment(pid: int) -> "List[bytes]":
    """The environment that `pid` was started with, as `NAME=value`; [] when it may not be read."""
    try:
        return _of(pid, "environ").split(b"\0")
    except OSError:
        return []


def command(pid: int) -> "List[bytes]":
    """The words of the command line of `pid`; [] when it has ended, or keeps its reader waiting."""
    try:
        return _of(pid, "cmdline").split(b"\0")[:-1]
    except OSError:
        return []


def mine(pid: int) -> bool:
    """Whether that process belongs to this user: another user's process may carry any mark and any command line."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False


def started(pid: int) -> float:
    """When that process started, in epoch seconds; 0.0 when it is gone."""
    process = read(pid)
    return booted() + process.start / float(os.sysconf("SC_CLK_TCK")) if process else 0.0


def booted() -> float:
    """When this machine started, in epoch seconds."""
    try:
        with open("/proc/stat") as file:
            return float(next(line.split()[1] for line in file if line.startswith("btime")))
    except (OSError, StopIteration):
        return 0.0


def serves(words: "List[bytes]") -> str:
    """The run that a process with this command line serves, as agent, guard or holder of a channel; "" for none."""
    return serves_on(words)[0]


def serves_on(words: "List[bytes]") -> "tuple[str, str]":
    """(that run, the host for which the process serves it); ("", "") for none."""
    # tflaunch.sessions.payload.boot_line: name, size of the loader, verb, run, host.  A host's name may look like a
    # run's, so the place counts.
    at = words.index(b"tflaunch-agent") if b"tflaunch-agent" in words else len(words)
    verb, run, host = (*words[at + 2 : at + 5], b"", b"", b"")[:3]
    return (os.fsdecode(run), os.fsdecode(host)) if verb == b"start" else ("", "")


def marked(
    processes: "Iterable[Process]", run: str, host: "Optional[str]" = None, task: "Optional[str]" = None
) -> "List[Process]":
    """This user's processes that carry the mark of `run` (and of `host` and `task`, if given)."""
    marks = ((RUN_MARK, run), (HOST_MARK, host), (TASK_MARK, task))
    wanted = [os.fsencode("%s=%s" % mark) for mark in marks if mark[1] is not None]
    now = time.monotonic()
    own = [each for each in processes if mine(each.pid) and _shut.get((each.pid, each.start), 0.0) <= now]
    if not own:
        return []  # without a child process

    def carries(process: Process) -> bool:
        try:
            text = contents("/proc/%d/environ" % process.pid)
        except OSError:
            return False
        # This first test rules out most processes.
        return wanted[0] in text and set(wanted).issubset(text.split(b"\0"))

    try:
        # Any thread of a process may wait for a file server and keep whoever looks into the process waiting, too.
        carrying = foreign.each_in_time(own, carries)
    except OSError:  # the run's own tasks have filled the process table
        carrying = [process.state != "D" and carries(process) for process in own]
    found = []
    for at, answer in enumerate(carrying):
        if answer is None:
            _shut[own[at].pid, own[at].start] = time.monotonic() + SHUT_S
        elif answer:
            found.append(own[at])
    return found


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process once its parent, which must be `parent`, has ended, even by kill -9."""
    libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def become_subreaper() -> None:
    """Have orphans below this process become its children instead of init's."""
    libc("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def left_behind(process: "Process") -> bool:
    """Whether that process of tflaunch's waits for an answer of a driver or file server that never comes.

    Nothing can end it.  It holds nothing of a run, and ends with its wait.
    """
    return process.state == "D" and process.name in foreign.NAMES


def send(process: "Process", signal_number: int) -> None:
    """Send a signal to that process, never to another process that has got its pid since."""
    if alive(process.pid, process.start):
        try:
            os.kill(process.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            pass


def send_to_group(leader: int, signal_number: int) -> bool:
    """Send a signal, or none (0), to the process group of that pid; returns whether it has processes."""
    try:
        os.killpg(leader, signal_number)
    except ProcessLookupError:
        return False
    except PermissionError:  # all of them are other users'
        pass
    return True


def reap(dead: "Optional[Callable[[int], None]]" = None) -> "List[tuple[int, int, int]]":
    """(pid, wait status, the most memory it had in bytes) of every child that has ended since the last call.

    `dead` is called with the pid of each while /proc still shows it.
    """
    ended = []  # type: List[tuple[int, int, int]]
    while True:
        try:
            if dead is not None:
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if waiting is not None:
                    dead(waiting.si_pid)
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status, usage.ru_maxrss * 1024))


def describe(process: "Process") -> str:
    """`pid 4711 python (D: waits in the kernel)`: what the user needs to find it."""
    states = {"D": "D: waits in the kernel, cannot be killed", "T": "T: stopped", "R": "", "S": ""}
    state = states.get(process.state, process.state)
    return "pid %d %s" % (process.pid, process.name) + (" (%s)" % state if state else "")


class Purge:
    """Kills every process that `victims` returns, again and again until it returns none.

    Each `step` freezes all of them before it kills any: a frozen process cannot fork.
    """

    def __init__(self, victims: "Callable[[], List[Process]]", limit_s: float = 5.0) -> None:
        self._victims = victims
        self._deadline = time.monotonic() + limit_s
        self._killed = {}  # type: Dict[tuple[int, int], Process]
        self.survivors = []  # type: List[Process]

    def step(self) -> bool:
        """One pass; True when no process is left, or when the time is over: then `survivors` are left."""
        self.survivors = self._victims()
        if not self.survivors or time.monotonic() > self._deadline:
            return True
        frozen = set()  # type: Set[tuple[int, int]]
        while True:  # a child that was forked before its parent froze shows up in the next look
            fresh = [p for p in self._victims() if (p.pid, p.start) not in frozen]
            if (
                not fresh or time.monotonic() > self._deadline
            ):  # what forks faster than this is killed unfrozen
                break
            for process in fresh:
                send(process, signal.SIGSTOP)
                frozen.add((process.pid, process.start))
                self._killed[process.pid, process.start] = process
        for process in self._victims():
            send(process, signal.SIGKILL)
        return False

    @property
    def met(self) -> "List[Process]":
        """All processes that it has found, dead or alive."""
        return [*self._killed.values(), *self.survivors]

    @property
    def killed(self) -> "List[str]":
        """The processes that it has killed, described."""
        left = {(p.pid, p.start) for p in self.survivors}
        return [describe(p) for key, p in self._killed.items() if key not in left]

    def run(self) -> None:
        """All passes, with a pause between them."""
        while not self.step():
            reap()
            time.sleep(0.02)
