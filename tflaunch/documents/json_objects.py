"""What the classes of this room declare, as data: for the documentation, JSON Schemas and tests."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from typing_extensions import NotRequired, get_type_hints, is_typeddict

from tflaunch.documents.json_documents import DOCUMENTS
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS, DryRun
from tflaunch.documents.json_things import THINGS


class JsonObject(NamedTuple):
    """A JSON object: `fields` maps each field to what it holds; those of `sometimes` may be missing.

    holds: the fields that have things in them, with their kind.
    """

    says: str
    fields: Mapping[str, str]
    holds: Mapping[str, type]
    sometimes: frozenset[str]
    kinds: tuple[type, ...]  # all classes that stand in its fields


@functools.cache
def declared(kind: type) -> JsonObject:
    """Return what a class declares, in the order of its text; `event` and `time` of events are not listed."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: text for name, text in _field_texts(kind).items() if name in hints}
    things = {*THINGS.values()}
    kinds = tuple(each for name in fields for each in _kinds_in(hints[name]) if is_typeddict(each))
    holds = {name: each for name in fields for each in _kinds_in(hints[name]) if each in things}
    required: Any = NotRequired
    sometimes = frozenset(name for name in fields if get_origin(hints[name]) == required)
    return JsonObject(" ".join((inspect.getdoc(kind) or "").split()), fields, holds, sometimes, kinds)


def _field_texts(kind: type) -> dict[str, str]:
    """Return the doc string of each field, those of base classes first."""
    if (made := getattr(kind, "texts", None)) is not None:  # of facts
        return dict(made)
    texts: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", ()):
        if base.__module__ == kind.__module__ or base in THINGS.values():
            texts |= _field_texts(base)
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            told = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if told:
                texts[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return texts


def _kinds_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for each in get_args(hint):
        yield from _kinds_in(each)


def things_of(document: type) -> list[str]:
    """The names of the things in a document, and in these, each once, in the order in which they come."""
    names = {kind: name for name, kind in THINGS.items()}
    found: dict[str, None] = {}
    waiting = list(declared(document).holds.values())
    while waiting:
        kind = waiting.pop(0)
        if names[kind] not in found:
            found[names[kind]] = None
            waiting += declared(kind).holds.values()
    return list(found)


def event_fields(kind: type) -> JsonObject:
    """Return what an event declares, without `time`, which all have."""
    whole = declared(kind)
    return whole._replace(fields={name: text for name, text in whole.fields.items() if name != "time"})


def faults(kind: type, value: Any) -> list[str]:
    """Return how a value differs from what is declared: fields that are missing, undeclared, or of another type."""
    from pydantic import ValidationError

    try:
        _validator(kind).validate_python(value)
    except ValidationError as error:
        words = {"missing": "missing field", "extra_forbidden": "undeclared field"}
        return [
            f"{'.'.join(map(str, each['loc']))}: {words.get(each['type'], each['msg'])}"
            for each in error.errors()
        ]
    return []


@functools.cache
def _validator(kind: type) -> Any:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_exact(TypeAdapter(kind).core_schema))


def _exact(schema: Any) -> Any:
    """The schema of a validator that takes no fields besides those declared, and no text for a number."""
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    more: dict[str, Any] = {"extra_behavior": "forbid"} if schema.get("type") == "typed-dict" else {}
    more |= {"strict": True} if schema.get("type") in ("str", "int", "float", "bool") else {}
    return {name: _exact(each) for name, each in schema.items()} | more


def of_event(event: Mapping[str, Any]) -> str:
    """Return how an event differs from its class; "" if it agrees with one of them."""
    name = event["event"]
    kinds = dict.fromkeys(table[name] for table in (EVENTS, SWEEP_EVENTS) if name in table)
    if not kinds:
        return f"{name}: no such event is declared"
    more = declared(DryRun).fields.keys() if "warnings" in event else set()
    found = [
        faults(
            kind,
            {
                field: each
                for field, each in event.items()
                if field not in more - declared(kind).fields.keys()
            },
        )
        for kind in kinds
    ]
    return "" if not all(found) else f"{name}: {found[0][0]}"


def of_document(verb: str, document: Any) -> str:
    """Return how a document differs from its class; "" if it agrees."""
    return next((f"{verb}: {fault}" for fault in faults(DOCUMENTS[verb], document)), "")
