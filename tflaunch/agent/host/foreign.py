"""What may never return, for a file server or name service is away: done by a child process with a time limit.

A child that waits in the kernel for ever is left behind: it holds nothing of the agent's, and ends with its wait.
"""

import os
import select
import time

from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal
from tflaunch.protocol.machine import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

# By these names /proc shows processes that may wait for ever for something that is not tflaunch's.  The kernel takes 15
# bytes.
ASKS_NVML, ASKS_OTHERS = NAMES = ("tflaunch-nvml", "tflaunch-asks")
PR_SET_PDEATHSIG = 1
LIMIT_S = float(os.environ.get("TFLAUNCH_FOREIGN_S") or 5.0)
NAME_S = 2.0  # how long the name of a user may take
HANG_S = 0.5  # what waits in the kernel for so long hangs
HANGS = 6  # so many of them at most are waited for, one after the other
OTHERS_BYTES = 65536  # of what another user's process shows of itself
AWAY_S = 15.0  # a file server that has not answered is left alone for so long by who comes often
_names = {}  # type: Dict[int, str]


class Late(Exception):
    """It has not returned in time."""


def in_time(work: "Callable[[], Any]", limit_s: float = LIMIT_S) -> "Any":
    """What `work` returns, as JSON has it, in a child process; raises Late, and OSError where there can be no child.

    None where the work itself fails.
    """
    answer = bytes_in_time(lambda: wire.dumps(work()).encode("ascii"), limit_s)
    try:
        return wire.loads(answer.decode("ascii"))
    except ValueError:
        return None


def bytes_in_time(work: "Callable[[], bytes]", limit_s: float) -> bytes:
    """The same for bytes; b"" where the work fails."""
    pid, reading = child(lambda pipe: _write(pipe, work()))
    try:
        answer = _read_until(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
    if answer is None:
        os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet: the pid is its own
    _wait_for(pid)
    if answer is None:
        raise Late
    return answer


def told_in_time(work: "Callable[[], Iterator[Any]]", limit_s: float) -> "Iterator[Any]":
    """What the iterator of `work` yields, as JSON has it; raises Late once nothing comes for so long."""
    pid, reading = child(lambda pipe: _write_each(pipe, work()))
    poll, data, ended = select.poll(), b"", False
    poll.register(reading, select.POLLIN)
    try:
        while not ended:
            if not poll.poll(limit_s * 1000):
                raise Late
            piece = os.read(reading, 65536)
            ended = not piece
            *whole, data = (data + piece).split(b"\n")
            for line in whole:
                yield wire.loads(line.decode("ascii"))
    finally:
        os.close(reading)
        if not ended:
            os.kill(pid, signal.SIGKILL)  # it has not ended: the pid is its own
        _wait_for(pid)


def each_in_time(things: "List[Any]", work: "Callable[[Any], Any]") -> "List[Any]":
    """What `work` returns for each of them, as JSON has it; None where it hangs in the kernel, or ends its process.

    A child process does the work, and the next one goes on behind what it hangs at, at most HANGS times: then nothing
    is said of those that are left.  Raises OSError where there can be no child.
    """
    answers = []  # type: List[Any]
    for _ in range(HANGS):
        left = things[len(answers) :]
        pid, reading = child(lambda pipe, left=left: _write_each(pipe, map(work, left)))  # type: ignore[misc]
        try:
            answers += _lines(reading, pid)
        finally:
            os.close(reading)
        os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet: the pid is its own
        _wait_for(pid)
        if len(answers) == len(things):
            break
        answers.append(None)
    return answers


def child(work: "Callable[[int], None]") -> "Tuple[int, int]":
    """Start a process that does `work` with the writing end of a pipe; returns its pid and the reading end.

    What `work` raises leaves its traceback in agent.log; a visit has none, and there it is lost.  Raises OSError where
    there can be no child.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        try:
            log = os.readlink("/proc/self/fd/2")  # agent.log; it does not hold that open
            alone(ASKS_OTHERS, writing)
            work(writing)
        except BrokenPipeError:
            pass
        except Exception:
            import traceback

            # A visit's stderr is a pipe, which has no path to open: this fails, and the child ends without a word.
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _write_each(pipe: int, things: "Iterable[Any]") -> None:
    for thing in things:
        _write(pipe, (wire.dumps(thing) + "\n").encode("ascii"))


def _lines(descriptor: int, pid: int) -> "List[Any]":
    """The JSON in each line that comes from that pipe, until it ends or the process at its other end hangs."""
    poll, data, found = select.poll(), b"", []  # type: Any, bytes, List[Any]
    poll.register(descriptor, select.POLLIN)
    patience_s = LIMIT_S  # for one that is only slow, on a busy host
    while patience_s > 0:
        if not poll.poll(HANG_S * 1000):
            patience_s -= LIMIT_S if _waits_in_the_kernel(pid) else HANG_S
            continue
        piece = os.read(descriptor, 65536)
        if not piece:
            break
        patience_s = LIMIT_S
        *whole, data = (data + piece).split(b"\n")
        found += [wire.loads(line.decode("ascii")) for line in whole]
    return found


def _waits_in_the_kernel(pid: int) -> bool:
    try:
        return beginning(pid, "stat", 4096).rpartition(b")")[2].split()[0] == b"D"
    except (OSError, IndexError):
        return True  # it has ended


def alone(name: str, kept: int) -> None:
    """In a child that may stay for ever: hold nothing of the parent's but that descriptor, and have that name."""
    try:
        libc(
            "prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
        )  # nobody else ends it where agent and guard are killed
    except (OSError, AttributeError):
        pass
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    close_all_but(kept)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.chdir("/")
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass  # a sandbox: it keeps the name of its Python


def close_all_but(kept: int = -1) -> None:
    """Close all descriptors except the standard streams and `kept`: the child must hold none of its parent's open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            try:
                os.close(int(name))
            except OSError:
                pass


def _read_until(descriptor: int, deadline: float) -> "Optional[bytes]":
    """All that comes from that pipe; None if it is still open at the deadline."""
    poll, data = select.poll(), b""
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(descriptor, 65536)
        if not piece:
            return data
        data += piece
    return None


def _wait_for(pid: int) -> None:
    """Reap that child, if it ends at once; else the agent's loop does, or nobody."""
    deadline = time.monotonic() + 0.1
    try:
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.001)
    except ChildProcessError:
        pass


def answers(path: str, limit_s: float = LIMIT_S) -> bool:
    """Whether the file system of that path answers in time, whatever it says."""

    def look() -> bool:
        try:
            os.statvfs(path)  # of a file server, not from a cache
            os.stat(path)
        except OSError:
            pass
        return True

    try:
        in_time(look, limit_s)
    except Late:
        return False
    except OSError:
        pass  # no process more is allowed: whoever asks finds out by himself
    return True


def user_name(uid: int) -> str:
    """The name of that user, or the uid where it has none, or the name service does not answer."""
    if uid not in _names:
        _names[uid] = _in_the_file(uid) or _by_the_service(uid) or str(uid)
    return _names[uid]


def _in_the_file(uid: int) -> str:
    """Its name in /etc/passwd, which no name service keeps waiting."""
    try:
        with open("/etc/passwd", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, number = (line.split(":") + [""] * 3)[:3]
                if number == str(uid):
                    return name
    except OSError:
        pass
    return ""


def _by_the_service(uid: int) -> str:
    import pwd

    def look() -> str:
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return ""

    try:
        return in_time(look, NAME_S) or ""
    except (Late, OSError):
        return ""


def of_process(pid: int, what: str, most: int = -1) -> bytes:
    """The first `most` bytes, or all, of that file of a process that may keep its reader waiting.

    One that waits in the kernel and holds its memory's lock does, and one of another user's who wants it to.
    """

    def look() -> str:
        try:
            return beginning(pid, what, most).decode("latin-1")
        except OSError:  # it has just ended, or does not show that
            return ""

    try:
        return (in_time(look, 1.0) or "").encode("latin-1")
    except (Late, OSError):
        return b""


def beginning(pid: int, what: str, most: int) -> bytes:
    """The same, for a process that nobody waits for: it may never return.  Raises OSError."""
    with open("/proc/%d/%s" % (pid, what), "rb") as file:
        return file.read(most)
