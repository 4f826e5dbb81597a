"""The time limits that a user sets for a run, and which of them has been reached; no I/O, no clock.

    --timeout          the whole run, from the release of its tasks
    --warn-before      how long before that the tasks are told
    --startup-timeout  until each task listens on its port (or, if it has none, has written something)
    --stall-timeout    for how long no task writes output; one task is no sign: often only the chief writes
    --stop-idle        for how long no GPU of the run is used; one that does not tell its use counts as used

TensorFlow's own "still waiting" lines do not count as output: a run that hangs writes one every 10 s.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.hangs import waits_for
from tflaunch.diagnosis.rule import names_of
from tflaunch.diagnosis.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

NEVER = float("-inf")
LEAST_GPU_LOOK_S = 1.0  # no agent asks NVML more often (tflaunch.agent.gpus.use)


class ReachedLimit(NamedTuple):
    """A limit that has been reached, in words, with the tasks that reached it."""

    reason: str
    tasks: tuple[str, ...]
    states: tuple[
        str, ...
    ]  # of each task: `state S, in futex_do_wait`, or "" where it has not been looked at


class NearLimit(NamedTuple):
    """The limit of the whole run is near: how long it still has, and the tasks that are to be told."""

    left_s: float
    tasks: tuple[str, ...]


class Limits:
    """The limits of one run, in seconds (0: none); all times are of one steady clock.

    It is fed with the tasks' starts, looks and exits, and asked which limit has been reached.  `gpus`: task -> UUIDs.
    """

    def __init__(
        self,
        tasks: Iterable[str],
        timeout_s: float = 0.0,
        startup_s: float = 0.0,
        stall_s: float = 0.0,
        idle_s: float = 0.0,
        *,
        warn_s: float = 0.0,
        gpus: Mapping[str, Sequence[str]] = MappingProxyType({}),
        thresholds: Thresholds = Thresholds(),  # noqa: B008  frozen
    ) -> None:
        self.timeout_s = timeout_s
        self.startup_s = startup_s
        self.stall_s = stall_s
        self.idle_s = idle_s
        self.warn_s = warn_s
        limits = [limit / 4 for limit in (startup_s, stall_s, idle_s) if limit]
        # How often the agents are asked to look at their tasks.
        self.look_s = max(0.25, min([thresholds.look_s, *limits]))
        # How often NVML is asked, where there are GPUs.
        self.gpu_look_s = min(thresholds.gpu_look_s, idle_s / 4) if idle_s else thresholds.gpu_look_s
        self._fresh_s = thresholds.fresh_s
        self._idle_use = thresholds.gpu_idle_use
        self._begun: float | None = None
        self._warned = False
        self._started = dict.fromkeys(tasks, 0.0)  # living task -> when it started
        self._seen: dict[str, float] = {}  # task -> when an agent last looked at it
        self._ready: set[str] = set()
        self._states: dict[str, str] = {}
        self._spoke: dict[str, float] = {}  # task -> when it last wrote output that counts
        self._gpus = {task: tuple(uuids) for task, uuids in gpus.items()}
        self._used: dict[str, float] = {}  # task with GPUs -> when one of them was last used
        self._asked: dict[str, float] = {}  # task with GPUs -> when they were last looked at
        self.untold: set[str] = set()  # tasks with a GPU that does not tell its use

    def begin(self, now: float, begun: float | None = None) -> None:
        """All tasks are released now; `begun` is when the run began, if it has been planned anew since."""
        self._begun = now if begun is None else begun
        self._warned = now > self._warn_at  # a run that is planned anew: its new tasks are not told late
        for task in self._started:
            self._started[task] = self._spoke[task] = now
        self._used = dict.fromkeys(self._gpus, now)

    def memory(self) -> dict[str, Any]:
        """What has happened, as JSON can hold it, for `resume`; left out is what the next looks show again."""
        return {
            "started": self._started,
            "ready": sorted(self._ready),
            "spoke": self._spoke,
            "used": self._used,
            "warned": self._warned,
        }

    def resume(self, memory: Any) -> None:
        """Continue from the `memory` of other limits; call `begin` first.  Raises ValueError for a wrong one."""
        from tflaunch.protocol.fields import Each, a_flag, a_number, check, of_the_run

        a_task = of_the_run("a task", self._started)
        times = Each(a_task, a_number)
        fields = {"started": times, "ready": [a_task], "spoke": times, "used": times, "warned": a_flag}
        check(fields, memory)
        self._warned = memory["warned"]
        self._started, self._ready, self._spoke = memory["started"], set(memory["ready"]), memory["spoke"]
        self._used.update(memory["used"])

    def started(self, task: str, now: float) -> None:
        """A task was started again."""
        self._started[task] = self._spoke[task] = now
        if task in self._gpus:
            self._used[task] = now
        self._ready.discard(task)
        self._seen.pop(task, None)

    def exited(self, task: str) -> None:
        """A task has ended."""
        self._started.pop(task, None)

    def looked(self, tasks: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """An agent has looked at its tasks (see tflaunch.agent.tasks.look)."""
        for task, look in tasks.items():
            self._seen[task] = now
            self._states[task] = _state(look)
            if look["listens"] or (look["listens"] is None and look["log_bytes"]):
                self._ready.add(task)
            if look["log_bytes"] and not waits_for(look["says"]):
                self._spoke[task] = max(self._spoke.get(task, 0.0), now - max(0.0, look["quiet_s"]))

    def looked_at_gpus(self, tasks: Iterable[str], gpus: Mapping[str, Mapping[str, Any]], at: float) -> None:
        """NVML was asked at that time about the GPUs of these tasks, and maybe others (see tflaunch.agent.gpus.use)."""
        for task in tasks:
            uses = [gpus[uuid]["use"] for uuid in self._gpus.get(task, ()) if uuid in gpus]
            if not uses or at <= self._asked.get(task, NEVER):
                continue
            self._asked[task] = at
            known = [use for use in uses if use is not None]
            if len(known) < len(self._gpus[task]):
                self.untold.add(task)
            if len(known) < len(self._gpus[task]) or max(known) > self._idle_use:
                self._used[task] = max(self._used.get(task, 0.0), at)

    @property
    def ready(self) -> int:
        """How many living tasks have opened their port (or, if they have none, written something)."""
        return len(self._ready & self._started.keys())

    @property
    def _warn_at(self) -> float:
        return (self._begun or 0.0) + self.timeout_s - self.warn_s

    def nears(self, now: float) -> NearLimit | None:
        """Once, `warn_s` before the whole run's limit: the living tasks, without those that started after that."""
        if not self.warn_s or self._begun is None or self._warned or now < self._warn_at:
            return None
        self._warned = True
        tasks = tuple(task for task, at in self._started.items() if at <= self._warn_at)
        return NearLimit(self._begun + self.timeout_s - now, tasks) if tasks else None

    def reached_limit(self, now: float) -> ReachedLimit | None:
        """The limit that has been reached, if any."""
        if self._begun is None or not self._started:
            return None
        living = tuple(self._started)
        if self.timeout_s and now - self._begun >= self.timeout_s:
            return self._reached(f"the run has taken {self.timeout_s:g} s (--timeout)", living)
        if self.startup_s:
            late = tuple(
                task
                for task in living
                if task not in self._ready
                and now - self._started[task] >= self.startup_s
                and now - self._seen.get(task, NEVER) <= self._fresh_s
            )
            if late:
                have, port = ("has", "its port") if len(late) == 1 else ("have", "their ports")
                limit = f"{self.startup_s:g} s after the start (--startup-timeout)"
                return self._reached(f"{names_of(late)} {have} not opened {port} {limit}", late)
        if self.stall_s and all(now - self._seen.get(task, NEVER) <= self._fresh_s for task in living):
            quiet_s = now - max(self._spoke[task] for task in self._spoke)
            if quiet_s >= self.stall_s:
                return self._reached(
                    f"no task has written anything for {quiet_s:.0f} s (--stall-timeout)", living
                )
        return self._reached_idle(now) if self.idle_s else None

    def _reached_idle(self, now: float) -> ReachedLimit | None:
        """The limit of --stop-idle: every living task that has GPUs was looked at of late, and none used them."""
        have = tuple(task for task in self._started if task in self._gpus)
        fresh_s = 3 * max(self.gpu_look_s, self.look_s, LEAST_GPU_LOOK_S)
        if not have or any(now - self._asked.get(task, NEVER) > fresh_s for task in have):
            return None
        idle_s = now - max(self._used[task] for task in have)
        if idle_s < self.idle_s:
            return None
        return self._reached(f"no GPU of the run has done anything for {idle_s:.0f} s (--stop-idle)", have)

    def blind(self) -> list[str]:
        """What the limits cannot see."""
        untold = sorted(task for task in self.untold if task in self._started)
        if not self.idle_s or not untold:
            return []
        return [f"whether the run is idle (--stop-idle): a GPU of {names_of(untold)} does not tell its use"]

    def _reached(self, reason: str, tasks: tuple[str, ...]) -> ReachedLimit:
        return ReachedLimit(reason, tasks, tuple(self._states.get(task, "") for task in tasks))


def _state(look: Mapping[str, Any]) -> str:
    """The state of the task's own process, and the kernel function that it waits in."""
    if not look["processes"]:
        return ""
    state = f"state {look['processes'][0][2]}"
    return f"{state}, in {look['waits_in']}" if look["waits_in"] else state
