"""Where the tasks of programs meet that need it (Horovod's): a rendezvous at the port of one task of each program."""

from tflaunch.agent.host.journal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from tflaunch.agent.tasks.rendezvous import Rendezvous
    from tflaunch.agent.tasks.task import Task


class Meetings:
    """The rendezvous of this host, by the task that has its port."""

    def __init__(self) -> None:
        self._there = {}  # type: Dict[str, Rendezvous]

    def serve(self, task: "Task") -> None:
        """Serve an empty one at the port of this task, if the tasks of its program meet there."""
        request = task.request
        if not request.get("rendezvous"):
            return
        from tflaunch.agent.tasks.rendezvous import Rendezvous
        from tflaunch.frameworks.horovod import RENDEZVOUS_PORT

        there, port = self._there.get(task.id), int(request["env"][RENDEZVOUS_PORT])
        try:
            if there is not None:
                there.renew()
            else:
                self._there[task.id] = Rendezvous(port, request["rendezvous"])
        except OSError as error:  # the tasks find nobody there, and say so
            self._there.pop(task.id, None)
            note("port %d, for the rendezvous of %s: %s" % (port, task.id, error))

    def reaped(self, pid: int) -> bool:
        """Whether the child process that has ended was one of these; the next start of its task has a new one."""
        for task, each in self._there.items():
            if each.reaped(pid):
                note("the rendezvous of %s has ended; the next start has a new one" % task)
                del self._there[task]
                return True
        return False

    def close(self) -> None:
        """End them all."""
        while self._there:
            self._there.popitem()[1].close()
