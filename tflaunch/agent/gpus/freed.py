"""Whether the cards of a run are free again once all of it has ended, as NVML sees it.

A driver takes its time to give memory back, and a process that waits in the kernel keeps its memory although
nothing can end it.  NVML is asked by a child: a call into a sick driver may never come back.
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

FREE_S = 10.0  # how long cards may take to be free
ANSWER_S = 3.0  # beyond that, for a driver that is slow
PAUSE_S = 0.2
STATES = {
    "D": "D: waits in the kernel, cannot be killed",
    "T": "T: stopped",
    "Z": "it has ended, but the driver is not done with it",
    "hidden": "it is not visible on this host",
}


class Cards:
    """The cards of this run on this host: how they were before it, and how they are after it."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._known = {}  # type: Dict[str, Dict[str, Any]]
        self._mine = []  # type: List[str]
        self._pipe = -1
        self._child = 0
        self._said = b""
        self._found = []  # type: List[Dict[str, Any]]
        self._deadline = 0.0

    def seen(self, gpus: "Iterable[Dict[str, Any]]") -> None:
        """What the facts say of all cards; of those that the run has, only what they said before counts."""
        for card in gpus:
            for device in card.get("mig") or [card]:
                if device["uuid"] in self._mine:
                    continue
                label = str(card["index"]) if device is card else "%d.%d" % (card["index"], device["index"])
                on_it = device.get("processes", ())
                self._known[device["uuid"]] = {
                    "label": label,
                    "shared": any(process["kind"] == "compute" for process in on_it),
                    "pids": [process["pid"] for process in on_it],
                    "used": max(
                        device["memory_used_bytes"],
                        BUSY_MEMORY_BYTES if device is card else BUSY_MIG_MEMORY_BYTES,
                    ),
                }

    def keep(self, uuids: "Iterable[str]") -> None:
        """These are the run's."""
        self._mine = [uuid for uuid in uuids if uuid in self._known]

    def begin(self, own: "Iterable[processes.Process]") -> None:
        """All of the run has ended, or cannot be ended; `own` are processes that it had."""
        if not self._mine:
            return
        started = {process.pid: process.start for process in own}
        self._deadline = time.monotonic() + FREE_S + ANSWER_S
        try:
            self._pipe, pipe = os.pipe()
        except OSError as error:  # there is no descriptor left
            self._found = self._unchecked(str(error.strerror))
            return
        os.set_blocking(self._pipe, False)
        try:
            self._child = os.fork()
            if self._child == 0:
                self._watch(pipe, started)  # does not come back
        except OSError as error:  # there is no room for a process
            self._said = wire.dumps(self._unchecked(str(error.strerror))).encode("ascii")
        os.close(pipe)

    def result(self) -> "Optional[List[Dict[str, Any]]]":
        """The cards that are not free, each with a `text` for people and `own`: the run itself is on it.

        None as long as that is not known, which never is for long.
        """
        if self._pipe < 0:
            return self._found
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            if time.monotonic() < self._deadline:
                return None
            os.kill(self._child, signal.SIGKILL)  # not reaped yet: its end of the pipe is open
            self._said, data = b"", b""
        if data:
            self._said += data
            return None
        os.close(self._pipe)
        self._pipe = -1
        try:
            self._found = wire.loads(self._said.decode("ascii"))
        except ValueError:
            self._found = self._unchecked("the driver does not answer")
        return self._found

    def _unchecked(self, why: str) -> "List[Dict[str, Any]]":
        return [self._told(uuid, "could not be checked: %s" % why) for uuid in self._mine]

    def _told(self, uuid: str, text: str, own: bool = False) -> "Dict[str, Any]":
        return {"text": "GPU %s %s" % (self._known[uuid]["label"], text), "own": own}

    # -- in the child

    def _watch(self, pipe: int, started: "Dict[int, int]") -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            close_all_but(pipe)  # leases and ports must not last for as long as a sick driver keeps this
            look = Look()
            deadline = time.monotonic() + FREE_S
            while True:
                uses = look.uses(self._mine)
                left = {uuid: self._left(uuid, use, started) for uuid, use in uses.items()}
                awaited = [uuid for uuid in left if left[uuid] and "error" not in uses[uuid]]
                if not awaited or time.monotonic() >= deadline:
                    break
                time.sleep(PAUSE_S)
            write_all(pipe, wire.dumps([told for told in left.values() if told]).encode("ascii"))
        except BaseException:  # the last line of defence: this must reach agent.log
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)

    def _left(
        self, uuid: str, use: "Dict[str, Any]", started: "Dict[int, int]"
    ) -> "Optional[Dict[str, Any]]":
        """What is on that card still; None when it is as free as it was before the run."""
        if "error" in use:
            return self._told(uuid, "could not be checked: %s" % use["error"])
        before = self._known[uuid]
        fresh = [
            process
            for process in use["processes"]
            if process["kind"] == "compute" and process["pid"] not in before["pids"]
        ]
        mine = [process for process in fresh if self._own(process["pid"], started)]
        if before["shared"]:  # what others do on it is theirs
            fresh = mine
        if fresh:
            told = ", ".join(_describe(process, process in mine) for process in fresh)
            return self._told(uuid, "is still in use by " + told, bool(mine))
        if use["memory_used_bytes"] > before["used"] and not before["shared"]:
            used = use["memory_used_bytes"] / 2.0**30
            return self._told(uuid, "has %.1f GiB in use, and no process is visible on it" % used)
        return None

    def _own(self, pid: int, started: "Dict[int, int]") -> bool:
        """Whether that is a process of this run: one that it had, dead or alive, or one that carries its mark."""
        now = processes.read(pid)
        if now is None:
            return pid in started
        return now.start == started.get(pid) or bool(processes.marked([now], self._run))


def _describe(process: "Dict[str, Any]", own: bool) -> str:
    told = "%spid %d" % ("this run's " if own else "", process["pid"])
    if process["user"]:
        told += " of %s" % process["user"]
    if process["command"]:
        told += ", %s" % process["command"][:80]
    try:
        with open("/proc/%d/stat" % process["pid"], "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        state = "Z" if own else "hidden"
    return told + (" (%s)" % STATES[state] if state in STATES else "")
