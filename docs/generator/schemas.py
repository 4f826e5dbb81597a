"""Writes the JSON Schemas of what `--json` prints: tflaunch/documents/schemas, which the wheel has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tflaunch.documents
from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.documents.json_objects import declared

FOLDER = Path(tflaunch.documents.__file__).parent / "schemas"


def texts() -> dict[str, str]:
    """Return each file by its name: its members in `$defs` are the events, or the documents by their verbs."""
    sweeps = {name: kind for name, kind in SWEEP_EVENTS.items() if EVENTS.get(name) is not kind}
    tables: Mapping[str, Mapping[str, type]] = {
        "events.json": EVENTS,
        "sweep-events.json": sweeps,
        "documents.json": DOCUMENTS,
    }
    return {name: json.dumps(_schema(table), indent=1) + "\n" for name, table in tables.items()}


def _schema(table: Mapping[str, type]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    ref = "#/$defs/{model}"
    found: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    for name, kind in table.items():
        whole = TypeAdapter(kind).json_schema(ref_template=ref)
        found |= whole.pop("$defs", {})
        _describe(whole, kind)
        found[kind.__name__] = whole
        kinds[name] = {"$ref": f"#/$defs/{kind.__name__}"}
        for each in _inside(kind):
            if each.__name__ in found:
                _describe(found[each.__name__], each)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": list(kinds.values()),
        "$defs": found,
    }


def _inside(kind: type) -> set[type]:
    inside: set[type] = set()
    waiting = [kind]
    while waiting:
        new = {*declared(waiting.pop()).kinds} - inside
        inside |= new
        waiting += new
    return inside


def _describe(schema: dict[str, Any], kind: type) -> None:
    schema["description"] = declared(kind).says
    for name, text in declared(kind).fields.items():
        held = schema["properties"][name]
        schema["properties"][name] = {"description": text, **held}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
