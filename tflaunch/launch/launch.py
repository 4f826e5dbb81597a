"""One run, from the hostfile to the outcome, as a straight line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.hosts import Host, Hostfile, fold
from tflaunch.launch.acquisition import Acquisition, Planner
from tflaunch.launch.acquisition import Reporter as WaitingReporter
from tflaunch.launch.cluster import Cluster, Watcher
from tflaunch.launch.consent import Consent
from tflaunch.launch.roll_call import RollCall, as_counted
from tflaunch.lifecycle.states import Restarts, State, outcome_of
from tflaunch.lifecycle.watchdog import Oversight
from tflaunch.planning import dial_check
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import PREPARE_TIMEOUT_S
from tflaunch.planning.gpu_choice import GpuChoice
from tflaunch.planning.plan import ports_wanted
from tflaunch.planning.usable_hosts import moved, usable_hosts
from tflaunch.protocol.errors import ConnectError, FetchError, RecordError, TflaunchError
from tflaunch.protocol.job import CHIEF, EVALUATOR, EVALUATOR_GRACE_S, MASTER, WORKER, JobSpec, TaskId
from tflaunch.protocol.outcome import CardLeft, HostLost, Outcome
from tflaunch.runs.record import Record
from tflaunch.sessions.group import Stopped
from tflaunch.sessions.wires import Opener

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.inputs.patterns import Wish
    from tflaunch.runs.fetch import Fetched
    from tflaunch.runs.tunnel import Tunnel

STAGE_TIMEOUT_S = 300.0  # conda on a network file system takes its time
SHIP_TIMEOUT_S = 900.0
DRAIN_AFTER_CTRL_C_S = 3.0
VERIFY_TIMEOUT_S = 10.0


class Connections(Opener, Protocol):
    """`tflaunch.remote.Connector`, as far as it is needed here."""

    def dial_address(self, host: Host) -> str: ...
    def host_key(self, host: Host) -> str: ...
    def unanswered(self, host: Host) -> ConnectError | None: ...
    def user(self, host: Host) -> str: ...


class Reporter(Watcher, WaitingReporter, Protocol):
    """`tflaunch.console.reporter.Reporter`, as far as it is needed here."""

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None: ...
    def report(self, outcome: Outcome) -> None: ...
    def fetched(self, told: Fetched) -> None: ...
    def board(self, run_id: str, url: str, host: str, logdir: str) -> None: ...
    def detached(self, run_id: str, tasks: int, host: str) -> None: ...


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    run_id: str
    job: JobSpec
    hostfile: Hostfile
    gpus: GpuChoice
    bundle: Bundle | None  # None: the code is on the hosts
    command: tuple[str, ...]  # the launcher's own, for the record
    ssh_config: str | None = None  # likewise: `tflaunch stop` reaches the hosts by it
    lease_s: float = 60.0
    connect_s: float = 30.0
    grace_s: float = 10.0
    drain_s: float = 3.0
    detach: bool = False
    restarts: Restarts = field(default_factory=Restarts)
    spares: str = ""  # pattern of hosts that are kept for when one is lost
    dial_check: bool = True
    limits_s: Mapping[str, float] = field(default_factory=dict)  # see tflaunch.lifecycle.time_limits
    tensorboard: str | None = None  # the directory that it shows while they run
    tensorboard_port: int = 0  # of this machine; 0: any
    fetch: Wish | None = None  # which outputs are brought here at the end
    require_all: bool = False  # hosts that are absent end it, also if it would fit without them
    yes: bool = False  # whatever would be asked is agreed to
    wait_s: float | None = None  # for cards that are in use; None: not at all
    # Servers that stand: told of the plan once all of them listen.  Until then none is started again, and it is
    # only then that the run is detached.
    announce: Callable[[ClusterPlan], None] | None = None


class Swept(Protocol):
    """How a run has ended on its hosts."""

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def cards(self) -> Mapping[str, tuple[CardLeft, ...]]: ...
    @property
    def lost(self) -> Mapping[str, str]: ...


class Finished(Protocol):
    """A run whose outputs may be fetched."""

    @property
    def hosts(self) -> Mapping[Any, str]: ...
    @property
    def lost(self) -> Mapping[str, str]: ...
    @property
    def interrupts(self) -> Sequence[int]: ...


def dry(request: Request, connections: Connections, reporter: Reporter) -> int:
    """Show the plan, start nothing, leave nothing; returns the exit code. Raises TflaunchError, Stopped."""
    cluster = Cluster(request.run_id, connections, reporter, request.lease_s)
    with cluster.interrupts(), nothing_left(cluster, reporter):
        reporter.plan(_plan(request, _at_first(request), cluster, connections, reporter, lease=False))
        cluster.abandon()
    return 0


def launch(request: Request, connections: Connections, reporter: Reporter) -> int:
    """Start the run, see it to its end and report; returns the exit code.

    When a host is lost for good and restarts are left, all is planned anew on those that remain and the spares.
    Raises TflaunchError or Stopped when it could not start; then nothing of it is left.
    """
    with tunnel_of(request) as tunnel:
        return _launch(request, _Run(request, connections, reporter, tunnel), reporter)


@contextlib.contextmanager
def tunnel_of(request: Request) -> Iterator[Tunnel | None]:
    """The port of this machine for TensorBoard, if it is wanted."""
    if request.tensorboard is None:
        yield None
        return
    from tflaunch.runs.tunnel import Tunnel

    with contextlib.closing(Tunnel(request.tensorboard_port)) as tunnel:
        yield tunnel


def _launch(request: Request, run: _Run, reporter: Reporter) -> int:
    begun = time.monotonic()
    ended = run.once(_at_first(request))
    if ended is None:
        return 0
    while remaining := _left(request, ended.state, ended.number):
        lost = ", ".join(ended.state.lost)
        reporter.say(f"{lost} is lost; planning anew on {fold(host.name for host in remaining)}")
        try:
            ended = run.once(remaining, ended) or ended
        except TflaunchError as error:
            why = f"{error.message}. {error.hint}".rstrip(". ")
            reporter.warn(f"it cannot go on without {lost}: {why}")
            break
        except Stopped as stopped:
            signal = stopped.interrupted.signal
            state = dataclasses.replace(ended.state, first_failure=None, interrupts=(signal,))
            ended = dataclasses.replace(ended, state=state)
            break
    return run.finish(ended, time.monotonic() - begun)


def _at_first(request: Request) -> tuple[Host, ...]:
    """The hosts that are used as long as none is lost; raises UsageError when an option leaves none."""
    return usable_hosts(request.job, request.hostfile, request.gpus, request.spares)


def _left(request: Request, state: State, number: int) -> tuple[Host, ...]:
    """The hosts for a new plan, when one was lost and a restart is left; none otherwise."""
    lost = isinstance(state.first_failure, HostLost) and not request.detach
    if not lost or state.interrupts or request.restarts.most <= number + len(state.restarted):
        return ()
    usable = usable_hosts(request.job, request.hostfile, request.gpus)
    return tuple(host for host in usable if host.name not in state.lost)


@dataclass(frozen=True)
class _Ended:
    """How the run has ended on one set of hosts."""

    state: State
    number: int  # of the plan, from 0
    unverified: Mapping[str, str]
    survivors: Mapping[str, tuple[str, ...]]
    cards: Mapping[str, tuple[CardLeft, ...]]
    host_logs: Mapping[TaskId, str]


class _Run:
    """One run: mostly of one plan, and of more when hosts are lost."""

    def __init__(
        self, request: Request, connections: Connections, reporter: Reporter, tunnel: Tunnel | None
    ) -> None:
        self._request = request
        self._tunnel = tunnel
        self._connections = connections
        self._reporter = reporter
        self._record: Record | None = None
        self._plan: ClusterPlan | None = None
        self._visited: set[str] = set()  # hosts that have had an agent of this run
        self._begun = time.monotonic()
        self._released: float | None = None  # when the tasks ran for the first time
        self._fetched = True  # all that was asked for

    def once(self, hosts: Sequence[Host], before: _Ended | None = None) -> _Ended | None:
        """Plan, start and drive until all is over; None: it goes on by itself. Raises TflaunchError, Stopped."""
        request, reporter = self._request, self._reporter
        attempt = 1 + max(before.state.attempts.values(), default=0) if before else 0
        cluster = Cluster(request.run_id, self._connections, reporter, request.lease_s)
        with cluster.interrupts(), nothing_left(cluster, reporter):
            plan = _plan(
                request,
                hosts,
                cluster,
                self._connections,
                reporter,
                lease=True,
                before=self._plan,
                lost=before.state.lost if before else None,
            )
            self._plan = plan
            reporter.plan(plan, brief=True)
            record = self._record_of(plan, cluster.connected)
            try:
                oversight = _prepare(request, cluster, plan, attempt)
                if request.detach and request.announce is None:
                    keeper = cluster.entrust(plan, _state(request, plan), oversight)
                    cluster.send_off()
                    self._leave(plan, record, keeper)
                    return None
                state = _state(request, plan, attempt)
                if request.announce is None:
                    reporter.phase("training", 0, len(plan.tasks))
                cluster.release(state.hosts, attempt, _keeper(record, reporter), record)
                self._show_board(cluster, state)
                oversight.begin(time.monotonic(), self._released)
                self._released = self._released or time.monotonic()
                if request.announce is not None:
                    state = _all_listen(cluster, state, oversight, reporter)
                    if state.phase == "running":
                        state = dataclasses.replace(state, restarts=request.restarts)
                        keeper = cluster.entrust(plan, state, oversight) if request.detach else ""
                        request.announce(plan)
                        if request.detach:
                            cluster.close()
                            self._leave(plan, record, keeper)
                            return None
            except BaseException:
                if before is None:
                    record.discard()
                raise
            state = cluster.drive(state, oversight)
            number = before.number + 1 if before else 0
            if not _left(self._request, state, number):
                cluster.tell_outcome(
                    outcome_of(
                        state,
                        request.run_id,
                        time.monotonic() - self._begun,
                        unverified=dict(state.lost),
                    )
                )
            else:
                cluster.tell_replanned(state.lost)
            missing = cluster.drain(DRAIN_AFTER_CTRL_C_S) if state.interrupts else cluster.drain()
            host_logs = cluster.log_paths()
            if not _left(self._request, state, number):
                self._fetched = fetch_outputs(self._request, cluster, state, self._reporter)
            cluster.close()
        for task, size in missing.items():
            where = f"{state.hosts[task]}: {host_logs.get(task, '?')}"
            reporter.warn(f"{task}: {size:,} more bytes of its log are on {where}")
        return self._checked(state, number, host_logs)

    def _checked(self, state: State, number: int, host_logs: Mapping[TaskId, str]) -> _Ended:
        """How the run has ended on its hosts; whoever does not wait for that wants no new plan either."""
        unverified, survivors, cards, signal = verify(self._request, state, self._connections, self._reporter)
        if signal is not None and _left(self._request, state, number):
            state = dataclasses.replace(state, first_failure=None, interrupts=(signal,))
        return _Ended(state, number, unverified, survivors, cards, host_logs)

    def _leave(self, plan: ClusterPlan, record: Record, keeper: str) -> None:
        record.close()
        self._reporter.detached(self._request.run_id, len(plan.tasks), keeper)

    def _show_board(self, cluster: Cluster, state: State) -> None:
        if self._request.tensorboard is None or self._tunnel is None:
            return
        from tflaunch.runs.tensorboard import Board, host_of

        run_id, logdir = self._request.run_id, self._request.tensorboard
        cluster.show(Board(run_id, host_of(state.hosts), logdir, self._tunnel, self._reporter))

    def _record_of(self, plan: ClusterPlan, connected: Collection[str]) -> Record:
        """The record, with this plan; its hosts are those on which something of the run may be."""
        request = self._request
        self._visited |= set(connected)
        hosts = tuple(host for host in request.hostfile.hosts if host.name in self._visited)
        hostfile = dataclasses.replace(request.hostfile, hosts=hosts)
        if self._record is None:
            self._record = Record.create(
                request.run_id,
                plan=plan,
                hostfile=hostfile,
                command=request.command,
                ssh_config=request.ssh_config,
                detached=request.detach,
            )
        else:
            self._record.replan(plan, hostfile)
        return self._record

    def finish(self, ended: _Ended, seconds: float) -> int:
        """Note and report how it ended; returns the exit code."""
        assert self._record is not None  # noqa: S101
        outcome = outcome_of(
            ended.state,
            self._request.run_id,
            seconds,
            unverified=ended.unverified,
            survivors=ended.survivors,
            cards=ended.cards,
            record=str(self._record.path),
            host_logs=ended.host_logs,
        )
        outcome = dataclasses.replace(outcome, restarts=outcome.restarts + ended.number)
        try:
            self._record.finish(outcome)
        except RecordError as error:
            self._reporter.warn(f"{error.message}. {error.hint}")
        self._record.close()
        self._reporter.report(outcome)
        return outcome.exit_code or (0 if self._fetched else FetchError.exit_code)


def fetch_outputs(request: Request, cluster: Cluster, state: Finished, reporter: Reporter) -> bool:
    """Bring the outputs, however the run has ended, and tell what that comes to; whether all that is wanted is here."""
    if request.fetch is None:
        return True
    later = f"tflaunch fetch {request.run_id}"
    if len(state.interrupts) > 1:  # somebody is in a hurry
        reporter.say(f"nothing is fetched; later: {later}")
        return False
    hosts = set(state.hosts.values()) - set(state.lost)
    if not hosts:
        reporter.warn(f"nothing is fetched, as no host is left; when they are back: {later}")
        return False
    try:
        told = cluster.fetch(hosts, request.fetch)
    except Stopped:
        reporter.say(f"not all is fetched; the rest: {later}")
        return False
    except FetchError as error:
        reporter.warn(f"{error.message}; {error.hint}. Then: {later}")
        return False
    reporter.fetched(told)
    if state.lost:
        reporter.warn(f"what is on {fold(state.lost)} is not fetched; when it is back: {later}")
    return told.complete and not state.lost


@contextlib.contextmanager
def nothing_left(cluster: Cluster, reporter: Reporter) -> Iterator[None]:
    """Whatever goes wrong inside, nothing is left on the hosts, or the user hears where that is not known."""
    try:
        yield
    except BaseException as error:
        unconfirmed = cluster.abandon()
        for host, reason in unconfirmed.items():
            reporter.warn(f"{host}: could not check that nothing is left: {reason}; its lease ends it")
        if isinstance(error, Stopped):
            error.unconfirmed = unconfirmed
        raise


def _prepare(request: Request, cluster: Cluster, plan: ClusterPlan, attempt: int) -> Oversight:
    """All that comes before the tasks may start; raises LaunchError, Stopped."""
    cluster.keep({task.host for task in plan.tasks})
    digest = None
    if request.bundle is not None:
        digest = request.bundle.digest
        cluster.ship(request.bundle, {task.host for task in plan.tasks if task.cwd is None}, SHIP_TIMEOUT_S)
    cluster.prepare(plan.images, request.job, PREPARE_TIMEOUT_S)
    dial_key = secrets.token_hex(16) if request.dial_check and dial_check.needed(plan) else ""
    cluster.stage(
        plan,
        digest,
        STAGE_TIMEOUT_S,
        about=about_run(request, plan),
        attempt=attempt,
        detached=request.detach,
        dial_key=dial_key,
        program=request.bundle.to_read if request.bundle is not None else None,
    )
    names = cluster.dial_all(plan, dial_key) if dial_key else {}
    places = {
        str(task.id): (task.host, task.address, task.port if task.listens else None) for task in plan.tasks
    }
    return Oversight(places, names, request.limits_s)


def _all_listen(cluster: Cluster, state: State, oversight: Oversight, reporter: Reporter) -> State:
    """Drive until every task listens on its port, or the run is over: meanwhile the first failure ends it."""
    total = len(state.hosts)

    def all_listen() -> bool:
        reporter.phase("starting", oversight.ready, total)
        return oversight.ready == total

    oversight.awaited = True
    state = cluster.drive(dataclasses.replace(state, restarts=Restarts()), oversight, all_listen)
    oversight.awaited = False
    return state


def about_run(request: Request, plan: ClusterPlan) -> Mapping[str, object]:
    """What every host keeps of the whole run, for whoever asks one of them (tflaunch.runs.states)."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # an account without a name
        user = getpass.getuser()
    return {
        "planned": time.time(),
        "launcher": f"{user}@{socket.gethostname()}",
        "command": list(request.command),
        "detached": request.detach,
        "hosts": sorted({task.host for task in plan.tasks}),
        "tasks": {str(task.id): task.host for task in plan.tasks},
        **({"left_out": dict(plan.left_out)} if plan.left_out else {}),
        **({"moved": plan.moved} if plan.moved else {}),
    }


def _plan(
    request: Request,
    hosts: Sequence[Host],
    cluster: Cluster,
    connections: Connections,
    reporter: Reporter,
    *,
    lease: bool,
    before: ClusterPlan | None = None,
    lost: Mapping[str, str] | None = None,
) -> ClusterPlan:
    """The plan for what those hosts have now; with `lease`, its cards are held already.

    `before` is the plan that was carried out until hosts were lost: there are no more tasks than in that one, and the
    user is asked again only about fewer.
    """
    job, hostfile, gpus = request.job, request.hostfile, request.gpus
    ports = ports_wanted(job, hostfile, hosts) + request.detach
    roll = RollCall(
        cluster, connections, reporter, hostfile, request.connect_s, ports, lease, request.require_all
    )
    spares = () if before else _spares(request, hosts)
    roll.call(hosts, spares)
    if job.done == "chief" and not (job.count(CHIEF) or job.count(MASTER)):
        reporter.note("no chief in this run: worker/0's end is the run's (--done chief)")
    addresses = {host.name: connections.dial_address(host) for host in (*hosts, *spares)}

    planner = Planner(job, hostfile, gpus, addresses, request.run_id)
    consent = consent_for(request, connections)
    waits, agreed = request.wait_s is not None, request.yes
    if before is not None:
        as_before = dataclasses.replace(planner, job=as_counted(job, before))
        consent.needed = False
        planner = roll.settle_again(as_before, job, lost or {}, consent, waits=waits, agreed=agreed)
        agreed = True
    roll.settle(planner, consent, spares=spares, waits=waits, agreed=agreed)
    absent = {name: error.message for name, error in roll.absent.items()}
    if not lease:
        plan = planner.plan(roll.inventory)
        consent.tell(planner.shares(plan), roll.inventory, reporter)
    else:
        taking = Acquisition(
            planner,
            cluster,
            reporter,
            ports_wanted=ports,
            wait_s=request.wait_s,
            absent=roll.absent,
            consent=consent,
        )
        plan = taking.plan(roll.inventory)
        absent = {name: why for name, why in absent.items() if name not in cluster.connected}
    told = moved(job, hostfile, gpus, absent=absent, plan=plan, before=before)
    return dataclasses.replace(
        plan,
        notes=(*plan.notes, *([told] if told else [])),
        left_out={**(lost or {}), **absent},
        moved=told,
    )


def consent_for(request: Request, connections: Connections) -> Consent:
    """What the user has agreed to so far: to nothing, unless he, or the scheduler of his job, has counted the workers,
    or he has said --yes.
    """
    hosts = {host.name: host for host in request.hostfile.hosts}
    counted = request.job.role(WORKER).count is not None or all(host.slots_by for host in hosts.values())
    needed = not (counted or request.yes)
    # Asked for as late as can be: a host that is left out may have no way in, and each may cost a run of `ssh -G`.
    mine = functools.cache(lambda name: connections.user(hosts[name]))
    return Consent(request.hostfile, request.run_id, mine, needed)


def _spares(request: Request, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts that are kept for when another one is lost, or absent."""
    usable = usable_hosts(request.job, request.hostfile, request.gpus)
    return tuple(host for host in usable if host not in hosts)


def _state(request: Request, plan: ClusterPlan, attempt: int = 0) -> State:
    roles = request.job.roles
    drains_s = {job: role.grace_s for job, role in roles.items() if role.grace_s is not None}
    return State(
        hosts={task.id: task.host for task in plan.tasks},
        attempts={task.id: attempt for task in plan.tasks if attempt},
        done=request.job.done,
        grace_s=request.grace_s,
        drain_s=request.drain_s,
        drains_s={EVALUATOR: EVALUATOR_GRACE_S, **drains_s},
        ends={job: role.end for job, role in roles.items() if role.end is not None},
        share_gpus=request.gpus.share,
        restarts=request.restarts,
    )


def _keeper(record: Record, reporter: Reporter) -> Callable[[TaskId, int, int, bytes], None]:
    """Copies logs into the record; when the disk says no, the run goes on and the user knows."""

    def keep(task: TaskId, attempt: int, offset: int, data: bytes) -> None:
        try:
            record.append_log(task, offset, data, attempt)
        except RecordError as error:
            reporter.warn(f"{error.message}. {error.hint}")

    return keep


def verify(
    request: Request, state: Swept, connections: Connections, reporter: Reporter
) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]], Mapping[str, tuple[CardLeft, ...]], int | None]:
    """(hosts that could not be checked, what is still alive, cards that are not free, the signal that cut it short).

    Hosts whose agent was lost are visited afresh.
    """
    survivors = {host: left for host, left in state.swept.items() if left}
    cards = dict(state.cards)
    lost = [host for host in request.hostfile.hosts if host.name in state.lost]
    if not lost:
        return {}, survivors, cards, None
    from tflaunch.runs.states import was_restarted
    from tflaunch.runs.visits import UNSURE, Visits

    visits = Visits(connections, reporter)
    signal: int | None = None
    with visits.interrupts():
        try:
            failures = visits.open(lost, VERIFY_TIMEOUT_S, "checking")
            finished, more = visits.finish(request.run_id, 0.0, "")
            failures.update(more)
            survivors.update({host: end.survivors for host, end in finished.items() if end.survivors})
            cards.update({host: end.cards for host, end in finished.items()})
            unverified = {host: error.message for host, error in failures.items()}
            unsure = dict.fromkeys((host for host, end in finished.items() if end.unsure), UNSURE)
            for host, end in finished.items():
                if end.restarted:
                    reporter.note(was_restarted(host, end.restarted))
        except Stopped as stopped:
            signal = stopped.interrupted.signal
            unverified, unsure = {host.name: "tflaunch was told not to wait" for host in lost}, {}
        finally:
            visits.close()
    lease = (
        f"; its agent ends the run there by itself {request.lease_s:g} s after it last heard of this launcher"
    )
    unverified = {**{host: reason + lease for host, reason in unverified.items()}, **unsure}
    return unverified, survivors, cards, signal
