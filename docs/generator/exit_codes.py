"""The page of the exit codes, from the table that the help shows."""

from __future__ import annotations

from generator.markdown import prose, table
from tflaunch.cli.exit_codes import EXIT_CODES, rows

_ABOUT = """\
# Exit codes

A run ends with 0, with the code of the task that failed first, or with a code of tflaunch's own. Those lie above 64,
where training programs seldom are, so that a script can tell them apart. The page of each [command](commands.md) has
the codes that it can end with.
"""


def page() -> str:
    """Return the page."""
    return f"{_ABOUT}\n{table(['code', 'meaning'], [[f'`{code}`', prose(meaning)] for code, meaning in every()])}"


def every() -> list[tuple[str, str]]:
    """Return all exit codes, with what they mean."""
    return rows(EXIT_CODES)
