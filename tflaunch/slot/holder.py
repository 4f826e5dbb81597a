"""The slot holder: what an engine starts in each slot, and what ends whatever tflaunch has started there.

An engine runs this text with a call of `main` behind it (tflaunch.engines.holder_text).  One line of JSON on stdout
says where it listens.  A caller says a line of JSON, and hears lines of JSON.

At slot.sock, in a directory of its own, where only the same user is let in:
    {"start": COMMAND} and three descriptors   runs it on them; {"ended": CODE}, with "why" where it did not start
    {"agent": PID}                             hears {"ends_in": SECONDS, "why": TEXT} as the slot is taken back
      with "logs": DIRECTORY                   where its tasks' logs are; they go to stdout, if `logs` is set
    {"over": true}                             of an agent: its run has ended here
    {"ended": CODE}                            of an agent: the run has ended so; the holder's exit status, if the slot
                                               is not taken back
    {"door": {"certificate", "key", "token"}}  opens a TLS port, if there is none yet; {"port", "addresses",
                                               "certificate", "token"} of the one that there is, or "why" there is none
At the TLS port, with the launcher's certificate, and {"token": TOKEN} in every line:
    {"start": COMMAND, "call": ID}             {"started": true} and the command's stream, or false, "ends_in", "why"
    {"words": ID}                              {"words": the end of its stderr, "code": how it has ended, or null}
At both:
    {"leave": WHY}                             {"left": true}; the holder ends
    {"look": true}                             {"ends_in": SECONDS or null, "why": TEXT, "running": CHILDREN}

The slot is taken back by TERM, HUP, USR1, URG, the end of stdin if it is a lifeline, or `leave`.  It ends by itself
when nothing is below it and nobody calls.  Nothing that a caller without the token says is believed or kept.
"""

import fcntl
import fnmatch
import hmac
import json
import os
import re
import selectors
import signal
import socket
import stat
import struct
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Union

DEFAULTS = {
    "token": "",
    "certificate": "",
    "key": "",
    "door": False,
    "lifeline": False,
    "idle_s": 20.0,
    "first_s": 120.0,
    "after_s": 5.0,
    "unused": 0,
    "grace_s": 5.0,
    "warn_s": 60.0,
    "slot": "",
    "gpus": "",
    "clean": [],
    "place": "",
    "code": "",
    "logs": False,
}  # type: Dict[str, Any]

SOCKET = "slot.sock"
PROOF_S = 5.0  # for a caller to say its first line
UNPROVED = 128  # callers that have not proved themselves; one more drops the oldest
UNPROVED_BYTES = 8 * 1024 * 1024  # what they have said, all together
LINE_BYTES = 1024 * 1024
PIECE = 64 * 1024  # what is read at once
AHEAD = 4 * PIECE  # what waits for a caller that reads too slowly
WORDS_BYTES = 4096  # the end of stderr
WORDS_S = 1.0  # how long the end of a process may lag behind that of its stream
CALLS = 256  # whose words are kept
FAREWELL_S = 5.0  # for a caller to hang up when it has heard all
UNREAD_S = 60.0  # for one that reads nothing of what an ended command has left
KILL_S = 2.0  # from the time at which the slot is taken back until all is killed
SWEEP_S = 30.0  # for what does not die: a dead file server holds it
TICK_S = 0.25
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
TAKEN_BACK = 75  # exit status, EX_TEMPFAIL
UNKNOWN = 76  # nobody has said how the run has ended, as where its launcher was killed
NOT_STARTED = 126  # as a shell has it
PR_SET_CHILD_SUBREAPER = 36
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# Python ignores the first two, and a shell the third of what it starts in the background.
TO_CHILDREN = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGQUIT)
SIGNALS = {
    signal.SIGTERM: "the engine ends this slot (SIGTERM)",
    signal.SIGINT: "the engine ends this slot (SIGINT)",
    signal.SIGHUP: "the engine ends this slot (SIGHUP)",
    signal.SIGUSR1: "the engine says that this slot ends soon (SIGUSR1)",
    # Where an engine signals whatever runs in the slot, this one harms nobody.
    signal.SIGURG: "the engine says that this slot ends soon (SIGURG)",
}  # type: Dict[int, str]
WARNINGS = (signal.SIGUSR1, signal.SIGURG)


def note(words: str) -> None:
    """Tell whoever reads this process's stderr, the engine's log of it."""
    try:
        os.write(2, ("slot: %s\n" % words).encode("utf-8", "replace"))
    except OSError:
        pass  # nobody does


class SlotDirectory:
    """The directory of a holder, with all that is in it."""

    def __init__(self, above: int, name: str, fd: int) -> None:
        self.above, self.name, self.fd = above, name, fd

    def remove(self) -> None:
        """Remove it, whatever is in it, following no link; what cannot be removed stays."""
        stuck = set()  # type: Set[str]
        device = os.fstat(self.fd).st_dev
        names = os.listdir(self.fd)
        # Only this one is emptied: the directories in it move up before they are looked into, so depth does not matter.
        while names:
            for name in names:
                try:
                    self._remove(name, device)
                except FileNotFoundError:
                    pass
                except OSError:
                    stuck.add(name)
            names = [name for name in os.listdir(self.fd) if name not in stuck]
        try:
            if os.path.samestat(
                os.stat(self.name, dir_fd=self.above, follow_symlinks=False), os.fstat(self.fd)
            ):
                os.rmdir(self.name, dir_fd=self.above)
        except OSError as error:
            note("%s stays: %s" % (self.name, error.strerror))

    def _remove(self, name: str, device: int) -> None:
        info = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=self.fd)
            return
        if info.st_dev != device:
            raise OSError  # a mount
        os.chmod(name, 0o700, dir_fd=self.fd)
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        try:
            for each in os.listdir(inside):
                there = os.stat(each, dir_fd=inside, follow_symlinks=False)
                if not stat.S_ISDIR(there.st_mode):
                    os.unlink(each, dir_fd=inside)
                    continue
                if there.st_dev == device:
                    os.chmod(each, 0o700, dir_fd=inside)
                os.rename(each, os.urandom(8).hex(), src_dir_fd=inside, dst_dir_fd=self.fd)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=self.fd)


class HoldersPlace(SlotDirectory):
    """This holder's own, which no other user can enter, and its socket in it; where this process works.

    It is locked as long as this process lives, or an agent below it (tflaunch.agent.slot).
    """

    def __init__(self, wanted: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        # Machines may share a disk, and know nothing of each other's locks.
        self.kind = "tflaunch-slot-%08x-" % zlib.crc32(socket.gethostname().encode())
        self.name = self.kind + os.urandom(8).hex()
        places = [wanted] if wanted else [os.environ.get("TMPDIR") or "/tmp", "/tmp", os.getcwd()]  # noqa: S108
        why = ""
        for place in places:
            self.path = os.path.join(os.path.realpath(place), self.name)
            try:
                self._make(os.path.dirname(self.path))
                break
            except OSError as error:
                why = why or "%s: %s" % (place, error.strerror)
        else:
            advice = "name" if wanted else "set TMPDIR there to"
            sys.exit(
                "slot: no directory can be made in %s: %s one with room, on a local disk" % (why, advice)
            )

    def _make(self, above: str) -> None:
        self.above = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.mkdir(self.name, 0o700, dir_fd=self.above)
        self.fd = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.above)
        if os.fstat(self.fd).st_uid != os.geteuid():
            raise PermissionError(0, "another user has put a directory in the place of ours")
        os.fchmod(self.fd, 0o700)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH)
        except OSError:
            pass  # a file server without locks
        os.fchdir(self.fd)
        before = os.umask(0o177)
        try:
            self.socket.bind(SOCKET)  # whose whole path may be too long for a socket
        except OSError:  # not every file server knows sockets
            os.rmdir(self.name, dir_fd=self.above)
            raise
        finally:
            os.umask(before)

    def left(self) -> "List[SlotDirectory]":
        """Those of this user beside it whose holders and agents were killed; locked for this process."""
        found = []
        try:
            names = os.listdir("/proc/self/fd/%d" % self.above)
        except OSError:
            names = []
        device = os.fstat(self.above).st_dev
        for name in names:
            if not name.startswith(self.kind) or name == self.name:
                continue
            fd = -1
            try:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.above)
                info = os.fstat(fd)
                # Nobody else can put a directory here that only this user may write.
                ours = info.st_uid == os.geteuid() and not info.st_mode & 0o077 and info.st_dev == device
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = ours and self._is_refused(fd)
            except OSError:
                ours = False
            if ours:
                found.append(SlotDirectory(self.above, name, fd))
            elif fd >= 0:
                os.close(fd)
        return found

    def _is_refused(self, fd: int) -> bool:
        """Whether nobody listens at the socket in that directory.  Raises OSError where there is none, or not yet."""
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.setblocking(False)
            probe.connect("/proc/self/fd/%d/%s" % (fd, SOCKET))
        except ConnectionRefusedError:
            return True
        finally:
            probe.close()
        return False


class Children:
    """The processes below this one: commands, and whatever has lost its parent there."""

    def __init__(self) -> None:
        self.environment = {}  # type: Dict[str, str]
        self.ended = {}  # type: Dict[int, Callable[[int], None]]
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            note("this Python has no ctypes: what leaves its session here may outlive the slot")

    def start(self, command: str, descriptors: "List[int]", ended: "Callable[[int], None]") -> None:
        """Have a shell run it in a session of its own, on these as 0, 1 and 2.  Raises OSError.

        `ended` is called with its exit status, 128 + n for signal n.
        """

        def run() -> None:
            for number, fd in enumerate(descriptors):
                os.dup2(fd, number)
            try:
                os.chdir(os.environ.get("HOME") or "/")
            except OSError:
                os.chdir("/")
            os.execve("/bin/sh", ["/bin/sh", "-c", command], self.environment)  # noqa: S606

        self.fork(run, ended)

    def fork(self, work: "Callable[[], None]", ended: "Callable[[int], None]") -> None:
        """Do that in a child, in a session of its own, and call `ended` as `start` does.  Raises OSError."""
        # A signal for the child must not wake this process through the descriptor that both have for a moment.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid:
                self.ended[pid] = ended
                return
            code = NOT_STARTED
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, *SIGNALS, *TO_CHILDREN):
                    signal.signal(number, signal.SIG_DFL)
                os.setsid()
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                work()
                code = 0
            except BaseException as error:
                note("the command cannot be started: %s" % error)
            finally:
                os._exit(code)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def remove(self, left: "List[SlotDirectory]") -> None:
        """Have a child remove these, which may take a while."""

        def run() -> None:
            kept = {2, left[0].above, *(each.fd for each in left)}
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd not in kept:
                    try:
                        os.close(fd)  # the doors
                    except OSError:
                        pass  # that of the list itself
            for each in left:
                try:
                    each.remove()
                except OSError as error:
                    note("%s stays: %s" % (each.name, error.strerror))

        try:
            if left:
                self.fork(run, lambda _: None)
        except OSError:
            pass  # the next holder does
        for each in left:
            os.close(each.fd)

    def reap(self) -> None:
        """Take the ends of children, also of those that were others' before."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if not pid:
                break
            ended = self.ended.pop(pid, None)
            if ended is not None:
                ended(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))

    def pids(self) -> "List[int]":
        """Those that live, and those that have ended since `reap`."""
        ours = os.getpid()
        try:
            with open("/proc/self/task/%d/children" % ours) as file:
                return [int(pid) for pid in file.read().split()]
        except OSError:  # a kernel without that list
            return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == ours]

    def any(self) -> bool:
        """Whether there are any: the kernel knows, also of those that this process has never seen."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def sweep(self) -> None:
        """Kill them, and whatever is below them, until nothing is left."""
        session, until = os.getsid(0), time.monotonic() + SWEEP_S
        while self.any():
            for pid in self.pids():
                try:
                    # No member of a group can fork away from a signal to the whole group.
                    group = os.getpgid(pid)
                    if os.getsid(pid) != session and group > 1:
                        os.killpg(group, signal.SIGKILL)
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # gone, or another user's
            self.reap()
            if time.monotonic() > until:
                note("%d processes below this one do not die" % len(self.pids()))
                break
            time.sleep(0.001)


def parent_of(pid: str) -> int:
    """The parent's pid; 0 where there is none."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


class TaskLines:
    """The lines of all tasks here, for whoever reads this process's stdout, as an engine's log of the slot.

    One who reads too slowly misses some, and nobody waits for him.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.places = []  # type: List[str]  # directories with a log for each attempt of a task
        self.read = {}  # type: Dict[str, int]  # path -> how much of it
        self.rest = {}  # type: Dict[str, bytes]  # path -> the beginning of a line
        self.unsent = bytearray()
        if wanted:
            os.set_blocking(1, False)

    def add(self, place: str) -> None:
        """Copy what is written there, too."""
        if self.wanted and place:
            self.places.append(place)

    def look(self) -> bool:
        """Copy what is new; whether anything was."""
        for place in self.places:
            try:
                names = sorted(os.listdir(place))
            except OSError:
                names = []  # removed
            for name in names:
                if name.endswith(".log") and len(self.unsent) < AHEAD:
                    try:
                        self._copy(os.path.join(place, name))
                    except OSError:
                        pass  # removed meanwhile
        had = bool(self.unsent)
        try:
            while self.unsent:
                del self.unsent[: os.write(1, self.unsent[:PIECE])]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self.unsent.clear()
            self.places.clear()
        return had

    def finish(self) -> None:
        """Copy all that is left."""
        until = time.monotonic() + KILL_S
        while self.look() and time.monotonic() < until:
            time.sleep(0.01)
        for path, rest in self.rest.items():
            self.unsent += b"%s | %s\n" % (task_of(path), rest) if rest else b""
        self.look()

    def _copy(self, path: str) -> None:
        at, size = self.read.get(path, 0), os.stat(path).st_size
        if size < at:  # the task has truncated it
            at = 0
        if size == at:
            return
        task = task_of(path)
        if size - at > LINE_BYTES:
            self.unsent += b"%s | ... %d bytes are left out here\n" % (task, size - at - PIECE)
            at, self.rest[path] = size - PIECE, b""
        with open(path, "rb") as file:
            file.seek(at)
            data = file.read(AHEAD)
        self.read[path] = at + len(data)
        *lines, rest = (self.rest.get(path, b"") + data).split(b"\n")
        if len(rest) > PIECE:
            lines.append(rest)
            rest = b""
        self.rest[path] = rest
        self.unsent += b"".join(b"%s | %s\n" % (task, line) for line in lines)


def task_of(path: str) -> bytes:
    """The task whose log that is, as worker/0 of worker-0.log and worker-0.1.log."""
    name = os.path.basename(path).partition(".")[0]
    return "/".join(name.rpartition("-")[::2]).encode("utf-8", "replace")


class Loop:
    """Waits for all descriptors at once."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.watched = {}  # type: Dict[int, int]

    def watch(self, fd: int, events: int, call: "Callable[[int], None]") -> None:
        """Have `call` called for these events of a descriptor, and for no others; 0: for none."""
        before = self.watched.pop(fd, 0)
        if events:
            if not before:
                self.selector.register(fd, events, call)
            elif before != events:
                self.selector.modify(fd, events, call)
            self.watched[fd] = events
        elif before:
            self.selector.unregister(fd)

    def shut(self, fd: int) -> int:
        """Close it; returns -1."""
        if self.watched.pop(fd, 0):
            self.selector.unregister(fd)
        os.close(fd)
        return -1

    def turn(self, timeout: float) -> None:
        """Wait so long at most, and call those for whom something has happened."""
        for key, events in self.selector.select(max(0.0, timeout)):
            # What another of these has closed is watched no more.
            if key.fd in self.watched:
                key.data(events)


class Seal:
    """TLS between a caller and the door, without a socket."""

    def __init__(self, context: "Any") -> None:
        import ssl

        self.wants, self.over = ssl.SSLWantReadError, ssl.SSLZeroReturnError
        self.inlet, self.outlet = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.inlet, self.outlet, server_side=True)
        self.shaken = False
        self.ended = False  # the caller says nothing more

    def opened(self, data: bytes) -> bytes:
        """What the caller says with that; raises OSError for what is no TLS."""
        self.inlet.write(data)
        said = bytearray()
        try:
            if not self.shaken:
                self.tls.do_handshake()
                self.shaken = True
            while not self.ended:
                piece = self.tls.read(PIECE)
                self.ended = not piece
                said += piece
        except self.wants:
            pass
        except self.over:
            self.ended = True
        return bytes(said)

    def sealed(self, data: bytes) -> bytes:
        """That for the caller, behind what TLS itself has to say."""
        if data:
            self.tls.write(data)
        return bytes(self.outlet.read())

    def farewell(self) -> bytes:
        """The end of the stream."""
        try:
            self.tls.unwrap()
        except OSError:
            pass  # it waits for the caller's
        return bytes(self.outlet.read())


class HeldCall:
    """A command of the door: its last words, and how it has ended."""

    def __init__(self, holder: "Holder", stderr: int) -> None:
        self.holder, self.stderr = holder, stderr
        self.words = b""
        self.code = None  # type: Optional[int]
        self.waiting = []  # type: List[SlotCaller]
        os.set_blocking(stderr, False)
        holder.loop.watch(stderr, READ, self.read)

    def read(self, _: int = READ) -> None:
        """Take what is on stderr."""
        while self.stderr >= 0:
            try:
                data = os.read(self.stderr, PIECE)
            except BlockingIOError:
                return
            self.words = (self.words + data)[-WORDS_BYTES:]
            if not data:
                self.stderr = self.holder.loop.shut(self.stderr)
            elif len(data) == PIECE:
                return  # others have their turn

    def ended(self, code: int) -> None:
        """The command has ended."""
        self.code = code
        for caller in self.waiting:
            self.answer(caller)
        self.waiting.clear()

    def answer(self, caller: "SlotCaller") -> None:
        """Tell what is known."""
        self.read()
        caller.waits_for = None
        caller.say(last=True, words=self.words.decode("utf-8", "replace"), code=self.code)


class SlotCaller:
    """Someone who has called at one of the doors."""

    def __init__(self, holder: "Holder", endpoint: socket.socket, seal: "Optional[Seal]") -> None:
        self.holder, self.endpoint, self.seal = holder, endpoint, seal
        self.proved = seal is None  # by its uid
        self.agent = False
        self.heard = bytearray()
        self.given = []  # type: List[int]
        self.unsent = bytearray()
        self.deaf = False  # nothing more comes
        self.streams = False  # lines are over, a command's stream has begun
        self.stdin = self.stdout = -1  # of the command
        self.input = bytearray()  # for it
        self.last = False  # nothing more is to be sent
        self.parted = False  # ... and all has been
        self.closed = False
        self.limit = time.monotonic() + PROOF_S  # type: Optional[float]
        self.waits_for = None  # type: Optional[HeldCall]
        endpoint.setblocking(False)
        holder.callers.add(self)
        self.update()

    def ready(self, events: int) -> None:
        """Something has come, or there is room."""
        if self.closed:
            return
        # Whatever a caller does, the others do not notice.
        try:
            if events & READ and not self.deaf:
                self._receive()
            if not self.proved and len(self.heard) > PIECE:
                self.holder.relieve()
            self._lines()
        except Exception:
            self.close()
        self.update()

    def _receive(self) -> None:
        try:
            if self.seal is None:
                rights = socket.CMSG_SPACE(3 * 4)
                data, besides, _, _ = self.endpoint.recvmsg(PIECE, rights, socket.MSG_CMSG_CLOEXEC)
                for _, _, value in besides:
                    self.given += struct.unpack("%di" % (len(value) // 4), value)
            else:
                data = self.endpoint.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:  # reset
            self.close()
            return
        self.deaf = not data
        if self.seal is not None and data:
            data = self.seal.opened(data)
            self.deaf = self.seal.ended
            self.unsent += self.seal.sealed(b"")
        self.heard += data

    def _lines(self) -> None:
        while not self.streams and not self.last and not self.closed:
            end = self.heard.find(b"\n")
            if max(end, len(self.heard) * (end < 0)) > LINE_BYTES or len(self.given) > 3:
                self.close()
                return
            if end < 0:
                break
            line = bytes(self.heard[:end])
            del self.heard[: end + 1]
            self.limit = None
            # Numbers are not looked at: one of a million digits costs no more than another.
            self.holder.hear(self, json.loads(line.decode("utf-8"), parse_int=float))
        if not self.streams:
            self.last = self.last or self.deaf
            if self.last:
                self.heard.clear()

    def stream(self, stdin: int, stdout: int) -> None:
        """From here on, pass on what comes, and what the command writes."""
        self.stdin, self.stdout, self.streams = stdin, stdout, True
        os.set_blocking(stdin, False)
        os.set_blocking(stdout, False)

    def say(self, last: bool = False, **words: "Any") -> None:
        """Send a line; with `last` hang up behind it."""
        if not self.closed:
            self._send(json.dumps(words).encode("ascii") + b"\n")
            if last:
                self.last, self.limit = True, time.monotonic() + UNREAD_S
            self.update()

    def _send(self, data: bytes) -> None:
        self.unsent += self.seal.sealed(data) if self.seal else data
        if not self.streams and len(self.unsent) > LINE_BYTES:
            self.close()

    def update(self) -> None:
        """Pass on what can be, and wait for what comes next."""
        try:
            if not self.closed:
                self._inwards()
                self._outwards()
                self._flush()
        except OSError:
            self.close()
        if self.closed:
            return
        room = len(self.input) < PIECE and not (self.deaf or (self.streams and len(self.heard) >= PIECE))
        watch = self.holder.loop.watch
        watch(self.endpoint.fileno(), READ * room | WRITE * bool(self.unsent), self.ready)
        if self.stdin >= 0:
            watch(self.stdin, WRITE * bool(self.input), self._write)
        if self.stdout >= 0:
            watch(self.stdout, READ * (len(self.unsent) < AHEAD), self._read)

    def _write(self, _: int) -> None:
        self.update()

    def _read(self, _: int) -> None:
        if self.closed or self.stdout < 0:
            return
        try:
            data = os.read(self.stdout, PIECE)
            if data:
                self._send(data)
            else:
                self.stdout = self.holder.loop.shut(self.stdout)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        self.update()

    def _inwards(self) -> None:
        """To the command's stdin."""
        if self.streams:
            self.input += self.heard
            self.heard.clear()
        if self.stdin < 0:
            self.input.clear()  # the command reads no more
            return
        try:
            while self.input:
                del self.input[: os.write(self.stdin, self.input[:PIECE])]
        except BlockingIOError:
            return
        except OSError:
            self.input.clear()
            self.deaf_command()
        if self.deaf:
            self.deaf_command()

    def deaf_command(self) -> None:
        """Close its stdin."""
        if self.stdin >= 0:
            self.stdin = self.holder.loop.shut(self.stdin)

    def _outwards(self) -> None:
        if self.streams and self.stdout < 0 and not self.last:
            self.last = True
            self.limit = time.monotonic() + UNREAD_S
            self.deaf_command()

    def _flush(self) -> None:
        while True:
            try:
                while self.unsent:
                    del self.unsent[: self.endpoint.send(self.unsent[:AHEAD])]
                    if self.last:
                        self.limit = time.monotonic() + UNREAD_S
            except BlockingIOError:
                return
            if not self.last or self.parted:
                break
            self.parted = True
            self.limit = time.monotonic() + FAREWELL_S
            self.unsent += self.seal.farewell() if self.seal else b""
        if self.parted:
            # Not closed yet: if something is unread, that would take back what has been sent.
            if self.deaf:
                self.close()
            else:
                self.endpoint.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up; a command goes on, with nobody at the ends of its streams."""
        if self.closed:
            return
        self.closed = True
        self.holder.callers.discard(self)
        self.holder.loop.watch(self.endpoint.fileno(), 0, self.ready)
        self.endpoint.close()
        self.deaf_command()
        if self.stdout >= 0:
            self.stdout = self.holder.loop.shut(self.stdout)
        for each in self.given:
            os.close(each)
        self.given = []

    def expire(self) -> None:
        """Its time is over."""
        if self.waits_for is not None:
            self.waits_for.waiting.remove(self)
            self.waits_for.answer(self)
        else:
            self.close()


def boot_id() -> str:
    """Which start of this machine it is; "" in a sandbox that does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def keep_descriptors() -> None:
    """Give 0, 1 and 2 to nothing else, and no other descriptor to a child."""
    nothing = 0
    while nothing < 3:
        nothing = os.open(os.devnull, os.O_RDWR)
    os.close(nothing)
    for each in os.listdir("/proc/self/fd"):
        try:
            if int(each) > 2:
                os.set_inheritable(int(each), False)
        except OSError:
            pass  # that of the list itself


class Holder:
    """The slot holder."""

    def __init__(self, settings: "Dict[str, Any]") -> None:
        self.settings = settings
        self.loop = Loop()
        self.callers = set()  # type: Set[SlotCaller]
        self.children = Children()
        self.calls = {}  # type: Dict[str, HeldCall]
        self.called = self.over = False  # somebody has, a run is
        self.ends_at = None  # type: Optional[float]
        self.why = ""
        self.code = 0
        self.ran = None  # type: Optional[int]  # how the last run here has ended
        self.look_at = 0.0
        self.caught = []  # type: List[int]
        self.port = 0  # of the TLS door
        self.lines = TaskLines(settings["logs"])
        self.looks = []  # type: List[Callable[[], None]]  # called every tick, and when all below has ended
        self._be_ready()
        self.place = HoldersPlace(settings["place"])
        try:
            self._listen()
        except BaseException:
            self.place.remove()
            raise

    def _be_ready(self) -> None:
        """Have descriptors and signals as they must be."""
        keep_descriptors()
        ours, self._woken = socket.socketpair()
        for each_end in (ours, self._woken):
            each_end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *SIGNALS):
            signal.signal(number, lambda caught, _: self.caught.append(caught))
        self.loop.watch(ours.fileno(), READ, lambda _: self._signals(ours.recv(4096)))
        self._ours = ours

    def _listen(self) -> None:
        settings = self.settings
        unix = self.place.socket
        unix.listen(128)
        self.doors = [unix]
        self.loop.watch(unix.fileno(), READ, lambda _: self._accept(unix, None))
        if settings["door"]:
            self.open_door()
        if settings["lifeline"]:
            try:
                self.loop.watch(0, READ, self._lifeline)
            except PermissionError:
                sys.exit("slot: the lifeline, stdin, is a file: nothing could end")
        environment = self.children.environment = environment_for(settings, self.place)
        self.listens = {
            "slot": settings["slot"],
            "node": socket.gethostname(),
            "addresses": addresses(),
            "port": self.port,
            "socket": environment["TFLAUNCH_SLOT"],
            "directory": self.place.path,
            "pid": os.getpid(),
            "boot": boot_id(),
        }
        try:
            os.write(1, json.dumps(self.listens).encode("ascii") + b"\n")
        except OSError:
            pass  # it goes on: the engine may know by other ways

    def open_door(self) -> None:
        """Listen at a TLS port.  Raises OSError."""
        door, context = tls_door(self.settings)
        self.doors.append(door)
        self.port = door.getsockname()[1]
        self.loop.watch(door.fileno(), READ, lambda _: self._accept(door, context))

    # -- what happens

    def _accept(self, door: socket.socket, context: "Any") -> None:
        try:
            endpoint, _ = door.accept()
        except OSError:  # gone already, or no descriptors are left, which a moment may change
            time.sleep(0.01)
            return
        if context is None:
            peer = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", peer)[1] != os.geteuid():
                endpoint.close()
                return
            SlotCaller(self, endpoint, None)
            return
        self.relieve()
        try:
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                endpoint.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError:
            endpoint.close()
            return
        SlotCaller(self, endpoint, Seal(context))

    def relieve(self) -> None:
        """Drop callers that have not proved themselves, if there are too many, or too much is kept for them."""
        unproved = [caller for caller in self.callers if not caller.proved]
        if len(unproved) >= UNPROVED:
            min(unproved, key=lambda caller: caller.limit or 0.0).close()
        if sum(len(caller.heard) for caller in unproved) > UNPROVED_BYTES:
            max(unproved, key=lambda caller: len(caller.heard)).close()

    def hear(self, caller: SlotCaller, said: "Dict[str, Any]") -> None:
        """Do what a caller says; raises for what nobody says."""
        if not caller.proved:
            token = self.settings["token"].encode()
            if not hmac.compare_digest(str(said["token"]).encode(), token):
                caller.close()
                return
            caller.proved = True
        if "start" in said:
            self.called = True
            self._start(caller, said["start"], str(said.get("call", "")))
        elif "agent" in said and caller.seal is None:
            caller.agent, self.called, self.over, self.ran = True, True, False, UNKNOWN
            self.lines.add(str(said.get("logs", "")))
            if self.ends_at is not None:
                self._tell(caller)
        elif "over" in said and caller.agent:
            self.over = True
        elif "ended" in said and caller.agent:
            self.ran = min(max(int(said["ended"]), 0), 255)
            note("the run has ended with exit code %d" % self.ran)
        elif "words" in said and caller.seal is not None:
            call = self.calls.get(str(said["words"]))
            if call is None:
                caller.say(last=True, words="", code=None)
            elif call.code is not None:
                call.answer(caller)
            else:
                caller.waits_for, caller.limit = call, time.monotonic() + WORDS_S
                call.waiting.append(caller)
        elif "door" in said and caller.seal is None:
            tell_door(self, caller, said["door"])
        elif "leave" in said:
            caller.say(last=True, left=True)
            if self.ran == UNKNOWN:
                self.ran = None  # who gives the slot back knows
            self.called = True
            self.take_back(self.settings["grace_s"], str(said["leave"])[:300], 0)
        elif "look" in said:
            caller.say(last=True, ends_in=self.ends_in(), why=self.why, running=len(self.children.pids()))
        else:
            raise ValueError

    def ends_in(self) -> "Optional[float]":
        """The seconds until the slot is taken back; None where it is not."""
        return None if self.ends_at is None else max(0.0, round(self.ends_at - time.monotonic(), 3))

    def _tell(self, agent: SlotCaller) -> None:
        agent.say(ends_in=self.ends_in(), why=self.why)

    def take_back(self, seconds: float, why: str, code: int) -> None:
        """The slot ends in so many seconds, if it does not end sooner."""
        at = time.monotonic() + seconds
        if self.ends_at is None:
            self.code = code
        elif at >= self.ends_at:
            return
        self.ends_at, self.why, self.look_at = at, why, 0.0
        note("ends in %g s: %s" % (seconds, why))
        for caller in list(self.callers):
            if caller.agent:
                self._tell(caller)

    def _signals(self, _: bytes = b"") -> None:
        while self.caught:
            number = self.caught.pop(0)
            if number in SIGNALS:
                seconds = self.settings["warn_s" if number in WARNINGS else "grace_s"]
                self.take_back(seconds, SIGNALS[number], TAKEN_BACK)
        self.children.reap()
        self.look_at = 0.0

    def _lifeline(self, _: int) -> None:
        try:
            data = os.read(0, PIECE)
        except OSError:
            data = b""
        if not data:
            self.loop.watch(0, 0, self._lifeline)
            self.take_back(self.settings["grace_s"], "the engine has let go of this slot", TAKEN_BACK)

    # -- commands

    def _start(self, caller: SlotCaller, command: str, call: str) -> None:
        why = ""
        if not isinstance(command, str) or "\0" in command:
            raise ValueError
        if self.ends_at is not None:
            why = "no new command: the slot ends in %.0f s, because %s" % (self.ends_in() or 0.0, self.why)
        elif caller.seal is None:
            if len(caller.given) != 3:
                raise ValueError
            try:
                self.children.start(command, caller.given, lambda code: caller.say(last=True, ended=code))
            except OSError as error:
                why = "the command cannot be started: %s" % error.strerror
            for each in caller.given:
                os.close(each)
            caller.given = []
        else:
            why = self._start_stream(caller, command, call)
        if why and caller.seal is None:
            caller.say(last=True, ended=TAKEN_BACK if self.ends_at else NOT_STARTED, why=why)
        elif why:
            caller.say(last=True, started=False, ends_in=self.ends_in(), why=why)

    def _start_stream(self, caller: SlotCaller, command: str, call: str) -> str:
        """Start a command of the door; returns why that cannot be."""
        theirs = []  # type: List[int]
        ours = []  # type: List[int]
        try:
            for write_theirs in (False, True, True):
                ends = os.pipe()
                theirs.append(ends[write_theirs])
                ours.append(ends[not write_theirs])
            started = HeldCall(self, ours[2])
            self.children.start(command, theirs, started.ended)
        except OSError as error:
            for each in ours:
                self.loop.shut(each)
            return "the command cannot be started: %s" % error.strerror
        finally:
            for each in theirs:
                os.close(each)
        self.calls.pop(call, None)
        while len(self.calls) >= CALLS:
            del self.calls[next(iter(self.calls))]
        self.calls[call] = started
        caller.say(started=True)
        caller.stream(ours[0], ours[1])
        return ""

    # -- the end

    def run(self) -> int:
        """Hold the slot until its end; returns the exit status."""
        try:
            self.children.remove(self.place.left())
            idle_since = time.monotonic()
            while True:
                self.loop.turn(min(TICK_S, self.look_at - time.monotonic()))
                now = time.monotonic()
                if now < self.look_at:
                    continue
                self.look_at = now + TICK_S
                for look in self.looks:
                    look()
                if self.caught:  # more signals than the descriptor that wakes this process could take
                    self._signals()
                for caller in list(self.callers):
                    if caller.limit is not None and now > caller.limit:
                        caller.expire()
                self.lines.look()
                below = self.children.any()
                if self.ends_at is not None:
                    held = below or any(each.proved and (each.unsent or each.agent) for each in self.callers)
                    if not held or now > self.ends_at + KILL_S:
                        break
                if below or any(each.proved and not each.last for each in self.callers):
                    idle_since = now
                limit = self.settings["after_s" if self.over else "idle_s" if self.called else "first_s"]
                if now > idle_since + limit:
                    note("ends: nothing has run here for %g s" % limit)
                    break
        finally:
            for door in self.doors:
                self.loop.watch(door.fileno(), 0, lambda _: None)
                door.close()
            self.children.sweep()
            self.lines.finish()
            part(self.callers, self.loop)
            for look in self.looks:
                look()
            self.place.remove()
        return self.code or self.ran or (0 if self.called else self.settings["unused"])


def environment_for(settings: "Dict[str, Any]", place: HoldersPlace) -> "Dict[str, str]":
    """That of the commands that are started here."""
    found = {
        name: value
        for name, value in os.environ.items()
        if not any(fnmatch.fnmatchcase(name, each) for each in settings["clean"])
    }
    found["TFLAUNCH_SLOT"] = os.path.join(place.path, SOCKET)
    found["TFLAUNCH_SLOT_GPUS"] = settings["gpus"]
    found["TFLAUNCH_SLOT_CODE"] = settings["code"]  # the agent is kept below that; "": below its run_dir
    found["TFLAUNCH_SLOT_PYTHON"] = sys.executable or ""  # which it runs by
    return found


def part(callers: "Set[SlotCaller]", loop: "Loop") -> None:
    """Let callers hear how their commands have ended."""
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        if not any(each.proved and (each.unsent or each.stdout >= 0) for each in callers):
            break
        loop.turn(TICK_S)
    for caller in list(callers):
        caller.close()


def tell_door(holder: Holder, caller: SlotCaller, wanted: "Dict[str, Any]") -> None:
    """Open a door where there is none, and say what lets in there."""
    names = ("certificate", "key", "token")
    try:
        if not holder.port:
            holder.settings.update((name, str(wanted[name])) for name in names)
            holder.open_door()
    except (OSError, SystemExit) as error:
        caller.say(last=True, why=str(error))
        return
    shown = {name: holder.settings[name] for name in names if name != "key"}
    caller.say(last=True, port=holder.port, addresses=addresses(), **shown)


def tls_door(settings: "Dict[str, Any]") -> "Any":
    """A TCP port that listens, and the TLS to be spoken there.  Raises OSError."""
    context = tls_context(settings)
    try:
        door = socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    except (OSError, ValueError):
        door = socket.create_server(("", 0), backlog=128)
    return door, context


def tls_context(settings: "Dict[str, Any]") -> "Any":
    """What the door shows: the launcher's certificate, and nothing that it remembers of callers."""
    try:
        import ssl
    except ImportError:
        sys.exit("slot: %s has no ssl module: name another Python" % sys.executable)
    if not settings["token"]:
        sys.exit("slot: a door without a token lets everybody in")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Sessions are not kept: they would be what a stranger can make the holder remember.
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if ssl.HAS_TLSv1_3 else ssl.TLSVersion.TLSv1_2
    if ssl.HAS_TLSv1_3:
        context.num_tickets = 0
    # ssl reads them from a file alone; this one only its user sees, for as long as it takes.
    with open(os.open("door", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(settings["certificate"] + settings["key"])
    try:
        context.load_cert_chain("door")
    finally:
        os.unlink("door")
    return context


def addresses() -> "List[str]":
    """This machine's: the one that it dials out from first, loopback last."""
    found = []  # type: List[str]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        probe = None
        try:
            probe = socket.socket(family, socket.SOCK_DGRAM)
            probe.connect((far, 9))  # sends nothing
            found.append(probe.getsockname()[0])
        except OSError:
            pass
        if probe is not None:
            probe.close()
    for path, pattern in (
        ("/proc/net/fib_trie", r"\|-- ([0-9.]+)\n +/32 host LOCAL"),
        ("/proc/net/if_inet6", r"(?m)^([0-9a-f]{32}) \S+ \S+ 00 "),
    ):
        try:
            with open(path) as file:
                found += re.findall(pattern, file.read())
        except OSError:
            pass  # a sandbox without it
    told = [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(each)) if len(each) == 32 else each for each in found
    ]
    outside = [each for each in told if not each.startswith(("127.", "169.254.")) and each != "::1"]
    return list(dict.fromkeys([*outside, "127.0.0.1"]))


def main(settings: "Dict[str, Any]", listening: "Optional[Callable[[Holder], None]]" = None) -> None:
    """Hold a slot, as `settings` say, and end this process with it; `listening` is called once it is there."""
    try:
        holder = Holder({**DEFAULTS, **settings})
    except OSError as error:
        sys.exit("slot: the slot holder cannot start: %s" % error)
    if listening is not None:
        listening(holder)
    sys.exit(holder.run())
