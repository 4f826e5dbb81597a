"""The page of the exit codes, from the table that the help shows."""

from __future__ import annotations

from generator.markdown import prose, table
from tflaunch.cli.exit_codes import EXIT_CODES, rows
from tflaunch.protocol import errors

_ABOUT = """\
# Exit codes

A run ends with 0, with the code of the task that failed first, or with a code of tflaunch's own. Those lie above 64,
where training programs seldom are, so that a script can tell them apart, but for 2 (a wrong command, or no consent) and
1 (a defect). The page of each [command](commands.md) has the codes that it can end with.
"""
# Where a code means more than the help has room for.
_MORE = {
    1: "It may also be the code of a task: tasks that fail in Python mostly end with it.",
    errors.EXIT_PLAN: "With `--require-gpu` also: a task does not use its GPU.",
    errors.EXIT_CONNECT: "Or the run does not fit without the hosts that cannot be reached, or this machine lets you "
    "start no more threads. A command that asks hosts shows what the others tell.",
    errors.EXIT_LAUNCH: "Its Python cannot read the program, say, or it cannot reach the tasks of others. Of a sweep: "
    "no host could. Of `check`: a run would fail.",
    errors.EXIT_UNCLEAN: "Or a process of the run is still on a GPU: the report says where. A host that was restarted "
    "counts as clean.",
}


def page() -> str:
    """Return the page."""
    shown = [
        [
            f"`{code}`",
            " ".join(filter(None, [f"{prose(meaning)}.", _MORE.get(int(code) if code.isdecimal() else -1)])),
        ]
        for code, meaning in every()
    ]
    return f"{_ABOUT}\n{table(['code', 'meaning'], shown)}"


def every() -> list[tuple[str, str]]:
    """Return all exit codes, with what they mean."""
    return rows(EXIT_CODES)
