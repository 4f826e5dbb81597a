"""Which hosts of a run are up, and whether the run goes on without the others.

A host is absent when no TCP connection to its sshd can be made (`ConnectError.absent`).  Where the job fits on
the hosts that are up, the run goes on without the absent ones.  But if the user gave no number of workers, the
user is asked before the run has fewer, because fewer workers change the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from tflaunch.hosts import Host, Hostfile, fold
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.planning.usable_hosts import fewer_workers
from tflaunch.protocol.errors import ConnectError, ConnectErrors, PlanError, TflaunchError
from tflaunch.protocol.job import PS, WORKER, JobSpec
from tflaunch.sessions.watcher import Watcher
from tflaunch.survey.known_models import remember_models
from tflaunch.text.numbers import agreeing, counted

if TYPE_CHECKING:
    from tflaunch.launch.acquisition import Planner
    from tflaunch.launch.cluster import Cluster
    from tflaunch.launch.consent import Consent


class RollCallConnections(Protocol):
    """What a roll call asks about connections: `tflaunch.remote.Connector`."""

    def unanswered(self, host: Host) -> ConnectError | None: ...
    def host_key(self, host: Host) -> str: ...


@dataclasses.dataclass
class RollCall:
    """The hosts of one run: the facts of those that answer, and which are absent."""

    cluster: Cluster
    connections: RollCallConnections
    watcher: Watcher
    hostfile: Hostfile
    connect_s: float
    ports_wanted: int
    lease: bool = True  # lease the GPUs; False: a dry run
    require_all: bool = False
    inventory: dict[str, HostFacts] = dataclasses.field(default_factory=dict)
    absent: dict[str, ConnectError] = dataclasses.field(default_factory=dict)
    _why: str = ""  # why the job does not fit without the absent hosts

    def call(self, hosts: Collection[Host], spares: Collection[Host] = ()) -> None:
        """Connect to these hosts, too, and learn their facts; if all are absent, connect to `spares`.

        Raises ConnectErrors when a host fails and is not just absent, or all are absent; PlanError for a machine that
        is listed twice; Stopped.
        """
        unanswered = None if self.require_all else self.connections.unanswered
        try:
            inventory, absent = self.cluster.open(
                hosts, self.ports_wanted, self.connect_s, self.lease, unanswered
            )
        except ConnectErrors as error:
            if self.require_all or not spares or not all(each.absent for each in error.failures.values()):
                raise
            self.absent |= error.failures
            self._call_spares(spares)
            return
        self.inventory |= inventory
        remember_models(gpu.name for facts in inventory.values() for gpu in facts.gpus)
        self.absent |= absent
        refuse_one_machine_twice(self.hostfile, self.inventory, self.connections)

    def settle(
        self, planner: Planner, consent: Consent, *, spares: Collection[Host], waits: bool, agreed: bool
    ) -> None:
        """Go on without the absent hosts and warn the user, or raise ConnectErrors.

        Where the job does not fit without them, `spares` are called to take their place.  The user is asked before
        there are fewer workers, unless `agreed`; the answer counts for `consent`, too.  With `waits`, the run will
        wait for GPUs in use, and dial absent hosts again meanwhile.  Raises Stopped.
        """
        if not self.absent:
            return
        fits, plan = self._plan(planner, waits)
        more = [host for host in spares if host.name not in {**self.inventory, **self.absent}]
        if plan is None and more:
            self._call_spares(more)
            fits, plan = self._plan(planner, waits)
        if plan is None:
            raise self.refusal(self._why)
        if not agreed and fewer_workers(planner.job, planner.hostfile, planner.gpus, self.absent, plan):
            without = described(self.absent)
            if self.lease:
                self._agree(planner, plan, without, self.refusal, consent=consent, fits=fits)
            else:
                self._all_connected()
                so = self._in_words(planner, plan, consent, fits)
                self.watcher.warn(
                    f"{without}: a run would ask first (--yes answers yes): go on without, {so}?"
                )
                consent.agree(planner.shares(plan), self.inventory)
                return
        if fits:
            self.warn_of_absent()

    def settle_again(
        self,
        planner: Planner,
        job: JobSpec,
        lost: Collection[str],
        consent: Consent,
        *,
        waits: bool,
        agreed: bool,
    ) -> Planner:
        """Return the planner for a run that lost hosts: with as many tasks as before, or fewer if the user agrees.

        `planner` plans as many as before; `job` is what the user asked for; the rest is as for `settle`.
        Raises PlanError, Stopped.
        """
        if job.role(WORKER).count is not None or self._plan(planner, waits)[1] is not None:
            return planner
        fewer = dataclasses.replace(planner, job=job)
        plan = fewer.plan(self.inventory)
        if not agreed:
            gone = f"{fold(lost)} {agreeing(len(lost), 'is', 'are')} lost"
            self._agree(
                fewer, plan, gone, lambda hint: PlanError(self._why, hint), consent=consent, fits=True
            )
        return fewer

    def _call_spares(self, spares: Collection[Host]) -> None:
        names = fold(host.name for host in spares)
        self.watcher.warn(f"{described(self.absent)}: calling {names} of --spares")
        self.call(spares)

    def warn_of_absent(self) -> None:
        """Warn the user of the hosts that the run goes on without."""
        self._all_connected()
        for names, cause in _by_cause(self.absent):
            them = agreeing(len(names), "it", "them")
            self.watcher.warn(f"{fold(names)} cannot be reached ({cause}): going on without {them}")

    def _all_connected(self) -> None:
        """Show that the launcher waits for no other host."""
        self.watcher.phase("connecting", len(self.inventory), len(self.inventory))

    def refusal(self, hint: str) -> ConnectErrors:
        """The error for a run that does not go on without the absent hosts."""
        return ConnectErrors(self.absent, len(self.inventory) + len(self.absent), hint)

    def _plan(self, planner: Planner, waits: bool) -> tuple[bool, ClusterPlan | None]:
        """(whether the job fits now, the plan for now or for when the GPUs are free; None: it never fits)."""
        try:
            return True, planner.plan(self.inventory)
        except PlanError as error:
            self._why = error.message
            if self.absent:
                self._why = f"without {fold(self.absent)}: {error.message}. {error.hint}".rstrip()
        if waits or _others_plan(self.inventory):  # then Acquisition says what keeps the GPUs
            try:
                return False, planner.plan_when_free(self.inventory)
            except PlanError:
                pass
        return False, None

    def _agree(
        self,
        planner: Planner,
        plan: ClusterPlan,
        why: str,
        refused: Callable[[str], TflaunchError],
        *,
        consent: Consent,
        fits: bool,
    ) -> None:
        """Ask whether there may be fewer workers, while no GPU is held; if not, raises `refused(hint)`."""
        self._all_connected()
        while True:
            count = _workers(plan)
            so = self._in_words(planner, plan, consent, fits)
            more = consent.lacking(planner.shares(plan), self.inventory) is not None
            self.cluster.give_back()
            if not self.cluster.ask(f"{why}: go on without, {so}?"):
                ways = [
                    f"--workers {count}",
                    *([f"--exclude {fold(self.absent)}"] if self.absent and not more else []),
                    "--yes",
                ]
                raise refused(
                    f"the number of workers was not given, and fewer train on another global batch; to go on {so}: "
                    f"{', '.join(ways[:-1])} or {ways[-1]}"
                )
            consent.agree(planner.shares(plan), self.inventory)
            hosts = [host for host in self.hostfile.hosts if host.name in self.inventory]
            inventory, failures = self.cluster.look(hosts, self.ports_wanted, planner.claims(self.inventory))
            if failures:
                raise ConnectErrors(failures, len(hosts))
            self.inventory = dict(inventory)
            fits, now = self._plan(planner, waits=True)
            if now is None:
                raise refused(self._why)
            if _workers(now) >= count:
                return
            plan = now

    def _in_words(self, planner: Planner, plan: ClusterPlan, consent: Consent, fits: bool) -> str:
        """The plan in the words of the question to the user."""
        wanted = consent.lacking(planner.shares(plan), self.inventory)
        hosts = fold(dict.fromkeys(task.host for task in plan.tasks))
        what = wanted or f"{counted(_workers(plan), 'worker')} on {hosts}"
        return f"with {what}" if fits else f"with up to {what} once they are free"


def described(absent: Mapping[str, ConnectError]) -> str:
    """`gpu03 cannot be reached (no answer on port 22 for 5 s)`."""
    return "; ".join(f"{fold(names)} cannot be reached ({cause})" for names, cause in _by_cause(absent))


def as_counted(job: JobSpec, plan: ClusterPlan) -> JobSpec:
    """The job with as many workers and ps as the plan has, where the user gave no number."""
    roles = {
        name: dataclasses.replace(job.role(name), count=sum(task.id.job == name for task in plan.tasks))
        for name in (PS, WORKER)
        if job.role(name).count is None
    }
    return dataclasses.replace(job, roles={**job.roles, **roles})


def refuse_one_machine_twice(
    hostfile: Hostfile, inventory: Inventory, connections: RollCallConnections
) -> None:
    """Raise PlanError where two names lead to one sshd: the plan would count its GPUs and ports twice."""
    seen: dict[tuple[str, str], Host] = {}
    for host in hostfile.hosts:
        if host.name not in inventory:
            continue
        facts, key, alike = inventory[host.name], connections.host_key(host), "same host key, same boot"
        if not key and host.connection == "openssh":  # over a master connection, which shows no host key
            key, alike = facts.hostname, "same name of its own, same boot"
        if not key or not facts.boot_id:
            continue
        first = seen.setdefault((key, facts.boot_id), host)
        if first is not host:
            raise PlanError(
                f"{hostfile.source}: {first.name} and {host.name} are one machine ({facts.hostname}: {alike})",
                "list it once; several workers on it are --workers N or slots:",
            )


def _by_cause(absent: Mapping[str, ConnectError]) -> list[tuple[list[str], str]]:
    causes: dict[str, list[str]] = {}
    for name, error in absent.items():
        causes.setdefault(error.message, []).append(name)
    return [(names, cause) for cause, names in causes.items()]


def _workers(plan: ClusterPlan) -> int:
    return sum(task.id.job == WORKER for task in plan.tasks)


def _others_plan(inventory: Inventory) -> bool:
    """Whether a GPU is held by, or promised to, a run that is only planning."""
    return any(
        claim is not None and claim.planning
        for facts in inventory.values()
        for device in facts.gpus_or_instances
        for claim in (device.lease, device.promised)
    )
