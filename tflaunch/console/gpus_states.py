"""The colour and word of each state of a GPU, and the lines that count the GPUs in each state.

No state is shown by colour alone: each has its sign and its word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text
from tflaunch.survey.gpu_overview import STATES, Overview, State
from tflaunch.text.numbers import counted

NARROW, WIDE, WIDER, WIDEST = 60, 100, 120, 140  # columns

STYLES: Mapping[State, str] = {
    "free": "#009e73",
    "busy": "#e69f00",
    "leased": "#56b4e9",
    "promised": "#3b82c4",
    "broken": "bold #d55e00",
    "mig": "#cc79a7",
}
WORDS: Mapping[State, str] = {**{each: each for each in STATES}, "mig": "MIG"}


def summary_lines(overview: Overview, columns: int, marks: Marks) -> list[Text]:
    """How many GPUs are free, busy, leased and broken: in all, and by model where there are several."""
    models = overview.models
    if not models:
        none = f"no GPU fits; {overview.hidden} do not" if overview.hidden else "no GPUs"
        return [] if overview.waiting else [Text(none, "bold")]
    counts = overview.counts
    shown = [each for each in STATES if counts[each] or each in ("free", "busy")]
    widths = {each: max(len(str(count[each])) for count in (counts, *models.values())) for each in shown}
    roomy = columns >= NARROW  # else only the last line has the words

    def line(count: Counter[State], name: str, style: str, words: bool = True) -> Text:
        parts = []
        for each in shown:
            number = str(count[each]).rjust(widths[each])
            word = f" {WORDS[each]}" if words else ""
            parts.append(Text(f"{marks.gpus[each]} {number}{word}", STYLES[each] if count[each] else "dim"))
        return Text("  " if roomy else " ").join([*parts, Text(name, style)])

    total = f"of {counts.total()}" + (f" on {counted(len(overview.machines), 'host')}" if roomy else "")
    total += f", {overview.hidden} not shown" if overview.hidden else ""
    if len(models) == 1:
        return [line(counts, f"{total}  {next(iter(models))}", "bold")]
    digits = len(str(counts.total()))
    by_model = [
        line(count, f"of {count.total():{digits}}  {model}", "dim", roomy) for model, count in models.items()
    ]
    return [*by_model, line(counts, total, "bold")]
