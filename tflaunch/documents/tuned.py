"""What a search for the fastest layout has found, as a document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from tflaunch.documents.json_documents import TuneDocument
from tflaunch.documents.json_reports import LayoutData, TryData
from tflaunch.tuning import halving
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.tried import Tried, Try


def tuned(run_id: str, tried: Tried, steps: int, command: Sequence[str]) -> TuneDocument:
    """The document; of a search that has not begun (`--dry-run`) without a name, tries and command."""
    best = set(tried.level()) if tried.ranked() else set[TaskLayout]()
    rest = [layout for layout in tried.layouts if layout not in tried.ranked()]
    return {
        "time": time.time(),
        "run_id": run_id,
        "rounds": [
            {"layouts": each.layouts, "steps": each.steps}
            for each in halving.rounds(len(tried.layouts), steps)
        ],
        "layouts": [_layout(layout, tried, best=layout in best) for layout in (*tried.ranked(), *rest)],
        "best": list(command),
    }


def _layout(layout: TaskLayout, tried: Tried, *, best: bool) -> LayoutData:
    last = tried.last(layout)
    return {
        "layout": {name: value for name, value in asdict(layout).items() if value not in (None, "")},
        "options": list(layout.options),
        "tasks": dict(last.tasks) if last else {},
        "hosts": last.hosts if last else None,
        "rate": last.rate if last else None,
        "low": last.low if last and last.rate is not None else None,
        "high": last.high if last and last.rate is not None else None,
        "predicted": tried.predicted(layout),
        "global_steps": last.shared if last else False,
        "limits": list(last.limits) if last else [],
        "notes": list(last.notes) if last else [],
        "why": last.why if last else "",
        "best": best,
        "tries": [_try(each) for each in tried.tries[layout]],
    }


def _try(tried: Try) -> TryData:
    return {
        "round": tried.round + 1,
        "run_id": tried.run_id,
        "rate": tried.rate,
        "steps": tried.steps,
        "seconds": tried.seconds,
        "cut_short": tried.cut_short,
    }
