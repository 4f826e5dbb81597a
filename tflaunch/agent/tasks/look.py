"""What each task on this host is doing now, from /proc and its log: the `tasks` of a `looked` message.

    listens      whether any process listens on the task's port; null when the task has none
    connected    [[address, port]]: peers that the task has connected to; null when /proc hides its sockets
    calling      [[address, port]]: peers that the task tries to connect to
    processes    [[pid, name, state]]: the program first, then what it has started, at most PROCESSES of them;
                 the state is a letter, as in ps(1)
    waits_in     the kernel function that the program waits in, "" when it runs or the kernel hides that
    cpu_s        processor time that all these processes have used so far
    io           bytes that they have read and written so far (files, pipes; hardly sockets); null when hidden
    quiet_s      seconds since the task last wrote to its log, or since its start
    log_bytes    how much the task has written
    says         the last line that the task has written

A refused connect leaves no trace in /proc: a task that repeats such connects shows nothing under `calling`.
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
PEERS = 1024  # connections of each task in one message ...
PEERS_IN_ALL = 8192  # ... and of all tasks together: a message has its limit
LINE_BYTES = 300
ESTABLISHED, SYN_SENT, LISTEN = "01", "02", "0A"  # /proc/net/tcp


def look(tasks: "Iterable[Task]") -> "Dict[str, Dict[str, Any]]":
    """What every released task that still lives is doing, from one reading of each table of /proc."""
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
    found = {}
    for task in living:
        port, tree = ports[task.id], trees[task.id]
        found[task.id] = {
            "listens": port in listening if port else None,
            "connected": None if task.id in hidden else connected.get(task.id, []),
            "calling": calling.get(task.id, []),
            "processes": [[each.pid, each.name, each.state] for each in tree[:PROCESSES]],
            "waits_in": _waits_in(tree[0].pid) if tree else "",
            "cpu_s": round(sum(_cpu_s(each.pid) for each in tree), 2),
            "io": _io(tree),
            "quiet_s": round(_quiet_s(task), 1),
            "log_bytes": task.logs.size(task.logs.attempt),
            "says": _last_line(task),
        }
    return found


def _sockets(pid: int) -> "Optional[List[str]]":
    """The inodes of the sockets that a process has open; None when this user may not see them."""
    found = []
    try:
        descriptors = os.listdir("/proc/%d/fd" % pid)
    except PermissionError:
        return None
    except OSError:
        return []  # the process has ended meanwhile
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
    """(ports in state LISTEN, the peers that each task is connected to, and those that it calls).

    `owners` are tasks by the inode of their sockets, `ports` their own ports: connections to those are left out.
    """
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
            function = wchan.read().strip()
    except OSError:
        return ""
    return "" if function == "0" else function


def _cpu_s(pid: int) -> float:
    """Processor time of the process and of its children that have ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return float(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))


def _io(tree: "List[processes.Process]") -> "Optional[int]":
    moved = 0
    for process in tree:
        try:
            with open("/proc/%d/io" % process.pid) as table:
                counts = dict(line.split(": ", 1) for line in table)
            moved += int(counts["rchar"]) + int(counts["wchar"])
        except PermissionError:
            return None
        except (OSError, KeyError, ValueError):
            continue  # it has ended meanwhile
    return moved


def _quiet_s(task: "Task") -> float:
    # By the steady clock if possible.  A task that has not written yet counts from its start.
    since_start = time.monotonic() - (task.released_at or 0.0)
    if not task.logs.size(task.logs.attempt):
        return since_start
    return max(0.0, time.time() - task.logs.written_at())


def _last_line(task: "Task") -> str:
    lines = task.logs.tail(task.logs.attempt, 2 * LINE_BYTES).strip().splitlines()
    return lines[-1][:LINE_BYTES].decode("utf-8", "replace") if lines else ""
