"""What people and programs read of fetched outputs."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text
from tflaunch.console.words import counted
from tflaunch.inputs.sizes import amount
from tflaunch.sessions.log_lines import one_line

if TYPE_CHECKING:
    from tflaunch.runs.fetch_result import Fetched

SHOWN = 8


def fetched_data(told: Fetched) -> dict[str, Any]:
    """It, as what JSON can hold."""
    unreached = {host: error.message for host, error in told.unreached.items()}
    return {**dataclasses.asdict(told), "unreached": unreached, "complete": told.complete}


def fetched_lines(told: Fetched, marks: Marks) -> list[Text]:
    """What has come, where it is, and what has not come, and why."""
    warn = (f"{marks.warn} ", "yellow")
    lines: list[Text] = []
    if told.apart:
        names = _some(sorted(told.apart), marks)
        lines.append(Text(f"  not the same on all hosts, so in a directory for each of them: {names}", "dim"))
    for where, why in _shown(told.left, marks):
        lines.append(Text(f"  left out: {where}: {why}", "dim"))
    if told.hidden:
        names = _some(told.hidden, marks)
        pattern = shlex.quote(re.sub(r"([*?\[\\])", r"\\\1", told.hidden[0]))
        which = "; a pattern that names the dot brings them: "
        lines.append(
            Text(f"  left out, as their names begin with a dot: {names}{which}{one_line(pattern)}", "dim")
        )
    for where, why in _shown(told.failed, marks):
        lines.append(Text.assemble(warn, f"did not come: {where}: {why}"))
    for host, error in told.unreached.items():
        lines.append(Text.assemble(warn, (host, "bold"), f": {one_line(error.message)}"))
    if told.kept:
        lines.append(
            Text.assemble(
                warn,
                f"kept as they are here, with other content ({len(told.kept)}; --overwrite replaces them): ",
                _some(told.kept, marks),
            )
        )
    for pattern in told.unmatched:
        there = f"; there is: {_some(told.there, marks)}" if told.there else ""
        lines.append(Text.assemble(warn, f"nothing matches {one_line(pattern)}{there}"))
    mark = (f"{marks.ok} ", "bold green") if told.complete else (f"{marks.bad} ", "bold red")
    before = f", {told.same} more there already" if told.same else ""
    where = f" in {one_line(told.directory)}" if told.files or told.same else ""
    lines.append(
        Text.assemble(mark, f"fetched {counted(told.files, 'file')}, {amount(told.bytes)}{before}", where)
    )
    return lines


def _some(names: Sequence[str], marks: Marks) -> str:
    more = f" {marks.more} {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return one_line(", ".join(names[:SHOWN])) + more


def _shown(reasons: Mapping[str, str], marks: Marks) -> list[tuple[str, str]]:
    rows = [(one_line(where), one_line(why)) for where, why in list(reasons.items())[:SHOWN]]
    return rows + ([(f"{len(reasons) - SHOWN} more", marks.more)] if len(reasons) > SHOWN else [])
