"""The `tflaunch run` command for what another verb has found: the best trial, the fastest layout."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import typer

from tflaunch.cli.recorded_words import filled
from tflaunch.runs.hidden_values import without_values


def run_command(
    ctx: typer.Context, kept: Collection[str], more: Sequence[str], *, renamed: Mapping[str, str] = {}
) -> tuple[str, ...]:
    """Return the command, up to the program's own arguments: the options `more`, and those of `kept` that were given.

    renamed: options that `run` calls otherwise.  It names variables of --env and --job-env without their values, which
    may be secrets; the values of `more` stay.
    """
    words: list[str] = []
    declared = {each.name: each for each in ctx.command.params}
    for name, value in ctx.params.items():
        if name not in kept or getattr(ctx.get_parameter_source(name), "name", "") != "COMMANDLINE":
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            names = declared[name].secondary_opts if each is False else declared[name].opts
            option = next(word for word in names if word.startswith("--"))
            words += [renamed.get(option, option), *_value(each)]
    words = [*more, *filled(without_values(words), lambda _: "")]
    module, script = ctx.params["module"], ctx.params["script"]
    program = ["-m", module] if module is not None else [script or ""]
    hosts = ctx.params["hosts"]
    return ("tflaunch", "run", *([] if hosts is None else [hosts]), *words, *program, "--")


def _value(value: Any) -> list[str]:
    if isinstance(value, bool) or value == "":
        return []
    return [str(value.value if isinstance(value, Enum) else value)]
