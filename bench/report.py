"""The tables: on the screen, as Markdown, as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import rich.table
from rich.console import Console
from rich.markup import escape

import tflaunch
from bench.measure import Table


def machine() -> str:
    """This machine, its kernel and the versions that matter, in a line."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr.split(",")[0]
    return (
        f"{os.cpu_count()} cores of {model}, {memory / 2**20:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {ssh}, tflaunch {tflaunch.__version__}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def header(rounds: int) -> str:
    """What stands above the tables."""
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return f"Median of {rounds}, {day}; {machine()}; the hosts are namespaces of the same machine."


def lines(table: Table) -> list[list[str]]:
    """The cells: a head, then a line for each method, by the first figure that is compared."""
    columns = table.columns()
    head = ["", *columns, *(f"{each} ×" for each in table.compared if each in columns)]
    cells = []
    for method in table.rows:
        figures = [number(table.median(method, column)) for column in columns]
        ratios = [number(table.ratio(method, column)) for column in table.compared if column in columns]
        cells.append([method, *figures, *ratios])
    return [head, *cells]


def number(value: float | None) -> str:
    """Three digits, as far as they mean something."""
    if value is None:
        return "-"
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def show(table: Table, console: Console) -> None:
    """On the screen."""
    head, *rows = lines(table)
    drawn = rich.table.Table(title=table.title, title_justify="left", caption_justify="left")
    for name in head:
        drawn.add_column(escape(name), justify="right" if name else "left")
    for row in rows:
        style = "bold" if row[0] == table.reference else ""
        drawn.add_row(*map(escape, row), style=style)
    console.print(drawn)
    for remark in table.remarks:
        console.print(f"  {remark}", markup=False, highlight=False)
    console.print()


def markdown(tables: Sequence[Table], rounds: int) -> str:
    """For docs/performance.md."""
    parts = [header(rounds), ""]
    for table in tables:
        head, *rows = lines(table)
        parts += [f"### {table.title}", "", _row(head), "|---|" + "--:|" * (len(head) - 1)]
        parts += [_row(row) for row in rows]
        parts += ["", *(f"- {remark}" for remark in table.remarks), ""]
    return "\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def as_json(tables: Sequence[Table], rounds: int) -> str:
    """Every figure of every round."""
    return json.dumps({"header": header(rounds), "tables": [asdict(table) for table in tables]}, indent=1)


def read(path: Path) -> list[Table]:
    """The tables of an earlier run; raises OSError, ValueError, KeyError, TypeError."""
    return [
        Table(**{**each, "compared": tuple(each["compared"])})
        for each in json.loads(path.read_text())["tables"]
    ]
