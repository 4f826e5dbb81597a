"""The calls of a check: which ports each host calls, what came of it, and whether this machine reaches them too."""

from __future__ import annotations

import ipaddress
import selectors
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol.dialling import Dialling
from tflaunch.protocol.machine import this_machine
from tflaunch.survey.check_answers import is_open

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
