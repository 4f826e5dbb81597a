"""The `tflaunch run` command for what another verb has found: the best trial, the fastest layout."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import typer


def run_command(
    ctx: typer.Context, kept: Collection[str], more: Sequence[str], *, renamed: Mapping[str, str] = {}
) -> tuple[str, ...]:
    """Return the command, up to the program's own arguments: the options `more`, and those of `kept` that were given.

    renamed: options that `run` calls otherwise.  It names variables of --env without their values, which may be
    secrets.
    """
    words = list(more)
    for name, value in ctx.params.items():
        if name not in kept or getattr(ctx.get_parameter_source(name), "name", "") != "COMMANDLINE":
            continue
        option = "--" + name.replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += [renamed.get(option, option), *_value(name, each)]
    module, script = ctx.params["module"], ctx.params["script"]
    program = ["-m", module] if module is not None else [script or ""]
    hosts = ctx.params["hosts"]
    return ("tflaunch", "run", *([] if hosts is None else [hosts]), *words, *program, "--")


def _value(name: str, value: Any) -> list[str]:
    if value is True or value == "":
        return []
    if isinstance(value, Enum):
        value = value.value
    return [str(value).partition("=")[0] if name == "env" else str(value)]
