"""From the keywords of a call to the options of a run."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch.inputs.options.declared import Group, In, Option
from tflaunch.inputs.options.given import Given
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.inputs.job_file import JobFile

NOT_HERE = {
    "detach": "start the run, then hand it over: run.detach()",
    "dry_run": "make_plan plans, and starts nothing",
    "json": "a Run gives its events",
}
_YES = {"1", "true", "t", "yes", "y", "on"}


class Call(NamedTuple):
    """What a call asks for."""

    options: RunOptions
    job_file: JobFile | None


def options_of(program: str, args: Iterable[Any], keywords: Mapping[str, Any]) -> Call:
    """Return the options, those of the configuration and of a job file among them.

    Raises UsageError with the words of the command line, ConfigError, JobFileError.
    """
    from tflaunch.api.requests import configured
    from tflaunch.inputs import job_file
    from tflaunch.inputs.kinds import is_job_file

    group = Group(RunOptions)
    known = {option.name: option for option in group.options if In.API in option.also_in}
    for name in keywords:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}=?" if near else "tflaunch run --help has them all"
            raise UsageError(f"{name}=: there is no such option", NOT_HERE.get(name) or hint)
    if isinstance(args, str):
        raise UsageError(f"args={args!r}: one string", "a list of words: args=['--epochs', '3']")
    if program and keywords.get("module"):
        raise UsageError(
            f"module={keywords['module']!r} and {program} both say what to run", "leave one of them out"
        )
    said: set[str] = set()
    given = Given({each.name: each.default for each in group.options}, said)
    for option in known.values():
        value = keywords.get(option.name)
        if value is None:
            value = _from_environment(option)
        if value is None or (value is False and option.declared.alone):
            continue
        given.values[option.name] = _read(option, value)
        said.add(option.name)
    given.values.update(script=program or None, arguments=tuple(map(str, args)))
    configured.apply("run", given)
    file = None
    if program and is_job_file(program):
        file = job_file.load(program)
        configured.take_job_file(file, given)
    return Call(group.made_of(given.values), file)


def _from_environment(option: Option) -> bool | None:
    """Return the value of a yes or no that a variable sets, None for all else."""
    name = option.settings.get("envvar")
    return os.environ[name].strip().lower() in _YES if name and os.environ.get(name) else None


def _read(option: Option, value: Any) -> Any:
    """Return the value of an option as the command line would have it; raises UsageError."""
    try:
        return _value(option, value)
    except (TypeError, ValueError) as error:
        metavar = option.settings.get("metavar")
        shown = f"{option.shown} {metavar}" if metavar else option.shown
        raise UsageError(f"{option.shown}: {error}", f"{shown}: {option.settings.get('help', '')}") from None


def _value(option: Option, value: Any) -> Any:
    kind = option.kind
    if option.is_list:
        values = [f"{key}={each}" for key, each in value.items()] if isinstance(value, Mapping) else value
        values = [values] if isinstance(values, (str, os.PathLike)) else values
        return tuple(Path(each) if kind is Path else str(each) for each in values)
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither True nor False")
        return value
    if value is True and option.declared.alone:  # as the option without a value
        _, value = option.declared.alone
    if isinstance(value, bool) or not isinstance(value, (str, int, float, os.PathLike, Enum)):
        raise ValueError(f"{value!r} is not accepted here")
    if option.name == "wait" and value == math.inf:
        return value
    text = _text(value)
    if parse := option.settings.get("parser"):
        return parse(text)
    if kind is int:
        return _whole_number(text, option)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if text not in (choices := [str(each.value) for each in kind]):
            raise ValueError(f"{text!r} is not one of {', '.join(map(repr, choices))}")
        return kind(text)
    return kind(text)


def _whole_number(text: str, option: Option) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if number < option.settings.get("min", number):
        raise ValueError(f"{text!r} is less than {option.settings['min']}")
    if number > option.settings.get("max", number):
        raise ValueError(f"{text!r} is more than {option.settings['max']}")
    return number


def _text(value: Any) -> str:
    """Return a value as it is written on a command line; a number without an exponent."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
