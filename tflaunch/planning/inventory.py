"""What the agents said about their hosts: the facts from which a plan is made and which `tflaunch gpus` shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any

from tflaunch.gpu_probe import BUSY_MEMORY_BYTES, BUSY_MIG_MEMORY_BYTES
from tflaunch.protocol import facts
from tflaunch.text.times import clock_time

BUSY_PERCENT = 25  # of the time; less may be a desktop
# No program computes with less memory; a GPU whose driver has just initialised it shows 100 % for a moment, with none.
CONTEXT_BYTES = 64 * 1024 * 1024

PROHIBITED = "compute mode is PROHIBITED"
NO_INSTANCE = "in MIG mode without an instance"


if TYPE_CHECKING:
    from tflaunch.protocol.facts import (
        DeviceFacts,
        GpuFacts,
        LeaseFacts,
        MachineFacts,
        NicFacts,
        NodeFacts,
        ProcessFacts,
        TicketFacts,
    )
else:

    def _declared(kind: type) -> type:
        """The dataclass of the facts that this class declares."""
        fields = []
        for name, fact in facts.names(kind).items():
            if fact.default is facts.REQUIRED:
                made = field()
            elif fact.default == {}:
                made = field(default_factory=dict)
            else:
                made = field(default=fact.default)
            fields.append((name, Any, made))
        # Only bases: the classes below have the methods, of which each takes as long to make as all of their fields.
        return make_dataclass(kind.__name__, fields, init=False, repr=False, eq=False, frozen=True)

    DeviceFacts, GpuFacts, LeaseFacts, MachineFacts, NicFacts, NodeFacts, ProcessFacts, TicketFacts = map(
        _declared,
        (
            facts.DeviceFacts,
            facts.GpuFacts,
            facts.LeaseFacts,
            facts.MachineFacts,
            facts.NicFacts,
            facts.NodeFacts,
            facts.ProcessFacts,
            facts.TicketFacts,
        ),
    )


@dataclass(frozen=True)
class GpuProcess(ProcessFacts):
    """A process on a GPU; "" and None for what a container or another user hides."""


@dataclass(frozen=True)
class Lease(LeaseFacts):
    """The run that has a GPU, from its plan to its end."""

    @property
    def holder(self) -> str:
        """For people: `alice's run trainer-k3f9x2`."""
        if self.pid:
            return f"pid {self.pid} of {self.user or 'somebody'}, which is no run: it has locked the GPU"
        return f"{self.user or 'somebody'}'s run {self.run}".rstrip()


@dataclass(frozen=True)
class Ticket(Lease, TicketFacts):
    """A run that waits for GPUs; (since, run) is its place in the queue, on every host."""


@dataclass(frozen=True)
class GpuOrInstance(DeviceFacts):
    """What one process can be given: a whole GPU, or one MIG instance.

    `busy` says why a run must not take it, "" when it is free.  `index` is NVML's, which users see, not CUDA's.
    """

    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    promised: Lease | None = None

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
class Gpu(GpuOrInstance, GpuFacts):
    """One GPU as NVML describes it.  None: this GPU or its driver does not say."""

    mig: tuple[MigInstance, ...] = ()
    links: Mapping[int, str] = field(default_factory=dict)

    @property
    def gpus_or_instances(self) -> tuple[GpuOrInstance, ...]:
        """What processes can be given: its MIG instances, or itself where it has none."""
        return self.mig or (self,)

    @classmethod
    def from_wire(cls, gpu: Mapping[str, Any]) -> Gpu:
        """Read a GPU from an agent's `facts`, which lack what a broken GPU did not say."""
        known = {**_read(cls, gpu), **_uses(gpu)}
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
class Node(NodeFacts):
    """A NUMA node with cores that tasks may use."""


@dataclass(frozen=True)
class Nic(NicFacts):
    """A network interface, or an RDMA device without one."""


@dataclass(frozen=True)
class HostFacts(MachineFacts):
    """One host at probe time.  `ports` are already held by its agent, in ascending order."""

    gpus: tuple[Gpu, ...] = ()
    nodes: tuple[Node, ...] = ()
    nics: tuple[Nic, ...] = ()
    queue: tuple[Ticket, ...] = ()  # first one first

    @property
    def usable_cores(self) -> int:
        """Its CPU cores, or fewer where the quota of its cgroup allows no more time."""
        return self.cores if not self.cpu_quota else min(self.cores, math.ceil(self.cpu_quota))

    @property
    def gpus_or_instances(self) -> tuple[GpuOrInstance, ...]:
        """Its GPUs and MIG instances that processes can be given, free or busy, lowest label first."""
        return tuple(
            device for gpu in sorted(self.gpus, key=lambda gpu: gpu.index) for device in gpu.gpus_or_instances
        )

    @classmethod
    def from_wire(cls, host: str, said: Mapping[str, Any]) -> HostFacts:
        """Read an agent's `facts` message; raises KeyError or TypeError when it is not one."""
        known = _read(cls, {**said, "host": host})
        known["gpus"] = tuple(map(Gpu.from_wire, said["gpus"]))
        known["queue"] = tuple(Ticket(**_read(Ticket, each)) for each in said["queue"])
        known["nodes"] = tuple(
            Node(**{**_read(Node, each), "cores": tuple(map(tuple, each["cores"]))})
            for each in said.get("nodes", ())
        )
        known["nics"] = tuple(Nic(**_read(Nic, each)) for each in said.get("nics", ()))
        return cls(**known)


def _read(kind: type[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of that dataclass which a host has said; lists as tuples."""
    known = {name: said[name] for name in kind.__dataclass_fields__ if name in said}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


Inventory = Mapping[str, HostFacts]
