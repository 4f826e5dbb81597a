"""From the keywords of a call to the words of a command line, so that both mean the same."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile

NOT_HERE = {
    "detach": "a run belongs to the program that has started it; the command `tflaunch run --detach` starts one that "
    "does not",
    "dry_run": "make_plan plans, and starts nothing",
    "json": "a Run gives its events",
}


class Words(NamedTuple):
    """What stands behind `tflaunch run`."""

    given: tuple[str, ...]  # for the parser
    shown: tuple[str, ...]  # the whole command, for the record: without values that may be secrets


def words_of(hostfile: Hostfile, program: str, args: Collection[str], keywords: Mapping[str, Any]) -> Words:
    """Return the command line that means the same; raises UsageError for a keyword that is no option of `run`."""
    from tflaunch.api.keywords import Keywords
    from tflaunch.runs.hidden_values import without_values

    if isinstance(args, str):
        raise UsageError(f"args={args!r}: one string", "a list of words: args=['--epochs', '3']")
    known = Keywords.__annotations__
    words: list[str] = []
    for name, value in keywords.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = NOT_HERE.get(name) or (
                f"did you mean {near[0]}=?" if near else "tflaunch run --help has them all"
            )
            raise UsageError(f"{name}=: there is no such option", hint)
        words += _option(name, value)
    source = hostfile.source or "hosts.yaml"
    given = (*words, source, *([program] if program else []), "--", *map(str, args))
    return Words(given, ("tflaunch", "run", *without_values(given)))


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
