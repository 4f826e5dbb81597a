"""What the peers of each task dial: an address of its host and a port that its agent holds; pure."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tflaunch.hosts import Host, fold
from tflaunch.planning.cluster_plan import Standing
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.protocol.errors import PlanError
from tflaunch.text.numbers import counted

_LOOPBACK_NAMES = {"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"}


def machine_of(facts: HostFacts) -> tuple[str, str]:
    """Equal for two names of one machine; containers share the boot id, so the host name counts, too."""
    return (facts.boot_id, facts.hostname) if facts.boot_id else ("", facts.host)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address.lower() in _LOOPBACK_NAMES


def _is_link_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_link_local
    except ValueError:
        return False


def peer_addresses(
    used: Sequence[Host], inventory: Inventory, ssh: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """What the peers of each host dial: `address:`, else what SSH dials, else an interface of its own.

    Loopback is right for a cluster on one machine and only there.
    """
    dialled = {host.name: host.address or ssh.get(host.name, "") or "127.0.0.1" for host in used}
    one_machine = len({machine_of(inventory[host.name]) for host in used}) == 1
    if one_machine and all(map(is_loopback, dialled.values())):
        return dialled

    machines = _machines(inventory)
    replaced: dict[str, str] = {}
    for host in used:
        if not is_loopback(dialled[host.name]):
            continue
        others = fold(other.name for other in used if other is not host)
        if host.address:
            raise PlanError(
                f"{host.name}: `address: {host.address}` is loopback, which {others} cannot dial",
                "Write the address under which the other hosts reach it, or leave `address:` out.",
            )
        own = [a for a in inventory[host.name].addresses if not is_loopback(a) and not _is_link_local(a)]
        routable = [address for address in own if len(machines[address]) == 1]
        if not routable:
            found = f"others have {', '.join(own)} too" if own else "it has no other address"
            raise PlanError(
                f"{host.name}: {others} cannot dial {dialled[host.name]}, and {found}",
                f"Write `address:` for {host.name} in the hostfile: what the other hosts reach it by.",
            )
        replaced[host.name] = routable[0]
    if replaced:
        first = next(iter(replaced))
        more = f" (that is {first}; likewise for the others)" if len(replaced) > 1 else ""
        notes.append(
            Standing(
                f"{fold(replaced)}: its name means loopback there, where no other host reaches it; "
                f"the other tasks dial {replaced[first]}{more}; `address:` in the hostfile sets another"
            )
        )
    dialled.update(replaced)
    return dialled


def _machines(inventory: Inventory) -> dict[str, set[tuple[str, str]]]:
    """The machines that have each address; one that several have (a container bridge, say) leads nowhere."""
    machines: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for facts in inventory.values():
        for address in facts.addresses:
            machines[address].add(machine_of(facts))
    return machines


def interfaces(dialled: Mapping[str, str], inventory: Inventory) -> dict[str, str]:
    """The network interface by which the peers of each host reach it, where that is certain.

    It has the address that they dial; where they dial a name, it is the only one with addresses of its own.  Not for
    what is reached by loopback.
    """
    machines = _machines(inventory)
    found = {}
    for host, address in dialled.items():
        facts = inventory[host]
        named = list(zip(facts.addresses, facts.interfaces, strict=False))
        own = {interface for each, interface in named if len(machines[each]) == 1}
        exact = {interface for each, interface in named if each == address}
        if not is_loopback(address) and len(exact or own) == 1:
            found[host] = next(iter(exact or own))
    return found


def who_has_them(facts: HostFacts) -> str:
    """`; 22000: pid 77 (python3); runs that …`: who has the ports of `ports:`; "" if unknown."""
    listening = [text for text in facts.ports_taken if not text.startswith("run ")]
    runs = [text.removeprefix("run ") for text in facts.ports_taken if text.startswith("run ")]
    told = f"; {', '.join(listening)}" if listening else ""
    if runs:
        told += f"; runs that are alive there may hold some: {', '.join(runs)}"
    return told


def take_ports(places: Sequence[str], hosts: Mapping[str, Host], inventory: Inventory) -> list[int]:
    """A port for each task of `places`, lowest first; names of one machine never share one."""
    wanted = Counter(places)
    taken: dict[tuple[str, str], set[int]] = defaultdict(set)
    mine: dict[str, list[int]] = {}
    for name, count in wanted.items():
        facts = inventory[name]
        others = taken[machine_of(facts)]
        free = sorted(port for port in set(facts.ports) if port not in others)
        if len(free) < count:
            limits = hosts[name].ports
            first, last = limits or (20000, 29999)
            if last - first + 1 < count:
                there = f"`ports: {first}-{last}`" if limits else f"{first} to {last}"
                raise PlanError(
                    f"{name}: need {counted(count, 'port')}, and {there} are {last - first + 1}",
                    f"{'Widen' if limits else 'Name more by'} `ports:` of {name}, or put fewer tasks on {name}.",
                )
            where = f" of `ports: {first}-{last}`" if limits else ""
            more = f"Widen `ports:` of {name}" if limits else "Say --workers and --ps, for more to be held"
            if not facts.ports and not limits:
                where = " of 20000 to 29999"
                more = (
                    f"Others have those there (`ss -tane` shows whose they are), or the kernel gives them to outgoing"
                    f" connections (net.ipv4.ip_local_port_range): name others by `ports:` of {name}"
                )
            raise PlanError(
                f"{name}: need {counted(count, 'port')}, {len(free)}{where} could be had"
                f"{who_has_them(facts)}",
                f"{more}, or put fewer tasks on {name}.",
            )
        mine[name] = free[:count][::-1]
        others.update(mine[name])
    return [mine[name].pop() for name in places]
