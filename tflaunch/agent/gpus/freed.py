"""Looks, by NVML, whether the run's GPUs are free again once all its processes have ended.

A driver may take seconds to give memory back, and a process that waits in the kernel keeps its memory although nothing
can end it.  A child process asks NVML (agent/gpus/gpu_driver.py): a call into a sick driver may never come back.
"""

import time

from tflaunch.agent.host import processes
from tflaunch.gpu_probe import BUSY_MEMORY_BYTES, BUSY_MIG_MEMORY_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from tflaunch.agent.gpus.gpu_driver import DeviceAnswer, GpuDriver

FREE_S = 10.0  # how long GPUs may take to be free
ANSWER_S = 3.0  # how much longer a slow driver may take
PAUSE_S = 0.2
STATES = {
    "D": "D: waits in the kernel, cannot be killed",
    "T": "T: stopped",
    "Z": "it has ended, but the driver is not done with it",
    "hidden": "it is not visible on this host",
}


class RunGpus:
    """The GPUs of this run on this host: what was on them before the run, and what is on them after it."""

    def __init__(self, run: str, driver: "GpuDriver") -> None:
        self._run = run
        self._driver = driver
        self._known = {}  # type: Dict[str, Dict[str, Any]]
        self._mine = []  # type: List[str]
        self._started = {}  # type: Dict[int, int]  # the processes that the run had
        self._found = []  # type: Optional[List[Dict[str, Any]]]
        self._deadline = self._again_at = 0.0

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
    def devices(self) -> "List[Tuple[str, str]]":
        """The run's devices: UUID and label."""
        return [(uuid, self._known[uuid]["label"]) for uuid in self._mine]

    def begin(self, own: "Iterable[processes.Process]") -> None:
        """Start the look: the run has ended, but for what cannot be ended.  `own` are all processes that it had."""
        if not self._mine:
            return
        self._started = {process.pid: process.start for process in own}
        self._deadline = time.monotonic() + FREE_S
        self._found = None
        if self._driver.busy:  # with what nobody waits for any more
            self._driver.stop()

    def result(self) -> "Optional[List[Dict[str, Any]]]":
        """The devices that are not free: `text` for the user, `own`: a process of this run is on it.

        None while it still looks, for FREE_S + ANSWER_S at most.
        """
        now = time.monotonic()
        if self._found is None and not self._driver.busy and now >= self._again_at:
            within_s = self._deadline + ANSWER_S - now
            self._driver.ask({"ask": "uses", "devices": self.devices}, within_s, self._answered)
        return self._found

    def _answered(self, answer: "DeviceAnswer") -> None:
        if answer.problem or answer.said:
            why = answer.problem or answer.said.get("note") or "NVML is not there"
            self._found = self._unchecked(why)
            return
        left, awaited = [], False
        for key, uuid in enumerate(self._mine):
            use = answer.found.get(key) or {"error": answer.failed.get(key, "NVML is not there")}
            each = self._left(uuid, use, self._started)
            if each is not None:
                left.append(each)
                awaited = awaited or "error" not in use
        now = time.monotonic()
        if awaited and now < self._deadline:
            self._again_at = now + PAUSE_S
        else:
            self._found = left

    def _unchecked(self, why: str) -> "List[Dict[str, Any]]":
        return [self._finding(uuid, "could not be checked: %s" % why) for uuid in self._mine]

    def _finding(self, uuid: str, text: str, own: bool = False) -> "Dict[str, Any]":
        return {"text": "GPU %s %s" % (self._known[uuid]["label"], text), "own": own}

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
