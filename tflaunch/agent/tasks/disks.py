"""What the disks of this host do, and for what its programs wait: more fields of the `machine` of a `looked` message.

disks         name -> [reads and writes, their bytes, ms in which it had any to do: all since it is there; its
              model, or what begins its name]: of whole disks that have done some, at most MOST, the busiest
pressure      `cpu`, `io`, `memory` -> ms in which at least one program of the host could not go on for want of it,
              since its start; from the kernel's PSI, empty without
own_pressure  the same of the agent's own cgroup, where it has one: the slot's, or the container's; left out where tasks
              run in containers, whose engine puts them elsewhere
"""

import os

from tflaunch.agent.host.processes import contents
from tflaunch.agent.tasks.oom_kills import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

MOST = 16
SECTOR = 512  # bytes, whatever the disk has
NO_DISKS = ("loop", "ram", "zram", "sr", "fd")  # and no part of one
RESOURCES = ("cpu", "io", "memory")


class Disks:
    """From look to look."""

    def __init__(self, stats: str = "/proc/diskstats", system: str = "/sys/block", own: str = "") -> None:
        self._stats = stats
        self._system = system
        self._models = {}  # type: Dict[str, Optional[str]]  # None: no whole disk
        self._own = own  # the place of the agent's cgroup; "": not asked yet

    def look(self, contained: bool = False) -> "Dict[str, Any]":
        """The fields above, as far as the kernel tells; `contained`: tasks run in containers."""
        seen = {"disks": self._disks(), "pressure": pressures("/proc/pressure")}  # type: Dict[str, Any]
        if not contained:
            self._own = self._own or cgroup()
            seen["own_pressure"] = pressures(self._own, ".pressure")
        return seen

    def _disks(self) -> "Dict[str, List[Any]]":
        found = []  # type: List[Any]
        try:
            for line in contents(self._stats).decode("ascii", "replace").splitlines():
                words = line.split()
                name, numbers = words[2], list(map(int, words[3:14]))
                if name not in self._models:
                    self._models[name] = self._model(name)
                model, count = self._models[name], numbers[0] + numbers[4]
                if model is not None and count:
                    found.append(
                        (numbers[9], name, [count, SECTOR * (numbers[2] + numbers[6]), numbers[9], model])
                    )
        except (OSError, ValueError, IndexError):
            return {}
        return {name: numbers for _, name, numbers in sorted(found, reverse=True)[:MOST]}

    def _model(self, name: str) -> "Optional[str]":
        if name.startswith(NO_DISKS) or not os.path.isdir("%s/%s" % (self._system, name)):
            return None
        try:
            model = contents("%s/%s/device/model" % (self._system, name)).decode("utf-8", "replace").strip()
        except OSError:
            model = ""
        return model[:80] or name.rstrip("0123456789")[:2]


def pressures(directory: str, ending: str = "") -> "Dict[str, int]":
    """Of each resource what its file there counts, `cpu` or `cpu` with that ending; without those that have none."""
    found = {}
    for name in RESOURCES:
        try:
            some = contents(os.path.join(directory, name + ending)).partition(b"\n")[0]
            found[name] = int(some.rpartition(b"total=")[2]) // 1000
        except (OSError, ValueError):  # no PSI
            pass
    return found
