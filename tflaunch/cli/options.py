"""Groups of options: dataclasses whose fields are options, and the flat signature that typer needs.

A verb's function takes groups, or one dataclass that consists of groups.  `flatten` turns it into a function with one
parameter for each option, which builds the groups and calls the verb.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import typer

T = TypeVar("T")
_KEY = "typer"  # in the metadata of a field


@dataclass(repr=False, eq=False)
class _Declared:
    make: Callable[..., Any]  # typer.Option or typer.Argument
    names: tuple[str, ...]
    settings: dict[str, Any]

    def parameter(self, name: str, hint: Any, default: Any, settings: Mapping[str, Any]) -> inspect.Parameter:
        """Return the field as a parameter that typer understands."""
        names = self.names
        if hint is bool and not names:
            names = ("--" + name.replace("_", "-"),)  # else typer adds --no-NAME
        if get_origin(hint) is tuple:
            hint, default = list[get_args(hint)[0]] | None, None  # type: ignore[misc]
        elif "parser" in settings:
            hint = Any  # the parser makes the value
        if isinstance(hint, type) and issubclass(hint, Enum):
            settings = {"metavar": "|".join(str(each.value) for each in hint), **settings}
        info = self.make(default, *names, **settings)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=hint)


def option(default: T, *names: str, **settings: Any) -> T:
    """A field that is an option; `settings` go to typer.Option.

    Without `names` the option has the field's name.  The group's attribute `panel`, if there is one, is the panel of
    the help that shows it.  A field of type tuple is an option that can be given several times.
    """
    return field(default=default, metadata={_KEY: _Declared(typer.Option, names, settings)})


def argument(default: T, **settings: Any) -> T:
    """A field that is an argument; `settings` go to typer.Argument."""
    return field(default=default, metadata={_KEY: _Declared(typer.Argument, (), settings)})


class Part:
    """Which options of a group a verb has, with the defaults and help texts that differ there.

    `Annotated[EndOptions, Part("grace", "lease")]`: only these two.
    `Annotated[GpuOptions, Part(without=("mig",))]`: all but one.
    `Annotated[RestartOptions, Part(default={"restarts": 3})]`: all, one of them with another default.
    Where a verb lacks an option, the field has the group's default.
    """

    def __init__(
        self,
        *only: str,
        without: Collection[str] = (),
        default: Mapping[str, Any] = {},
        help: Mapping[str, str] = {},
    ) -> None:
        self.only, self.without, self.default, self.help = only, without, default, help

    def has(self, name: str) -> bool:
        """Return whether the verb has this option."""
        return name in self.only if self.only else name not in self.without


class _Group:
    """Reads a dataclass of options and groups; makes one from the values of the options."""

    def __init__(self, kind: type, part: Part) -> None:
        self.parameters: list[inspect.Parameter] = []
        self._kind = kind
        self._groups: dict[str, _Group] = {}
        self._is_list: dict[str, bool] = {}  # option -> whether it can be given several times
        hints = get_type_hints(kind, include_extras=True)
        if unknown := {*part.only, *part.without, *part.default, *part.help} - hints.keys():
            raise TypeError(f"{kind.__name__} has no option {', '.join(sorted(unknown))}")
        for each in fields(kind):
            hint = hints[each.name]
            if group := _group_of(hint):
                self._groups[each.name] = group
                self.parameters += group.parameters
            elif part.has(each.name):
                declared: _Declared = each.metadata[_KEY]
                settings = {"rich_help_panel": getattr(kind, "panel", None), **declared.settings}
                if each.name in part.help:
                    settings["help"] = part.help[each.name]
                default = part.default.get(each.name, each.default)
                self.parameters.append(declared.parameter(each.name, hint, default, settings))
                self._is_list[each.name] = get_origin(hint) is tuple

    def made_of(self, given: Mapping[str, Any]) -> Any:
        """Return the dataclass; `given` maps every option's name to its value."""
        values = {name: group.made_of(given) for name, group in self._groups.items()}
        for name, is_list in self._is_list.items():
            values[name] = tuple(given[name] or ()) if is_list else given[name]
        return self._kind(**values)


def _group_of(hint: Any) -> _Group | None:
    kind, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not is_dataclass(kind):
        return None
    return _Group(cast("type", kind), next((each for each in more if isinstance(each, Part)), Part()))


def flatten(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with one parameter for each option in place of its groups, as typer needs it."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, _Group] = {}
    own: list[str] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if group := _group_of(hints[name]):
            groups[name] = group
            parameters += group.parameters
        else:
            own.append(name)
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    def with_groups(**given: Any) -> T:
        values = {name: given[name] for name in own}
        return function(**values, **{name: group.made_of(given) for name, group in groups.items()})

    with_groups.__name__, with_groups.__doc__ = function.__name__, function.__doc__
    with_groups.__annotations__ = {each.name: each.annotation for each in parameters}
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_groups
