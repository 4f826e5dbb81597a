"""Who holds which GPUs, as `tflaunch gpus --all-users` shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tflaunch.console.gpus_states import summary_lines
from tflaunch.console.safe_text import Text, hung, paragraph
from tflaunch.console.screen import Screen, reader_may_leave
from tflaunch.console.text_table import Column, table
from tflaunch.survey.gpu_users import Hold, data, unseen, users
from tflaunch.text.numbers import counted
from tflaunch.text.times import age

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tflaunch.console.pen import Sheet
    from tflaunch.survey.gpu_overview import Overview

_COLUMNS = 100  # of a summary in a pipe
_SOMEBODY = "?"


def show_users(overview: Overview, *, json: bool) -> None:
    """Print who holds which GPUs."""
    screen = Screen()
    with reader_may_leave():
        if json:
            screen.write_json(data(overview, time.time()))
        else:
            screen.show(users_lines(overview, screen))


def users_lines(overview: Overview, sheet: Sheet) -> list[Text]:
    """A line for each run and each process that holds GPUs, by user; then the sums, and what could not be seen."""
    rows = [row for each in users(overview) for row in _rows(each.user, each.holds)]
    columns = [
        Column("user", [Text(user or _SOMEBODY, "bold") for user, _ in rows], shrink=1, least=8),
        Column("GPUs", [Text(str(len(holds))) for _, holds in rows], right=True),
        Column("for", [Text(_age(holds)) for _, holds in rows], right=True),
        Column("what", [Text(_what(holds[0])) for _, holds in rows], shrink=2, least=16),
        Column("which", [Text(_which(holds)) for _, holds in rows], shrink=3, least=16, wraps=True),
    ]
    lines = [*table(columns, sheet.columns, sheet.marks.more), Text()] if rows else []
    for each in users(overview):
        where = each.hosts[0] if len(each.hosts) == 1 else counted(len(each.hosts), "host")
        runs = len({hold.run for hold in each.holds if hold.run})
        processes = len({(hold.host, hold.pid) for hold in each.holds if not hold.run and hold.pid})
        parts = [counted(runs, "run")] if runs else []
        parts += [counted(processes, "other process")] if processes else []
        by = f": {', '.join(parts)}" if parts else ""
        lines.append(
            paragraph(
                (each.user or "users not shown", "bold"), f" {counted(each.gpus, 'GPU')} on {where}{by}"
            )
        )
    lines += summary_lines(overview, sheet.columns or _COLUMNS, sheet.marks)
    for text in unseen(overview):
        line = paragraph((f"{sheet.marks.warn} ", "yellow"), text)
        lines.append(line if sheet.columns is None else hung(line, sheet.columns))
    return lines


def _rows(user: str, holds: Iterable[Hold]) -> list[tuple[str, list[Hold]]]:
    """The holds of each run, and those of each process."""
    found: dict[tuple[str, str, int], list[Hold]] = {}
    for hold in holds:
        key = (hold.run, "", 0) if hold.run else ("", hold.host, hold.pid)
        found.setdefault(key, []).append(hold)
    return [(user, each) for each in found.values()]


def _what(hold: Hold) -> str:
    if hold.run:
        return f"run {hold.run}"
    if not hold.pid:
        return "a process that is not shown"
    return f"pid {hold.pid} {hold.command}".rstrip()


def _which(holds: Sequence[Hold]) -> str:
    by_host: dict[str, list[str]] = {}
    for hold in holds:
        by_host.setdefault(hold.host, []).append(hold.gpu)
    return " ".join(f"{host}:{','.join(labels)}" for host, labels in by_host.items())


def _age(holds: Sequence[Hold]) -> str:
    ages = [hold.age_s for hold in holds if hold.age_s is not None]
    return age(max(ages)) if ages else "?"
