"""What runs have left on this host whose agent and guard were both killed: processes that nobody looks after any more.

Whoever comes to this host next ends them: the agent of another run of this user, or a visit for `ps`, `stop`, `clean`;
commands that only look (`status`, `attach`, `gpus`) do not.  Until then the GPUs that they were given count as leased.

Never a process of a run that lives: agent and guard are known by pid and start time, in the same boot and the same PID
namespace, and a directory that a new agent of the run has taken over is left alone.
"""

import os
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.guard import GUARD, unswept
from tflaunch.agent.host.rundir import CONTAINERS, RunDirectory, all_runs
from tflaunch.protocol.machine import pid_namespace, this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

LIMIT_S = 3.0  # how long one who has come for something else takes to end them


def of_run(run: str, hosts: "Optional[List[str]]" = None) -> "List[processes.Process]":
    """The processes that carry the mark of `run`, and its agents for `hosts` (None: for all) with all below them."""
    every = processes.every()
    found = {process.pid: process for process in processes.marked(every.values(), run)}
    for process in filter(lambda each: processes.mine(each.pid), every.values()):
        served, host = processes.serves_on(processes.command(process.pid))
        if run and served == run and (hosts is None or host in hosts):
            found[process.pid] = process
            found.update((each.pid, each) for each in processes.descendants(process.pid, every))
    found.pop(os.getpid(), None)
    return [process for process in found.values() if not processes.left_behind(process)]


def end_all(parent: str, but: str = "", engines: bool = True) -> "List[Dict[str, Any]]":
    """End the strays of all runs in `parent` except `but`; returns `run`, `host`, `killed` for each that had some.

    Without `engines`, containers are left to the next one who comes: an engine may take long to remove them.
    """
    ended = []  # type: List[Dict[str, Any]]
    until = time.monotonic() + LIMIT_S
    for directory, agent in _dead(parent):
        if directory.run == but:
            continue
        left_s = until - time.monotonic()
        if left_s <= 0:
            break  # the next one who comes goes on
        purge = processes.Purge(lambda: _left(directory, agent), left_s)  # noqa: B023 - it is run at once
        while not purge.step():
            time.sleep(0.02)  # not `run`, which reaps: an agent must see the ends of its own children
        if purge.killed:
            ended.append({"run": directory.run, "host": directory.host, "killed": purge.killed})
        if directory.agent() != agent:
            continue
        try:
            if purge.killed:
                left = "%d process%s" % (len(purge.killed), "es" if len(purge.killed) > 1 else "")
                why = "%s; %s that they left had to be ended later" % (unswept(directory), left)
                directory.write(GUARD, {**directory.read(GUARD), "swept": False, "why": why})
            left_over = bool(purge.survivors)
            if os.path.exists(os.path.join(directory.path, CONTAINERS)):
                from tflaunch.agent.host import container

                left_over |= not engines or bool(container.remove(directory))
            if not left_over:
                _close(directory)
        except OSError:
            pass  # a full disk: the next one who comes finds nothing to end
    return ended


def forget(directory: RunDirectory) -> None:
    """Remove the socket and the reserve of an agent that is dead, unless a process of its run is left on its host."""
    agent = directory.agent()
    if _is_dead(agent) and not _left(directory, agent):
        _close(directory)


def _close(directory: RunDirectory) -> None:
    """Remove socket and reserve; the directory stays as old as it is, for `clean`."""
    try:
        before = os.stat(directory.path)
        directory.close()
        os.utime(directory.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    except OSError:
        pass  # a `clean` was quicker


def leases(parent: str) -> "Dict[str, Dict[str, Any]]":
    """The GPUs that strays were given, by UUID: who has them, as tflaunch.agent.gpus.leases tells it."""
    found = {}  # type: Dict[str, Dict[str, Any]]
    for directory, agent in _dead(parent):
        for process in _left(directory, agent):
            for uuid in _gpus(process.pid):
                found[uuid] = {
                    "user": str(agent.get("user", "")),
                    "run": directory.run,
                    "since": processes.started(process.pid),
                    "planning": False,
                    "pid": 0,
                }
    return found


def _dead(parent: str) -> "List[Tuple[RunDirectory, Dict[str, Any]]]":
    """The runs whose agent and guard have died here without ending them, each with its agent.json."""
    found = []
    for run, host in all_runs(parent):
        # Agent and guard remove it when they end in order: a quick look that rules out almost all.
        if not os.path.lexists(os.path.join(parent, run, host, "agent.sock")):
            continue
        directory = RunDirectory(parent, run, host)
        agent = directory.agent()
        if _is_dead(agent):
            found.append((directory, agent))
    return found


def _is_dead(agent: "Dict[str, Any]") -> bool:
    """Whether it is certain that the agent of this agent.json and its guard are dead."""
    here = agent.get("machine") == this_machine() and agent.get("namespace") == pid_namespace() != 0
    pids = [(agent.get(pid), agent.get(start)) for pid, start in (("pid", "start"), ("guard", "guard_start"))]
    known = all(map(all, pids))
    return here and known and not any(processes.alive(pid, start) for pid, start in pids)  # type: ignore[arg-type]


def _left(directory: RunDirectory, agent: "Dict[str, Any]") -> "List[processes.Process]":
    """The strays in that directory's run and host; none once another agent has taken the directory over."""
    every = processes.every()
    own = set()  # this process and those that have started it: a shell that a task has left may be among them
    pid = os.getpid()
    while pid in every and pid not in own:
        own.add(pid)
        pid = every[pid].parent
    found = [
        process
        for process in processes.marked(every.values(), directory.run, directory.host)
        # A task may have started an agent of another run, which lives.
        if process.pid not in own and b"tflaunch-agent" not in processes.command(process.pid)
    ]
    # After the look: a new agent's are not among them.
    return found if directory.agent() == agent else []


def _gpus(pid: int) -> "List[str]":
    """The UUIDs of the GPUs that a process was given."""
    mask = b"CUDA_VISIBLE_DEVICES="
    given = [each[len(mask) :] for each in processes.environment(pid) if each.startswith(mask)]
    return [
        os.fsdecode(uuid)
        for uuid in (given[0].split(b",") if given else [])
        if uuid[:4] in (b"GPU-", b"MIG-")
    ]
