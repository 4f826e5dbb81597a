"""Verbs with a trainer as typer's commands: `run`, which takes a job file, too, and what it shares with `sweep`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import typer

from tflaunch.cli.command import JobCommand
from tflaunch.errors import TflaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.cli.trainer_words import Line


class TrainerCommand(JobCommand):
    """A verb with a trainer: tells HOSTS from it by what they are, and what is the trainer's own from options."""

    instead: ClassVar[Mapping[str, str]] = {}  # of options that other verbs have

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, less what it cannot know: HOSTS may be left out, and what is for the trainer follows `--`.

        Raises UsageError with the corrected command.
        """
        if ctx.resilient_parsing:  # for completion
            return super().parse_args(ctx, args)
        from tflaunch.cli.trainer_words import Line, chosen

        line = Line.read(self.params, self.optional_values, args)
        if any(word.texts[0] in ("--help", "-h") for word in line.words):
            return super().parse_args(ctx, ["--help"])
        verb = ctx.info_name or ""
        for option in line.unknown:
            self.refuse(verb, option, line)
        rest = super().parse_args(ctx, line.options)
        hosts, script, arguments = chosen(verb, line, ctx.params.get("module"))
        ctx.params.update(hosts=hosts, script=script, arguments=arguments)
        return rest

    def refuse(self, verb: str, option: str, line: Line) -> None:
        """Raise UsageError for an option that this verb lacks, if it was most likely meant for it."""
        from tflaunch.cli.mistakes import no_such_option
        from tflaunch.cli.trainer_words import moved, with_hosts

        if error := with_hosts(verb, line, option):
            raise error
        name = option.partition("=")[0]
        if instead := self.instead.get(name):
            raise UsageError(f"tflaunch {verb} has no option {name}", instead)
        known = [each for param in self.params for each in param.opts if each.startswith("--")]
        error = no_such_option(name, known, "", f"tflaunch {verb}")
        if error.hint:
            own = moved(verb, line)
            error.hint += f"\nif it is the trainer's own, it goes behind --: {own}" if own else ""
            raise error


class RunCommand(TrainerCommand):
    """`run`, whose trainer may be a job file."""

    optional_values: ClassVar = {**JobCommand.optional_values, "--evaluator": (r"[0-9]+", "1")}

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As of any trainer, and what the file says."""
        rest = super().parse_args(ctx, args)
        _take_job_file(ctx)
        return rest


def _take_job_file(ctx: typer.Context) -> None:
    """Where TRAINER is a job file, what it says is taken for what the command line does not say.

    What is wrong with it is reported by `run`, which knows how.
    """
    from tflaunch.cli.trainer_words import kind_of

    script = ctx.params.get("script")
    if script is None or not (script.endswith((".yaml", ".yml")) or kind_of(script) == "job"):
        return
    from tflaunch import job_file

    try:
        ctx.obj = file = job_file.load(script)
    except TflaunchError as error:
        ctx.obj = error
        return
    ctx.params.update(script=file.program, module=file.module)
    for name, value in file.options.items():
        if getattr(ctx.get_parameter_source(name), "name", "") == "DEFAULT":
            default = ctx.params[name]
            ctx.params[name] = type(default)(value) if isinstance(default, Enum) else value
    for name, values in file.lists.items():
        if name == "restart" and file.options.get("restarts") and not ctx.params["restarts"]:
            continue  # --restarts 0 is the last word
        ctx.params[name] = [*values, *(ctx.params.get(name) or ())]
