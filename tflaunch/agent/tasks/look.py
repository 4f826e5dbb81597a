"""What each task on this host is doing now, as /proc and its log tell: the `tasks` of a `looked` message.

    listens      whether somebody listens on the task's port; null when it has none
    connected    [[address, port]]: peers that it has called and that have answered; null when they cannot be seen
    calling      [[address, port]]: peers that it calls and that have not answered yet
    processes    [[pid, name, state]]: the task itself first, then what it has started, at most PROCESSES of them;
                 state as ps(1) has it
    waits_in     the kernel function that the task itself waits in, "" when it runs or that is not told
    cpu_s        processor time that all of them have used up to now
    quiet_s      seconds since it wrote anything, or since its start
    log_bytes    how much it has written
    says         the last line that it has written

A connect that is refused leaves no trace in /proc: a task that calls such a peer shows nothing under `calling`.
"""

import os
import time

from tflaunch.agent import processes
from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

    from tflaunch.agent.tasks.task import Task

PROCESSES = 16
PEERS = 1024  # connections that are told of each task ...
PEERS_IN_ALL = 8192  # ... and of all together: a message has its limit
LINE_BYTES = 300
ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"  # /proc/net/tcp


def look(tasks: "Iterable[Task]") -> "Dict[str, Dict[str, Any]]":
    """Every task that was started and still lives; one reading of each table serves them all."""
    living = [task for task in tasks if task.alive and task.released_at is not None and task.process]
    every = processes.every() if living else {}
    trees = {}  # type: Dict[str, List[processes.Process]]
    owners = {}  # type: Dict[str, str]  # a socket's inode -> task
    hidden = set()  # type: Set[str]
    for task in living:
        root = task.root
        tree = [every[root]] if root in every else []
        trees[task.id] = tree + processes.descendants(root, every)
        for process in trees[task.id]:
            sockets = _sockets(process.pid)
            if sockets is None:
                hidden.add(task.id)
            else:
                owners.update(dict.fromkeys(sockets, task.id))
    ports = {task.id: int(task.request.get("port") or 0) for task in living}
    listening, connected, calling = _connections(owners, ports)
    told = {}
    for task in living:
        port, tree = ports[task.id], trees[task.id]
        told[task.id] = {
            "listens": port in listening if port else None,
            "connected": None if task.id in hidden else connected.get(task.id, []),
            "calling": calling.get(task.id, []),
            "processes": [[each.pid, each.name, each.state] for each in tree[:PROCESSES]],
            "waits_in": _waits_in(tree[0].pid) if tree else "",
            "cpu_s": round(sum(_cpu_s(each.pid) for each in tree), 2),
            "quiet_s": round(_quiet_s(task), 1),
            "log_bytes": task.logs.size(task.logs.attempt),
            "says": _last_line(task),
        }
    return told


def _sockets(pid: int) -> "Optional[List[str]]":
    """The inodes of the sockets that a process has open; None when that may not be seen."""
    found = []
    try:
        descriptors = os.listdir("/proc/%d/fd" % pid)
    except PermissionError:
        return None
    except OSError:
        return []  # it has ended meanwhile
    for each in descriptors:
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, each))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(target[8:-1])
    return found


def _connections(
    owners: "Dict[str, str]", ports: "Dict[str, int]"
) -> "Tuple[Set[int], Dict[str, List[List[Any]]], Dict[str, List[List[Any]]]]":
    """(ports that are listened on, whom each task is connected to, whom it calls); what called it is left out."""
    listening = set()  # type: Set[int]
    connected = {}  # type: Dict[str, Dict[Tuple[str, int], None]]
    calling = {}  # type: Dict[str, Dict[Tuple[str, int], None]]
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as table:
                next(table)
                for line in table:
                    fields = line.split()
                    state = fields[3]
                    local_port = int(fields[1].rpartition(":")[2], 16)
                    if state == LISTEN:
                        listening.add(local_port)
                    elif state in (ESTABLISHED, SYN_SENT):
                        owner = owners.get(fields[9])
                        if owner is not None and local_port != ports[owner]:
                            there = connected if state == ESTABLISHED else calling
                            there.setdefault(owner, {})[_endpoint(fields[2])] = None
        except (OSError, StopIteration):
            continue  # no IPv6 here
    most = min(PEERS, PEERS_IN_ALL // max(1, len(ports)))
    shown = [
        {owner: [list(peer) for peer in list(peers)[:most]] for owner, peers in there.items()}
        for there in (connected, calling)
    ]
    return listening, shown[0], shown[1]


def _endpoint(text: str) -> "Tuple[str, int]":
    """`0100007F:1F90` -> ("127.0.0.1", 8080): words of 32 bits in this machine's order."""
    import sys

    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[start : start + 8]) for start in range(0, len(address), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    packed = b"".join(words)
    if packed[:12] == bytes(10) + b"\xff\xff":  # IPv4 over an IPv6 socket
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


def _waits_in(pid: int) -> str:
    try:
        with open("/proc/%d/wchan" % pid) as wchan:
            told = wchan.read().strip()
    except OSError:
        return ""
    return "" if told == "0" else told


def _cpu_s(pid: int) -> float:
    """Of the process, and of its children that have ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return float(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))


def _quiet_s(task: "Task") -> float:
    """By the clock that runs steadily, as far as it goes: a log that was never written is as old as the task."""
    since_start = time.monotonic() - (task.released_at or 0.0)
    if not task.logs.size(task.logs.attempt):
        return since_start
    return max(0.0, time.time() - task.logs.written_at())


def _last_line(task: "Task") -> str:
    lines = task.logs.tail(task.logs.attempt, 2 * LINE_BYTES).strip().splitlines()
    return lines[-1][:LINE_BYTES].decode("utf-8", "replace") if lines else ""
