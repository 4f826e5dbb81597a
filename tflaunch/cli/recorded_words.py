"""Commands whose HOSTS, trainer and options come from a record: `sweep` or `tune` with --resume NAME alone; `rerun`."""

from __future__ import annotations

import dataclasses
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
_FLAGS = {"--flags", "--no-flags"}
_COUNTS = {PS: "--ps", WORKER: "--workers"}
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


def resumed(line: Line, read: Callable[[Sequence[str]], Line], verb: str) -> Recorded | None:
    """Return the words that `line` stands for, if it has --resume but neither HOSTS nor a trainer; else None.

    verb: `sweep` or `tune`.  read: splits words of it.  Options of `line` replace those on record; variables of --env,
    whose values no record has, are read from the environment.  Raises UsageError, RecordError.
    """
    name = _value(line, "--resume")
    if not name or line.plain or _value(line, "--module") or _value(line, "-m"):
        return None
    from tflaunch.sweeps.results import TRIALS
    from tflaunch.tuning.tried import TUNE

    what, file = {"sweep": ("sweep", TRIALS), "tune": ("search for a layout", TUNE)}[verb]
    record = Record.open(name)
    words = record.command[1:]
    if record.read(file) is None or verb not in words:
        raise UsageError(f"{record.run_id} is no {what}", "tflaunch ps -a lists all runs and sweeps")
    before = read(words[words.index(verb) + 1 :])
    given = {_option(word) for word in line.words}
    replaced = {*_NAMES, *_METRIC, "--json"}  # sweep.json has the metric by which the trials were scored last
    replaced |= {*_TRIALS} if given & {*_TRIALS} else set()
    found = _with(record, before, line, replaced)
    return found._replace(words=filled(found.words, lambda _: ""))


def repeated(record: Record, more: Line, read: Callable[[Sequence[str]], Line]) -> Recorded:
    """Return the words that start once more what that run started, with as many tasks.

    Options of `more` replace those on record, and arguments behind its `--` those of the program.
    Raises UsageError for what is no run of a program.
    """
    verb, *words = record.command[1:] or ("",)
    if verb != "run":
        again = f"tflaunch sweep --resume {record.run_id}" if verb == "sweep" else " ".join(record.command)
        raise UsageError(f"{record.run_id} was not started by tflaunch run", f"once more: {again}")
    replaced = set(_HOW_SHOWN)
    given = {_option(word) for word in more.words}
    if given & _FLAGS:
        replaced |= _FLAGS
    before = read(words)
    jobs = {(_option(word), _job(word)) for word in more.words if _job(word)}
    kept = tuple(word for word in before.words if (_option(word), _job(word)) not in jobs)
    found = _with(record, dataclasses.replace(before, words=kept), more, replaced)
    said = read(found.words).words
    options = {_option(word) for word in said}
    by_job = {_job(word) for word in said if _option(word) == "--job"}
    counts = _counts(record)
    if counts == {PS: 0, WORKER: 1} and not options & {*_COUNTS.values()}:
        counts = {}  # a program that knows no cluster is one task by itself, and gets no cluster flags
    words = [
        f"{_COUNTS[job]}={count}"
        for job, count in counts.items()
        if _COUNTS[job] not in options and job not in by_job
    ]
    return found._replace(words=(*words, *found.words))


def _counts(record: Record) -> dict[str, int]:
    """How many ps and workers the run had; none where its tasks had other jobs as well, of which the words tell."""
    jobs = [task.id.job for task in record.plan.tasks]
    known = {PS, WORKER, CHIEF, EVALUATOR}.issuperset(jobs) and WORKER in jobs
    return {job: jobs.count(job) for job in _COUNTS} if known else {}


def _with(record: Record, before: Line, line: Line, replaced: set[str]) -> Recorded:
    """Return the words on record, but for the options `replaced`, and those of `line`, which win.

    Values that no record has are still VALUE_LEFT_OUT.  Raises UsageError where two of one name cannot be told apart.
    """
    variables = {_variable(word) for word in line.words} - {("", "")}
    kept: list[Word] = []
    unknown: dict[str, str] = {}  # variable -> the job that it is for
    for word in before.words:
        if _option(word) in replaced:
            continue
        job, name = _variable(word)
        if (job, name) in variables:
            letters = re.match(r"-[a-df-zA-Z]+(?=e)", word.texts[0])  # -de A=1 says -d, too
            kept += [Word((letters[0],), "option")] if letters else []
            continue
        kept.append(word)
        if word.texts[-1].endswith(f"={VALUE_LEFT_OUT}") and unknown.setdefault(name, job) != job:
            raise UsageError(
                f"{record.run_id} had several values of {name}, and no record has them",
                f"give each: --job-env {job or 'worker'}={name}=... --job-env {unknown[name] or 'ps'}={name}=...",
            )
    found = [text for word in (*kept, *line.words) for text in word.texts]
    after = line.after if line.after is not None else before.after
    directory = str(record.about.get("cwd") or ".")
    return Recorded(record, (*found, *(("--", *after) if after else ())), directory, tuple(unknown))


def filled(words: Sequence[str], value: Callable[[str], str]) -> tuple[str, ...]:
    """Return the words with `value(variable)` in place of the `=` and VALUE_LEFT_OUT behind it."""
    end = words.index("--") if "--" in words else len(words)
    hidden = f"={VALUE_LEFT_OUT}"
    own = []
    for word in words[:end]:
        left = word.removesuffix(hidden)
        name = re.sub("^-[a-zA-Z]*?e=?", "", left) if re.match("-[a-zA-Z]", left) else left.rpartition("=")[2]
        own.append(left + value(name) if left != word else word)
    return (*own, *words[end:])


def enter(directory: str, hint: str) -> None:
    """Make this the working directory, where the relative paths of the words hold; raises UsageError."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; it began there", hint) from None


def _job(word: Word) -> str:
    """The job of `--job data=2`, `--job-gpus data=1` and so on, but for --job-env; "" for any other word."""
    option, _, joined = word.texts[0].partition("=")
    if not re.fullmatch("--job(-[a-z]+)?", option) or option == "--job-env":
        return ""
    return (joined or word.texts[-1]).partition("=")[0]


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
