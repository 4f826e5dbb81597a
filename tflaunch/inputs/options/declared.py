"""Declare the options of a verb: dataclasses whose fields are options, put together from groups.

The command line makes typer's parameters of them (tflaunch.cli.options), `api.run` reads keywords by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_KEY = "option"  # in the metadata of a field


@dataclass(repr=False, eq=False)
class Declared:
    """What a field says of its option, or of its argument."""

    is_argument: bool
    names: tuple[str, ...]
    settings: Mapping[str, Any]


def option(default: T, *names: str, **settings: Any) -> T:
    """A field that is an option; `settings` are those of typer.Option, and `complete`.

    Without `names` the option has the field's name.  The group's attribute `panel`, if there is one, is the panel of
    the help that shows it.  A field of type tuple is an option that can be given several times.
    parser: makes the value from a text; raises ValueError.  complete: a function of tflaunch.cli.completion, by name.
    """
    return field(default=default, metadata={_KEY: Declared(False, names, settings)})


def argument(default: T, **settings: Any) -> T:
    """A field that is an argument; `settings` are those of typer.Argument, and those that `option` has besides."""
    return field(default=default, metadata={_KEY: Declared(True, (), settings)})


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


class Option(NamedTuple):
    """An option, or an argument, of a verb."""

    name: str  # of its field
    hint: Any  # the type of its value
    default: Any
    declared: Declared
    settings: Mapping[str, Any]

    @property
    def is_list(self) -> bool:
        """Whether it can be given several times."""
        return get_origin(self.hint) is tuple

    @property
    def shown(self) -> str:
        """`--gpus-per-worker`."""
        names = [name for name in self.declared.names if name.startswith("--")]
        return names[0].partition("/")[0] if names else "--" + self.name.replace("_", "-")


class Group:
    """The options of a dataclass, those of its groups among them; makes the dataclass from their values."""

    def __init__(self, kind: type, part: Part | None = None) -> None:
        self.options: list[Option] = []
        part = part or Part()
        self._kind = kind
        self._groups: dict[str, Group] = {}
        self._own: list[Option] = []
        hints = get_type_hints(kind, include_extras=True)
        if unknown := {*part.only, *part.without, *part.default, *part.help} - hints.keys():
            raise TypeError(f"{kind.__name__} has no option {', '.join(sorted(unknown))}")
        for each in fields(kind):
            hint = hints[each.name]
            if group := group_of(hint):
                self._groups[each.name] = group
                self.options += group.options
            elif part.has(each.name):
                declared: Declared = each.metadata[_KEY]
                settings = {"rich_help_panel": getattr(kind, "panel", None), **declared.settings}
                if each.name in part.help:
                    settings["help"] = part.help[each.name]
                default = part.default.get(each.name, each.default)
                self._own.append(Option(each.name, hint, default, declared, settings))
                self.options.append(self._own[-1])

    def made_of(self, given: Mapping[str, Any]) -> Any:
        """Return the dataclass; `given` maps every option's name to its value."""
        values = {name: group.made_of(given) for name, group in self._groups.items()}
        for each in self._own:
            values[each.name] = tuple(given[each.name] or ()) if each.is_list else given[each.name]
        return self._kind(**values)


def group_of(hint: Any) -> Group | None:
    """Return the group that a type hint asks for, None if it is no group's."""
    kind, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not is_dataclass(kind):
        return None
    return Group(cast("type", kind), next((each for each in more if isinstance(each, Part)), None))
