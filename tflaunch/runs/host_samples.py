"""What the tasks of a run used while a coordinator decided for it: kept on its host, and brought into the record here.

The host may lie: a line of its file that is not as agent/tally_file.py writes it is passed over.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.lifecycle.tallies import COUNTERS, DID, EVERY_S, PRESSURES
from tflaunch.protocol.fields import (
    Each,
    a_number,
    a_time,
    a_whole_number,
    a_word,
    anything,
    misfit,
    or_null,
)
from tflaunch.runs.record_files import write_bytes, writing
from tflaunch.runs.samples import (
    COLUMNS,
    HOST_COLUMNS,
    Rows,
    SampleColumn,
    Sampled,
    Values,
    merged_rows,
    most_bins,
)
from tflaunch.runs.sampling import deeds, pressures_between, values_between

if TYPE_CHECKING:
    from tflaunch.lifecycle.tallies import Tally
    from tflaunch.runs.visits import Visits

HOST_SAMPLES = "host-samples.jsonl"
MOST_BYTES = 16 << 20  # that are taken from a host
FORMAT = 1
_KNOWN = or_null(a_number)
_TALLY = (*(_KNOWN,) * COUNTERS, a_time, *(_KNOWN,) * 5, a_whole_number)
_WITH_GPM = (*_TALLY[:-1], *(a_time,) * 3, a_whole_number)
_OF_HOST = (*(or_null(a_whole_number),) * len(PRESSURES), a_whole_number)
_LINE = (a_time, Each(a_word, anything))

_Tallies = dict[str, list[tuple[float, "Tally"]]]


@dataclass
class HostSamples:
    """The tallies of each task and host, and when they were made (seconds after `began`)."""

    began: float  # epoch seconds
    every_s: float
    over: bool = False  # the run is: nothing more comes
    tallies: _Tallies = field(default_factory=dict)
    of_hosts: _Tallies = field(default_factory=dict)

    def rows(self, task: str) -> Iterator[tuple[float, Values]]:
        """(seconds after `began`, values of the samples' columns until then since the tally before)."""
        for at, passed_s, before, tally in _pairs(self.tallies.get(task, ())):
            step, loss = tally[COUNTERS + 1 : COUNTERS + 3]
            yield at, values_between(before, tally, passed_s, step=step, loss=loss)

    def rows_of_host(self, host: str) -> Iterator[tuple[float, Values]]:
        """The same of a host."""
        for at, passed_s, before, tally in _pairs(self.of_hosts.get(host, ())):
            yield at, pressures_between(before, tally, passed_s)

    def firsts(self, task: str) -> dict[str, float]:
        """What that task has done, and when."""
        found: dict[str, float] = {}
        for at, tally in self.tallies.get(task, ()):
            for what in deeds(tally):
                found.setdefault(what, at)
            if len(found) == len(DID):
                break
        return found


def _pairs(tallies: Iterable[tuple[float, Tally]]) -> Iterator[tuple[float, float, Tally, Tally]]:
    """Of each two that follow each other: the later one's time, the seconds between, and both."""
    for (was, before), (at, tally) in itertools.pairwise(tallies):
        if at > was:
            yield at, at - was, before, tally


def read_host_samples(path: Path, tasks: Set[str], hosts: Set[str] = frozenset()) -> HostSamples | None:
    """What that file has of these tasks and hosts.

    None where it has nothing, or another version wrote it.  Raises OSError.
    """
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
                if _fits(tallies[task], _TALLY, _WITH_GPM):
                    found.tallies.setdefault(task, []).append((at, tallies[task]))
            for host in tallies.keys() & hosts - tasks:
                if _fits(tallies[host], _OF_HOST):
                    found.of_hosts.setdefault(host, []).append((at, tallies[host]))
    return found


def _fits(tally: Any, *specs: Any) -> bool:
    return any(not misfit(spec, tally, "") for spec in specs)


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
    whole = sampled or Sampled(there.began, EVERY_S, most_bins(len(tasks), len(there.of_hosts)), tasks)
    whole.tasks += [task for task in tasks if task not in whole.tasks]
    whole.hosts += [host for host in there.of_hosts if host not in whole.hosts]
    while whole.every_s < there.every_s:
        whole.thin()
    bins, host_bins = dict(whole.bins), dict(whole.host_bins)
    later_s = there.began - whole.began

    def bin_of(at: float) -> int:
        return int(max(0.0, at + later_s) / whole.every_s)

    for task in tasks:
        firsts = whole.firsts.setdefault(task, {})
        for what, at in there.firsts(task).items():
            firsts.setdefault(what, max(0.0, at + later_s))
        _put(bins, task, ((bin_of(at), row) for at, row in there.rows(task)), COLUMNS)
    for host in there.of_hosts:
        _put(host_bins, host, ((bin_of(at), row) for at, row in there.rows_of_host(host)), HOST_COLUMNS)
    whole.bins, whole.host_bins = sorted(bins.items()), sorted(host_bins.items())
    while whole.last >= whole.most:
        whole.thin()
    return whole


def _put(
    bins: dict[int, Rows],
    name: str,
    numbered: Iterable[tuple[int, Values]],
    columns: Sequence[SampleColumn],
) -> None:
    """Put these values of a task, or host, into the bins of these numbers."""
    for number, row in numbered:
        rows = bins.setdefault(number, {})
        rows[name] = merged_rows([rows[name], row], columns) if name in rows else row
