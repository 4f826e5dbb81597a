"""The pages of the verbs, from the parser of the command line: no option can be missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

import typer

from generator import exit_codes
from generator.markdown import directive, escaped, prose
from tflaunch.cli import VERBS, application


@dataclasses.dataclass(frozen=True)
class Option:
    """An option or an argument of a verb."""

    names: tuple[str, ...]  # one for each way to write it, with its value: `--workers N`
    panel: str  # of the help
    help: str
    is_argument: bool


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb, as its help shows it."""

    name: str
    usage: str
    about: tuple[str, ...]  # paragraphs
    options: tuple[Option, ...]

    @property
    def summary(self) -> str:
        """The first sentence of what it does."""
        return self.about[0]

    def panels(self) -> Iterator[tuple[str, list[Option]]]:
        """Yield the options by the panels of the help, in the order in which the help shows them."""
        panels: dict[str, list[Option]] = {}
        for option in self.options:
            if not option.is_argument:
                panels.setdefault(option.panel, []).append(option)
        yield from panels.items()


def every() -> list[Verb]:
    """Return all verbs that the help lists."""
    group: Any = typer.main.get_command(application())
    above = typer.Context(group, info_name="tflaunch")
    return [_verb(group.commands[name], name, above) for name in VERBS if not group.commands[name].hidden]


def pages() -> dict[str, str]:
    """Return the page of each verb, and the page that lists them, by the names of their files."""
    verbs = every()
    listed = "".join(f"`tflaunch {verb.name}`\n: {prose(verb.summary)}\n\n" for verb in verbs)
    names = "\n".join(f"tflaunch {verb.name} <{verb.name}>" for verb in verbs)
    index = f"# Commands\n\n{_linked(verbs, listed)}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return {"commands.md": index, **{f"{verb.name}.md": _page(verb) for verb in verbs}}


def _linked(verbs: list[Verb], listed: str) -> str:
    for verb in verbs:
        listed = listed.replace(f"`tflaunch {verb.name}`\n", f"[`tflaunch {verb.name}`]({verb.name}.md)\n")
    return listed


def _page(verb: Verb) -> str:
    parts = [f"# tflaunch {verb.name}\n", f"```text\n{verb.usage}\n```\n"]
    parts += [prose(paragraph) + "\n" for paragraph in verb.about]
    parts.append(f"```{{program}} tflaunch {verb.name}\n```\n")
    if arguments := [option for option in verb.options if option.is_argument]:
        parts += ["## Arguments\n", *map(_described, arguments)]
    parts.append("## Options\n")
    for panel, options in verb.panels():
        parts += [f"### {escaped(panel)}\n" if panel else "", *map(_described, options)]
    parts.append(exit_codes.of_verb(verb.name))
    return "\n".join(part for part in parts if part)


def _described(option: Option) -> str:
    return directive("option", ", ".join(option.names), prose(option.help))


def _verb(command: Any, name: str, above: typer.Context) -> Verb:
    context = typer.Context(command, parent=above, info_name=name)
    usage = " ".join(["tflaunch", name, *command.collect_usage_pieces(context)])
    about = (command.help or "").replace(r"\[", "[").split("\n\n")
    options = [_option(each) for each in command.get_params(context) if not getattr(each, "hidden", False)]
    return Verb(name, usage, tuple(about), tuple(options))


def _option(parameter: Any) -> Option:
    is_argument = parameter.param_type_name == "argument"
    if is_argument:
        names: tuple[str, ...] = ((parameter.metavar or parameter.name.upper()).strip("[]"),)
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or _value(parameter)}"
        names = tuple(f"{name}{value}" for name in (*parameter.opts, *parameter.secondary_opts))
    panel = getattr(parameter, "rich_help_panel", None) or ""
    return Option(names, panel, _help(parameter), is_argument)


def _value(parameter: Any) -> str:
    """Return how the value of an option without a metavar is written."""
    declared = getattr(parameter, "type_descriptor", None)  # of newer versions of typer
    if declared is not None:
        kinds = [
            kind for kind in (declared.annotation, *get_args(declared.annotation)) if isinstance(kind, type)
        ]
        for kind in kinds:
            if issubclass(kind, Enum):
                return "|".join(str(each.value) for each in kind)
        return {"int": "N", "float": "N", "Path": "PATH"}.get(kinds[0].__name__ if kinds else "", "TEXT")
    if choices := getattr(parameter.type, "choices", None):
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    return str(parameter.type.name).upper()


def _help(parameter: Any) -> str:
    """Return the help text as sentences: what it has in brackets at its end is the default."""
    text = (parameter.help or "").replace(r"\[", "[").strip()
    text, bracket, default = text.partition(" [")
    default = default.removesuffix(".").removesuffix("]") if bracket else _default(parameter)
    if bracket and "]" in default:  # brackets in the middle of the text
        text, default = f"{text} [{default}", _default(parameter)
    if text and text[-1] not in ".?":
        text += "."
    if default:
        text += f" Default: {default}."
    if parameter.envvar:
        text += f" Also by the variable {parameter.envvar}."
    return text


def _default(parameter: Any) -> str:
    default = getattr(parameter.default, "value", parameter.default)
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if not parameter.show_default or default in (None, False, (), [], "") or callable(default):
        return ""
    return str(default)
