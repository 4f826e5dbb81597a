"""What the agents said about their hosts: the facts that a plan is made from and that `tflaunch gpus` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tflaunch.gpu_probe import BUSY_MEMORY_BYTES, BUSY_MIG_MEMORY_BYTES
from tflaunch.inputs.times import clock_time

BUSY_PERCENT = 25  # of the time; less may be a desktop
# Nobody computes with less; a card that its driver has just initialised is at 100 % for a moment, with nothing in use.
CONTEXT_BYTES = 64 * 1024 * 1024

PROHIBITED = "compute mode is PROHIBITED"
NO_INSTANCE = "in MIG mode without an instance"


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
    pid: int = 0  # of what has locked the card and is no run of tflaunch

    @property
    def holder(self) -> str:
        """For people: `alice's run trainer-k3f9x2`."""
        if self.pid:
            return f"pid {self.pid} of {self.user or 'somebody'}, which is no run: it has locked the card"
        return f"{self.user or 'somebody'}'s run {self.run}".rstrip()


@dataclass(frozen=True)
class Ticket(Lease):
    """A run that waits for cards; (since, run) is its place in the queue, on every host."""

    wants: int = 0  # so many cards, on all its hosts together
    uuids: tuple[str, ...] = ()  # those of this host that it could use


@dataclass(frozen=True)
class Device:
    """What a process can be given: a card, or an instance of a card in MIG mode.

    `busy` holds why it must not be taken ("" when it is free).
    """

    index: int  # a card's is NVML's, which people see, never CUDA's; an instance's counts within its card
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int  # without what the driver reserves for itself, where it tells that apart
    busy: str = ""
    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    lease_error: str = ""  # why it cannot be leased: something is wrong on that host
    promised: Lease | None = None  # to a run that waits for it

    @property
    def label(self) -> str:
        """What people call it on its host: `3`, or `3.1` for instance 1 of card 3."""
        return str(self.index)

    @property
    def memory_free_bytes(self) -> int:
        """What is not in use of it."""
        return self.memory_total_bytes - self.memory_used_bytes


@dataclass(frozen=True)
class MigDevice(Device):
    """One MIG instance of a card; CUDA gives a process one of them at most."""

    card: int = field(kw_only=True)  # the index of its card

    @property
    def label(self) -> str:
        return f"{self.card}.{self.index}"


@dataclass(frozen=True)
class Gpu(Device):
    """One card as NVML describes it.

    None is what this card or its driver does not tell.  Sources: NVML, /proc, /sys/bus/pci.
    """

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

    @property
    def devices(self) -> tuple[Device, ...]:
        """What of it can be given to processes: its MIG instances, or all of it."""
        return self.mig or (self,)

    @classmethod
    def from_wire(cls, card: Mapping[str, Any]) -> Gpu:
        """Read a card of an agent's `facts`; what a broken card could not tell is absent there."""
        known = {name: card[name] for name in cls.__dataclass_fields__ if name in card}
        known |= _uses(card)
        known["slowed_by"] = tuple(card.get("slowed_by", ()))
        known["links"] = {int(other): link for other, link in card.get("links", {}).items()}
        known["mig"] = tuple(
            MigDevice(**{**device, **_uses(device)}, card=card["index"]) for device in card.get("mig", ())
        )
        return _judged(cls(**known))


def why_busy(gpu: Gpu) -> str:
    """The first reason, in this order, why nobody else should take that card; "" when it is free."""
    if gpu.error:
        return f"broken: {gpu.error}"
    if gpu.compute_mode == "prohibited":
        return PROHIBITED
    if gpu.mig_mode:
        return "in MIG mode: its instances are devices of their own" if gpu.mig else NO_INSTANCE
    return in_use(gpu) or _promise(gpu)


def _why_busy_instance(instance: MigDevice, gpu: Gpu) -> str:
    if gpu.compute_mode == "prohibited":
        return PROHIBITED
    if not instance.uuid:
        return "the driver does not tell its UUID"
    return in_use(instance) or _promise(instance)


def in_use(device: Device) -> str:
    """Why that device is not free now, whoever waits for it; "" when it is."""
    if device.lease is not None:
        return f"leased to {device.lease.holder}"
    if device.lease_error:
        return f"cannot be leased: {device.lease_error}"
    computing = [process for process in device.processes if process.kind == "compute"]
    if computing:
        return "in use by " + ", ".join(f"{each.user or 'somebody'} (pid {each.pid})" for each in computing)
    most = BUSY_MIG_MEMORY_BYTES if isinstance(device, MigDevice) else BUSY_MEMORY_BYTES
    if device.memory_used_bytes > most:
        return f"{device.memory_used_bytes / 2**30:.1f} GiB in use by {_unnamed(device)}"
    busy_percent = (device.utilization_percent or 0) if isinstance(device, Gpu) else 0
    if busy_percent >= BUSY_PERCENT and device.memory_used_bytes > CONTEXT_BYTES:
        return f"{busy_percent} % in use by {_unnamed(device)}"
    return ""


def _promise(device: Device) -> str:
    if device.promised is None:
        return ""
    return f"promised to {device.promised.holder}, which waits since {clock_time(device.promised.since)}"


def _unnamed(device: Device) -> str:
    """Who it is when no process computes there as far as one sees: a desktop, where that explains the memory."""
    shown = sum(process.memory_bytes or 0 for process in device.processes)
    if device.processes and device.memory_used_bytes - shown <= BUSY_MEMORY_BYTES:
        return "a desktop"
    return "a process that is not visible there"


_UNUSED: Mapping[str, Any] = {"processes": (), "memory_used_bytes": 0, "lease": None, "promised": None}


def when_free(inventory: Inventory) -> dict[str, HostFacts]:
    """The same hosts if nobody used their cards or waited for them; what is broken or closed stays so."""

    def freed(gpu: Gpu) -> Gpu:
        return _judged(replace(gpu, **_UNUSED, mig=tuple(replace(each, **_UNUSED) for each in gpu.mig)))

    return {host: replace(facts, gpus=tuple(map(freed, facts.gpus))) for host, facts in inventory.items()}


def _judged(gpu: Gpu) -> Gpu:
    instances = tuple(replace(each, busy=_why_busy_instance(each, gpu)) for each in gpu.mig)
    return replace(gpu, busy=why_busy(gpu), mig=instances)


def _uses(device: Mapping[str, Any]) -> dict[str, Any]:
    """Who is on a card or an instance, or waits for it, as the wire tells it."""
    return {
        "processes": tuple(GpuProcess(**process) for process in device.get("processes", ())),
        **{name: Lease(**device[name]) if device.get(name) else None for name in ("lease", "promised")},
    }


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
    interfaces: tuple[str, ...] = ()  # that of each address
    driver: str = ""  # NVIDIA's version: "550.54.15"; "" without one
    cuda: str = ""  # the newest that the driver serves: "12.4"
    load: float = 0.0  # processes that run or want to, mean of the last minute
    memory_available_bytes: int = 0
    disk_free_bytes: int = 0  # where runs are kept
    clock: float = 0.0  # its own, when it told all this (epoch seconds)
    queue: tuple[Ticket, ...] = ()  # the runs that come first when its cards get free, in their order
    queue_error: str = ""  # why nobody can wait for them in turn

    @property
    def devices(self) -> tuple[Device, ...]:
        """What can be given to processes there, busy or not: cards, and MIG instances; lowest label first."""
        return tuple(device for gpu in sorted(self.gpus, key=lambda gpu: gpu.index) for device in gpu.devices)

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
            interfaces=tuple(facts.get("interfaces", ())),
            driver=facts["driver"],
            cuda=facts["cuda"],
            load=facts["load"],
            memory_available_bytes=facts["memory_available_bytes"],
            disk_free_bytes=facts["disk_free_bytes"],
            clock=facts["clock"],
            queue=tuple(Ticket(**{**each, "uuids": tuple(each["uuids"])}) for each in facts["queue"]),
            queue_error=facts["queue_error"],
        )


Inventory = Mapping[str, HostFacts]
