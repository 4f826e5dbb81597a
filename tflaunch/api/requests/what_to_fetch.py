"""Read which files of a run to fetch, and how, from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.inputs.options.job_groups import ResultOptions
    from tflaunch.inputs.patterns import Pattern, Wish


def parse_patterns(texts: Sequence[str], option: str = "--fetch ") -> tuple[Pattern, ...]:
    """Parse the patterns of a command line; raises UsageError."""
    from tflaunch.inputs.patterns import Pattern

    found = []
    for text in texts:
        try:
            found.append(Pattern.parse(text))
        except ValueError as error:
            hint = "a pattern is as in .gitignore: 'checkpoints/**'"
            raise UsageError(f"{option}{text}: it {error}", hint) from None
    if found and not any(pattern.wanted for pattern in found):
        raise UsageError(f"{texts[0]}: patterns with ! only take away", "add one without, such as '**'")
    return tuple(found)


def make_wish(
    patterns: tuple[Pattern, ...], *, to: Path | None, overwrite: bool, keep_mode: bool, most: str
) -> Wish:
    """Return how to fetch what the patterns match; raises UsageError for a bad directory or size."""
    from tflaunch.inputs.amounts import size
    from tflaunch.inputs.patterns import Wish

    if to is not None and to.exists() and not to.is_dir():
        raise UsageError(f"{to} is not a directory", "name another one")
    return Wish(patterns, to, overwrite, keep_mode, size(most, "an amount of data") if most else None)


def wish_at_end(options: ResultOptions, patterns: Sequence[str]) -> Wish | None:
    """Return what to fetch at the end of a run, if anything; raises UsageError."""
    wish = make_wish(
        parse_patterns(patterns),
        to=options.fetch_to,
        overwrite=options.overwrite,
        keep_mode=options.keep_mode,
        most=options.fetch_max,
    )
    return wish if patterns else None
