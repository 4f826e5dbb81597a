"""What the shell completes at Tab beyond options: runs, tasks, hosts and GPUs that this machine knows of.

Nothing is contacted.

typer writes the shells' scripts (`tflaunch --install-completion`) and calls these functions.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable

import typer

from tflaunch.protocol.errors import TflaunchError

Found = list[tuple[str, str]]  # word, what it is

_LATEST = 50  # runs
_WORD = re.compile(r"[A-Za-z0-9_./@+:-]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9_./@+:,() -]")


def verbs(incomplete: str) -> Found:
    """The verbs of tflaunch."""
    from tflaunch.cli.guide import GUIDE

    return [(verb, each.summary) for verb, each in GUIDE.items() if verb.startswith(incomplete)]


def _harmless(found: Iterable[tuple[str, str]]) -> Found:
    """Those of which a shell makes nothing but a word: zsh evaluates all, and bash puts the word into the line.

    A host says what its GPUs are called.
    """
    return [(word, _UNSAFE.sub("?", meaning)) for word, meaning in found if _WORD.fullmatch(word)]


def runs(ctx: typer.Context, incomplete: str) -> Found:
    """The runs on record here, the newest first; else, where RUN may be left out, the tasks of the newest."""
    from tflaunch.runs.record_list import list_runs
    from tflaunch.text.times import age

    found: Found = []
    with contextlib.suppress(TflaunchError, OSError):
        for info in list_runs()[:_LATEST]:
            if info.run_id.startswith(incomplete) and info.status != "corrupt":
                found.append((info.run_id, f"{info.status}, {age(time.time() - info.started)} old"))
    if not found and ctx.info_name in ("logs", "stacks"):  # tflaunch logs worker/0
        return tasks(ctx, incomplete)
    return _harmless(found)


def tasks(ctx: typer.Context, incomplete: str) -> Found:
    """The tasks of the run that the words before name, else of the newest."""
    from tflaunch.runs.record import Record
    from tflaunch.runs.record_list import list_runs
    from tflaunch.runs.run_ids import is_run_id

    named = str(ctx.params.get("run") or "")
    with contextlib.suppress(TflaunchError, OSError, IndexError, KeyError):
        record = Record.open(named if is_run_id(named) else list_runs()[0].run_id)
        return _harmless(
            (str(task.id), f"on {task.host}")
            for task in record.plan.tasks
            if str(task.id).startswith(incomplete)
        )
    return []


def hosts(incomplete: str) -> Found:
    """The hosts of the default hostfile."""
    from tflaunch.api.requests.which_hosts import default_hostfile

    with contextlib.suppress(TflaunchError, OSError):
        hostfile = default_hostfile()
        known = hostfile.hosts if hostfile is not None else ()
        return _harmless((host.name, "") for host in known if host.name.startswith(incomplete))
    return []


def gpu_models(incomplete: str) -> Found:
    """The models of GPUs that tflaunch has seen on hosts, each as a word that is part of its name: `H100`."""
    from tflaunch.survey.gpu_overview import brief_name, short_name
    from tflaunch.survey.known_models import known_models

    found: dict[str, str] = {}
    for name in known_models():
        brief = brief_name(name).rpartition(" ")[2]
        for word in (brief, *(each for each in short_name(name).split() if each.startswith(f"{brief}-"))):
            if word.lower().startswith(
                incomplete.lower()
            ):  # as --gpu-model compares; shells go by each letter
                found.setdefault(incomplete + word[len(incomplete) :], name)
    return _harmless(found.items())
