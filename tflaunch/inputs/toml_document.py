"""TOML with the line of every key, as a Tree of tflaunch.inputs.yaml_document, so that its mistakes are told alike.

Python's parser tells no positions.  But a TOML document is a row of statements, each of which begins on a line of its
own, and whose lines are no TOML before the last one: so this parses a document statement by statement.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.yaml_document import LONGEST_QUOTE, Loc, Tree
from tflaunch.protocol.errors import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser, as a package
    import tomli as tomllib

_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def read(text: str, tree: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the document as plain data, scalars as text with their lines; the same as Python's parser has it).

    Faults of the syntax are reported to `tree`.
    """
    text = text.replace("\r\n", "\n")
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        tree.problems.append(_syntax(str(error), text, tree.where))
        return {}, {}
    except RecursionError:
        tree.problems.append(Problem(tree.where, 0, 0, "nested too deep"))
        return {}, {}
    lines: dict[Loc, int] = {}
    for loc, number in _lines(text):
        lines.setdefault(loc, number)  # where it stands first
    tree.values[()] = yaml.MappingNode("tag:yaml.org,2002:map", [], _mark(1))
    data = {key: _plain(value, (key,), lines.get((key,), 1), lines, tree) for key, value in parsed.items()}
    return data, parsed


def _syntax(said: str, text: str, where: str) -> Problem:
    at = _AT.search(said)
    what = _AT.sub("", said)
    if at and at[1]:
        return Problem(where, int(at[1]), int(at[2]), f"not TOML: {what}")
    return Problem(where, text.count("\n") + 1, 1, f"not TOML: {what} (at the end of the file)")


def _lines(text: str) -> Iterator[tuple[Loc, int]]:
    """Each key with its line, of tables and of values, by its place in the document."""
    header: Loc = ()
    statement, began = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        began = began if statement else number
        statement += line + "\n"
        try:
            found = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        is_header = statement.lstrip().startswith("[")
        statement = ""
        if is_header:
            header = next((loc for loc in reversed(list(_locs(found)))), ())
            for depth in range(1, len(header) + 1):
                yield header[:depth], began
        else:
            for loc in _locs(found):
                yield (*header, *loc), began


def _locs(data: Any) -> Iterator[Loc]:
    if isinstance(data, list) and data and isinstance(data[0], dict):  # [[key]]
        data = data[0]
    for key, value in data.items() if isinstance(data, dict) else ():
        yield (key,)
        for loc in _locs(value):
            yield (key, *loc)


def _mark(line: int, column: int = 1) -> yaml.Mark:
    return yaml.Mark("", 0, line - 1, column - 1, None, 0)


def _plain(value: Any, loc: Loc, line: int, lines: dict[Loc, int], tree: Tree) -> Any:
    """`value` as dict, list, PlacedText or bool, entered in `tree`."""
    mark = _mark(line)
    tree.keys[loc] = yaml.ScalarNode("tag:yaml.org,2002:str", str(loc[-1]), mark)
    if isinstance(value, dict):
        tree.values[loc] = yaml.MappingNode("tag:yaml.org,2002:map", [*value], mark)
        return {
            key: _plain(each, (*loc, key), lines.get((*loc, key), line), lines, tree)
            for key, each in value.items()
        }
    if isinstance(value, list):
        tree.values[loc] = yaml.SequenceNode("tag:yaml.org,2002:seq", [*value], mark)
        return [_plain(each, (*loc, index), line, lines, tree) for index, each in enumerate(value)]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    tree.values[loc] = yaml.ScalarNode("tag:yaml.org,2002:str", text[: 10 * LONGEST_QUOTE], mark, style='"')
    return value if isinstance(value, bool) else PlacedText(text, line, 1)
