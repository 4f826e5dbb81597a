"""The agents of a run until there is a plan: connect, probe, hold GPUs, ask the user; and how the run ends on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from tflaunch.hosts import Host
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.lifecycle.ending import NOT_AWAITED
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.planning.usable_hosts import asks_gpus
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError, ConnectErrors, Gone, LaunchError
from tflaunch.protocol.job import JobSpec
from tflaunch.sessions.absent_hosts import TCP_S
from tflaunch.sessions.group import NVML_LEAST_S, NVML_SHARE, Sessions, Stopped
from tflaunch.sessions.limits import few_neighbours, neighbours
from tflaunch.sessions.wires import Opener

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle

PROBE_S = 30.0


class Cluster:
    """The agents of one run; tflaunch.launch.starting and steering go on with them once there is a plan."""

    def __init__(
        self,
        run_id: str,
        opener: Opener,
        watcher: RunWatcher,
        lease_s: float,
        job: JobSpec,
        *,
        bundle: Bundle | None = None,
    ) -> None:
        """The hosts are asked for the code in `bundle` as soon as they are connected, for `Starter.ship`."""
        self._job = job
        self._bundle = bundle
        self._nvml_s = NVML_SHARE * PROBE_S
        self.run_id = run_id
        self.watcher = watcher
        self.lease_s = lease_s
        self.sessions = Sessions(opener, watcher.phase, lease_s)
        self.sessions.insists_s = TCP_S
        self.committed = False  # tasks may have been started: a start that fails now is not tried again
        self.hosts: dict[str, Host] = {}
        self.inventory: dict[str, HostFacts] = {}  # what the hosts said last
        self._lost: dict[str, ConnectError] = {}  # hosts whose agent may live on, out of reach
        self._never: set[str] = set()  # hosts that were never connected
        self.interrupts = self.sessions.interrupts

    def open(
        self,
        hosts: Collection[Host],
        ports_wanted: int,
        connect_s: float,
        lease: bool = True,
        unanswered: Callable[[Host], ConnectError | None] | None = None,
    ) -> tuple[Inventory, Mapping[str, ConnectError]]:
        """Connect to every host, boot its agent and learn its facts: one round trip after the handshake.

        With `lease`, every free GPU is leased in the same step, until `keep_gpus` or `give_back`.
        With `unanswered` (see Connector), absent hosts do not make the others fail, and are given up early.
        Returns the facts of the hosts that answered, and why each absent host is absent.
        If all hosts are absent, or a host fails for another reason, it closes all connections and raises
        ConnectErrors with every host that failed.  Raises Stopped.
        """
        there = {host.name: host for host in hosts}
        self.hosts |= there
        self.sessions.silence_s = connect_s
        self._nvml_s = max(NVML_LEAST_S, NVML_SHARE * connect_s)
        if few := few_neighbours(len(hosts), neighbours()):
            self.watcher.warn(few)
        if self._bundle is not None:
            self.sessions.early.expect("code")
        self.sessions.connect(
            hosts, "start", self.run_id, lambda host: self._first(host, ports_wanted, lease)
        )
        names = [host.name for host in hosts]
        patience_s = self.sessions.patience_s(len(names), connect_s)
        by_name = (lambda name: unanswered(there[name])) if unanswered else None
        facts, failures = self.sessions.gather("facts", names, patience_s, "connecting", by_name)
        absent = {name: error for name, error in failures.items() if unanswered and error.absent}
        self._never |= absent.keys()
        if not self.connected or len(absent) < len(failures):
            self.abandon()
            raise ConnectErrors(failures, len(names))
        found = {name: HostFacts.from_wire(name, facts[name].fields) for name in names if name in facts}
        self.inventory |= found
        return found, absent

    def _first(self, host: Host, ports_wanted: int, lease: bool) -> bytes:
        """The first questions to the agent: for the code before the facts, so that it answers that one no later."""
        asked = (
            b"" if self._bundle is None or host.workdir else wire.encode("code", digest=self._bundle.digest)
        )
        return asked + wire.encode("probe", **self._probe(host, ports_wanted, lease))

    # While the run waits for GPUs.

    def queue(self, host: str, since: float, wants: int, gpus: Collection[str], planning: bool) -> None:
        """Take a place in the queue of that host for these GPUs."""
        self.sessions.send([host], "queue", since=since, wants=wants, gpus=list(gpus), planning=planning)

    def give_back(self) -> None:
        """Give all leases back, to look again later; the run keeps its places in the queues."""
        self.sessions.send(self.sessions.by_host, "let_go")

    def keep_gpus(self, plan: ClusterPlan) -> None:
        """Keep the leases on the GPUs of this plan; give back all others, and the places in the queues.

        The hosts hear it with their next message.
        """
        gpus: dict[str, list[str]] = {}
        for task in plan.tasks:
            gpus.setdefault(task.host, []).extend(task.gpus)
        for name in self.sessions.by_host:
            self.sessions.post([name], "keep", gpus=gpus.get(name, []))

    def look(
        self, hosts: Collection[Host], ports_wanted: int, lease: Mapping[str, Collection[str]]
    ) -> tuple[dict[str, HostFacts], dict[str, ConnectError]]:
        """Ask these hosts for their facts, and lease the GPUs `lease` in the same step.

        Returns the facts, and why some hosts sent none; the connections to those are closed.  Raises Stopped.
        """
        self.sessions.early.take("code")  # which may be out of date, as time has passed
        for host in hosts:
            fields = self._probe(host, ports_wanted, list(lease.get(host.name, ())))
            self.sessions.send([host.name], "probe", **fields)
        patience_s = max(PROBE_S, self._nvml_s / NVML_SHARE)
        facts, failures = self.sessions.gather("facts", [host.name for host in hosts], patience_s)
        for name in failures.keys() & self.sessions.by_host.keys():
            self.sessions.by_host[name].close_by(time.monotonic())
        told = [host.name for host in hosts if host.name not in failures]
        for name in told:
            self._lost.pop(name, None)
            self._never.discard(name)
        found = {name: HostFacts.from_wire(name, facts[name].fields) for name in told}
        self.inventory |= found
        return found, failures

    def ask(self, question: str) -> bool | None:
        """Ask the user (` [y/N]` is added); returns whether the answer is yes, None if no user can be asked.

        Connections and leases live on meanwhile: call `give_back` first.  No answer for 60 s counts as no.
        Raises Stopped.
        """
        from tflaunch.sessions.asking import agreed

        return agreed(self.sessions, self.watcher, question)

    def _probe(self, host: Host, ports_wanted: int, lease: bool | list[str]) -> dict[str, Any]:
        return {
            "ports": host.ports,
            "count": ports_wanted,
            "lease": lease,
            "ask_gpus": asks_gpus(self._job, host),
            "within_s": self._nvml_s,
        }

    @property
    def connected(self) -> Collection[str]:
        """The hosts to which there is a connection."""
        return self.sessions.by_host.keys() - self.sessions.ended.keys()

    @property
    def ended(self) -> Mapping[str, ConnectError]:
        """The hosts whose connection has ended, each with why."""
        return self.sessions.ended

    def redial(self, host: Host) -> None:
        """Begin to connect again to a host in `ended`; it will be in `connected`, or in `ended` again."""
        if host.name not in self._never:
            self._lost[host.name] = self.sessions.ended[host.name]
        if session := self.sessions.by_host.pop(host.name, None):
            session.close()
        self.sessions.connect([host], "start", self.run_id, lambda _: b"")

    def do_without(self, host: str) -> None:
        """Dial that host no more, and ignore what it may still say."""
        if session := self.sessions.by_host.pop(host, None):
            session.close()
        self.sessions.ignore(host)

    # How the run ends on all hosts.

    def refuse(self, failures: Mapping[str, ConnectError]) -> None:
        """If there are failures, end the run on every host and raise LaunchError."""
        if failures:
            unconfirmed = {host: why for host, why in self.abandon().items() if host not in failures}
            reasons = {name: error.message for name, error in failures.items()}
            hints = sorted({error.hint for error in failures.values() if error.hint})
            again = not self.committed and all(error.again for error in failures.values())
            reclaimed = any(isinstance(error, Gone) for error in failures.values())
            raise LaunchError(reasons, "; ".join(hints), unconfirmed, again=again, reclaimed=reclaimed)

    def abandon(self, timeout_s: float = 10.0) -> dict[str, str]:
        """End the run on every host now, and close; returns the hosts that did not confirm it, each with why."""
        names = list(self.sessions.by_host)
        self.sessions.send(names, "end", grace_s=0.0)
        try:
            _, failures = self.sessions.gather("swept", names, timeout_s)
        except Stopped:
            failures = {name: ConnectError(NOT_AWAITED) for name in names}
        self.close()
        return {name: error.message for name, error in {**self._lost, **failures}.items()}

    def close(self) -> None:
        """Say bye to every agent, and close the connections."""
        self.sessions.close()
