"""What `tflaunch clean` is to remove, and what it has removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.console.pen import BAD, GOOD, WARN, Marks, Sheet
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.text_table import Column, table
from tflaunch.runs.clean import HERE, Kept, RunsPlace, Selection, named, titles
from tflaunch.text.numbers import agreeing, amount, counted
from tflaunch.text.times import age

ROWS = 30  # of the list of runs to remove; --json has all


def selection_lines(known: Sequence[RunsPlace], chosen: Selection, sheet: Sheet) -> list[Text]:
    """The runs to remove, the longest unused first, and where each one is."""
    spots: dict[str, list[tuple[RunsPlace, Kept]]] = {}
    for number, runs in chosen.goes.items():
        for kept in known[number].runs:
            if kept.run_id in runs:
                spots.setdefault(kept.run_id, []).append((known[number], kept))
    oldest_first = sorted(spots, key=lambda run: -min(kept.idle_s for _, kept in spots[run]))
    rows = [spots[run] for run in oldest_first[:ROWS]]
    columns = [
        Column("run", [Text(parts[0][1].run_id, "bold") for parts in rows]),
        Column("unused", [Text(age(min(kept.idle_s for _, kept in parts))) for parts in rows], right=True),
        Column("size", [Text(amount(sum(kept.bytes for _, kept in parts))) for parts in rows], right=True),
        Column("on", [Text(titles([place for place, _ in parts]), "dim") for parts in rows], shrink=1),
    ]
    lines = table(columns, sheet.columns, sheet.marks.more) if rows else []
    if len(spots) > ROWS:
        lines.append(Text(f"{sheet.marks.more} and {len(spots) - ROWS} more; --json has them all", "dim"))
    return lines


def cleaned_lines(document: Mapping[str, Any], sheet: Sheet) -> list[Text]:
    """What was removed from each place, what stays, and why; `document` is that of tflaunch.runs.clean."""
    marks, dry_run = sheet.marks, document["dry_run"]
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
        troubles += [f"{title}: not measured: {each}" for each in place["unread"]]
        if over := place["too_large_bytes"]:
            troubles.append(
                f"{title}: still {amount(over)} more than --max-size; nothing else may be removed"
            )
    troubles += [f"{run} stays: {why}" for run, why in document["stays"].items()]
    lines = [Text.assemble(mark, (named(names), "bold"), text) for (mark, text), names in folded]
    lines += [paragraph((f"{marks.warn} ", WARN), trouble) for trouble in troubles]
    if dry_run:
        lines.append(Text("--dry-run: nothing was removed", "dim"))
    return lines


def _fate(place: Mapping[str, Any], dry_run: bool, marks: Marks) -> tuple[Text, Text]:
    """What was removed from a place: the mark before its name, and what follows the name."""
    removed, stay = len(place["removed"]), place["stay"]
    gone = [counted(removed, "run")] if removed else []
    gone += ["shipped code"] if place["code"]["files"] else []
    if made := place["environments"]["files"]:
        gone.append("a virtual environment" if made == 1 else f"{made} virtual environments")
    gone += ["what an interrupted clean left"] if place["rest_bytes"] else []
    text = f": {' and '.join(gone)} {'would be removed' if dry_run else 'removed'}, {amount(place['freed_bytes'])}"
    text = text if gone else ": nothing to remove"
    if stay["runs"]:
        text += f"; {stay['runs']} stay{agreeing(stay['runs'], 's', '')}, {amount(stay['bytes'])}"
    if place["failed"]:
        return Text(f"{marks.bad} ", BAD), Text(text)
    done = gone and not dry_run
    return Text(f"{marks.ok} ", GOOD) if done else Text(f"{marks.dot} ", "dim"), Text(
        text, "" if gone else "dim"
    )
