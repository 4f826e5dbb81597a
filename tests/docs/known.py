"""Whether tflaunch knows a command: its own parser says so, in a directory that has the files which the pages name."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
from typer import Exit

from tests.support import ROOT
from tflaunch.cli import REFUSED, VERBS, _as_accepted, application
from tflaunch.cli.mistakes import as_usage_error, unknown_verb
from tflaunch.protocol.errors import TflaunchError

LINKED = ("examples", "hostfiles", "docs", "scripts", "tests")
JOB = "program: trainer.py\nroles: {ps: 2, worker: 4}\n"
HOSTS = "hosts:\n  - gpu[01-03]\n  - name: storage\n    gpus: 0\n"
PROGRAM = "import argparse, sys\n"
SHELL = "#!/bin/sh\nexec true\n"
# By its name a page says what a file is.
_KINDS = (
    (r".*job[\w-]*\.ya?ml|run\.ya?ml", JOB),
    (r".*\.ya?ml", HOSTS),
    (r".*\.py", PROGRAM),
    (r".*\.sh", SHELL),
    (r".*requirements[\w-]*\.txt", "tiny==1.0\n"),
)


def files_for(words: list[str], directory: Path) -> None:
    """Make the files that the words name, each with what its name says that it is."""
    for word in words:
        top = word.rpartition("=")[2].partition("/")[0]
        if top in LINKED and not (directory / top).exists():
            (directory / top).symlink_to(ROOT / top)
        path = word.rpartition("=")[2]
        for pattern, text in _KINDS:
            if re.fullmatch(pattern, path) and not path.startswith(("/", "~", "..")) and "*" not in path:
                place = directory / path
                if not place.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(text)
                break


def filled_in(words: list[str]) -> list[str]:
    """The words with a value in place of each that only describes: HOSTS, [HOSTS], NAME."""
    values = {"HOSTS": "hosts.yaml", "TRAINER": "trainer.py", "PROGRAM": "trainer.py", "VERB": "run"}
    values |= {"NAME": "lr", "RUN": "trainer-k3f9x2", "TASK": "worker/0", "IMAGE": "image:1"}
    return [values.get(word.strip("[]"), word) for word in words if word not in ("…", "...")]


@cache
def _root(verb: str) -> Any:
    return typer.main.get_command(application([verb] if verb in VERBS else VERBS))


def parsed(words: list[str]) -> Any:
    """A command as tflaunch's parser takes it: its context.  Raises TflaunchError for what it refuses."""
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS:
        raise _as_accepted(unknown_verb(verb, words[1:], list(VERBS)))
    root = _root(verb)
    before, after = words[: words.index(verb)], words[words.index(verb) + 1 :]
    try:
        ctx = root.make_context("tflaunch", [*before, verb], resilient_parsing=True)
        made = root.get_command(ctx, verb).make_context(verb, list(after), parent=ctx)
    except REFUSED as error:
        raise as_usage_error(error, words, VERBS) from None
    if isinstance(made.obj, TflaunchError):  # a mistake in a job file
        raise made.obj
    return made


def refusal(words: list[str]) -> str:
    """What tflaunch says against a command, in the current directory; "" if it knows all of it."""
    if not any(not word.startswith("-") for word in words):  # --version, --help, --install-completion
        return " ".join(word for word in words if word.partition("=")[0] not in options_of(""))
    try:
        parsed(words)
    except TflaunchError as error:
        if "is on record" in error.message:  # `sweep --resume` looks for its sweep: the words were understood
            return ""
        return f"{error.message}\n{error.hint or ''}"
    except Exit:  # --help
        return ""
    return ""


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options of a verb; of tflaunch itself for ""."""
    command = _root(verb)
    if verb:
        command = command.get_command(command.make_context("tflaunch", [verb], resilient_parsing=True), verb)
    names = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    more = options_of("run") if verb == "rerun" else frozenset()
    return more.union({name for name in names if name.startswith("-")}, {"--help", "-h"})


@cache
def all_options() -> frozenset[str]:
    """The options of all verbs."""
    return frozenset().union(options_of(""), *(options_of(verb) for verb in VERBS))


def fresh(directory: Path) -> Path:
    """An empty directory for the files of one command."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
