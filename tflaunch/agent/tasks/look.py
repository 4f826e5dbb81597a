"""What each task on this host is doing now, from /proc and its log: the `tasks` of a `looked` message.

    listens      whether any process listens on the task's port; null when the task has none
    connected    [[address, port]]: peers that the task has connected to; null when /proc hides its sockets
    calling      [[address, port]]: peers that the task tries to connect to
    processes    [[pid, name, state]]: the program first, then what it has started, at most PROCESSES of them;
                 the state is a letter, as in ps(1)
    waits_in     the kernel function that the program waits in, "" when it runs or the kernel hides that
    cpu_s        processor time that all these processes have used so far
    io           bytes that they have read and written so far (files, pipes; hardly sockets); null when hidden
    wrote        those of them that they have written
    turns        how often the first threads of all these processes have stopped waiting
    quiet_s      seconds since the task last wrote to its log, or since its start
    log_bytes    how much the task has written
    says         the last line that the task has written
    flows        each connection of the task, to either side: [peer's address, peer's port, own port, bytes that the
                 peer has acknowledged, bytes received, bytes in the send queue, retransmits of the oldest segment that
                 is not acknowledged, round-trip time in ms]; null when the kernel does not tell
    listens_on   ports that the task itself listens on; null when /proc hides its sockets
    paces        of the first of these connections, in their order: [segments that were sent again, segments with data,
                 ms since data was last sent, ms since data was last received]
    least_rtts   of the same connections: the shortest round trip of the last minutes in ms; 0: the kernel does not tell
    signs        sign -> [lines with it in the log, the last one, its age in s] (tflaunch.diagnosis.signs)

agent/tasks/pace.py says what else there is; agent/host/load.py and agent/tasks/disks.py say what there is of the host.

Under `calling` is also the name server that a task asks (port 53).

A refused connect leaves no trace in /proc: a task that repeats such connects shows nothing under `calling`.
"""

import os
import time

from tflaunch.agent.host.host_processes import HostProcesses
from tflaunch.agent.host.load import Load
from tflaunch.agent.host.processes import contents
from tflaunch.agent.net.connections import SocketTable
from tflaunch.agent.net.socket_owners import SocketOwners
from tflaunch.agent.tasks.disks import Disks
from tflaunch.agent.tasks.log_signs import LogSigns, shorten
from tflaunch.agent.tasks.pace import TAIL_BYTES, DiskWaits, Waits, pace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from tflaunch.agent.host.processes import Process
    from tflaunch.agent.net.connections import Connection, Sockets
    from tflaunch.agent.tasks.task import Task

PROCESSES = 16
PEERS = 1024  # connections of each task in one message ...
PEERS_IN_ALL = 8192  # ... and of all tasks together: a message has its limit
FLOWS, FLOWS_IN_ALL = 512, 4096  # the same for what takes more room
PACES, PACES_IN_ALL = 64, 1024
CALLS, CALLS_IN_ALL = 64, 2048
PORTS = 64
LINE_BYTES = 300


class Looks:
    """Looks at the tasks of this host again and again, and remembers what need not be read each time."""

    def __init__(self) -> None:
        self._processes = HostProcesses()
        self._owners = SocketOwners()
        self._waits = Waits()
        self._disk_waits = DiskWaits()
        self._disks = Disks()
        self._load = Load()

    def look(
        self, tasks: "Iterable[Task]", private: bool
    ) -> "Tuple[Dict[str, Dict[str, Any]], Dict[str, Any]]":
        """What every released task that still lives is doing, from one reading of each table of /proc; and its host.

        The second has the fields of `looked` beside `tasks`.  Unless the way to the viewer is `private`, what tasks
        print is left out of both.  Raises OSError.
        """
        living = [task for task in tasks if task.alive and task.released_at is not None and task.process]
        if not living:
            return {}, {}
        of_roots = self._processes.take([task.root for task in living])
        trees = {task.id: of_roots[task.root] for task in living}
        ours = {each.pid for tree in trees.values() for each in tree}
        self._waits.begin(ours)
        self._disk_waits.begin(ours)
        found = {task.id: self._of_processes(task, trees[task.id]) for task in living}
        self._add_connections(living, trees, found)
        for task in living:
            if task.log_signs is None:
                task.log_signs = LogSigns(task.logs, task.logs.attempt)
            task.log_signs.read()
            found[task.id]["signs"] = task.log_signs.report(found[task.id]["quiet_s"])
        shorten([seen["signs"] for seen in found.values()])
        if not private:
            _for_another_host(found)
        ours.add(os.getpid())
        every = self._processes.every if self._processes.whole else None
        contained = any(task.request.get("container") for task in living)
        return found, {"machine": dict(self._load.look(every, ours, private), **self._disks.look(contained))}

    def _of_processes(self, task: "Task", tree: "List[Process]") -> "Dict[str, Any]":
        moved, written, on_disk = _io(tree)
        tail = task.logs.tail(task.logs.attempt, TAIL_BYTES)
        lines = tail.strip().splitlines()
        ticks = sum(each.ticks + each.reaped_ticks for each in tree)
        return {
            "processes": [[each.pid, each.name, each.state] for each in tree[:PROCESSES]],
            "waits_in": _waits_in(tree[0].pid) if tree else "",
            "cpu_s": round(ticks / float(os.sysconf("SC_CLK_TCK")), 2),
            "io": moved,
            "wrote": written,
            "quiet_s": round(_quiet_s(task), 1),
            "log_bytes": task.logs.size(task.logs.attempt),
            "says": lines[-1][:LINE_BYTES].decode("utf-8", "replace") if lines else "",
            "disk": self._disk_waits.of(tree, on_disk),
            **pace_of(tree, self._waits, tail.decode("utf-8", "replace")),
        }

    def _add_connections(
        self, living: "List[Task]", trees: "Dict[str, List[Process]]", found: "Dict[str, Dict[str, Any]]"
    ) -> None:
        """Add what the sockets say to what is `found` of each task."""
        table = SocketTable()
        self._owners.find(trees, table.inodes, self._processes.whole)
        owners, hidden = self._owners.tasks, self._owners.hidden
        there = table.of(owners)
        own = {task.id: [] for task in living}  # type: Dict[str, List[Connection]]
        for each in there.connections:
            own[owners[each.inode]].append(each)
        listening = {port for _, port in there.listening}
        for task in living:
            port, seen = int(task.request.get("port") or 0), found[task.id]
            seen["listens"] = port in listening if port else None
            mine = {each for inode, each in there.listening if owners.get(inode) == task.id}
            seen["listens_on"] = None if task.id in hidden else sorted(mine)[:PORTS]
            seen.update(_of_connections(own[task.id], port, there, len(living)))
            if task.id in hidden:
                seen["connected"] = seen["flows"] = None
                seen["paces"] = seen["least_rtts"] = []


def _for_another_host(seen: "Dict[str, Dict[str, Any]]") -> None:
    """Leave out of the looks what a task prints, but for signs of trouble, and of its loss the number.

    Nothing is encrypted between the hosts.
    """
    from tflaunch.diagnosis.hangs import waits_for
    from tflaunch.diagnosis.signs import LOSS, loss_in

    for look in seen.values():
        look["says"] = look["says"] if waits_for(look["says"]) else ""
        if LOSS in look["signs"]:
            look["signs"][LOSS][1] = loss_in(look["signs"][LOSS][1])


def _of_connections(own: "List[Connection]", port: int, there: "Sockets", tasks: int) -> "Dict[str, Any]":
    """`connected`, `calling` and `flows` of a task with that port, which others call; `tasks` share the message."""

    def shown(most: int, in_all: int) -> int:
        return min(most, in_all // tasks)

    peers = [{}, {}]  # type: List[Dict[tuple[str, int], None]]
    for each in own:
        if each.own_port != port:
            peers[each.calling][each.address, each.port] = None
    counted = [each for each in own if each.counted]
    # If not all can be shown, those that are in trouble, and then those that carry most.
    counted.sort(key=lambda each: (-each.retransmits, -each.queued, -each.acked - each.received))
    flows = [
        [each.address, each.port, each.own_port, *each.counts]
        for each in counted[: shown(FLOWS, FLOWS_IN_ALL)]
    ]
    paced = counted[: shown(PACES, PACES_IN_ALL)] if there.counted else []
    return {
        "connected": [list(peer) for peer in list(peers[0])[: shown(PEERS, PEERS_IN_ALL)]],
        "calling": [list(peer) for peer in list(peers[1])[: shown(CALLS, CALLS_IN_ALL)]],
        "flows": flows if there.counted else None,
        "paces": [each.pace for each in paced],
        "least_rtts": [each.least_rtt_ms for each in paced],
    }


def _waits_in(pid: int) -> str:
    try:
        function = contents("/proc/%d/wchan" % pid).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return "" if function == "0" else function


def _io(tree: "List[Process]") -> "Tuple[Optional[int], Optional[int], int]":
    """(bytes that they have read and written, those written, those of a disk); None where that is hidden."""
    read = written = on_disk = 0
    for process in tree:
        try:
            words = contents("/proc/%d/io" % process.pid).split()
            read, written = read + int(words[1]), written + int(words[3])
            on_disk += int(words[9]) + int(words[11])
        except PermissionError:
            return None, None, 0
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
    return read + written, written, on_disk


def _quiet_s(task: "Task") -> float:
    # By the steady clock if possible.  A task that has not written yet counts from its start.
    since_start = time.monotonic() - (task.released_at or 0.0)
    if not task.logs.size(task.logs.attempt):
        return since_start
    return max(0.0, time.time() - task.logs.written_at())
