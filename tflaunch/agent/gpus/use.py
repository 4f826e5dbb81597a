"""How the run uses its GPUs: `gpus`, `xids` and `fabrics` of a `looked` message.

    gpus         UUID -> use (percent), power_w, limit_w: null where the GPU does not say, as MIG instances do not;
                 slowed_by, what holds its clocks down just now (gpu_probe.SLOWED_BY); heat_ms, how long heat has done
                 so since the driver was loaded; energy_j, what it has used since then; of PCIe lanes and pcie, the
                 generation, each [now, at most]; nvlinks, MB/s of each NVLink that it has, 0: it is down, 1: it is up,
                 and does not tell; gpm, percent of the time since the last question in which SMs computed, tensor cores
                 did, and of the most that its memory can move: null where NVML does not tell; memory_bytes; pids of
                 the processes on it, null where a container or the driver hides them; error
    gpus_age_s   how long ago NVML was asked
    xids         [UUID, index of the GPU, Xid, how many seconds ago]: errors of these GPUs that the driver has told of
    fabrics      [bytes sent, bytes received] by all InfiniBand ports of this host, null without one

A child process asks NVML (agent/gpus/gpu_driver.py): a call into a sick driver may take long, or never come back.
Between two questions it keeps NVML open only while tasks here have GPUs: else somebody may want to reset them.
"""

import os
import time

from tflaunch.agent.gpus.gpu_loads import unloaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, List, Optional, Tuple

    from tflaunch.agent.gpus.freed import RunGpus
    from tflaunch.agent.gpus.gpu_driver import DeviceAnswer, GpuDriver

WITHIN_S = 15.0  # how long all GPUs together may take
LEAST_S = 1.0  # between two questions
OPEN_S = 10.0  # who asks more rarely does not keep NVML open for GPUs that no task has
XIDS = 32  # that are kept
XIDS_S = 1.0  # how long the end of a task may wait for those that have just come
PAUSE_S = 0.002
MOST = 2**56  # what a port can have counted
INFINIBAND = "/sys/class/infiniband"


class GpuUse:
    """What NVML last said of the run's GPUs."""

    def __init__(self, driver: "GpuDriver", gpus: "RunGpus") -> None:
        self._driver = driver
        self._gpus = gpus
        self._devices = []  # type: List[Tuple[str, str]]  # those of the last question: a sweep may get others
        self._keeps_open = False
        self._asked_at = -1e9
        self._found = {}  # type: Dict[str, Dict[str, Any]]
        self._found_at = 0.0
        self._patient_at = 0.0  # all tasks may end together: a slow driver is not waited for again before
        self._xids = []  # type: List[Tuple[str, int, int, float]]  # UUID, index of the GPU, Xid, when it was told

    def look(self, every_s: float, used: bool) -> "Dict[str, Any]":
        """The fields of `looked`; ask NVML anew if that was `every_s` ago: a later look has the answer.

        `used`: a task that lives has some of these GPUs.
        """
        now = time.monotonic()
        self._keeps_open = used or every_s <= OPEN_S
        if not self._driver.busy and now - self._asked_at >= max(LEAST_S, every_s):
            self._asked_at, self._devices = now, self._gpus.devices
            if self._devices:
                self._driver.ask({"ask": "loads", "devices": self._devices}, WITHIN_S, self._answered)
            else:
                self._found = {}
        self._take_xids()
        fields = {"fabrics": fabric_bytes()}  # type: Dict[str, Any]
        if self._found:
            fields.update(gpus=self._found, gpus_age_s=round(now - self._found_at, 1))
        if self._xids:
            mine = dict(self._devices)
            fields["xids"] = [[*told, round(now - at, 1)] for *told, at in self._xids if told[0] in mine]
        return fields

    def xids_of(self, uuids: "Container[str]", since: float) -> "List[List[int]]":
        """[index, Xid] of all that the driver has told of these GPUs since then (monotonic), up to now."""
        now = time.monotonic()
        if self._driver.stays_open and now >= self._patient_at:
            deadline = now + XIDS_S
            self._wait(deadline)  # another question is being answered
            if self._driver.stays_open and not self._driver.busy:
                self._driver.ask({"ask": "xids", "devices": []}, XIDS_S, lambda _: None)
                self._wait(deadline)
            if time.monotonic() >= deadline:
                self._patient_at = deadline + WITHIN_S
        self._take_xids()
        return [[index, number] for uuid, index, number, at in self._xids if uuid in uuids and at >= since]

    def _wait(self, deadline: float) -> None:
        while self._driver.busy and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            self._driver.tick(time.monotonic())

    def _take_xids(self) -> None:
        """Also those of a question that waits for a card which hangs."""
        now = time.monotonic()
        self._xids += [(uuid, index, number, now) for uuid, index, number in self._driver.xids]
        self._driver.xids = []
        del self._xids[:-XIDS]

    def _answered(self, answer: "DeviceAnswer") -> None:
        self._driver.keep_open(self._keeps_open and bool(self._gpus.devices))
        problem = answer.problem or answer.said.get("note") or "NVML is not there"
        self._found_at = self._asked_at
        self._found = {
            uuid: answer.found.get(key) or unloaded(answer.failed.get(key, problem))
            for key, (uuid, _) in enumerate(self._devices)
        }


def fabric_bytes(place: str = INFINIBAND) -> "Optional[List[int]]":
    """[bytes sent, bytes received] by all ports of the InfiniBand devices in `place`, as far as they count them."""
    found = None  # type: Optional[List[int]]
    try:
        devices = sorted(os.listdir(place))
    except OSError:
        return None
    for device in devices:
        ports = os.path.join(place, device, "ports")
        try:
            numbers = sorted(os.listdir(ports))
        except OSError:
            continue
        for number in numbers:
            try:
                words = []
                for name in ("port_xmit_data", "port_rcv_data"):
                    with open(os.path.join(ports, number, "counters", name)) as counter:
                        words.append(int(counter.read()))
            except (OSError, ValueError):
                continue
            if max(words) > MOST:  # a sick adapter answers with ones
                continue
            sent, received = found or (0, 0)
            found = [sent + 4 * words[0], received + 4 * words[1]]  # they count words of four bytes
    return found
