"""Give typer the options that tflaunch.inputs.options declares.

A verb's function takes groups, or one dataclass that consists of groups.  `flatten` turns it into a function with one
parameter for each option, which builds the groups and calls the verb.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

import typer

from tflaunch.inputs.options.declared import Group, Option, group_of

T = TypeVar("T")


def parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return the parser of a value as typer needs it: with BadParameter for ValueError."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def flatten(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with one parameter for each option in place of its groups, as typer needs it."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Group] = {}
    own: list[str] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if group := group_of(hints[name]):
            groups[name] = group
            parameters += map(_parameter, group.options)
        else:
            own.append(name)
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    def with_groups(**given: Any) -> T:
        values = {name: given[name] for name in own}
        return function(**values, **{name: group.made_of(given) for name, group in groups.items()})

    options = [option for group in groups.values() for option in group.options]
    with_groups.optional_values = {  # type: ignore[attr-defined]  # tflaunch.cli.command reads it
        name: each.declared.alone
        for each in options
        if each.declared.alone
        for name in each.declared.names or [each.shown]
    }
    with_groups.__name__, with_groups.__doc__ = function.__name__, function.__doc__
    with_groups.__annotations__ = {each.name: each.annotation for each in parameters}
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups


def _parameter(option: Option) -> inspect.Parameter:
    """Return the option as a parameter that typer understands."""
    hint, default, names, settings = option.hint, option.default, option.declared.names, dict(option.settings)
    if hint is bool and not names:
        names = (option.shown,)  # else typer adds --no-NAME
    if option.is_list:
        hint, default = list[get_args(hint)[0]] | None, None  # type: ignore[misc]
    elif "parser" in settings:
        hint = Any  # the parser makes the value
        settings["parser"] = parser(settings["parser"])
    if isinstance(hint, type) and issubclass(hint, Enum):
        settings = {"metavar": "|".join(str(each.value) for each in hint), **settings}
    if complete := settings.pop("complete", ""):
        from tflaunch.cli import completion

        settings["autocompletion"] = getattr(completion, complete)
    make = typer.Argument if option.declared.is_argument else typer.Option
    info = make(default, *names, **settings)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=hint)
