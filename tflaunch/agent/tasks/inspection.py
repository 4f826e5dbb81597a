"""What every thread of a task waits in, from /proc: the `tasks` of an `inspected` message, task -> its processes.

pid, name    of the process: the program first, then what it has started, at most PROCESSES of them
threads      [[tid, name, state, kernel function, processor time in s]], at most THREADS of them; the function is
             "" for a thread that runs, and where the kernel hides it
stacks       null: nobody has asked for them, or `why_none`
"""

import os

from tflaunch.agent import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional

    from tflaunch.agent.tasks.task import Task

PROCESSES = 16
THREADS = 256


def inspect(tasks: "Iterable[Task]") -> "Dict[str, List[Dict[str, Any]]]":
    """What the processes of every task that lives are doing, thread by thread."""
    living = [task for task in tasks if task.alive and task.released_at is not None and task.process]
    every = processes.every() if living else {}
    found = {}
    for task in living:
        root = task.root
        tree = ([every[root]] if root in every else []) + processes.descendants(root, every)
        found[task.id] = [
            {
                "pid": each.pid,
                "name": each.name,
                "threads": _threads(each.pid),
                "stacks": None,
                "why_none": "",
            }
            for each in tree[:PROCESSES]
        ]
    return found


def _threads(pid: int) -> "List[List[Any]]":
    try:
        numbers = sorted(map(int, os.listdir("/proc/%d/task" % pid)))
    except OSError:
        return []  # it has ended meanwhile
    threads = (_thread(pid, tid) for tid in numbers[:THREADS])
    return [thread for thread in threads if thread is not None]


def _thread(pid: int, tid: int) -> "Optional[List[Any]]":
    place = "/proc/%d/task/%d/" % (pid, tid)
    try:
        with open(place + "stat", "rb") as stat:
            before, _, rest = stat.read().rpartition(b")")
        fields = rest.split()
        used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
    try:
        with open(place + "wchan") as wchan:
            function = wchan.read().strip()
    except OSError:
        function = ""
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return [tid, name, fields[0].decode("ascii"), "" if function == "0" else function, round(used_s, 2)]
