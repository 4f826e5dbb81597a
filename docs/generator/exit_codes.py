"""The page of the exit codes, from the tables that the help shows, else from the list below."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from generator.markdown import prose, table
from tflaunch.protocol import errors

_ABOUT = """\
# Exit codes

A run ends with 0, with the code of the task that failed first, or with a code of tflaunch's own. Those lie above 64,
where training programs seldom are, so that a script can tell them apart.
"""
_MEANINGS = {
    0: "the run succeeded",
    1: "an error in tflaunch itself, stdout could not be written, or, with --stop-on-nan, the loss stayed NaN; unless "
    "a task ended with 1",
    errors.EXIT_USAGE: "the command line, the hostfile or the job file is wrong, and nothing was contacted; or you did "
    "not agree to what was asked, and nothing was started",
    errors.EXIT_PLAN: "the job does not fit the hosts; with --require-gpu, a task does not use its GPU",
    errors.EXIT_NO_METRIC: "no trial of a sweep printed the metric",
    errors.EXIT_CONNECT: "a host cannot be used, or the run does not fit without those that cannot be reached; hosts "
    "could not be asked; or this machine lets you start no more threads",
    errors.EXIT_LAUNCH: "a host could not prepare its tasks (of a sweep: none could), its Python cannot read the "
    "program, or it cannot reach the tasks of others; nothing is left running. `check`: a run would fail",
    errors.EXIT_RECORD: "the record of the run could not be written on this machine",
    errors.EXIT_IO: "something that was to be removed, or fetched, could not be",
    errors.EXIT_UNCLEAN: "a host was lost, or something of the run may still be alive or on a GPU: the report says "
    "where. A host that was restarted counts as clean",
    errors.EXIT_TIMEOUT: "a time limit was reached",
    errors.EXIT_INTERRUPTED: "stopped by Ctrl-C",
    errors.EXIT_STOPPED: "stopped by SIGTERM, or by `tflaunch stop` elsewhere",
}
_TABLES: Any = (
    importlib.import_module("tflaunch.cli.exit_codes")
    if importlib.util.find_spec("tflaunch.cli.exit_codes")
    else None
)


def page() -> str:
    """Return the page."""
    return f"{_ABOUT}\n{_shown(_every())}"


def of_verb(name: str) -> str:
    """Return the section with the exit codes of a verb; "" where there is no table of them."""
    return f"## Exit codes\n\n{_shown(_TABLES.OF_VERB[name])}" if _TABLES else ""


def every() -> list[tuple[str, str]]:
    """Return all exit codes, with what they mean."""
    return [(str(code), meaning) for code, meaning in _every()]


def _every() -> list[tuple[Any, str]]:
    if _TABLES:
        return list(_TABLES.EXIT_CODES)
    declared = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    if differing := declared ^ (_MEANINGS.keys() - {0, 1}):
        raise LookupError(
            f"the page of the exit codes and tflaunch.protocol.errors differ: {sorted(differing)}"
        )
    codes: list[tuple[Any, str]] = list(_MEANINGS.items())
    codes.insert(
        2, ("the task's own", "the first task that failed ended with it; 128 + n if signal n ended it")
    )
    return codes


def _shown(codes: Iterable[tuple[Any, str]]) -> str:
    return table(["code", "meaning"], [[f"`{code}`", prose(meaning)] for code, meaning in codes])
