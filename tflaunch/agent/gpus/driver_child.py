"""The process that asks NVML: from outside, where it is started, read and ended, and from inside.

It notes in a page of memory that it shares with the agent which call it begins.  A process that waits in the driver
cannot be killed: it is left behind and counted, and holds nothing of the agent's.
"""

import os
import struct
import time

from tflaunch import gpu_probe
from tflaunch.agent.host import foreign, processes
from tflaunch.agent.host.journal import note
from tflaunch.agent.net.channel import write_all
from tflaunch.gpu_probe import CRASHED
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal, socket
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from tflaunch.agent.gpus.gpu_loads import Loads
    from tflaunch.protocol.selector import Selector

MOST_LEFT = 3  # processes that wait in the driver for ever; no more are added to them
ENDS_S = 0.2  # a process that can be killed ends within
ANSWER_BYTES = 4 << 20
SHUTDOWN = "nvmlShutdown"
_PAGE = struct.Struct("=dqq64s")  # begin of the call (monotonic), device, calls so far, the call


class DriverChild:
    """One process at a time; it answers each question in lines of JSON."""

    def __init__(self, selector: "Optional[Selector]", readable: "Callable[[], None]") -> None:
        """With a `selector`, `readable` is called when the process has said something, or has ended."""
        self._selector = selector
        self._readable = readable
        self._process = None  # type: Optional[processes.Process]
        self._socket = None  # type: Optional[socket.socket]
        self._page = None  # type: Optional[mmap.mmap]
        self._came = b""
        self._left = []  # type: List[processes.Process]  # killed, but they wait in the driver
        self.open = False  # it has NVML open
        if _early:
            self._take(*_early.pop())

    @property
    def there(self) -> bool:
        """Whether there is a process; it may have ended by itself."""
        return self._socket is not None

    @property
    def descriptor(self) -> int:
        """What is ready to be read when the process has said something; -1 without one."""
        return self._socket.fileno() if self._socket is not None else -1

    @property
    def pids(self) -> "List[int]":
        """The process, and those that wait in the driver for ever."""
        return [each.pid for each in ([self._process] if self._process is not None else []) + self._left]

    @property
    def stuck(self) -> "List[int]":
        """Those that wait in the driver for ever, where they are too many to add to them."""
        return [each.pid for each in self._left] if len(self._left) >= MOST_LEFT else []

    def look_again(self) -> None:
        """Forget those that have come out of the driver after all."""
        self._left = [each for each in self._left if _lives(each)]

    def start(self, module: bytes) -> None:
        """Start a process that has this packed source of pynvml; raises OSError."""
        self._take(*_forked(module))

    def _take(self, pid: int, ours: socket.socket, page: "mmap.mmap") -> None:
        self._socket, self._page, self._came = ours, page, b""
        self._process = processes.read(pid) or processes.Process(pid, os.getpid(), "Z", 0, "")
        if self._selector is not None:
            self._selector.register(ours, EVENT_READ, self._readable)

    def ask(self, question: "Dict[str, Any]") -> None:
        """Send it a question; raises OSError."""
        assert self._socket is not None  # noqa: S101
        self._socket.sendall(wire.dumps(question).encode("ascii") + b"\n")
        self.open = True

    def shut_down(self) -> None:
        """Have it leave the driver alone until the next question."""
        if self._socket is not None and self.open:
            self.open = False
            try:
                self._socket.sendall(wire.dumps({"ask": SHUTDOWN}).encode("ascii") + b"\n")
            except OSError:
                self.drop()

    def read(self) -> bool:
        """Read what has come; whether the process has closed its end."""
        assert self._socket is not None  # noqa: S101
        try:
            while len(self._came) < ANSWER_BYTES:
                data = self._socket.recv(65536)
                if not data:
                    return True
                self._came += data
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def answer(self) -> "Optional[Tuple[Optional[int], Any]]":
        """The next piece that has been read: a device's number, -1 for the driver, None at the end, and its value.

        Raises ValueError when NVML has overwritten the process's memory.
        """
        if b"\n" not in self._came:
            return None
        line, _, self._came = self._came.partition(b"\n")
        key, value = wire.loads(line.decode("ascii"))
        return key, value

    def now(self) -> "Tuple[float, int, int, str]":
        """The call that it is in: since when (monotonic), for which device, after how many calls, its name."""
        if self._page is None:
            return 0.0, -1, 0, ""
        began, key, calls, call = _PAGE.unpack(self._page[: _PAGE.size])
        return began, key, calls, call.rstrip(b"\0").decode("ascii", "replace")

    def how_it_ended(self) -> str:
        """In words, where it has ended by itself."""
        status = self._status
        if status is not None and os.WIFSIGNALED(status):
            return "%s (signal %d)" % (CRASHED, os.WTERMSIG(status))
        return CRASHED

    @property
    def _status(self) -> "Optional[int]":
        """How it has ended, where nobody else has waited for it."""
        assert self._process is not None  # noqa: S101
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:  # its descriptors are closed just before it has ended
            try:
                pid, status = os.waitpid(self._process.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                return status
            time.sleep(0.005)
        return None

    def drop(self) -> None:
        """End it; a process that waits in the driver is left."""
        if self._socket is not None:
            if self._selector is not None:
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is None:
            return
        processes.send(process, signal.SIGKILL)
        deadline = time.monotonic() + ENDS_S
        while _lives(process):
            if time.monotonic() > deadline:
                if self._selector is not None:  # an agent, which has a log
                    note("pid %d waits in the NVIDIA driver and cannot be killed" % process.pid)
                self._left.append(process)
                return
            time.sleep(0.005)


def begin_early() -> None:
    """Start the process of the next DriverChild now: a fork costs least while this process has little in memory."""
    try:
        _early.append(_forked(b""))
    except OSError:
        pass  # the first question finds out


_early = []  # type: List[Tuple[int, socket.socket, mmap.mmap]]


def _forked(module: bytes) -> "Tuple[int, socket.socket, mmap.mmap]":
    """The pid of a new process, this end of the socket, and the page that it shares; raises OSError."""
    import mmap  # few visits need it

    ours, theirs = socket.socketpair()
    try:
        page = mmap.mmap(-1, _PAGE.size)
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _serve(theirs.fileno(), page, module)  # does not come back
    theirs.close()
    ours.setblocking(False)
    return pid, ours, page


def _lives(process: "processes.Process") -> bool:
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        pass  # the agent's loop was quicker
    return processes.alive(process.pid, process.start)


# -- in the child


def _serve(descriptor: int, page: "mmap.mmap", packed: bytes) -> None:
    calls = 0

    def tell(key: int, call: str) -> None:
        nonlocal calls
        calls += bool(call)
        page[: _PAGE.size] = _PAGE.pack(time.monotonic(), key, calls, call.encode("ascii", "replace"))

    try:
        foreign.alone(foreign.ASKS_NVML, descriptor)
        os.set_blocking(descriptor, True)
        nvml, loads = None, None  # type: Optional[gpu_probe.Nvml], Optional[Loads]
        came = b""
        while True:
            data = os.read(descriptor, 65536)
            if not data:
                break
            came += data
            if not came.endswith(b"\n"):
                continue
            questions, came = came.decode("ascii").splitlines(), b""
            for question in map(wire.loads, questions):
                if question["ask"] == SHUTDOWN:
                    if nvml is not None:
                        nvml.key = -1
                        nvml.nvmlShutdown()
                        nvml = loads = None
                    continue
                said = {}  # type: Dict[str, Any]
                if nvml is None:
                    nvml, said = gpu_probe.opened(tell, packed)
                if nvml is None:
                    _say(descriptor, -1, said)
                else:
                    nvml.users = question["users"]
                    if question["ask"] in ("loads", "xids"):
                        loads = loads or _loads(nvml)
                    for key, value in _pieces(nvml, loads, question):
                        _say(descriptor, key, value)
                _say(descriptor, None, {})
    except OSError:
        pass  # the agent has gone
    except BaseException as error:  # the last line of defence: somebody must hear of this
        _say(descriptor, -1, {"note": "NVML: a defect of tflaunch's agent: %r" % error})
        _say(descriptor, None, {})
    finally:
        os._exit(0)


def _pieces(nvml: "gpu_probe.Nvml", loads: "Optional[Loads]", question: "Dict[str, Any]") -> "Any":
    if question["ask"] == "probe":
        return gpu_probe.gpus_of(nvml, question["topology"], question["known"], question["without"])
    if question["ask"] == "uses" or loads is None:
        return gpu_probe.uses(nvml, question["devices"], question["without"])
    if question["ask"] == "xids":
        return loads.xids()
    return loads.of(question["devices"], question["without"])


def _loads(nvml: "gpu_probe.Nvml") -> "Loads":
    from tflaunch.agent.gpus.gpu_loads import Loads

    return Loads(nvml)


def _say(descriptor: int, key: "Optional[int]", value: "Any") -> None:
    write_all(descriptor, wire.dumps([key, value]).encode("ascii") + b"\n")
