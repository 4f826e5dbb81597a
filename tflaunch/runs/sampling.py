"""Makes samples of what the agents' looks say: rates between two looks, their mean in each bin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.diagnosis.signs import LOSS
from tflaunch.lifecycle.tallies import COUNTERS, DID, of_host, tallies_of
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.samples import (
    COLUMNS,
    HOST_COLUMNS,
    NAMES,
    SAMPLES,
    SampleColumn,
    SampleFile,
    Values,
    merged_rows,
)
from tflaunch.sessions.printed_numbers import finite, number_of, step_in

if TYPE_CHECKING:
    from tflaunch.lifecycle.tallies import Tallies, Tally
    from tflaunch.runs.record import Record

_Look = Mapping[str, Any]
NOTHING_USED: Tally = [*[0] * COUNTERS, 0.0, *[None] * 5, 0]


class Rates:
    """What tasks use from one look at them to the next."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies
        self._before: dict[str, tuple[float, Tally]] = {}  # when a task was last looked at, and its tally

    def started(self, task: str, now: float) -> None:
        """That task has started now: what it uses until the first look at it counts, unless it ran before."""
        self._before.setdefault(task, (now, NOTHING_USED))

    def row(self, task: str, look: _Look, gpus: Mapping[str, Any], now: float) -> Values | None:
        """The values of COLUMNS since the look before, or its start; None where neither is known.

        `now` is of the steady clock.
        """
        at, before = self._before.get(task, (now, None))
        tally = self._tallies.of(task, look, gpus)
        self._before[task] = now, tally
        if before is None or now <= at:
            return None
        step, loss = _told(look)
        return values_between(before, tally, now - at, step=step, loss=loss)

    def did(self, task: str) -> Iterator[str]:
        """What that task has done by the last look at it, of those of DID."""
        return deeds(self._before[task][1])

    def of_host(self, host: str, machine: _Look, now: float) -> Values | None:
        """The values of HOST_COLUMNS since the look at that host before; None where the kernel does not tell."""
        tally = of_host(machine)
        if tally is None:
            return None
        at, before = self._before.get(host, (now, tally))
        self._before[host] = now, tally
        return pressures_between(before, tally, now - at) if now > at else None


def values_between(
    before: Tally, tally: Tally, passed_s: float, *, step: float | None, loss: float | None
) -> Values:
    """The values of COLUMNS from one tally of a task to a later one."""
    # A counter falls where a child has ended, or a new attempt has begun.
    rates: Values = [
        None if old is None or new is None else max(0.0, new - old) / passed_s
        for old, new in zip(before[:COUNTERS], tally[:COUNTERS], strict=True)
    ]
    quiet_s, _, _, *of_gpus, _ = tally[COUNTERS:]
    row = [*rates, quiet_s, step, loss, *of_gpus]
    return row + [None] * (len(NAMES) - len(row))


def pressures_between(before: Tally, tally: Tally, passed_s: float) -> Values:
    """The values of HOST_COLUMNS from one tally of a host to a later one."""
    others = before[-1] ^ tally[-1]  # bits of those that count other programs than before
    return [
        None
        if old is None or new is None or others >> bit & 1
        else round(min(100.0, max(0.0, (new - old) / 10 / passed_s)), 1)
        for bit, (old, new) in enumerate(zip(before[:-1], tally[:-1], strict=True))
    ]


def deeds(tally: Tally) -> Iterator[str]:
    """What a task has done by that tally, of those of DID."""
    return (what for bit, what in enumerate(DID) if tally[-1] >> bit & 1)


class Sampling:
    """Keeps samples of a run in a file, from `looked` messages (agent/tasks/look.py)."""

    def __init__(
        self,
        path: Path,
        watched: Mapping[str, Any],
        refused: Callable[[RecordError], object],
        *,
        clocks: tuple[float, float],
        at_once: int | None = None,
    ) -> None:
        """`watched`: the `data` of the run's watchdog.  `refused` is called once, if the disk refuses.

        clocks: the time now, by the steady clock and in epoch seconds.  at_once: as of SampleFile.
        Raises nothing for a disk that refuses.
        """
        self._places = watched["places"]
        self._rates = Rates(tallies_of(watched))
        self._refused = refused
        self._open: dict[str, _Sum] = {}
        self._open_hosts: dict[str, _Sum] = {}
        self._number = 0
        steady, epoch = clocks
        self._file: SampleFile | None = None
        try:
            self._file = SampleFile(path, list(self._places), epoch, at_once)
            self._zero = steady - max(0.0, epoch - self._file.began)
            self._number = self._file.bin_of(steady - self._zero)
        except RecordError as error:
            refused(error)

    def started(self, task: str, now: float) -> None:
        """That task has started: it may end soon, as trials do."""
        self._rates.started(task, now)

    def looked(self, host: str, fields: _Look, now: float) -> None:
        """Take the fields of a `looked` message of that host; `now` is of the steady clock."""
        if self._file is None:
            return
        try:
            number = self._file.bin_of(now - self._zero)
            if number > self._number:
                self._shut(self._file)
                self._number = self._file.bin_of(now - self._zero)
            for task, look in fields["tasks"].items():
                if task in self._places:
                    self._take(self._file, task, look, fields.get("gpus") or {}, now)
            of_host = self._rates.of_host(host, fields.get("machine") or {}, now)
            if of_host is not None:
                self._open_hosts.setdefault(host, _Sum(HOST_COLUMNS)).add(of_host)
        except RecordError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._file is not None:
            try:
                self._shut(self._file)
            except RecordError as error:
                self._give_up(error)

    def _shut(self, file: SampleFile) -> None:
        if self._open or self._open_hosts:
            rows = {task: each.row for task, each in self._open.items()}
            of_hosts = {host: each.row for host, each in self._open_hosts.items()}
            self._open, self._open_hosts = {}, {}
            file.add(self._number, rows, of_hosts)

    def _give_up(self, error: RecordError) -> None:
        self._file = None
        self._refused(error)

    def _take(self, file: SampleFile, task: str, look: _Look, gpus: Mapping[str, Any], now: float) -> None:
        row = self._rates.row(task, look, gpus, now)
        for what in self._rates.did(task):
            file.first(task, what, now - self._zero)
        if row is not None:
            self._open.setdefault(task, _Sum(COLUMNS)).add(row)


def sampling_into(
    record: Record,
    watched: Mapping[str, Any],
    warn: Callable[[str], object],
    at_once: int | None = None,
) -> Sampling:
    """Begin to keep samples in that record; if the disk refuses them, the run goes on.

    The user is warned of that once, unless the disk has refused the logs, too, which is told already.
    """

    def refused(error: RecordError) -> None:
        if not record.logs.failure:
            warn(f"{error.message}. {error.hint}")

    clocks = (time.monotonic(), time.time())
    return Sampling(record.path / SAMPLES, watched, refused, clocks=clocks, at_once=at_once)


class _Sum:
    """The values of a task, or a host, in a bin, of as many looks as came."""

    def __init__(self, columns: Sequence[SampleColumn]) -> None:
        self._columns = columns
        self._rows: list[Sequence[float | None]] = []

    def add(self, row: Sequence[float | None]) -> None:
        self._rows.append(row)

    @property
    def row(self) -> Values:
        """One row for all of them."""
        return merged_rows(self._rows, self._columns)


def _told(look: _Look) -> list[float | None]:
    """The step and the loss that the last lines of the log have."""
    says = look["says"]
    of_loss = look.get("signs", {}).get(LOSS, (0, "", 0.0))[1]
    step = next((step for line in (says, of_loss) if (step := _step(line)) is not None), None)
    loss = number_of(says, "loss") if says else None
    if loss is None and of_loss:
        loss = number_of(of_loss, "loss")
    return [step, finite(loss)]


def _step(line: str) -> int | None:
    """The step in a line that may name an epoch, too; else the epoch."""
    if (step := finite(number_of(line, "step"))) is not None:
        return int(step)
    found = step_in(line)
    return int(found[1].partition("/")[0]) if found else None
