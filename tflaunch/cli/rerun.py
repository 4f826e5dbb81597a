"""`tflaunch rerun`: starts once more what a run on record has started, as `tflaunch run` with the same words."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from tflaunch.cli.arguments import RecordedRun
from tflaunch.cli.command import Verb
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.cli.recorded_words import Recorded
    from tflaunch.cli.trainer_words import Word
    from tflaunch.launch.request import Request
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.record import Record

_SHOWN = 4  # tasks that are elsewhere
_WORDS = "tflaunch.rerun.words"  # in the context: all words behind the verb
R = TypeVar("R")

REPEATED: ContextVar[Record | None] = ContextVar("tflaunch.repeated", default=None)


class RerunCommand(Verb):
    """The class of the command `rerun`: all options of `run` may stand beside RUN."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Leave the words to the parser of `run`."""
        own = args[: args.index("--")] if "--" in args else args
        if ctx.resilient_parsing or {"-h", "--help"}.intersection(own):
            return super().parse_args(ctx, args)
        ctx.meta[_WORDS] = args
        return super().parse_args(ctx, [])


def rerun(ctx: typer.Context, run: RecordedRun = None) -> None:  # noqa: ARG001  RUN is among the words
    """Start once more what RUN started: the same program and arguments, as many tasks, in the same directory.

    All options of `tflaunch run` may stand beside RUN, and replace those of then, or add to them where an option is
    repeatable; what follows -- replaces the program's arguments.  No record has the values of --env: they come from
    the environment of this command.  What is not as it was then, such as the code or the hosts, is said.
    """
    from tflaunch.cli import application
    from tflaunch.cli.recorded_words import enter, filled, repeated
    from tflaunch.cli.trainer_words import Line
    from tflaunch.inputs.options.declared import Group
    from tflaunch.inputs.options.of_run import RunOptions
    from tflaunch.runs.hidden_values import without_values

    app = application(["run"])
    command = cast("Any", typer.main.get_command(app)).commands["run"]
    read = functools.partial(Line.read, command.params, command.optional_values)
    line = read(ctx.meta[_WORDS])
    if line.plain[1:] or line.unknown:
        raise UsageError(
            f"{shlex.join([*line.plain[1:], *line.unknown])}: rerun takes one RUN, and options of tflaunch run",
            f"arguments for the program go after --: tflaunch rerun {shlex.join(line.plain[:1]) or 'RUN'} -- ...",
        )
    record = _record(next(iter(line.plain), None))
    declared = [each for each in Group(RunOptions).options if each.kind is Path]
    paths = {name for each in declared for name in (*each.declared.names, each.shown)}
    options = (from_here(word, paths) for word in line.words if word.kind == "option")
    more = dataclasses.replace(line, words=tuple(options))
    found = repeated(record, more, read)
    _ask_for(found)
    enter(found.directory, f"its command was: {shlex.join(record.command)}")
    words = ["run", *filled(found.words, lambda name: f"={os.environ[name]}")]
    print(f"in {found.directory}: tflaunch {shlex.join(without_values(words))}", file=sys.stderr)
    sys.argv[1:] = words  # from here on as if the user had typed that
    token = REPEATED.set(record)
    try:
        raise typer.Exit(app(prog_name="tflaunch", standalone_mode=False) or 0)
    finally:
        REPEATED.reset(token)


def from_here(word: Word, paths: Collection[str]) -> Word:
    """The option with a path that holds here, in the directory of this command."""
    option, equals, value = word.texts[0].partition("=")
    if option not in paths or (word.texts[1:] == () and not equals):
        return word
    path = str(Path(value if equals else word.texts[1]).absolute())
    return word._replace(texts=(f"{option}={path}",) if equals else (option, path))


def _record(run: str | None) -> Record:
    """The record of that run, else of the newest; raises UsageError, RecordError."""
    from tflaunch.runs.record import Record
    from tflaunch.runs.record_list import newest_run

    return Record.open(run if run is not None else newest_run().run_id)


def _ask_for(found: Recorded) -> None:
    """Ask the user for the variables that the environment does not have; raises UsageError where nobody answers."""
    missing = [name for name in found.variables if name not in os.environ]
    if missing and not (sys.stdin.isatty() and sys.stderr.isatty()):
        exports = " ".join(f"{name}=..." for name in missing)
        raise UsageError(
            f"{found.run_id} had --env {', --env '.join(missing)}, and no record has the values",
            f"set them for this command: {exports} tflaunch rerun {found.run_id}",
        )
    for name in missing:
        os.environ[name] = getpass.getpass(f"{name} (--env; not shown): ", sys.stderr)


def compared(request: Request, reporter: R) -> R:
    """Say what of the code is not as it was in the run that this one repeats, if any; return the run's reporter."""
    record = REPEATED.get()
    if record is None:
        return reporter
    from tflaunch import __version__

    shown = cast("Any", reporter)
    code = request.bundle.digest if request.bundle is not None else None
    if code is None and record.code is not None:
        shown.note(f"the hosts have the code: whether it is that of {record.run_id} is not known")
    elif record.code is not None and code != record.code:
        shown.warn(
            f"the code is not that of {record.run_id}: it has changed since, and this run takes it as it is"
        )
    elif record.code is None and code is not None:
        shown.note(f"whether the code is that of {record.run_id} is not known: its record does not say")
    if record.about["tflaunch"] != __version__:
        shown.note(
            f"{record.run_id} was started by tflaunch {record.about['tflaunch']}, this is {__version__}"
        )
    return cast("R", _Compared(record, reporter))


class _Compared:
    """A reporter that says, after the plan, what the plan of the earlier run had otherwise."""

    def __init__(self, record: Record, reporter: Any) -> None:
        self._record, self._reporter = record, reporter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._reporter.plan(plan, brief=brief)
        for text in differences(self._record.run_id, self._record.plan, plan):
            self._reporter.note(text)


def differences(run_id: str, before: ClusterPlan, now: ClusterPlan) -> list[str]:
    """What another plan for the same job has otherwise than that of `run_id`, in sentences."""
    was = {task.id: task for task in before.tasks}
    tasks = {task.id: task for task in now.tasks}
    said = []
    if new := [str(task) for task in tasks if task not in was]:
        said.append(f"{run_id} had no {_some(new)}")
    if gone := [str(task) for task in was if task not in tasks]:
        said.append(f"{run_id} also had {_some(gone)}")
    both = [task for task in tasks if task in was]
    moved = [task for task in both if tasks[task].host != was[task].host]
    if moved:
        shown = [f"{task} on {tasks[task].host} (was on {was[task].host})" for task in moved[:_SHOWN]]
        said.append(f"other hosts than in {run_id}: {', '.join(shown)}" + ", ..." * (len(moved) > _SHOWN))
    other = [str(task) for task in both if task not in moved and set(tasks[task].gpus) != set(was[task].gpus)]
    if other:
        said.append(
            f"other GPUs than in {run_id}: {', '.join(other[:_SHOWN])}" + ", ..." * (len(other) > _SHOWN)
        )
    return said


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
