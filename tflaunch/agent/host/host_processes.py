"""The processes of this host from look to look: those that are not the run's are read again only now and then.

On a host with 650 processes, reading all takes 8 ms, and reading those of the run some tenths of one.  Most of the
others do nothing for hours, and are read more rarely still.
"""

import os

from tflaunch.agent.host import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Set

    from tflaunch.agent.host.processes import Process

WHOLE = 6  # every sixth look reads the processes of others, too ...
RESTING = 4  # ... and every fourth of these those that have used no time between two of them


class HostProcesses:
    """Takes one at each look."""

    def __init__(self) -> None:
        self.every = {}  # type: Dict[int, Process]  # all that the last one has read ...
        self.whole = False  # ... which are all there are
        self._others = set()  # type: Set[int]  # neither ours nor of any root
        self._none = set()  # type: Set[int]  # ... and no process: the kernel's own, or dead and not reaped
        self._number = self._wholes = 0
        self._before = {}  # type: Dict[int, Process]  # all of the last whole look
        self._idle = {}  # type: Dict[int, Process]  # others that have used no time since the whole look before

    def take(self, roots: "Iterable[int]") -> "Dict[int, List[Process]]":
        """Of each root its tree: the process of that pid first, then all below it; empty where it has ended."""
        wanted = list(roots)
        there = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
        # A container's program, and a task whose shell has waited, may have been another's until now.
        self.whole = self._number % WHOLE == 0 or not self._others.isdisjoint(wanted)
        self._number += 1
        resting = {}  # type: Dict[int, Process]
        if self.whole:
            if self._wholes % RESTING:
                resting = {
                    pid: each for pid, each in self._idle.items() if pid in there and pid not in wanted
                }
            self._wholes += 1
            self._others = self._none & there - set(wanted) | set(resting)
        read = {pid: processes.read(pid) for pid in there - self._others}
        self.every = {pid: process for pid, process in read.items() if process is not None}
        self.every.update(resting)
        self._none = self._none & there | {pid for pid, process in read.items() if process is None}
        children = processes.children_of(self.every)
        trees = {
            root: [self.every[root], *processes.below(root, children)] if root in self.every else []
            for root in wanted
        }
        ours = {each.pid for tree in trees.values() for each in tree}
        # What the agent has started may become a task.
        ours.update(each.pid for each in processes.below(os.getpid(), children))
        self._others = there - ours
        if self.whole:
            before, self._before = self._before, self.every
            self._idle = {
                pid: each for pid, each in self.every.items() if pid not in ours and _rests(before, each)
            }
        return trees


def _rests(before: "Dict[int, Process]", process: "Process") -> bool:
    """Whether it has used no time since then."""
    was = before.get(process.pid)
    return was is not None and (was.start, was.ticks) == (process.start, process.ticks)
