"""The agent's parent: it only waits, and whatever ends the agent, kill -9 included, it sweeps what is left."""

import os

from tflaunch.agent import processes
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


def leftovers(directory: RunDirectory, root: int, keep: "List[int]") -> "List[processes.Process]":
    """Everything below `root`, and everything that carries this run's and host's mark, but for `keep`."""
    all_processes = processes.every()
    found = {process.pid: process for process in processes.descendants(root, all_processes)}
    for process in processes.marked(all_processes.values(), directory.run, directory.host):
        found[process.pid] = process
    return [process for pid, process in found.items() if pid not in keep]


def under_guard(
    directory: RunDirectory, agent: "Callable[[], None]", failed: "Callable[[OSError], None]"
) -> None:
    """Fork a guard in a session of its own and, below it, a process that runs `agent`; returns at once.

    `failed` is called, in whichever of these processes, with the error of the system that ends the agent or lets it
    not begin.
    """
    try:
        guard = os.fork()
    except OSError as error:
        failed(error)
        return
    if guard:
        return
    pid = 0
    try:
        os.setsid()
        os.chdir("/")
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(each, signal.SIG_IGN)
        log = os.open(
            os.path.join(directory.path, "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        processes.become_subreaper()
        pid = os.fork()
        if pid == 0:
            try:
                agent()
            except BaseException as error:  # the last line of defence: this must reach agent.log
                if isinstance(error, OSError):
                    failed(error)
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        close_all_but()
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                break
        sweep = processes.Sweep(lambda: leftovers(directory, os.getpid(), [os.getpid()]), limit_s=30.0)
        if status or _has_children():  # else the agent has swept
            sweep.run()
        if removed():
            return
        from tflaunch.agent.tasks import container

        left = container.remove(directory)
        directory.write("guard.json", {"swept": not (sweep.survivors or left)})
        directory.remove_socket()
    except BaseException as error:
        if isinstance(error, OSError) and not pid:
            failed(error)
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def removed() -> bool:
    """Whether the directory that agent and guard began in is gone; by now there may be one of the next agent."""
    return not os.fstat(1).st_nlink  # agent.log


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def close_all_but(kept: int = -1) -> None:
    """Close all but the standard streams and `kept`: what a parent holds open must not last longer by its child."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            try:
                os.close(int(name))
            except OSError:
                pass
