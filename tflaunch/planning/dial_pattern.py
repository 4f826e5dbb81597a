"""Which hosts dial which others before the tasks of a plan start; pure.

Up to ALL_WAYS connections every host dials every task that one of its own may call.  Where there are more, of each
other host it dials only what can tell something new:

- Of the ports there, the lowest and the highest that its tasks may call: a rule of a firewall opens a range, and one
  that leaves out any port leaves out one of these.  Each port between them is dialled by one host.
- Up to ALL_HOSTS hosts, each dials all others.
- Of more hosts, each dials those that its tasks surely call: all dial the host of the chief or else of the first task,
  and are dialled from there; hosts with ps and the others dial each other; so do the neighbours of the ring that the
  tasks make in their order.  Beyond that `sparse` says who dials whom: rules that block many ways block groups of
  hosts with neighbouring addresses (a rack, a subnet), and no such group is missed.

A single way that is blocked may be missed, as may one between a few hosts.  `Ways.beside` has all the ways of hosts
with which something is wrong, so that what is told of them is complete.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence

from tflaunch.inputs.hostnames import natural
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.job import PS, deciding

ALL_WAYS = 1024  # connections: some 0.3 s of CPU, both ends together
ALL_HOSTS = 32
# Up to so many hosts (q, g): any 2q-1 hosts in a row dial any g others in a row.  What must not be missed are racks and
# subnets, of 8 to 40 hosts.  A host makes N / (q x g) + 2 dials, so larger clusters have larger groups: 9 at 128, 7 at
# 256, 21 at 1,024, 39 at 2,048, 20 at 4,096.
PATTERNS = ((128, 4, 5), (2048, 8, 7))
LARGEST = 16, 15


def pattern_for(count: int) -> tuple[int, int]:
    """The q and g of `sparse` for so many hosts."""
    return next(((q, g) for most, q, g in PATTERNS if count <= most), LARGEST)


def sparse(count: int, q: int, g: int) -> list[set[int]]:
    """For each of `count` hosts in a row, the hosts that it dials.

    Each dials its neighbours (the last and the first are neighbours, too), and host i for all k the host
    (i - i % q) + (i % q) * g + q * g * k, modulo `count`.  So any q hosts from a multiple of q on together dial every
    g-th host, and every 2q-1 hosts in a row, which contain such q, dial all groups of g others in a row.  q and g have
    no common divisor: then every host is dialled by about as many as others.
    """
    dialled = []
    for number in range(count):
        first = number - number % q + number % q * g
        targets = {(first + step) % count for step in range(0, count, q * g)}
        dialled.append((targets | {(number - 1) % count, (number + 1) % count}) - {number})
    return dialled


class Ways:
    """The ways between the hosts of a plan that their tasks may use: who may call whom.

    Training needs both ways: a worker asks its ps for variables, and the ps fetches the gradients from the worker;
    workers open sessions that span each other.  Only ps do not call each other.  A task outside the cluster, such as an
    evaluator, neither calls nor is called.  A host's own address is among those that it may call, where its tasks call
    each other: one that belongs to a router may lead everywhere but back.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self._members = [task for task in plan.tasks if task.port is not None]
        self._of: dict[str, list[TaskPlan]] = {}
        for task in self._members:
            self._of.setdefault(task.host, []).append(task)
        self.hosts = list(self._of)
        self._ps = {host for host, tasks in self._of.items() if all(task.id.job == PS for task in tasks)}
        self._turn = {host: number for number, host in enumerate(self.hosts)}

    def called(self, source: str, to: str) -> list[TaskPlan]:
        """The tasks on `to` that those on `source` may call."""
        tasks = self._of[to]
        if source == to:
            return [task for task in tasks if any(_may_call(each, task) for each in tasks)]
        return [task for task in tasks if task.id.job != PS] if source in self._ps else tasks

    def all(self) -> dict[str, list[TaskPlan]]:
        """For each host all tasks that its own may call."""
        return self._wanted(
            {source: {to: self.called(source, to) for to in self.hosts} for source in self.hosts}
        )

    def first(self) -> dict[str, list[TaskPlan]]:
        """For each host the tasks that it dials first."""
        if len(self.hosts) * len(self._members) <= ALL_WAYS:
            return self.all()
        found: dict[str, dict[str, list[TaskPlan]]] = {host: {} for host in self.hosts}
        callers: dict[str, list[str]] = {host: [] for host in self.hosts}
        for source, targets in self._pairs().items():
            for to in targets:
                tasks = sorted(self.called(source, to), key=_port)
                found[source][to] = tasks[:1] + tasks[1:][-1:]
                if to != source:
                    callers[to].append(source)
        for to, sources in callers.items():
            between = sorted(self._of[to], key=_port)[1:-1]
            for number, task in enumerate(between):
                able = [each for each in sources if task.id.job != PS or each not in self._ps]
                if able and task not in (more := found[able[number % len(able)]][to]):
                    more.append(task)
        return self._wanted(found)

    def beside(
        self, hosts: Collection[str], dialled: Mapping[str, Collection[TaskPlan]]
    ) -> dict[str, list[TaskPlan]]:
        """All ways from and to these hosts, but for those that are `dialled` already."""
        found: dict[str, dict[str, list[TaskPlan]]] = {}
        for source in self.hosts:
            known = {task.id for task in dialled.get(source, ())}
            found[source] = {
                to: [task for task in self.called(source, to) if task.id not in known]
                for to in (self.hosts if source in hosts else hosts)
            }
        return self._wanted(found)

    def share(self, dialled: Mapping[str, Iterable[TaskPlan]]) -> float:
        """How much of all ways between two hosts is `dialled`: 1.0, or less."""
        count, only_ps = len(self.hosts), len(self._ps)
        there = count * (count - 1) - only_ps * (only_ps - 1)
        tried = sum(len({task.host for task in tasks} - {host}) for host, tasks in dialled.items())
        return tried / there if there else 1.0

    def _wanted(self, found: Mapping[str, Mapping[str, Sequence[TaskPlan]]]) -> dict[str, list[TaskPlan]]:
        """What each host dials, first the hosts that follow it: not all begin at the same one."""
        wanted = {}
        for source, by_host in found.items():
            turn = self._turn[source]
            order = sorted(by_host, key=lambda to: (self._turn[to] <= turn, self._turn[to]))
            if tasks := [task for to in order for task in by_host[to]]:
                wanted[source] = tasks
        return wanted

    def _pairs(self) -> dict[str, set[str]]:
        """Which hosts each host dials first, where not each dials all tasks."""
        if len(self.hosts) <= ALL_HOSTS:
            return {host: set(self.hosts) for host in self.hosts}
        pairs: dict[str, set[str]] = {host: {host} for host in self.hosts}
        address = {host: tasks[0].address for host, tasks in self._of.items()}
        row = sorted(self.hosts, key=lambda host: _place(address[host]))
        for host, targets in zip(row, sparse(len(row), *pattern_for(len(row))), strict=True):
            pairs[host].update(row[number] for number in targets)

        first = min((task for task in self._members), key=lambda task: deciding(task.id)).host
        servers = {task.host for task in self._members if task.id.job == PS}
        for hub in {first, *servers}:
            pairs[hub].update(self.hosts)
            for host in self.hosts:
                pairs[host].add(hub)
        ring = [task.host for task in self._members if task.id.job != PS]
        for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
            pairs[one].add(other)
            pairs[other].add(one)
        return pairs


def _may_call(task: TaskPlan, other: TaskPlan) -> bool:
    return task.id != other.id and not task.id.job == other.id.job == PS


def _port(task: TaskPlan) -> int:
    return task.port or 0


def _place(address: str) -> tuple[int, int, list[tuple[int, str]]]:
    """A sort key that puts the addresses of a subnet in a row, and numbered names, too."""
    try:
        literal = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return 0, 0, natural(address)
    return literal.version, int(literal), []
