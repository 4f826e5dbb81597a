"""Work that takes its time, in a process of its own: the agent's loop never waits for it."""

import os
import signal

from tflaunch.agent import processes
from tflaunch.agent.guard import close_all_but

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Aside:
    """A forked process that does `work` and ends; the loop reaps it, and says so with `reaped`.

    It can be stopped: then SystemExit is raised in the work, which is to clear up behind itself.
    """

    def __init__(self, work: "Callable[[], None]") -> None:
        self.alive = True
        self.pid = os.fork()
        if self.pid:
            return
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, _leave)
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
        """Whether that process was this one."""
        self.alive = self.alive and pid != self.pid
        return pid == self.pid

    def stop(self) -> None:
        """Have it clear up and end."""
        process = processes.read(self.pid) if self.alive else None
        if process:
            processes.send(process, signal.SIGTERM)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what clears up is not to be cut short
    raise SystemExit
