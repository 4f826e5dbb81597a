"""Who has the ports that a run could not hold: the processes that listen there, and the runs that hold ports."""

import os

from tflaunch.agent.host import foreign, processes
from tflaunch.agent.net.connections import SocketTable, inodes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

MOST = 4  # ports, and runs, that are told


def holders(first: int, last: int, run: str) -> "List[str]":
    """Texts such as `22000: pid 77 (python3) of run a-k3f9x2` for what listens, and `run b-9zz123` for other runs.

    A run holds ports without listening, and no table of the kernel has those.  `run` is the one that asks.
    """
    try:
        return foreign.in_time(lambda: _holders(first, last, run)) or []
    except (foreign.Late, OSError):
        return []  # somebody has a process that keeps all who look at it waiting


def _holders(first: int, last: int, run: str) -> "List[str]":
    owners = {}  # type: Dict[int, str]  # inode -> text
    runs = {}  # type: Dict[str, None]
    for process in processes.every().values():
        served = _served(process.pid)
        if served and served != run:
            runs[served] = None
        for inode in inodes_of(process.pid) or ():
            owners[inode] = "pid %d (%s)%s" % (process.pid, process.name, _of_run(process.pid))
    there = {port: inode for inode, port in SocketTable().of(owners).listening if first <= port <= last}
    found = [
        "%d: %s" % (port, owners.get(there[port], "a process of somebody else")) for port in sorted(there)
    ]
    return found[:MOST] + ["run %s" % each for each in sorted(runs)[:MOST]]


def _served(pid: int) -> str:
    try:
        return processes.serves(foreign.beginning(pid, "cmdline", foreign.OTHERS_BYTES).split(b"\0")[:-1])
    except OSError:
        return ""


def _of_run(pid: int) -> str:
    mark = os.fsencode(processes.RUN_MARK + "=")
    marks = [os.fsdecode(each[len(mark) :]) for each in processes.environment(pid) if each.startswith(mark)]
    return " of run " + marks[0] if marks else ""
