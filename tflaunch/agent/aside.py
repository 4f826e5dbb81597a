"""Work that takes its time, in a process of its own: the agent's loop never waits for it."""

import os

from tflaunch.agent import processes
from tflaunch.agent.files.rundir import HostError, explain
from tflaunch.agent.guard import close_all_but
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from tflaunch.agent.files.rundir import RunDirectory


class Aside:
    """A forked process that does `work` and ends; the loop reaps it, and says so with `reaped`.

    It can be stopped: then SystemExit is raised in the work, which is to clear up behind itself.
    """

    def __init__(self, work: "Callable[[], None]") -> None:
        self.alive = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it may be stopped as it begins
        try:
            self.pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, _leave)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.setsid()
            close_all_but()  # leases and ports are the agent's: they must end with it
            work()
        except SystemExit:
            os._exit(1)
        except BaseException:  # it must reach agent.log, and nothing above
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def reaped(self, pid: int) -> bool:
        """Whether that process was this one, which lived until now: later its number may be another one's."""
        ended = self.alive and pid == self.pid
        self.alive = self.alive and not ended
        return ended

    def stop(self) -> None:
        """Have it clear up and end."""
        process = processes.read(self.pid) if self.alive else None
        if process:
            processes.send(process, signal.SIGTERM)


class Errand(Aside):
    """Such work that brings something back: a dict, left in a file of the run directory."""

    def __init__(self, directory: "RunDirectory", name: str, work: "Callable[[], Dict[str, Any]]") -> None:
        """`name` is the file's; `work` may raise HostError and OSError."""
        self._directory = directory
        self._name = name
        directory.write(name, {})
        super().__init__(lambda: directory.write(name, self._told(work)))

    def _told(self, work: "Callable[[], Dict[str, Any]]") -> "Dict[str, Any]":
        try:
            return work()
        except HostError as error:
            told = error
        except OSError as error:
            told = explain(error, self._directory.path)
        return {"failed": told.reason, "hint": told.hint}

    def result(self) -> "Dict[str, Any]":
        """What it has brought, once it was reaped; raises HostError."""
        told = self._directory.read(self._name)
        if told and "failed" not in told:
            return told
        raise HostError(
            told.get("failed") or "what prepares the tasks was killed (is there memory enough?)",
            told.get("hint", "see agent.log there"),
        )


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what clears up is not to be cut short
    raise SystemExit
