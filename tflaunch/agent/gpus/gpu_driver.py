"""The NVIDIA driver, asked by a child process: a call of NVML may hang or crash, and must not take the agent along.

There is one child at a time.  It asks one device after another, and notes in a page of memory that it shares with the
agent which call it begins.  A child whose call does not return is killed, and another one goes on without that device.
A process that waits in the driver cannot be killed: it is left behind and counted, and holds nothing of the agent's.
"""

import os
import struct
import time

from tflaunch import gpu_probe
from tflaunch.agent.host import foreign, processes
from tflaunch.agent.host.journal import note
from tflaunch.agent.net.channel import write_all
from tflaunch.gpu_probe import CRASHED, HANGS, MODULE, NOT_ASKED, SLOW
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal, socket
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

    from tflaunch.protocol.selector import Selector

# How long one call may take.  Without persistence mode a driver takes seconds to wake a GPU.
CALL_S = float(os.environ.get("TFLAUNCH_NVML_CALL_S") or 8.0)
LATER_S = 2.0  # the same once a device of this host has not answered
LOOK_S = 20.0  # all devices together, where the launcher says nothing else
AGAIN_S = 60.0  # a GPU that has not answered is asked again after so long
MOST_LEFT = 3  # processes that wait in the driver for ever; no more are added to them
ENDS_S = 0.2  # a process that can be killed ends within
SAY_S = 2.0  # a look that takes longer is told of
ANSWER_BYTES = 4 << 20
SHUTDOWN = "nvmlShutdown"
_PAGE = struct.Struct("=dqq64s")  # begin of the call (monotonic), device, calls so far, the call


class DeviceAnswer:
    """What came of a question."""

    def __init__(self) -> None:
        self.said = {}  # type: Dict[str, Any]  # of the driver as a whole
        self.found = {}  # type: Dict[int, Any]  # of each device, by its number
        self.failed = {}  # type: Dict[int, str]  # why others did not answer
        self.problem = ""  # why nothing is known

    @property
    def gpus(self) -> "Dict[str, Any]":
        """Of the question "probe": see gpu_probe.assembled."""
        said = dict(self.said, note=self.problem) if self.problem else self.said
        return gpu_probe.assembled(said, self.found, self.failed)


class GpuDriver:
    """Asks NVML one question at a time; `tick` must be called again and again while it is `busy`.

    With a `selector`, `tick` is also called when an answer has come; without one, poll `descriptor`.
    """

    def __init__(self, selector: "Optional[Selector]" = None) -> None:
        self._selector = selector
        self._child = None  # type: Optional[processes.Process]
        self._socket = None  # type: Optional[socket.socket]
        self._page = None  # type: Optional[mmap.mmap]
        self._came = b""
        self._module = b""  # the packed source of pynvml, where the launcher has sent it
        self._fresh = True  # the child has answered nothing yet
        self._ailments = {}  # type: Dict[int, str]  # what was wrong at the last answer
        self._left = []  # type: List[processes.Process]  # killed, but they wait in the driver
        self._hung = {}  # type: Dict[int, Tuple[float, str]]  # GPU -> when to ask it again, and what it did
        self._open = False  # the child has NVML open
        self._users = True  # see gpu_probe.Nvml
        self._question = {}  # type: Dict[str, Any]
        self._then = None  # type: Optional[Callable[[DeviceAnswer], None]]
        self._answer = DeviceAnswer()
        self._asked_at = self._deadline = self._limit_s = 0.0

    # -- questions

    def ask(
        self, question: "Dict[str, Any]", within_s: float, then: "Callable[[DeviceAnswer], None]"
    ) -> None:
        """Ask, when not `busy`; `then` gets the answer after `within_s` at the latest.

        ask: "probe", with topology; "uses", "loads", with devices: [UUID, label].  See gpu_probe.
        """
        now = time.monotonic()
        self._question, self._then, self._answer = question, then, DeviceAnswer()
        self._asked_at, self._deadline = now, now + within_s
        self._limit_s = min(CALL_S, max(LATER_S, within_s / 2))
        self._left = [each for each in self._left if _lives(each)]
        if self._socket is not None and self._ended():
            self._drop()  # somebody has killed it, or it crashed as it left the driver
        for gpu, (again_at, why) in list(self._hung.items()):
            if again_at <= now and len(self._left) < MOST_LEFT:
                del self._hung[gpu]
                self._limit_s = min(self._limit_s, LATER_S)
            else:
                self._answer.failed.update((key, why) for key in self._keys_of(gpu))
        self._begin()

    def take_module(self, packed: bytes) -> None:
        """The next child has this source of pynvml."""
        self.stop()
        self._module = packed

    @property
    def busy(self) -> bool:
        """Whether a question is not answered yet."""
        return self._then is not None

    @property
    def descriptor(self) -> int:
        """What is ready to be read when the child has said something; -1 without a child."""
        return self._socket.fileno() if self._socket is not None else -1

    @property
    def waits_for(self) -> str:
        """What takes the driver so long, for the user; "" as long as it does not."""
        taken_s = time.monotonic() - self._asked_at
        if not self.busy or taken_s < SAY_S:
            return ""
        _, key, _, call = self._now()
        count = self._answer.said.get("count", 0)
        which = " at GPU %d of %d" % (key, count) if key >= 0 and count else ""
        return "its NVIDIA driver is slow:%s %s, %d s so far" % (which, call or "NVML", taken_s)

    def _keys_of(self, gpu: int) -> "Sequence[int]":
        """The numbers in the question of what is on that GPU."""
        if self._question["ask"] == "probe":
            return [gpu]
        labels = [label for _, label in self._question["devices"]]
        return [key for key, label in enumerate(labels) if label.partition(".")[0] == str(gpu)]

    def _gpu_of(self, key: int) -> int:
        if self._question["ask"] == "probe":
            return key
        return int(self._question["devices"][key][1].partition(".")[0] or -1)

    # -- the child, from outside

    def _begin(self) -> None:
        """Have the child, or a new one, answer what is still open."""
        if len(self._left) >= MOST_LEFT:
            pids = ", ".join(str(each.pid) for each in self._left)
            self._finish(
                "%s: processes that asked before wait in the driver for ever: pid %s" % (NOT_ASKED, pids)
            )
            return
        try:
            if self._child is None:
                self._start()
            without = sorted({*self._answer.failed, *self._answer.found})
            if self._question["ask"] == "probe":
                known = list(self._answer.found)
                question = dict(self._question, known=known, without=sorted(self._answer.failed))
            else:
                question = dict(self._question, without=without)
            assert self._socket is not None  # noqa: S101
            self._socket.sendall(wire.dumps(dict(question, users=self._users)).encode("ascii") + b"\n")
            self._open = True
        except OSError as error:  # no process or descriptor more is allowed
            self._drop()
            self._finish("%s: %s" % (NOT_ASKED, error.strerror))

    def _start(self) -> None:
        import mmap  # only a host with GPUs to look at needs it

        ours, theirs = socket.socketpair()
        try:
            self._page = mmap.mmap(-1, _PAGE.size)
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _serve(theirs.fileno(), self._page, self._module)  # does not come back
        theirs.close()
        ours.setblocking(False)
        self._socket, self._came, self._fresh = ours, b"", True
        self._child = processes.read(pid) or processes.Process(pid, os.getpid(), "Z", 0, "")
        if self._selector is not None:
            self._selector.register(ours, EVENT_READ, lambda: self.tick(time.monotonic()))

    def tick(self, now: float) -> None:
        """Take what the child has said; end it when it takes too long."""
        if self._then is None:
            if self._socket is not None and self._ended():
                self._drop()
            return
        over = self._ended()
        while b"\n" in self._came:
            line, _, self._came = self._came.partition(b"\n")
            try:
                key, value = wire.loads(line.decode("ascii"))
            except ValueError:  # NVML has overwritten the child's memory
                over = True
                break
            if key is None:
                ailments = _ailments(self._answer)
                if not self._fresh and ailments and ailments != self._ailments:
                    # The library may be that of an old driver: only a new process loads another one.
                    self._drop()
                    self._answer.said, self._answer.found = {}, {}
                    self._begin()
                    return
                self._fresh, self._ailments = False, ailments
                self._finish("")
                return
            if key < 0:
                self._answer.said.update(value)
            else:
                self._answer.found[key] = value
        began, key, calls, call = self._now()
        if over:
            self._failed(key, call, self._how_it_ended())
        elif call and now - began > self._limit_s:
            self._failed(key, call, "%s within %g s" % (HANGS, self._limit_s))
        elif now > self._deadline:
            self._drop()
            self._forget_halves()
            if self._answer.failed:
                self._leave_rest("no time is left")
            else:
                each_s = (now - self._asked_at) / max(1, calls)
                self._finish("%s: %d calls took %.1f s each, and %s" % (SLOW, calls, each_s, self._last()))

    def _ended(self) -> bool:
        """Read what has come; whether the child has closed its end."""
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

    def _now(self) -> "Tuple[float, int, int, str]":
        if self._page is None:
            return 0.0, -1, 0, ""
        began, key, calls, call = _PAGE.unpack(self._page[: _PAGE.size])
        return began, key, calls, call.rstrip(b"\0").decode("ascii", "replace")

    def _last(self) -> str:
        """Which GPU answered last."""
        gpus = [self._gpu_of(key) for key in self._answer.found]
        return "GPU %d answered last" % gpus[-1] if gpus else "no GPU has answered"

    def _failed(self, key: int, call: str, what: str) -> None:
        """The child hangs, or has ended, in that call: go on without what it was about."""
        self._drop()
        if call == SHUTDOWN:
            pass  # the last question had its answer
        elif call.startswith(gpu_probe.WHO) and self._users:
            self._users = False
        elif call == MODULE:
            self._answer.said["lacks"] = MODULE  # the host's own cannot be loaded; the launcher sends one
            self._finish("")
            return
        elif key < 0 or not call:
            self._finish("%s %s, and %s" % (call or "the process that asks", what, self._last()))
            return
        else:
            why = "%s %s" % (call, what)
            self._note("GPU %d: %s" % (self._gpu_of(key), why))
            self._answer.failed[key] = why
            self._hung[self._gpu_of(key)] = time.monotonic() + AGAIN_S, why
            self._limit_s = min(self._limit_s, LATER_S)
        self._forget_halves()
        if len(self._left) >= MOST_LEFT:
            self._leave_rest("%d processes wait in the driver for ever" % len(self._left))
        else:
            self._begin()

    def _forget_halves(self) -> None:
        """Forget what is known of the GPU whose turn it was, unless that is sick."""
        for key, value in list(self._answer.found.items()):
            if isinstance(value, list) and value[1] is None and key not in self._answer.failed:
                del self._answer.found[key]

    def _leave_rest(self, why: str) -> None:
        """Answer without the devices that are still open."""
        if self._question["ask"] == "probe":
            keys = range(self._answer.said.get("count", 0))
        else:
            keys = range(len(self._question["devices"]))
        for key in keys:
            if key not in self._answer.found:
                self._answer.failed.setdefault(key, "%s: %s" % (NOT_ASKED, why))
        self._finish("")

    def _finish(self, problem: str) -> None:
        then, self._then = self._then, None
        if problem:
            self._drop()
            self._answer.problem = "NVML: %s" % problem
            self._note(self._answer.problem)
        if self._answer.said.get("note") or self._answer.said.get("lacks"):
            self._drop()  # the driver may be another one when it is asked again
        assert then is not None  # noqa: S101
        then(self._answer)

    def _how_it_ended(self) -> str:
        status = self._status
        if status is not None and os.WIFSIGNALED(status):
            return "%s (signal %d)" % (CRASHED, os.WTERMSIG(status))
        return CRASHED

    @property
    def _status(self) -> "Optional[int]":
        """How the child has ended, where nobody else has waited for it."""
        assert self._child is not None  # noqa: S101
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:  # its descriptors are closed just before it has ended
            try:
                pid, status = os.waitpid(self._child.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                return status
            time.sleep(0.005)
        return None

    def _drop(self) -> None:
        """End the child; a process that waits in the driver is left."""
        if self._socket is not None:
            if self._selector is not None:
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        child, self._child = self._child, None
        if child is None:
            return
        processes.send(child, signal.SIGKILL)
        deadline = time.monotonic() + ENDS_S
        while _lives(child):
            if time.monotonic() > deadline:
                self._note("pid %d waits in the NVIDIA driver and cannot be killed" % child.pid)
                self._left.append(child)
                return
            time.sleep(0.005)

    def _note(self, text: str) -> None:
        if self._selector is not None:  # an agent, which has a log
            note(text)

    def stop(self) -> None:
        """End the child; a question that is not answered yet never is."""
        self._then = None
        self._drop()

    def rest(self) -> None:
        """Have the child leave the driver alone until the next question: somebody may want to reset or replace it."""
        if self._socket is not None and not self.busy and self._open:
            self._open = False
            try:
                self._socket.sendall(wire.dumps({"ask": SHUTDOWN}).encode("ascii") + b"\n")
            except OSError:
                self._drop()

    @property
    def pids(self) -> "List[int]":
        """The processes that ask, or wait in the driver for ever: they are not what a run leaves."""
        return [each.pid for each in ([self._child] if self._child is not None else []) + self._left]


def _lives(process: "processes.Process") -> bool:
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        pass  # the agent's loop was quicker
    return processes.alive(process.pid, process.start)


def _ailments(answer: DeviceAnswer) -> "Dict[int, str]":
    """What is wrong with the driver (-1) and with each device."""
    found = {-1: answer.said.get("note", "")}
    for key, value in answer.found.items():
        found[key] = (value[0] if isinstance(value, list) else value).get("error", "")
    return {key: error for key, error in found.items() if error}


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
        nvml = None  # type: Optional[gpu_probe.Nvml]
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
                        nvml = None
                    continue
                said = {}  # type: Dict[str, Any]
                if nvml is None:
                    nvml, said = gpu_probe.opened(tell, packed)
                if nvml is None:
                    _say(descriptor, -1, said)
                else:
                    nvml.users = question["users"]
                    for key, value in _pieces(nvml, question):
                        _say(descriptor, key, value)
                _say(descriptor, None, {})
    except OSError:
        pass  # the agent has gone
    except BaseException as error:  # the last line of defence: somebody must hear of this
        _say(descriptor, -1, {"note": "NVML: a defect of tflaunch's agent: %r" % error})
        _say(descriptor, None, {})
    finally:
        os._exit(0)


def _pieces(nvml: "gpu_probe.Nvml", question: "Dict[str, Any]") -> "Any":
    if question["ask"] == "probe":
        return gpu_probe.gpus_of(nvml, question["topology"], question["known"], question["without"])
    ask = {"uses": gpu_probe.uses, "loads": gpu_probe.loads}[question["ask"]]
    return ask(nvml, question["devices"], question["without"])


def _say(descriptor: int, key: "Optional[int]", value: "Any") -> None:
    write_all(descriptor, wire.dumps([key, value]).encode("ascii") + b"\n")
