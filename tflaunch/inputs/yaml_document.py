"""Reads what users write in YAML, with the position of every key and value, and says all that is wrong with it.

Scalars are taken as they are written: `022`, `20000:20999` and `1.10` are text here, not what YAML 1.1 makes
of them.  Only booleans and nulls keep their YAML meaning, so that an unquoted `on` or `no` can be refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import yaml

from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.yaml_text import Unacceptable
from tflaunch.protocol.errors import Problem

if TYPE_CHECKING:
    from pydantic import BaseModel

MOST_NODES = 100_000  # of a document with its aliases expanded
DEEPEST = 32
LONGEST_QUOTE = 60  # characters of the file's own text in a message


Loc = tuple[str | int, ...]
_Model = TypeVar("_Model", bound="BaseModel")


@dataclass(frozen=True)
class Form(Generic[_Model]):
    """What a document may be, and what messages call its parts."""

    model: type[_Model]
    keys: Mapping[str, Iterable[str]]  # the known keys: at the top (""), else below that part of a location
    things: Mapping[str, str] = field(default_factory=dict)  # likewise, the name in messages: `this host`
    elsewhere: Mapping[str, str] = field(
        default_factory=dict
    )  # a key that does not belong at the top -> advice
    list: str = "a list"
    empty_list: str = ""  # what to write instead of an empty list
    item: str = ""  # what an item of no known form should be


class _TooMuch(yaml.MarkedYAMLError):
    """The YAML is larger or deeper than a user writes."""


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, which stops at a size and a depth that no user means."""

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


class Tree:
    """A YAML document as plain data, with the nodes that its keys and values came from."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Problem] = []
        self.keys: dict[Loc, yaml.Node] = {}
        self.values: dict[Loc, yaml.Node] = {}

    def read(self, text: str, short: str = "") -> tuple[yaml.Node | None, Any]:
        """(the root, the same as plain data); (None, None) for nothing, and for faulty YAML, which it reports.

        A list at the top is the value of the key `short`.
        """
        try:
            root = _compose(text)
            listed = isinstance(root, yaml.SequenceNode) and short
            data = self.plain(root, (short,) if listed else ()) if root else None
        except yaml.MarkedYAMLError as error:
            self.problems.append(_syntax(error, self.where))
            return None, None
        if root is not None and listed:
            self.values[()] = root
            data = {short: data}
        return root, data

    def report(self, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.where, mark.line + 1, mark.column + 1, message))

    def plain(self, node: yaml.Node, loc: Loc, depth: int = 0) -> Any:
        """`node` as dict, list, PlacedText, bool or None; keys that cannot be read are reported."""
        # Aliases share nodes, so a walk through a small document can be long, or endless.
        _limit(len(self.values), depth, node.start_mark)
        self.values[loc] = node
        kind, _, tag = node.tag.rpartition(":")
        if (
            kind != "tag:yaml.org,2002"
            or tag in ("binary", "omap", "pairs", "set")
            or tag.startswith("python")
        ):
            self.report(node, f"the tag {quote(node.tag)} has no meaning here; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*loc, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            if tag in ("bool", "null"):
                return node.value.lower() in ("yes", "true", "on") if tag == "bool" else None
            return PlacedText(node.value, node.start_mark.line + 1, node.start_mark.column + 1)
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.report(key, "a key is plain text, not a list or a mapping")
            elif key.tag == "tag:yaml.org,2002:merge":
                self.report(key, "'<<' is not read here; put shared settings under `defaults:` or in a group")
            elif key.value in data:
                first = self.keys[(*loc, key.value)].start_mark
                self.report(key, f"the key {quote(key.value)} is given twice; first at {place(first)}")
            else:
                self.keys[(*loc, key.value)] = key
                data[key.value] = self.plain(value, (*loc, key.value), depth + 1)
        return data


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


# What YAML says of the slips that are made most, and what they are.
_SLIPS = {
    "expected <block end>, but found": "this line fits nothing above it: what belongs together begins in one column",
    "mapping values are not allowed here": "a ':' where none may be: is one missing in the line above, or does a value "
    "need quotes?",
    "could not find expected ':'": "a key without its ':'",
}


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
            message = f"{error.context} that begins at {place(error.context_mark)}: {message}"
        if said := next((words for sign, words in _SLIPS.items() if sign in message), ""):
            message = f"{said} ({message})"
        if "but got '['" in message:
            message += ' (a range inside [ ] needs quotes: ["gpu[01-16]"])'
        message = f"not YAML: {message}"
    return Problem(where, line, column, message)


def validate(data: dict[str, Any], tree: Tree, form: Form[_Model]) -> _Model | None:
    """The document, without its bad parts, so that what is left can still be checked for duplicates."""
    from pydantic import ValidationError  # here, for a hostfile of names alone has no model

    first = True
    while True:
        try:
            return form.model.model_validate(data)
        except ValidationError as invalid:
            bad = []
            near: set[tuple[Loc, str]] = set()
            for error in sorted(
                invalid.errors(include_url=False), key=lambda error: error["type"] == "missing"
            ):
                loc = _located(error["loc"], data)
                bad.append(loc)
                if first:
                    _explain(error, loc, tree, form, near)
            first = False
            if () in bad:
                return None
            data = _without(data, (), set(bad))


def _located(loc: Loc, data: Any) -> Loc:
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


def _without(data: Any, loc: Loc, bad: set[Loc]) -> Any:
    if isinstance(data, dict):
        return {key: _without(item, (*loc, key), bad) for key, item in data.items() if (*loc, key) not in bad}
    if isinstance(data, list):
        return [_without(item, (*loc, i), bad) for i, item in enumerate(data) if (*loc, i) not in bad]
    return data


def _explain(error: Any, loc: Loc, tree: Tree, form: Form[Any], near: set[tuple[Loc, str]]) -> None:
    """Report one of pydantic's errors in the file's own words; `near` collects keys that were misspelt."""
    node = tree.values[loc]
    kind, last = error["type"], error["loc"][-1]
    scope = next((str(part) for part in reversed(error["loc"][:-1]) if part in form.keys), "")
    key = f"{loc[-1]}: " if loc and isinstance(loc[-1], str) else ""
    label = f"{key}{shown(node)}"
    empty = isinstance(node, yaml.ScalarNode) and not node.value and not node.style
    if empty:
        node = tree.keys.get(loc, node)  # nothing is written there to point at
        label = key.rstrip() or "this item"
    if kind == "extra_forbidden":
        tree.report(tree.keys[loc], _unknown(loc, scope, form, near))
    elif kind == "missing":
        if (loc, last) not in near:
            tree.report(node, f"{form.things.get(scope, 'the file')} has no `{last}:`")
    elif kind == "too_short":
        tree.report(node, f"{key}an empty list; {form.empty_list}")
    elif kind == "value_error":
        cause = error["ctx"]["error"]
        if last == "[key]":
            node, label = tree.keys[loc], quote(str(loc[-1]))
        elif isinstance(cause, Unacceptable):
            node = tree.values[(*loc, cause.index)]
            label = f"{f'{cause.index}: ' if isinstance(cause.index, str) else key}{shown(node)}"
        tree.report(node, f"{label} {cause}")
    elif kind.startswith("union_tag"):
        tree.report(node, f"{label} is not {form.item}")
    else:
        wanted = form.list if "list" in kind else "a mapping of keys to values"
        tree.report(node, f"{label} has no value; want {wanted}" if empty else f"{label} is not {wanted}")


def _unknown(loc: Loc, scope: str, form: Form[Any], near: set[tuple[Loc, str]]) -> str:
    key, known = str(loc[-1]), list(form.keys[scope])
    folded = key.lower().replace("-", "_")
    # Of several, the one that begins alike: `hostfile` is `hosts`, not `profile`.
    close = sorted(difflib.get_close_matches(folded, known), key=lambda each: each[0] != folded[0])[:1]
    near.update((loc[:-1], match) for match in close)
    if close:
        advice = f"did you mean {close[0]!r}?"
    elif not scope and key in form.elsewhere:
        advice = form.elsewhere[key]
    else:
        advice = f"the keys here are {', '.join(known)}"
    return f"unknown key {quote(key)}; {advice}"


def shown(node: yaml.Node) -> str:
    """A value as messages quote it."""
    if isinstance(node, yaml.ScalarNode):
        return quote(node.value)
    kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
    return f"a {kind}" if node.value else f"an empty {kind}"


def quote(text: str) -> str:
    """Text of the file, cut where it is long."""
    return repr(text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "...")


def place(mark: Any) -> str:
    """`line 3, column 5`."""
    return f"line {mark.line + 1}, column {mark.column + 1}"
