"""Looks, by NVML, whether the run's GPUs are free again once all its processes have ended.

A driver may take seconds to give memory back, and a process that waits in the kernel keeps its memory although nothing
can end it.  A child process asks NVML: a call into a sick driver may never come back.
"""

import os
import time

from tflaunch.agent import processes
from tflaunch.agent.guard import close_all_but
from tflaunch.agent.net.channel import write_all
from tflaunch.gpu_probe import BUSY_MEMORY_BYTES, BUSY_MIG_MEMORY_BYTES, Look
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional

FREE_S = 10.0  # how long GPUs may take to be free
ANSWER_S = 3.0  # how much longer the child may take, with a slow driver
PAUSE_S = 0.2
STATES = {
    "D": "D: waits in the kernel, cannot be killed",
    "T": "T: stopped",
    "Z": "it has ended, but the driver is not done with it",
    "hidden": "it is not visible on this host",
}


class RunGpus:
    """The GPUs of this run on this host: what was on them before the run, and what is on them after it."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._known = {}  # type: Dict[str, Dict[str, Any]]
        self._mine = []  # type: List[str]
        self._pipe = -1
        self._child = 0
        self._answer = b""  # the child's
        self._found = []  # type: List[Dict[str, Any]]
        self._deadline = 0.0

    def seen(self, gpus: "Iterable[Dict[str, Any]]") -> None:
        """Remember what facts say of all GPUs; of the run's own, what they said before it had them."""
        for gpu in gpus:
            for device in gpu.get("mig") or [gpu]:
                if device["uuid"] in self._mine:
                    continue
                label = str(gpu["index"]) if device is gpu else "%d.%d" % (gpu["index"], device["index"])
                on_it = device.get("processes", ())
                self._known[device["uuid"]] = {
                    "label": label,
                    "shared": any(process["kind"] == "compute" for process in on_it),
                    "pids": [process["pid"] for process in on_it],
                    "used": max(
                        device["memory_used_bytes"],
                        BUSY_MEMORY_BYTES if device is gpu else BUSY_MIG_MEMORY_BYTES,
                    ),
                }

    def keep(self, uuids: "Iterable[str]") -> None:
        """These devices are the run's."""
        self._mine = [uuid for uuid in uuids if uuid in self._known]

    @property
    def mine(self) -> "List[str]":
        """The UUIDs of the run's devices."""
        return self._mine

    def begin(self, own: "Iterable[processes.Process]") -> None:
        """Start the look: the run has ended, but for what cannot be ended.  `own` are all processes that it had."""
        if not self._mine:
            return
        started = {process.pid: process.start for process in own}
        self._deadline = time.monotonic() + FREE_S + ANSWER_S
        try:
            self._pipe, pipe = os.pipe()
        except OSError as error:  # no descriptor is left
            self._found = self._unchecked(str(error.strerror))
            return
        os.set_blocking(self._pipe, False)
        try:
            self._child = os.fork()
            if self._child == 0:
                self._watch(pipe, started)  # does not come back
        except OSError as error:  # no process more is allowed
            self._answer = wire.dumps(self._unchecked(str(error.strerror))).encode("ascii")
        os.close(pipe)

    def result(self) -> "Optional[List[Dict[str, Any]]]":
        """The devices that are not free: `text` for the user, `own`: a process of this run is on it.

        None while the child still looks, for FREE_S + ANSWER_S at most.
        """
        if self._pipe < 0:
            return self._found
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            if time.monotonic() < self._deadline:
                return None
            os.kill(self._child, signal.SIGKILL)  # it is not reaped yet: its end of the pipe is open
            self._answer, data = b"", b""
        if data:
            self._answer += data
            return None
        os.close(self._pipe)
        self._pipe = -1
        try:
            self._found = wire.loads(self._answer.decode("ascii"))
        except ValueError:
            self._found = self._unchecked("the driver does not answer")
        return self._found

    def _unchecked(self, why: str) -> "List[Dict[str, Any]]":
        return [self._finding(uuid, "could not be checked: %s" % why) for uuid in self._mine]

    def _finding(self, uuid: str, text: str, own: bool = False) -> "Dict[str, Any]":
        return {"text": "GPU %s %s" % (self._known[uuid]["label"], text), "own": own}

    # -- in the child

    def _watch(self, pipe: int, started: "Dict[int, int]") -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            close_all_but(
                pipe
            )  # a sick driver may keep this process for ever, and must not keep leases and ports
            look = Look()
            deadline = time.monotonic() + FREE_S
            while True:
                uses = look.uses(self._mine)
                left = {uuid: self._left(uuid, use, started) for uuid, use in uses.items()}
                awaited = [uuid for uuid in left if left[uuid] and "error" not in uses[uuid]]
                if not awaited or time.monotonic() >= deadline:
                    break
                time.sleep(PAUSE_S)
            write_all(pipe, wire.dumps([each for each in left.values() if each]).encode("ascii"))
        except BaseException:  # the last line of defence: agent.log must have this
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)

    def _left(
        self, uuid: str, use: "Dict[str, Any]", started: "Dict[int, int]"
    ) -> "Optional[Dict[str, Any]]":
        """What is still on that device; None when it is as free as it was before the run."""
        if "error" in use:
            return self._finding(uuid, "could not be checked: %s" % use["error"])
        before = self._known[uuid]
        fresh = [
            process
            for process in use["processes"]
            if process["kind"] == "compute" and process["pid"] not in before["pids"]
        ]
        mine = [process for process in fresh if self._own(process["pid"], started)]
        if before["shared"]:  # other users' programs were on it before, and may come and go
            fresh = mine
        if fresh:
            users = ", ".join(_describe(process, process in mine) for process in fresh)
            return self._finding(uuid, "is still in use by " + users, bool(mine))
        if use["memory_used_bytes"] > before["used"] and not before["shared"]:
            used = use["memory_used_bytes"] / 2.0**30
            return self._finding(uuid, "has %.1f GiB in use, and no process is visible on it" % used)
        return None

    def _own(self, pid: int, started: "Dict[int, int]") -> bool:
        """Whether that process is this run's: one that it had, dead or alive, or one that carries its mark."""
        now = processes.read(pid)
        if now is None:
            return pid in started
        return now.start == started.get(pid) or bool(processes.marked([now], self._run))


def _describe(process: "Dict[str, Any]", own: bool) -> str:
    text = "%spid %d" % ("this run's " if own else "", process["pid"])
    if process["user"]:
        text += " of %s" % process["user"]
    if process["command"]:
        text += ", %s" % process["command"][:80]
    try:
        with open("/proc/%d/stat" % process["pid"], "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        state = "Z" if own else "hidden"
    return text + (" (%s)" % STATES[state] if state in STATES else "")
