"""Reads the YAML form of a hostfile, with the position of every key and value.

Scalars are taken as they are written: `022`, `20000:20999` and `1.10` are text here, not what YAML 1.1 makes
of them.  Only booleans and nulls keep their YAML meaning, so that an unquoted `on` or `no` can be refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from tflaunch.errors import Problem
from tflaunch.hostfile_model import Document, GroupSettings, HostSettings, Settings, Unacceptable

MOST_NODES = 100_000  # of a document with its aliases expanded
DEEPEST = 32
LONGEST_QUOTE = 60  # characters of the file's own text in a message


class Text(str):
    """A scalar of a hostfile, and where it stands (from 1)."""

    line: int
    column: int

    def __new__(cls, text: str, line: int, column: int) -> Text:
        self = super().__new__(cls, text)
        self.line, self.column = line, column
        return self


class Entry(NamedTuple):
    """A name or range of a hostfile with its settings, those of groups and `defaults` folded in."""

    name: Text
    settings: dict[str, Any]


_KEYS: Mapping[str, Iterable[str]] = {
    "": Document.model_fields,
    "defaults": Settings.model_fields,
    "<host>": ("name", *Settings.model_fields),
    "<group>": ("group", "hosts", *Settings.model_fields),
}

_Loc = tuple[str | int, ...]


class _TooMuch(yaml.MarkedYAMLError):
    """YAML, but no hostfile is that large."""


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, stopped at a size and a depth at which no hostfile is meant."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        self.depth += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]
        _limit(self.nodes, self.depth, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _limit(nodes: int, depth: int, mark: Any) -> None:
    if nodes > MOST_NODES:
        raise _TooMuch(
            problem=f"the document has more than {MOST_NODES:,} values, its aliases expanded",
            problem_mark=mark,
        )
    if depth > DEEPEST:
        raise _TooMuch(problem=f"nested more than {DEEPEST} deep, or an alias of itself", problem_mark=mark)


class _Tree:
    """A YAML document as plain data, with the nodes that its keys and values came from."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Problem] = []
        self.keys: dict[_Loc, yaml.Node] = {}
        self.values: dict[_Loc, yaml.Node] = {}

    def report(self, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.where, mark.line + 1, mark.column + 1, message))

    def plain(self, node: yaml.Node, loc: _Loc, depth: int = 0) -> Any:
        """`node` as dict, list, Text, True (any boolean) or None; keys that cannot be read are reported."""
        # Aliases share nodes, so a small document can be large, or without end, when it is walked.
        _limit(len(self.values), depth, node.start_mark)
        self.values[loc] = node
        kind, _, tag = node.tag.rpartition(":")
        if (
            kind != "tag:yaml.org,2002"
            or tag in ("binary", "omap", "pairs", "set")
            or tag.startswith("python")
        ):
            self.report(node, f"the tag {_quote(node.tag)} has no meaning here; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*loc, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            if tag in ("bool", "null"):
                return True if tag == "bool" else None
            return Text(node.value, node.start_mark.line + 1, node.start_mark.column + 1)
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.report(key, "a key is plain text, not a list or a mapping")
            elif key.tag == "tag:yaml.org,2002:merge":
                self.report(key, "'<<' is not read here; put shared settings under `defaults:` or in a group")
            elif key.value in data:
                first = self.keys[(*loc, key.value)].start_mark
                self.report(key, f"the key {_quote(key.value)} is given twice; first at {_place(first)}")
            else:
                self.keys[(*loc, key.value)] = key
                data[key.value] = self.plain(value, (*loc, key.value), depth + 1)
        return data


def read(text: str, where: str, directory: Path) -> tuple[list[Entry], list[Problem]]:
    """The entries of a YAML hostfile that are sound, and everything that is wrong with the others.

    `where` names the file in problems; a relative `identity_file` is taken from `directory`.
    """
    tree = _Tree(where)
    try:
        root = _compose(text)
        short = isinstance(root, yaml.SequenceNode)  # the short form is the value of `hosts`
        data = tree.plain(root, ("hosts",) if short else ()) if root else None
    except yaml.MarkedYAMLError as error:
        return [], [*tree.problems, _syntax(error, where)]
    if root is None:
        return [], [Problem(where, 0, 0, "the file is empty; list at least one host: `- gpu01`")]
    if short:
        tree.values[()] = root
        data = {"hosts": data}
    if not isinstance(data, dict):
        tree.report(
            root, f"{_shown(root)} is not a hostfile: want a list of hosts, or a mapping with `hosts:`"
        )
        return [], tree.problems
    document = _validate(data, tree)
    if document is None:
        return [], tree.problems
    defaults = [document.defaults] if document.defaults else []
    return list(_flatten(document.hosts, defaults, directory)), tree.problems


def _compose(text: str) -> yaml.Node | None:
    """The document's root, None when there is nothing in it; every fault is a MarkedYAMLError."""
    mark = yaml.Mark("", 0, 0, 0, None, 0)
    try:
        loader = _Loader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
        finally:
            mark = loader.get_mark()
    except yaml.reader.ReaderError as error:
        line_start = text.rfind("\n", 0, error.position) + 1
        mark = yaml.Mark("", 0, text.count("\n", 0, error.position), error.position - line_start, None, 0)
        character = f"U+{ord(text[error.position]):04X}"
        raise yaml.MarkedYAMLError(
            problem=f"the character {character} is not allowed", problem_mark=mark
        ) from None
    except (ValueError, OverflowError):  # PyYAML lets slip those of an escape such as "\UFFFFFFFF"
        raise yaml.MarkedYAMLError(
            problem="a number or an escape is out of range", problem_mark=mark
        ) from None
    return root


def _syntax(error: yaml.MarkedYAMLError, where: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    message = str(error.problem)
    if isinstance(error, _TooMuch):
        return Problem(where, line, column, message)
    if "'\\t'" in message:
        message = "a tab; YAML wants spaces"
    else:
        if error.context and error.context_mark:
            message = f"{error.context} that begins at {_place(error.context_mark)}: {message}"
        if "but got '['" in message:
            message += ' (a range inside [ ] needs quotes: ["gpu[01-16]"])'
        message = f"not YAML: {message}"
    return Problem(where, line, column, message)


def _validate(data: dict[str, Any], tree: _Tree) -> Document | None:
    """The document, less its bad parts, so that what is left can still be checked for duplicates."""
    first = True
    while True:
        try:
            return Document.model_validate(data)
        except ValidationError as invalid:
            bad = []
            near: set[tuple[_Loc, str]] = set()
            for error in sorted(
                invalid.errors(include_url=False), key=lambda error: error["type"] == "missing"
            ):
                loc = _located(error["loc"], data)
                bad.append(loc)
                if first:
                    _explain(error, loc, tree, near)
            first = False
            if () in bad:
                return None
            data = _without(data, (), set(bad))


def _located(loc: _Loc, data: Any) -> _Loc:
    """pydantic's location less what is not in the file: the tags of unions and a key that is missing."""
    path: list[str | int] = []
    for part in loc:
        inside = (
            part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        )
        if inside:
            path.append(part)
            data = data[part]
    return tuple(path)


def _without(data: Any, loc: _Loc, bad: set[_Loc]) -> Any:
    if isinstance(data, dict):
        return {key: _without(item, (*loc, key), bad) for key, item in data.items() if (*loc, key) not in bad}
    if isinstance(data, list):
        return [_without(item, (*loc, i), bad) for i, item in enumerate(data) if (*loc, i) not in bad]
    return data


def _explain(error: Any, loc: _Loc, tree: _Tree, near: set[tuple[_Loc, str]]) -> None:
    """Report one of pydantic's errors in the file's own words; `near` collects keys that were misspelt."""
    node = tree.values[loc]
    kind, last = error["type"], error["loc"][-1]
    scope = next((str(part) for part in reversed(error["loc"][:-1]) if part in _KEYS), "")
    key = f"{loc[-1]}: " if loc and isinstance(loc[-1], str) else ""
    label = f"{key}{_shown(node)}"
    empty = isinstance(node, yaml.ScalarNode) and not node.value and not node.style
    if empty:
        node = tree.keys.get(loc, node)  # nothing is written there to point at
        label = key.rstrip() or "this item"
    if kind == "extra_forbidden":
        tree.report(tree.keys[loc], _unknown(loc, scope, near))
    elif kind == "missing":
        if (loc, last) not in near:
            thing = {"<host>": "this host", "<group>": "this group"}.get(scope, "the file")
            tree.report(node, f"{thing} has no `{last}:`")
    elif kind == "too_short":
        tree.report(node, f"{key}an empty list; write at least one host: `- gpu01`")
    elif kind == "value_error":
        cause = error["ctx"]["error"]
        if last == "[key]":
            node, label = tree.keys[loc], _quote(str(loc[-1]))
        elif isinstance(cause, Unacceptable):
            node = tree.values[(*loc, cause.index)]
            label = f"{key}{_shown(node)}"
        tree.report(node, f"{label} {cause}")
    elif kind.startswith("union_tag"):
        tree.report(
            node, f"{label} is not a host: want a name, a range, or a mapping with `name:` or `group:`"
        )
    else:
        wanted = "a list of hosts" if "list" in kind else "a mapping of keys to values"
        tree.report(node, f"{label} has no value; want {wanted}" if empty else f"{label} is not {wanted}")


def _unknown(loc: _Loc, scope: str, near: set[tuple[_Loc, str]]) -> str:
    key, known = str(loc[-1]), list(_KEYS[scope])
    close = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1)
    near.update((loc[:-1], match) for match in close)
    if close:
        advice = f"did you mean {close[0]!r}?"
    elif not scope and key in Settings.model_fields:
        advice = "put it under `defaults:`"
    else:
        advice = f"the keys here are {', '.join(known)}"
    return f"unknown key {_quote(key)}; {advice}"


def _flatten(items: Iterable[Any], layers: list[Settings], directory: Path) -> Iterator[Entry]:
    for item in items:
        if isinstance(item, GroupSettings):
            yield from _flatten(item.hosts, [*layers, item], directory)
        elif isinstance(item, HostSettings):
            yield Entry(_as_text(item.name), _merge([*layers, item], directory))
        else:
            yield Entry(_as_text(item), _merge(layers, directory))


def _as_text(name: str) -> Text:
    assert isinstance(name, Text)  # noqa: S101 - what `plain` makes of every scalar, and _name returns as it is
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
        merged["identity_file"] = Text(path, named.line, named.column)
    return merged


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return _quote(node.value)
    kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
    return f"a {kind}" if node.value else f"an empty {kind}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
