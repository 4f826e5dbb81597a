"""One sweep, from the hostfile to the outcome: one run whose tasks are the trials.

tflaunch connects to each host once, sends it the code once, and starts one agent there; then a trial costs one message
and one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.engines.taken_slots import release
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.afterwards import fetch_outputs, final_outcome, nothing_left, tell_written, verify
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.launch import tunnel_of
from tflaunch.launch.placing import consent_for
from tflaunch.launch.request import Connections, Request, about_run
from tflaunch.launch.roll_call import RollCall, described
from tflaunch.launch.second_try import at_most_twice
from tflaunch.launch.starting import SHIP_TIMEOUT_S, STAGE_TIMEOUT_S, Starter
from tflaunch.launch.steering import DRAIN_AFTER_CTRL_C_S, Steering
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import PREPARE_TIMEOUT_S
from tflaunch.planning.inventory import Inventory
from tflaunch.planning.usable_hosts import usable_hosts
from tflaunch.protocol.errors import EXIT_NO_METRIC, ConnectError, ConnectErrors, RecordError, StopError
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.hidden_values import VALUE_LEFT_OUT, url_left_out
from tflaunch.runs.record import Record, hostfile_from
from tflaunch.runs.visits import Finished, Visits
from tflaunch.sweeps.controller import Planned, Summary, SweepController, SweepDisplay, Work
from tflaunch.sweeps.first_seats import FirstSeats, Seating
from tflaunch.sweeps.optuna_study import OptunaStudy
from tflaunch.sweeps.recovery import recover
from tflaunch.sweeps.results import (
    TRIALS,
    Results,
    new_seed,
    ranked,
)
from tflaunch.sweeps.resume import (
    about_sweep,
    compare,
    is_done,
    known_sweep,
    record_of,
    with_its_metric,
)
from tflaunch.sweeps.scoring import (
    curves_before,
    is_metric_of,
    score_anew,
    with_metric_failure,
    without_metric,
)
from tflaunch.sweeps.seats import SeatFinder, SweepRequest, images, preloading
from tflaunch.sweeps.trials import Params, Trial, arguments, numbered
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from tflaunch.runs.tunnel import BrowserTunnel

ALL_DONE = "all trials have succeeded before; nothing is left to run"


def dry(request: SweepRequest, connections: Connections, reporter: SweepDisplay) -> int:
    """Show which trials would run, and how many at once on which GPUs; start nothing, leave nothing on the hosts.

    Raises TflaunchError, Stopped.
    """
    run, seed, known = request.run, request.seed, list[Params]()
    record, done = known_sweep(request), set[int]()
    if record is not None:
        with contextlib.closing(record):
            results = Results(record)
        seed, known = results.seed if seed is None else seed, results.known
        done = {number for number in results.last if is_done(results, number)}
    seed = new_seed() if seed is None else seed
    _, wanted = numbered(known, _trials(request, known, seed))
    if record is not None:
        compare(results, request, wanted, reporter)
    left = tuple(trial for trial in wanted if trial.number not in done)
    to_come = _to_come(request, known)
    if to_come:
        reporter.note(f"{counted(to_come, 'trial')} to come, each proposed by what the others have shown")
    if not (left or to_come):
        reporter.note(ALL_DONE)
        return 0
    finder = SeatFinder(request)
    cluster = Cluster(run.run_id, connections, reporter, run.lease_s, run.job)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        roll = _roll_call(run, cluster, connections, reporter, lease=False)
        first = FirstSeats(finder, roll, cluster, reporter, len(left) + to_come)
        seating = first.free()
        roll.warn_of_absent()
        consent_for(run, connections).note_question(first.most(seating), roll.inventory, reporter)
        cluster.abandon()
    reporter.planned(
        Planned(
            record.run_id if record is not None else "",
            left,
            len(wanted) + to_come,
            seating.seats,
            {host: len(uuids) for host, uuids in seating.others.items()},
            (*run.job.program, *run.job.args),
            seed if request.drawn else None,
            to_come,
        )
    )
    return 0


def sweep(
    request: SweepRequest,
    connections: Connections,
    reporter: SweepDisplay,
    leave: Callable[[Path], None] | None = None,
    record: Record | None = None,
) -> int:
    """Run the trials that have not succeeded yet, and report; returns the exit code.

    leave: leaves the terminal, for a file; it is called when the hosts are ready.  record: that of the sweep, locked,
    where it was made before; it is closed.
    Raises TflaunchError or Stopped when the sweep could not start; then nothing of it is left on the hosts.
    """
    record = record or record_of(request)
    with _kept_if_begun(record), tunnel_of(request.run) as tunnel:
        return _sweep(request, connections, reporter, tunnel, leave, record=record)


@contextlib.contextmanager
def _kept_if_begun(record: Record) -> Iterator[None]:
    """Close the record at the end, and remove it where the sweep was new and could not start."""
    with contextlib.closing(record):
        is_new = record.read(TRIALS) is None
        try:
            yield
        except BaseException:
            if is_new and not any((record.path / "logs").iterdir()):  # no trial has started
                record.discard()
            raise


def _sweep(
    request: SweepRequest,
    connections: Connections,
    reporter: SweepDisplay,
    tunnel: BrowserTunnel | None,
    leave: Callable[[Path], None] | None,
    *,
    record: Record,
) -> int:
    begun = time.monotonic()
    is_new = record.read(TRIALS) is None
    request = dataclasses.replace(request, run=dataclasses.replace(request.run, run_id=record.run_id))
    results = Results(record)
    seed = request.seed if request.seed is not None else results.seed
    everything, wanted = numbered(results.known, _trials(request, results.known, seed))
    to_come = _to_come(request, everything)
    if not is_new:
        request = with_its_metric(request, results)
        compare(results, request, wanted, reporter)
        if request.metric is not None and not is_metric_of(results, request.metric):
            score_anew(results, request.metric, reporter)
    left = [trial for trial in wanted if not is_done(results, trial.number)]
    if not (left or to_come):
        return _nothing_left(request, results, (everything, wanted), seed, reporter)
    if not is_new:
        _end_what_is_left(request, results, connections, reporter)
        left = [trial for trial in left if not is_done(results, trial.number)]
        if not (left or to_come):
            return _nothing_left(request, results, (everything, wanted), seed, reporter)
    results.keep_trials(everything, seed, {**results.about, **about_sweep(request)})
    study = None
    if request.search is not None and request.metric is not None:
        study = OptunaStudy(request.search, results, request.metric, seed, reporter.warn)
    work = Work(request, results, wanted, left, begun, study, curves_before(request, results))
    outcome, fetched = at_most_twice(
        lambda: _run(work, connections, reporter, tunnel, leave), request.run, connections, reporter
    )
    not_proposed = study.missing if study else 0
    recorded = not (record.logs.failure or results.failure or not_proposed)
    try:
        record.finish(outcome)
        results.write_table(request.metric.name if request.metric else "")
    except RecordError as error:
        recorded = False
        reporter.warn(f"{error.message}. {error.hint}")
    outcome = final_outcome(outcome, recorded=recorded, fetched=fetched)
    reporter.report(outcome)
    reporter.summary(_summary(request, results, wanted, not_proposed))
    return outcome.exit_code


def _trials(request: SweepRequest, known: Sequence[Params], seed: int) -> Sequence[Params]:
    """The trials of the command, as far as they are known: where a search proposes them, those on record."""
    proposed = request.search is not None and request.search.sampler
    return list(known) if proposed else request.trials(seed)


def _to_come(request: SweepRequest, known: Sequence[Params]) -> int:
    """How many trials a search is still to propose."""
    search = request.search
    return max(0, search.trials - len(known)) if search is not None and search.sampler else 0


def _nothing_left(
    request: SweepRequest,
    results: Results,
    trials: tuple[list[Params], list[Trial]],
    seed: int,
    reporter: SweepDisplay,
) -> int:
    """Show the results of a sweep in which no trial is left to run; returns the exit code."""
    everything, wanted = trials
    reporter.note(ALL_DONE)
    run_id = results.record.run_id
    results.keep_trials(everything, seed, {**results.about, **about_sweep(request)})
    results.write_table(request.metric.name if request.metric else "")
    if request.run.fetch is not None:
        reporter.note(f"nothing is fetched; to fetch it again: tflaunch fetch {run_id}")
    if missing := without_metric(request, results, wanted):
        reporter.warn(missing.reason)
    reporter.summary(_summary(request, results, wanted))
    return EXIT_NO_METRIC if missing else 0


def _end_what_is_left(
    request: SweepRequest, results: Results, connections: Connections, reporter: SweepDisplay
) -> None:
    """End the trials that a killed launcher left running: their lease has not run out, and they start anew.

    Those that have succeeded since then get their results.
    """
    run = request.run
    before = {host.name for host in hostfile_from(results.record).hosts}
    hosts = [host for host in run.hostfile.hosts if host.name in before]
    failures, finished, more = _ended_there(
        request, results, dataclasses.replace(run.hostfile, hosts=tuple(hosts)), connections, reporter
    )
    absent = {name: error for name, error in failures.items() if error.absent and not run.require_all}
    if failures := {**failures, **more}:
        if len(absent) < len(failures) or not finished:
            raise ConnectErrors(failures, len(hosts))
        reporter.warn(
            f"{described(absent)}: trials of the tflaunch that was killed end there by themselves, "
            f"{run.lease_s:.12g} s after that one was last heard of"
        )
    if left := [host for host, end in finished.items() if not end.clean]:
        raise StopError(
            f"something of {run.run_id} is still alive on {', '.join(left)}", "tflaunch stop shows what"
        )


def _ended_there(
    request: SweepRequest,
    results: Results,
    hostfile: Hostfile,
    connections: Connections,
    reporter: SweepDisplay,
) -> tuple[dict[str, ConnectError], dict[str, Finished], dict[str, ConnectError]]:
    """End all trials on these hosts; returns who was out of reach, who has ended them, and who has not answered.

    Those that have succeeded get their results, once all who were reached have ended theirs.  Raises RecordError,
    Stopped.
    """
    run = request.run
    visits = Visits(connections, reporter)
    with visits.interrupts():
        try:
            unanswered = None if run.require_all else connections.unanswered
            failures = visits.open(hostfile.hosts, run.connect_s, "checking", unanswered)
            finished, more = visits.finish(results.record.run_id, run.grace_s, "")
            if finished and not more:
                recover(visits, results, request.metric, hostfile, reporter)
        finally:
            visits.close()
    return failures, finished, more


def leave_slots(
    request: SweepRequest,
    record: Record,
    connect: Callable[[Sequence[Host]], AbstractContextManager[Connections]],
    reporter: SweepDisplay,
) -> None:
    """Give back the slots that a launcher of this sweep had which was killed, or its request for them.

    Their trials end; those that have succeeded since then get their results, for their files end with the slots.
    Closes the record where it raises RecordError or Stopped.
    """
    try:
        slots = record.slots
        if slots is None or record.outcome() is not None:
            return
        before = hostfile_from(record)
        if before.hosts and record.read(TRIALS) is not None:
            results = Results(record)
            with connect(before.hosts) as connections:
                _ended_there(with_its_metric(request, results), results, before, connections, reporter)
        release(*slots, before.hosts)
    except BaseException:
        record.close()
        raise


def _roll_call(
    run: Request, cluster: Cluster, connections: Connections, reporter: SweepDisplay, lease: bool = True
) -> RollCall:
    roll = RollCall(cluster, connections, reporter, run.hostfile, run.connect_s, 0, lease, run.require_all)
    roll.call(usable_hosts(run.job, run.hostfile, run.gpus))
    return roll


def _recorded(run: Request, results: Results, inventory: Inventory) -> Hostfile:
    """The hosts that may have files of the sweep: those of this run, and of the runs of the sweep before it."""
    before = {host.name for host in hostfile_from(results.record).hosts} if results.last else set()
    hosts = tuple(host for host in run.hostfile.hosts if host.name in before or host.name in inventory)
    return dataclasses.replace(run.hostfile, hosts=hosts)


def _run(
    work: Work,
    connections: Connections,
    reporter: SweepDisplay,
    tunnel: BrowserTunnel | None,
    leave: Callable[[Path], None] | None,
) -> tuple[Outcome, bool]:
    """Run the trials; returns (the outcome, whether all outputs were fetched)."""
    run, finder = work.request.run, SeatFinder(work.request)
    cluster = Cluster(run.run_id, connections, reporter, run.lease_s, run.job, bundle=run.bundle)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        roll = _roll_call(run, cluster, connections, reporter)
        to_come = work.study.left if work.study else 0
        first = FirstSeats(finder, roll, cluster, reporter, len(work.left) + to_come)
        consent = consent_for(run, connections)
        seating = first.agreed(consent) if run.wait_s is None else first.in_turn(consent, run.wait_s)
        controller = SweepController(work, finder, reporter, seating)
        starter = Starter(cluster)
        _stage(work, roll, starter, seating)
        total, left = len(work.wanted) + to_come, len(work.left) + to_come
        reporter.begins(run.run_id, total, left, seating.seats, work.request.metric)
        if leave is not None:
            log = work.results.record.launcher_log
            reporter.leaves(run.run_id, left, functools.partial(leave, log))
        steering = starter.release({}, 0, controller.read, work.results.record.logs)
        steering.sampling = controller.looks.keep_in(
            work.results.record, len(work.results.known) + to_come, controller.state, reporter.warn
        )
        if tunnel is not None:
            _show_tensorboard(steering, controller, run, tunnel, reporter)
        steering.drive(controller, controller)
        state = controller.state
        seconds = time.monotonic() - work.begun
        missing = steering.drain(DRAIN_AFTER_CTRL_C_S) if state.interrupts else steering.drain()
        controller.end()
        host_logs = steering.log_paths()
        fetched = fetch_outputs(run, steering, state, reporter)
        if not state.interrupts:
            tell_written(run, steering, state)
        if state.lost:
            steering.hold()
        unverified, survivors, not_free, _ = verify(run, state, connections, reporter)
        outcome = outcome_of(
            state,
            run.run_id,
            seconds,
            unverified=unverified,
            survivors=survivors,
            gpus=not_free,
            host_logs=host_logs,
            record=str(work.results.record.path),
        )
        # Only now is every log here: a sweep none of whose trials printed the metric has failed.
        outcome = with_metric_failure(outcome, work.request, work.results, work.wanted)
        steering.tell_outcome(outcome)
        cluster.close()
    for task, size in missing.items():
        reporter.warn(f"{task}: {size:,} more bytes of its log are on its host: {host_logs.get(task, '?')}")
    return outcome, fetched


def _stage(work: Work, roll: RollCall, starter: Starter, seating: Seating) -> None:
    """Make the hosts of these seats ready for trials, and write down that the sweep uses them."""
    run, results = work.request.run, work.results
    hosts = {seat.host for seat in seating.seats} | seating.others.keys()
    starter.end_elsewhere(hosts)
    digest = run.bundle.digest if run.bundle else None
    code = {host.name: digest if host.workdir is None else None for host in run.hostfile.hosts}
    if run.bundle is not None:
        starter.ship(run.bundle, {host for host in hosts if code[host]}, SHIP_TIMEOUT_S)
    starter.prepare(images(work.request, hosts), run.job, PREPARE_TIMEOUT_S)
    gpus = {
        host: [uuid for seat in seating.seats if seat.host == host for uuid in seat.gpus] for host in hosts
    }
    left_out = {name: error.message for name, error in roll.absent.items()}
    about = {**about_run(run, ClusterPlan(run.run_id, (), left_out=left_out)), "hosts": sorted(hosts)}
    modules = work.request.preload
    starter.stage_none(gpus, code, STAGE_TIMEOUT_S, about, preloading(modules) if modules else None)
    recorded = _recorded(run, results, roll.inventory)
    results.record.resume(recorded, run.command, run.ssh_config, left_out)


def _show_tensorboard(
    steering: Steering,
    controller: SweepController,
    run: Request,
    tunnel: BrowserTunnel,
    reporter: SweepDisplay,
) -> None:
    """Wait for the first trial, then show TensorBoard from its host, with all trials that run there."""
    from tflaunch.runs.tensorboard import TensorBoard

    steering.drive(controller, controller, lambda: bool(controller.first_host))
    if controller.phase == "running":
        there = next(host for host in run.hostfile.hosts if host.name == controller.first_host)
        logdir = run.tensorboard or "."
        if there.workdir is None and not logdir.startswith(("/", "~")):
            logdir = "."  # each trial has its own directory of that name, somewhere below
        steering.show(TensorBoard(run.run_id, there.name, logdir, tunnel, reporter))


def _summary(
    request: SweepRequest, results: Results, wanted: Sequence[Trial], not_proposed: int = 0
) -> Summary:
    mine = {trial.number: trial for trial in wanted}
    last = tuple(each for number, each in sorted(results.last.items()) if number in mine)
    best = ranked(last, request.metric)
    done = sum(each.status != "failed" for each in last)
    command: tuple[str, ...] = ()
    if best and request.metric and best[0].metric is not None:
        command = (*request.run_best, *arguments(request.run.job.args, mine[best[0].trial]))
    total = len(wanted) + not_proposed
    resume = "" if done == total else _to_resume(request.run.command, request.run.run_id)
    if not resume and (missing := without_metric(request, results, wanted)):
        resume = _to_resume(request.run.command, request.run.run_id, missing.todo)
    return Summary(
        request.run.run_id,
        last,
        tuple(best),
        total,
        request.metric,
        str(results.path),
        command,
        resume,
    )


def _to_resume(command: Sequence[str], run_id: str, options: str = "--resume") -> str:
    """The command that goes on with the sweep; it names what no record has.

    Values of variables are read anew; a password of --storage is to be typed in place of the VALUE_LEFT_OUT.
    """
    words = command[: command.index("--")] if "--" in command else command
    named: list[str] = []
    for before, word in itertools.pairwise(words):
        if url_left_out(before, word):
            named += [word] if word.startswith("-") else [before, word]
        elif word.endswith(f"={VALUE_LEFT_OUT}"):
            named += [
                *([] if word.startswith("-") else [before]),
                word.removesuffix(f"={VALUE_LEFT_OUT}"),
            ]
    return f"{shlex.join(['tflaunch', 'sweep', *named])} {options} {run_id}"
