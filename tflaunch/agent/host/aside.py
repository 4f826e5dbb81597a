"""Long work, done in a process of its own, so that the agent's loop never waits for it."""

import os

from tflaunch.agent.host import processes
from tflaunch.agent.host.foreign import close_all_but
from tflaunch.agent.host.rundir import HostError, explain
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from tflaunch.agent.host.rundir import RunDirectory


class Aside:
    """A forked process that does `work` and ends; the loop reaps it, then calls `reaped`.

    `stop` raises SystemExit inside `work`, which must then clean up.
    """

    def __init__(self, work: "Callable[[], None]", kept: int = -1) -> None:
        """`kept` is the one descriptor that the process has of the agent's, besides the standard streams."""
        self.alive = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # `stop` may come while it starts
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
            close_all_but(
                kept
            )  # the child must not hold the agent's leases and ports after the agent has ended
            work()
        except SystemExit:
            os._exit(1)
        except BaseException:  # write it to agent.log; this child must not go on in the caller's code
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def reaped(self, pid: int) -> bool:
        """Whether the child process that has ended was this one; from then on another process may get its pid."""
        ended = self.alive and pid == self.pid
        self.alive = self.alive and not ended
        return ended

    def stop(self) -> None:
        """Have the process clean up and end."""
        process = processes.read(self.pid) if self.alive else None
        if process:
            processes.send(process, signal.SIGTERM)


class Errand(Aside):
    """An Aside whose work returns a dict, which comes back in a file of the run directory."""

    def __init__(self, directory: "RunDirectory", name: str, work: "Callable[[], Dict[str, Any]]") -> None:
        """`name` is the file's name; `work` may raise HostError and OSError."""
        self._directory = directory
        self._name = name
        directory.write(name, {})
        super().__init__(lambda: directory.write(name, self._outcome_of(work)))

    def _outcome_of(self, work: "Callable[[], Dict[str, Any]]") -> "Dict[str, Any]":
        try:
            return work()
        except HostError as error:
            failure = error
        except OSError as error:
            failure = explain(error, self._directory.path)
        return {"failed": failure.reason, "hint": failure.hint}

    def result(self) -> "Dict[str, Any]":
        """What the work has returned; call it after the process was reaped.  Raises HostError."""
        result = self._directory.read(self._name)
        if result and "failed" not in result:
            return result
        raise HostError(
            result.get("failed")
            or "the process that prepares the tasks was killed (is there memory enough?)",
            result.get("hint", "see agent.log there"),
        )


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
    raise SystemExit
