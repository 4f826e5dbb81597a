"""Declare options, each once: dataclasses whose fields are options, put together from groups.

The command line makes typer's parameters of them (tflaunch.cli.options), the job file and the configuration their keys
(tflaunch.inputs.options.in_files), and `api.run` its keywords.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Flag, auto
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from tflaunch.inputs.options.values import TimeParser

T = TypeVar("T")
_KEY = "option"  # in the metadata of a field


class In(Flag):
    """Where an option can be said, beside the command line."""

    JOB_FILE = auto()
    CONFIG = auto()  # in the tables of all verbs that have it
    TOP = auto()  # at the top of a configuration, for all verbs that have it
    API = auto()  # as a keyword of `api.run`


NOWHERE = In(0)
FILES = In.JOB_FILE | In.CONFIG
EVERYWHERE = FILES | In.API

# How a file has the value of an option whose type does not say it (tflaunch.inputs.options.file_values).
Written = Literal[
    "", "dial_check", "flags", "memory", "mig", "module", "patterns", "size", "variables", "wait"
]


@dataclass(repr=False, eq=False)
class Declared:
    """What a field says of its option, or of its argument."""

    is_argument: bool
    names: tuple[str, ...]
    settings: Mapping[str, Any]
    also_in: In | None = None
    also_of: Collection[str] | None = None
    key: str = ""
    written: Written = ""
    choices: tuple[str, ...] = ()
    adds: bool = False
    alone: tuple[str, str] | None = None
    example: Any = None


_OURS = {each.name for each in fields(Declared)}
# What typer is told of the options of a type that do not say it themselves.
_OF_TYPE: Mapping[Any, Mapping[str, Any]] = {
    float: {"parser": TimeParser(), "metavar": "TIME"},
    int: {"metavar": "N"},
    Path: {"metavar": "FILE"},
}


def option(default: T, *names: str, **said: Any) -> T:
    """A field that is an option; what is `said` of it are settings of typer.Option, and these:

    also_in: where it can be said, beside the command line; by default what the group says, else EVERYWHERE.
    also_of: the verbs beside `run` that have it (`Part(of="up")`); by default what the group says, else none.
    key: in files; by default the field's name.  A bool `no_NAME` has the key NAME, which says the opposite.
    written, choices, example: of its value in files.  adds: the command line adds to what a file says.
    alone: (pattern of the next word if that is its value, its value if not), where the value may be left out.
    complete: a function of tflaunch.cli.completion, by name.

    Without `names` the option has the field's name.  The group's attribute `panel`, if there is one, is the panel of
    the help that shows it.  A field of type tuple is an option that can be given several times, a float is a TIME.
    `parser` makes the value from a text; raises ValueError.
    """
    ours = {name: said.pop(name) for name in _OURS & said.keys()}
    return field(default=default, metadata={_KEY: Declared(False, names, said, **ours)})


def argument(default: T, **settings: Any) -> T:
    """A field that is an argument; `settings` are those of typer.Argument, `parser` and `complete`."""
    return field(default=default, metadata={_KEY: Declared(True, (), settings, NOWHERE)})


class Part:
    """Which options of a group a verb has, with the defaults and help texts that differ there.

    `Annotated[EndOptions, Part("grace", "lease")]`: only these two.
    `Annotated[EndOptions, Part(of="up")]`: those that say that `up` has them.
    `Annotated[GpuOptions, Part(without=("mig",))]`: all but one.
    `Annotated[RestartOptions, Part(default={"restarts": 3})]`: all, one of them with another default.
    Where a verb lacks an option, the field has the group's default.  panel: of the help, where it is not the group's.
    """

    def __init__(
        self,
        *only: str,
        of: str = "",
        without: Collection[str] = (),
        default: Mapping[str, Any] = {},
        help: Mapping[str, str] = {},
        panel: str = "",
    ) -> None:
        self.only, self.of, self.without, self.default, self.help = only, of, without, default, help
        self.panel = panel

    def has(self, name: str, verbs: Collection[str]) -> bool:
        """Return whether the verb has this option, which `verbs` have beside `run`."""
        if self.of:
            return self.of in verbs
        return name in self.only if self.only else name not in self.without


class Option(NamedTuple):
    """An option, or an argument, of a verb."""

    name: str  # of its field
    hint: Any  # the type of its value
    default: Any
    declared: Declared
    settings: Mapping[str, Any]
    also_in: In

    @property
    def is_list(self) -> bool:
        """Whether it can be given several times."""
        return get_origin(self.hint) is tuple

    @property
    def kind(self) -> Any:
        """The type of its value, of one of its values if it is a list; None is left out of it."""
        return kind_of(self.hint)

    @property
    def shown(self) -> str:
        """`--gpus-per-worker`."""
        names = [name for name in self.declared.names if name.startswith("--")]
        return names[0].partition("/")[0] if names else "--" + self.name.replace("_", "-")

    @property
    def is_negated(self) -> bool:
        """Whether its key says the opposite: `--no-sync` is `sync: false`."""
        return self.hint is bool and self.name.startswith("no_")

    @property
    def key(self) -> str:
        """What files call it."""
        return self.declared.key or (self.name.removeprefix("no_") if self.is_negated else self.name)


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
                continue
            declared: Declared = each.metadata[_KEY]
            verbs = declared.also_of
            if part.has(each.name, getattr(kind, "also_of", ()) if verbs is None else verbs):
                default = part.default.get(each.name, each.default)
                self._own.append(
                    Option(
                        each.name, hint, default, declared, *_of_group(kind, each.name, hint, declared, part)
                    )
                )
                self.options.append(self._own[-1])

    def made_of(self, given: Mapping[str, Any]) -> Any:
        """Return the dataclass; `given` maps every option's name to its value."""
        values = {name: group.made_of(given) for name, group in self._groups.items()}
        for each in self._own:
            values[each.name] = tuple(given[each.name] or ()) if each.is_list else given[each.name]
        return self._kind(**values)


def _of_group(of: type, name: str, hint: Any, declared: Declared, part: Part) -> tuple[Mapping[str, Any], In]:
    """The settings of an option, and where it can be said: what the field does not say, the group does."""
    of_type = {} if declared.is_argument else _OF_TYPE.get(kind_of(hint), {})
    settings = {"rich_help_panel": part.panel or getattr(of, "panel", None), **of_type, **declared.settings}
    if name in part.help:
        settings["help"] = part.help[name]
    also_in = getattr(of, "also_in", EVERYWHERE) if declared.also_in is None else declared.also_in
    return settings, also_in


def kind_of(hint: Any) -> Any:
    """Return `float` for `float | None`, `Path` for `tuple[Path, ...]`."""
    kinds = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    return kinds[0] if kinds else hint


def group_of(hint: Any) -> Group | None:
    """Return the group that a type hint asks for, None if it is no group's."""
    kind, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not is_dataclass(kind):
        return None
    return Group(cast("type", kind), next((each for each in more if isinstance(each, Part)), None))
