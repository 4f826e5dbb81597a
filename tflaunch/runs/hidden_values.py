"""Command lines and plans without the values of the user's environment variables, which may be secrets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most verbs plan nothing
    from tflaunch.planning.cluster_plan import ClusterPlan

VALUE_LEFT_OUT = "***"  # stands for the value of a variable
# Patterns of options that set variables, and of what precedes the value; -e may be the last option of a word: -xe.
_OPTIONS = (("--env", "[^=]+="), ("-[a-zA-Z]*?e", "[^=]+="), ("--job-env", "[^=]+=[^=]+="))

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE|CREDENTIAL|_KEY$", re.IGNORECASE)
_LEAST = 6  # characters of a secret: a shorter one would be found in other words


def without_values(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, with VALUE_LEFT_OUT for the values of --env and --job-env."""
    end = words.index("--") if "--" in words else len(words)  # what follows is the program's own
    return (*map(_without_value, ("", *words), words[:end]), *words[end:])


def _without_value(before: str, word: str) -> str:
    for option, name in _OPTIONS:
        # The value is in the word after the option, or in the same word as the option.
        joined = "=" if option.startswith("--") else "=?"  # the = must be there: --env-file is another option
        found = re.match(name if re.fullmatch(option, before) else f"{option}{joined}{name}", word)
        if found:
            return found[0] + VALUE_LEFT_OUT
    return word


def secrets_of(plan: ClusterPlan) -> set[str]:
    """Return the values of that plan's variables that are secrets: those that are shown as ***, and by their names."""
    return {
        value
        for task in plan.tasks
        for name, value in task.env.items()
        if len(value) >= _LEAST and (name in task.masked or _SECRET.search(name))
    }


def plan_without_values(plan: ClusterPlan) -> ClusterPlan:
    """Return that plan, with VALUE_LEFT_OUT for the values of variables that tflaunch does not decide itself."""
    from tflaunch.inputs.variables import DECIDED

    tasks = [
        dataclasses.replace(
            task, env={name: value if name in DECIDED else VALUE_LEFT_OUT for name, value in task.env.items()}
        )
        for task in plan.tasks
    ]
    return dataclasses.replace(plan, tasks=tuple(tasks))
