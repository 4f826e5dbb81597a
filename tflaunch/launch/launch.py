"""One run, from the request to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tflaunch.hosts import Host, fold
from tflaunch.launch.afterwards import fetch_outputs, final_outcome, nothing_left, tell_written, verify
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.placing import hold_spares, hosts_at_first, plan_on
from tflaunch.launch.request import Connections, OnSlots, Request, about_run
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.launch.second_try import at_most_twice
from tflaunch.launch.starting import SHIP_TIMEOUT_S, STAGE_TIMEOUT_S, Code, Starter
from tflaunch.launch.steering import DRAIN_AFTER_CTRL_C_S, Steering
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.lifecycle.states import State
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.planning import dials
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import PREPARE_TIMEOUT_S
from tflaunch.planning.networks import NONE as NO_NETWORK
from tflaunch.planning.spare_moves import Moves
from tflaunch.planning.usable_hosts import usable_hosts
from tflaunch.protocol.errors import DialError, RecordError, StopError, TflaunchError
from tflaunch.protocol.job import EVALUATOR, EVALUATOR_GRACE_S, TaskId
from tflaunch.protocol.outcome import GpuLeft, HostLost, Outcome, Reclaimed
from tflaunch.runs.record import Record
from tflaunch.runs.sampling import sampling_into
from tflaunch.sessions.group import Stopped

if TYPE_CHECKING:
    from tflaunch.engines.taken_slots import TakenSlots
    from tflaunch.runs.tunnel import BrowserTunnel


def dry(request: Request, connections: Connections, watcher: RunWatcher) -> int:
    """Show the plan; start nothing, leave nothing.  Returns the exit code; raises TflaunchError, Stopped."""
    cluster = Cluster(request.run_id, connections, watcher, request.lease_s, request.job)
    with cluster.interrupts(), nothing_left(cluster, watcher):
        watcher.plan(plan_on(request, hosts_at_first(request), cluster, connections, watcher, lease=False))
        cluster.abandon()
    return 0


def launch(
    request: Request,
    connections: Connections,
    watcher: RunWatcher,
    on: OnSlots | None = None,
) -> int:
    """Start the run, stay with it until its end, and report; returns the exit code.

    `on`: the slots that an engine has given for it.

    With `request.detach` it returns 0 as soon as the tasks run.  When a host is lost for good and restarts are left,
    everything is planned again on the remaining hosts and the spares, or on slots that `request.take_again` takes.
    Raises TflaunchError or Stopped when the run could not start; then nothing of it is left.
    """
    with tunnel_of(request) as tunnel:
        return to_its_end(request, LaunchedRun(request, connections, watcher, tunnel, on), watcher)


def _cluster_of(request: Request, connections: Connections, watcher: RunWatcher) -> Cluster:
    bundle = request.bundle
    return Cluster(request.run_id, connections, watcher, request.lease_s, request.job, bundle=bundle)


@contextlib.contextmanager
def tunnel_of(request: Request) -> Iterator[BrowserTunnel | None]:
    """Keep this machine's port for TensorBoard open inside the context, if the user wants TensorBoard."""
    if request.tensorboard is None:
        yield None
        return
    from tflaunch.runs.tunnel import BrowserTunnel

    with contextlib.closing(BrowserTunnel(request.tensorboard_port)) as tunnel:
        yield tunnel


def to_its_end(request: Request, run: LaunchedRun, watcher: RunWatcher) -> int:
    """Drive the run to its end; while restarts are left, start it again without lost hosts.  See `launch`."""
    begun = time.monotonic()
    hosts = hosts_at_first(request)
    ended = begin(run, hosts)
    if ended is None:
        return 0
    while another_plan_follows(run.request, ended.state, ended.number):
        try:
            hosts, before = run.hosts_once_more(ended)
            again = begin(run, hosts, before)
            if again is None:
                return 0
            ended = again
        except TflaunchError as error:
            why = f"{error.message}. {error.hint}".rstrip(". ")
            watcher.warn(f"it cannot go on without {_missing(ended.state)}: {why}")
            break
        except Stopped as stopped:
            ended = dataclasses.replace(ended, state=_interrupted(ended.state, stopped.interrupted.signal))
            break
    return run.finish(ended, time.monotonic() - begun)


def begin(run: LaunchedRun, hosts: Sequence[Host], before: EndedCluster | None = None) -> EndedCluster | None:
    """As `run.once`; a start that fails is tried again where another one may go well.

    So it may where connections broke, and where the hosts do not reach each other over the faster network that tflaunch
    has chosen: then without that.  Raises TflaunchError, Stopped.
    """

    def start() -> EndedCluster | None:
        return at_most_twice(lambda: run.once(hosts, before), run.request, run.connections, run.watcher)

    try:
        return start()
    except DialError as error:
        network = run.plan.network if run.plan else ""
        if not network or run.request.job.network or error.unconfirmed:
            raise
        host, why = next(iter(error.failures.items()))
        run.watcher.warn(
            f"{host} {why.splitlines()[0]}; the run begins anew without the network {network}, by the addresses that "
            "SSH has"
        )
        job = dataclasses.replace(run.request.job, network=NO_NETWORK)
        run.request = dataclasses.replace(run.request, job=job)
        return start()


def another_plan_follows(request: Request, state: State, number: int) -> bool:
    """Whether plan `number` + 1 follows: hosts are missing, a restart is left, and other hosts are, or can be taken."""
    missing = isinstance(state.first_failure, (HostLost, Reclaimed)) and not request.detach
    if not missing or state.interrupts or request.restarts.most <= number + len(state.restarted):
        return False
    if request.take_again is not None:
        return True
    return isinstance(state.first_failure, HostLost) and bool(_hosts_left(request, state))


def _hosts_left(request: Request, state: State) -> tuple[Host, ...]:
    usable = usable_hosts(request.job, request.hostfile, request.gpus)
    return tuple(host for host in usable if host.name not in state.lost)


def _missing(state: State) -> str:
    """The hosts that are lost; where all have ended in order, the one whose slot was taken back."""
    first = state.first_failure
    return ", ".join(state.lost) or (first.host if isinstance(first, (HostLost, Reclaimed)) else "")


def in_the_engines_words(state: State, slots: TakenSlots | None) -> State:
    """The slot holder knows that its slot is taken back; the engine may know why."""
    first = state.first_failure
    if not isinstance(first, Reclaimed) or slots is None or not (why := slots.why(first.host)):
        return state
    return dataclasses.replace(state, first_failure=Reclaimed(why, first.host))


@dataclass(frozen=True)
class Started:
    """A run whose tasks were released."""

    steering: Steering
    watchdog: Watchdog
    state: State


@dataclass(frozen=True)
class EndedCluster:
    """How the run has ended on one set of hosts."""

    state: State
    number: int  # of the plan, from 0
    unverified: Mapping[str, str]
    survivors: Mapping[str, tuple[str, ...]]
    gpus: Mapping[str, tuple[GpuLeft, ...]]
    host_logs: Mapping[TaskId, str]


class LaunchedRun:
    """One run: it has one plan, and gets another one each time that hosts are lost."""

    def __init__(
        self,
        request: Request,
        connections: Connections,
        watcher: RunWatcher,
        tunnel: BrowserTunnel | None = None,
        on: OnSlots | None = None,
    ) -> None:
        self.request = request
        self.watcher = watcher
        self.connections = connections
        self._tunnel = tunnel
        self._record = on.record if on else None
        self.slots = on.slots if on else None
        self.plan: ClusterPlan | None = None
        self._visited: set[str] = set()  # hosts that have had an agent of this run
        self._begun = time.monotonic()
        self._released: float | None = None  # when the tasks were released for the first time
        self._fetched = True  # whether all outputs that the user asked for are here
        self._moves = Moves()  # of a detached run
        self._coordinator_host = ""  # once the run is handed over
        self._in_doubt = ""  # why it is not known whether there is a coordinator

    def once(self, hosts: Sequence[Host], before: EndedCluster | None = None) -> EndedCluster | None:
        """Plan, start and drive the run on these hosts until all is over; None: it goes on without this launcher.

        `before` is how the run ended under the plan before this one.  Raises TflaunchError, Stopped.
        """
        number = before.number + 1 if before else 0
        attempt = 1 + max(before.state.attempts.values(), default=0) if before else 0
        request = self.request
        cluster = _cluster_of(request, self.connections, self.watcher)
        with cluster.interrupts(), nothing_left(cluster, self.watcher):
            plan = self._plan_on(cluster, hosts, before)
            if self.request.detach and self.request.spares:
                self._hold_spares(cluster, plan)
            try:
                started = self.start(Starter(cluster, self._moves), plan, attempt)
            except BaseException:
                if before is None:
                    self._discard_record()
                raise
            if started is None:
                cluster.close()
                return None
            steering = started.steering
            steering.hand_over = self._handover_of(cluster, steering, plan, started.watchdog)
            state = in_the_engines_words(steering.drive(started.state, started.watchdog), self.slots)
            if not steering.handed_over:
                missing, host_logs = self._collect(steering, state, number)
                checked = self._checked(steering, state, number, host_logs)
            cluster.close()
        if steering.handed_over:
            self._leave_handed(plan)
            return None
        for task, size in missing.items():
            where = f"{state.hosts[task]}: {host_logs.get(task, '?')}"
            self.watcher.warn(f"{task}: {size:,} more bytes of its log are on {where}")
        return checked

    def hosts_once_more(self, ended: EndedCluster) -> tuple[tuple[Host, ...], EndedCluster]:
        """The hosts of the next plan, and how the run has ended on those before; where it can, take other slots.

        Raises TflaunchError, Stopped.
        """
        take_again = self.request.take_again
        if take_again is None:
            hosts = _hosts_left(self.request, ended.state)
            names = fold(host.name for host in hosts)
            self.watcher.say(f"{_missing(ended.state)} is lost; planning anew on {names}")
            return hosts, ended
        # Where an agent may live that nobody could reach, its tasks must not start elsewhere beside it.
        after_s = max(0.0, ended.state.runs_on_until - time.monotonic()) if ended.unverified else 0.0
        after = f" in {after_s:.0f} s, when its tasks have certainly ended there" if after_s else ""
        first = ended.state.first_failure
        # Of a host that is lost, the reason is told already.
        why = f": {first.reason}" if isinstance(first, Reclaimed) and not ended.state.lost else ""
        self.watcher.say(f"{_missing(ended.state)} is gone{why}; taking slots again{after}")
        self.request = dataclasses.replace(self.request, hostfile=take_again(after_s))
        self._visited.clear()
        # Slots have the names of earlier ones, and are none of the lost.
        return hosts_at_first(self.request), dataclasses.replace(
            ended, state=dataclasses.replace(ended.state, lost={})
        )

    @property
    def record(self) -> Record:
        """The launcher's record of the run; there is one as soon as there is a plan."""
        assert self._record is not None, "planned"  # noqa: S101
        return self._record

    def _plan_on(self, cluster: Cluster, hosts: Sequence[Host], before: EndedCluster | None) -> ClusterPlan:
        """A plan whose GPUs are held, shown and recorded."""
        plan = plan_on(
            self.request,
            hosts,
            cluster,
            self.connections,
            self.watcher,
            lease=True,
            before=self.plan if before else None,  # of a start that has failed, nothing was carried out
            lost=before.state.lost if before else None,
        )
        self.plan = plan
        self.watcher.plan(plan, brief=True)
        self._keep_in_record(plan, cluster.connected)
        return plan

    def start(self, starter: Starter, plan: ClusterPlan, attempt: int) -> Started | None:
        """Make the tasks ready and release them; None: the run was detached.  Raises LaunchError, Stopped."""
        watchdog = make_ready(self.request, starter, plan, attempt)
        if self.request.detach:
            state = dataclasses.replace(first_state(self.request, plan), reserve=self._moves.reserve)
            coordinator_host = starter.entrust(plan, state, watchdog)
            self.record.begun = True
            starter.send_off({task.host for task in plan.tasks})
            self.leave(plan, coordinator_host)
            return None
        self.watcher.phase("training", 0, len(plan.tasks))
        return self.release(starter, plan, watchdog, attempt)

    def release(self, starter: Starter, plan: ClusterPlan, watchdog: Watchdog, attempt: int) -> Started:
        """Start all tasks now; TensorBoard, too, if it is wanted."""
        state = first_state(self.request, plan, attempt)
        self.record.begun = True
        steering = starter.release(state.hosts, attempt, self._copy_log, self.record.logs)
        steering.sampling = sampling_into(self.record, watchdog.data(), self.watcher.warn)
        self._show_tensorboard(steering, state)
        watchdog.begin(time.monotonic(), self._released)
        self._released = self._released or time.monotonic()
        return Started(steering, watchdog, state)

    def leave(self, plan: ClusterPlan, coordinator_host: str) -> None:
        """Show that the run goes on without this launcher."""
        if self.slots is not None:
            self.slots.keep()
            self.record.note_detached()
        self.record.close()
        self.watcher.detached(self.request.run_id, len(plan.tasks), coordinator_host)

    def _hold_spares(self, cluster: Cluster, plan: ClusterPlan) -> None:
        try:
            self._moves = hold_spares(self.request, plan, cluster, self.connections, self.watcher)
            self._keep_in_record(plan, cluster.connected)
        except BaseException:
            self._discard_record()
            raise

    def _handover_of(
        self, cluster: Cluster, steering: Steering, plan: ClusterPlan, watchdog: Watchdog
    ) -> Callable[[], TflaunchError | None]:
        """What hands the run over, as it stands when it is called."""

        def hand_over() -> TflaunchError | None:
            from tflaunch.launch.handover import Handover

            since = self._released if self._released is not None else self._begun
            handover = Handover(
                cluster, steering, plan, watchdog, lease_s=self.request.handed_lease_s, since=since
            )
            why = handover.run()
            if why is not None:
                self.watcher.warn(f"the run stays with this launcher: {why.message}")
            self._coordinator_host = handover.coordinator_host
            self._in_doubt = handover.in_doubt
            return why

        return hand_over

    def _leave_handed(self, plan: ClusterPlan) -> None:
        """Leave a run that goes on without this launcher, and say what ends with the launcher."""
        if self.slots is not None:
            self.slots.keep()
        run_id = self.request.run_id
        try:
            self.record.note_detached()
        except RecordError as error:
            self.watcher.warn(f"{error.message}. {error.hint}")
        if self.request.tensorboard is not None:
            self.watcher.note(
                f"TensorBoard ends with this launcher; show it again: tflaunch tensorboard {run_id}"
            )
        if self.request.fetch is not None:
            self.watcher.note(f"--fetch fetches nothing now; when the run has ended: tflaunch fetch {run_id}")
        if self.request.spares:
            self.watcher.note(f"the run does not move to {self.request.spares} any more: nothing waits there")
        self.record.close()
        if self._in_doubt:
            in_doubt = StopError(
                f"{self._coordinator_host} has not confirmed that it coordinates the run now ({self._in_doubt}); if it "
                "does not, the agents end the run when its lease runs out",
                f"see whether it goes on: tflaunch status {run_id}",
            )
            in_doubt.may_go_on = True
            raise in_doubt
        self.watcher.handed_over(run_id, len(plan.tasks), self._coordinator_host)

    def _collect(
        self, steering: Steering, state: State, number: int
    ) -> tuple[Mapping[TaskId, int], Mapping[TaskId, str]]:
        """Bring in the last lines and the outputs; returns (bytes of logs that are missing, where the logs lie)."""
        again = another_plan_follows(self.request, state, number)
        outcome = outcome_of(state, self.request.run_id, time.monotonic() - self._begun)
        if again:
            told = "planned anew without it" if self.request.take_again is None else "going on in other slots"
            steering.tell_replanned(f"{_missing(state)} is lost: the run is {told}")
        elif not state.lost:  # else what the check of the lost hosts finds belongs to the outcome
            steering.tell_outcome(outcome)
        missing = steering.drain(DRAIN_AFTER_CTRL_C_S) if state.interrupts else steering.drain()
        host_logs = steering.log_paths()
        if not again:
            self._fetched = fetch_outputs(self.request, steering, state, self.watcher)
        if outcome.status == "succeeded":
            tell_written(self.request, steering, state)
        return missing, host_logs

    def _checked(
        self, steering: Steering, state: State, number: int, host_logs: Mapping[TaskId, str]
    ) -> EndedCluster:
        """Check the lost hosts, and say how the run ended there; if the user stops the check, no new plan follows."""
        if state.lost:
            steering.hold()
        unverified, survivors, gpus, signal = verify(self.request, state, self.connections, self.watcher)
        again = another_plan_follows(self.request, state, number)
        if signal is not None and again:
            state, again = _interrupted(state, signal), False
        ended = EndedCluster(state, number, unverified, survivors, gpus, host_logs)
        if state.lost and not again:
            steering.tell_outcome(self._outcome(ended, time.monotonic() - self._begun))
        return ended

    def _outcome(self, ended: EndedCluster, seconds: float) -> Outcome:
        outcome = outcome_of(
            ended.state,
            self.request.run_id,
            seconds,
            unverified=ended.unverified,
            survivors=ended.survivors,
            gpus=ended.gpus,
            record=str(self.record.path),
            host_logs=ended.host_logs,
        )
        return dataclasses.replace(outcome, restarts=outcome.restarts + ended.number)

    def _show_tensorboard(self, steering: Steering, state: State) -> None:
        if self.request.tensorboard is None or self._tunnel is None:
            return
        from tflaunch.runs.tensorboard import TensorBoard, host_of

        run_id, logdir = self.request.run_id, self.request.tensorboard
        steering.show(TensorBoard(run_id, host_of(state.hosts), logdir, self._tunnel, self.watcher))

    def _copy_log(self, task: TaskId, attempt: int, offset: int, data: bytes) -> None:
        """Copy a piece of a log into the record; if the disk refuses it, warn the user, and the run goes on."""
        try:
            self.record.logs.append(task, offset, data, attempt)
        except RecordError as error:
            self.watcher.warn(f"{error.message}. {error.hint}")

    def _discard_record(self) -> None:
        if self.slots is None:  # else who has made it before the slots were asked for discards it
            self.record.discard()
            self._record = None

    def _keep_in_record(self, plan: ClusterPlan, connected: Collection[str]) -> None:
        """Record this plan, and the hosts on which something of the run may be."""
        request = self.request
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
                code=request.bundle.digest if request.bundle is not None else None,
            )
        else:
            self._record.replan(plan, hostfile)
        request.on_record(self._record.path)

    def finish(self, ended: EndedCluster, seconds: float) -> int:
        """Record and report how the run ended; returns the exit code."""
        outcome = self._outcome(ended, seconds)
        recorded = not self.record.logs.failure
        try:
            self.record.finish(outcome)
        except RecordError as error:
            recorded = False
            self.watcher.warn(f"{error.message}. {error.hint}")
        self.record.close()
        outcome = final_outcome(outcome, recorded=recorded, fetched=self._fetched)
        self.watcher.report(outcome)
        return outcome.exit_code


def make_ready(
    request: Request, starter: Starter, plan: ClusterPlan, attempt: int, *, serves: bool = False
) -> Watchdog:
    """Do all that comes before the tasks start; returns their watchdog.  Raises LaunchError, Stopped.

    serves: they are servers that run no program.
    """
    spares = starter.moves.spares
    starter.end_elsewhere({task.host for task in plan.tasks}.union(spares))
    digest = None
    if request.bundle is not None:
        digest = request.bundle.digest
        hosts = {task.host for task in plan.tasks if task.cwd is None}
        hosts.update(spare for spare in spares if starter.moves.ships_to(spare))
        starter.ship(request.bundle, hosts, SHIP_TIMEOUT_S)
    images = {**plan.images, **{spare: starter.moves.images_on(spare) for spare in spares}}
    starter.prepare(images, request.job, PREPARE_TIMEOUT_S)
    checked = request.dial_check != "none" and dials.needed(plan)
    dial_key = secrets.token_hex(16) if checked else ""
    starter.stage(
        plan,
        Code(digest, _programs_to_read(request), request.job.keras_fit),
        STAGE_TIMEOUT_S,
        about=about_run(request, plan, spares),
        attempt=attempt,
        detached=request.detach,
        dial_key=dial_key,
        stacks=request.watch.get("stacks", True),
    )
    names = starter.dial(plan, dial_key, whole=request.dial_check == "all") if checked else {}
    places = {
        str(task.id): (task.host, task.address, task.port if task.listens else None) for task in plan.tasks
    }
    settings = {
        **request.watch,
        "gpus": {str(task.id): list(task.gpus) for task in plan.tasks if task.gpus},
        "serves": serves,
        "endless": request.job.done == "never",
    }
    return Watchdog(places, names, request.limits_s, settings)


def _programs_to_read(request: Request) -> dict[str, dict[str, str] | None]:
    """What `stage` says of the programs that the hosts' Python must be able to read: "" -> that of most jobs."""
    if request.bundle is None:
        return {}
    of_roles = {job: request.bundle.reading(file) for job, file in request.role_programs.items()}
    found = {"": request.bundle.to_read, **of_roles}
    return found if any(found.values()) else {}


def first_state(request: Request, plan: ClusterPlan, attempt: int = 0) -> State:
    """The state machine of a run whose tasks have not started yet."""
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


def _interrupted(state: State, signal: int) -> State:
    """The same state, as if Ctrl-C or SIGTERM had ended the run."""
    return dataclasses.replace(state, first_failure=None, interrupts=(signal,))
