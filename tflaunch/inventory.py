"""What the agents said about their hosts: the facts that a plan is made from and that `tflaunch gpus` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BUSY_MEMORY_BYTES = 512 * 1024 * 1024  # more in use than a driver takes for itself: somebody is there


@dataclass(frozen=True)
class GpuProcess:
    """Who is on a card; "" and None for what a container or another user hides."""

    pid: int
    user: str
    command: str
    kind: str  # "compute", or "graphics": a desktop
    memory_bytes: int | None
    started: float | None  # epoch seconds, by the host's clock


@dataclass(frozen=True)
class Lease:
    """Which run holds a card, from its plan to its end."""

    user: str
    run: str
    since: float  # epoch seconds, by the host's clock
    planning: bool = False  # it has the card for the moment, to see what it will take


@dataclass(frozen=True)
class MigDevice:
    """One MIG instance of a card: a device of its own to CUDA."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    lease_error: str = ""  # why it cannot be leased: something is wrong on that host
    busy: str = ""


@dataclass(frozen=True)
class Gpu:
    """One card as NVML describes it; `busy` holds why it must not be taken ("" when it is free).

    None is what this card or its driver does not tell.  Sources: NVML, /proc, /sys/bus/pci.
    """

    index: int  # NVML's order, which people see; never CUDA's
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    busy: str = ""
    error: str = ""  # lost or broken: what NVML said
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_errors: int | None = None  # uncorrected ones since the driver was loaded
    slowed_by: tuple[str, ...] = ()  # power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake
    compute_mode: str = ""  # default, exclusive_process, exclusive_thread, prohibited
    persistence: bool | None = None
    pci_bus_id: str = ""
    numa_node: int | None = None
    mig_mode: bool = False
    mig: tuple[MigDevice, ...] = ()
    links: Mapping[int, str] = field(default_factory=dict)  # to other cards: NV18, PIX, PXB, PHB, NODE, SYS
    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    lease_error: str = ""

    @classmethod
    def from_wire(cls, card: Mapping[str, Any]) -> Gpu:
        """Read a card of an agent's `facts`; what a broken card could not tell is absent there."""
        known = {name: card[name] for name in cls.__dataclass_fields__ if name in card}
        known["slowed_by"] = tuple(card.get("slowed_by", ()))
        known["links"] = {int(other): link for other, link in card.get("links", {}).items()}
        known["processes"] = _processes(card)
        known["lease"] = _lease(card)
        known["mig"] = tuple(
            MigDevice(
                **{**device, "processes": _processes(device), "lease": _lease(device)},
                busy=_busy_device(
                    _processes(device),
                    _lease(device),
                    device["memory_used_bytes"],
                    device.get("lease_error", ""),
                ),
            )
            for device in card.get("mig", ())
        )
        gpu = cls(**known)
        return gpu if gpu.busy else cls(**{**known, "busy": why_busy(gpu)})


def why_busy(gpu: Gpu) -> str:
    """The first reason, in this order, why nobody else should take that card; "" when it is free."""
    if gpu.error:
        return f"broken: {gpu.error}"
    if gpu.compute_mode == "prohibited":
        return "compute mode is PROHIBITED"
    if gpu.mig_mode:
        return "MIG is on: its instances are devices of their own"
    return _busy_device(gpu.processes, gpu.lease, gpu.memory_used_bytes, gpu.lease_error)


def _busy_device(
    processes: tuple[GpuProcess, ...], lease: Lease | None, used_bytes: int, lease_error: str
) -> str:
    if lease is not None:
        return f"leased to {lease.user or 'somebody'}'s run {lease.run}".rstrip()
    if lease_error:
        return f"cannot be leased: {lease_error}"
    computing = [process for process in processes if process.kind == "compute"]
    if computing:
        return "in use by " + ", ".join(f"{each.user or 'somebody'} (pid {each.pid})" for each in computing)
    if used_bytes > BUSY_MEMORY_BYTES:
        return f"{used_bytes / 2**30:.1f} GiB in use by a process that is not visible there"
    return ""


def _processes(card: Mapping[str, Any]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(**process) for process in card.get("processes", ()))


def _lease(card: Mapping[str, Any]) -> Lease | None:
    return Lease(**card["lease"]) if card.get("lease") else None


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
    driver: str = ""  # NVIDIA's version: "550.54.15"; "" without one
    cuda: str = ""  # the newest that the driver serves: "12.4"
    load: float = 0.0  # processes that run or want to, mean of the last minute
    memory_available_bytes: int = 0
    disk_free_bytes: int = 0  # where runs are kept

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
            gpus=tuple(map(Gpu.from_wire, facts["gpus"])),
            gpu_note=facts["gpu_note"],
            proxies=tuple(facts["proxies"]),
            driver=facts["driver"],
            cuda=facts["cuda"],
            load=facts["load"],
            memory_available_bytes=facts["memory_available_bytes"],
            disk_free_bytes=facts["disk_free_bytes"],
        )


Inventory = Mapping[str, HostFacts]
