"""The class of all verbs: options whose value may be left out, errors that say what is accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer
import typer.core

from tflaunch.cli import configured
from tflaunch.cli.values import TIME_WORD
from tflaunch.inputs.times import FOR_EVER, TIME, written


class Command(typer.core.TyperCommand):
    """A verb; the value of some options may be left out, and an error for a wrong value says what is accepted."""

    # Option -> (pattern that the next word must match to be its value; its value if that word does not match).
    optional_values: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Join the lines of the docstring; keep rich from reading [brackets] as markup.
        self.help = "\n\n".join(" ".join(each.split()) for each in (self.help or "").split("\n\n"))
        for option in self.params:
            if text := getattr(option, "help", None):
                option.help = text.replace("[", r"\[")  # type: ignore[attr-defined]
            if isinstance(option.default, float):  # a TIME: show 600.0 as 10m
                option.show_default = option.default > 0  # type: ignore[attr-defined]  # 0 means no limit
                option.default = written(option.default)
        if any("TIME" in (option.metavar or "") for option in self.params):
            self.help += f"\n\nA TIME is {TIME}."

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as typer does, after filling in the values that were left out; raises typer's errors."""
        try:
            rest = super().parse_args(ctx, self._completed(args))
            if not ctx.resilient_parsing:  # as for completion
                configured.apply(ctx)
            return rest
        except typer.BadParameter as error:
            # A ValidationError of pydantic, whose import would take longer than all else.
            if errors := getattr(error.__cause__, "errors", None):
                error.message = _sentence(errors()[0])
            raise
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser does not say to which verb the error belongs
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the verb, after the banner of the configuration."""
        if ctx.info_name not in configured.NOT_FOR:
            configured.show_banner(ctx.params)
        return super().invoke(ctx)

    def _completed(self, args: Sequence[str]) -> list[str]:
        completed: list[str] = []
        for number, word in enumerate(args):
            if word == "--":
                return [*completed, *args[number:]]
            completed.append(word)
            if word in self.optional_values:
                pattern, default = self.optional_values[word]
                if not re.fullmatch(pattern, "".join(args[number + 1 : number + 2])):
                    completed.append(default)
        return completed


def _sentence(error: Mapping[str, Any]) -> str:
    kind, limits = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(limits["error"])
    if kind == "greater_than_equal":
        fact = f"is less than {limits['ge']:g}"
    elif kind == "less_than_equal":
        fact = f"is more than {limits['le']:g}"
    elif kind.startswith("int"):
        fact = "is not a whole number"
    else:
        fact = "is not accepted here"
    return f"{str(error['input'])!r} {fact}"


class JobCommand(Command):
    """A verb that starts tasks."""

    optional_values: ClassVar = {
        "--mig": (r"\d+[cg](\..*)?", ""),  # 1g.10gb, 1c.3g.20gb; not the name of a program
        "--wait": (TIME_WORD, FOR_EVER),
    }
