"""Text that acts on a terminal, and how to see that none of it got there."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tflaunch.protocol.errors import (
    ConnectError,
)
from tflaunch.protocol.job import TaskId

# The screen cleared, its title set, the cursor moved; a line of tflaunch's own; 8-bit and broken sequences, other
# controls, what reorders text, halves of characters, markup of rich's, an emoji code.
EVIL = (
    "a\x1b[2J\x1b]0;title\x07\x1b[10;10H\x1b[31m\r\n✓ forged\n\x9b31m\x9d0;t\x9c\x7f\x08\x00\x85\x1bP+q\x1b\\\x1b"
    "\u202eb\u2066\u200f\u061c\u2028\udc9b\udfff[red]c[/red] :smile: d"
)

_OWN = re.compile(  # what tflaunch itself sends to a terminal: colours, a live line, rich's live view
    r"\x1b\[[0-9;:]*m|\r?\x1b\[[0-9]*[ABKJH]|\x1b\[\?(?:25|1049)[hl]|\x1b\[[0-9]*;?[0-9]*H|\r(?!\n)"
    # and what textual asks of a terminal at the start and the end of a watch
    r"|\x1b\[\?(?:7|1004|2004)[hl]|\x1b\[\?20(?:26|48)\$p|\x1b\[(?:>25|<)u|\x1b\]22;default\x07"
)
_BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str, own: bool = False, rows: bool = True) -> None:
    """Fails when it acts on a terminal by more than tflaunch's `own` styling, or when one of its `rows` is forged."""
    if own:
        text = _OWN.sub("", text).replace("\r\n", "\n")
    found = _BAD.search(text)
    assert found is None, (found, text[max(0, found.start() - 200) : found.end() + 100])
    for line in text.split("\n") if rows else ():
        assert not re.match(r" {0,3}✓ forged", line), text
    assert r"\udfffc" not in text, "markup was interpreted"
    assert "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in text


def evil(value: Any, kept: frozenset[str] = frozenset()) -> Any:
    """The same with EVIL in every text, except in the fields `kept`, which hold one of a few words."""
    if isinstance(value, str):
        return EVIL
    if isinstance(value, bytes):
        return EVIL.encode("utf-8", "surrogatepass")
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, TaskId)):
        changes = {
            field.name: evil(getattr(value, field.name), kept)
            for field in dataclasses.fields(value)
            if field.name not in kept and field.init
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, Mapping):
        return {
            (EVIL if isinstance(name, str) and "_" not in name else name): each
            if name in kept
            else evil(each, kept)
            for name, each in value.items()
        }
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(evil(each, kept) for each in value)
    if isinstance(value, ConnectError):
        return ConnectError(EVIL, EVIL)
    return value


def assert_json(text: str) -> None:
    assert text.isascii()
    assert not _BAD.search(text)
    for line in text.splitlines():
        json.loads(line, parse_constant=pytest.fail)
