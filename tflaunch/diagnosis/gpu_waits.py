"""GPUs that wait for one another: NCCL's ranks spin, so neither processor time nor the GPU's use shows that they wait.

A GPU that waits is busy all the time and takes little power: less than a third of its limit, and less than it took
before.  If the run's GPUs do that, no bytes move between its hosts, and one task's GPU does nothing, then they
wait for that task.  If all spin alike, after they took more power before, they wait for each other.  Where a signal is
missing, the rule is silent and says so in `blind`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.rule import Rule, Sentence, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched

MOST_W = 1e6  # a host may lie
INSPECT_S = 20.0  # for the answer to `inspect`; then the sentence comes without it
SPINS, IDLE, WORKS = "spins", "idle", "works"


class _Load(NamedTuple):
    """How a task's GPUs are used together; power in W."""

    use: float
    power: float
    limit: float


@dataclass
class _Task:
    """What is known of a task that has GPUs."""

    at: float = -1.0  # when NVML was asked; -1: never
    load: _Load | None = None  # None: a signal is missing
    peak: float = 0.0  # the most power that its GPUs took at high use
    state: str = ""
    since: float = 0.0  # when that state began
    looked: float = 0.0
    cpu_s: float = 0.0
    bytes: int | None = None  # that its connections have moved; None: not known
    io: int = 0  # bytes of its files
    busy: float = 0.0  # when it last used a core, or read or wrote a file
    moved: float = 0.0  # when it last moved bytes, or wrote a line
    flows: dict[tuple[str, int, int], int] = field(default_factory=dict)
    kept: bool = False  # what an earlier watchdog knew: it counts until a look shows otherwise


class _Standstill(NamedTuple):
    """Who waits for whom: `odd` is "" where all spin alike."""

    odd: str
    waiting: tuple[str, ...]


class GpuWaits(Rule):
    """Names the task that all other GPUs of the run wait for."""

    def __init__(
        self, watched: Watched, told_with_a_line: Callable[[float], Iterable[str]] = lambda _: ()
    ) -> None:
        """`told_with_a_line`: the tasks of which another rule has said at which line they stand."""
        self._watched = watched
        self._told_with_a_line = told_with_a_line
        self._limits = watched.thresholds
        self._tasks = {task: _Task() for task in watched.gpus if task in watched.places}
        self._fabrics: dict[str, tuple[float, int, float]] = {}  # host -> when, bytes, when they last moved
        self._found: _Standstill | None = None
        self._asked = 0.0  # when its threads were asked for; 0: not yet
        self._stand: str | None = None  # where the odd one stands; None: not known yet
        self._told = ""
        self._resumed = False

    # -- what happens

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        gpus, at = fields.get("gpus") or {}, now - fields.get("gpus_age_s", 0.0)
        self._note_fabric(host, fields.get("fabrics"), now)
        for name, look in fields["tasks"].items():
            task = self._tasks.get(name)
            if task is None:
                continue
            self._note_look(task, look, now)
            if at - task.at > 0.5 and all(uuid in gpus for uuid in self._watched.gpus[name]):
                self._note_load(task, [gpus[uuid] for uuid in self._watched.gpus[name]], at)

    def _note_fabric(self, host: str, both: Sequence[int] | None, now: float) -> None:
        total = sum(both or ())
        before, count, moved = self._fabrics.get(host, (now, total, 0.0 if self._resumed else now))
        if now > before and not 0 <= total - count < self._limits.gpu_quiet_bytes_s * (now - before):
            moved = now
        self._fabrics[host] = (now, total, moved)

    def _note_look(self, task: _Task, look: Mapping[str, Any], now: float) -> None:
        passed = now - task.looked
        if not task.looked:
            if not task.kept:
                task.busy = task.moved = now
        elif passed > 0:
            waits_for_disk = any(state == "D" for _, _, state in look["processes"])
            files = (look.get("io") or 0) - task.io > self._limits.still_io_bytes_s * passed
            used_s = look["cpu_s"] - task.cpu_s
            if waits_for_disk or files or not 0 <= used_s < self._limits.idle_cores * passed:
                task.busy = now
            if look["quiet_s"] < passed:
                task.moved = now
        flows = look.get("flows")
        if flows is None:
            task.bytes = None
        else:
            seen = {(peer, port, own): sent + got for peer, port, own, sent, got, *_ in flows}
            grown = sum(max(0, count - task.flows.get(key, 0)) for key, count in seen.items())
            if task.bytes is not None and grown >= self._limits.gpu_quiet_bytes_s * max(passed, 0.1):
                task.moved = now
            task.flows, task.bytes = seen, sum(seen.values())
        task.looked, task.cpu_s, task.io = now, look["cpu_s"], look.get("io") or 0

    def _note_load(self, task: _Task, gpus: Sequence[Mapping[str, Any]], at: float) -> None:
        task.at = at
        wanted = ("use", "power_w", "limit_w")
        if not gpus or any(gpu["error"] or None in map(gpu.get, wanted) for gpu in gpus):
            task.load, task.state = None, ""
            return
        uses = [gpu["use"] for gpu in gpus]
        load = task.load = _Load(
            min(uses), sum(gpu["power_w"] for gpu in gpus), sum(gpu["limit_w"] for gpu in gpus)
        )
        limits = self._limits
        state = WORKS
        if max(uses) <= limits.gpu_idle_use:
            state = IDLE
        elif load.use >= limits.gpu_spin_use:
            task.peak = max(task.peak, min(load.power, MOST_W))
            if load.power < limits.gpu_spin_power * load.limit:
                state = SPINS
        if state != task.state:
            task.state, task.since = state, at

    def exited(self, exit: Any, now: float) -> None:
        self._forget(str(exit.task))

    def lost(self, task: str, now: float) -> None:
        self._forget(task)

    def _forget(self, task: str) -> None:
        self._tasks.pop(task, None)  # who waits for a task that has ended, other rules tell

    def started(self, task: str, now: float) -> None:
        if task in self._watched.gpus:
            self._tasks[task] = _Task()

    # -- what it means

    def _standstill(self, now: float) -> _Standstill | None:
        tasks, limits = self._tasks, self._limits
        if len(tasks) < 2 or self._missing():
            return None
        spinning = tuple(name for name, task in tasks.items() if task.state == SPINS)
        others = [name for name in tasks if name not in spinning]
        odd = others[0] if others else ""
        if len(others) > 1 or not spinning or (odd and tasks[odd].state != IDLE):
            return None
        longest = limits.gpu_wait_s
        if odd and now - tasks[odd].busy < longest:
            longest = limits.gpu_busy_s  # it may write a checkpoint, or evaluate on its CPU
        if not odd and not all(map(self._has_dropped, spinning)):
            return None  # a small model takes little power always
        since = max(task.since for task in tasks.values())
        moved = [each[2] for each in self._fabrics.values()]
        quiet = max([*(task.moved for name, task in tasks.items()), *moved])
        if now - max(since, quiet) < longest:
            return None
        return _Standstill(odd, spinning)

    def _has_dropped(self, name: str) -> bool:
        """Whether that task's GPUs took clearly more power before."""
        task = self._tasks[name]
        return task.load is not None and task.load.power < self._limits.gpu_spin_drop * task.peak

    def _known(self, now: float) -> bool:
        """Whether all tasks were seen of late."""
        fresh_s = 3 * self._limits.gpu_look_s
        return all(
            now - task.at <= fresh_s and now - task.looked <= self._limits.fresh_s
            for task in self._tasks.values()
        )

    def _missing(self) -> dict[str, str]:
        """What cannot be seen: why -> of which task."""
        why: dict[str, str] = {}
        for name, task in self._tasks.items():
            if task.at >= 0 and task.load is None:
                why.setdefault("the GPU does not tell its use or power (MIG, or an error)", name)
            if task.looked and task.bytes is None:
                why.setdefault("the kernel does not tell how many bytes its connections carry", name)
        return why

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        found = self._standstill(now) if self._known(now) else None
        if found is not None and found != self._found:
            if self._found is None or found.odd != self._found.odd:
                self._told = ""
            self._found, self._asked, self._stand = found, now, None
            who = found.odd or found.waiting[0]
            host = self._watched.places[who].host
            stacks = self._watched.stacks
            return [(host, "inspect", {"tasks": [who], "stacks": stacks, "on_demand": stacks})]
        return []

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        found = self._found
        if type == "inspected" and found is not None and self._stand is None:
            self._stand = _stand(fields["tasks"].get(found.odd or found.waiting[0], ()))

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        if not self._known(now):
            return []
        found = self._standstill(now)
        if found is None:
            told, self._found, self._told = self._found if self._told else None, None, ""
            if told is None:
                return []
            who = told.odd if told.odd in self._tasks else ""
            return [Sentence(f"{who or 'all GPUs of the run'} {'goes' if who else 'go'} on", True)]
        if self._told or found != self._found or (self._stand is None and now - self._asked < INSPECT_S):
            return []
        if found.odd in explained or found.odd in self._told_with_a_line(now):
            return []
        self._told = self._text(found, now)
        return [Sentence(self._told, False)]

    def _text(self, found: _Standstill, now: float) -> str:
        loads = [self._tasks[name].load for name in found.waiting]
        power = [load.power for load in loads if load is not None]
        limit = [load.limit for load in loads if load is not None]
        gpus = f"at {max(power):.0f} W of {max(limit):.0f} W" if power else "at little power"
        at = f"; it is {self._stand}" if self._stand else ""
        if not found.odd:
            seconds = now - max(self._tasks[name].since for name in found.waiting)
            first = f"; {found.waiting[0]} is {self._stand}" if self._stand else ""
            return (
                f"the GPUs of {names_of(found.waiting)} have been busy {gpus} for {seconds:.0f} s, and no bytes move:"
                f" all wait in a collective{first}; has each the same number of steps, with the same collectives?"
            )
        odd = self._tasks[found.odd]
        cpu = (
            "and it computes on its CPU, or writes"
            if now - odd.busy < self._limits.gpu_wait_s
            else "and it uses no CPU either"
        )
        spin = (
            f"the GPUs of the {len(found.waiting)} others are busy {gpus}: they wait"
            if len(found.waiting) > 1
            else f"{found.waiting[0]}'s is busy {gpus}: it waits"
        )
        return (
            f"{self._watched.who([found.odd])}: its GPU has been idle for {now - odd.since:.0f} s {cpu}, while"
            f" {spin} for it in a collective{at}"
        )

    def explains(self, now: float) -> Iterable[str]:
        if not self._told or self._found is None:
            return ()
        return [name for name in (self._found.odd, *self._found.waiting) if name]

    def holds(self) -> list[str]:
        return [self._told] if self._told else []

    def blind(self) -> list[str]:
        if len(self._tasks) < 2:
            return []
        return [
            f"whether GPUs wait for one another: of {name}, {why}"
            for why, name in sorted(self._missing().items())
        ]

    def memory(self) -> dict[str, Any]:
        tasks = {
            name: [task.peak, task.state, task.since, task.busy, task.moved]
            for name, task in self._tasks.items()
        }
        return {"tasks": tasks, "told": self._told, "found": list(self._found or ()) if self._told else []}

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import (
            Each,
            OneOf,
            a_number,
            a_text,
            a_time,
            check,
            nothing,
            of_the_run,
            one_of,
        )

        a_task = of_the_run("a task", self._watched.gpus)
        found = (OneOf(a_task, lambda odd: odd == ""), [a_task])
        nobody = lambda each: each == []  # noqa: E731
        of_task = (a_time, one_of("", SPINS, IDLE, WORKS), a_number, a_number, a_number)
        tasks = Each(a_task, of_task)
        check({"tasks": tasks, "told": a_text, "found": OneOf(nothing, nobody, found)}, memory)
        self._resumed = True
        self._tasks = {
            name: _Task(peak=peak, state=state, since=since, busy=busy, moved=moved, kept=True)
            for name, (peak, state, since, busy, moved) in memory["tasks"].items()
        }
        self._told = memory["told"]
        if memory["found"]:
            odd, waiting = memory["found"]
            self._found, self._stand = _Standstill(odd, tuple(waiting)), ""


def _stand(processes: Sequence[Mapping[str, Any]]) -> str:
    """Where that task's main thread stands, in its own program: `at train.py:26 in batches()`; "" if unknown."""
    from tflaunch.diagnosis.frames import own_frame, place

    for process in processes:
        for stack in sorted(process["stacks"] or (), key=lambda each: not each["main"]):
            frames = stack["frames"]
            frame = own_frame(frames) or next(iter(frames), None)
            if frame is not None:
                return f"at {place(frame)}"
    for process in processes:
        for _, _, state, waits_in, _ in process["threads"][:1]:
            return f"in {waits_in} (state {state})" if waits_in else f"in state {state}"
    return ""
