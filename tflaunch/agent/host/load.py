"""What this host does beside the run: the `machine` of a `looked` message.

cores     processors of the host
busy_s    processor time that all programs have used since it started
swapped   bytes moved to and from its swap since then
others    [[pid, name, cores]]: processes that are not the run's and have used most since the last look, at most
          OTHERS; only for a viewer to whom the way is encrypted
"""

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, List

    from tflaunch.agent.host.processes import Process

OTHERS = 3
LEAST = 0.1  # of a core: who uses less slows nobody down


class Load:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._ticks = {}  # type: Dict[tuple[int, int], int]  # pid and start -> clock ticks
        self._at = 0.0

    def look(self, every: "Dict[int, Process]", own: "Container[int]", private: bool) -> "Dict[str, Any]":
        """The fields above; `every` are all processes of the host, `own` the pids of the run's."""
        now = time.monotonic()
        passed_s = (now - self._at) * os.sysconf("SC_CLK_TCK")
        ticks = {(each.pid, each.start): each.ticks for each in every.values()}
        used = []  # type: List[tuple[float, int, str]]
        for each in every.values():
            before = self._ticks.get((each.pid, each.start))
            cores = (each.ticks - before) / passed_s if before is not None and passed_s > 0 else 0.0
            if cores >= LEAST and each.pid not in own:
                used.append((cores, each.pid, each.name))
        self._ticks, self._at = ticks, now
        used.sort(reverse=True)
        machine = {"swapped": swapped()}  # type: Dict[str, Any]
        if private:
            machine["others"] = [[pid, name, round(cores, 2)] for cores, pid, name in used[:OTHERS]]
        return machine


def swapped(path: str = "/proc/vmstat") -> int:
    """Bytes that have been swapped in and out; 0 where /proc does not tell."""
    pages = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith((b"pswpin ", b"pswpout ")):
                    pages += int(line.split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
