"""The page of the documents that `--json` prints, from the classes with which the tests compare every document."""

from __future__ import annotations

from generator import verbs
from generator.markdown import table
from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_objects import JsonObject, declared, things_of
from tflaunch.documents.json_things import THINGS

_ABOUT = f"""\
# Documents of `--json`

With `--json`, {verbs.listed(verbs.with_json(documents=True))} print one JSON document to
stdout, in ASCII, on one line. All others print [events](events.md). A command that cannot make its document prints the
event `error` or `failures` instead, and ends with its exit code. Read past fields that you do not know: later versions
may add some.

    tflaunch gpus --json | jq -r '.hosts[] | "\\(.host) \\([.gpus[]? | select(.state == "free")] | length)"'
    tflaunch ps --json | jq -r '.runs[] | select(.detached) | .run_id'
    tflaunch check --json | jq -r '.findings[] | select(.level == "error") | .what'

"""


def page() -> str:
    """Return the page."""
    parts = [_ABOUT]
    for verb, kind in DOCUMENTS.items():
        document = declared(kind)
        parts.append(f"## {verb}\n\n{document.says}\n\n{_fields(document)}\n")
    parts.append("## What is in them\n\nIn the order in which the documents name them.\n")
    named = dict.fromkeys(name for document in DOCUMENTS.values() for name in things_of(document))
    for name in {**named, "run": None}:
        thing = declared(THINGS[name])
        parts.append(f"### {name}\n\n{thing.says}\n\n{_fields(thing)}\n")
    return "\n".join(parts)


def _fields(thing: JsonObject) -> str:
    names: dict[type | None, str] = {kind: name for name, kind in THINGS.items()}
    rows = []
    for field, says in thing.fields.items():
        name = names.get(thing.holds.get(field), "")
        link = f" ([{name}](#{name.replace(' ', '-')}))" if name else ""
        rows.append([f"`{field}`", f"{'(not always) ' if field in thing.sometimes else ''}{says}{link}"])
    return table(["field", "holds"], rows)
