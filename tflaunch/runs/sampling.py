"""Makes samples of what the agents' looks say: rates between two looks, their mean in each bin."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.diagnosis.signs import LOSS
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.samples import COLUMNS, SAMPLES, SampleFile
from tflaunch.sessions.printed_numbers import finite, number_of, step_in

if TYPE_CHECKING:
    from tflaunch.runs.record import Record

_Look = Mapping[str, Any]
_Ports = Mapping[str, Sequence[Any]]  # task -> its host, address and port, as the watchdog has them


class Rates:
    """What tasks use from one look at them to the next."""

    def __init__(
        self,
        ports: Mapping[str, int | None],
        gpus: Mapping[str, Sequence[str]],
        cluster: set[tuple[str, int]],
    ) -> None:
        """Of each task its port and its GPUs' UUIDs; `cluster` has address and port of all."""
        self._ports, self._gpus, self._cluster = ports, gpus, cluster
        # task -> when it was last looked at, and what was seen
        self._before: dict[str, tuple[float, _Look]] = {}

    def meets(self, task: str, look: _Look) -> bool:
        """Whether it has exchanged bytes with a task of the run."""
        return _flows(look, self._cluster, self._ports.get(task))[2] > 0

    def row(self, task: str, look: _Look, gpus: Mapping[str, Any], now: float) -> list[float | None] | None:
        """The values of COLUMNS since the look before; None at the first look.  `now` is of the steady clock."""
        at, before = self._before.get(task, (now, None))
        self._before[task] = now, look
        if before is None or now <= at:
            return None
        rates = self._rates(before, look, now - at, self._ports.get(task))
        return [*rates, *_told(look), *_of_gpus(self._gpus.get(task, ()), gpus)]

    def _rates(self, before: _Look, look: _Look, passed_s: float, port: int | None) -> list[float | None]:
        """Values of the columns up to `quiet_s`."""

        def rate(name: str) -> float | None:
            old, new = before.get(name), look.get(name)
            # It falls where a child has ended, or a new attempt has begun.
            return None if old is None or new is None else max(0.0, new - old) / passed_s

        flows: list[float | None] = [None, None, None]
        if look.get("flows") is not None and before.get("flows") is not None:
            flows = [each / passed_s for each in _flows(look, self._cluster, port, before)]
        return [rate("cpu_s"), *flows, rate("io"), look["quiet_s"]]


class Sampling:
    """Keeps samples of a run in a file, from `looked` messages (agent/tasks/look.py)."""

    def __init__(
        self,
        path: Path,
        watched: Mapping[str, Any],
        refused: Callable[[RecordError], object],
        *,
        clocks: tuple[float, float],
    ) -> None:
        """`watched`: the `data` of the run's watchdog.  `refused` is called once, if the disk refuses.

        clocks: the time now, by the steady clock and in epoch seconds.  Raises nothing for a disk that refuses.
        """
        self._places: _Ports = watched["places"]
        ports = {task: port for task, (_, _, port) in self._places.items()}
        cluster = set(_endpoints(self._places, watched["names"]))
        self._rates = Rates(ports, watched["settings"].get("gpus", {}), cluster)
        self._refused = refused
        self._open: dict[str, _Sum] = {}
        self._number = 0
        steady, epoch = clocks
        self._file: SampleFile | None = None
        try:
            self._file = SampleFile(path, list(self._places), epoch)
            self._zero = steady - max(0.0, epoch - self._file.began)
            self._number = self._file.bin_of(steady - self._zero)
        except RecordError as error:
            refused(error)

    def looked(self, fields: _Look, now: float) -> None:
        """Take the fields of a `looked` message; `now` is of the steady clock."""
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
        if self._open:
            rows = {task: each.row for task, each in self._open.items()}
            self._open = {}
            file.add(self._number, rows)

    def _give_up(self, error: RecordError) -> None:
        self._file = None
        self._refused(error)

    def _take(self, file: SampleFile, task: str, look: _Look, gpus: Mapping[str, Any], now: float) -> None:
        if look["log_bytes"]:
            file.first(task, "printed", now - self._zero)
        if look["listens"]:
            file.first(task, "listens", now - self._zero)
        if self._rates.meets(task, look):
            file.first(task, "peers", now - self._zero)
        row = self._rates.row(task, look, gpus, now)
        if row is not None:
            self._open.setdefault(task, _Sum()).add(row)


def sampling_into(record: Record, watched: Mapping[str, Any], warn: Callable[[str], object]) -> Sampling:
    """Begin to keep samples in that record; if the disk refuses them, the run goes on.

    The user is warned of that once, unless the disk has refused the logs, too, which is told already.
    """

    def refused(error: RecordError) -> None:
        if not record.logs.failure:
            warn(f"{error.message}. {error.hint}")

    clocks = (time.monotonic(), time.time())
    return Sampling(record.path / SAMPLES, watched, refused, clocks=clocks)


class _Sum:
    """The values of a task in a bin, of as many looks as came."""

    def __init__(self) -> None:
        self._rows: list[Sequence[float | None]] = []

    def add(self, row: Sequence[float | None]) -> None:
        self._rows.append(row)

    @property
    def row(self) -> list[float | None]:
        """Means where the column has a mean; else as the column merges them."""
        made: list[float | None] = []
        for number, column in enumerate(COLUMNS):
            values = [value for row in self._rows if (value := row[number]) is not None]
            if not values:
                made.append(None)
            elif column.merge(0.0, 2.0) == 1.0:
                made.append(sum(values) / len(values))
            else:
                value = values[0]
                for other in values[1:]:
                    value = column.merge(value, other)
                made.append(value)
        return made


def _endpoints(places: _Ports, names: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    return [
        (address, port)
        for _, named, port in places.values()
        if port is not None
        for address in (named, *names.get(named, ()))
    ]


def _flows(
    look: _Look, cluster: set[tuple[str, int]], port: int | None, before: _Look | None = None
) -> tuple[float, float, float]:
    """Bytes that a task has sent and received since `before`, and those to and from tasks of the run."""
    old = {tuple(flow[:3]): flow for flow in (before or {}).get("flows") or ()}
    sent = received = among = 0.0
    for flow in look.get("flows") or ():
        address, its_port, own = flow[:3]
        was = old.get((address, its_port, own), (0, 0, 0, 0, 0))
        out, into = max(0, flow[3] - was[3]), max(0, flow[4] - was[4])
        sent, received = sent + out, received + into
        if (address, its_port) in cluster or (port is not None and own == port):
            among += out + into
    return sent, received, among


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


def _of_gpus(uuids: Sequence[str], gpus: Mapping[str, Any]) -> list[float | None]:
    own = [gpus[uuid] for uuid in uuids if uuid in gpus]

    def known(name: str) -> list[float]:
        return [each[name] for each in own if each.get(name) is not None]

    use, watts, memory = known("use"), known("power_w"), known("memory_bytes")
    return [
        sum(use) / len(use) if use else None,
        sum(watts) if watts else None,
        sum(memory) if memory else None,
    ]
