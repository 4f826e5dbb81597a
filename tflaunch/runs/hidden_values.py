"""Command lines and plans without what may be secret: values of the user's variables, passwords in URLs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most verbs plan nothing
    from tflaunch.planning.cluster_plan import ClusterPlan

VALUE_LEFT_OUT = "***"  # stands for the value of a variable, or for a password
# Patterns of options that set variables, and of what precedes the value; -e may be the last option of a word: -xe.
_OPTIONS = (("--env", "[^=]+="), ("-[a-zA-Z]*?e", "[^=]+="), ("--job-env", "[^=]+=[^=]+="))
_URL = "--storage"  # the option whose value is a URL

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE|CREDENTIAL|_KEY$", re.IGNORECASE)
_LEAST = 6  # characters of a secret: a shorter one would be found in other words


def without_values(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, with VALUE_LEFT_OUT for values of --env and --job-env, and by `safe_url`."""
    end = words.index("--") if "--" in words else len(words)  # what follows is the program's own
    return (*map(_without_value, ("", *words), words[:end]), *words[end:])


def safe_url(url: str) -> str:
    """Return the URL, with VALUE_LEFT_OUT for its password, and for its query if that names a secret."""
    scheme, separator, rest = url.partition("://")
    # A password that nobody has quoted may have a / or ? of its own: it ends at the last @.
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    login = f"{user}:{VALUE_LEFT_OUT}" if colon else login
    place, question, query = place.partition("?")
    query = VALUE_LEFT_OUT if _SECRET.search(query) else query
    return f"{scheme}{separator}{login}{at}{place}{question}{query}"


def url_left_out(before: str, word: str) -> bool:
    """Whether the word, behind the word `before`, has a URL that lacks a secret."""
    return VALUE_LEFT_OUT in word and (before == _URL or word.startswith(f"{_URL}="))


def _without_value(before: str, word: str) -> str:
    if before == _URL:
        return safe_url(word)
    if word.startswith(f"{_URL}="):
        return f"{_URL}={safe_url(word.removeprefix(f'{_URL}='))}"
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
