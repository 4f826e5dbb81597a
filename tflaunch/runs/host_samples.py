"""What the tasks of a run used while a coordinator decided for it: kept on its host, and brought into the record here.

The host may lie: a line of its file that is not as agent/tally_file.py writes it is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.lifecycle.tallies import COUNTERS, DID, EVERY_S
from tflaunch.protocol.fields import Each, a_number, a_task, a_time, a_whole_number, misfit, or_null
from tflaunch.runs.record_files import write_bytes, writing
from tflaunch.runs.samples import Sampled, Values, merged_rows, most_bins
from tflaunch.runs.sampling import deeds, values_between

if TYPE_CHECKING:
    from tflaunch.lifecycle.tallies import Tally
    from tflaunch.runs.visits import Visits

HOST_SAMPLES = "host-samples.jsonl"
MOST_BYTES = 16 << 20  # that are taken from a host
FORMAT = 1
_KNOWN = or_null(a_number)
_TALLY = (*(_KNOWN,) * COUNTERS, a_time, *(_KNOWN,) * 5, a_whole_number)
_LINE = (a_time, Each(a_task, _TALLY))


@dataclass
class HostSamples:
    """The tallies of each task, and when they were made (seconds after `began`)."""

    began: float  # epoch seconds
    every_s: float
    over: bool = False  # the run is: nothing more comes
    tallies: dict[str, list[tuple[float, Tally]]] = field(default_factory=dict)

    def rows(self, task: str) -> Iterator[tuple[float, Values]]:
        """(seconds after `began`, values of the samples' columns until then since the tally before)."""
        before: tuple[float, Tally] | None = None
        for at, tally in self.tallies.get(task, ()):
            if before is not None and at > before[0]:
                step, loss = tally[COUNTERS + 1 : COUNTERS + 3]
                yield at, values_between(before[1], tally, at - before[0], step=step, loss=loss)
            before = at, tally

    def firsts(self, task: str) -> dict[str, float]:
        """What that task has done, and when."""
        found: dict[str, float] = {}
        for at, tally in self.tallies.get(task, ()):
            for what in deeds(tally):
                found.setdefault(what, at)
            if len(found) == len(DID):
                break
        return found


def read_host_samples(path: Path, tasks: Set[str]) -> HostSamples | None:
    """What that file has of these tasks; None where it has nothing, or another version wrote it.  Raises OSError."""
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return None
    head, *rest = map(_parsed, lines or [""])
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        return None
    if misfit({"format": a_number, "began": a_time, "every_s": a_time}, head, ""):
        return None
    found = HostSamples(head["began"], head["every_s"])
    for line in rest:
        if isinstance(line, dict):
            found.over |= line.get("over") is True
        elif line is not None and not misfit(_LINE, line, ""):
            at, tallies = line
            for task in tallies.keys() & tasks:
                found.tallies.setdefault(task, []).append((at, tallies[task]))
    return found


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def bring(visits: Visits, run_id: str, record: Path) -> None:
    """Bring what the hosts have of that run into its record; raises ConnectErrors, RecordError, Stopped."""
    if data := visits.samples(run_id, MOST_BYTES):
        with writing(record):
            write_bytes(record / HOST_SAMPLES, data)


def merged(sampled: Sampled | None, there: HostSamples) -> Sampled:
    """The samples that a launcher has kept, followed by those of the hosts."""
    tasks = list(there.tallies)
    whole = sampled or Sampled(there.began, EVERY_S, most_bins(len(tasks)), tasks)
    whole.tasks += [task for task in tasks if task not in whole.tasks]
    while whole.every_s < there.every_s:
        whole.thin()
    bins = dict(whole.bins)
    later_s = there.began - whole.began
    for task in tasks:
        firsts = whole.firsts.setdefault(task, {})
        for what, at in there.firsts(task).items():
            firsts.setdefault(what, max(0.0, at + later_s))
        for at, row in there.rows(task):
            rows = bins.setdefault(int(max(0.0, at + later_s) / whole.every_s), {})
            rows[task] = merged_rows(rows[task], row) if task in rows else row
    whole.bins = sorted(bins.items())
    while whole.bins and whole.bins[-1][0] >= whole.most:
        whole.thin()
    return whole
