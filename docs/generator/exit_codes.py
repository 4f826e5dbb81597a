"""The page of the exit codes, from the tables that the help shows, else from the classes of the errors."""

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
_OTHERS = {
    0: "success",
    1: "an error in tflaunch itself, or stdout could not be written; --stop-on-nan: the loss stayed NaN",
    errors.EXIT_NO_METRIC: "no trial of a sweep printed the metric",
    errors.EXIT_TIMEOUT: "a time limit was reached",
    errors.EXIT_INTERRUPTED: "Ctrl-C",
    errors.EXIT_STOPPED: "SIGTERM, or `tflaunch stop` elsewhere",
}
_TABLES: Any = (
    importlib.import_module("tflaunch.cli.exit_codes") if importlib.util.find_spec("tflaunch.cli.exit_codes") else None
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
    found: dict[int, list[str]] = {code: [meaning] for code, meaning in _OTHERS.items()}
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.TflaunchError) and each.exit_code > 1:
            found.setdefault(each.exit_code, []).append((each.__doc__ or "").split("\n")[0].rstrip("."))
    codes: list[tuple[Any, str]] = [(code, "; ".join(found[code])) for code in sorted(found)]
    codes.insert(1, ("the task's own", "the first task that failed ended with it; 128 + n if signal n ended it"))
    return codes


def _shown(codes: Iterable[tuple[Any, str]]) -> str:
    return table(["code", "meaning"], [[f"`{code}`", prose(meaning)] for code, meaning in codes])
