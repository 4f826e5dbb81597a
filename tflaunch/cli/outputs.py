"""Which outputs of a run are brought here, from what the command line says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.cli.job_option_groups import ResultOptions
    from tflaunch.patterns import Pattern, Wish


def patterns_of(texts: Sequence[str], option: str = "--fetch ") -> tuple[Pattern, ...]:
    """The patterns of a command line; raises UsageError."""
    from tflaunch.patterns import Pattern

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


def wish_of(
    patterns: tuple[Pattern, ...], *, to: Path | None, overwrite: bool, keep_mode: bool, most: str
) -> Wish:
    """How what they match is brought; raises UsageError for a directory that cannot be one, and for no size."""
    from tflaunch.patterns import Wish
    from tflaunch.sizes import size

    if to is not None and to.exists() and not to.is_dir():
        raise UsageError(f"{to} is not a directory", "name another one")
    return Wish(patterns, to, overwrite, keep_mode, size(most, "an amount of data") if most else None)


def fetched_at_end(options: ResultOptions, patterns: Sequence[str]) -> Wish | None:
    """What a run brings here at its end, if anything; raises UsageError."""
    wish = wish_of(
        patterns_of(patterns),
        to=options.fetch_to,
        overwrite=options.overwrite,
        keep_mode=options.keep_mode,
        most=options.fetch_max,
    )
    return wish if patterns else None
