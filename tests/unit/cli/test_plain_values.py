"""Values that typer's adapters would make of options, and those that are made without pydantic."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import typer

from tflaunch.cli import VERBS, application
from tflaunch.cli.plain_values import PlainValues, without_pydantic

TEXTS = (
    "",
    "0",
    "1",
    "7",
    "007",
    "-1",
    "+1",
    "1.5",
    "1_0",
    " 1",
    "x",
    "90s",
    "1e3",
    "9" * 12,
    "٣",
    ".",
    "/none",
)


def params_of(verb: str) -> list[Any]:
    command = typer.main.get_command(application([verb])).commands[verb]  # type: ignore[attr-defined]
    with typer.Context(command) as ctx:
        return [copy(param) for param in command.get_params(ctx) if hasattr(param, "get_runtime_param")]


def made(coerce: Callable[..., Any], param: Any, value: Any) -> tuple[str, Any]:
    """What becomes of that value, and of what type it is; or the error."""
    try:
        found = coerce(value, param=param, ctx=None)
    except typer.BadParameter as error:
        return "error", error.message
    return repr(type(found)), repr(found)


def test_every_option_takes_the_values_that_typer_takes() -> None:
    seen = set()
    for param in (param for verb in VERBS for param in params_of(verb)):
        default = param.default() if callable(param.default) else param.default
        if (kind := (param.name, str(param.type_descriptor), repr(default))) in seen:
            continue  # of another verb
        seen.add(kind)
        adapter = param.get_runtime_param()
        many = param.multiple or param.nargs == -1
        choices = list(param.type_descriptor.choices or ())
        for text in (None, *([] if default is None else [default]), *TEXTS, *choices):
            value = [text] if many and isinstance(text, str) else text
            expected = made(adapter.coerce, param, value)
            assert made(PlainValues().coerce, param, value) == expected, (param.name, value)
    assert len(seen) > 100


def test_a_value_that_is_set_already_stays() -> None:
    [param, *_] = params_of("run")
    param._runtime_param = set_already = object()
    assert without_pydantic([param]) == [param]
    assert param._runtime_param is set_already


def test_a_typer_without_adapters_is_left_alone() -> None:
    class Earlier:
        """A parameter of a typer that converts by click's types."""

    earlier = Earlier()
    without_pydantic([earlier])
    assert vars(earlier) == {}
