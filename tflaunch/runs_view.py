"""What `tflaunch ps`, `status` and `clean` show to people: tables as wide as the terminal, whole in a pipe.

No state is told by colour alone: each has its mark and its word.  Every line is one line of the terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from tflaunch.cards_view import age
from tflaunch.clean import HERE, Kept, Place, Selection, named, titles
from tflaunch.console_pages import Marks, Pen
from tflaunch.errors import ConnectError
from tflaunch.log_lines import printable
from tflaunch.writer import Stream

ROWS = 30  # of what is to be removed; --json has all
_OK, _BAD, _WARN = "#009e73", "bold #d55e00", "#e69f00"  # Okabe and Ito's


class Screen:
    """stdout, for a result that is shown at once."""

    def __init__(self) -> None:
        stream = Stream(sys.stdout or io.StringIO())
        self._pen = Pen(stream)
        self.marks = self._pen.marks
        self.columns = self._pen.columns or None  # None: a pipe, which takes lines of any length

    def show(self, lines: Sequence[Text]) -> None:
        """Print these lines."""
        for line in lines:
            line.no_wrap = True
        self.write("".join(map(self._pen.render, lines)))

    def write(self, text: str) -> None:
        """Print text as it is; what the encoding lacks appears as `\\u2026`."""
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Inside, `| head` may go away when it has what it wanted."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Column:
    """A column of a table; of those that may be left out the one with the highest `rank` goes first."""

    heading: str
    cells: Sequence[Text]
    right: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        return max([len(self.heading), *(cell.cell_len for cell in self.cells)])


def table(columns: Sequence[Column], width: int | None, more: str) -> list[Text]:
    """The lines of a table; where there is no room columns are left out, and then the last one is cut."""
    shown = [column for column in columns if any(cell.plain for cell in column.cells)]
    while width is not None and sum(each.width + 2 for each in shown) - 2 > width:
        ranked = max(shown, key=lambda column: column.rank)
        if not ranked.rank:
            break
        shown.remove(ranked)
    lines = []
    for number in range(-1, max((len(column.cells) for column in shown), default=0)):
        line = Text()
        for column in shown:
            cell = Text(column.heading, "dim") if number < 0 else column.cells[number]
            gap = " " * (column.width - cell.cell_len)
            line.append_text(Text(gap) + cell if column.right else cell + Text(gap)).append("  ")
        line.rstrip()
        lines.append(cut(line, width, more))
    return lines


def cut(line: Text, width: int | None, more: str) -> Text:
    """The line, not longer than `width`."""
    if width is not None and line.cell_len > width:
        line.truncate(width - len(more), overflow="crop")
        line.append(more, "dim")
    return line


def amount(size: float) -> str:
    """`12.1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# What is removed


def selection_lines(known: Sequence[Place], chosen: Selection, screen: Screen) -> list[Text]:
    """Which runs are to go, the one longest unused first, and from where."""
    spots: dict[str, list[tuple[Place, Kept]]] = {}
    for number, runs in chosen.goes.items():
        for kept in known[number].runs:
            if kept.run_id in runs:
                spots.setdefault(kept.run_id, []).append((known[number], kept))
    oldest_first = sorted(spots, key=lambda run: -min(kept.idle_s for _, kept in spots[run]))
    rows = [spots[run] for run in oldest_first[:ROWS]]
    columns = [
        Column("run", [Text(printable(parts[0][1].run_id), "bold") for parts in rows]),
        Column("unused", [Text(age(min(kept.idle_s for _, kept in parts))) for parts in rows], right=True),
        Column("size", [Text(amount(sum(kept.bytes for _, kept in parts))) for parts in rows], right=True),
        Column("on", [Text(printable(titles([place for place, _ in parts])), "dim") for parts in rows]),
    ]
    lines = table(columns, screen.columns, screen.marks.more) if rows else []
    if len(spots) > ROWS:
        lines.append(Text(f"{screen.marks.more} and {len(spots) - ROWS} more; --json has them all", "dim"))
    return lines


def cleaned_lines(document: Mapping[str, Any], screen: Screen) -> list[Text]:
    """What was removed from each place, and what stays; of `clean_document`."""
    marks, dry_run = screen.marks, document["dry_run"]
    folded: list[tuple[tuple[Text, Text], list[str]]] = []
    troubles = []
    for place in document["places"]:
        names = place["hosts"] or [HERE]
        title, fate = named(names), _fate(place, dry_run, marks)
        alike = next((others for other, others in folded if other == fate), None)
        if alike is None:
            folded.append((fate, list(names)))
        else:
            alike += names
        troubles += [f"{title}: {run}: {why}" for run, why in place["failed"].items()]
        if over := place["too_large_bytes"]:
            troubles.append(f"{title}: still {amount(over)} more than --max-size; nothing else may go")
    troubles += [f"{run} stays: {why}" for run, why in document["stays"].items()]
    lines = [Text.assemble(mark, (named(names), "bold"), text) for (mark, text), names in folded]
    lines += [Text.assemble((f"{marks.warn} ", _WARN), printable(trouble)) for trouble in troubles]
    if dry_run:
        lines.append(Text("--dry-run: nothing was removed", "dim"))
    return lines


def _fate(place: Mapping[str, Any], dry_run: bool, marks: Marks) -> tuple[Text, Text]:
    """What has become of a place: its mark, and what follows its name."""
    removed, stay = len(place["removed"]), place["stay"]
    gone = [f"{removed} run{'' if removed == 1 else 's'}"] if removed else []
    gone += ["shipped code"] if place["code"]["files"] else []
    gone += ["what an interrupted clean left"] if place["rest_bytes"] else []
    text = f": {' and '.join(gone)} {'would go' if dry_run else 'removed'}, {amount(place['freed_bytes'])}"
    text = text if gone else ": nothing to remove"
    if stay["runs"]:
        text += f"; {stay['runs']} stay{'s' if stay['runs'] == 1 else ''}, {amount(stay['bytes'])}"
    if place["failed"]:
        return Text(f"{marks.bad} ", _BAD), Text(text)
    done = gone and not dry_run
    return Text(f"{marks.ok} ", _OK) if done else Text(f"{marks.dot} ", "dim"), Text(
        text, "" if gone else "dim"
    )


def unreachable_data(failures: Mapping[str, ConnectError]) -> dict[str, dict[str, str]]:
    """Hosts that could not be asked, as what JSON can hold."""
    return {host: {"message": each.message, "hint": each.hint} for host, each in failures.items()}
