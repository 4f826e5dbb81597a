"""What `--json` prints where it is one document, as data: the fields of each, and of what is in it.

The reference of the documentation is made from these tables, and the tests compare every document that they see with
them.  Events, of which `--json` prints one a line, are in json_events.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tflaunch.documents.json_things import THINGS, Thing

_NOW = "when it was printed, in epoch seconds"
_OF_TFLAUNCH = "of tflaunch"
_UNREACHABLE = "host -> why it did not answer"

DOCUMENTS: Mapping[str, Thing] = {
    "gpus": Thing(
        "The GPUs of all hosts; with `--watch` one document a line, for each refresh.",
        {"time": _NOW, "hosts": "each machine once", "summary": "how many GPUs there are, by their state"},
        {"hosts": "[host]", "summary": "counts"},
    ),
    "gpus --all-users": Thing(
        "Who holds which GPUs.",
        {
            "time": _NOW,
            "users": "who holds most first; users whom the hosts do not show at the end",
            "unseen": "sentences: what the hosts did not show",
            "unreachable": _UNREACHABLE,
        },
        {"users": "[user]", "unreachable": "{error}"},
    ),
    "check": Thing(
        "What would make a run fail.",
        {
            "time": _NOW,
            "exit_code": _OF_TFLAUNCH,
            "findings": "what is not as it should be, errors first",
            "hosts": "what each host answered",
            "matrix": "facts of all hosts, side by side",
            "dials": "host -> other host -> what came of its call: `address`, `port`, `result`, `rtt_ms`",
            "bandwidth": "with `--bandwidth`: host -> other host -> what it could send",
            "addresses": "name -> the addresses that it stands for",
            "from_here": "host -> address -> what came of this machine's call",
        },
        {
            "findings": "[finding]",
            "hosts": "[checked host]",
            "matrix": "[row]",
            "bandwidth": "{{throughput}}",
        },
    ),
    "ps": Thing(
        "The runs on the hosts.",
        {
            "time": _NOW,
            "runs": "the newest first; with `-a` also those that have ended",
            "others": "how many have ended and are not listed",
            "unreachable": _UNREACHABLE,
        },
        {"runs": "[run]", "unreachable": "{error}"},
    ),
    "status": Thing(
        "One run: the fields of [a run](#run), and these.",
        {
            "time": _NOW,
            "held_by": "what keeps it alive, or empty",
            "hint": "what to do about its first failure, or empty",
            "unreachable": _UNREACHABLE,
            **THINGS["run"].fields,
        },
        {**THINGS["run"].holds, "unreachable": "{error}"},
    ),
    "stacks": Thing(
        "Where the tasks of a run are in their programs.",
        {
            "time": _NOW,
            "run": "the run's id",
            "tasks": "each task that was asked",
            "unreachable": _UNREACHABLE,
        },
        {"tasks": "[stacked task]", "unreachable": "{error}"},
    ),
    "clean": Thing(
        "What was removed, and what stays.",
        {
            "time": _NOW,
            "dry_run": "whether it only says what it would remove",
            "places": "each directory of runs once",
            "stays": "run -> why it stays",
            "unreachable": _UNREACHABLE,
        },
        {"places": "[place]", "unreachable": "{error}"},
    ),
    "config": Thing(
        "The configuration that counts.",
        {
            "files": "where tflaunch looks, the machine's file first",
            "settings": "what counts",
            "overridden": "what another file overrides",
        },
        {"files": "[file]", "settings": "[setting]", "overridden": "[setting]"},
    ),
}


def things_of(document: Thing) -> list[str]:
    """The names of the things in a document, and in these, each once, in the order in which they come."""
    found: dict[str, None] = {}
    waiting = list(document.holds.values())
    while waiting:
        name = waiting.pop(0).strip("[]{}")
        if name not in found:
            found[name] = None
            waiting += THINGS[name].holds.values()
    return list(found)


def disagreement(verb: str, document: Mapping[str, Any]) -> str:
    """Return how a document differs from its table; "" if it agrees."""
    return next(_faults(verb, DOCUMENTS[verb], document), "")


def _faults(where: str, thing: Thing, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where}: {value!r} is no object"
        return
    if unknown := value.keys() - thing.fields.keys():
        yield f"{where}: undeclared fields: {', '.join(sorted(unknown))}"
    if missing := thing.fields.keys() - value.keys() - {*thing.sometimes}:
        yield f"{where}: missing fields: {', '.join(sorted(missing))}"
    for field, held in thing.holds.items():
        for each in _held(held, value.get(field)):
            yield from _faults(f"{where}.{field}", THINGS[held.strip("[]{}")], each)


def _held(held: str, value: Any) -> Iterable[Any]:
    if value is None:
        return []
    if held.startswith("["):
        return list(value)
    if held.startswith("{{"):
        return [each for row in value.values() for each in row.values()]
    return list(value.values()) if held.startswith("{") else [value]
