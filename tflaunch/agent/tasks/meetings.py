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
        """See that one is served at the port of this task, if the tasks of its program meet there."""
        request = task.request
        if not request.get("rendezvous") or task.id in self._there:
            return
        from tflaunch.agent.tasks.rendezvous import Rendezvous
        from tflaunch.frameworks.horovod import RENDEZVOUS_PORT

        port = int(request["env"][RENDEZVOUS_PORT])
        try:
            self._there[task.id] = Rendezvous(port, request["rendezvous"])
        except OSError as error:  # the tasks find nobody there, and say so
            note("port %d, for the rendezvous of %s: %s" % (port, task.id, error))

    def ended(self, task: str) -> None:
        """An attempt of this task is over: what comes now is of the next one.

        Not only when that begins here: on other hosts it may begin earlier, and what they have written must stay.
        """
        try:
            if task in self._there:
                self._there[task].renew()
        except OSError as error:
            del self._there[task]
            note("the rendezvous of %s: %s" % (task, error))

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
