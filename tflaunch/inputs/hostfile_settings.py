"""Folds the settings of groups and `defaults` of a YAML hostfile into each entry; its slots, where it has an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.engine_words import SlotGroup, WantedSlots, WrongSlots, checked
from tflaunch.inputs.hostfile_entries import Entry, SlotEntries
from tflaunch.inputs.hostfile_model import (
    Document,
    GroupSettings,
    HostSettings,
    Settings,
    SlotsDocument,
)
from tflaunch.inputs.yaml_document import Form, Tree, validate

_FORM = Form(
    Document,
    keys={
        "": Document.model_fields,
        "defaults": Settings.model_fields,
        "<host>": ("name", *Settings.model_fields),
        "<group>": ("group", "hosts", *Settings.model_fields),
    },
    things={"<host>": "this host", "<group>": "this group"},
    elsewhere=dict.fromkeys(Settings.model_fields, "put it under `defaults:`"),
    list="a list of hosts, as [gpu01, gpu02]",
    empty_list="write at least one host: `- gpu01`",
    item="a host: want a name, a range, or a mapping with `name:` or `group:`",
)


_OF_SLOTS = Form(
    SlotsDocument,
    keys={"": SlotsDocument.model_fields, "defaults": Settings.model_fields},
    elsewhere={
        "hosts": "an engine gives slots in place of hosts",
        **dict.fromkeys(Settings.model_fields, "put it under `defaults:`"),
    },
    list="a list of slots",
    empty_list="write at least one: `- {count: 4, gpus: 8}`",
)


def entries(data: dict[str, Any], tree: Tree, directory: Path) -> list[Entry] | SlotEntries:
    """The entries that are sound, or the slots; what is wrong with the others is reported to `tree`."""
    if "engine" in data:
        return _slots(data, tree, directory)
    document = validate(data, tree, _FORM)
    if document is None:
        return []
    defaults = [document.defaults] if document.defaults else []
    return list(_flatten(document.hosts, defaults, directory))


def _slots(data: dict[str, Any], tree: Tree, directory: Path) -> list[Entry] | SlotEntries:
    document = validate(data, tree, _OF_SLOTS)
    if document is None:
        return []
    groups = tuple(
        SlotGroup(item.count, item.gpus or 0, item.role or "", dict(item.__pydantic_extra__ or {}))
        for item in document.slots
    )
    try:
        checked(groups, document.engine)
    except WrongSlots as error:
        tree.report(tree.values["slots",], str(error))
    for key in ("ssh", "port", "user", "identity_file", "proxy_jump", "connection", "gpus", "slots"):
        if document.defaults and key in document.defaults.model_fields_set:
            tree.report(
                tree.keys["defaults", key], f"{key}: its engine says how a slot is reached, and what it has"
            )
    settings = _merge([document.defaults] if document.defaults else [], directory)
    return SlotEntries(WantedSlots(document.engine, groups, document.settings), settings)


def _flatten(items: Iterable[Any], layers: list[Settings], directory: Path) -> Iterator[Entry]:
    for item in items:
        if isinstance(item, GroupSettings):
            yield from _flatten(item.hosts, [*layers, item], directory)
        elif isinstance(item, HostSettings):
            yield Entry(_as_text(item.name), _merge([*layers, item], directory))
        else:
            yield Entry(_as_text(item), _merge(layers, directory))


def _as_text(name: str) -> PlacedText:
    assert isinstance(name, PlacedText)  # noqa: S101 - what `plain` makes of every scalar, and _name returns as it is
    return name


def _merge(layers: Iterable[Settings], directory: Path) -> dict[str, Any]:
    """Settings from outer to inner: env and labels merge, everything else is replaced."""
    merged: dict[str, Any] = {}
    for layer in layers:
        said: dict[str, Any] = {
            key: getattr(layer, key) for key in layer.model_fields_set & {*Settings.model_fields}
        }
        if isinstance(layer, GroupSettings):
            said["labels"] = {"group": layer.group, **said.get("labels", {})}
        for key, value in said.items():
            merged[key] = {**merged.get(key, {}), **value} if key in ("env", "labels") else value
    if named := merged.get("identity_file"):
        path = str(directory / Path(named).expanduser())
        merged["identity_file"] = PlacedText(path, named.line, named.column)
    return merged
