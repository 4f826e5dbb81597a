"""`tflaunch sweep --resume NAME` alone: HOSTS, the trainer and the options come from the record of the sweep."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tflaunch.cli.trainer_words import Line, Word
from tflaunch.protocol.errors import UsageError

_TRIALS = ("--grid", "--random", "--trials", "--seed", "--trials-file")
_METRIC = ("--metric", "--maximize", "--minimize")
_NAMES = ("--name", "--resume")


class Resumed(NamedTuple):
    """The words of a sweep that goes on, and the directory in which they hold."""

    run_id: str
    words: tuple[str, ...]
    directory: str


def resumed(line: Line, read: Callable[[Sequence[str]], Line]) -> Resumed | None:
    """Return the words that `line` stands for, if it has --resume but neither HOSTS nor a trainer; else None.

    read: splits words of this verb.  Options of `line` replace those on record; variables of --env, whose values no
    record has, are read from the environment.  Raises UsageError, RecordError.
    """
    name = _value(line, "--resume")
    if not name or line.plain or _value(line, "--module") or _value(line, "-m"):
        return None
    from tflaunch.runs.hidden_values import VALUE_LEFT_OUT
    from tflaunch.runs.record import Record
    from tflaunch.sweeps.results import TRIALS

    record = Record.open(name)
    words = record.command[1:]
    if record.read(TRIALS) is None or "sweep" not in words:
        raise UsageError(f"{record.run_id} is no sweep", "tflaunch ps -a lists all runs and sweeps")
    before = read(words[words.index("sweep") + 1 :])
    given = {_option(word) for word in line.words}
    replaced = {*_NAMES, *_METRIC, "--json"}  # sweep.json has the metric by which the trials were scored last
    replaced |= {*_TRIALS} if given & {*_TRIALS} else set()
    variables = {_variable(word) for word in line.words} - {""}
    kept = [
        word for word in before.words if _option(word) not in replaced and _variable(word) not in variables
    ]
    found = [text.removesuffix(f"={VALUE_LEFT_OUT}") for word in kept for text in word.texts]
    found += [text for word in line.words for text in word.texts]
    after = line.after if line.after is not None else before.after
    directory = str(record.about.get("cwd") or ".")
    return Resumed(record.run_id, (*found, *(("--", *after) if after else ())), directory)


def enter(directory: str) -> None:
    """Make this the working directory, where the relative paths of the words hold; raises UsageError."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(
            f"{directory}: {error.strerror}; the sweep began there",
            "name HOSTS and the trainer with --resume, too",
        ) from None


def _option(word: Word) -> str:
    return word.texts[0].partition("=")[0] if word.kind == "option" else ""


def _variable(word: Word) -> str:
    """The name of the variable that the word sets with --env; "" for any other word."""
    text = word.texts[0].removeprefix("--env=") if len(word.texts) == 1 else word.texts[1]
    return text.partition("=")[0] if _option(word) == "--env" else ""


def _value(line: Line, option: str) -> str:
    """The value of that option, the last one; "" for none."""
    found = ""
    for word in line.words:
        if _option(word) == option:
            _, equals, joined = word.texts[0].partition("=")
            found = joined if equals else (word.texts[1] if len(word.texts) > 1 else "")
    return found
