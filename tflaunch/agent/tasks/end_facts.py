"""Which facts an exit carries: what `exit_facts` finds, asked once and only where somebody will read it."""

from tflaunch.agent.host.journal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence

    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.tasks.task import Task


class EndFacts:
    """The facts of the ends of one run's tasks on this host."""

    def __init__(self, directory: "RunDirectory") -> None:
        self._directory = directory
        self._has_dialled = False
        self._oom_kills = {}  # type: Dict[str, int]  # counters at the first release
        self.xids_of = None  # type: Optional[Callable[[Sequence[str], float], List[List[int]]]]  # gpus/use.py

    def begin(self) -> None:
        """The first program is about to start."""
        from tflaunch.agent.tasks import oom_kills

        self._oom_kills = oom_kills.counters()

    def of(self, task: "Task", ending: bool) -> "Dict[str, Any]":
        """The `facts` of the end of that task, as a field of its `exit`; `ending`: the whole run ends here."""
        if task.code == 0 and (task.stopped or task.sweep_first or ending):
            return {}
        from tflaunch.agent.tasks import exit_facts

        try:
            if task.code != 0:
                found = exit_facts.facts(task, self._oom_kills)
                return {"facts": dict(found, **self._dialled(task, ending), **self._xids(task))}
            found = exit_facts.of_success(task, self._directory.run, self._directory.host)
            return {"facts": found} if found else {}
        except Exception as error:  # the end itself must be told, whatever this host's files look like
            note("the facts of the end of %s: %r" % (task.id, error))
            return {}

    def _xids(self, task: "Task") -> "Dict[str, Any]":
        """The `xids` of its facts."""
        gpus = task.request.get("gpus")
        if task.stopped or not gpus or self.xids_of is None:
            return {}
        found = self.xids_of(gpus, task.released_at or 0.0)
        return {"xids": found} if found else {}

    def _dialled(self, task: "Task", ending: bool) -> "Dict[str, Any]":
        """The `dialled` of its facts: for the first task that fails while the run goes on."""
        if task.stopped or ending or self._has_dialled:
            return {}
        from tflaunch.agent.tasks.dialled_again import dialled

        found = dialled(task)
        self._has_dialled = bool(found)
        return {"dialled": found} if found else {}
