"""The Python stacks of tasks that go on: a signal has Python's faulthandler write them into a file that is not the log.

Each Python of a task has prepared itself for that at its start (tflaunch.in_task.stacks_site).  `Dumps` sends the
signal, by pidfd, and only to a process that

- has open the unlinked file that says its own pid and start time, and
- has a handler for the signal: any other process would die of it.

So nothing happens to python -I, to a program that is no Python, or to one that has taken the place of a Python.
"""

import errno
import os
import stat

from tflaunch.agent import processes
from tflaunch.agent.tasks.stacks import catches
from tflaunch.in_task.stacks_site import NAME, SIGNAL_BELOW_MAX
from tflaunch.protocol.light_stdlib import signal
from tflaunch.protocol.machine import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Key = Tuple[int, int]  # pid, start time

SIGNAL = signal.SIGRTMAX - SIGNAL_BELOW_MAX
AGAIN_S = 600.0  # a task is asked for its stacks at most so often by the rules ...
ON_DEMAND_S = 10.0  # ... and by a user
ANSWER_S = 2.0  # how long a process may take
STILL_S = 0.1  # a dump that has not grown for so long is complete
FILE_BYTES = 256 * 1024  # of one dump
PATH_CHARACTERS = 1000  # of a file or function: Python writes 500, but the task may write anything there
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # the numbers of these system calls, on all machines

UNPREPARED = "no Python that tflaunch has prepared: another program, or python -I, -E or -S"
NO_PIDFD = "this host's kernel has no pidfd_open (Linux 5.3 has it): no process can be signalled safely"


class Stacks:
    """What one process has answered: `found` as in `inspected`, else None and `why_none`; `at`: when."""

    def __init__(self, found: "Optional[List[Dict[str, Any]]]", why_none: str, at: float) -> None:
        self.found = found
        self.why_none = why_none
        self.at = at


class _Target:
    """A process that has got the signal."""

    def __init__(self, process: "processes.Process", number: int, main: int) -> None:
        """`number` is the descriptor of its file there, `main` its first thread.  Raises OSError, ValueError."""
        self.process = process
        self.main = main
        self._info = "/proc/%d/fdinfo/%d" % (process.pid, number)
        self._file = _open_checked(process.pid, number)
        try:
            self._began = self._end = _position(self._info)
            self._grew_at = 0.0
            _send(process, number)
        except BaseException:
            os.close(self._file)
            raise

    def complete(self, now: float) -> bool:
        """Whether it has written, and writes no more.  Raises OSError, ValueError when it has ended."""
        end = _position(self._info)
        if end != self._end:
            self._end, self._grew_at = end, now
        return end > self._began and now - self._grew_at >= STILL_S

    def text(self) -> str:
        """What it has written; the file is empty then."""
        size = max(0, min(self._end - self._began, FILE_BYTES))
        text = os.pread(self._file, size, self._began)
        os.ftruncate(self._file, 0)
        return text.decode("ascii", "replace")

    def close(self) -> None:
        os.close(self._file)


def _position(info: str) -> int:
    with open(info) as lines:
        return int(next(line.split()[1] for line in lines if line.startswith("pos:")))


def _claims(link: str) -> "Optional[Tuple[int, int, int]]":
    """(pid, start time, first thread) by the name of a file, None for the name of any other."""
    name = link.rpartition("/")[2]
    name, _, gone = name.partition(" ")
    name = name[6:] if name.startswith("memfd:") else name
    if gone != "(deleted)" or not name.startswith(NAME + "-"):
        return None
    try:
        pid, start, main = name[len(NAME) + 1 :].split("-")
        return int(pid), int(start), int(main, 16)
    except ValueError:
        return None


def _recorded(process: "processes.Process") -> "Optional[Tuple[int, int]]":
    """(descriptor, first thread) of the file that this process has for its stacks; None when it has none."""
    place = "/proc/%d/fd/" % process.pid
    try:
        with open("/proc/%d/status" % process.pid) as lines:
            inner = next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))
        numbers = os.listdir(place)
    except (OSError, ValueError, StopIteration):
        return None  # it has ended, or belongs to another user
    for number in numbers:
        try:
            claim = _claims(os.readlink(place + number))
        except OSError:  # closed meanwhile
            continue
        if claim is not None and claim[:2] == (inner, process.start):
            return int(number), claim[2]
    return None


def _open_checked(pid: int, number: int) -> int:
    """Open the file of that name; a process may have put another there meanwhile.  Raises OSError."""
    seen = os.open("/proc/%d/fd/%d" % (pid, number), os.O_PATH | os.O_CLOEXEC)
    try:
        info = os.fstat(seen)
        ours = stat.S_ISREG(info.st_mode) and info.st_nlink == 0 and info.st_uid == os.getuid()
        link = "/proc/self/fd/%d" % seen
        if not ours or _claims(os.readlink(link)) is None:
            raise OSError("descriptor %d of pid %d is another file" % (number, pid))
        return os.open(link, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(seen)


def _send(process: "processes.Process", number: int) -> None:
    """Send the signal if the process still is what it was; raises OSError, also where there is no pidfd."""
    # Python 3.9 has them, if it was built where the C library knew them.
    open_pidfd = getattr(os, "pidfd_open", None)
    send_to_pidfd = getattr(signal, "pidfd_send_signal", None)
    try:
        pidfd = open_pidfd(process.pid) if open_pidfd else libc("syscall", PIDFD_OPEN, process.pid, 0)
    except AttributeError:
        pidfd = -1
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise OSError(NO_PIDFD) from error
        raise
    if pidfd < 0:
        raise OSError(NO_PIDFD)
    try:
        known = _recorded(process)
        alive = processes.alive(process.pid, process.start)
        if not (alive and known and known[0] == number and catches(process.pid, SIGNAL)):
            raise OSError(UNPREPARED)
        if send_to_pidfd:
            send_to_pidfd(pidfd, SIGNAL)
        elif libc("syscall", PIDFD_SEND_SIGNAL, pidfd, SIGNAL, None, 0) < 0:
            raise OSError("pid %d takes no signal" % process.pid)
    finally:
        os.close(pidfd)


class _Dump:
    """The stacks of one attempt of a task: of its processes that answer."""

    def __init__(self, tree: "List[processes.Process]", now: float, shown: "Callable[[str], str]") -> None:
        self.began = now
        self.by_process = {}  # type: Dict[Key, Stacks]
        self._waits = []  # type: List[_Target]
        self._shown = shown
        for process in tree:
            self._ask(process, now)

    def _ask(self, process: "processes.Process", now: float) -> None:
        why = UNPREPARED
        known = _recorded(process)
        if known is not None and process.state in ("T", "t"):
            why = "it is stopped (state %s)" % process.state
        elif known is not None and catches(process.pid, SIGNAL):
            try:
                self._waits.append(_Target(process, *known))
                return
            except (OSError, ValueError, StopIteration) as error:
                why = str(error)
        self.by_process[process.pid, process.start] = Stacks(None, why, now)

    def tick(self, now: float) -> bool:
        """Take what has come; returns whether all is there."""
        for target in list(self._waits):
            try:
                answer = self._answer(target, now)
            except (OSError, ValueError, StopIteration):
                answer = Stacks(None, "it has ended", now)
            if answer is not None:
                self._waits.remove(target)
                target.close()
                self.by_process[target.process.pid, target.process.start] = answer
        return not self._waits

    def _answer(self, target: _Target, now: float) -> "Optional[Stacks]":
        if target.complete(now):
            return Stacks(parsed(target.text(), target.main, self._shown), "", now)
        if now - self.began < ANSWER_S:
            return None
        present = processes.read(target.process.pid)
        state = present.state if present else ""
        why = "it has not answered within %g s (state %s)" % (ANSWER_S, state or "unknown")
        return Stacks(None, why + (": it waits in the kernel" if state == "D" else ""), now)

    def close(self) -> None:
        """Wait no longer."""
        for target in self._waits:
            target.close()
        self._waits = []


class Dumps:
    """The dumps of all tasks of the run on this host, the latest of each task."""

    def __init__(self) -> None:
        self._latest = {}  # type: Dict[Tuple[str, int], _Dump]  # by task and attempt
        self._pending = []  # type: List[Tuple[List[Tuple[str, int]], Callable[[], None]]]

    def ask(
        self,
        trees: "Dict[Tuple[str, int], List[processes.Process]]",
        shown: "Callable[[str], str]",
        on_demand: bool,
        now: float,
        then: "Callable[[], None]",
    ) -> None:
        """Ask these processes, by task and attempt, for their stacks; call `then` once all have answered, or won't.

        A task that has been asked a short while ago (AGAIN_S, ON_DEMAND_S) is not asked again.  `shown` says how to
        write the path of a file.
        """
        for key, tree in trees.items():
            last = self._latest.get(key)
            if last is None or now - last.began >= (ON_DEMAND_S if on_demand else AGAIN_S):
                if last is not None:
                    last.close()
                self._latest[key] = _Dump(tree, now, shown)
        self._pending.append((list(trees), then))
        self.tick(now)

    @property
    def waits(self) -> bool:
        """Whether `tick` has to come again soon."""
        return bool(self._pending)

    def tick(self, now: float) -> None:
        """Take the answers that have come, and pass on those that are complete."""
        if not self._pending:
            return
        ready = {key for key, dump in self._latest.items() if dump.tick(now)}
        for pending in list(self._pending):
            if ready.issuperset(pending[0]):
                self._pending.remove(pending)
                pending[1]()

    def of(self, key: "Tuple[str, int]", process: "processes.Process", now: float) -> Stacks:
        """The last answer of that process; `at` is then its age in s."""
        dump = self._latest.get(key)
        last = dump.by_process.get((process.pid, process.start)) if dump is not None else None
        if last is None:
            asked_s = now - dump.began if dump is not None else 0.0
            return Stacks(None, "it began after the task was asked, %.0f s ago" % asked_s, 0.0)
        return Stacks(last.found, last.why_none, round(max(0.0, now - last.at), 1))


def parsed(text: str, main: int, shown: "Callable[[str], str]") -> "List[Dict[str, Any]]":
    """The stacks in what faulthandler writes: the first thread before all others, equal ones together.

    A thread without a Python frame is left out, unless it is the first.  Any text gives what a message may hold.
    """
    threads = []  # type: List[Tuple[int, List[List[Any]]]]
    for line in text.split("\n"):
        if line.startswith(("Thread 0x", "Current thread 0x")):
            words = line.split()
            try:
                number = int(words[2 if words[0] == "Current" else 1], 16)
            except ValueError:
                number = 0
            threads.append((number, []))
        elif line.startswith('  File "') and threads:
            path, _, rest = line[8:].rpartition('", line ')
            number_text, _, function = rest.partition(" in ")
            if path and number_text.isdigit() and len(number_text) < 10:
                frame = [shown(path[:PATH_CHARACTERS]), int(number_text), function[:PATH_CHARACTERS]]
                threads[-1][1].append(frame)
    first = next((frames for number, frames in threads if number == main), None)
    found = [] if first is None else [{"main": True, "frames": first, "count": 1}]  # type: List[Dict[str, Any]]
    known = {}  # type: Dict[Any, Dict[str, Any]]  # by their frames
    for _, frames in threads:
        if frames is first or not frames:
            continue
        key = tuple(map(tuple, frames))
        if key in known:
            known[key]["count"] += 1
        else:
            known[key] = {"main": False, "frames": frames, "count": 1}
    return found + list(known.values())
