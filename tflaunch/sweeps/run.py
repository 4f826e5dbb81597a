"""One sweep, from the hostfile to the outcome: one run whose tasks are the trials.

Each host is connected to once, gets the code once, and has one agent; a trial costs one message and one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tflaunch.hosts import Hostfile, fold
from tflaunch.launch.afterwards import fetch_outputs, nothing_left, verify
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.consent import Consent
from tflaunch.launch.launch import tunnel_of
from tflaunch.launch.placing import consent_for
from tflaunch.launch.request import Connections, Request, about_run
from tflaunch.launch.roll_call import RollCall, described
from tflaunch.launch.starting import SHIP_TIMEOUT_S, STAGE_TIMEOUT_S, Starter
from tflaunch.launch.steering import DRAIN_AFTER_CTRL_C_S, Steering
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import PREPARE_TIMEOUT_S
from tflaunch.planning.inventory import Inventory, when_free
from tflaunch.planning.taking import Share
from tflaunch.planning.usable_hosts import usable_hosts
from tflaunch.protocol.errors import ConnectErrors, FetchError, PlanError, RecordError, StopError
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.hidden_values import VALUE_LEFT_OUT
from tflaunch.runs.record import Record, hostfile_from
from tflaunch.runs.visits import Visits
from tflaunch.sweeps.controller import Planned, Reporter, Summary, SweepController, Work
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.queue import seats_in_turn
from tflaunch.sweeps.results import TRIALS, Results, new_seed, ranked
from tflaunch.sweeps.resume import about_sweep, compare, known_sweep, record_of, succeeded, with_its_metric
from tflaunch.sweeps.seats import SeatFinder, SweepRequest, in_words_of_trials
from tflaunch.sweeps.trials import Params, Trial, arguments, numbered

if TYPE_CHECKING:
    from tflaunch.runs.tunnel import Tunnel

ALL_DONE = "all trials have succeeded before; nothing is left to run"


def dry(request: SweepRequest, connections: Connections, reporter: Reporter) -> int:
    """Show which trials would run, and how many at once on which cards; start nothing, leave nothing.

    Raises TflaunchError, Stopped.
    """
    run, seed, known = request.run, request.seed, list[Params]()
    record, done = known_sweep(request), set[int]()
    if record is not None:
        with contextlib.closing(record):
            results = Results(record)
        seed, known = results.seed if seed is None else seed, results.known
        done = {number for number in results.last if succeeded(results, number)}
    seed = new_seed() if seed is None else seed
    _, wanted = numbered(known, request.trials(seed))
    if record is not None:
        compare(results, request, wanted, reporter)
    left = tuple(trial for trial in wanted if trial.number not in done)
    if not left:
        reporter.note(ALL_DONE)
        return 0
    finder = SeatFinder(request)
    cluster = Cluster(run.run_id, connections, reporter, run.lease_s)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        roll = _roll_call(run, cluster, connections, reporter, lease=False)
        seats, others = _seats(finder, roll, reporter)
        roll.warn_of_absent()
        wanted_cards = _most(finder, roll.inventory, seats, len(left))
        consent_for(run, connections).note_question(wanted_cards, roll.inventory, reporter)
        cluster.abandon()
    reporter.planned(
        Planned(
            record.run_id if record is not None else "",
            left,
            len(wanted),
            seats,
            {host: len(uuids) for host, uuids in others.items()},
            (*run.job.program, *run.job.args),
            seed if request.drawn else None,
        )
    )
    return 0


def sweep(request: SweepRequest, connections: Connections, reporter: Reporter) -> int:
    """Run the trials that have no successful result yet, and report; returns the exit code.

    Raises TflaunchError or Stopped when it could not start; then nothing of it is left.
    """
    with tunnel_of(request.run) as tunnel:
        return _sweep(request, connections, reporter, tunnel)


def _sweep(request: SweepRequest, connections: Connections, reporter: Reporter, tunnel: Tunnel | None) -> int:
    begun = time.monotonic()
    record = record_of(request)
    is_new = record.read(TRIALS) is None
    request = dataclasses.replace(request, run=dataclasses.replace(request.run, run_id=record.run_id))
    try:
        results = Results(record)
        seed = request.seed if request.seed is not None else results.seed
        everything, wanted = numbered(results.known, request.trials(seed))
        if not is_new:
            request = with_its_metric(request, results)
            compare(results, request, wanted, reporter)
        left = [trial for trial in wanted if not succeeded(results, trial.number)]
        if not left:
            reporter.note(ALL_DONE)
            if request.run.fetch is not None:
                reporter.note(f"nothing is fetched; to fetch it again: tflaunch fetch {record.run_id}")
            reporter.summary(_summary(request, results, wanted))
            return 0
        if not is_new:
            _end_what_is_left(request.run, record, connections, reporter)
        results.keep_trials(everything, seed, {**results.about, **about_sweep(request)})
        work = Work(request, results, wanted, left, begun)
        controller, outcome, fetched = _run(work, connections, reporter, tunnel)
        controller.end()
        try:
            record.finish(outcome)
            results.write_table(request.metric.name if request.metric else "")
        except RecordError as error:
            reporter.warn(f"{error.message}. {error.hint}")
        reporter.report(outcome)
        reporter.summary(_summary(request, results, wanted))
        return outcome.exit_code or (0 if fetched else FetchError.exit_code)
    except BaseException:
        if is_new and not any((record.path / "logs").iterdir()):  # no trial has begun
            record.discard()
        raise
    finally:
        record.close()


def _end_what_is_left(run: Request, record: Record, connections: Connections, reporter: Reporter) -> None:
    """Trials that a dead launcher has left running go on until their lease is over: they are started anew."""
    before = {host.name for host in hostfile_from(record).hosts}
    hosts = [host for host in run.hostfile.hosts if host.name in before]
    unanswered = None if run.require_all else connections.unanswered
    visits = Visits(connections, reporter)
    with visits.interrupts():
        try:
            failures = visits.open(hosts, run.connect_s, "checking", unanswered)
            finished, more = visits.finish(run.run_id, run.grace_s, "")
        finally:
            visits.close()
    absent = {name: error for name, error in failures.items() if unanswered and error.absent}
    if failures := {**failures, **more}:
        if len(absent) < len(failures) or not finished:
            raise ConnectErrors(failures, len(hosts))
        reporter.warn(
            f"{described(absent)}: trials that a killed command has left there end by themselves, {run.lease_s:g} s "
            "after it was last heard of"
        )
    if left := [host for host, end in finished.items() if not end.clean]:
        raise StopError(
            f"something of {run.run_id} is still alive on {', '.join(left)}", "tflaunch stop tells what"
        )


def _roll_call(
    run: Request, cluster: Cluster, connections: Connections, reporter: Reporter, lease: bool = True
) -> RollCall:
    roll = RollCall(cluster, connections, reporter, run.hostfile, run.connect_s, 0, lease, run.require_all)
    roll.call(usable_hosts(run.job, run.hostfile, run.gpus))
    return roll


def _recorded(run: Request, results: Results, inventory: Inventory) -> Hostfile:
    """The hosts on which something of the sweep may be: also those of its trials that have ended before."""
    before = {host.name for host in hostfile_from(results.record).hosts} if results.last else set()
    hosts = tuple(host for host in run.hostfile.hosts if host.name in before or host.name in inventory)
    return dataclasses.replace(run.hostfile, hosts=hosts)


def _seats(
    finder: SeatFinder, roll: RollCall, reporter: Reporter
) -> tuple[tuple[Seat, ...], Mapping[str, tuple[str, ...]]]:
    """What is free now, and the cards that may be free later.

    Raises PlanError where there never will be any, ConnectErrors where that may be for want of a host.
    """
    notes, inventory = list[str](), roll.inventory
    try:
        try:
            seats = finder.seats(inventory, notes)
        except PlanError:
            finder.seats(when_free(inventory), notes)
            seats = ()
        others = finder.others(inventory, seats)
        if not (seats or others):
            raise PlanError("no card of these hosts can be taken", "tflaunch gpus shows who is on them")
    except PlanError as error:
        if roll.absent:
            raise roll.refusal(
                f"without {fold(roll.absent)}: {error.message}. {error.hint}".rstrip()
            ) from None
        raise
    for note in notes:
        reporter.note(in_words_of_trials(note))
    return seats, others


def _most(finder: SeatFinder, inventory: Inventory, seats: tuple[Seat, ...], trials: int) -> list[Share]:
    """What so many trials may come to take: also cards that others use now, if there are too few."""
    if trials > len(seats) and finder.others(inventory, seats):
        seats = finder.seats(when_free(inventory), [])
    return finder.shares(seats, trials)


def _agreed(
    finder: SeatFinder, roll: RollCall, cluster: Cluster, reporter: Reporter, consent: Consent, *, trials: int
) -> tuple[tuple[Seat, ...], Mapping[str, tuple[str, ...]]]:
    """As `_seats`, once the user has agreed to what they take; raises UsageError when he does not, Stopped."""
    seats, others = _seats(finder, roll, reporter)
    roll.warn_of_absent()
    while (
        wanted := consent.lacking(_most(finder, roll.inventory, seats, trials), roll.inventory)
    ) is not None:
        cluster.give_back()
        later = trials > len(seats) and bool(others)
        consent.ask(cluster, wanted, *(("up to ", " as they become free") if later else ()))
        hosts = [host for host in finder.hostfile.hosts if host.name in roll.inventory]
        found, failures = cluster.look(hosts, 0, finder.others(roll.inventory, ()))
        if failures:
            raise ConnectErrors(failures, len(hosts))
        roll.inventory = found
        seats, others = _seats(finder, roll, reporter)
    return seats, others


def _run(
    work: Work, connections: Connections, reporter: Reporter, tunnel: Tunnel | None
) -> tuple[SweepController, Outcome, bool]:
    run, results = work.request.run, work.results
    finder = SeatFinder(work.request)
    cluster = Cluster(run.run_id, connections, reporter, run.lease_s)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        roll = _roll_call(run, cluster, connections, reporter)
        inventory = roll.inventory
        left_out = {name: error.message for name, error in roll.absent.items()}
        consent, trials = consent_for(run, connections), len(work.left)
        if run.wait_s is None:
            seats, others = _agreed(finder, roll, cluster, reporter, consent, trials=trials)
            inventory = roll.inventory
        else:
            _seats(finder, roll, reporter)  # refuses what can never run
            roll.warn_of_absent()
            seats = seats_in_turn(
                finder, trials, cluster, inventory, reporter, wait_s=run.wait_s, consent=consent
            )
            others = finder.others({host: inventory[host] for host in cluster.connected}, seats)
        hosts = {seat.host for seat in seats} | others.keys()
        starter = Starter(cluster)
        starter.end_elsewhere(hosts)
        controller = SweepController(work, finder, reporter, seats, others)
        _make_ready(run, starter, finder, seats, hosts=hosts, left_out=left_out)
        results.record.resume(_recorded(run, results, inventory), run.command, run.ssh_config, left_out)
        reporter.begins(run.run_id, len(work.wanted), len(work.left), seats, work.request.metric)
        steering = starter.release({}, 0, controller.read, results.record.logs)
        if tunnel is not None:
            _show_tensorboard(steering, controller, run, tunnel, reporter)
        steering.drive(controller, controller)
        state = controller.state
        seconds = time.monotonic() - work.begun
        steering.tell_outcome(outcome_of(state, run.run_id, seconds, unverified=dict(state.lost)))
        missing = steering.drain(DRAIN_AFTER_CTRL_C_S) if state.interrupts else steering.drain()
        host_logs = steering.log_paths()
        fetched = fetch_outputs(run, steering, state, reporter)
        cluster.close()
    for task, size in missing.items():
        reporter.warn(f"{task}: {size:,} more bytes of its log are on its host: {host_logs.get(task, '?')}")
    unverified, survivors, cards, _ = verify(run, state, connections, reporter)
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
    return controller, outcome, fetched


def _make_ready(
    run: Request,
    starter: Starter,
    finder: SeatFinder,
    seats: Sequence[Seat],
    *,
    hosts: Collection[str],
    left_out: Mapping[str, str],
) -> None:
    """Ship the code, prepare what the trials run in, and tell the hosts which GPUs the sweep has; start nothing."""
    digest = run.bundle.digest if run.bundle else None
    code = {host.name: digest if host.workdir is None else None for host in run.hostfile.hosts}
    if run.bundle is not None:
        starter.ship(run.bundle, {host for host in hosts if code[host]}, SHIP_TIMEOUT_S)
    starter.prepare(finder.images(hosts), run.job, PREPARE_TIMEOUT_S)
    gpus = {host: [uuid for seat in seats if seat.host == host for uuid in seat.gpus] for host in hosts}
    about = {**about_run(run, ClusterPlan(run.run_id, (), left_out=left_out)), "hosts": sorted(hosts)}
    starter.stage_none(gpus, code, STAGE_TIMEOUT_S, about)


def _show_tensorboard(
    steering: Steering, controller: SweepController, run: Request, tunnel: Tunnel, reporter: Reporter
) -> None:
    """Show TensorBoard once a trial runs: it is started as that one is, and sees all that run on that host."""
    from tflaunch.runs.tensorboard import TensorBoard

    steering.drive(controller, controller, lambda: bool(controller.first_host))
    if controller.phase == "running":
        there = next(host for host in run.hostfile.hosts if host.name == controller.first_host)
        logdir = run.tensorboard or "."
        if there.workdir is None and not logdir.startswith(("/", "~")):
            logdir = "."  # each trial has its own of that name, somewhere below
        steering.show(TensorBoard(run.run_id, there.name, logdir, tunnel, reporter))


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
    """This very command, told to go on; a variable whose value is left out is taken from the environment."""
    words = list(argv[1:])
    end = words.index("--") if "--" in words else len(words)
    kept, value = [], False  # of a name
    for word in words[:end]:
        if not value and word.partition("=")[0] not in ("--name", "--resume"):
            kept.append(word.removesuffix(f"={VALUE_LEFT_OUT}"))
        value = word in ("--name", "--resume")
    return shlex.join(["tflaunch", *kept, "--resume", run_id, *words[end:]])
