"""The values of options in YAML and TOML: how each is checked, and what the JSON Schemas say of it.

tflaunch.inputs.yaml_values says in which form the values arrive, and what a check raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from tflaunch.inputs.amounts import TIME, seconds, size
from tflaunch.inputs.options.declared import Option
from tflaunch.inputs.options.values import TimeParser
from tflaunch.inputs.patterns import Pattern
from tflaunch.inputs.yaml_text import Unacceptable, text_of, whole
from tflaunch.inputs.yaml_values import UNSAID, Variables
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import FLAGS, TASK_FLAG, job_name_fault

Check = Callable[[object], Any]
Schema = dict[str, Any]

# Keys that are written otherwise than their options, of which the help speaks.
_MEANINGS = {
    "flags": "Cluster flags under other names, or under their own: true; false: TF_CONFIG alone tells who a task is "
    "[what the program's source reads]",
    "env": "Variables of all tasks, with {index} and other placeholders.",
    "restart": "What starts again: the task, the whole cluster, or never; what a role says wins [task where there are "
    "ps, else cluster]",
}


def _texts(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("names nothing; leave it out")
    for index, item in enumerate(items):
        try:
            text_of(item, "text")
        except ValueError as error:
            raise (Unacceptable(str(error), index) if isinstance(value, list) else error) from None
    return tuple(map(str, items))


def text(value: object) -> str:
    if not (line := text_of(value, "text")):
        raise ValueError("is empty; leave it out")
    return str(line)


def module_name(value: object) -> str:
    name = text(value)
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        raise ValueError("is not a module: package.trainer, without .py")
    return name


def choice(names: Sequence[str]) -> Check:
    """Return the check of a value that is one of these."""

    def check(value: object) -> str:
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return str(value)

    return check


def time(least_s: float = 0.0) -> Check:
    """Return the check of a time of at least so long; it returns seconds."""

    def check(value: object) -> float:
        if (time_s := seconds(text_of(value, f"a time: {TIME}", free=False))) < least_s:
            raise ValueError(f"is less than {least_s:g} s")
        return time_s

    return check


def _amount(of: str, example: str) -> Check:
    def check(value: object) -> str:
        text = text_of(value, f"an amount of {of}: {example}", free=False)
        try:
            size(text)
        except UsageError:
            raise ValueError(f"is not an amount of {of}; write it with its unit: {example}") from None
        return str(text)

    return check


def _patterns(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    for index, text in enumerate(texts):
        try:
            Pattern.parse(text)
        except ValueError as error:
            raise (Unacceptable(str(error), index) if isinstance(value, list) else error) from None
    return texts


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _wait(value: object) -> float | None:
    if isinstance(value, bool):
        return math.inf if value else None
    return float(time()(value))


def _mig(value: object) -> str | None:
    if isinstance(value, bool):
        return "" if value else None
    text = text_of(value, "true, or a profile: 1g.10gb")
    if not re.fullmatch(r"\d+[cg](\..*)?", text):
        raise ValueError("is not true or a profile: 1g.10gb")
    return str(text)


def _dial_check(value: object) -> str:
    if isinstance(value, bool):
        return "auto" if value else "none"
    if value not in ("auto", "all"):
        raise ValueError("is not true, false, auto or all")
    return str(value)


def _flags(value: object) -> dict[str, str] | bool:
    if isinstance(value, bool):
        return {} if value else False
    if not isinstance(value, dict):
        raise ValueError("is not true, false (no flags at all), or a mapping such as task_index: task_id")
    for name, other in value.items():
        if name not in (*FLAGS, TASK_FLAG) and not (name.endswith("_hosts") and not job_name_fault(name)):
            raise Unacceptable(
                f"renames a flag that is none of {', '.join(FLAGS)}, {TASK_FLAG}, JOB_hosts", name
            )
        if not isinstance(other, str):
            raise Unacceptable('is not the name of a flag; write "" to pass none', name)
    return {name: str(other) for name, other in value.items()}


TEXT: Schema = {"type": "string"}
TIMES: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^[0-9.]+ *[smhdw]?$"}],
    "examples": [90, "15m", "12h"],
}
LIST: Schema = {"anyOf": [TEXT, {"type": "array", "items": {"type": ["string", "number"]}}]}
_OR_TEXT: Schema = {"anyOf": [{"type": "boolean"}, {"type": ["string", "number"]}]}
_NAMED: Schema = {"anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": TEXT}]}
_WRITTEN: dict[str, tuple[Check, Schema]] = {
    "dial_check": (
        _dial_check,
        {"anyOf": [{"type": "boolean"}, {"enum": ["auto", "all"]}], "examples": ["all"]},
    ),
    "flags": (_flags, {**_NAMED, "examples": [{"task_index": "task_id"}, {"task": "job"}, False]}),
    "memory": (_amount("memory", "40GiB"), {**TEXT, "examples": ["40GiB"]}),
    "mig": (_mig, {**_OR_TEXT, "examples": [True, "1g.10gb"]}),
    "module": (module_name, TEXT),
    "patterns": (_patterns, LIST),
    "size": (_amount("data", "20GiB"), {**TEXT, "examples": ["20GiB"]}),
    "wait": (_wait, {**_OR_TEXT, "examples": [True, "2h"]}),
}


def fields_of(options: Iterable[Option]) -> Any:
    """Return the fields of a pydantic model for the keys of these options."""
    return {option.key: (_field(option), UNSAID) for option in options}


def _field(option: Option) -> Any:
    meaning = _meaning(option)
    if option.declared.written == "variables":
        return Annotated[Variables, Field(description=meaning)]
    check, schema = _form(option)
    if option.declared.example is not None:
        schema = {**schema, "examples": [option.declared.example]}
    return Annotated[Any, PlainValidator(check), WithJsonSchema({**schema, "description": meaning})]


def _form(option: Option) -> tuple[Check, Schema]:
    """Return how a value is checked, and its JSON Schema: by the type of the option, unless it says more."""
    declared, kind = option.declared, option.kind
    if declared.written:
        return _WRITTEN[declared.written]
    of_type = [str(each.value) for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else ()
    if names := declared.choices or of_type:
        return choice(names), {"enum": [*names]}
    if option.is_list:
        return _texts, LIST
    if isinstance(parser := option.settings.get("parser"), TimeParser):
        return time(parser.least_s), TIMES
    if kind is bool:
        return _truth, {"type": "boolean"}
    if kind is int:
        low, high = option.settings.get("min", 0), option.settings.get("max")
        limits = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
        return (lambda value: whole(value, low, high)), {"type": "integer", **limits}
    return text, TEXT


def _meaning(option: Option) -> str:
    """Return what the key means: the help of the option, in the words of a file."""
    if special := _MEANINGS.get(option.key):
        return special
    said = " ".join(str(option.settings["help"]).split()).replace("; repeatable", "")
    said = re.sub(r"--([a-z][a-z-]*)(?![\w=])", lambda found: f"`{found[1].replace('-', '_')}`", said)
    if option.is_negated:
        said = f"false: {said[0].lower()}{said[1:]}"
    if option.kind is Path:
        sentence, bracket, default = said.partition(" [")
        said = f"{sentence.rstrip('.')}; relative to this file{bracket or '.'}{default}"
    return said
