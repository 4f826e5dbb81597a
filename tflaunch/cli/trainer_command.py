"""The class of typer's commands for verbs with a trainer: `sweep`, and `run`, whose trainer may be a job file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import typer

from tflaunch.api.requests import configured
from tflaunch.cli.command import Verb, given_of
from tflaunch.protocol.errors import TflaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.cli.trainer_words import Line


class TrainerCommand(Verb):
    """A verb with a trainer: finds out which words are HOSTS, the trainer, options and the trainer's own."""

    hardly_optional: ClassVar = frozenset({"script"})  # -m PKG.MOD can stand for it
    instead: ClassVar[Mapping[str, str]] = {}  # option of another verb -> what to use here

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as typer does, where HOSTS may be left out and the trainer's own arguments follow `--`.

        Raises UsageError with the corrected command.
        """
        if ctx.resilient_parsing:  # for completion
            return super().parse_args(ctx, args)
        from tflaunch.cli.trainer_words import ITS_VALUE

        try:
            return self._parsed(ctx, args)
        except UsageError as error:
            if f"={ITS_VALUE}" in (error.hint or "") and f"={ITS_VALUE}" not in " ".join(args):
                error.hint = f"{error.hint}\n{ITS_VALUE} stands for a value that is not shown here"
            raise

    def _parsed(self, ctx: typer.Context, args: list[str]) -> list[str]:
        from tflaunch.cli.trainer_words import hosts_and_trainer

        verb = ctx.info_name or ""
        line = self.line_of(verb, args)
        if line is None:
            return super().parse_args(ctx, ["--help"])
        for option in line.unknown:
            self.refuse(verb, option, line)
        rest = super().parse_args(ctx, line.options)
        hosts, script, arguments = hosts_and_trainer(verb, line, ctx.params.get("module"))
        ctx.params.update(hosts=hosts, script=script, arguments=arguments)
        return rest

    def line_of(self, verb: str, args: list[str]) -> Line | None:
        """Return the words after the verb, sorted; None if they ask for help.

        Raises UsageError for the words of other launchers, with the corrected command.
        """
        from tflaunch.cli.other_launchers import as_here
        from tflaunch.cli.trainer_words import Line

        line = Line.read(self.params, self.optional_values, args)
        if any(word.texts[0] in ("--help", "-h") for word in line.words):
            return None
        line = line.with_values() if line.unknown else line
        return as_here(verb, line, {name for param in self.params for name in param.opts})

    def refuse(self, verb: str, option: str, line: Line) -> None:
        """Raise UsageError for an option that this verb lacks, if the user most likely meant one that it has."""
        from tflaunch.cli.mistakes import no_such_option
        from tflaunch.cli.other_launchers import hosts_behind
        from tflaunch.cli.trainer_words import moved

        if error := hosts_behind(verb, line, option):
            raise error
        name = option.partition("=")[0]
        if instead := self.instead.get(name):
            raise UsageError(f"tflaunch {verb} has no option {name}", instead)
        known = [each for param in self.params for each in param.opts if each.startswith("--")]
        known.append("--help")
        error = no_such_option(name, known, "", f"tflaunch {verb}")
        if error.hint:
            own = moved(verb, line)
            error.hint += f"\nif it is the trainer's own, it goes after --: {own}" if own else ""
            raise error


class RunCommand(TrainerCommand):
    """The class of the command `run`, whose trainer may be a job file."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as TrainerCommand does, and add what the job file says."""
        rest = super().parse_args(ctx, args)
        _take_job_file(ctx)
        return rest


def _take_job_file(ctx: typer.Context) -> None:
    """If TRAINER is a job file, take from it what the command line does not say.

    An error in the file becomes `ctx.obj`; `run` reports it.
    """
    from tflaunch.inputs.kinds import is_job_file

    script = ctx.params.get("script")
    if script is None or not is_job_file(script):
        return
    from tflaunch.inputs import job_file

    try:
        ctx.obj = file = job_file.load(script)
    except TflaunchError as error:
        ctx.obj = error
        return
    configured.take_job_file(file, given_of(ctx))
