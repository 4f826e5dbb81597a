"""The Python stacks of tasks that go on, the latest of each task: how one process is asked, asked.py says."""

from tflaunch.agent.tasks.asked import Asked, StacksAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Tuple

    from tflaunch.agent.host import processes

    Key = Tuple[int, int]  # pid, start time

AGAIN_S = 600.0  # a task is asked for its stacks at most so often ...
ON_DEMAND_S = 4.0  # ... and by a user, or a rule that knows when to ask


class _Dump:
    """The stacks of one attempt of a task: of its processes that answer."""

    def __init__(self, tree: "List[processes.Process]", now: float, shown: "Callable[[str], str]") -> None:
        self.began = now
        self.signals = False  # somebody asks who wants that, too
        self.by_process = {}  # type: Dict[Key, Tuple[StacksAnswer, float]]  # and when it came
        self._waits = []  # type: List[Asked]
        for process in tree:
            if process.state in ("T", "t"):
                self._keep(process, StacksAnswer(None, "it is stopped (state %s)" % process.state), now)
                continue
            try:
                self._waits.append(Asked(process, now, shown))
            except OSError as error:
                self._keep(process, StacksAnswer(None, str(error)), now)

    def _keep(self, process: "processes.Process", answer: "StacksAnswer", now: float) -> None:
        self.by_process[process.pid, process.start] = answer, now

    def tick(self, now: float) -> bool:
        """Take what has come; returns whether all is there."""
        for asked in list(self._waits):
            answer = asked.tick(now, self.signals)
            if answer is not None:
                self._waits.remove(asked)
                asked.close()
                self._keep(asked.process, answer, now)
        return not self._waits


class Dumps:
    """The dumps of all tasks of the run on this host, the latest of each task."""

    def __init__(self) -> None:
        self._latest = {}  # type: Dict[Tuple[str, int], _Dump]  # by task and attempt
        self._pending = []  # type: List[Tuple[List[Tuple[str, int]], Callable[[], None]]]

    def ask(
        self,
        trees: "Dict[Tuple[str, int], List[processes.Process]]",
        shown: "Callable[[str], str]",
        on_demand: bool,
        now: float,
        then: "Callable[[], None]",
        *,
        signals: bool = True,
    ) -> None:
        """Ask these processes, by task and attempt, for their stacks; call `then` once all have answered, or won't.

        A task that has been asked a short while ago (AGAIN_S, ON_DEMAND_S), or has not answered yet, is not asked
        again.  `shown` says how to write the path of a file.  Without `signals`, none is sent for this question.
        """
        for key, tree in trees.items():
            last = self._latest.get(key)
            again_s = ON_DEMAND_S if on_demand else AGAIN_S
            # Rules ask every few seconds: a slow answer that began anew each time would never come.
            if last is None or (last.tick(now) and now - last.began >= again_s):
                last = self._latest[key] = _Dump(tree, now, shown)
            last.signals = last.signals or signals
        self._pending.append((list(trees), then))
        self.tick(now)

    @property
    def waits(self) -> bool:
        """Whether `tick` has to come again soon."""
        return bool(self._pending)

    def tick(self, now: float) -> None:
        """Take the answers that have come, and pass on those that are complete."""
        if not self._pending:
            return
        ready = {key for key, dump in self._latest.items() if dump.tick(now)}
        for pending in list(self._pending):
            if ready.issuperset(pending[0]):
                self._pending.remove(pending)
                pending[1]()

    def of(
        self, key: "Tuple[str, int]", process: "processes.Process", now: float
    ) -> "Tuple[StacksAnswer, float]":
        """The last answer of that process, and its age in s."""
        dump = self._latest.get(key)
        last = dump.by_process.get((process.pid, process.start)) if dump is not None else None
        if last is None:
            asked_s = now - dump.began if dump is not None else 0.0
            return StacksAnswer(None, "it began after the task was asked, %.0f s ago" % asked_s), 0.0
        return last[0], round(max(0.0, now - last[1]), 1)
