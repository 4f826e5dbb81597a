"""The agent's parent: it waits until the agent ends, by kill -9 or otherwise, and sweeps what the agent leaves."""

import os

from tflaunch.agent import processes
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.agent.foreign import close_all_but
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


def leftovers(directory: RunDirectory, root: int, keep: "List[int]") -> "List[processes.Process]":
    """All processes below `root`, and all that carry the mark of this run and host, except the pids in `keep`."""
    all_processes = processes.every()
    found = {process.pid: process for process in processes.descendants(root, all_processes)}
    for process in processes.marked(all_processes.values(), directory.run, directory.host):
        found[process.pid] = process
    return [each for pid, each in found.items() if pid not in keep and not processes.left_behind(each)]


def under_guard(
    directory: RunDirectory, agent: "Callable[[], None]", failed: "Callable[[OSError], None]"
) -> None:
    """Fork a guard in a session of its own and, below it, a process that runs `agent`; returns at once.

    When a system error ends the agent, or keeps it from starting, the process that met the error calls `failed`
    with it.
    """
    try:
        guard = os.fork()
    except OSError as error:
        failed(error)
        return
    if guard:
        return
    agent_pid = 0
    try:
        _leave_session(os.path.join(directory.path, "agent.log"))
        processes.become_subreaper()
        agent_pid = os.fork()
        if agent_pid == 0:
            _run(agent, failed)
        close_all_but()
        _sweep_behind(agent_pid, directory)
    except BaseException as error:
        if isinstance(error, OSError) and not agent_pid:
            failed(error)
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


def _leave_session(log_path: str) -> None:
    """Leave the session, so that the channel's signals do not arrive here; send what is printed to the log."""
    os.setsid()
    os.chdir("/")
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _run(agent: "Callable[[], None]", failed: "Callable[[OSError], None]") -> None:
    """Run the agent and end this process; never returns."""
    try:
        agent()
    except BaseException as error:  # the last line of defence: agent.log must show this error
        if isinstance(error, OSError):
            failed(error)
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _sweep_behind(agent_pid: int, directory: RunDirectory) -> None:
    """Wait for the agent's end; kill what it left."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == agent_pid:
            break
    sweep = processes.Sweep(lambda: leftovers(directory, os.getpid(), [os.getpid()]), limit_s=30.0)
    if status or _has_children():  # otherwise the agent itself has swept
        sweep.run()
    if removed():
        return
    from tflaunch.agent.tasks import container

    left = container.remove(directory)
    directory.write("guard.json", {"swept": not (sweep.survivors or left)})
    directory.remove_socket()


def removed() -> bool:
    """Whether the directory of agent and guard is gone; a later agent may have made a new one at the same path."""
    return not os.fstat(1).st_nlink  # agent.log


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
