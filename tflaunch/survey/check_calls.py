"""The calls of a check: which ports each host calls, what came of it, and whether this machine reaches them too."""

from __future__ import annotations

import functools
import ipaddress
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tflaunch.planning import ways
from tflaunch.planning.dials import limit_s
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import wire
from tflaunch.protocol.dialling import DIAL_S, Dialling
from tflaunch.protocol.errors import Breach
from tflaunch.protocol.machine import this_machine
from tflaunch.sessions.group import Sessions
from tflaunch.survey.check_answers import CallAnswers, HostAnswer, is_open
from tflaunch.survey.check_bandwidth import ANSWER_S, SECONDS, Bandwidth, Throughput
from tflaunch.survey.check_replies import Replies

FROM_HERE_S = 2.0  # for a call from this machine: most firewalls drop it without an answer

Target = list[Any]  # [address, port, host]


def some_ports(held: Sequence[int]) -> tuple[int, ...]:
    """The ports of a host to call: the first and the last that its agent holds, as a firewall may open only some."""
    return tuple(dict.fromkeys([*held[:1], *held[-1:]]))


class Calls:
    """The calls that these hosts make to each other: each host calls all ports of every host, itself included."""

    def __init__(self, addresses: Mapping[str, str], ports: Mapping[str, Sequence[int]]) -> None:
        """`addresses` and `ports` say where each host is called."""
        self.hosts = list(ports)
        self._addresses = addresses
        self._all: list[Target] = [
            [addresses[host], port, host] for host in self.hosts for port in ports[host]
        ]

    def __len__(self) -> int:
        """How many calls each host makes."""
        return len(self._all)

    def of(self, host: str) -> list[Target]:
        """The calls of one host, in its order; each host begins elsewhere, so that not all call one host at once."""
        turn = self.hosts.index(host) * len(self._all) // len(self.hosts)
        return self._all[turn:] + self._all[:turn]

    def to(self, host: str) -> Target:
        """A call to that host."""
        return next(each for each in self._all if each[2] == host)

    def outcome(self, host: str, results: Sequence[Any]) -> dict[str, Any]:
        """What came of the calls of one host, by called host: {address, port, result} of a failed port, if any."""
        found: dict[str, Any] = {}
        for (address, port, to), result in zip(self.of(host), results, strict=True):
            if to not in found or (is_open(found[to]["result"]) and not is_open(result)):
                found[to] = {"address": address, "port": port, "result": result}
        return {to: found[to] for to in self._addresses if to in found}


def targets_from_here(
    facts: Sequence[HostFacts], addresses: Mapping[str, str], ports: Mapping[str, Sequence[int]]
) -> list[Target]:
    """What this machine calls, as a stand-in for the world outside: one port at every address of each host.

    Nothing, if this machine is one of the hosts.
    """
    if any([each.hostname, each.boot_id] == this_machine() for each in facts):
        return []
    return [
        [address, ports[each.host][0], each.host]
        for each in facts
        if each.host in addresses
        for address in dict.fromkeys([addresses[each.host], *each.addresses])
        if _is_literal(address)
    ]


def _is_literal(address: str) -> bool:
    """Whether that is an IP address, not a name, and not of the loopback."""
    try:
        return not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


class Calling:
    """Has the hosts of a check call each other."""

    def __init__(
        self,
        sessions: Sessions,
        replies: Replies,
        answers: Mapping[str, HostAnswer],
        key: str,
        phase: Callable[..., None],
    ) -> None:
        """With `key` a called agent proves that it belongs to this check; `phase` shows how far the turns have come."""
        self._sessions, self._replies, self._answers = sessions, replies, answers
        self._key, self._phase = key, phase

    def call(self, calls: Calls) -> CallAnswers:
        """Have all of them make these calls at once; measure again what looks odd.  Raises Stopped."""
        said = self._dial({name: calls.of(name) for name in calls.hosts})
        found = CallAnswers()
        for name, message in said.items():
            found.resolved |= message["addresses"]
            found.dials[name] = calls.outcome(name, message["results"])
        first = ways.collected(_measured({name: calls.of(name) for name in said}, said))
        for name, message in said.items():
            for (_, _, to), way in zip(calls.of(name), message.fields.get("ways", ()), strict=False):
                if way is not None and (entry := found.dials[name].get(to)) is not None:
                    entry["rtt_ms"] = min(way[0], entry.get("rtt_ms", way[0]))
        wanted: dict[str, list[Target]] = {}
        for source, to in ways.suspects(first):
            wanted.setdefault(source, []).extend([calls.to(to)] * ways.REPEATS)
        again = ways.collected(_measured(wanted, self._dial(wanted, "dialling again")))
        found.odd = tuple(ways.odd_ways(first, again))
        return found

    def _dial(self, wanted: Mapping[str, list[Target]], phase: str = "dialling") -> dict[str, wire.Message]:
        """What came of the calls of each host; those that do not answer are lost from now on."""
        self._replies.forget_failures()
        self._replies.forget("dialled", wanted)
        for name, targets in wanted.items():
            self._sessions.send([name], "dial", key=self._key, targets=targets, patience_s=DIAL_S, load=True)
        most = max(map(len, wanted.values()), default=0)
        self._replies.wait("dialled", wanted, limit_s(most), phase if wanted else "")
        answered = {}
        for name, targets in wanted.items():
            said = self._replies.get(name, "dialled")
            if said is None:
                self._answers[name].lost = self._replies.why_not(name)
            elif len(said["results"]) != len(targets):
                self._answers[name].lost = Breach(f"{len(targets)} calls, {len(said['results'])} results")
            else:
                answered[name] = said
        return answered

    def measure(
        self, calls: Calls, dials: Mapping[str, Mapping[str, Any]], all_pairs: bool
    ) -> dict[str, dict[str, Throughput]]:
        """What they can send to each other, but for the ways that are blocked in `dials`.  Raises Stopped."""

        def push(pairs: Sequence[ways.Pair]) -> dict[str, Throughput]:
            self._replies.forget_failures()
            self._replies.forget("pushed", [source for source, _ in pairs])
            for source, to in pairs:
                self._sessions.send([source], "push", key=self._key, target=calls.to(to), seconds=SECONDS)
            self._replies.wait("pushed", [source for source, _ in pairs], SECONDS + ANSWER_S)
            said = {source: self._replies.get(source, "pushed") for source, _ in pairs}
            return {
                source: Throughput.from_wire(message.fields)
                for source, message in said.items()
                if message is not None
            }

        closed = {
            (source, to)
            for source, row in dials.items()
            for to, way in row.items()
            if not is_open(way["result"])
        }
        phase = functools.partial(self._phase, "measuring")
        return Bandwidth(push, closed, lambda turn, turns: phase(turn, turns, "")).measure(
            list(dials), all_pairs
        )


def _measured(
    wanted: Mapping[str, Sequence[Target]], said: Mapping[str, wire.Message]
) -> Iterator[tuple[ways.Pair, ways.Measured]]:
    """What the calls of all hosts have measured."""
    for name, message in said.items():
        called = [host for _, _, host in wanted[name]]
        yield from ways.by_pair(name, called, message.fields.get("ways", ()))


class CallsFromHere:
    """The calls that this machine makes, in a thread, while the hosts call each other."""

    def __init__(self, key: str, targets: list[Target]) -> None:
        self._targets = targets
        self._selector = selectors.DefaultSelector()
        self._dialling = Dialling(self._selector, key, targets, FROM_HERE_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._selector:
            while not self._dialling.step(time.monotonic()):
                for key, _ in self._selector.select(0.2):
                    key.data()

    def results(self) -> dict[str, dict[str, Any]]:
        """Wait for the calls to end; returns {host: {address: {port, result}}}."""
        self._thread.join()
        found: dict[str, dict[str, Any]] = {}
        for (address, port, host), result in zip(self._targets, self._dialling.results, strict=True):
            found.setdefault(host, {})[address] = {"port": port, "result": result}
        return found
