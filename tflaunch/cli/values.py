"""Values on the command line: such as may be left out, and wrong ones in our own words, not in pydantic's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer
import typer.core


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

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, with values that were left out, and with that sentence in the error."""
        try:
            return super().parse_args(ctx, self._completed(args))
        except typer.BadParameter as error:
            # pydantic's ValidationError, which to import would take longer than all else.
            if errors := getattr(error.__cause__, "errors", None):
                error.message = _sentence(errors()[0])
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
    elif kind.startswith(("float", "finite")):
        fact = "is not a number"
    else:
        fact = "is not accepted here"
    return f"{str(error['input'])!r} {fact}"
