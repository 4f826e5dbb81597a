"""Which hosts of a run are there, and whether it goes on without the others.

A host is absent when no TCP connection to its sshd comes about (`ConnectError.absent`).  Where what was asked for fits
on the hosts that are there, the run goes on without it; but a number of workers that nobody gave is never made smaller
unasked, for that changes the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from tflaunch.hosts import Host, Hostfile, fold
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_supply import plural
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.planning.usable_hosts import fewer_workers
from tflaunch.protocol.errors import ConnectError, ConnectErrors, PlanError, TflaunchError
from tflaunch.protocol.job import PS, WORKER, JobSpec

if TYPE_CHECKING:
    from tflaunch.launch.acquisition import Planner
    from tflaunch.launch.cluster import Cluster
    from tflaunch.launch.consent import Consent


class Connections(Protocol):
    """`tflaunch.remote.Connector`, as far as it is needed here."""

    def unanswered(self, host: Host) -> ConnectError | None: ...
    def host_key(self, host: Host) -> str: ...


class Reporter(Protocol):
    """`tflaunch.console.reporter.Reporter`, as far as it is needed here."""

    def phase(self, name: str, done: int, total: int) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclasses.dataclass
class RollCall:
    """The hosts of one run as they answer."""

    cluster: Cluster
    connections: Connections
    reporter: Reporter
    hostfile: Hostfile
    connect_s: float
    ports_wanted: int
    lease: bool = True  # their cards; else nothing is started
    require_all: bool = False
    inventory: dict[str, HostFacts] = dataclasses.field(default_factory=dict)
    absent: dict[str, ConnectError] = dataclasses.field(default_factory=dict)
    _why: str = ""  # the job does not fit without them

    def call(self, hosts: Collection[Host], spares: Collection[Host] = ()) -> None:
        """Connect to these hosts, too, and learn what they have; `spares` are called when none of them is there.

        Raises ConnectErrors when one fails and is not just absent, or none is there; PlanError for a machine that is
        there twice; Stopped.
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
        self.absent |= absent
        refuse_one_machine_twice(self.hostfile, self.inventory, self.connections)

    def settle(
        self, planner: Planner, consent: Consent, *, spares: Collection[Host], waits: bool, agreed: bool
    ) -> None:
        """Go on without the hosts that are absent, and say so, or raise ConnectErrors.

        The question whether it shall is also that for `consent`: one is enough.

        Where the job does not fit without them, `spares` are called to take their place.  `waits`: a run that waits
        for cards in use dials absent hosts again meanwhile.  `agreed`: to fewer workers than there might have been.
        Raises Stopped.
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
                so = self._so(planner, plan, consent, fits)
                self.reporter.warn(
                    f"{without}: this would be asked first (--yes agrees): go on without, {so}?"
                )
                consent.agree(planner.shares(plan), self.inventory)
                return
        if fits:
            self.tell()

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
        """The planner for a run that has lost hosts: for as many tasks as before, or for fewer if that is agreed to.

        `planner` is for as many, `job` is what was asked for; the rest as of `settle`.  Raises PlanError, Stopped.
        """
        if job.role(WORKER).count is not None or self._plan(planner, waits)[1] is not None:
            return planner
        fewer = dataclasses.replace(planner, job=job)
        plan = fewer.plan(self.inventory)
        if not agreed:
            gone = f"{fold(lost)} {'is' if len(lost) == 1 else 'are'} lost"
            self._agree(
                fewer, plan, gone, lambda hint: PlanError(self._why, hint), consent=consent, fits=True
            )
        return fewer

    def _call_spares(self, spares: Collection[Host]) -> None:
        names = fold(host.name for host in spares)
        self.reporter.warn(f"{described(self.absent)}: calling {names} of --spares")
        self.call(spares)

    def tell(self) -> None:
        """Say which hosts it goes on without."""
        self._all_connected()
        for names, cause in _by_cause(self.absent):
            them = "it" if len(names) == 1 else "them"
            self.reporter.warn(f"{fold(names)} cannot be reached ({cause}): going on without {them}")

    def _all_connected(self) -> None:
        """End that step: nobody waits for the others any more."""
        self.reporter.phase("connecting", len(self.inventory), len(self.inventory))

    def refusal(self, hint: str) -> ConnectErrors:
        """The error for a run that does not go on without the hosts that are absent."""
        return ConnectErrors(self.absent, len(self.inventory) + len(self.absent), hint)

    def _plan(self, planner: Planner, waits: bool) -> tuple[bool, ClusterPlan | None]:
        """(whether the job fits now, the plan for now or for when the cards are free; None: it never fits)."""
        try:
            return True, planner.plan(self.inventory)
        except PlanError as error:
            self._why = error.message
            if self.absent:
                self._why = f"without {fold(self.absent)}: {error.message}. {error.hint}".rstrip()
        if waits or _somebody_plans(self.inventory):  # whoever takes the cards tells how it stands with them
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
        """Ask whether there may be fewer workers, while no card is held; raises what `refused` makes of a hint."""
        self._all_connected()
        while True:
            count = _workers(plan)
            so = self._so(planner, plan, consent, fits)
            more = consent.lacking(planner.shares(plan), self.inventory) is not None
            self.cluster.let_go()
            if not self.cluster.ask(f"{why}: go on without, {so}?"):
                ways = [
                    f"--workers {count}",
                    *([f"--exclude {fold(self.absent)}"] if self.absent and not more else []),
                    "--yes",
                ]
                raise refused(
                    f"how many workers there are was not said, and fewer are another batch; to go on {so}: "
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

    def _so(self, planner: Planner, plan: ClusterPlan, consent: Consent, fits: bool) -> str:
        """What the question says of that plan."""
        wanted = consent.lacking(planner.shares(plan), self.inventory)
        hosts = fold(dict.fromkeys(task.host for task in plan.tasks))
        what = wanted or f"{plural(_workers(plan), 'worker')} on {hosts}"
        return f"with {what}" if fits else f"with up to {what} once they are free"


def described(absent: Mapping[str, ConnectError]) -> str:
    """`gpu03 cannot be reached (no answer on port 22 for 5 s)`."""
    return "; ".join(f"{fold(names)} cannot be reached ({cause})" for names, cause in _by_cause(absent))


def as_counted(job: JobSpec, plan: ClusterPlan) -> JobSpec:
    """The job with as many workers and ps as the plan has, where nobody has said how many."""
    roles = {
        name: dataclasses.replace(job.role(name), count=sum(task.id.job == name for task in plan.tasks))
        for name in (PS, WORKER)
        if job.role(name).count is None
    }
    return dataclasses.replace(job, roles={**job.roles, **roles})


def refuse_one_machine_twice(hostfile: Hostfile, inventory: Inventory, connections: Connections) -> None:
    """Two names that lead to one sshd would share its cards and ports while the plan counts them twice."""
    seen: dict[tuple[str, str], Host] = {}
    for host in hostfile.hosts:
        if host.name not in inventory:
            continue
        facts, key, alike = inventory[host.name], connections.host_key(host), "same host key, same boot"
        if not key and host.connection == "openssh":  # through a master's connection: nobody was shown a key
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


def _somebody_plans(inventory: Inventory) -> bool:
    """Whether a card is held, or promised, for the moment only."""
    return any(
        claim is not None and claim.planning
        for facts in inventory.values()
        for device in facts.devices
        for claim in (device.lease, device.promised)
    )
