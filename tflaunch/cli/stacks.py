"""`tflaunch stacks`: shows where the Python of each task is just now; the tasks go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.requests.which_hosts import hosts_of_all, hosts_of_run
from tflaunch.cli import completion
from tflaunch.cli.arguments import JsonDocument, LivingRun
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import ReachOptions
from tflaunch.inputs.options.of_others import StacksOptions
from tflaunch.protocol.errors import ConnectErrors, UsageError
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.protocol.errors import ConnectError
    from tflaunch.runs.stack_looks import TaskStacks


def stacks(
    run: LivingRun = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK", help="worker/0 ps/1 [all]", show_default=False, autocompletion=completion.tasks
        ),
    ] = None,
    *,
    form: StacksOptions,
    json: JsonDocument = False,
    reach: Annotated[ReachOptions, Part(default={"connect_timeout": 15.0})],
) -> None:
    """Show where the tasks of a run are just now: the Python stack of each, as a traceback has it.

    The tasks go on, and their logs stay as they are. Tasks at the same place are shown once. Without RUN: the only
    run alive; `tflaunch stacks worker/0` is one task of it. A task is asked at most every 10 s.
    """
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.run_states import failures_of, pick_run
    from tflaunch.runs.stack_looks import ask_stacks, wanted_tasks

    named = list(tasks or [])
    if run is not None and "/" in run:  # a task: no run's id has a slash
        named, run = [run, *named], None
    names = _names(named)
    with reporting("stopped before all hosts had answered", json=json) as show:
        if run is not None:
            run, hostfile, known_config = hosts_of_run(check_run_id(run), reach.hosts)
        else:
            hostfile, known_config = hosts_of_all(reach.hosts, "stacks", everything=False)
        patient = Patient(show.reporter, json)
        try:
            with (
                visiting(hostfile.hosts, reach, patient, known_config=known_config) as visits,
                visits.interrupts(),
            ):
                failures = visits.open(hostfile.hosts, reach.connect_timeout)
                if failures and len(failures) == len(hostfile.hosts):
                    raise ConnectErrors(failures, len(hostfile.hosts))
                listed = visits.runs(everything=run is not None, only=run or "")
                one = pick_run(run, listed.runs, hostfile)
                found, silent = ask_stacks(visits, one, wanted_tasks(one, names))
        finally:
            patient.settle()
        failures = failures_of(one, {**listed.failures, **silent})
        _print(one.run_id, found, failures, json=json, all_threads=form.all_threads)
        if failures:
            if not json:
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _names(texts: Sequence[str]) -> list[str]:
    try:
        return [str(TaskId.parse(text)) for text in texts]
    except ValueError as error:
        raise UsageError(str(error)) from None


def _print(
    run: str,
    found: Sequence[TaskStacks],
    failures: Mapping[str, ConnectError],
    *,
    json: bool,
    all_threads: bool,
) -> None:
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.console.stacks_page import stacks_lines
    from tflaunch.documents.failed_hosts import unreachable_data
    from tflaunch.runs.stack_looks import stacks_data

    screen = Screen()
    with reader_may_leave():
        if json:
            document = {"time": time.time(), "run": run, "tasks": [stacks_data(each) for each in found]}
            screen.write_json({**document, "unreachable": unreachable_data(failures)})
        else:
            screen.show(stacks_lines(found, screen, all_threads=all_threads))
