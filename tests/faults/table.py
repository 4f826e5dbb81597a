"""docs/reliability.md: its rows are the suite's, its times those of the last complete run of it.

python -m tests.faults.table FIGURES      # write the table anew, with the times in that file
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT

DOCUMENT = ROOT / "docs" / "reliability.md"
MODULES = ("processes", "hosts", "links", "reconnect", "end", "detached", "agents", "restarts", "schedules")
BEGIN, END = "<!-- table: written by scripts/faults -->\n", "<!-- end of table -->\n"
TIMES = {"noticed": "noticed", "back": "back", "ended": "run over", "gone": "all gone"}
HEAD = (
    f"| what befalls it | what comes of it | what is lost | {' | '.join(TIMES.values())} |\n|{'---|' * 7}\n"
)


def faults() -> Iterator[tuple[str, str, str]]:
    """(fault, what comes of it, what is lost) of every test, as its marker says."""
    for name in MODULES:
        for value in vars(importlib.import_module(f"tests.faults.test_{name}")).values():
            for marker in getattr(value, "pytestmark", ()):
                if marker.name == "fault":
                    yield marker.args


def rows(text: str) -> list[tuple[str, ...]]:
    """The rows of the table in a document: all columns."""
    table = text.partition(BEGIN)[2].partition(END)[0].removeprefix(HEAD)
    return [tuple(cell.strip() for cell in line.strip("|\n").split("|")) for line in table.splitlines()]


def written(text: str, figures: dict[str, dict[str, float]]) -> str:
    """The document with a table of all faults and these times; where there are none, they stay as they were."""
    before = {row[0]: row[3:] for row in rows(text)}
    lines = []
    for fault, happens, lost in faults():
        if fault in figures:
            times = tuple(f"{figures[fault][key]:g} s" if key in figures[fault] else "" for key in TIMES)
        else:
            times = before.get(fault, ("",) * len(TIMES))
        lines.append(f"| {' | '.join((fault, happens, lost, *times))} |\n")
    above, _, rest = text.partition(BEGIN)
    return above + BEGIN + HEAD + "".join(lines) + END + rest.partition(END)[2]


def worst(lines: Iterator[str]) -> dict[str, dict[str, float]]:
    """The longest of each time, for each fault: several tests may share a row."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        times = json.loads(line)
        of_fault = found.setdefault(times.pop("fault"), {})
        for key, seconds in times.items():
            of_fault[key] = max(seconds, of_fault.get(key, 0.0))
    return found


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as measured:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), worst(measured)))
