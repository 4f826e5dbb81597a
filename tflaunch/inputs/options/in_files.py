"""Which options the files have, by which keys, and what a value in a file is on the command line.

tflaunch.inputs.options.file_values says how the value is checked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.inputs.options.declared import In, Option, group_of
from tflaunch.inputs.options.groups import (
    ConnectionOptions,
    LogOptions,
    OutputOptions,
    ReachOptions,
    SshOptions,
)
from tflaunch.inputs.options.job_groups import FetchedOptions, TaskOptions
from tflaunch.inputs.options.of_others import (
    AnswerOptions,
    CheckOptions,
    GraceOptions,
    InitAnswerOptions,
    LinesOptions,
    ListOptions,
    ProfileOptions,
    QuickOptions,
    StacksOptions,
    TopOptions,
)
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.inputs.options.of_sweep import SweepOptions
from tflaunch.inputs.options.of_tune import TuneOptions
from tflaunch.inputs.options.of_up import UpOptions

# The groups of each verb in which there are options that a configuration may set.
OF_VERB: Mapping[str, tuple[Any, ...]] = {
    "run": (RunOptions,),
    "up": (UpOptions,),
    "sweep": (SweepOptions,),
    "tune": (TuneOptions,),
    "attach": (LogOptions, OutputOptions, ReachOptions),
    "logs": (LogOptions, LinesOptions, ReachOptions),
    "fetch": (FetchedOptions, ReachOptions),
    "tensorboard": (ReachOptions,),
    "detach": (ReachOptions,),
    "stop": (GraceOptions, ReachOptions),
    "init": (InitAnswerOptions, ConnectionOptions),
    "gpus": (ListOptions, AnswerOptions, QuickOptions),
    "check": (CheckOptions, TaskOptions, QuickOptions),
    "ps": (SshOptions,),
    "status": (ReachOptions,),
    "top": (TopOptions, ReachOptions),
    "report": (SshOptions,),
    "stacks": (StacksOptions, ReachOptions),
    "profile": (ProfileOptions, ReachOptions),
    "clean": (SshOptions,),
}


class Values(NamedTuple):
    """Values of options as the command line has them, by the names of the options."""

    options: dict[str, Any]
    lists: dict[str, tuple[Any, ...]]  # the command line adds to them
    keys: dict[str, str]  # of the file, likewise


@functools.cache
def of_table(verb: str) -> tuple[Option, ...]:
    """The options in the verb's table of a configuration; of "", those at its top."""
    if not verb:
        return _options(In.TOP, ConnectionOptions)
    return _options(In.CONFIG, *OF_VERB[verb])


@functools.cache
def of_job_file() -> tuple[Option, ...]:
    """The options in a job file."""
    return _options(In.JOB_FILE, RunOptions)


def _options(where: In, *groups: Any) -> tuple[Option, ...]:
    found = [group for each in groups if (group := group_of(each)) is not None]
    return tuple(option for group in found for option in group.options if where in option.also_in)


def values_of(options: Iterable[Option], said: Mapping[str, Any], directory: Path) -> Values:
    """What the keys of a file, each with its checked value, mean for the options; paths are relative to `directory`."""
    found = Values({}, {}, {})
    for option in options:
        value = said.get(option.key)
        if value is None or (isinstance(value, dict) and not option.is_list and value):
            continue  # left out, or `flags:` that renames some: that is --flag
        found.keys[option.name] = option.key
        of_kind = found.lists if option.declared.adds else found.options
        of_kind[option.name] = _value(option, value, directory)
    return found


def _value(option: Option, value: Any, directory: Path) -> Any:
    if option.is_list:
        if isinstance(value, dict):
            return tuple(f"{name}={each}" for name, each in value.items())
        values = () if isinstance(value, bool) else (value,) if isinstance(value, str) else value
        return tuple(map(functools.partial(_path, directory), values)) if option.kind is Path else values
    if option.kind is Path:
        return _path(directory, value)
    if option.declared.written == "flags":
        return value is not False  # {} for `true`
    return not value if option.is_negated else value


def _path(directory: Path, text: str) -> Path:
    return directory / Path(text).expanduser()
