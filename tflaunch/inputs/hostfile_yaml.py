"""Reads the YAML form of a hostfile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.hostfile_entries import Entry, SlotEntries, host_name
from tflaunch.inputs.yaml_document import Tree, shown
from tflaunch.protocol.errors import Problem


def read(text: str, where: str, directory: Path) -> tuple[list[Entry] | SlotEntries, list[Problem]]:
    """The entries of a YAML hostfile that are sound, or its slots; and everything that is wrong with the others.

    `where` names the file in problems; a relative `identity_file` is taken from `directory`.
    """
    tree = Tree(where)
    root, data = tree.read(text, short="hosts")
    if root is None:
        empty = Problem(where, 0, 0, "the file is empty; list at least one host: `- gpu01`")
        return [], tree.problems or [empty]
    if not isinstance(data, dict):
        tree.report(
            root, f"{shown(root)} is not a hostfile: want a list of hosts, or a mapping with `hosts:`"
        )
        return [], tree.problems
    if not tree.problems and (named := _names_alone(data)):
        return named, []
    from tflaunch.inputs import hostfile_settings

    return hostfile_settings.entries(data, tree, directory), tree.problems


def _names_alone(data: dict[str, Any]) -> list[Entry]:
    """The entries of a hostfile without any setting; none where there is more in it, or anything is wrong with it.

    To load pydantic, and to make its models, takes longer than all else until hosts are dialled.
    """
    names = data.get("hosts")
    if (
        len(data) != 1
        or not isinstance(names, list)
        or not all(isinstance(each, PlacedText) for each in names)
    ):
        return []
    try:
        return [Entry(each, {}) for each in names if host_name(each)]
    except ValueError:
        return []
