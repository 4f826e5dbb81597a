"""Makes the page of help of a verb, and of `tflaunch` itself, from typer's commands and from the guide."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import typer.core

from tflaunch.cli import exit_codes, guide
from tflaunch.console.help_page import HelpPage, Section, columns_of, help_text, in_colour, sections_of
from tflaunch.documents.writer import write_result
from tflaunch.inputs.amounts import TIME

# typer's and click's objects differ from version to version: only attributes that all of them have are read here.

OPTIONS, EXIT_CODES = "Options", "Exit codes"
_IN_BRACKETS = "What stands in [brackets] behind an option holds where you leave the option out."
_MORE = "tflaunch COMMAND --help, or tflaunch help COMMAND: the options of a command, with examples."


def drawn(page: HelpPage) -> str:
    """Draw a page for stdout as it is now."""
    return help_text(page, columns_of(), colour=in_colour())


def page_of_verb(command: Any, ctx: Any) -> HelpPage:
    """Return the help of a verb: what its declaration says, and what the guide has on it."""
    verb = str(ctx.info_name or command.name)
    summary, *more = [" ".join(each.split()) for each in (command.help or "").strip().split("\n\n")]
    arguments = [(_bare(param), _explained(param)) for param in command.params if _is_argument(param)]
    rows = [
        (getattr(param, "rich_help_panel", None) or OPTIONS, option_name(param), _explained(param))
        for param in command.get_params(ctx)
        if not _is_argument(param) and not getattr(param, "hidden", False)
    ]
    # `--help` alone is the least of it, options that only this verb has are the first.
    order = [OPTIONS] if sum(title == OPTIONS for title, _, _ in rows) > 1 else []
    texts = [text for _, text in arguments] + [text for _, _, text in rows]
    times = [f"A TIME is {TIME}."] if any("TIME" in (param.metavar or "") for param in command.params) else []
    brackets = [_IN_BRACKETS] if any(text.endswith("]") for text in texts) else []
    known = guide.GUIDE.get(verb)
    return HelpPage(
        usage=" ".join([ctx.command_path, *command.collect_usage_pieces(ctx)]),
        summary=summary,
        examples=known.examples if known else (),
        more=more,
        sections=[
            Section("Arguments", arguments),
            *sections_of(rows, order),
            Section(EXIT_CODES, exit_codes.rows(exit_codes.OF_VERB.get(verb, ()))),
        ],
        notes=list(filter(None, [" ".join([*times, *brackets])])),
    )


def page_of_all(command: Any, ctx: Any) -> HelpPage:
    """Return the help of `tflaunch` itself."""
    verbs = [
        Section(title, [(verb, each.summary) for verb, each in group.items()])
        for title, group in guide.GROUPS.items()
    ]
    options = [(option_name(param), _explained(param)) for param in command.get_params(ctx)]
    return HelpPage(
        usage="tflaunch COMMAND [ARGUMENTS] [OPTIONS]",
        summary=guide.ABOUT,
        examples=guide.FIRST_STEPS,
        more=(),
        sections=[
            *verbs,
            Section(OPTIONS, options),
            Section(EXIT_CODES, exit_codes.rows(exit_codes.EXIT_CODES)),
        ],
        notes=[_MORE],
    )


def usage_words(command: Any, ctx: Any, hardly_optional: Collection[str]) -> list[str]:
    """Return the arguments as `[HOSTS] TRAINER.py`, `[OPTIONS]`, and what follows `--`."""
    words, last = [], []
    for param in filter(_is_argument, command.get_params(ctx)):
        name = _bare(param)
        several = "..." if param.nargs == -1 else ""
        if name.startswith("-- "):
            last.append(f"[{name}{several}]")
        elif param.required or param.name in hardly_optional:
            words.append(f"{name}{several}")
        else:
            words.append(f"[{name}{several}]")
    return [*words, "[OPTIONS]", *last]


def option_name(param: Any) -> str:
    """Return an option as `-m, --module PKG.MOD`, short names first; `--flags, --no-flags` where it has an opposite."""
    names = sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--"))
    text = ("    " if names[0].startswith("--") else "") + ", ".join(names)
    return text if getattr(param, "is_flag", False) else f"{text} {param.metavar or 'VALUE'}"


def escaped(items: Iterable[Any]) -> list[Any]:
    """Return completions whose help has no markup: [brackets] stay as they are."""
    found = list(items)
    for item in found:
        item.help = (item.help or "").replace("[", r"\[")
    return found


def patient(option: Any) -> Any:
    """Return typer's --help, changed: a reader that goes away, as `| head` does, is no error."""

    def show(ctx: Any, _: Any, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            with contextlib.suppress(BrokenPipeError):
                write_result(ctx.get_help() + "\n")
            ctx.exit()

    option.callback = show
    return option


def completed_verbs(incomplete: str) -> list[Any]:
    """Return typer's completions for the verbs that begin like this."""
    package = typer.core.TyperGroup.__mro__[1].__module__.rpartition(".")[
        0
    ]  # typer's own copy of click, or click
    completion = importlib.import_module(f"{package}.shell_completion").CompletionItem
    return [
        completion(verb, help=each.summary)
        for verb, each in guide.GUIDE.items()
        if verb.startswith(incomplete)
    ]


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name != "option")


def _bare(param: Any) -> str:
    """Return the name of an argument as texts use it."""
    return str(param.metavar or param.name.upper())


def _explained(param: Any) -> str:
    """Return the help of a parameter, with its default if the text does not say it."""
    text = " ".join((getattr(param, "help", None) or "").split())
    default = param.default.value if isinstance(param.default, Enum) else param.default
    said = text.endswith("]") or getattr(param, "show_default", None) is False
    shown = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool)
    if said or not shown or not default:
        return text
    return f"{text} [{default}]"
