"""Slots as hosts, from what their holders have told of themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tflaunch.engines.door import SlotDoor
from tflaunch.engines.engine import Handle
from tflaunch.hosts import Host


def hosts_of(
    handle: Handle, told: Sequence[Mapping[str, Any]], application: str, said: Mapping[str, Any]
) -> list[Host]:
    """The slots of one application, of which their holders have said that, in order."""
    return [
        _host(handle, each, application, said, _role(said["roles"], index)) for index, each in enumerate(told)
    ]


def _host(
    handle: Handle, told: Mapping[str, Any], application: str, said: Mapping[str, Any], role: str
) -> Host:
    where = told["where"]
    return Host(
        name=where["node"],
        connection="yarn",
        ssh_host=where["node"],
        address=str(told["addresses"][0]),
        python=where["python"] if said["chosen"] else None,
        run_dir=f"{told['directory']}/runs",
        gpus=int(said["gpus"]),
        slots_by=f"yarn:{application}",
        labels={"role": role} if role else {},
        slot={
            "set": handle["set"],
            "conf": handle["conf"],
            "applications": handle["applications"],
            "sizes": handle["sizes"],
            "id": where["container"],
            "application": application,
            "container": where["container"],
            "node": where["node"],
            "web": where["web"],
            "addresses": ",".join(map(str, told["addresses"])),
            "port": str(told["port"]),
            "certificate": said["secret"]["certificate"],
            "token": said["secret"]["token"],
        },
    )


def _role(roles: Sequence[Sequence[Any]], index: int) -> str:
    for role, count in roles:
        if index < count:
            return str(role)
        index -= count
    return ""


def named(hosts: Sequence[Host], applications: str = "") -> tuple[Host, ...]:
    """The same, each with a name of its own: its node's, with a number where there are several on it."""
    nodes = [host.slot["node"] for host in hosts]
    found = []
    for index, host in enumerate(hosts):
        node = nodes[index]
        name = node if nodes.count(node) == 1 else f"{node}-{nodes[:index].count(node)}"
        slot = {**host.slot, **({"applications": applications} if applications else {})}
        found.append(dataclasses.replace(host, name=name, ssh_host=name, slot=slot))
    return tuple(found)


def by_node(told: Mapping[str, Any]) -> tuple[str, str]:
    """By what the holders of an application are put in order: node, then container."""
    return told["where"]["node"], told["where"]["container"]


def application_of(container: str) -> str:
    """The application of `container_e17_1410901177871_0001_01_000005`."""
    parts = container.split("_")
    return "_".join(["application", *parts[-4:-2]])


def door_of(slot: Mapping[str, str]) -> SlotDoor:
    """The TLS door of a slot's holder."""
    return SlotDoor(
        tuple(slot["addresses"].split(",")), int(slot["port"]), slot["certificate"], slot["token"]
    )
