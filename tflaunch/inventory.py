"""What the agents said about their hosts: the facts that a plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One card as NVML describes it; `busy` holds why it must not be taken ("" when it is free)."""

    index: int  # NVML's order, which people see; never CUDA's
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    busy: str = ""


@dataclass(frozen=True)
class HostFacts:
    """One host at probe time.  `ports` are already held by its agent, in ascending order."""

    host: str  # the name in the hostfile
    hostname: str  # what the machine calls itself
    boot_id: str  # the same on two hosts: they are one machine
    addresses: tuple[str, ...]  # of its network interfaces, loopback left out
    python: str  # the agent's interpreter: "3.11.7"
    cores: int
    memory_bytes: int
    ports: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    gpu_note: str = ""  # why there are none, when a driver is there but does not answer
    proxies: tuple[str, ...] = ()  # names of proxy variables that tasks would inherit

    @classmethod
    def from_wire(cls, host: str, facts: Mapping[str, Any]) -> HostFacts:
        """Read an agent's `facts` message; raises KeyError or TypeError when it is not one."""
        return cls(
            host=host,
            hostname=facts["hostname"],
            boot_id=facts["boot_id"],
            addresses=tuple(facts["addresses"]),
            python=facts["python"],
            cores=facts["cores"],
            memory_bytes=facts["memory_bytes"],
            ports=tuple(facts["ports"]),
            gpus=tuple(Gpu(**gpu) for gpu in facts["gpus"]),
            gpu_note=facts["gpu_note"],
            proxies=tuple(facts["proxies"]),
        )


Inventory = Mapping[str, HostFacts]
