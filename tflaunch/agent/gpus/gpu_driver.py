"""The NVIDIA driver, asked by a child process: a call of NVML may hang or crash, and must not take the agent along.

The child (driver_child) asks one device after another.  One whose call does not return is killed, and another one goes
on without that device.
"""

import os
import time

from tflaunch import gpu_probe
from tflaunch.agent.gpus.driver_child import SHUTDOWN, DriverChild
from tflaunch.agent.host.journal import note
from tflaunch.gpu_probe import HANGS, MODULE, NOT_ASKED, SLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

    from tflaunch.protocol.selector import Selector

# How long one call may take.  Without persistence mode a driver takes seconds to wake a GPU.
CALL_S = float(os.environ.get("TFLAUNCH_NVML_CALL_S") or 8.0)
LATER_S = 2.0  # the same once a device of this host has not answered
LOOK_S = 20.0  # all devices together, where the launcher says nothing else
AGAIN_S = 60.0  # a GPU that has not answered is asked again after so long
SAY_S = 2.0  # a look that takes longer is told of
HEARS = "nvmlEventSetWait"


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
        self._has_log = selector is not None  # an agent has one
        self._child = DriverChild(selector, lambda: self.tick(time.monotonic()))
        self._module = b""  # the packed source of pynvml, where the launcher has sent it
        self._fresh = True  # the child has answered nothing yet
        self._ailments = {}  # type: Dict[str, Dict[int, str]]  # question -> what was wrong at its last answer
        self.xids = []  # type: List[List[Any]]  # [UUID, index of the GPU, Xid], told since somebody took them
        self._kept = False  # NVML stays open between two questions
        self._hung = {}  # type: Dict[int, Tuple[float, str]]  # GPU -> when to ask it again, and what it did
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

        ask: "probe", with topology; "uses", "loads", with devices: [UUID, label]; "xids".  See gpu_probe, gpu_loads.
        """
        now = time.monotonic()
        self._question, self._then, self._answer = question, then, DeviceAnswer()
        self._asked_at, self._deadline = now, now + within_s
        self._limit_s = min(CALL_S, max(LATER_S, within_s / 2))
        self._child.look_again()
        if self._child.there and self._child.read():
            self._child.drop()  # somebody has killed it, or it crashed as it left the driver
        for gpu, (again_at, why) in list(self._hung.items()):
            if again_at <= now and not self._child.stuck:
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
        return self._child.descriptor

    @property
    def waits_for(self) -> str:
        """What takes the driver so long, for the user; "" as long as it does not."""
        taken_s = time.monotonic() - self._asked_at
        if not self.busy or taken_s < SAY_S:
            return ""
        _, key, _, call = self._child.now()
        count = self._answer.said.get("count", 0)
        which = " at GPU %d of %d" % (key, count) if key >= 0 and count else ""
        return "its NVIDIA driver is slow:%s %s, %d s so far" % (which, call or "NVML", taken_s)

    def _keys_of(self, gpu: int) -> "Sequence[int]":
        """The numbers in the question of what is on that GPU."""
        if self._question["ask"] == "probe":
            return [gpu]
        return [key for key in range(len(self._question["devices"])) if self._gpu_of(key) == gpu]

    def _gpu_of(self, key: int) -> int:
        if self._question["ask"] == "probe":
            return key
        return int(self._question["devices"][key][1].partition(".")[0] or -1)

    # -- its answers

    def _begin(self) -> None:
        """Have the child, or a new one, answer what is still open."""
        stuck = self._child.stuck
        if stuck:
            pids = ", ".join(map(str, stuck))
            self._finish(
                "%s: processes that asked before wait in the driver for ever: pid %s" % (NOT_ASKED, pids)
            )
            return
        try:
            if not self._child.there:
                self._child.start(self._module)
                self._fresh = True
            without = sorted({*self._answer.failed, *self._answer.found})
            if self._question["ask"] == "probe":
                known = list(self._answer.found)
                question = dict(self._question, known=known, without=sorted(self._answer.failed))
            else:
                question = dict(self._question, without=without)
            self._child.ask(dict(question, users=self._users))
        except OSError as error:  # no process or descriptor more is allowed
            self._child.drop()
            self._finish("%s: %s" % (NOT_ASKED, error.strerror))

    def tick(self, now: float) -> None:
        """Take what the child has said; end it when it takes too long."""
        if self._then is None:
            if self._child.there and self._child.read():
                self._child.drop()
            return
        over = self._child.read()
        while True:
            try:
                piece = self._child.answer()
            except ValueError:  # NVML has overwritten the child's memory
                over = True
                break
            if piece is None:
                break
            key, value = piece
            if key is None:
                if self._ails_anew():
                    # The library may be that of an old driver: only a new process loads another one.
                    self._child.drop()
                    self._answer.said, self._answer.found = {}, {}
                    self._begin()
                else:
                    self._finish("")
                return
            if key < 0:
                self.xids += value.pop("xids", ())
                self._answer.said.update(value)
            else:
                self._answer.found[key] = value
        began, key, calls, call = self._child.now()
        if over:
            self._failed(key, call, self._child.how_it_ended())
        elif call and now - began > self._limit_s:
            self._failed(key, call, "%s within %g s" % (HANGS, self._limit_s))
        elif now > self._deadline:
            self._child.drop()
            self._forget_halves()
            if self._answer.failed:
                self._leave_rest("no time is left")
            else:
                each_s = (now - self._asked_at) / max(1, calls)
                self._finish("%s: %d calls took %.1f s each, and %s" % (SLOW, calls, each_s, self._last()))

    def _ails_anew(self) -> bool:
        """Whether something is wrong that was not at the last answer to such a question."""
        kind, ailments = self._question["ask"], _ailments(self._answer)
        if not self._fresh and ailments and ailments != self._ailments.get(kind):
            return True
        self._fresh, self._ailments[kind] = False, ailments
        return False

    def _last(self) -> str:
        """Which GPU answered last."""
        gpus = [self._gpu_of(key) for key in self._answer.found]
        return "GPU %d answered last" % gpus[-1] if gpus else "no GPU has answered"

    def _failed(self, key: int, call: str, what: str) -> None:
        """The child hangs, or has ended, in that call: go on without what it was about."""
        self._child.drop()
        if call in (SHUTDOWN, HEARS):
            pass  # the last question had its answer; the next child hears of later Xids alone
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
        if self._child.stuck:
            self._leave_rest("%d processes wait in the driver for ever" % len(self._child.stuck))
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
            self._child.drop()
            self._answer.problem = "NVML: %s" % problem
            self._note(self._answer.problem)
        if self._answer.said.get("note") or self._answer.said.get("lacks"):
            self._child.drop()  # the driver may be another one when it is asked again
        assert then is not None  # noqa: S101
        then(self._answer)

    def _note(self, text: str) -> None:
        if self._has_log:
            note(text)

    def stop(self) -> None:
        """End the child; a question that is not answered yet never is."""
        self._then = None
        self._child.drop()

    def rest(self) -> None:
        """Have the child leave the driver alone until the next question: somebody may want to reset or replace it."""
        if not (self.busy or self._kept):
            self._child.shut_down()

    def keep_open(self, wanted: bool) -> None:
        """Keep NVML open between two questions, so that no Xid is missed, whoever else wants it to `rest`."""
        self._kept = wanted
        self.rest()

    @property
    def stays_open(self) -> bool:
        """Whether it is, and has been since it was last asked."""
        return self._kept and self._child.there and self._child.open

    @property
    def pids(self) -> "List[int]":
        """The processes that ask, or wait in the driver for ever: they are not what a run leaves."""
        return self._child.pids


def _ailments(answer: DeviceAnswer) -> "Dict[int, str]":
    """What is wrong with the driver (-1) and with each device."""
    found = {-1: answer.said.get("note", "")}
    for key, value in answer.found.items():
        found[key] = (value[0] if isinstance(value, list) else value).get("error", "")
    return {key: error for key, error in found.items() if error}
