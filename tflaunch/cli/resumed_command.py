"""The class of commands that --resume NAME alone continues with the words on record: `sweep` and `tune`."""

from __future__ import annotations

import functools

import typer

from tflaunch.cli.command import command_line
from tflaunch.cli.trainer_command import TrainerCommand
from tflaunch.cli.trainer_words import Line

_RESUMED = "tflaunch.resumed"  # in the context: what --resume alone stands for


class ResumedCommand(TrainerCommand):
    """A verb with a trainer, and with --resume."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as TrainerCommand does; --resume alone stands for the words on record.

        Raises UsageError for what `check_words` refuses.
        """
        if not ctx.resilient_parsing:
            from tflaunch.cli.recorded_words import enter, resumed

            verb = ctx.info_name or ""
            read = functools.partial(Line.read, self.params, self.optional_values)
            if (found := resumed(read(args), read, verb)) is not None:
                enter(found.directory, "name HOSTS and the trainer with --resume, too")
                args = list(found.words)
                ctx.meta[_RESUMED] = found
            self.check_words(verb, args)
        return super().parse_args(ctx, args)

    def check_words(self, verb: str, args: list[str]) -> None:
        """Raise UsageError for words that the parser would misunderstand."""


def command_on_record(ctx: typer.Context) -> tuple[str, ...]:
    """Return the command line for the record: with all its words, where the user left out those on record."""
    if (found := ctx.meta.get(_RESUMED)) is None:
        return command_line()
    from tflaunch.runs.hidden_values import without_values

    return ("tflaunch", ctx.info_name or "", *without_values(found.words))
