"""Which sweep is meant: a new one, or one that is on record and goes on as what it was."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any, Protocol

from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import UsageError
from tflaunch.runs.record import Record, RunInfo, list_runs, naming, new_run_id
from tflaunch.sweeps.results import TRIALS, Metric, Results
from tflaunch.sweeps.slots import SweepRequest
from tflaunch.sweeps.trials import Params, Trial, identity

NAMED = "named"  # in the record of a sweep whose name was given
_SHOWN = 3  # trials that are named in a sentence


class Watcher(Protocol):
    """Who is told."""

    def note(self, text: str) -> None: ...


def known_sweep(request: SweepRequest) -> Record | None:
    """The record of a sweep that goes on; locked. Raises UsageError, RecordError."""
    name = request.name
    if request.must_exist:
        record = Record.reopen(Record.open(name).run_id)
        if record.read(TRIALS) is None:
            record.close()
            raise UsageError(f"{record.run_id} is no sweep", "tflaunch ps -a lists what there is")
        return record
    found = [info.run_id for info in list_runs() if name and _is_named(info, name)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} sweeps are called {name}: {', '.join(found)}", f"--resume {found[0]}")
    return Record.reopen(found[0]) if found else None


def record_of(request: SweepRequest) -> Record:
    """The record of a new sweep, or of one that goes on; locked. Raises UsageError, RecordError."""
    run, name = request.run, request.name
    with naming():  # of two that begin at once, the second sees the first
        if (known := known_sweep(request)) is not None:
            return known
        run_id = new_run_id(name) if name else run.run_id
        plan = ClusterPlan(run_id, ())
        record = Record.create(
            run_id, plan=plan, hostfile=run.hostfile, command=run.command, ssh_config=run.ssh_config
        )
        if name:
            record.write(NAMED, {})
        return record


def _is_named(info: RunInfo, name: str) -> bool:
    """Whether that run is a sweep of this name: its own behind it is what new_run_id has added."""
    return info.run_id.rpartition("-")[0] == name and (info.path / NAMED).exists()


def succeeded(results: Results, number: int) -> bool:
    """Whether that trial need not run again."""
    return number in results.last and results.last[number].status == "succeeded"


def about_sweep(request: SweepRequest) -> dict[str, Any]:
    """What its trials have in common: where that is another, they cannot be compared."""
    job = request.run.job
    about: dict[str, Any] = {"program": list(job.program), "args": list(job.args)}
    metric = request.metric
    return {**about, "metric": metric.text, "maximize": metric.maximize} if metric else about


def _typed(about: dict[str, Any]) -> dict[str, str]:
    """What is known of it, as on a command line."""
    typed = {}
    if "program" in about:
        typed["program"] = shlex.join(about["program"])
    if "args" in about:
        typed["args"] = f"-- {shlex.join(about['args'])}".rstrip()
    if "metric" in about:
        typed["metric"] = f"--metric {about['metric']}" + " --maximize" * about.get("maximize", False)
    return typed


def with_its_metric(request: SweepRequest, results: Results) -> SweepRequest:
    """The same; where it names no metric, by that which the sweep on record has."""
    text = results.about.get("metric")
    if request.metric is not None or text is None:
        return request
    return dataclasses.replace(request, metric=Metric.parse(text, results.about.get("maximize", False)))


def compare(results: Results, request: SweepRequest, wanted: Sequence[Trial], watcher: Watcher) -> None:
    """Say which trials of the command are new to the sweep on record, and which of its own it leaves out.

    Raises UsageError where the program, its arguments, the metric or the parameters are others.
    """
    run_id, now = results.record.run_id, _typed(about_sweep(request))
    hint = "say what it had, or begin another sweep: another --name, or none"
    for what, before in _typed(results.about).items():
        if what in now and before != now[what]:
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
            watcher.note(f"{run_id}: {_some(which)} {'is' if len(which) == 1 else 'are'} {what}")


def _some(trials: Sequence[Params]) -> str:
    shown = "; ".join(str(Trial(0, params)) for params in trials[:_SHOWN])
    more = "; ..." if len(trials) > _SHOWN else ""
    return f"{len(trials)} trial{'' if len(trials) == 1 else 's'} ({shown}{more})"
