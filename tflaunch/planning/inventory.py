"""What the agents said about their hosts: the facts from which a plan is made and which `tflaunch gpus` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tflaunch.gpu_probe import BUSY_MEMORY_BYTES, BUSY_MIG_MEMORY_BYTES
from tflaunch.text.times import clock_time

BUSY_PERCENT = 25  # of the time; less may be a desktop
# No program computes with less memory; a GPU whose driver has just initialised it shows 100 % for a moment, with none.
CONTEXT_BYTES = 64 * 1024 * 1024

PROHIBITED = "compute mode is PROHIBITED"
NO_INSTANCE = "in MIG mode without an instance"


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU; "" and None for what a container or another user hides."""

    pid: int
    user: str
    command: str
    kind: str  # "compute", or "graphics": a desktop
    memory_bytes: int | None
    started: float | None  # epoch seconds, by the host's clock


@dataclass(frozen=True)
class Lease:
    """The run that has a GPU, from its plan to its end."""

    user: str
    run: str
    since: float  # epoch seconds, by the host's clock
    planning: bool = False  # it has the GPU only until its plan is made
    pid: int = 0  # of a process that has locked the GPU and is no run of tflaunch

    @property
    def holder(self) -> str:
        """For people: `alice's run trainer-k3f9x2`."""
        if self.pid:
            return f"pid {self.pid} of {self.user or 'somebody'}, which is no run: it has locked the GPU"
        return f"{self.user or 'somebody'}'s run {self.run}".rstrip()


@dataclass(frozen=True)
class Ticket(Lease):
    """A run that waits for GPUs; (since, run) is its place in the queue, on every host."""

    wants: int = 0  # GPUs, on all its hosts together
    uuids: tuple[str, ...] = ()  # those of this host that it could use


@dataclass(frozen=True)
class GpuOrInstance:
    """What one process can be given: a whole GPU, or one MIG instance.

    `busy` says why a run must not take it, "" when it is free.
    """

    index: int  # of a GPU: NVML's, which users see, not CUDA's; of a MIG instance: its number within its GPU
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int  # without what the driver reserves for itself, where NVML counts that separately
    busy: str = ""
    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    lease_error: str = ""  # why it cannot be leased: something is wrong on that host
    promised: Lease | None = None  # to a run that waits for it

    @property
    def label(self) -> str:
        """Its name on its host: `3`, or `3.1` for MIG instance 1 of GPU 3."""
        return str(self.index)

    @property
    def memory_free_bytes(self) -> int:
        """Its memory that is not in use."""
        return self.memory_total_bytes - self.memory_used_bytes


@dataclass(frozen=True)
class MigInstance(GpuOrInstance):
    """One MIG instance of a GPU; CUDA gives a process one of them at most."""

    gpu: int = field(kw_only=True)  # the index of its GPU

    @property
    def label(self) -> str:
        return f"{self.gpu}.{self.index}"


@dataclass(frozen=True)
class Gpu(GpuOrInstance):
    """One GPU as NVML describes it.

    None: this GPU or its driver does not say.  Sources: NVML, /proc, /sys/bus/pci.
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
    mig: tuple[MigInstance, ...] = ()
    links: Mapping[int, str] = field(default_factory=dict)  # to other GPUs: NV18, PIX, PXB, PHB, NODE, SYS

    @property
    def gpus_or_instances(self) -> tuple[GpuOrInstance, ...]:
        """What processes can be given: its MIG instances, or itself where it has none."""
        return self.mig or (self,)

    @classmethod
    def from_wire(cls, gpu: Mapping[str, Any]) -> Gpu:
        """Read a GPU from an agent's `facts`, which lack what a broken GPU did not say."""
        known = {name: gpu[name] for name in cls.__dataclass_fields__ if name in gpu}
        known |= _uses(gpu)
        known["slowed_by"] = tuple(gpu.get("slowed_by", ()))
        known["links"] = {int(other): link for other, link in gpu.get("links", {}).items()}
        known["mig"] = tuple(
            MigInstance(**{**device, **_uses(device)}, gpu=gpu["index"]) for device in gpu.get("mig", ())
        )
        return _judged(cls(**known))


def why_busy(gpu: Gpu) -> str:
    """The first reason, in this order, why a run must not take that GPU; "" when it is free."""
    if gpu.error:
        return f"broken: {gpu.error}"
    if gpu.compute_mode == "prohibited":
        return PROHIBITED
    if gpu.mig_mode:
        return "in MIG mode: its instances are devices of their own" if gpu.mig else NO_INSTANCE
    return in_use(gpu) or _promise(gpu)


def _why_busy_instance(instance: MigInstance, gpu: Gpu) -> str:
    if gpu.compute_mode == "prohibited":
        return PROHIBITED
    if not instance.uuid:
        return "the driver does not tell its UUID"
    return in_use(instance) or _promise(instance)


def in_use(device: GpuOrInstance) -> str:
    """Why that device is in use now, runs that wait for it aside; "" when it is not."""
    if device.lease is not None:
        return f"leased to {device.lease.holder}"
    if device.lease_error:
        return f"cannot be leased: {device.lease_error}"
    computing = [process for process in device.processes if process.kind == "compute"]
    if computing:
        return "in use by " + ", ".join(f"{each.user or 'somebody'} (pid {each.pid})" for each in computing)
    most = BUSY_MIG_MEMORY_BYTES if isinstance(device, MigInstance) else BUSY_MEMORY_BYTES
    if device.memory_used_bytes > most:
        return f"{device.memory_used_bytes / 2**30:.1f} GiB in use by {_unnamed(device)}"
    busy_percent = (device.utilization_percent or 0) if isinstance(device, Gpu) else 0
    if busy_percent >= BUSY_PERCENT and device.memory_used_bytes > CONTEXT_BYTES:
        return f"{busy_percent} % in use by {_unnamed(device)}"
    return ""


def _promise(device: GpuOrInstance) -> str:
    if device.promised is None:
        return ""
    return f"promised to {device.promised.holder}, which waits since {clock_time(device.promised.since)}"


def _unnamed(device: GpuOrInstance) -> str:
    """What uses it, if no process is seen to compute: a desktop, if its processes explain the memory."""
    shown = sum(process.memory_bytes or 0 for process in device.processes)
    if device.processes and device.memory_used_bytes - shown <= BUSY_MEMORY_BYTES:
        return "a desktop"
    return "a process that is not visible there"


_UNUSED: Mapping[str, Any] = {"processes": (), "memory_used_bytes": 0, "lease": None, "promised": None}


def when_free(inventory: Inventory) -> dict[str, HostFacts]:
    """The same hosts as if their GPUs were not in use and no run waited for one; broken or closed GPUs stay so."""

    def freed(gpu: Gpu) -> Gpu:
        return _judged(replace(gpu, **_UNUSED, mig=tuple(replace(each, **_UNUSED) for each in gpu.mig)))

    return {
        host: replace(facts, gpus=tuple(map(freed, facts.gpus)), gpus_held=0)
        for host, facts in inventory.items()
    }


def _judged(gpu: Gpu) -> Gpu:
    instances = tuple(replace(each, busy=_why_busy_instance(each, gpu)) for each in gpu.mig)
    return replace(gpu, busy=why_busy(gpu), mig=instances)


def _uses(device: Mapping[str, Any]) -> dict[str, Any]:
    """The processes on a GPU or MIG instance, its lease, and the run that it is promised to, read from the wire."""
    return {
        "processes": tuple(GpuProcess(**process) for process in device.get("processes", ())),
        **{name: Lease(**device[name]) if device.get(name) else None for name in ("lease", "promised")},
    }


@dataclass(frozen=True)
class HostFacts:
    """One host at probe time.  `ports` are already held by its agent, in ascending order."""

    host: str  # the name in the hostfile
    hostname: str  # what the machine calls itself
    boot_id: str  # two hosts with the same one are one machine
    addresses: tuple[str, ...]  # of its network interfaces, loopback left out
    python: str  # the agent's interpreter: "3.11.7"
    cores: int
    memory_bytes: int
    ports: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    gpu_note: str = ""  # why there are none, when a driver is there but does not answer
    proxies: tuple[str, ...] = ()  # names of proxy variables that tasks would inherit
    interfaces: tuple[str, ...] = ()  # the interface of each of `addresses`
    driver: str = ""  # NVIDIA's version: "550.54.15"; "" without one
    cuda: str = ""  # the newest that the driver serves: "12.4"
    load: float = 0.0  # processes that run or want to, mean of the last minute
    memory_available_bytes: int = 0
    disk_free_bytes: int = 0  # where runs are kept
    clock: float = 0.0  # the host's own time when it sent this (epoch seconds)
    queue: tuple[Ticket, ...] = ()  # the runs that wait for its GPUs, first one first
    queue_error: str = ""  # why no run can wait for its GPUs in turn
    ports_taken: tuple[str, ...] = ()  # who has the others of `ports:`, where they are too few
    gpus_held: int = 0  # by other runs of this user, those that only plan aside
    gpu_limit: int | None = None  # how many a user may hold there

    @property
    def gpus_or_instances(self) -> tuple[GpuOrInstance, ...]:
        """Its GPUs and MIG instances that processes can be given, free or busy, lowest label first."""
        return tuple(
            device for gpu in sorted(self.gpus, key=lambda gpu: gpu.index) for device in gpu.gpus_or_instances
        )

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
            ports_taken=tuple(facts.get("ports_taken", ())),
            gpus_held=facts.get("gpus_held", 0),
            gpu_limit=facts.get("gpu_limit"),
        )


Inventory = Mapping[str, HostFacts]
