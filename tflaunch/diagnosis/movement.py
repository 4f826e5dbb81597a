"""What a task has moved between looks: processor time, bytes of its connections, bytes of its files, lines of its log.

A task that waits is never quite idle: heartbeats, a timer, a garbage collection.  Each thing that a task uses fills a
bucket that leaks at the rate of an idle task; the task moves when the bucket runs over.  Who wants to run, and gets no
processor on a crowded host, does not stand still.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any

    from tflaunch.diagnosis.thresholds import Thresholds

BUSY_CORES = 0.08  # with so much of a core a task computes: a crowded machine may give it no more
A_MINUTE_S = 60.0
STARVED_LOOKS = 4  # of many threads, a look asks a quarter: so many have asked them all


class Bucket:
    """Runs over when more comes in than `rate` a second, and `most` besides."""

    def __init__(self, rate: float, most: float) -> None:
        self.rate = rate
        self.most = most
        self.level = 0.0

    def add(self, amount: float, passed_s: float) -> bool:
        """Whether it runs over; then it is empty again."""
        self.level = max(0.0, self.level + max(0.0, amount) - self.rate * passed_s)
        if self.level <= self.most:
            return False
        self.level = 0.0
        return True


def starves(cores: float, waiting: float, limits: Thresholds) -> bool:
    """Whether a task wants to run and hardly does: it uses so many cores, and so many of its threads wait for one."""
    return cores < limits.idle_cores and waiting >= limits.starved_wait


class _Had(NamedTuple):
    """What a task has had so far, in seconds."""

    at: float
    cpu_s: float
    waited_s: float
    held_s: float


class Starving:
    """Whether a task starves, by what its last looks tell."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._seen: deque[_Had] = deque(maxlen=STARVED_LOOKS + 1)

    def seen(self, look: Mapping[str, Any], now: float) -> bool:
        """Take the next look; whether it starves, as far as the looks show."""
        had = _Had(now, look["cpu_s"], look.get("waited_s", 0.0), look.get("held_s", 0.0))
        if self._seen and (had.cpu_s < self._seen[-1].cpu_s or had.waited_s < self._seen[-1].waited_s):
            self._seen.clear()  # a child has gone with its times, or a new attempt has begun
        self._seen.append(had)
        return self.lately(now)

    def lately(self, now: float) -> bool:
        """Whether it has starved, up to a look that is fresh."""
        if len(self._seen) <= STARVED_LOOKS or now - self._seen[-1].at > self._limits.fresh_s:
            return False
        first, last = self._seen[0], self._seen[-1]
        seconds = last.at - first.at
        return starves(
            (last.cpu_s - first.cpu_s) / seconds, (last.waited_s - first.waited_s) / seconds, self._limits
        )

    @property
    def held(self) -> float:
        """The share of the time of these looks in which its cgroup's quota has stopped it."""
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        return min(1.0, max(0.0, (last.held_s - first.held_s) / (last.at - first.at)))


class Movement:
    """What the looks at one task show, one after another."""

    def __init__(self, limits: Thresholds, port: int | None) -> None:
        self._limits = limits
        self._port = port  # its own
        self._turns = Bucket(limits.turns_s, 3.0)
        self._cpu = Bucket(limits.still_cores, limits.blip_cpu_s)
        self._io = Bucket(limits.still_io_bytes_s, limits.blip_bytes)
        self._files = Bucket(limits.still_io_bytes_s, limits.blip_bytes)
        self._bytes = Bucket(limits.still_flow_bytes_s, limits.blip_bytes)
        self._peers = Bucket(limits.still_flow_bytes_s, limits.blip_bytes)
        self.starving = Starving(limits)
        self.look: Mapping[str, Any] = {}  # the last one
        self.at = 0.0  # its time
        self.compared = False  # two looks have been; else what is known comes from an earlier watchdog
        self.still_since: float | None = None  # neither processor time nor bytes
        self.mute_since: float | None = None  # neither bytes nor log lines, whatever it computes
        self.busy_since: float | None = None  # mute, and it computes
        self.unwritten_since: float | None = None  # neither log lines nor bytes of files
        self.rested_since: float | None = None  # its main thread has not woken once, whatever others compute
        self.peers_moved_at: float | None = None  # when it last moved bytes to or from a task of the run
        # When its main thread was last seen to do something between waits.
        self.turned_at: float | None = None
        self.trickled_at: float | None = None  # when any byte last went to or came from a task of the run
        self.wrote_at: float | None = None  # when its log last grew
        self.cores = 0.0  # between the last two looks

    @property
    def sees_bytes(self) -> bool:
        """Whether its host can count the bytes of its connections."""
        return self.look.get("flows") is not None

    def seen(self, look: Mapping[str, Any], now: float, cluster: Container[tuple[str, int]]) -> None:
        """Take the next look; `cluster` are the endpoints of the run's tasks."""
        before, passed_s = self.look, now - self.at
        if before and passed_s <= 0:
            return
        self.look, begun, self.at = look, self.at, now
        starves = self.starving.seen(look, now)
        if not before:
            return
        self.compared = True
        used_s = look["cpu_s"] - before["cpu_s"]
        if used_s < 0:  # a child has gone with its processor time, or a new attempt has begun
            used_s = 0.0
        self.cores = used_s / passed_s
        computes = self._cpu.add(used_s, passed_s) or starves
        # Slow steps of a small model move fewer bytes than heartbeats do.
        moves = self._moves(before, look, passed_s, cluster, now) or _steps(before, look)
        turns = look.get("turns", 0) - before.get("turns", 0)
        if self._turns.add(turns, passed_s):
            self.turned_at = now
        self.rested_since = None if turns or starves or "turns" not in look else _or(self.rested_since, begun)
        writes = look["log_bytes"] != before["log_bytes"]
        if writes:
            self.wrote_at = now
        uses_files = self._files.add(_of_files(before, look), passed_s)
        self.unwritten_since = None if writes or uses_files else _or(self.unwritten_since, begun)
        self.still_since = None if computes or moves else _or(self.still_since, begun)
        self.mute_since = None if moves or writes else _or(self.mute_since, begun)
        busy = self.mute_since is not None and self.cores >= BUSY_CORES
        self.busy_since = _or(self.busy_since, begun) if busy else None

    def _moves(
        self,
        before: Mapping[str, Any],
        look: Mapping[str, Any],
        passed_s: float,
        cluster: Container[tuple[str, int]],
        now: float,
    ) -> bool:
        old, new = before.get("io"), look.get("io")
        files = 0 if old is None or new is None else new - old
        moved, among_us = self._excess(before, look, passed_s, cluster)
        if self._trickles(before, look, cluster):
            self.trickled_at = now
        if self._peers.add(among_us, passed_s):
            self.peers_moved_at = now
        # Both are filled, whatever the first says.
        return self._io.add(files, passed_s) | self._bytes.add(moved, passed_s)

    def _excess(
        self,
        before: Mapping[str, Any],
        look: Mapping[str, Any],
        passed_s: float,
        cluster: Container[tuple[str, int]],
    ) -> tuple[float, float]:
        """What its connections have moved beyond heartbeats: (all, those to tasks of the run)."""
        old = _totals(before)
        moved = among_us = 0.0
        allowed = self._limits.still_flow_bytes_s * passed_s
        for (address, port, own), total in _totals(look).items():
            excess = max(0.0, total - old.get((address, port, own), 0) - allowed)
            moved += excess
            if (address, port) in cluster or own == self._port:
                among_us += excess
        return moved, among_us

    def _trickles(
        self, before: Mapping[str, Any], look: Mapping[str, Any], cluster: Container[tuple[str, int]]
    ) -> bool:
        old = _totals(before)
        return any(
            total > old.get((address, port, own), 0)
            for (address, port, own), total in _totals(look).items()
            if (address, port) in cluster or own == self._port
        )

    def loops(self, recent_s: float) -> bool:
        """Whether its main thread is in a loop of the program: it waits, does something, waits again."""
        return self.turned_at is not None and self.at - self.turned_at <= recent_s

    def trickles(self, recent_s: float) -> bool:
        """Whether it goes round in a loop, and has just talked to its peers: it is slow, no more."""
        return (
            self.loops(recent_s) and self.trickled_at is not None and self.at - self.trickled_at <= recent_s
        )

    def chatty(self, since: float) -> bool:
        """Whether it has written log lines since then, not only at the beginning."""
        return self.wrote_at is not None and self.wrote_at > since + self._limits.wait_s / 2


def _steps(before: Mapping[str, Any], look: Mapping[str, Any]) -> bool:
    """Whether it has named a new step."""
    return "step" in before and look.get("step", 0) > before["step"]


def carries(before: Mapping[str, Any], look: Mapping[str, Any], heartbeats: float) -> bool:
    """Whether a task has named a new step, or a connection has carried more bytes than these."""
    old = _totals(before)
    moved = any(total - old.get(flow, 0) > heartbeats for flow, total in _totals(look).items())
    return moved or _steps(before, look)


def _of_files(before: Mapping[str, Any], look: Mapping[str, Any]) -> float:
    """How many more bytes it has read and written than its connections have carried: some count as both."""
    old, new = before.get("io"), look.get("io")
    if old is None or new is None:
        return 0.0
    carried = _totals(before)
    return float(new - old - sum(max(0, now - carried.get(flow, 0)) for flow, now in _totals(look).items()))


def _totals(look: Mapping[str, Any]) -> dict[tuple[str, int, int], int]:
    """(peer's address, its port, own port) -> bytes sent and received."""
    return {(flow[0], flow[1], flow[2]): flow[3] + flow[4] for flow in look.get("flows") or ()}


def _or(since: float | None, otherwise: float) -> float:
    return otherwise if since is None else since
