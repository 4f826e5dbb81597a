"""The documents of `--json` and their declarations; tests.support.launcher compares all that commands print."""

from __future__ import annotations

from typing import Any

import pytest

from tflaunch.documents.json_documents import DOCUMENTS, disagreement, things_of
from tflaunch.documents.json_things import THINGS, Thing

EVERYTHING = {**DOCUMENTS, **THINGS}


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_is_declared_to_hold_things_is_a_field_and_the_things_are_there(name: str) -> None:
    thing = EVERYTHING[name]
    assert thing.holds.keys() <= thing.fields.keys()
    assert set(thing.sometimes) <= thing.fields.keys()
    assert {held.strip("[]{}") for held in thing.holds.values()} <= THINGS.keys()


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
        ({"files": [], "settings": []}, "config: missing fields: overridden"),
        ({"files": [], "settings": [], "overridden": [], "more": 1}, "config: undeclared fields: more"),
        (
            {"files": [], "settings": [], "overridden": [setting(), setting(colour="red")]},
            "config.overridden: undeclared fields: colour",
        ),
        ({"files": [7], "settings": [], "overridden": []}, "config.files: 7 is no object"),
    ],
)
def test_a_document_that_differs_from_its_declaration_is_found(document: dict[str, Any], fault: str) -> None:
    assert disagreement("config", document) == fault


@pytest.mark.parametrize(
    ("held", "value"), [("{thing}", {"a": {}}), ("{{thing}}", {"a": {"b": {}}}), ("thing", {})]
)
def test_things_are_found_wherever_they_are(held: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(THINGS, "thing", Thing("", {"x": ""}))  # type: ignore[arg-type]
    monkeypatch.setitem(DOCUMENTS, "test", Thing("", {"field": ""}, {"field": held}))  # type: ignore[arg-type]
    assert disagreement("test", {"field": value}) == "test.field: missing fields: x"
    assert disagreement("test", {"field": None}) == ""
