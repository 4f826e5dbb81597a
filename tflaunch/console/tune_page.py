"""What people see of a search for the fastest layout: each try as it ends, the table at the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tflaunch.console.pen import GOOD, WARN, Sheet, whole
from tflaunch.console.safe_text import Text, hung, paragraph, unstacked
from tflaunch.console.text_table import Column, Table
from tflaunch.documents.json_documents import TuneDocument
from tflaunch.documents.json_reports import LayoutData
from tflaunch.text.numbers import counted
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.tried import Try


def sentence(layout: TaskLayout, tried: Try) -> str:
    """How fast a layout was, in a line."""
    if tried.rate is None:
        return f"{layout}: not measured: {tried.why}"
    short = "; far behind, so it was ended early" if tried.cut_short else ""
    return f"{layout}: {tried.rate:.3g} steps/s ({tried.low:.3g} to {tried.high:.3g}){short}"


def planned_page(document: TuneDocument) -> list[Text]:
    """The layouts that would be tried, and the rounds."""
    layouts = document["layouts"]
    lines = [whole(" ".join(each["options"]) or "as tflaunch run has it") for each in layouts]
    for number, each in enumerate(document["rounds"], 1):
        what = counted(each["layouts"], "layout")
        lines.append(Text(f"round {number}: {what}, {each['steps']} steps", "dim"))
    return lines


def stopped_page(document: TuneDocument, sheet: Sheet) -> list[Text]:
    """What a search that has not come to its end knows, and the command that goes on with it."""
    tried: TuneDocument = {**document, "layouts": [each for each in document["layouts"] if each["tries"]]}
    known = tune_page(tried, sheet, so_far=" so far") if document["best"] else []
    again = f"  {sheet.marks.next} go on: tflaunch tune --resume {document['run_id']}"
    return [*known, whole(again, "cyan")]


def tune_page(document: TuneDocument, sheet: Sheet, *, so_far: str = "") -> list[Text]:
    """All layouts, the fastest first, what limited each, and the command of the best."""
    layouts, marks = document["layouts"], sheet.marks
    named = list(dict.fromkeys(name for each in layouts for name in each["layout"]))
    jobs = list(dict.fromkeys(job for each in layouts for job in each["tasks"]))
    known = {"ps": "ps", "workers": "worker"}
    shown = [name for name in named if known.get(name) not in jobs]
    columns = [
        Column("", [Text(marks.ok if each["best"] else "", GOOD) for each in layouts]),
        Column(
            "steps/s",
            [Text("" if each["rate"] is None else f"{each['rate']:.3g}", "bold") for each in layouts],
            right=True,
        ),
        Column("spread", [Text(_spread(each)) for each in layouts]),
        Column(
            "predicted",
            [Text("" if each["predicted"] is None else f"{each['predicted']:.3g}") for each in layouts],
            right=True,
        ),
        *(
            Column(
                job,
                [Text(str(each["tasks"].get(job, 0)) if each["tasks"] else "") for each in layouts],
                right=True,
            )
            for job in jobs
        ),
        Column(
            "hosts",
            [Text("" if each["hosts"] is None else str(each["hosts"])) for each in layouts],
            right=True,
        ),
        *(
            Column(name.replace("_", " "), [Text(str(each["layout"].get(name, ""))) for each in layouts])
            for name in shown
        ),
        Column(
            "what limited it", [Text(_limit(each), "dim") for each in layouts], shrink=1, wraps=True, least=30
        ),
    ]
    used = [column for column in columns if column.heading == "" or any(cell.plain for cell in column.cells)]
    lines = Table(used, sheet.columns, marks.more).lines()
    lines += [Text(), *_words(document, sheet, so_far)]
    for line in lines:
        line.no_wrap = True
    return lines


def _spread(layout: LayoutData) -> str:
    low, high = layout["low"], layout["high"]
    return "" if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _limit(layout: LayoutData) -> str:
    """What held it up, without the remedy, which is about the layout that this search is about."""
    if layout["why"]:
        return layout["why"]
    said = [text.partition(";")[0] for text in layout["limits"][:1]] + layout["notes"]
    return "; ".join(said)


def _words(document: TuneDocument, sheet: Sheet, so_far: str) -> list[Text]:
    layouts, marks = document["layouts"], sheet.marks
    level = [each for each in layouts if each["best"]]
    lines = []
    if len(level) > 1:
        text = f"the first {len(level)} differ by no more than their spread"
        lines.append(
            paragraph(
                (f"{marks.warn} ", WARN),
                f"{text}; the fewest tasks are the cheapest, and more steps tell more",
            )
        )
    counting = (
        "a global step"
        if any(each["global_steps"] for each in layouts)
        else "the steps of all workers together"
    )
    lines.append(paragraph((f"{marks.dot} steps/s: {counting}; spread: of the quarters of the time", "dim")))
    if any(each["predicted"] is not None for each in layouts):
        lines.append(
            paragraph(
                (
                    f"{marks.dot} predicted: by the other layouts, a step taking a/workers + b/ps seconds",
                    "dim",
                )
            )
        )
    lines = [
        part for line in lines for part in (unstacked(hung(line, sheet.columns)) if sheet.columns else [line])
    ]
    return [
        *lines,
        whole(f"  {marks.next} the fastest{so_far}: {shlex.join(document['best'])}", "cyan"),
        whole(f"  {marks.next} what it did last: tflaunch report {_last_run(layouts)}", "cyan"),
    ]


def _last_run(layouts: Sequence[LayoutData]) -> str:
    return layouts[0]["tries"][-1]["run_id"]
