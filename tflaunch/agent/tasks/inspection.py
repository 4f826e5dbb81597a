"""What every thread of a task waits in, from /proc: the `tasks` of an `inspected` message, task -> its processes.

pid, name    of the process: the program first, then what it has started, at most PROCESSES of them
threads      [[tid, name, state, kernel function, processor time in s]], at most THREADS of them; the function is
             "" for a thread that runs, and where the kernel hides it
             without the thread that tells the stacks
stacks       [{main, frames: [[file, line, function]], count}]: the first thread of the program is `main` and comes
             first, `count` threads have the same frames, the innermost frame is first; a file below the task's working
             directory is relative.  null: nobody has asked for them, or `why_none`, which also says why the first
             thread is not among them
native       [[tid, cores]]: what keeps the interpreter's lock in native code, so that the others cannot tell
age_s        how old the stacks are: a task is not asked again and again
"""

import os

from tflaunch.agent.host import processes
from tflaunch.agent.tasks.asked import StacksAnswer
from tflaunch.agent.tasks.threads import waits_in
from tflaunch.in_task.stacks_site import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    from tflaunch.agent.tasks.live_stacks import Dumps
    from tflaunch.agent.tasks.task import Task

PROCESSES = 16
THREADS = 256
THREADS_READ = 2048
# A message has its limit, so all processes together have these:
THREADS_IN_ALL = 6144
STACK_CHARACTERS = 1 << 20


class Inspection:
    """One look at some tasks."""

    def __init__(self, tasks: "Iterable[Task]") -> None:
        self._tasks = [task for task in tasks if task.alive and task.released_at is not None and task.process]
        every = processes.every() if self._tasks else {}
        self._trees = {}  # type: Dict[str, List[processes.Process]]
        for task in self._tasks:
            root = task.root
            tree = ([every[root]] if root in every else []) + processes.descendants(root, every)
            self._trees[task.id] = tree[:PROCESSES]

    def ask(
        self, dumps: "Dumps", on_demand: bool, now: float, then: "Callable[[], None]", signals: bool = True
    ) -> None:
        """Ask the tasks for their stacks, except those that have been started without; then call `then`."""
        trees = {_key(task): self._trees[task.id] for task in self._tasks if task.request.get("stacks", True)}
        places = {
            each for task in self._tasks for place in task.places for each in (place, os.path.realpath(place))
        }
        dumps.ask(trees, lambda path: _below(path, places), on_demand, now, then, signals=signals)

    def answer(self, dumps: "Optional[Dumps]", now: float) -> "Dict[str, List[Dict[str, Any]]]":
        """What the processes of every task are doing, thread by thread; with the stacks in `dumps`."""
        number = max(1, sum(map(len, self._trees.values())))
        found = {}  # type: Dict[str, List[Dict[str, Any]]]
        for task in self._tasks:
            found[task.id] = []
            for each in self._trees[task.id]:
                threads = _threads(each.pid, min(THREADS, max(1, THREADS_IN_ALL // number)))
                shown = {"pid": each.pid, "name": each.name, "threads": threads}
                told, age_s = self._told(task, each, dumps, now)
                stacks = told.found and _fitting(told.found, STACK_CHARACTERS // number)
                more = {"stacks": stacks, "why_none": told.why_none, "age_s": age_s}  # type: Dict[str, Any]
                if told.native:
                    more["native"] = [list(thread) for thread in told.native]
                found[task.id].append(dict(shown, **more))
        return found

    def _told(
        self, task: "Task", process: "processes.Process", dumps: "Optional[Dumps]", now: float
    ) -> "Tuple[StacksAnswer, float]":
        """What the process has told of itself, and how old that is."""
        if dumps is None:
            return StacksAnswer(None), 0.0
        if not task.request.get("stacks", True):
            return StacksAnswer(None, "the run was started with --no-stacks"), 0.0
        return dumps.of(_key(task), process, now)


def _key(task: "Task") -> "Tuple[str, int]":
    return task.id, task.logs.attempt


def _below(path: str, places: "Iterable[str]") -> str:
    """The path without the working directory, where it leads into one."""
    return next((path[len(place) + 1 :] for place in places if path.startswith(place + "/")), path)


def _fitting(stacks: "List[Dict[str, Any]]", characters: int) -> "List[Dict[str, Any]]":
    """As many of these stacks as fit into so many characters; of the first one at least its innermost frames."""
    fitting = []  # type: List[Dict[str, Any]]
    for each in stacks:
        frames = []  # type: List[List[Any]]
        for frame in each["frames"]:
            characters -= len(frame[0]) + len(frame[2]) + 24
            if characters < 0 and len(frames) >= (3 if each["main"] else 0):
                break
            frames.append(frame)
        if not frames and not each["main"]:
            break
        fitting.append(dict(each, frames=frames))
    return fitting


def _threads(pid: int, most: int) -> "List[List[Any]]":
    try:
        numbers = sorted(map(int, os.listdir("/proc/%d/task" % pid)))
    except OSError:
        return []  # it has ended meanwhile
    read = (_thread(pid, tid) for tid in numbers[:THREADS_READ])
    threads = [thread for thread in read if thread is not None and thread[1] != NAME]
    if len(threads) > most:
        # The threads of TensorFlow's pools wait in a futex; what the others wait in tells more.
        threads.sort(key=lambda thread: (thread[0] != pid, thread[3].startswith("futex"), thread[0]))
    return threads[:most]


def _thread(pid: int, tid: int) -> "Optional[List[Any]]":
    place = "/proc/%d/task/%d/" % (pid, tid)
    try:
        with open(place + "stat", "rb") as stat:
            before, _, rest = stat.read().rpartition(b")")
        fields = rest.split()
        used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return [tid, name, fields[0].decode("ascii"), waits_in(pid, tid), round(used_s, 2)]
