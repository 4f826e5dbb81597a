"""A verb as typer's command: with options whose values may be left out, and with errors in our own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer
import typer.core

from tflaunch.cli.values import TIME_WORD
from tflaunch.times import FOR_EVER, TIME, written


class Command(typer.core.TyperCommand):
    """A verb whose options may have values that can be left out; of a wrong one it says what is accepted."""

    # Option -> (a pattern of what is its value, if it follows in a word of its own; the value if none does).
    optional_values: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Lines of the source are not lines of the help; and what is in brackets is text, no markup of rich's.
        self.help = "\n\n".join(" ".join(each.split()) for each in (self.help or "").split("\n\n"))
        for option in self.params:
            if text := getattr(option, "help", None):
                option.help = text.replace("[", r"\[")  # type: ignore[attr-defined]
            if isinstance(option.default, float):  # a TIME, and all of them are shown alike
                option.show_default = option.default > 0  # type: ignore[attr-defined]  # 0: no limit
                option.default = written(option.default)
        if any("TIME" in (option.metavar or "") for option in self.params):
            self.help += f"\n\nA TIME is {TIME}."

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, with values that were left out, and with that sentence in the error."""
        try:
            return super().parse_args(ctx, self._completed(args))
        except typer.BadParameter as error:
            # pydantic's ValidationError, which to import would take longer than all else.
            if errors := getattr(error.__cause__, "errors", None):
                error.message = _sentence(errors()[0])
            raise
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser leaves out whose error it is
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def _completed(self, args: Sequence[str]) -> list[str]:
        told: list[str] = []
        for number, word in enumerate(args):
            if word == "--":
                return [*told, *args[number:]]
            told.append(word)
            if word in self.optional_values:
                pattern, default = self.optional_values[word]
                if not re.fullmatch(pattern, "".join(args[number + 1 : number + 2])):
                    told.append(default)
        return told


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
        "--mig": (r"\d+[cg](\..*)?", ""),  # 1g.10gb, 1c.3g.20gb; no program's name
        "--wait": (TIME_WORD, FOR_EVER),
    }
