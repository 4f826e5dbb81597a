"""What people see of fetched outputs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text
from tflaunch.text.numbers import amount, counted
from tflaunch.text.safe import one_line

if TYPE_CHECKING:
    from tflaunch.runs.fetch_result import Fetched

SHOWN = 8
_NOTHING = "the tasks have written no files in their working directories"


def fetched_lines(fetched: Fetched, marks: Marks) -> list[Text]:
    """What was fetched, and where to; what was not, and why."""
    warn = (f"{marks.warn} ", "yellow")
    lines: list[Text] = []
    if fetched.apart:
        names = _some(sorted(fetched.apart), marks)
        lines.append(Text(f"  different on each host, so in a directory for each host: {names}", "dim"))
    for where, why in _shown(fetched.left, marks):
        lines.append(Text(f"  left out: {where}: {why}", "dim"))
    if fetched.hidden:
        names = _some(fetched.hidden, marks)
        pattern = shlex.quote(re.sub(r"([*?\[\\])", r"\\\1", fetched.hidden[0]))
        which = "; a pattern that names the dot fetches them: "
        lines.append(
            Text(f"  left out, for their names begin with a dot: {names}{which}{one_line(pattern)}", "dim")
        )
    for where, why in _shown(fetched.failed, marks):
        lines.append(Text.assemble(warn, f"not fetched: {where}: {why}"))
    for host, error in fetched.unreached.items():
        lines.append(Text.assemble(warn, (host, "bold"), f": {one_line(error.message)}"))
    if fetched.kept:
        lines.append(
            Text.assemble(
                warn,
                f"kept here, though their content differs ({len(fetched.kept)}; --overwrite replaces them): ",
                _some(fetched.kept, marks),
            )
        )
    for pattern in fetched.unmatched:
        there = f"there is: {_some(fetched.there, marks)}" if fetched.there else ""
        there = there or ("" if fetched.files or fetched.same else _NOTHING)
        lines.append(Text.assemble(warn, f"nothing matches {one_line(pattern)}{there and f'; {there}'}"))
    mark = (f"{marks.ok} ", "bold green") if fetched.complete else (f"{marks.bad} ", "bold red")
    before = f", {fetched.same} more there already" if fetched.same else ""
    if fetched.complete and not (fetched.files or fetched.same):
        what = "nothing else is there to fetch" if fetched.left or fetched.hidden else _NOTHING
        return [*lines, Text.assemble(mark, f"nothing was fetched: {what}")]
    where = f" in {one_line(fetched.directory)}" if fetched.files or fetched.same else ""
    lines.append(
        Text.assemble(
            mark, f"fetched {counted(fetched.files, 'file')}, {amount(fetched.bytes)}{before}", where
        )
    )
    return lines


def _some(names: Sequence[str], marks: Marks) -> str:
    more = f" {marks.more} {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return one_line(", ".join(names[:SHOWN])) + more


def _shown(reasons: Mapping[str, str], marks: Marks) -> list[tuple[str, str]]:
    rows = [(one_line(where), one_line(why)) for where, why in list(reasons.items())[:SHOWN]]
    return rows + ([(f"{len(reasons) - SHOWN} more", marks.more)] if len(reasons) > SHOWN else [])
