"""What this host does beside the run: the `machine` of a `looked` message.

cores     processors of the host
swapped   bytes moved to and from its swap since it started
others    [[pid, name, cores]]: processes that are not the run's and have used most of late, at most OTHERS; only for a
          viewer to whom the way is encrypted
"""

import os
import time

from tflaunch.agent.host.processes import contents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, List, Optional

    from tflaunch.agent.host.processes import Process

OTHERS = 3
LEAST = 0.1  # of a core: who uses less slows nobody down


class Load:
    """Compares each process with what it was when it was last read."""

    def __init__(self) -> None:
        self._read = {}  # type: Dict[tuple[int, int], tuple[Process, float]]  # by pid and start; and when
        self._others = []  # type: List[List[Any]]

    def look(
        self, every: "Optional[Dict[int, Process]]", own: "Container[int]", private: bool
    ) -> "Dict[str, Any]":
        """The fields above; `every` are all processes of the host, None if not all are read; `own` the run's pids."""
        if every is not None:
            self._compare(every, own)
        machine = {"cores": os.cpu_count() or 0, "swapped": swapped()}  # type: Dict[str, Any]
        if private:
            machine["others"] = self._others
        return machine

    def _compare(self, every: "Dict[int, Process]", own: "Container[int]") -> None:
        now, second = time.monotonic(), os.sysconf("SC_CLK_TCK")
        before, self._read = self._read, {}
        used = []  # type: List[tuple[float, int, str]]
        for each in every.values():
            key = (each.pid, each.start)
            was, at = before.get(key, (each, now))
            # One that rests is handed on as it was (host_processes.py): its next reading counts from this one.
            self._read[key] = (each, at if was is each else now)
            cores = (each.ticks - was.ticks) / second / (now - at) if now > at else 0.0
            if cores >= LEAST and each.pid not in own:
                used.append((cores, each.pid, each.name))
        used.sort(reverse=True)
        self._others = [[pid, name, round(cores, 2)] for cores, pid, name in used[:OTHERS]]


def swapped(path: str = "/proc/vmstat") -> int:
    """Bytes that have been swapped in and out; 0 where /proc does not tell."""
    try:
        text = contents(path)
        words = [text.partition(b"\n" + name)[2].split(None, 1)[:1] for name in (b"pswpin ", b"pswpout ")]
        return sum(int(word) for each in words for word in each) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
