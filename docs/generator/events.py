"""The page of the events that `--json` prints, from the classes that declare them."""

from __future__ import annotations

from collections.abc import Mapping

from generator import verbs
from generator.markdown import table
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS, DryRun
from tflaunch.documents.json_objects import declared, event_fields

_ABOUT = f"""\
# Events of `--json`

With `--json`, {verbs.listed(verbs.with_json(documents=False))} print one JSON object a line to stdout, in ASCII. Each
has `event` (its name) and `time` (epoch seconds), and the fields below. Tasks are written `worker/0`. Read past events
and fields that you do not know: later versions may add some.

    tflaunch run hosts.yaml trainer.py --json | jq -r 'select(.event == "report") | .exit_code'

{verbs.listed(verbs.with_json(documents=True))} print one [document](documents.md) instead.
Their JSON Schemas are in the package, in `tflaunch/documents/schemas`.

"""
_DRY = """\
## Of a dry run

`--dry-run --json` prints one object: the fields of `plan`, of `error` or `failures` where there is no plan, or of
`nothing`, and these besides.
"""


def page() -> str:
    """Return the page."""
    more = {name: event for name, event in SWEEP_EVENTS.items() if EVENTS.get(name) is not event}
    document = table(
        ["field", "holds"], [[f"`{field}`", says] for field, says in declared(DryRun).fields.items()]
    )
    return (
        f"{_ABOUT}\n## Of a run\n\n{_described(EVENTS)}\n{_DRY}\n{document}\n"
        "## Of a sweep\n\nA sweep has the events above, but `log`, and these:\n\n"
        + (_described(more, " (sweep)"))
    )


def _described(events: Mapping[str, type], of: str = "") -> str:
    parts = []
    for name, kind in events.items():
        event = event_fields(kind)
        rows = [
            [f"`{field}`", f"{'(not always) ' if field in event.sometimes else ''}{says}"]
            for field, says in event.fields.items()
        ]
        parts.append(
            f"### {name}{of if name in EVENTS else ''}\n\n{event.says}\n\n{table(['field', 'holds'], rows)}"
        )
    return "\n".join(parts)
