"""A Python that has prepared itself (tflaunch.in_task.stacks_site) and is asked for its stacks: no look may harm it.

1. Its thread is asked, by a pipe.  That answers within milliseconds, as soon as it gets the interpreter's lock.
2. Where no answer comes, somebody keeps the lock.  Then threads that sleep in the kernel, and have not run for a
   second, get a signal, one after the other, and write their own stack: the frames of a thread that sleeps do not
   change.  A thread that runs gets none; it runs in native code, for a Python loop would give the lock away.

What is opened and signalled is only a process that has open the unlinked file that says its own pid and start time;
the signal also needs a handler there, for any other process would die of it.  So nothing happens to python -I, to a
program that is no Python, or to one that has taken the place of a Python.
"""

import os
import stat

from tflaunch.agent.host import processes
from tflaunch.agent.tasks import threads
from tflaunch.agent.tasks.stack_text import grouped, one_stack, parsed
from tflaunch.agent.tasks.stacks import catches
from tflaunch.in_task.stacks_site import NAME, SIGNAL_BELOW_MAX
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

SIGNAL = signal.SIGRTMAX - SIGNAL_BELOW_MAX
FIRST_LOOK_S = 2.0  # no answer for so long: what its threads do now ...
SIGNALS_S = 4.0  # ... is compared with what they do then, and those that sleep get the signal
SIGNALS_END_S = 8.0  # when no more threads are signalled ...
SIGNALS = 32  # ... nor more than so many
ONE_ANSWER_S = 0.3  # how long one of them may take; threads without Python write nothing
STILL_S = 0.1  # what a thread has written, and has not grown for so long, is complete
FILE_BYTES = 1024 * 1024  # of one answer; the first thread is its beginning

UNPREPARED = "no Python that tflaunch has prepared: another program, or python -I, -E or -S"


class StacksAnswer:
    """What a process has told: its stacks, as in `inspected`, or why there are none, or not of its first thread.

    `native`: (thread, cores) of those that keep the interpreter's lock and run in native code.
    """

    def __init__(
        self,
        found: "Optional[List[Dict[str, Any]]]",
        why_none: str = "",
        native: "Tuple[Tuple[int, float], ...]" = (),
    ) -> None:
        self.found = found
        self.why_none = why_none
        self.native = native


class Claim:
    """What the name of a process's file says."""

    def __init__(self, pid: int, start: int, main: int, pipe: int) -> None:
        """`main` is the process's first thread, `pipe` the inode of the pipe by which it is asked."""
        self.pid, self.start, self.main, self.pipe = pid, start, main, pipe


def claim_in(link: str) -> "Optional[Claim]":
    """The claim in the name of a file, None for the name of any other."""
    name = link.rpartition("/")[2]
    name, _, gone = name.partition(" ")
    name = name[6:] if name.startswith("memfd:") else name
    if gone != "(deleted)" or not name.startswith(NAME + "-"):
        return None
    try:
        pid, start, main, pipe = name[len(NAME) + 1 :].split("-")
        return Claim(int(pid), int(start), int(main, 16), int(pipe))
    except ValueError:
        return None


class Asked:
    """One process that is asked; `tick` brings its answer."""

    def __init__(self, process: "processes.Process", now: float, shown: "Callable[[str], str]") -> None:
        """Ask it.  Raises OSError with the reason why it cannot be asked."""
        self.process = process
        self._began = now
        self._shown = shown
        self._before = {}  # type: Dict[int, threads.Seen]
        self._before_at = 0.0
        self._native = ()  # type: Tuple[Tuple[int, float], ...]
        self._sleepers = None  # type: Optional[Iterator[Tuple[int, threads.Seen]]]
        self._signalled = 0  # the thread that is to write now
        self._signalled_at = self._grew_at = 0.0
        self._size = 0
        self._stacks = {}  # type: Dict[int, List[List[Any]]]  # what they have written, by thread
        self._end = b"end %015d\n" % int.from_bytes(os.urandom(6), "big")
        number, self._claim = self._recorded()
        self._file = self._opened(number, os.O_RDWR, stat.S_ISREG)
        try:
            os.ftruncate(self._file, 0)
            self._ask()
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Leave it alone."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)  # it is memory
            os.close(self._file)
            self._file = -1

    def tick(self, now: float, signals: bool = True) -> "Optional[StacksAnswer]":
        """Its answer, when it has come, or when none will come any more; without `signals` no thread gets one."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 64, max(0, size - 64)).endswith(self._end):
            return StacksAnswer(parsed(self._text(), self._claim.main, self._shown))
        pid = self.process.pid
        if not processes.alive(pid, self.process.start):
            return StacksAnswer(None, "it has ended")
        if now - self._began < FIRST_LOOK_S:
            return None
        if not self._before:
            self._before, self._before_at = threads.look(pid), now
        if now - self._began < SIGNALS_S or now - self._before_at < 1.0:
            return None
        if self._sleepers is None:
            seen = threads.look(pid)
            self._native = tuple(threads.computing(self._before, seen, now - self._before_at))
            self._sleepers = iter(self._in_turn(seen) if signals else ())
            self._next(now)
        elif self._has_written(size, now):
            self._next(now)
        return None if self._signalled and now - self._began < SIGNALS_END_S else self._told_by_signals()

    # -- the process

    def _recorded(self) -> "Tuple[int, Claim]":
        """The descriptor of the file that this process has for its stacks, and what its name says.  Raises OSError."""
        place = "/proc/%d/fd/" % self.process.pid
        try:
            inner = int(processes.status(self.process.pid, b"NSpid"))
            numbers = os.listdir(place)
        except (OSError, IndexError) as error:  # it has ended, or belongs to another user
            raise OSError(UNPREPARED) from error
        for number in numbers:
            try:
                claim = claim_in(os.readlink(place + number))
            except OSError:  # closed meanwhile
                continue
            if claim is not None and (claim.pid, claim.start) == (inner, self.process.start):
                return int(number), claim
        raise OSError(UNPREPARED)

    def _opened(self, number: int, flags: int, kind: "Callable[[int], bool]") -> int:
        """Open its file, or its pipe; a process may have put another there meanwhile.  Raises OSError."""
        seen = os.open("/proc/%d/fd/%d" % (self.process.pid, number), os.O_PATH | os.O_CLOEXEC)
        try:
            info = os.fstat(seen)
            link = "/proc/self/fd/%d" % seen
            ours = kind(info.st_mode) and info.st_uid == os.getuid()
            if kind is stat.S_ISREG:
                claim = claim_in(os.readlink(link))
                ours = ours and info.st_nlink == 0 and claim is not None and vars(claim) == vars(self._claim)
            else:
                ours = ours and info.st_ino == self._claim.pipe
            if not ours:
                raise OSError("descriptor %d of pid %d is another file" % (number, self.process.pid))
            return os.open(link, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(seen)

    def _ask(self) -> None:
        """Wake its thread; where the program has closed the pipe, nobody answers.  Raises OSError."""
        place, wanted = "/proc/%d/fd/" % self.process.pid, "pipe:[%d]" % self._claim.pipe
        for number in os.listdir(place):
            try:
                if os.readlink(place + number) != wanted:
                    continue
            except OSError:  # closed meanwhile
                continue
            pipe = self._opened(int(number), os.O_WRONLY, stat.S_ISFIFO)
            try:
                os.write(pipe, self._end[4:])
            except BlockingIOError:
                pass  # it has not answered for thousands of times
            finally:
                os.close(pipe)
            return

    def _text(self) -> str:
        return os.pread(self._file, FILE_BYTES, 0).decode("ascii", "replace")

    # -- its threads, one after the other

    def _in_turn(self, seen: "Dict[int, threads.Seen]") -> "List[Tuple[int, threads.Seen]]":
        """Threads that sleep: the first one before all others, and last those of TensorFlow's pools, in a futex."""
        pid = self.process.pid
        tids = [tid for tid in threads.asleep(self._before, seen) if threads.name_of(pid, tid) != NAME]
        tids.sort(key=lambda tid: (tid != pid, threads.waits_in(pid, tid).startswith("futex"), tid))
        return [(tid, seen[tid]) for tid in tids if not threads.blocks(seen[tid], SIGNAL)][:SIGNALS]

    def _next(self, now: float) -> None:
        """Have the next thread write its stack, if there is one."""
        for tid, seen in self._sleepers or ():
            os.ftruncate(self._file, 0)
            self._size = 0
            if threads.send(self.process.pid, tid, SIGNAL, lambda: self._still(tid, seen)):  # noqa: B023
                self._signalled, self._signalled_at, self._grew_at = tid, now, now
                return
        self._signalled = 0

    def _still(self, tid: int, seen: "threads.Seen") -> bool:
        """Whether the process is the one that was asked, takes the signal, and that thread has not run since."""
        pid = self.process.pid
        alive = self._same() and processes.alive(pid, self.process.start)
        return alive and catches(pid, SIGNAL) and threads.look_at(pid, tid) == seen

    def _same(self) -> bool:
        """Whether it has not become another program."""
        try:
            return vars(self._recorded()[1]) == vars(self._claim)
        except OSError:
            return False

    def _has_written(self, size: int, now: float) -> bool:
        """Whether the thread that got the signal has written its stack, or writes none."""
        if size != self._size:
            self._size, self._grew_at = size, now
            return False
        if size and now - self._grew_at >= STILL_S:
            self._stacks[self._signalled] = one_stack(self._text(), self._shown)
            return True
        return not size and now - self._signalled_at >= ONE_ANSWER_S

    def _told_by_signals(self) -> "StacksAnswer":
        pid = self.process.pid
        main = self._stacks.pop(pid, None)
        found = grouped(main, self._stacks.values())
        if not self._same():
            why, self._native = UNPREPARED, ()
        elif self._native:
            tid, cores = self._native[0]
            why = (
                "its thread %d (%s) runs in native code, %.0f %% of a core, and keeps Python's lock (the GIL) meanwhile"
                % (tid, threads.name_of(pid, tid), 100 * cores)
            )
        else:
            present = processes.read(pid)
            state = present.state if present else "unknown"
            why = "it has not answered within %g s (state %s)" % (SIGNALS_S, state)
            why += ": it waits in the kernel" if state == "D" else ""
        return StacksAnswer(found or None, "" if main is not None else why, self._native)
