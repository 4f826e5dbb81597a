"""Which network the addresses of the hosts lie on, and a faster one that all of them are in; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

FASTER = 2.0  # another network must be so many times faster to be named
MOST = (
    64  # interfaces of a host, and networks and addresses of an interface, that are looked at: a host may lie
)

Face = Mapping[str, Any]  # an interface of a host, as its agent says it (agent/host_check.py)


class Network(NamedTuple):
    """A network that all hosts are in."""

    names: tuple[str, ...]  # of the interfaces, most often only one
    prefix: str  # `10.2.0.0/16`
    mbit_s: int  # of the slowest host


def faster(chosen: Mapping[str, Face], all_faces: Mapping[str, Sequence[Face]]) -> tuple[int, Network] | None:
    """(the speed of the chosen interfaces in Mbit/s, the fastest network of all hosts), if it is FASTER.

    `chosen` has, for each host, the interface with the address that the others call; `all_faces` all that it has.
    None where a speed is not known.
    """
    speeds = [face.get("mbit_s") for face in chosen.values()]
    if len(chosen) < 2 or set(chosen) != set(all_faces) or not all(speeds):
        return None
    now = min(speed for speed in speeds if speed)
    own = {network for face in chosen.values() for network in face.get("networks", ())}
    found = [each for each in _common(all_faces) if each.prefix not in own and each.mbit_s >= FASTER * now]
    return (now, max(found, key=lambda each: each.mbit_s)) if found else None


def _common(faces: Mapping[str, Sequence[Face]]) -> Iterator[Network]:
    """The networks that every host is in, with an address of its own, and that have a known speed."""
    in_it: dict[str, dict[str, Face]] = {}
    for host, own in faces.items():
        for face in own[:MOST]:
            for prefix in face.get("networks", ())[:MOST]:
                if face.get("mbit_s") and any(
                    _lies_in(address, prefix) for address in face["addresses"][:MOST]
                ):
                    in_it.setdefault(prefix, {})[host] = face
    for prefix, members in in_it.items():
        addresses = {
            address for face in members.values() for address in face["addresses"] if _lies_in(address, prefix)
        }
        if len(members) == len(faces) and len(addresses) >= len(
            faces
        ):  # a bridge has the same address on each host
            names = tuple(dict.fromkeys(face["name"] for face in members.values()))
            yield Network(names, prefix, min(face["mbit_s"] for face in members.values()))


def _lies_in(address: str, prefix: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]) in ipaddress.ip_network(prefix)
    except ValueError:
        return False


def speed(bits_per_s: float) -> str:
    """`100 Gbit/s`, `9.4 Gbit/s`, `94 Mbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= size or unit == "Mbit/s":
            value = bits_per_s / size
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    raise AssertionError
