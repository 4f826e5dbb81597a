"""The module tflaunch.api.keywords: the options of `tflaunch run` as keywords, with types; `scripts/docs` writes it."""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import get_args

from tflaunch.inputs.options.declared import Group, In, Option
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.inputs.options.values import parse_gpus

FILE = Path(__file__).resolve().parents[2] / "tflaunch" / "api" / "keywords.py"
_HEAD = '''\
"""The options of `tflaunch run`, as keywords; `tflaunch run --help` says what each means.

`scripts/docs` writes this module: docs/generator/keywords.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict

Path = str | PathLike[str]
Time = float | str  # seconds, or as on the command line: "90s", "15m", "2h", "1d"
ByJob = Mapping[str, str | int] | Sequence[str]  # {"data": 2}, or ["data=2"]


class Keywords(TypedDict, total=False):
    """What `api.run` and `api.make_plan` take; what is None counts as not given."""

'''


def module() -> str:
    """Return the text of the module."""
    options = [option for option in Group(RunOptions).options if In.API in option.also_in]
    lines = []
    for panel, of_panel in groupby(options, lambda option: option.settings["rich_help_panel"]):
        lines.append(f"    # {panel}\n")
        lines += [f"    {option.name}: {_type(option)}\n" for option in of_panel]
    return _HEAD + "".join(lines)


def _type(option: Option) -> str:
    metavar = option.settings.get("metavar", "")
    if option.is_list:
        return _of_list(option, metavar)
    words = [_of_kind(option, metavar)]
    if option.declared.alone and option.kind is not int:  # True stands for the option without a value
        words.append("bool")
    if NoneType in get_args(option.hint):
        words.append("None")
    return " | ".join(words)


def _of_list(option: Option, metavar: str) -> str:
    if metavar.count("=") == 1:  # JOB=NAME=VALUE: a mapping would have one variable for each job
        value = "float" if metavar == "NAME=VALUE" else "str"
        return "ByJob" if metavar.startswith("JOB=") else f"Mapping[str, {value}] | Sequence[str]"
    return f"Sequence[{'Path' if option.kind is Path or metavar == 'PATH' else 'str'}]"


def _of_kind(option: Option, metavar: str) -> str:
    kind = option.kind
    if issubclass(kind, Enum):
        return f"Literal[{', '.join(_quoted(each.value) for each in kind)}]"
    if option.settings.get("parser") is parse_gpus:
        return 'int | Literal["all"]'
    return "Time" if "TIME" in metavar else "Path" if kind is Path else str(kind.__name__)


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    FILE.write_text(module(), encoding="utf-8")
