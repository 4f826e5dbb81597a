"""How fast each task goes, and what holds it up: what the last minutes of looks show, for the rules of slowness.

A look is a moment; a pace needs two.  `Pace.over` compares the looks at both ends of a window: bytes to and from the
tasks of the run, processor time, the time that threads have waited for a processor.  What can only be seen in a moment
(a send queue, a call without an answer) is a share of the looks in between.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.rule import trains

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.diagnosis.thresholds import Thresholds

KEPT_S = 150.0  # how long a look is kept
PRESSURE_PARTS = 6  # of a time, in each of which its programs must wait: a burst is shorter
LEAST_CORES = 0.001  # who has had less, has had none
QUEUE_BYTES = 65536  # a send queue that is longer waits for the network
MOST, MOST_W = 2**62, 1e5  # a host may lie


class Sample(NamedTuple):
    """A look: what has been counted since the first one, and what was seen in that moment."""

    at: float
    bytes: int = 0  # to and from tasks of the run; of a worker that has parameter servers, of these
    cpu_s: float = 0.0
    waited_s: float = 0.0  # for a processor, all threads together
    held_s: float = 0.0  # by its cgroup's quota
    segments: int = 0  # that it has sent
    again: int = 0  # ... of them again
    peers: int = 0  # addresses of such tasks
    full: int = 0  # ... to which a send queue is long, and waits
    in_disk: bool = False  # a thread of it waits for a disk (state D)
    disk_bytes: int = 0  # to and from disks
    step: int = -1  # the last that it has named; -1: none
    faults: float = 0.0  # pages of its memory that a disk has brought back


class Window(NamedTuple):
    """What a task did between two looks; numbers are for each second, shares from 0 to 1."""

    seconds: float
    bytes_s: float
    moving: float  # share of the looks since which bytes had moved
    cores: float
    waiting: float  # threads that were ready to run without a processor, on average
    held: float  # share of the time
    segments: int
    again: float  # share of the segments
    full: float  # share of the looks that saw a long send queue to half of its peers
    in_disk: float  # share of the looks
    disk_bytes_s: float
    stepping: float  # share of the looks since which its step had grown
    faults_s: float

    @property
    def waits(self) -> float:
        """Seconds that its threads wait for a processor, for each that they run."""
        return self.waiting / max(self.cores, LEAST_CORES)


class KnownFlow(NamedTuple):
    """A connection of a task, counted since it began; None: never told, as of the last of many."""

    bytes: int
    segments: int | None = None
    again: int | None = None  # of these
    least_ms: float | None = None  # its shortest round trip; 0: the kernel does not tell


class Pace:
    """One task."""

    def __init__(self, name: str, limits: Thresholds) -> None:
        self.name = name
        self._limits = limits
        self.trains = trains(name)
        self.job = name.partition("/")[0]
        self.samples: deque[Sample] = deque()
        self.cores = 0.0  # that it may use; 0: not known
        self.memory = self.swapped = 0  # bytes
        self.says_waits = False  # its agent tells the time that threads wait for a processor
        self._look: Mapping[str, Any] = {}
        self._flows: dict[tuple[str, int, int], KnownFlow] = {}

    def seen(self, look: Mapping[str, Any], now: float, ours: Iterable[Any]) -> None:
        """Take the next look; `ours`: (flow to a task of the run, its pace, its shortest round trip, or None)."""
        last = self.samples[-1] if self.samples else Sample(now)
        if self.samples and now <= last.at:
            return
        before = self._look
        flows: dict[tuple[str, int, int], KnownFlow] = {}
        moved = sent = again = 0
        full: dict[str, bool] = {}
        disk = look.get("disk", (0, 0))[0]
        for flow, pace, least_ms in ours:
            key = (flow[0], flow[1], flow[2])
            old = self._flows.get(key)
            flows[key] = new = _told(old, flow, pace, least_ms)
            if before:  # what went before the first look is not of this time
                old = old or KnownFlow(0, 0, 0)
                moved += _more(old.bytes, new.bytes)
                sent += _more(old.segments, new.segments)
                again += _more(old.again, new.again)
            waits = flow[5] > QUEUE_BYTES
            if waits and new.least_ms is None:
                continue  # or is on its way
            # What is on its way fills a queue, too, where the way is long.
            waits = waits and flow[7] >= self._limits.queued_rtt * (new.least_ms or 0.0)
            full[flow[0]] = full.get(flow[0], False) or waits
        self.samples.append(
            Sample(
                now,
                min(MOST, last.bytes + moved),
                last.cpu_s + _grown(before, look, "cpu_s"),
                last.waited_s + _grown(before, look, "waited_s"),
                last.held_s + _grown(before, look, "held_s"),
                min(MOST, last.segments + sent),
                min(MOST, last.again + again),
                len(full),
                sum(full.values()),
                any(state == "D" for _, _, state in look["processes"]) or look.get("disk", (0, 0))[1] > 0,
                min(MOST, last.disk_bytes + max(0, disk - before.get("disk", (disk, 0))[0])),
                look.get("step", -1),
                last.faults + _grown(before, look, "faults"),
            )
        )
        while self.samples[0].at < now - KEPT_S:
            self.samples.popleft()
        self._look, self._flows = look, flows
        self.cores = look.get("cores") or 0.0
        self.memory, self.swapped = look.get("memory") or (0, 0)
        self.says_waits = "waited_s" in look

    def over(self, since: float, until: float, slack_s: float) -> Window | None:
        """What it did between these times; None unless a look is there at most `slack_s` before each of them."""
        seen: list[Sample] = []
        for sample in reversed(self.samples):
            if sample.at <= until:
                seen.append(sample)
                if sample.at <= since:
                    break
        seen.reverse()
        if len(seen) < 3 or seen[-1].at < until - slack_s or not since - slack_s <= seen[0].at <= since:
            return None
        first, last, rest = seen[0], seen[-1], seen[1:]
        seconds = last.at - first.at
        moving = [
            (new.bytes - old.bytes) >= self._limits.still_flow_bytes_s * (new.at - old.at)
            for old, new in zip(seen, rest)  # noqa: B905  Python 3.8
        ]
        segments = last.segments - first.segments
        return Window(
            seconds,
            (last.bytes - first.bytes) / seconds,
            sum(moving) / len(moving),
            (last.cpu_s - first.cpu_s) / seconds,
            (last.waited_s - first.waited_s) / seconds,
            min(1.0, (last.held_s - first.held_s) / seconds),
            segments,
            (last.again - first.again) / segments if segments else 0.0,
            sum(2 * each.full >= each.peers > 0 for each in rest) / len(rest),
            sum(each.in_disk for each in rest) / len(rest),
            (last.disk_bytes - first.disk_bytes) / seconds,
            sum(new.step > old.step for old, new in zip(seen, rest)) / len(rest),  # noqa: B905  Python 3.8
            (last.faults - first.faults) / seconds,
        )


GOES_ON = 0.8  # of the looks in which a worker must have moved bytes, or named a new step


def goes_on(window: Window) -> bool:
    """Whether a task with that window trains all the time."""
    return max(window.moving, window.stepping) >= GOES_ON


class CallLook(NamedTuple):
    """A connection to a task's port, over which bytes had moved since the look before."""

    at: float
    caller: str
    called: str
    unanswered: bool  # the caller has sent since it last received


class HostLook(NamedTuple):
    """A host, as it was at one look; counters since its start."""

    at: float
    swapped: int  # bytes, in and out
    others: tuple[tuple[int, str, float], ...]  # pid, name and cores of processes that are not the run's
    disks: Mapping[str, Sequence[Any]] = {}  # name -> reads and writes, bytes, ms of work, model
    pressure: Mapping[str, int] = {}  # `cpu`, `io`, `memory` -> ms in which a program waited for it ...
    own_pressure: Mapping[str, int] = {}  # ... of the agent's cgroup, where the tasks are in it
    cores: int = 0  # processors; 0: not told


class GpuLoad(NamedTuple):
    """What NVML said of a GPU."""

    at: float
    use: int | None  # percent of the time in which it computed
    slowed_by: tuple[str, ...]
    heat_ms: int | None
    energy_j: int | None
    limit_w: float | None
    lanes: Sequence[int] | None  # of PCIe: now, at most
    pcie: Sequence[int] | None  # its generation: now, at most
    nvlinks: Sequence[int] | None  # MB/s of each; 0: down, 1: not told
    gpm: Sequence[float] | None  # percent: SMs, tensor cores, memory


class Paces:
    """All tasks and hosts of a run."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.limits = watched.thresholds
        self.tasks = {task: self._anew(task) for task in watched.places}
        self.machines: dict[str, deque[HostLook]] = {}
        self.first_looks: dict[str, HostLook] = {}
        self.gpus: dict[str, deque[GpuLoad]] = {}
        self.most_nvlinks: dict[str, int] = {}  # UUID -> that were ever up in this run
        self.calls: deque[CallLook] = deque()
        self.now = 0.0
        # (since, until, slack) -> what `over` has found, until the next look.
        self._windows: dict[tuple[float, float, float], dict[str, Window]] = {}
        self._on: dict[str, list[str]] = {}
        for task, place in watched.places.items():
            self._on.setdefault(place.host, []).append(task)
        self.gpu_window_s = 4 * self.limits.gpu_look_s
        self._gpus = {uuid for uuids in watched.gpus.values() for uuid in uuids}
        self._ports: dict[tuple[str, int], str] = {}
        self._servers: set[str] = set()  # addresses of parameter servers
        self._moved: dict[tuple[str, str, int, int], tuple[float, int]] = {}
        for task, place in watched.places.items():
            if place.port is not None:
                for address in (place.address, *watched.names.get(place.address, ())):
                    self._ports[address, place.port] = task
                    if task.startswith("ps/"):
                        self._servers.add(address)

    def _counts(self, name: str, flow: Sequence[Any]) -> bool:
        """Whether that connection is to a task of the run; of a worker that has parameter servers, to one of these."""
        called = self._ports.get((flow[0], flow[1]))
        if called is None and flow[2] != self.watched.places[name].port:
            return False
        if not self._servers or not self.tasks[name].trains:
            return True
        return flow[0] in self._servers if called is None else called.startswith("ps/")

    def _anew(self, task: str) -> Pace:
        return Pace(task, self.limits)

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        """The agent of that host has looked at its tasks."""
        self.now = now
        self._windows = {}
        for name, look in fields["tasks"].items():
            if name in self.tasks and self.watched.places[name].host == host:
                flows = look.get("flows") or ()
                paces = [*look.get("paces", ()), *[None] * len(flows)]
                # Only of the first of many connections; of none by older agents, as by older kernels.
                least = [*look.get("least_rtts", [0.0] * len(flows)), *[None] * len(flows)]
                ours = [
                    each
                    for each in zip(flows, paces, least)  # noqa: B905  Python 3.8
                    if self._counts(name, each[0])
                ]
                self._note_calls(name, ours, now)
                self.tasks[name].seen(look, now, ours)
        at = now - fields.get("gpus_age_s", 0.0)
        for uuid, load in (fields.get("gpus") or {}).items():
            loads = self.gpus.setdefault(uuid, deque()) if uuid in self._gpus else None
            if loads is not None and (not loads or at > loads[-1].at + self.limits.gpu_look_s / 2):
                slowed_by = tuple(load.get("slowed_by", ()))
                rest = (load.get(name) for name in GpuLoad._fields[3:])
                loads.append(GpuLoad(at, load.get("use"), slowed_by, *rest))
                while loads and loads[0].at < now - self.gpu_window_s:
                    loads.popleft()
        machine = fields.get("machine")
        if machine is not None:
            seen = self.machines.setdefault(host, deque())
            others = tuple((pid, title, cores) for pid, title, cores in machine.get("others", ()))
            told = {name: machine[name] for name in HostLook._fields[3:] if name in machine}
            seen.append(HostLook(now, machine["swapped"], others, **told))
            self.first_looks.setdefault(host, seen[0])
            while seen[0].at < now - KEPT_S:
                seen.popleft()

    def _note_calls(self, name: str, ours: Iterable[Any], now: float) -> None:
        for flow, pace, _ in ours:
            called = self._ports.get((flow[0], flow[1]))
            if called is None or pace is None or called == name:
                continue
            key, total = (name, flow[0], flow[1], flow[2]), flow[3] + flow[4]
            at, before = self._moved.get(key, (now, total))
            if now > at and total - before >= self.limits.still_flow_bytes_s * (now - at):
                self.calls.append(CallLook(now, name, called, pace[2] < pace[3]))
            self._moved[key] = (now, total)
        while self.calls and self.calls[0].at < now - KEPT_S:
            self.calls.popleft()

    def gone(self, task: str) -> None:
        """That task has ended, is lost, or begins anew."""
        if task in self.tasks:
            self.tasks[task] = self._anew(task)
            self._windows = {}
            self.calls = deque(call for call in self.calls if task not in (call.caller, call.called))
            self._moved = {key: total for key, total in self._moved.items() if key[0] != task}

    def over(self, since: float, until: float, slack_s: float = 0.0) -> dict[str, Window]:
        """What each task did in that time, of those that were looked at; see Pace.over."""
        slack_s = slack_s or 1.5 * self.limits.look_s
        known = self._windows.get((since, until, slack_s))
        if known is None:
            found = {name: pace.over(since, until, slack_s) for name, pace in self.tasks.items()}
            known = {name: window for name, window in found.items() if window is not None}
            self._windows[since, until, slack_s] = known
        return known

    @property
    def hosts(self) -> Iterable[str]:
        """The hosts of the run."""
        return self._on

    def on(self, host: str) -> Sequence[str]:
        """The tasks of that host."""
        return self._on.get(host, ())

    def may_use_all(self, task: str) -> bool:
        """Whether a task may use all processors of its host, as far as is told; others may have the rest."""
        machines, cores = self.machines.get(self.watched.places[task].host), self.tasks[task].cores
        return not machines or not cores or cores >= machines[-1].cores

    def unanswered(self, since: float, callers: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Of each task that these call: in how many looks since then, and in what share of them without an answer."""
        seen: dict[str, list[bool]] = {}
        among = set(callers)
        for call in self.calls:
            if call.at >= since and call.caller in among:
                seen.setdefault(call.called, []).append(call.unanswered)
        return {called: (len(each), sum(each) / len(each)) for called, each in seen.items()}

    def held_by_heat(self, seen: Sequence[GpuLoad]) -> float | None:
        """The share of the time between these loads in which heat held that GPU's clocks; None where NVML is silent."""
        first, last = seen[0], seen[-1]
        if first.heat_ms is None or last.heat_ms is None or last.at <= first.at:
            return None
        return min(1.0, max(0.0, (last.heat_ms - first.heat_ms) / 1000 / (last.at - first.at)))

    def watts(self, seen: Sequence[GpuLoad]) -> float | None:
        """The mean power of that GPU between these loads; None where NVML is silent."""
        first, last = seen[0], seen[-1]
        if first.energy_j is None or last.energy_j is None or last.at <= first.at:
            return None
        return min(MOST_W, max(0.0, (last.energy_j - first.energy_j) / (last.at - first.at)))

    def host_over(self, host: str, since: float, until: float) -> tuple[HostLook, HostLook] | None:
        """The last looks at that host before either of these times; None unless both are there, and fresh."""
        ends: list[HostLook] = []
        for time in (since, until):
            last = next((each for each in reversed(self.machines.get(host, ())) if each.at <= time), None)
            if last is not None and last.at >= time - 1.5 * self.limits.look_s:
                ends.append(last)
        return (ends[0], ends[1]) if len(ends) == 2 and ends[1].at >= ends[0].at + 1.0 else None

    def lasting(self, host: str, what: str, since: float, until: float) -> float:
        """What `stalled` is in each part of that time, at least: not that of a burst."""
        part_s = (until - since) / PRESSURE_PARTS
        starts = [since + number * part_s for number in range(PRESSURE_PARTS)]
        return min(self.stalled(host, what, start, start + part_s) for start in starts)

    def stalled(self, host: str, what: str, since: float, until: float) -> float:
        """The share of that time in which programs of the agent's cgroup, else of the host, waited for that resource.

        0 where the kernel does not tell.
        """
        looks = self.host_over(host, since, until)
        if looks is None:
            return 0.0
        first, last = looks
        before, after = (pressure_of(each.own_pressure, each.pressure, what) for each in looks)
        if before is None or after is None or before.own != after.own:
            return 0.0
        return min(1.0, max(0.0, (after.ms - before.ms) / 1000 / (last.at - first.at)))

    def other(self, host: str, since: float) -> tuple[str, float]:
        """Of the processes there that are not the run's: who has used most, `pid 4711 stress`, and the cores of all."""
        used: dict[tuple[int, str], float] = {}
        seen = [each for each in self.machines.get(host, ()) if each.at >= since]
        for machine in seen:
            for pid, name, cores in machine.others:
                used[pid, name] = used.get((pid, name), 0.0) + cores / len(seen)
        if not used:
            return "", 0.0
        pid, name = max(used, key=lambda each: used[each])
        return f"pid {pid} {name}", sum(used.values())


class Pressure(NamedTuple):
    """How long programs of a host have waited for a resource."""

    ms: int
    own: bool  # only those in the agent's cgroup count


def pressure_of(own: Mapping[str, int], whole: Mapping[str, int], what: str) -> Pressure | None:
    """That of the agent's cgroup, else of the host, by `own_pressure` and `pressure` of a look; None: not told."""
    if what in own:
        return Pressure(own[what], True)
    return Pressure(whole[what], False) if what in whole else None


def _told(
    old: KnownFlow | None, flow: Sequence[Any], pace: Sequence[Any] | None, least_ms: float | None
) -> KnownFlow:
    """That connection as it is now: what is not told this time is as it was."""
    counted = old or KnownFlow(0)
    segments, again = (pace[1], pace[0]) if pace else (counted.segments, counted.again)
    # The kernel forgets the shortest after five minutes, in which a link may have been full all the time.
    shortest = [each for each in (least_ms, counted.least_ms) if each is not None]
    return KnownFlow(flow[3] + flow[4], segments, again, min(shortest, default=None))


def _more(old: int | None, new: int | None) -> int:
    return 0 if old is None or new is None else max(0, new - old)


def _grown(before: Mapping[str, Any], look: Mapping[str, Any], name: str) -> float:
    """What that counter has grown; a process that has ended takes its count with it."""
    return max(0.0, look.get(name, 0.0) - before.get(name, 0.0)) if name in before else 0.0


def median(values: Iterable[float]) -> float:
    """The middle one, of two the mean; 0 of none."""
    ranked = sorted(values)
    if not ranked:
        return 0.0
    half = len(ranked) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
