"""From what the hosts have now to a plan whose GPUs are held, at once or when this run's turn comes.

A run takes its GPUs on all hosts in one parallel round; if it does not get all that the plan names, it first gives
back what it got.  So no run waits for a GPU while it holds another, and no two runs can block each other.
To take the hosts one after the other in a fixed order would do as well, but would cost a round trip for each host.

A run that cannot start queues: its agents hold a ticket on every host (tflaunch.agent.gpus.tickets), and runs that
come later do not take the GPUs that it could use.  With --wait the run queues until its turn comes.  Without
--wait it queues only while other runs are planning: of the runs that plan at the same time, the one that came
first (by the clocks of the hosts) takes its GPUs, and the others soon see what is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.consent import Consent
from tflaunch.launch.run_watcher import RunWatcher, Turn
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import GpuChoice, choose
from tflaunch.planning.gpu_limits import GpuLimit, at_limits, within, within_hosts
from tflaunch.planning.inventory import Inventory, in_use, when_free
from tflaunch.planning.plan import plan_cluster, usable_gpus
from tflaunch.planning.taking import Share
from tflaunch.protocol.errors import Breach, ConnectErrors, PlanError
from tflaunch.protocol.job import WORKER, JobSpec
from tflaunch.sessions.group import RETRY_S
from tflaunch.text.times import clock_time, duration

RACE_S = 30.0  # how long a run without --wait lets other runs plan first
# Between two looks: the first pause, the longest while other runs plan, the longest with --wait.
PAUSES_S = (0.2, 1.0, 3.0)
SHOW_S = 1.0  # a shorter wait is not shown


@dataclass(frozen=True)
class Planner:
    """Makes the plan of one run from what its hosts have."""

    job: JobSpec
    hostfile: Hostfile
    gpus: GpuChoice
    addresses: Mapping[str, str]
    run_id: str
    limit: GpuLimit | None = None  # over all hosts

    def seen(self, inventory: Inventory) -> Inventory:
        """The facts, with only the GPUs that this run may take."""
        return choose(inventory, self.gpus, self.hostfile)

    def plan(self, inventory: Inventory) -> ClusterPlan:
        """The plan; raises PlanError, whose hint names --wait where that would help."""
        try:
            return self._plan(inventory)
        except PlanError as error:
            try:
                self._plan(when_free(inventory))
            except PlanError:
                raise error from None
            raise PlanError(
                error.message, f"{error.hint} Or queue for the GPUs: --wait, --wait 2h."
            ) from None

    def plan_when_free(self, inventory: Inventory) -> ClusterPlan:
        """The plan if all GPUs were free; raises PlanError."""
        try:
            return self._plan(when_free(inventory))
        except PlanError as error:
            raise PlanError(f"with every GPU free: {error.message}", error.hint) from None

    def claims(self, inventory: Inventory) -> dict[str, tuple[str, ...]]:
        """All GPUs that the run could use if they were free, by host."""
        return usable_gpus(self.job, self.hostfile, self.seen(when_free(inventory)))

    def shares(self, plan: ClusterPlan) -> list[Share]:
        """What that plan takes of the hosts."""
        return [Share(task.host, task.id.job, task.gpus) for task in plan.tasks]

    def _plan(self, inventory: Inventory) -> ClusterPlan:
        seen = within_hosts(self.seen(inventory), self.hostfile)
        return within(
            self.limit,
            self.job,
            seen,
            lambda job: plan_cluster(job, self.hostfile, seen, self.addresses, self.run_id),
        )


class Acquisition:
    """Takes the GPUs of one run."""

    def __init__(
        self,
        planner: Planner,
        cluster: Cluster,
        watcher: RunWatcher,
        *,
        ports_wanted: int,
        wait_s: float | None,
        absent: Collection[str] = (),
        consent: Consent,
    ) -> None:
        """`wait_s` is how long the run may queue; None: it does not wait for GPUs that are in use.

        `absent` hosts were never reached; a run that waits dials them again.
        """
        self._consent = consent
        self._planner = planner
        self._cluster = cluster
        self._watcher = watcher
        self._ports_wanted = ports_wanted
        self._patient = wait_s is not None
        self._wait_s = RACE_S if wait_s is None else wait_s
        self._absent = set(absent)
        self._hosts: dict[str, Host] = {}
        self._counted = planner.job.role(WORKER).count is not None
        self._claims: Mapping[str, tuple[str, ...]] = {}
        self._needed = 0
        self._since = 0.0
        self._queued: set[str] = set()  # hosts that keep a ticket of this run
        self._tries: dict[str, int] = {}  # lost host -> how often it was dialled again
        self._retry_at: dict[str, float] = {}
        self._warned: set[str] = set()

    def plan(self, inventory: Inventory) -> ClusterPlan:
        """Return a plan whose GPUs are held; the agents leased every free GPU when they sent `inventory`.

        If the user gave no number of workers, the user is asked before the run takes much.  A run that has to queue
        asks before it queues, about the most that it may take.  Raises PlanError, which says how long the run has
        waited; UsageError when the user does not agree; ConnectErrors, for a run that does not wait; Stopped.
        """
        dialled = {*inventory, *(self._absent if self._patient else ())}
        self._hosts = {host.name: host for host in self._planner.hostfile.hosts if host.name in dialled}
        while True:
            plan, inventory = self._acquire(inventory)
            wanted = self._consent.lacking(self._planner.shares(plan), inventory)
            if wanted is None:
                break
            self._cluster.give_back()
            self._consent.ask(self._cluster, wanted)
            inventory = self._look({host: list(gpus) for host, gpus in self._claims.items()})
        for name in self._hosts.keys() - inventory.keys() - self._absent:
            self._watcher.warn(f"{name} is lost: the run begins without it")
            self._cluster.do_without(name)
        self._cluster.keep_gpus(plan)
        return plan

    def _acquire(self, inventory: Inventory) -> tuple[ClusterPlan, Inventory]:
        """Return a plan whose GPUs are held, and the facts that it was made from."""
        self._claims = self._planner.claims(inventory)
        try:
            plan = self._planner.plan(inventory)
            settled = self._settled(inventory)
        except PlanError:
            if not self._patient and not self._contended(inventory):
                raise
            settled = False
        if not settled:
            when_free = self._planner.plan_when_free(inventory)
            if self._patient:  # when its turn comes, the user may not be here
                shares = self._planner.shares(when_free)
                if wanted := self._consent.lacking(shares, inventory):
                    self._cluster.give_back()
                    self._consent.ask(self._cluster, wanted, "up to ", " once they are free")
                self._consent.agree_for_later(shares, inventory)
            tasks = when_free.tasks
            workers = [len(task.gpus) for task in tasks if task.id.job == WORKER]
            others = sum(len(task.gpus) for task in tasks if task.id.job != WORKER)
            # Without a number of workers, the run starts with the first worker that fits.
            self._needed = max(1, others + (sum(workers) if self._counted else max(workers, default=0)))
            # By the clock of a host: a run must not get ahead because the clock of its launcher is slow.
            self._since = self._since or max(facts.clock for facts in inventory.values())
            return self._wait()
        return plan, inventory

    def _contended(self, inventory: Inventory) -> bool:
        """Whether a GPU that this run could take is held by, or promised to, another run that is only planning."""
        return any(
            claim is not None and claim.planning and claim.run != self._planner.run_id
            for host, facts in inventory.items()
            for device in facts.gpus_or_instances
            if device.uuid in self._claims.get(host, ())
            for claim in (device.lease, None if in_use(device) else device.promised)
        )

    def _settled(self, inventory: Inventory) -> bool:
        """Whether a plan that fits may be carried out.

        Without a number of workers, a run takes all GPUs that are free.  While other runs hold GPUs only to plan,
        these are too few.
        """
        return self._counted or not self._contended(inventory)

    def _wait(self) -> tuple[ClusterPlan, Inventory]:
        begun = time.monotonic()
        shown = False
        longest_s = PAUSES_S[2 if self._patient else 1]
        pause_s = PAUSES_S[0]
        self._cluster.give_back()
        while True:
            inventory = self._look({})
            try:
                plan = self._planner.plan(inventory)
                if self._settled(inventory) and (taken := self._take(plan)):
                    break
                refusal = PlanError("other runs plan with the same GPUs", "Try again.")
            except PlanError as error:
                if not self._patient and not self._contended(inventory):
                    raise
                refusal = error
            waited_s = time.monotonic() - begun
            turn = self._turn(inventory, refusal)
            if waited_s >= self._wait_s:
                hint = "Wait longer, or for ever: --wait alone." if self._patient else refusal.hint
                raise PlanError(f"{refusal.message}; waited {duration(waited_s)}: {turn}", hint)
            if self._patient or waited_s > SHOW_S:
                shown = True
                self._watcher.waiting(turn)
            # A random pause, so that runs that looked at the same moment do not do so again.
            next_s = pause_s * random.uniform(0.7, 1.3)  # noqa: S311
            self._cluster.sessions.pause(min(next_s, self._wait_s - waited_s))
            pause_s = min(longest_s, 1.5 * pause_s)
        for name in self._absent & (self._hosts.keys() - taken.keys()):
            self._watcher.warn(f"{name} cannot be reached: the run begins without it")
            self._cluster.do_without(name)
        if shown:
            self._watcher.phase("waiting", self._needed, self._needed)
        return plan, taken

    def _take(self, plan: ClusterPlan) -> Inventory:
        """Lease the GPUs of that plan; returns the facts, or {} when another run has taken one of the GPUs."""
        gpus: dict[str, list[str]] = {}
        for task in plan.tasks:
            gpus.setdefault(task.host, []).extend(task.gpus)
        inventory = self._look(gpus)
        try:
            if self._planner.plan(inventory).tasks == plan.tasks:
                return inventory
        except PlanError:
            pass  # another run was quicker
        self._cluster.give_back()
        return {}

    def _look(self, lease: Mapping[str, list[str]]) -> Inventory:
        """Get the facts of the connected hosts and lease the GPUs `lease`; dial other hosts in the background."""
        self._dial_again()
        hosts = [host for name, host in self._hosts.items() if name in self._cluster.connected]
        for host in hosts:
            gpus = self._claims.get(host.name)
            if gpus and host.name not in self._queued:
                self._cluster.queue(host.name, self._since, self._needed, gpus, not self._patient)
                self._queued.add(host.name)
        inventory, failures = self._cluster.look(hosts, self._ports_wanted, lease)
        if failures and not self._patient:
            raise ConnectErrors(failures, len(self._hosts))
        for name, facts in inventory.items():
            if self._tries.pop(name, 0):
                self._watcher.note(f"{name} {'can be reached' if name in self._absent else 'is back'}")
                self._absent.discard(name)
            if facts.queue_error and name not in self._warned:
                self._warned.add(name)
                self._watcher.warn(
                    f"{name}: this run could not join the queue for its GPUs: {facts.queue_error}"
                )
        return inventory

    def _dial_again(self) -> None:
        first, most = RETRY_S
        now = time.monotonic()
        for name, error in dict(self._cluster.ended).items():
            if name not in self._hosts:  # the run does without that host
                continue
            if not self._patient:
                raise ConnectErrors({name: error}, len(self._hosts))
            if isinstance(error, Breach) and name in self._tries:
                continue  # the user was warned
            if name not in self._retry_at:
                tries = self._tries[name] = self._tries.get(name, 0) + 1
                if tries == 1:
                    gone = self._gone(name)
                    self._watcher.warn(
                        f"{name} {gone}: {error.message}; dialling it again while this run waits"
                    )
                self._queued.discard(name)
                self._retry_at[name] = now + min(most, first * 2 ** (tries - 1))
            elif self._retry_at[name] <= now:
                del self._retry_at[name]
                self._cluster.redial(self._hosts[name])

    def _gone(self, name: str) -> str:
        return "cannot be reached" if name in self._absent else "is lost"

    def _turn(self, inventory: Inventory, refusal: PlanError) -> Turn:
        ahead: dict[tuple[float, str], str] = {}
        free = 0
        held: dict[str, dict[str, list[str]]] = {}  # what keeps the run from GPUs -> host -> GPUs
        for host, facts in self._planner.seen(inventory).items():
            claim = self._claims.get(host, ())
            for ticket in facts.queue:
                if not set(ticket.uuids).isdisjoint(claim):
                    ahead[ticket.since, ticket.run] = ticket.holder
            for device in facts.gpus_or_instances:
                if device.uuid not in claim:
                    continue
                free += not device.busy
                if device.busy and in_use(device):
                    why = device.busy
                    if device.lease:
                        why = f"{device.lease.holder} since {clock_time(device.lease.since)}"
                    held.setdefault(why, {}).setdefault(host, []).append(device.label)
        return Turn(
            place=len(ahead) + 1,
            behind=tuple(ahead[place] for place in sorted(ahead)),
            free=free,
            needed=self._needed,
            held=(
                *at_limits(self._planner.limit, inventory),
                *(
                    (" ".join(f"{host}:{','.join(labels)}" for host, labels in gpus.items()), why)
                    for why, gpus in held.items()
                ),
            ),
            lost=tuple(sorted(self._hosts.keys() - inventory.keys())),
            why=refusal.message if free >= self._needed else "",
        )
