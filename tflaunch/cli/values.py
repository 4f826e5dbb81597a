"""A wrong value on the command line, in our own words; typer would hand on what pydantic says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
import typer.core


class Command(typer.core.TyperCommand):
    """A verb that says of a wrong value what was written and what is accepted."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, with that sentence in the error."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # pydantic's ValidationError, which to import would take longer than all else.
            if errors := getattr(error.__cause__, "errors", None):
                error.message = _sentence(errors()[0])
            raise


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
