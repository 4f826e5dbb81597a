"""What this host knows of each run, from run directories and /proc; it only reads.

The hosts hold the truth about a run; a launcher's record is a copy.  If a file is missing, half written or from
another version, the ledger uses what it can read.
"""

import os
import re
import time

from tflaunch.agent import host_facts
from tflaunch.agent.host import processes
from tflaunch.agent.host.guard import FIRST_LEASE_S, GUARD
from tflaunch.agent.host.journal import NAME as EVENTS
from tflaunch.agent.host.journal import read as read_journal
from tflaunch.agent.host.rundir import HOLDS, RunDirectory, all_runs
from tflaunch.protocol import messages, wire
from tflaunch.protocol.fields import a_number, a_text, misfit
from tflaunch.protocol.machine import this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

    class Member(NamedTuple):
        host: str
        task: str
        process: processes.Process
else:
    from collections import namedtuple

    Member = namedtuple("Member", "host task process")

CLOCK_MARGIN_S = 2.0  # the kernel rounds its start time to whole seconds
LISTED = 1000  # runs in one message ...
RUNNING_TAIL_BYTES = 2048  # of a log: it may tell how far its task is
HELD = 32  # sentences of what holds
LISTED_BYTES = wire.ANSWER_LIMIT * 3 // 4  # ... as far as they fit
_MARKS = tuple(
    os.fsencode(each + "=") for each in (processes.RUN_MARK, processes.HOST_MARK, processes.TASK_MARK)
)
_LOG = re.compile(r"(.+)-(\d+)(?:\.(\d+))?\.log")  # worker-3.log, and of its third attempt worker-3.2.log


class Census:
    """Which processes of this user belong to which run, from one look at all of them."""

    def __init__(self) -> None:
        self.members = {}  # type: Dict[str, List[Member]]
        self.agents = {}  # type: Dict[str, List[processes.Process]]
        for process in processes.every().values():
            if process.pid == os.getpid() or not processes.mine(process.pid):
                continue
            words = processes.command(process.pid)
            agent_of = processes.serves(words)
            if agent_of:
                self.agents.setdefault(agent_of, []).append(process)
            elif b"tflaunch-agent" not in words:  # otherwise it is a visit, which a task may have started
                run, host, task = _marks(processes.environment(process.pid))
                if run:
                    self.members.setdefault(run, []).append(Member(host, task, process))

    def of(self, run: str) -> "List[Member]":
        """The processes that carry the mark of `run`."""
        return self.members.get(run, [])

    def alive(self, run: str) -> bool:
        """Whether `run` has any process: a task, an agent, or one that becomes an agent."""
        return run in self.members or run in self.agents


def _marks(variables: "Iterable[bytes]") -> "Tuple[str, ...]":
    found = dict.fromkeys(_MARKS, b"")
    for variable in variables:
        for mark in _MARKS:
            if variable.startswith(mark):
                found[mark] = variable[len(mark) :]
    return tuple(map(os.fsdecode, found.values()))


def foreign(agent: "Dict[str, Any]") -> str:
    """The name of the machine that wrote this agent.json if it is another one that shares the disk; otherwise ""."""
    name = (agent.get("machine") or [""])[0]
    return str(name) if name != this_machine()[0] else ""


def lives(agent: "Dict[str, Any]") -> bool:
    """Whether the agent that wrote this agent.json lives on this machine."""
    if (agent.get("machine") or this_machine()) != this_machine():
        return False  # written before this machine was restarted, or on another machine
    return processes.alive(agent.get("pid", 0), agent.get("start", 0))


def restarted(directory: RunDirectory) -> float:
    """When this machine was restarted while the agent of that directory lived (epoch seconds): no process survived.

    0.0 when there was no restart, or when that is uncertain: another machine may have the same name and disk.  So the
    agent's files must be older than this machine's start.
    """
    agent = directory.agent()
    then, now = agent.get("machine"), this_machine()
    if (
        agent.get("over", False)
        or not then
        or then[0] != now[0]
        or then[1] == now[1]
        or not (then[1] and now[1])
    ):
        return 0.0
    booted = processes.booted()
    written = [_modified(os.path.join(directory.path, name)) or 0.0 for name in ("agent.json", EVENTS)]
    return booted if booted and max(written) < booted + CLOCK_MARGIN_S else 0.0


def runs(
    parent: str, everything: bool, only: str = "", tail_bytes: int = 0, running_tails: bool = False
) -> "Dict[str, Any]":
    """The fields of a `runs` message: the runs that are alive or, with `everything`, all.

    `only`: just the runs whose names begin with it; `tail_bytes`: how much of the log of each failed task to include;
    `running_tails`: also the last RUNNING_TAIL_BYTES of those that run, as far as there is room.
    """
    census = Census()
    clock = time.time()
    found = []  # type: List[Dict[str, Any]]
    others = set()
    for run, host in all_runs(parent):
        if run.startswith(only):
            share = _Share(RunDirectory(parent, run, host), census)
            if everything or share.state in ("alive", "strays"):
                found.append(share.entry(tail_bytes, running_tails))
            else:
                others.add(run)
    found.sort(key=lambda entry: -(entry["started"] or 0.0))
    listed = []  # type: List[Dict[str, Any]]
    size = 0
    for entry in found[:LISTED]:
        bytes_ = len(wire.dumps(entry))
        if running_tails and size + bytes_ > LISTED_BYTES:
            for task in entry["tasks"]:
                if task["state"] == "running":
                    task.pop("tail", None)
            bytes_ = len(wire.dumps(entry))
        size += bytes_
        if size > LISTED_BYTES:
            break
        listed.append(entry)
    others = (others | {entry["run"] for entry in found}) - {entry["run"] for entry in listed}
    return {
        "machine": this_machine(),
        "place": place(parent),
        "clock": clock,
        "runs": listed,
        "others": sorted(others)[:LISTED],
    }


def place(parent: str) -> str:
    """An identifier of this directory on this machine: two hosts of one machine that share it get the same one."""
    try:
        info = os.stat(parent)
    except OSError:
        return ""
    return "%d:%d" % (info.st_dev, info.st_ino)


class _Share:
    """What one host has of one run.

    `state`: alive; ended: its agent has ended it; lost: no agent has ended it, and no process lives; strays: the agent
    is dead, but other processes live; elsewhere: it belongs to another machine, which shares this disk.
    """

    def __init__(self, directory: RunDirectory, census: Census) -> None:
        self._directory = directory
        self._agent = directory.agent()
        self._members = [each for each in census.of(directory.run) if each.host in ("", directory.host)]
        over = self._agent.get("over", False)
        if foreign(self._agent):
            self.state = "elsewhere"
        elif not over and lives(self._agent):
            self.state = "alive"
        else:
            self.state = "strays" if self._members else "ended" if over else "lost"

    def entry(self, tail_bytes: int, running_tails: bool) -> "Dict[str, Any]":
        """The entry of a `runs` message."""
        directory, agent = self._directory, self._agent
        plan = directory.read("plan.json")
        about = plan.get("about")
        events = read_journal(directory).events
        outcomes = [each["outcome"] for each in events if isinstance(each.get("outcome"), dict)]
        strays = self._members if self.state == "strays" else []
        over_at = _modified(os.path.join(directory.path, "agent.json"))
        least = {
            "run": directory.run,
            "host": directory.host,
            "state": self.state,
            "directory": directory.path,
            "agent": 0,
            "user": "",
            "started": None,
            "restarted": None,
            "ended": over_at if self.state == "ended" else None,
            "about": {},
            "outcome": {},
            "tasks": [],
            "strays": [processes.describe(each.process) for each in strays],
            "holds": None,
            "stopped_by": "",
            "why": "",
        }
        try:
            more = {
                "agent": agent.get("pid", 0),
                "user": agent.get("user", ""),
                "started": agent.get("started"),
                "restarted": (restarted(directory) or None) if self.state == "lost" else None,
                "about": about if isinstance(about, dict) else {},
                "outcome": outcomes[-1] if outcomes else {},
                "tasks": self._tasks(plan, events, tail_bytes, running_tails),
                "holds": self._holds() if tail_bytes else None,  # for `status`
                "stopped_by": next((each["by"] for each in events if each.get("by")), ""),
                "why": self._why(events),
                "lease_s": agent.get("lease_s", FIRST_LEASE_S),
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            return least  # the files are damaged, or another version's
        whole = dict(least, **more)
        return whole if messages.fits("runs", "runs", whole) else least

    def _why(self, events: "List[Dict[str, Any]]") -> str:
        """Why its part ended otherwise than in order; "" where it did, or lives."""
        if self.state == "alive":
            return ""
        expired = [each["reason"] for each in events if each["type"] == "expired" and not each["asked"]]
        return str(self._directory.read(GUARD).get("why", "")) or (expired[-1] if expired else "")

    def _holds(self) -> "Optional[Dict[str, Any]]":
        """What the watchdog says of the run now; None where it has said nothing, or the run is not alive."""
        found = self._directory.read(HOLDS) if self.state == "alive" else {}
        if misfit({"at": a_number, "sentences": [a_text], "blind": [a_text]}, found, ""):
            return None  # there is none, or a task has written to it
        age_s = max(0.0, time.time() - found["at"])
        return {"age_s": age_s, "sentences": found["sentences"][:HELD], "blind": found["blind"][:HELD]}

    def _tasks(
        self, plan: "Dict[str, Any]", events: "List[Dict[str, Any]]", tail_bytes: int, running_tails: bool
    ) -> "List[Dict[str, Any]]":
        requests = [each for each in plan.get("tasks") or [] if isinstance(each, dict) and "id" in each]
        planned = {str(each["id"]): each for each in requests}
        ports = dict(zip(planned, plan.get("ports") or []))  # noqa: B905 - Python 3.8 has no `strict`
        logs = _logs(self._directory)
        entries = []
        for name in planned or map(str, self._agent.get("tasks") or []):
            request = planned.get(name, {})
            mine = [each for each in events if each.get("task") == name]
            ends = {each.get("attempt", 0): each for each in mine if each["type"] == "exit"}
            starts = {each.get("attempt", 0): each for each in mine if each["type"] == "started"}
            attempt, log, log_bytes, output = logs.get(name, (0, self._directory.log_path(name), 0, None))
            attempt = max(attempt, *ends, *starts, 0)
            entry = {
                "task": name,
                "attempts": attempt + 1,
                "port": request.get("port", ports.get(name)),
                "gpus": _gpus(request),
                "gpu_labels": request.get("gpu_labels"),
                "cpus": request.get("cpus", ""),
                "log": log,
                "log_bytes": log_bytes,
                "output": output,  # when the task last wrote something
                "before": [_end(each) for number, each in sorted(ends.items()) if number != attempt],
            }
            if attempt in ends:
                entry.update(_end(ends[attempt]), state="exited")
                if tail_bytes and entry["code"] != 0 and not entry["stopped"]:
                    entry["tail"] = _tail(log, tail_bytes)
            else:
                entry.update(self._life(name, starts.get(attempt, {})))
                if running_tails and entry["state"] == "running":
                    entry["tail"] = _tail(log, RUNNING_TAIL_BYTES)
            entries.append(entry)
        return entries

    def _life(self, task: str, start: "Dict[str, Any]") -> "Dict[str, Any]":
        """The state of a task that has no `exit` event; `start` is its `started` event, {} for none."""
        marked = [each.process for each in self._members if each.task == task]
        if not marked:  # a living agent will start or restart the task
            return {"state": {"alive": "waiting", "elsewhere": "unknown"}.get(self.state, "lost")}
        by_pid = {process.pid: process for process in marked}
        # The oldest process is the task's own; the task has started the others.
        first = min(marked, key=lambda each: (each.start, each.pid))
        process = by_pid.get(start.get("pid", 0), first)
        return {
            "state": "staged" if _waits(process) else "running",
            "pid": process.pid,
            "since": start.get("time")
            or process.start / float(os.sysconf("SC_CLK_TCK")) + processes.booted(),
        }


def _end(exit: "Dict[str, Any]") -> "Dict[str, Any]":
    end = {name: exit.get(name) for name in ("code", "signal", "signal_name", "seconds", "stopped", "facts")}
    end.update(attempt=exit.get("attempt", 0), ended=exit.get("time"))
    return end


def _gpus(request: "Dict[str, Any]") -> "List[str]":
    """The UUIDs of the GPUs that a task may see."""
    masked = str((request.get("env") or {}).get("CUDA_VISIBLE_DEVICES") or "")
    return [each for each in masked.split(",") if each.startswith(("GPU-", "MIG-"))]


def _logs(directory: RunDirectory) -> "Dict[str, Tuple[int, str, int, Optional[float]]]":
    """{task: (last attempt, path of its log, bytes of all attempts, when that log was last written to)}."""
    found = {}  # type: Dict[str, List[Tuple[int, str, int, float]]]
    try:
        with os.scandir(directory.logs) as entries:
            for entry in entries:
                match = _LOG.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    task = "%s/%s" % match.group(1, 2)
                    found.setdefault(task, []).append(
                        (int(match.group(3) or 0), entry.path, info.st_size, info.st_mtime)
                    )
    except OSError:
        pass  # no log, no attempt
    last = {}
    for task, logs in found.items():
        attempt, path, size, modified = max(logs)
        last[task] = (attempt, path, sum(each[2] for each in logs), modified if size else None)
    return last


def _waits(process: "processes.Process") -> bool:
    """Whether the process is still the task's shell, waiting at its gate (tflaunch.agent.tasks.task)."""
    words = processes.command(process.pid)
    return b"tflaunch-ready" in b"".join(words[2:3]) or (len(words) > 2 and words[2].endswith(b".setup"))


def _modified(path: str) -> "Optional[float]":
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def _tail(path: str, size: int) -> str:
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            return log.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
