"""Runs whose slots are over: their records get an end, so that no command looks for them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tflaunch.engines.taken_slots import forget
from tflaunch.hosts import Host, slot_identity
from tflaunch.protocol.errors import (
    EXIT_INTERRUPTED,
    EXIT_RECLAIMED,
    EXIT_STOPPED,
    EXIT_UNCLEAN,
    Gone,
    RecordError,
    UsageError,
)
from tflaunch.protocol.outcome import EndedByRule, Outcome, Reclaimed
from tflaunch.runs.record import Record, hostfile_from, note_end
from tflaunch.runs.record_list import MAY_BE_ALIVE, list_runs


def note_gone(gone: Mapping[str, Gone], hosts: Collection[Host]) -> None:
    """Note the end of each run on record here all of whose slots are among the `hosts` that are `gone`."""
    over = {slot_identity(host): gone[host.name] for host in hosts if host.name in gone}
    for info in list_runs():
        if info.status not in MAY_BE_ALIVE or not info.hosts:
            continue
        try:
            record = Record.open(info.run_id)
            mine, slots = hostfile_from(record).hosts, record.slots
        except (RecordError, UsageError):  # removed meanwhile, or another version wrote it
            continue
        why = [over[slot_identity(host)] for host in mine if slot_identity(host) in over]
        if len(why) == len(mine):
            noted = note_end(_end(info.run_id, mine[0].name, why))
            if noted and slots is not None:
                forget(*slots, mine)


def _end(run: str, host: str, why: Sequence[Gone]) -> Outcome:
    """The end of a run whose slots are over: taken back, or as all have ended in order."""
    if taken_back := [error for error in why if not error.in_order]:
        first = Reclaimed(taken_back[0].message, host)
        return Outcome(run, "failed", EXIT_RECLAIMED, 0.0, first_failure=first)
    known = {error.code for error in why} - {None, EXIT_UNCLEAN}
    if len(known) != 1:
        unknown = "its slots have ended in order, and how the run has ended is not known here"
        return Outcome(run, "failed", EXIT_UNCLEAN, 0.0, first_failure=EndedByRule(unknown, (), EXIT_UNCLEAN))
    code = known.pop() or 0
    if code in (EXIT_INTERRUPTED, EXIT_STOPPED):
        return Outcome(run, "interrupted", code, 0.0)
    said = f"the run has ended with exit code {code}; its slots, with all that they had of it, are over"
    return Outcome(
        run,
        "failed" if code else "succeeded",
        code,
        0.0,
        first_failure=EndedByRule(said, (), code) if code else None,
    )
