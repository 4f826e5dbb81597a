"""One sweep, from the hostfile to the outcome: one run whose tasks are the trials.

Each host is connected to once, gets the code once, and has one agent; a trial costs one message and one process.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from typing import Any

from tflaunch.cluster import Cluster
from tflaunch.errors import ConnectErrors, PlanError, RecordError, StopError, UsageError
from tflaunch.inventory import when_free
from tflaunch.launch import (
    DRAIN_AFTER_CTRL_C_S,
    PREPARE_TIMEOUT_S,
    SHIP_TIMEOUT_S,
    STAGE_TIMEOUT_S,
    Connections,
    Request,
    about_run,
    nothing_left,
    refuse_one_machine_twice,
    verify,
)
from tflaunch.outcome import Outcome
from tflaunch.plan import ClusterPlan
from tflaunch.results import TRIALS, Results, ranked
from tflaunch.runs import Record, RunInfo, list_runs, naming, new_run_id
from tflaunch.sweep import outcome_of
from tflaunch.sweep_desk import Desk, Reporter, Summary, Work
from tflaunch.sweep_room import Room, SweepRequest, in_words_of_trials
from tflaunch.trials import Trial, arguments, numbered
from tflaunch.visits import Visits

NAMED = "named"  # in the record of a sweep whose name was given


def sweep(request: SweepRequest, connections: Connections, reporter: Reporter) -> int:
    """Run the trials that have no successful result yet, and report; returns the exit code.

    Raises TflaunchError or Stopped when it could not start; then nothing of it is left.
    """
    begun = time.monotonic()
    record = _record(request)
    is_new = record.read(TRIALS) is None
    request = dataclasses.replace(request, run=dataclasses.replace(request.run, run_id=record.run_id))
    try:
        results = Results(record)
        seed = request.seed if request.seed is not None else results.seed
        everything, wanted = numbered(results.known, request.trials(seed))
        left = [trial for trial in wanted if not _succeeded(results, trial.number)]
        if not left:
            reporter.note("all trials have succeeded before; nothing is left to run")
            reporter.summary(_summary(request, results, wanted))
            return 0
        if not is_new:
            _end_what_is_left(request.run, connections, reporter)
        results.keep_trials(everything, seed)
        work = Work(request, results, wanted, left, begun)
        desk, outcome = _run(work, connections, reporter)
        desk.end()
        try:
            record.finish(outcome)
            results.write_table(request.metric.name if request.metric else "")
        except RecordError as error:
            reporter.warn(f"{error.message}. {error.hint}")
        reporter.report(outcome)
        reporter.summary(_summary(request, results, wanted))
        return outcome.exit_code
    except BaseException:
        if is_new and not any((record.path / "logs").iterdir()):  # no trial has begun
            record.discard()
        raise
    finally:
        record.close()


def _record(request: SweepRequest) -> Record:
    """The record of a new sweep, or of one that goes on; locked. Raises UsageError, RecordError."""
    run, name = request.run, request.name
    if request.must_exist:
        record = Record.reopen(Record.open(name).run_id)
        if record.read(TRIALS) is None:
            record.close()
            raise UsageError(f"{record.run_id} is no sweep", "tflaunch ps -a lists what there is")
        return record
    with naming():  # of two that begin at once, the second sees the first
        found = [info.run_id for info in list_runs() if name and _is_named(info, name)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} sweeps are called {name}: {', '.join(found)}", f"--resume {found[0]}"
            )
        if found:
            return Record.reopen(found[0])
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


def _succeeded(results: Results, number: int) -> bool:
    return number in results.last and results.last[number].status == "succeeded"


def _end_what_is_left(run: Request, connections: Connections, reporter: Reporter) -> None:
    """Trials that a dead launcher has left running go on until their lease is over: they are started anew."""
    visits = Visits(connections, reporter)
    with visits.interrupts():
        try:
            failures = visits.open(run.hostfile.hosts, run.connect_s, "checking")
            finished, more = visits.finish(run.run_id, run.grace_s, "")
        finally:
            visits.close()
    if failures := {**failures, **more}:
        raise ConnectErrors(failures, len(run.hostfile.hosts))
    if left := [host for host, end in finished.items() if not end.clean]:
        raise StopError(
            f"something of {run.run_id} is still alive on {', '.join(left)}", "tflaunch stop tells what"
        )


def _run(work: Work, connections: Connections, reporter: Reporter) -> tuple[Desk, Outcome]:
    run, results = work.request.run, work.results
    room, notes = Room(work.request), list[str]()
    cluster = Cluster(run.run_id, connections, reporter, run.lease_s)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        inventory = cluster.open(run.hostfile.hosts, 0, run.connect_s)
        refuse_one_machine_twice(run.hostfile, inventory, connections)
        try:
            seats = room.seats(inventory, notes)
        except PlanError:
            room.seats(when_free(inventory), notes)  # raises when there never will be one
            seats = ()
        others = room.others(inventory, seats)
        if not (seats or others):
            raise PlanError("no card of these hosts can be taken", "tflaunch gpus shows who is on them")
        for note in notes:
            reporter.note(in_words_of_trials(note))
        hosts = {seat.host for seat in seats} | others.keys()
        cluster.keep(hosts)
        desk = Desk(work, room, reporter, seats, others)
        digest = run.bundle.digest if run.bundle else None
        code = {host.name: digest if host.workdir is None else None for host in run.hostfile.hosts}
        if run.bundle is not None:
            cluster.ship(run.bundle, {host for host in hosts if code[host]}, SHIP_TIMEOUT_S)
        cluster.prepare(room.images(hosts), run.job, PREPARE_TIMEOUT_S)
        gpus = {host: [uuid for seat in seats if seat.host == host for uuid in seat.gpus] for host in hosts}
        about = {**about_run(run, ClusterPlan(run.run_id, ())), "hosts": sorted(hosts)}
        cluster.stage_none(gpus, code, STAGE_TIMEOUT_S, about)
        results.record.resume(run.hostfile, run.command, run.ssh_config)
        reporter.begins(run.run_id, len(work.wanted), len(work.left), seats, work.request.metric)
        cluster.release({}, 0, desk.read)
        cluster.drive(desk, desk)
        state = desk.state
        seconds = time.monotonic() - work.begun
        cluster.tell_outcome(outcome_of(state, run.run_id, seconds, unverified=dict(state.lost)))
        missing = cluster.drain(DRAIN_AFTER_CTRL_C_S) if state.interrupts else cluster.drain()
        host_logs = cluster.log_paths()
        cluster.close()
    for task, size in missing.items():
        reporter.warn(f"{task}: {size:,} more bytes of its log are on its host: {host_logs.get(task, '?')}")
    unverified, survivors, cards = verify(run, state, connections, reporter)
    more: dict[str, Any] = {
        "survivors": survivors,
        "cards": {host: left for host, left in cards.items() if left},
    }
    outcome = outcome_of(
        state,
        run.run_id,
        time.monotonic() - work.begun,
        unverified=unverified,
        host_logs=host_logs,
        record=str(results.record.path),
        **more,
    )
    return desk, outcome


def _summary(request: SweepRequest, results: Results, wanted: Sequence[Trial]) -> Summary:
    mine = {trial.number: trial for trial in wanted}
    last = tuple(each for number, each in sorted(results.last.items()) if number in mine)
    best = ranked(last, request.metric)
    done = sum(each.status == "succeeded" for each in last)
    command: tuple[str, ...] = ()
    if best and request.metric and best[0].metric is not None:
        command = (*request.run_best, *arguments(request.run.job.args, mine[best[0].trial]))
    return Summary(
        request.run.run_id,
        last,
        tuple(best),
        len(wanted),
        request.metric,
        str(results.path),
        command,
        "" if done == len(wanted) else _to_resume(request.run.command, request.run.run_id),
    )


def _to_resume(argv: Sequence[str], run_id: str) -> str:
    """This very command, told to go on."""
    words = list(argv[1:])
    end = words.index("--") if "--" in words else len(words)
    kept, value = [], False  # of a name
    for word in words[:end]:
        if not value and word.partition("=")[0] not in ("--name", "--resume"):
            kept.append(word)
        value = word in ("--name", "--resume")
    return shlex.join(["tflaunch", *kept, "--resume", run_id, *words[end:]])
