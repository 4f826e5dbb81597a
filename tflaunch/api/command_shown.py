"""A call of `api.run` as the command that means the same, for the record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tflaunch.runs.hidden_values import without_values


def command_of(hosts: str, program: str, args: Iterable[str], keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command, without values that may be secrets."""
    return ("tflaunch", "run", *without_values(words_of(hosts, program, args, keywords)))


def words_of(hosts: str, program: str, args: Iterable[Any], keywords: Mapping[str, Any]) -> list[str]:
    """Return what stands behind `tflaunch run`."""
    words = [word for name, value in keywords.items() for word in _option(name, value)]
    return [*words, hosts or "hosts.yaml", *([program] if program else []), "--", *map(str, args)]


def _option(name: str, value: Any) -> Iterator[str]:
    option = "--" + name.replace("_", "-")
    if value is None or (value is False and name != "flags"):
        return
    if value is True or (name == "wait" and value == math.inf):
        yield option
    elif value is False:
        yield "--no-flags"
    elif isinstance(value, Mapping):
        yield from (f"{option}={key}={each}" for key, each in value.items())
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from (f"{option}={each}" for each in value)
    else:
        yield f"{option}={value}"
