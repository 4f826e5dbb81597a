"""The documents of `--json` and their classes; tests.support.launcher compares all that commands print."""

from __future__ import annotations

from typing import Any

import pytest

from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.documents.json_objects import declared, of_document, things_of
from tflaunch.documents.json_things import THINGS

EVERYTHING = [*DOCUMENTS.values(), *THINGS.values(), *EVENTS.values(), *SWEEP_EVENTS.values()]


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_field_says_what_it_holds(kind: type) -> None:
    known = declared(kind)
    assert known.says
    assert known.fields.keys() | {"event"} == kind.__annotations__.keys() | {"event"}
    assert all(known.fields.values())


def test_no_thing_has_the_name_of_a_document() -> None:
    assert not DOCUMENTS.keys() & THINGS.keys()  # both are headings of one page


def test_every_thing_is_in_a_document() -> None:
    named = {name for document in DOCUMENTS.values() for name in things_of(document)}
    assert named | {"run"} == THINGS.keys()  # `status` is a run with more fields


def setting(**more: Any) -> dict[str, Any]:
    return {"key": "banner", "value": "hello", "file": "config.toml", "line": 1, **more}


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"files": [], "settings": [setting()], "overridden": []}, ""),
        ({"files": [], "settings": []}, "config: overridden: missing field"),
        ({"files": [], "settings": [], "overridden": [], "more": 1}, "config: more: undeclared field"),
        (
            {"files": [], "settings": [], "overridden": [setting(), setting(colour="red")]},
            "config: overridden.1.colour: undeclared field",
        ),
        (
            {"files": [7], "settings": [], "overridden": []},
            "config: files.0: Input should be a valid dictionary",
        ),
        (
            {"files": [], "settings": [setting(line="1")], "overridden": []},
            "config: settings.0.line: Input should be a valid integer",
        ),
    ],
)
def test_a_document_that_differs_from_its_declaration_is_found(document: dict[str, Any], fault: str) -> None:
    assert of_document("config", document) == fault
