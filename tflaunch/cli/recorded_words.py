"""Commands whose HOSTS, trainer and options come from a record: `sweep --resume NAME` alone, and `rerun RUN`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tflaunch.cli.trainer_words import Line, Word
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, PS, WORKER
from tflaunch.runs.hidden_values import VALUE_LEFT_OUT
from tflaunch.runs.record import Record

_TRIALS = ("--grid", "--random", "--trials", "--seed", "--trials-file")
_METRIC = ("--metric", "--maximize", "--minimize")
_NAMES = ("--name", "--resume")
_HOW_SHOWN = ("--json", "--dry-run", "--show-files")  # not of what ran


class Recorded(NamedTuple):
    """The words behind the verb of a command on record, and the directory in which they hold."""

    record: Record
    words: tuple[str, ...]
    directory: str
    variables: tuple[str, ...] = ()  # whose values no record has: they are read from the environment

    @property
    def run_id(self) -> str:
        """The run on record."""
        return self.record.run_id


def resumed(line: Line, read: Callable[[Sequence[str]], Line]) -> Recorded | None:
    """Return the words that `line` stands for, if it has --resume but neither HOSTS nor a trainer; else None.

    read: splits words of this verb.  Options of `line` replace those on record; variables of --env, whose values no
    record has, are read from the environment.  Raises UsageError, RecordError.
    """
    name = _value(line, "--resume")
    if not name or line.plain or _value(line, "--module") or _value(line, "-m"):
        return None
    from tflaunch.sweeps.results import TRIALS

    record = Record.open(name)
    words = record.command[1:]
    if record.read(TRIALS) is None or "sweep" not in words:
        raise UsageError(f"{record.run_id} is no sweep", "tflaunch ps -a lists all runs and sweeps")
    before = read(words[words.index("sweep") + 1 :])
    given = {_option(word) for word in line.words}
    replaced = {*_NAMES, *_METRIC, "--json"}  # sweep.json has the metric by which the trials were scored last
    replaced |= {*_TRIALS} if given & {*_TRIALS} else set()
    return _with(record, before, line, replaced)


def repeated(record: Record, more: Line, read: Callable[[Sequence[str]], Line]) -> Recorded:
    """Return the words that start once more what that run started, with as many tasks.

    Options of `more` replace those on record, and arguments behind its `--` those of the program.
    Raises UsageError for what is no run of a program.
    """
    verb, *words = record.command[1:] or ("",)
    if verb != "run":
        again = f"tflaunch sweep --resume {record.run_id}" if verb == "sweep" else " ".join(record.command)
        raise UsageError(f"{record.run_id} was not started by tflaunch run", f"once more: {again}")
    found = _with(record, read(words), more, set(_HOW_SHOWN))
    said = {_option(word) for word in read(found.words).words}
    counts = [f"--{job}={count}" for job, count in _counts(record).items() if f"--{job}" not in said]
    return found._replace(words=(*counts, *found.words))


def _counts(record: Record) -> dict[str, int]:
    """How many ps and workers the run had; none where its tasks had other jobs as well, of which the words tell."""
    jobs = [task.id.job for task in record.plan.tasks]
    known = {PS, WORKER, CHIEF, EVALUATOR}.issuperset(jobs) and WORKER in jobs
    return {"ps": jobs.count(PS), "workers": jobs.count(WORKER)} if known else {}


def _with(record: Record, before: Line, line: Line, replaced: set[str]) -> Recorded:
    """Return the words on record, but for the options `replaced`, and those of `line`, which win."""
    variables = {_variable(word) for word in line.words} - {("", "")}
    kept = [
        word for word in before.words if _option(word) not in replaced and _variable(word) not in variables
    ]
    hidden = f"={VALUE_LEFT_OUT}"
    found = [text.removesuffix(hidden) for word in kept for text in word.texts]
    found += [text for word in line.words for text in word.texts]
    after = line.after if line.after is not None else before.after
    unknown = [_variable(word)[1] for word in kept if word.texts[-1].endswith(hidden)]
    return Recorded(
        record,
        (*found, *(("--", *after) if after else ())),
        str(record.about.get("cwd") or "."),
        tuple(dict.fromkeys(filter(None, unknown))),
    )


def enter(directory: str, hint: str) -> None:
    """Make this the working directory, where the relative paths of the words hold; raises UsageError."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; it began there", hint) from None


def _option(word: Word) -> str:
    return word.texts[0].partition("=")[0] if word.kind == "option" else ""


def _variable(word: Word) -> tuple[str, str]:
    """(The job, "" for all; the variable) that the word sets with --env or --job-env; ("", "") for any other word."""
    first, _, joined = word.texts[0].partition("=")
    if first in ("--env", "--job-env"):
        text = joined or word.texts[-1]
    elif match := re.fullmatch(r"-[a-zA-Z]*?e(.*)", word.texts[0], re.DOTALL):
        first, text = "--env", match[1].removeprefix("=") or word.texts[-1]
    else:
        return "", ""
    job, _, text = text.partition("=") if first == "--job-env" else ("", "", text)
    return job, text.partition("=")[0]


def _value(line: Line, option: str) -> str:
    """The value of that option, the last one; "" for none."""
    found = ""
    for word in line.words:
        if _option(word) == option:
            _, equals, joined = word.texts[0].partition("=")
            found = joined if equals else (word.texts[1] if len(word.texts) > 1 else "")
    return found
