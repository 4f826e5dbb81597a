"""Before any task starts, the hosts dial each other as the tasks will."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tflaunch.launch.cluster import Cluster
from tflaunch.planning import dials, ways
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.dial_pattern import Ways
from tflaunch.protocol.dialling import DIAL_S, NARROW
from tflaunch.protocol.errors import Breach, DialError
from tflaunch.protocol.wire import Message
from tflaunch.text.safe import printable

CHECKED_S = 10.0

Wanted = Mapping[str, Sequence[TaskPlan]]  # host -> what it dials


class NetworkCheck:
    """The check of one plan, whose ports the agents answer from `stage` until the release."""

    def __init__(self, cluster: Cluster, plan: ClusterPlan, key: str) -> None:
        """`key`: what was staged with it answers."""
        self._cluster = cluster
        self._sessions = cluster.sessions
        self._watcher = cluster.watcher
        self._key = key
        self._ways = Ways(plan)
        self._addresses = {task.host: task.address for task in plan.tasks if task.port is not None}
        self._names = [name for name in dict.fromkeys(self._addresses.values()) if not _is_literal(name)]
        self._wanted: dict[str, list[TaskPlan]] = {}  # all that was dialled, and what came of it
        self._results: dict[str, list[dials.Result]] = {}
        # Name -> the addresses that hosts have found; first what others have: many hosts know themselves as 127.0.1.1.
        self._found: dict[str, Counter[tuple[str, ...]]] = {}
        self._own: dict[str, list[str]] = {}

    def run(self, *, whole: bool) -> dict[str, list[str]]:
        """Have all hosts dial at once what tflaunch.planning.dial_pattern says; `whole`: all that their tasks may call.

        Where that shows that something is wrong with a host, all ways from and to it are dialled, too, so that what is
        told is complete.  Returns the addresses that names resolve to.  Warns of ways between hosts that are odd
        (planning/ways).  Raises DialError with what is blocked, after the run has ended on every host; LaunchError,
        Stopped.
        """
        wanted = self._ways.all() if whole else self._ways.first()
        if not wanted:  # no task calls another: a step of 0 hosts says nothing
            return {}
        first = self._dial(wanted, compare=True)
        told: set[str] = set()
        suspected = self._with_other_names(first)
        while new := (suspected | dials.failed_ends(self._wanted, self._results)) - told:
            told |= new
            if more := self._ways.beside(told, self._wanted):
                self._dial(more, "dialling more")
        self._refuse_blocked()
        self._measure_odd_ways(wanted, first)
        if tried := self._share():
            self._watcher.note(
                f"{tried} were tried; no group of hosts is cut off. --dial-check all tries all of them"
            )
        return {**self._own, **{name: list(_usual(found)) for name, found in self._found.items()}}

    def _dial(self, wanted: Wanted, phase: str = "dialling", *, compare: bool = False) -> dict[str, Message]:
        """Have the hosts dial, and note what came of it; returns the `dialled` of each host.

        compare: they also look up the names of the hosts that they do not dial, and answer a digest.
        """
        for name, tasks in wanted.items():
            names = [each for each in self._names if compare and each != self._addresses[name]]
            more: dict[str, Any] = (
                {"names": names} if not {task.address for task in tasks}.issuperset(names) else {}
            )
            self._send(name, tasks, dials.loads(name, tasks, self._wanted.get(name, ())), **more)
        said = self._gather(wanted, phase)
        for name, message in said.items():
            self._wanted.setdefault(name, []).extend(wanted[name])
            self._results.setdefault(name, []).extend(message["results"])
            for address, found in message["addresses"].items():
                if address == self._addresses[name]:
                    self._own[address] = found
                else:
                    self._found.setdefault(address, Counter())[tuple(sorted(found))] += 1
        return said

    def _send(self, name: str, tasks: Sequence[TaskPlan], loads: Sequence[int], **more: Any) -> None:
        """Have that host dial; those of its calls whose numbers `loads` has bring a load."""
        targets = dials.to_wire(tasks)
        self._sessions.send(
            [name], "dial", key=self._key, targets=targets, patience_s=DIAL_S, load=list(loads), **more
        )

    def _gather(self, wanted: Wanted, phase: str) -> dict[str, Message]:
        timeout_s = dials.limit_s(max(map(len, wanted.values()), default=0))
        said, failures = self._sessions.gather("dialled", wanted, timeout_s, phase)
        for name, message in said.items():
            if len(message["results"]) != len(wanted[name]):
                what = f"{len(wanted[name])} calls were asked for, {len(message['results'])} results came"
                failures[name] = Breach(what)
        self._cluster.refuse(failures)
        return said

    def _with_other_names(self, said: Mapping[str, Message]) -> set[str]:
        """The hosts that know other addresses for a name than those that have dialled it, or none."""
        compared = {host: message["names"] for host, message in said.items() if "names" in message.fields}
        if not compared:
            return set()
        usual = {name: _usual(self._found[name]) if name in self._found else () for name in self._names}
        digests = dials.names_digests(usual, {self._addresses[host] for host in compared})
        return {host for host, digest in compared.items() if digest != digests[self._addresses[host]]}

    def _share(self) -> str:
        return dials.share_words(self._ways.share(self._wanted))

    def _refuse_blocked(self) -> None:
        """Raise DialError if something is blocked."""
        reasons, steps = dials.blocked(self._wanted, self._results)
        if not reasons:
            return
        if narrow := dials.failed_ends(self._wanted, self._results, NARROW):
            reasons, steps = dials.blocked(self._wanted, self._results, self._mtus(narrow))
        if tried := self._share():
            steps.append(f"{tried} were tried; --dial-check all tries all of them")
        raise DialError(reasons, "; ".join(steps), self._cluster.abandon())

    def _mtus(self, hosts: Collection[str]) -> dict[str, str]:
        """For those of `hosts` that say so, the MTU of the interface that the others call: `1500 (eth0)`."""
        self._sessions.send(hosts, "check", directories=[])
        checked, _ = self._sessions.gather("checked", hosts, CHECKED_S)
        found = {}
        for host, message in checked.items():
            name = self._addresses[host]
            addresses = {name, *self._own.get(name, ()), *chain(*self._found.get(name, ()))}
            for face in message["interfaces"]:
                if addresses & set(face["addresses"]) and face["mtu"]:
                    found[host] = f"{face['mtu']} ({printable(face['name'])})"
        return found

    def _measure_odd_ways(self, wanted: Wanted, said: Mapping[str, Message]) -> None:
        """Warn of the ways between hosts that are much longer than the others or lose packets, now and again."""
        first = ways.collected(_measured(wanted, said))
        by_host: dict[str, list[TaskPlan]] = {}
        for source, to in ways.suspects(first):
            task = next(task for task in wanted[source] if task.host == to)
            by_host.setdefault(source, []).extend([task] * ways.REPEATS)
        if not by_host:
            return
        for name, tasks in by_host.items():
            self._send(name, tasks, range(len(tasks)))
        again = ways.collected(_measured(by_host, self._gather(by_host, "dialling again")))
        for odd in ways.odd_ways(first, again):
            self._watcher.warn(f"{odd.what}. {odd.fix[:1].upper()}{odd.fix[1:]}")


def _measured(wanted: Wanted, said: Mapping[str, Message]) -> Iterator[tuple[ways.Pair, ways.Measured]]:
    """What the calls of all hosts have measured."""
    for name, tasks in wanted.items():
        yield from ways.by_pair(name, [task.host for task in tasks], said[name].fields.get("ways", ()))


def _usual(found: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    """The addresses that most hosts have found."""
    return found.most_common(1)[0][0]


def _is_literal(address: str) -> bool:
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return True
