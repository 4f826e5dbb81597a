"""How the run uses its GPUs: `gpus` and `fabrics` of a `looked` message.

    gpus         UUID -> use (percent), power_w, limit_w: null where the GPU does not say, as MIG instances do not;
                 slowed_by, what holds its clocks down just now (gpu_probe.SLOWED_BY); heat_ms, how long heat has done
                 so since the driver was loaded, energy_j, what it has used since then, and lanes, of PCIe, [now, at
                 most]: null where NVML does not tell; memory_bytes; pids of the
                 processes on it, null where a container or the driver hides them; error
    gpus_age_s   how long ago NVML was asked
    fabrics      [bytes sent, bytes received] by all InfiniBand ports of this host, null without one

A child process asks NVML (agent/gpus/gpu_driver.py): a call into a sick driver may take long, or never come back.
"""

import os
import time

from tflaunch import gpu_probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from tflaunch.agent.gpus.gpu_driver import DeviceAnswer, GpuDriver

WITHIN_S = 15.0  # how long all GPUs together may take
LEAST_S = 1.0  # between two questions
OPEN_S = 10.0  # who asks more rarely does not keep NVML open between two questions
MOST = 2**56  # what a port can have counted
INFINIBAND = "/sys/class/infiniband"


class GpuUse:
    """What NVML last said of these GPUs, each a UUID and a label."""

    def __init__(self, driver: "GpuDriver", devices: "List[Tuple[str, str]]") -> None:
        self._driver = driver
        self._devices = devices
        self._every_s = 0.0
        self._asked_at = -1e9
        self._found = {}  # type: Dict[str, Dict[str, Any]]
        self._found_at = 0.0

    def look(self, every_s: float) -> "Dict[str, Any]":
        """The fields of `looked`; ask NVML anew if that was `every_s` ago: a later look has the answer."""
        now = time.monotonic()
        self._every_s = max(LEAST_S, every_s)
        if self._devices and not self._driver.busy and now - self._asked_at >= self._every_s:
            self._asked_at = now
            self._driver.ask({"ask": "loads", "devices": self._devices}, WITHIN_S, self._answered)
        fields = {"fabrics": fabric_bytes()}  # type: Dict[str, Any]
        if self._found:
            fields.update(gpus=self._found, gpus_age_s=round(now - self._found_at, 1))
        return fields

    def _answered(self, answer: "DeviceAnswer") -> None:
        if self._every_s > OPEN_S:
            self._driver.rest()
        problem = answer.problem or answer.said.get("note") or "NVML is not there"
        self._found_at = self._asked_at
        self._found = {
            uuid: answer.found.get(key) or gpu_probe.unloaded(answer.failed.get(key, problem))
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
