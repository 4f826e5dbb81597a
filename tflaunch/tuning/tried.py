"""What is known of each layout, and the file in the record that keeps it, for a search that goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tflaunch.protocol.errors import UsageError
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import reading
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.prediction import MeasuredLayout, predicted

TUNE = "tune.json"
FORMAT = 1


@dataclass(frozen=True)
class Try:
    """One run of a layout."""

    round: int  # from 0
    run_id: str
    rate: float | None  # steps in a second; None: why says why not
    low: float = 0.0
    high: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    shared: bool = False
    tasks: Mapping[str, int] = field(default_factory=dict)  # job -> how many
    hosts: int = 0
    limits: tuple[str, ...] = ()  # sentences of the rules of slowness
    notes: tuple[str, ...] = ()
    cut_short: bool = False  # it was so slow that it did not go on to its last step
    why: str = ""  # it has no rate
    exit_code: int = 0  # ... of its run, EXIT_PLAN where it does not fit, EXIT_NO_METRIC without steps


class Tried:
    """The layouts of a search and their tries; with a record, each is kept as soon as it ends."""

    def __init__(self, layouts: Sequence[TaskLayout], about: Mapping[str, Any]) -> None:
        self.layouts = tuple(layouts)
        self.tries: dict[TaskLayout, list[Try]] = {layout: [] for layout in layouts}
        self._about = dict(about)
        self._record: Record | None = None

    def keep_in(self, record: Record) -> None:
        """Keep what is known in this record from now on; raises RecordError."""
        self._record = record
        self._write()

    def go_on(self, record: Record) -> None:
        """Take the tries on record, and keep more there.  Raises UsageError for another search, RecordError."""
        kept = record.read(TUNE, FORMAT)
        if kept is None:
            raise UsageError(f"{record.run_id} is no search for a layout", "tflaunch ps -a lists all runs")
        if kept.get("about") != self._about:
            raise UsageError(
                f"{record.run_id} tries other layouts, or another program",
                f"go on with its own words: tflaunch tune --resume {record.run_id}",
            )
        with reading(record.path):
            for each in kept["tries"]:
                layout = TaskLayout(**each["layout"])
                said = {
                    **each["try"],
                    "limits": tuple(each["try"]["limits"]),
                    "notes": tuple(each["try"]["notes"]),
                }
                self.tries[layout].append(Try(**said))
        self._record = record

    def of_round(self, layout: TaskLayout, number: int) -> Try | None:
        """Its last try in that round, which may have failed and have no rate; None where there was none."""
        found = [each for each in self.tries[layout] if each.round == number]
        return found[-1] if found else None

    def add(self, layout: TaskLayout, tried: Try) -> None:
        """Keep a try; raises RecordError."""
        self.tries[layout].append(tried)
        self._write()

    def _write(self) -> None:
        if self._record is not None:
            tries = [
                {"layout": asdict(each), "try": asdict(one)}
                for each in self.layouts
                for one in self.tries[each]
            ]
            self._record.write(TUNE, {"format": FORMAT, "about": self._about, "tries": tries})

    def rates(self, layouts: Sequence[TaskLayout], number: int) -> dict[TaskLayout, float | None]:
        """The rates of these layouts in that round."""
        found = {layout: self.of_round(layout, number) for layout in layouts}
        return {layout: tried.rate if tried is not None else None for layout, tried in found.items()}

    def last(self, layout: TaskLayout) -> Try | None:
        """Its latest try, that of the most steps."""
        return self.tries[layout][-1] if self.tries[layout] else None

    def ranked(self) -> list[TaskLayout]:
        """The layouts with a rate: who came furthest first, and of these the fastest."""
        known = [(layout, tried) for layout in self.layouts if (tried := self.last(layout)) and tried.rate]
        return [each for each, _ in sorted(known, key=lambda pair: (-pair[1].round, -(pair[1].rate or 0.0)))]

    def level(self) -> list[TaskLayout]:
        """The best, and those of its round whose spread meets the spread of the best: which is faster is open."""
        best, *rest = self.ranked()
        first = self.last(best)
        return [best] + [
            each
            for each in rest
            if first is not None
            and (tried := self.last(each)) is not None
            and tried.round == first.round
            and tried.high >= first.low
        ]

    def predicted(self, layout: TaskLayout) -> float | None:
        """What the others say of its rate, by those with tasks at the same places and with as many threads."""
        own = self.last(layout)
        if own is None or own.rate is None:
            return None
        alike = [
            other
            for other in self.layouts
            if other != layout
            and (other.place, other.threads, other.ps_hosts, other.worker_hosts)
            == (layout.place, layout.threads, layout.ps_hosts, layout.worker_hosts)
        ]
        measured = [
            MeasuredLayout(workers_of(tried.tasks), tried.tasks.get("ps", 0), tried.rate)
            for other in alike
            if (tried := self.last(other)) is not None and tried.rate is not None
        ]
        return predicted(measured, workers_of(own.tasks), own.tasks.get("ps", 0))


def workers_of(tasks: Mapping[str, int]) -> int:
    """How many of them train."""
    return tasks.get("worker", 0) + tasks.get("chief", 0)
