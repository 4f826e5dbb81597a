"""The class of all verbs: their help, options whose value may be left out, errors that say what is accepted."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import typer
import typer.core

from tflaunch.cli import verb_help
from tflaunch.cli.plain_values import without_pydantic
from tflaunch.text.times import written

if TYPE_CHECKING:
    from tflaunch.inputs.options.given import Given


class Verb(typer.core.TyperCommand):
    """A verb; the value of some options may be left out, and an error for a wrong value says what is accepted."""

    # Earlier spelling of an option -> the one of today; neither help nor completion shows it.
    earlier: ClassVar[Mapping[str, str]] = {}
    # Arguments that the usage shows without brackets, though an option can stand in their place.
    hardly_optional: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Option -> (pattern that the next word must match to be its value; its value if that word does not match).
        self.optional_values: Mapping[str, tuple[str, str]] = getattr(self.callback, "optional_values", {})
        for option in self.params:
            if isinstance(option.default, float):  # a TIME: 600.0 is 10m
                option.show_default = option.default > 0  # type: ignore[attr-defined]  # 0 means no limit
                option.default = written(option.default)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the words of the usage, as `[HOSTS] TRAINER.py [OPTIONS] [-- ARGS...]`."""
        return verb_help.usage_words(self, ctx, self.hardly_optional)

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        """Return the help as text, drawn for stdout as it is now."""
        return verb_help.drawn(verb_help.page_of_verb(self, ctx))

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the options and arguments, --help among them."""
        return without_pydantic(super().get_params(ctx))

    def get_help_option(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Return --help, which does not mind a reader that has seen enough."""
        return verb_help.patient(super().get_help_option(ctx))

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # type: ignore[override]
        """Return what typer completes; the shells' scripts read the help texts as rich's markup."""
        return verb_help.escaped(super().shell_complete(ctx, incomplete))

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as typer does, after filling in the values that were left out; raises typer's errors."""
        try:
            rest = super().parse_args(ctx, self._completed(self.of_today(args)))
            if not ctx.resilient_parsing:  # as for completion
                from tflaunch.api.requests import configured

                if ctx.info_name not in configured.NOT_FOR:
                    configured.apply(ctx.info_name or "", given_of(ctx))
            return rest
        except typer.BadParameter as error:
            # A ValidationError of pydantic, whose import would take longer than all else.
            if errors := getattr(error.__cause__, "errors", None):
                error.message = _sentence(errors()[0])
            raise
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser does not say to which verb the error belongs
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def of_today(self, args: Sequence[str]) -> list[str]:
        """Return the words with the spelling of today for each option that has an earlier one."""
        own = list(args[: args.index("--")] if "--" in args else args)
        split = [word.partition("=") for word in own]
        words = [self.earlier.get(name, name) + equals + value for name, equals, value in split]
        return [*words, *args[len(own) :]]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the verb, after the banner of the configuration."""
        from tflaunch.api.requests import configured

        if ctx.info_name not in configured.NOT_FOR:
            _show_banner(ctx.params)
        return super().invoke(ctx)

    def _completed(self, args: Sequence[str]) -> list[str]:
        completed: list[str] = []
        for number, word in enumerate(args):
            if word == "--":
                return [*completed, *args[number:]]
            completed.append(word)
            if word in self.optional_values:
                pattern, default = self.optional_values[word]
                if not re.fullmatch(pattern, "".join(args[number + 1 : number + 2])):
                    completed.append(default)
        return completed


def given_of(ctx: typer.Context) -> Given:
    """Return the values of the command's options, and which of them the command line or the environment has set."""
    from tflaunch.inputs.options.given import Given

    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ctx.params}
    return Given(ctx.params, {name for name, source in sources.items() if source != "DEFAULT"})


def command_line() -> tuple[str, ...]:
    """Return this command as `tflaunch ...` for people and records, even if it was `python -m tflaunch`.

    The values of --env and --job-env are left out, for they may be secrets.
    """
    from tflaunch.runs.hidden_values import without_values

    return ("tflaunch", *without_values(sys.argv[1:]))


class Tflaunch(typer.core.TyperGroup):
    """`tflaunch` itself: its help and completion know all verbs, though the module of none is loaded."""

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        """Return the help as text, drawn for stdout as it is now."""
        return verb_help.drawn(verb_help.page_of_all(self, ctx))

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the options and arguments, --help among them."""
        return without_pydantic(super().get_params(ctx))

    def get_help_option(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Return --help, which does not mind a reader that has seen enough."""
        return verb_help.patient(super().get_help_option(ctx))

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # type: ignore[override]
        """Return the verbs and options that begin like this."""
        found = verb_help.escaped(super().shell_complete(ctx, incomplete))
        there = {item.value for item in found}
        return [item for item in verb_help.completed_verbs(incomplete) if item.value not in there] + found


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


def _show_banner(params: Mapping[str, Any]) -> None:
    """Show the banner on a terminal, once, before anything else; never where programs read."""
    from tflaunch.api.requests.configured import configuration

    banner = configuration().get("banner")
    if banner is None or params.get("json") or sys.stderr is None or not sys.stderr.isatty():
        return
    from tflaunch.text.safe import one_line

    with contextlib.suppress(OSError):
        print("\n".join(map(one_line, str(banner.value).split("\n"))), file=sys.stderr, flush=True)
