"""Which network the tasks dial each other over: the user's, or the fastest that all hosts of a run share; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tflaunch.hosts import Host, fold
from tflaunch.planning.addresses import interfaces, machine_of
from tflaunch.planning.inventory import HostFacts, Inventory, Nic
from tflaunch.protocol.errors import PlanError
from tflaunch.text.numbers import agreeing

FASTER = 2.0  # another network must be so many times faster to be taken
MOST = 64  # interfaces of a host, and addresses of an interface, that are looked at: a host may lie
NONE = "none"  # --network none: by the addresses that SSH has
# Prefixes of the names of interfaces that lead to no other host.
VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman", "cali")


@dataclass(frozen=True)
class Network:
    """A network that all hosts are in."""

    prefix: str  # `10.2.0.0/16`, or the user's word for it
    mbit_s: int | None  # of the slowest host; None: not known of all
    addresses: Mapping[str, str]  # of each host there
    names: Mapping[str, str]  # of each host's interface

    @property
    def told(self) -> str:
        """`ib0 (100 Gbit/s, 10.2.0.0/16)`."""
        inner = [*([speed(self.mbit_s * 1e6)] if self.mbit_s else []), self.prefix]
        return f"{', '.join(dict.fromkeys(self.names.values()))} ({', '.join(inner)})"


def usual(nics: Sequence[Nic]) -> list[Nic]:
    """The interfaces that may lead to other hosts."""
    return [nic for nic in nics[:MOST] if nic.name and not nic.name.startswith(VIRTUAL)]


def shared(inventory: Inventory) -> list[Network]:
    """The networks that every host is in, each with an address of its own: the fastest first."""
    found: dict[str, dict[str, tuple[str, Nic]]] = {}
    for host, facts in inventory.items():
        for nic in usual(facts.nics):
            for address, prefix in _addresses(nic):
                found.setdefault(prefix, {}).setdefault(host, (address, nic))
    networks = []
    for prefix, members in found.items():
        own = {address for address, _ in members.values()}
        if len(members) == len(inventory) == len(own):  # a bridge has the same address on each host
            networks.append(_network(prefix, members))
    return sorted(networks, key=lambda each: -(each.mbit_s or 0))


def _addresses(nic: Nic) -> list[tuple[str, str]]:
    """Its addresses, each with the network that it is in; none of a line with two ends."""
    found = []
    for each in nic.networks[:MOST]:
        try:
            known = ipaddress.ip_interface(each)
        except ValueError:
            continue
        if known.network.num_addresses > 1:
            found.append((str(known.ip), str(known.network)))
    return found


def _network(prefix: str, members: Mapping[str, tuple[str, Nic]]) -> Network:
    speeds = [nic.mbit_s for _, nic in members.values()]
    return Network(
        prefix,
        min(each or 0 for each in speeds) or None,
        {host: address for host, (address, _) in members.items()},
        {host: nic.name for host, (_, nic) in members.items()},
    )


def faster(dialled: Mapping[str, str], inventory: Inventory) -> tuple[int, Network] | None:
    """(the speed of the slowest interface now in Mbit/s, the fastest network of all hosts), if it is FASTER.

    `dialled` has what the others call each host by.  Where that is a name that may lead to several interfaces, the
    fastest other one counts.  None where a speed is not known.
    """
    hosts = {name: inventory[name] for name in dialled}
    best = next(iter(shared(hosts)), None) if len(hosts) > 1 else None
    if best is None or best.mbit_s is None:
        return None
    named = interfaces(dialled, hosts)
    if all(named.get(host) == name for host, name in best.names.items()):
        return None
    speeds = []
    for host, facts in hosts.items():
        nics = usual(facts.nics)
        own = [nic for nic in nics if nic.name == named.get(host)]
        other = own or [nic for nic in nics if nic.name != best.names[host]]
        speeds.append(max((nic.mbit_s or 0 for nic in other), default=best.mbit_s))
    now = min(speeds)
    return (now, best) if now and best.mbit_s >= FASTER * now else None


def members(wanted: str, inventory: Inventory) -> dict[str, tuple[str, Nic]]:
    """The hosts in the network of that name or CIDR, each with its address and interface there.

    The name is that of an interface; hosts that have none of it are looked for in the networks of those that do.
    """
    found: dict[str, tuple[str, Nic]] = {}
    prefixes = {wanted} if "/" in wanted else set[str]()
    for host, facts in inventory.items():
        for nic in facts.nics[:MOST]:
            if nic.name == wanted and host not in found and (known := _addresses(nic)):
                found[host] = (known[0][0], nic)
                prefixes.add(known[0][1])
    networks = [ipaddress.ip_network(each, strict=False) for each in prefixes]
    for host, facts in inventory.items():
        for nic in facts.nics[:MOST]:
            for address, _ in _addresses(nic):
                if any(ipaddress.ip_address(address) in network for network in networks):
                    found.setdefault(host, (address, nic))
    return found


def of_all(wanted: str, inventory: Inventory) -> Network:
    """The network of that name or CIDR; raises PlanError where a host is not in it."""
    found = members(wanted, inventory)
    if missing := [host for host in inventory if host not in found]:
        first = missing[0]
        raise PlanError(
            f"--network {wanted}: {fold(missing)} {agreeing(len(missing), 'is', 'are')} not in it; {first} has "
            f"{_listed(inventory[first])}",
            "Name a network that all hosts are in, or leave these hosts out: --exclude.",
        )
    made = _network(wanted, {host: found[host] for host in inventory})
    same = [host for host, address in made.addresses.items() if [*made.addresses.values()].count(address) > 1]
    if same:
        raise PlanError(
            f"--network {wanted}: {fold(same)} have the same address there, {made.addresses[same[0]]}",
            "Name a network that leads from host to host.",
        )
    return made


def _listed(facts: HostFacts) -> str:
    listed = [f"{nic.name} ({', '.join(nic.networks)})" for nic in facts.nics if nic.name]
    return ", ".join(listed) or "no address that others could dial"


def chosen(
    wanted: str, used: Sequence[Host], inventory: Inventory, dialled: Mapping[str, str]
) -> Network | None:
    """The network for the tasks of these hosts; None: what they are `dialled` by.

    Without the user's word it is a faster one than now, where no host has an `address:`.  Raises PlanError.
    """
    there = {host.name: inventory[host.name] for host in used}
    if wanted == NONE or len({machine_of(facts) for facts in there.values()}) < 2:
        return None
    if wanted:
        return of_all(wanted, there)
    if any(host.address and not host.slot for host in used):
        return None
    found = faster({name: dialled[name] for name in there}, there)
    return found[1] if found else None


def nccl_variables(facts: HostFacts, interface: str) -> dict[str, str]:
    """What NCCL is told on a host whose peers reach it by that interface: it, and the RDMA devices like its own.

    Nothing of RDMA devices where all that are there are alike, or its interface has none: NCCL finds them itself.
    Nothing of what the host sets itself; where that is the interface, it may be another one than this.
    """
    if "NCCL_SOCKET_IFNAME" in facts.set_there:
        return {}
    found = {"NCCL_SOCKET_IFNAME": f"={interface}"}
    fabrics = [(nic.fabric, nic.mbit_s) for nic in facts.nics if nic.rdma and nic.name == interface]
    devices = [nic for nic in facts.nics if nic.rdma]
    alike = [nic.rdma for nic in devices if (nic.fabric, nic.mbit_s) in fabrics]
    if alike and len(alike) < len(devices):
        found["NCCL_IB_HCA"] = "=" + ",".join(alike)
    return {name: value for name, value in found.items() if name not in facts.set_there}


def speed(bits_per_s: float) -> str:
    """`100 Gbit/s`, `9.4 Gbit/s`, `94 Mbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size or unit == "Mbit/s":
            value = bits_per_s / size
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    raise AssertionError
