"""The agent's parent: it waits until the agent ends, by kill -9 or otherwise, and purges what the agent leaves.

An agent may also hang: stopped, or waiting for a disk or a driver that never answers.  So it gives its guard signs of
life through a pipe; one that gives none for the lease of the run is ended together with its tasks.
"""

import os
import select
import struct
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.foreign import close_all_but
from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import CONTAINERS, RunDirectory
from tflaunch.protocol.light_stdlib import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional

FIRST_LEASE_S = 60.0  # until the first launcher says how long the lease of the run is
# However short the lease is: one turn of an agent's loop may take 0.5 s, and more on a busy host.
LEAST_S = 2.0
BEAT_S = 5.0  # how often an agent gives a sign of life, at least; more often where the lease is short
GUARD = "guard.json"
NAMED = 8  # of the processes that it could not end
_LEASE = struct.Struct("=d")


class Beats:
    """The agent's end of the pipe to its guard: each beat tells how long the guard may wait for the next one.

    A pipe needs no disk, and no clock that both must agree on.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._due_at = 0.0
        self._lease_s = 0.0
        os.set_blocking(pipe, False)

    def beat(self, now: float, lease_s: float) -> None:
        """Give a sign of life if one is due, or if the lease has changed; call it in every turn of the agent's loop."""
        if now < self._due_at and lease_s == self._lease_s:
            return
        self._due_at, self._lease_s = now + min(BEAT_S, lease_s / 4), lease_s
        try:
            os.write(self._pipe, _LEASE.pack(lease_s))
        except OSError:
            pass  # the guard was stopped, and the pipe is full of beats; or it is dead


def below(root: int) -> "List[processes.Process]":
    """All processes below `root` that can be ended."""
    found = processes.descendants(root, processes.every())
    return [each for each in found if not processes.left_behind(each)]


def leftovers(directory: RunDirectory, root: int, keep: "List[int]") -> "List[processes.Process]":
    """All processes below `root`, and all that carry the mark of this run and host, except the pids in `keep`.

    `root` is agent or guard.  What is older carries no mark of a run that begins with it, and is not looked into: on
    most hosts that is all there is.
    """
    every = processes.every()
    found = {process.pid: process for process in processes.descendants(root, every)}
    since = every[root].start if directory.first and root in every else 0
    known = {*found, *keep}
    rest = [each for each in every.values() if each.start >= since and each.pid not in known]
    for process in processes.marked(rest, directory.run, directory.host):
        found[process.pid] = process
    return [each for pid, each in found.items() if pid not in keep and not processes.left_behind(each)]


def under_guard(
    directory: RunDirectory, agent: "Callable[[Beats], None]", failed: "Callable[[OSError], None]"
) -> None:
    """Fork a guard in a session of its own and, below it, a process that runs `agent`; returns at once.

    The agent must give the signs of life that it gets.  When a system error ends the agent, or keeps it from starting,
    the process that met the error calls `failed` with it.
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
        heard, told = os.pipe()
        agent_pid = os.fork()
        if agent_pid == 0:
            os.close(heard)
            _run(lambda: agent(Beats(told)), failed)
        close_all_but(heard)
        _purge_behind(agent_pid, heard, directory)
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


def _purge_behind(agent_pid: int, heard: int, directory: RunDirectory) -> None:
    """Wait until the agent ends or its signs of life stay away; kill what it left, or the agent, too."""
    status, silent_s = _watch(agent_pid, heard)
    me = os.getpid()
    purge = processes.Purge(lambda: leftovers(directory, me, [me]), limit_s=30.0)
    if status != 0 or _has_children():  # otherwise the agent itself has swept
        # First what descends from here: for that no process is looked into, which might keep its reader waiting.
        processes.Purge(lambda: below(me), limit_s=30.0).run()
        purge.run()
    if removed() or (status == 0 and directory.is_served()):
        return  # by the next agent of the same run, which has a guard of its own
    left = ", ".join(map(processes.describe, purge.survivors[:NAMED]))
    why = []
    if status is None:
        why.append("its agent gave no sign of life for %.0f s" % silent_s)
    if left or why:
        why.append("its guard could not end %s" % left if left else "its guard ended it and its tasks")
    try:
        directory.write(GUARD, {"swept": not left, "why": ": ".join(why), "left": left})
    except OSError as error:  # a disk that is full, or turned read-only
        note("%s: %s" % (GUARD, error))
    if os.path.exists(os.path.join(directory.path, CONTAINERS)):
        from tflaunch.agent.host import container

        # After that, for an engine may be slow, and `stop` does not wait for ever: what is left, it finds by its label.
        container.remove(directory)
    directory.close()  # or visits would go on to wait for an answer


def _watch(agent_pid: int, heard: int) -> "tuple[Optional[int], float]":
    """(wait status of the agent, or None where it lives and hangs; seconds since its last sign of life).

    Only time counts in which this process has run: where all of the host was stopped or slept, the agent was, too.
    """
    lease_s, silent_s = FIRST_LEASE_S, 0.0
    looked = time.monotonic()
    beats = select.poll()
    beats.register(heard, select.POLLIN)
    closed = False  # the agent ends just now
    while True:
        pause_s = 0.02 if closed else min(BEAT_S, lease_s / 4)
        beats.poll(pause_s * 1000)
        ended, status = _reap(agent_pid)
        if ended:
            return status, silent_s
        now = time.monotonic()
        silent_s, looked = silent_s + min(now - looked, 2 * pause_s), now
        while select.select([] if closed else [heard], [], [], 0)[0]:
            said = os.read(heard, 512 * _LEASE.size)
            if not said:
                closed = True
                beats.unregister(heard)
            elif len(said) >= _LEASE.size:
                lease_s, silent_s = _LEASE.unpack(said[-_LEASE.size :])[0], 0.0
        if silent_s > max(lease_s, LEAST_S):
            return None, silent_s


def _reap(agent_pid: int) -> "tuple[bool, int]":
    """Whether the agent has ended, and its wait status; all other children that have ended are reaped, too."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, agent_pid):
            return pid == agent_pid, status


def unswept(directory: RunDirectory) -> str:
    """Why what a dead agent had left was not ended by its guard, as far as its directory tells."""
    left = directory.read(GUARD).get("left")
    if left:
        return "its guard could not end %s" % left
    if not os.access(directory.path, os.W_OK):
        return "its agent and guard could not write to its directory whether they ended all of it"
    return "its agent and guard were killed"


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
