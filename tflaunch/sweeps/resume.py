"""Which sweep a command means: a new one, or one on record that goes on; and whether the two can be compared."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from tflaunch.hosts import Hostfile
from tflaunch.launch.request import Request
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.protocol.events import Interrupted
from tflaunch.runs.record import Record, run_ids_locked
from tflaunch.runs.record_list import RunInfo, list_runs
from tflaunch.runs.run_ids import new_run_id
from tflaunch.sessions.group import Stopped
from tflaunch.sweeps.results import TRIALS, Metric, Results
from tflaunch.sweeps.scoring import NoteWatcher
from tflaunch.sweeps.seats import SweepRequest
from tflaunch.sweeps.trials import Params, Trial, identity
from tflaunch.text.numbers import agreeing, counted

NAMED = "named"  # the file that marks the record of a sweep whose name the user gave
_SHOWN = 3  # trials in a sentence


def known_sweep(request: SweepRequest) -> Record | None:
    """The record of the sweep that goes on, locked; None for a new sweep.  Raises UsageError, RecordError."""
    name = request.name
    if request.must_exist:
        record = Record.reopen(Record.open(name).run_id)
        with closed_on_error(record):
            if record.read(TRIALS) is None:
                raise UsageError(f"{record.run_id} is no sweep", "tflaunch ps -a lists all runs and sweeps")
        return record
    found = [info.run_id for info in list_runs() if name and _is_named(info, name)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} sweeps are called {name}: {', '.join(found)}", f"--resume {found[0]}")
    return Record.reopen(found[0]) if found else None


def record_of(request: SweepRequest) -> Record:
    """The record of the sweep that goes on, or of a new one; locked.  Raises UsageError, RecordError."""
    run, name = request.run, request.name
    with run_ids_locked():  # if two launchers begin at once, the second sees the first one's record
        if (known := known_sweep(request)) is not None:
            return known
        run_id = new_run_id(name) if name else run.run_id
        plan = ClusterPlan(run_id, ())
        hostfile = _before_slots(run.hostfile)
        record = Record.create(
            run_id,
            plan=plan,
            hostfile=hostfile,
            command=run.command,
            ssh_config=run.ssh_config,
            code=run.bundle.digest if run.bundle is not None else None,
        )
        try:
            if name:
                record.write(NAMED, {})
        except BaseException:
            record.discard()
            raise
        return record


@contextlib.contextmanager
def closed_on_error(record: Record) -> Iterator[None]:
    """Give up the record where what is done inside fails."""
    try:
        yield
    except BaseException:
        record.close()
        raise


def _before_slots(hostfile: Hostfile) -> Hostfile:
    """The hostfile as a record has it: without hosts, as long as an engine has given none."""
    return hostfile if hostfile.wanted is None else dataclasses.replace(hostfile, hosts=())


@contextlib.contextmanager
def waiting_on_record(record: Record, run: Request) -> Iterator[None]:
    """Inside, the record says that the sweep waits for slots; afterwards, one that goes on is on record as before.

    If it gets no slots, a new sweep leaves no record.  Where it raises anything, the record is closed: RecordError;
    Stopped where `tflaunch stop` ends the wait.
    """
    with closed_on_error(record):
        new = record.read(TRIALS) is None
        about, outcome = record.about, record.outcome()
        if not new:
            record.resume(_before_slots(run.hostfile), run.command, run.ssh_config)
        try:
            yield
        except BaseException as error:
            given_up = record.given_up and isinstance(error, TflaunchError)
            if new and not given_up and isinstance(error, TflaunchError) and record.launcher_log.exists():
                record.fail(error)
            elif new:
                record.discard()
            else:
                record.restore(about, outcome)
            if given_up:
                raise Stopped(Interrupted(signal.SIGTERM)) from None
            raise
        if not new:
            record.restore(about, outcome)


def _is_named(info: RunInfo, name: str) -> bool:
    """Whether that run is a sweep of this name: new_run_id has added a suffix to it."""
    return info.run_id.rpartition("-")[0] == name and (info.path / NAMED).exists()


def is_done(results: Results, number: int) -> bool:
    """Whether that trial has succeeded, or --stop-below has stopped it, so that it need not run again."""
    return number in results.last and results.last[number].status != "failed"


def about_sweep(request: SweepRequest) -> dict[str, Any]:
    """What must be the same for all trials of a sweep, so that they can be compared."""
    job = request.run.job
    about: dict[str, Any] = {"program": list(job.program), "args": list(job.args)}
    metric = request.metric
    return {**about, "metric": metric.text, "maximize": metric.maximize} if metric else about


def _typed(about: dict[str, Any]) -> dict[str, str]:
    """What `about_sweep` returned, as the user would type it."""
    typed = {}
    if "program" in about:
        typed["program"] = shlex.join(about["program"])
    if "args" in about:
        typed["args"] = f"-- {shlex.join(about['args'])}".rstrip()
    if "metric" in about:
        typed["metric"] = f"--metric {about['metric']}" + " --maximize" * about.get("maximize", False)
    return typed


def with_its_metric(request: SweepRequest, results: Results) -> SweepRequest:
    """The request, with the metric of the sweep on record if it names none."""
    text = results.about.get("metric")
    if request.metric is not None or text is None:
        return request
    return dataclasses.replace(request, metric=Metric.parse(text, results.about.get("maximize", False)))


def compare(results: Results, request: SweepRequest, wanted: Sequence[Trial], watcher: NoteWatcher) -> None:
    """Show which trials of the command are new to the sweep on record, and which trials on record it leaves out.

    Raises UsageError where the program, its arguments or the parameters differ.
    """
    run_id, now = results.record.run_id, _typed(about_sweep(request))
    hint = "repeat what it had, or begin another sweep: another --name, or none"
    for what, before in _typed(results.about).items():
        if what in now and what != "metric" and before != now[what]:
            raise UsageError(f"{run_id} is a sweep of `{before}`, and not of `{now[what]}`", hint)
    known = {identity(params): params for params in results.known}
    asked = {identity(trial.params): trial.params for trial in wanted}
    if known and {frozenset(each) for each in known.values()}.isdisjoint(map(frozenset, asked.values())):
        was, is_now = (", ".join(each) for each in (results.known[0], wanted[0].params))
        raise UsageError(f"{run_id} is a sweep over {was}, and not over {is_now}", hint)
    new = [params for key, params in asked.items() if key not in known]
    left_out = [params for key, params in known.items() if key not in asked]
    for which, what in ((new, "new"), (left_out, "left out this time, and kept on record")):
        if which:
            watcher.note(f"{run_id}: {_some(which)} {agreeing(len(which), 'is', 'are')} {what}")


def _some(trials: Sequence[Params]) -> str:
    shown = "; ".join(str(Trial(0, params)) for params in trials[:_SHOWN])
    more = "; ..." if len(trials) > _SHOWN else ""
    return f"{counted(len(trials), 'trial')} ({shown}{more})"
