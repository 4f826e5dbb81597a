"""Runs whose slots are over: their records get an end, so that no command looks for them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tflaunch.hosts import Host
from tflaunch.protocol.errors import EXIT_UNCLEAN, Gone, RecordError, UsageError
from tflaunch.protocol.outcome import HostLost, Outcome
from tflaunch.runs.record import Record, hostfile_from, note_end
from tflaunch.runs.record_list import MAY_BE_ALIVE, list_runs


def note_gone(gone: Mapping[str, Gone], hosts: Collection[Host]) -> None:
    """Note the end of each run on record here all of whose slots are among the `hosts` that are `gone`."""
    over = [(host.connection, host.slot, gone[host.name]) for host in hosts if host.name in gone]
    for info in list_runs():
        if info.status not in MAY_BE_ALIVE or not info.hosts:
            continue
        try:
            mine = hostfile_from(Record.open(info.run_id)).hosts
        except (RecordError, UsageError):  # removed meanwhile, or another version wrote it
            continue
        why = [error for way, slot, error in over if any((way, slot) == (h.connection, h.slot) for h in mine)]
        if len(why) == len(mine):
            first = HostLost(mine[0].name, why[0].message)
            note_end(Outcome(info.run_id, "failed", EXIT_UNCLEAN, 0.0, first_failure=first))
