"""Every fact of a host and its GPUs, once: its name, with the unit in it, its type, and what it means.

From these declarations come the check of what hosts send (messages.py), the dataclasses in which the launcher keeps it
(planning/inventory.py), and what the reference says of it.  None: the host, the GPU or its driver does not say.
"""

from tflaunch.protocol.fields import (
    Each,
    a_flag,
    a_gpu_number,
    a_number,
    a_port,
    a_text,
    a_whole_number,
    a_word,
    an_address,
    an_integer,
    one_of,
    or_null,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple, TypeVar

    from typing_extensions import dataclass_transform

    _Declared = TypeVar("_Declared")


class Fact:
    """A fact: `spec` describes its values on the wire; None: the launcher works it out.

    `says` is its meaning; `default` its value where it is missing, REQUIRED: it never is; `always`: a message without
    it is refused, although it has a default.
    """

    __slots__ = ("always", "default", "says", "spec")

    def __init__(self, spec: "Any", says: str, default: "Any", always: bool) -> None:
        self.spec = spec
        self.says = says
        self.default = default
        self.always = always


REQUIRED = object()


def fact(spec: "Any", says: str, *, default: "Any" = REQUIRED, always: bool = False) -> "Any":
    """Declare a fact, as `Fact` says."""
    return Fact(spec, says, default, always or default is REQUIRED)


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, field_specifiers=(fact,))
    def _facts(declared: "type[_Declared]") -> "type[_Declared]":
        """Mark a class whose attributes are facts."""
        return declared
else:

    def _facts(declared):
        return declared


_SINCE = "since when, in epoch seconds by the host's clock"


@_facts
class ProcessFacts:
    """A process on a GPU; empty and null for what a container or another user hides."""

    pid: "int" = fact(a_whole_number, "on its host")
    user: "str" = fact(a_word, "who runs it")
    command: "str" = fact(a_text, "its command line")
    kind: "str" = fact(one_of("compute", "graphics"), "`compute`, or `graphics`: a desktop")
    memory_bytes: "Optional[int]" = fact(or_null(a_whole_number), "of the GPU")
    started: "Optional[float]" = fact(or_null(a_number), "when, in epoch seconds by the host's clock")


@_facts
class LeaseFacts:
    """The run that has a GPU."""

    user: "str" = fact(a_word, "whose it is")
    run: "str" = fact(a_word, "the run's id")
    since: "float" = fact(a_number, _SINCE)
    planning: "bool" = fact(a_flag, "whether it has the GPU only until its plan is made", default=False)
    pid: "int" = fact(
        a_whole_number, "of a process that has locked the GPU and is no run of tflaunch; else 0", default=0
    )


@_facts
class TicketFacts(LeaseFacts):
    """A run that waits for GPUs."""

    wants: "int" = fact(a_whole_number, "how many GPUs, on all its hosts together", default=0, always=True)
    uuids: "Tuple[str, ...]" = fact([a_word], "those of this host that it could use", default=(), always=True)


def names(declared: type) -> "Dict[str, Fact]":
    """The facts of a class and of the classes above it, in their order."""
    found = {}  # type: Dict[str, Fact]
    for each in reversed(declared.__mro__):
        found.update((name, value) for name, value in vars(each).items() if isinstance(value, Fact))
    return found


def record(declared: type) -> "Dict[str, Any]":
    """The fields of these facts on the wire, for `tflaunch.protocol.fields.misfit`."""
    facts = names(declared)
    return {
        name if each.always else "?" + name: each.spec
        for name, each in facts.items()
        if each.spec is not None
    }


def meanings(declared: type) -> "Mapping[str, str]":
    """What each of these facts means."""
    return {name: each.says for name, each in names(declared).items()}


_LEASE = or_null(record(LeaseFacts))


@_facts
class DeviceFacts:
    """What one process can be given: a whole GPU, or one MIG instance."""

    index: "int" = fact(a_whole_number, "of a GPU: NVML's; of a MIG instance: its number within its GPU")
    uuid: "str" = fact(a_word, "NVML's UUID")
    name: "str" = fact(a_word, "NVML's name of the model")
    memory_total_bytes: "int" = fact(a_whole_number, "its memory")
    memory_used_bytes: "int" = fact(
        a_whole_number, "what of it is in use, without what the driver reserves for itself"
    )
    busy: "str" = fact(None, "why a run must not take it, or empty", default="")
    processes: "Any" = fact([record(ProcessFacts)], "the processes on it", default=())
    lease: "Any" = fact(_LEASE, "the run that has it, or null", default=None)
    lease_error: "str" = fact(a_text, "why it cannot be leased, or empty", default="")
    promised: "Any" = fact(
        _LEASE, "the run that it is promised to, and that waits for it, or null", default=None
    )


@_facts
class GpuFacts(DeviceFacts):
    """A GPU as NVML, /proc and /sys/bus/pci describe it; gpu_probe.py asks them."""

    error: "str" = fact(
        a_text, "what NVML says of a GPU that is lost or broken, or empty", default="", always=True
    )
    utilization_percent: "Optional[int]" = fact(
        or_null(a_whole_number), "how much of the last second kernels ran", default=None
    )
    temperature_c: "Optional[int]" = fact(or_null(an_integer), "in °C", default=None)
    power_w: "Optional[float]" = fact(or_null(a_number), "in watts", default=None)
    power_limit_w: "Optional[float]" = fact(or_null(a_number), "in watts", default=None)
    ecc_errors: "Optional[int]" = fact(
        or_null(a_whole_number), "uncorrected ones since the driver was loaded", default=None
    )
    slowed_by: "Tuple[str, ...]" = fact(
        [a_word], "`power_cap`, `hw_slowdown`, `sw_thermal`, `hw_thermal`, `power_brake`", default=()
    )
    compute_mode: "str" = fact(
        one_of("default", "exclusive_thread", "prohibited", "exclusive_process", ""),
        "`default`, `exclusive_process`, `exclusive_thread` or `prohibited`",
        default="",
    )
    persistence: "Optional[bool]" = fact(or_null(a_flag), "whether persistence mode is on", default=None)
    pci_bus_id: "str" = fact(a_word, "its PCI bus id", default="")
    numa_node: "Optional[int]" = fact(or_null(an_integer), "its NUMA node", default=None)
    mig_mode: "bool" = fact(a_flag, "whether MIG is on", default=False)
    mig: "Any" = fact([record(DeviceFacts)], "its MIG instances", default=())
    links: "Any" = fact(
        Each(a_gpu_number, a_word),
        "index of another GPU -> how they are connected: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`",
        default={},
    )


@_facts
class NodeFacts:
    """A NUMA node, as /sys/devices/system and the affinity of the agent describe it; agent/host/cores.py reads them."""

    node: "int" = fact(a_whole_number, "its number")
    cores: "Tuple[Tuple[int, ...], ...]" = fact(
        [[a_whole_number]],
        "its cores that a program of yours may use, each by the numbers of its CPUs, its hyperthreads",
    )
    gpus: "Tuple[int, ...]" = fact(
        [a_whole_number], "the indices of the GPUs beside it", default=(), always=True
    )
    distances: "Mapping[str, int]" = fact(
        Each(a_gpu_number, a_whole_number),
        "number of a node -> how far its memory is: 10 is its own",
        default={},
        always=True,
    )


@_facts
class NicFacts:
    """A network interface with an address, or an RDMA device; agent/net/nics.py reads them from /sys/class."""

    name: "str" = fact(a_word, "the interface; empty for an RDMA device without one that has an address")
    networks: "Tuple[str, ...]" = fact(
        [a_word], "its addresses with the bits of their networks: `10.2.0.1/16`"
    )
    mbit_s: "Optional[int]" = fact(
        or_null(a_whole_number), "how fast its link is; null: the driver does not say"
    )
    rdma: "str" = fact(a_word, "the RDMA device behind it: `mlx5_0`, or empty", default="", always=True)
    fabric: "str" = fact(
        a_word,
        "what the RDMA device is on: `InfiniBand`, `Ethernet` (RoCE), or empty",
        default="",
        always=True,
    )
    gpus: "Mapping[str, str]" = fact(
        Each(a_gpu_number, a_word),
        "index of a GPU -> how they are connected: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`",
        default={},
        always=True,
    )


@_facts
class MachineFacts:
    """A host when it was asked; agent/host_facts.py collects what it is."""

    host: "str" = fact(None, "its name in the hostfile")
    hostname: "str" = fact(a_word, "its own name for itself")
    boot_id: "str" = fact(a_word, "the kernel's: the same for all names of one machine")
    addresses: "Tuple[str, ...]" = fact([an_address], "its IP addresses")
    python: "str" = fact(a_word, "the version of the Python that answered")
    cores: "int" = fact(a_whole_number, "its CPU cores")
    memory_bytes: "int" = fact(a_whole_number, "its memory")
    ports: "Tuple[int, ...]" = fact([a_port], "the ports that its agent holds, in ascending order")
    gpus: "Any" = fact([record(GpuFacts)], "its GPUs", default=(), always=True)
    gpu_note: "str" = fact(a_text, "why no GPU could be listed, or empty", default="", always=True)
    proxies: "Tuple[str, ...]" = fact(
        [a_word], "the variables of proxies that are set there", default=(), always=True
    )
    interfaces: "Tuple[str, ...]" = fact([a_word], "the names of its network interfaces", default=())
    driver: "str" = fact(a_word, "the version of the NVIDIA driver, or empty", default="", always=True)
    cuda: "str" = fact(a_word, "the newest CUDA that the driver supports, or empty", default="", always=True)
    load: "float" = fact(a_number, "its load average of the last minute", default=0.0, always=True)
    memory_available_bytes: "int" = fact(
        a_whole_number, "what programs can still get of it", default=0, always=True
    )
    disk_free_bytes: "int" = fact(a_whole_number, "free in the directory of the runs", default=0, always=True)
    clock: "float" = fact(a_number, "its clock, in epoch seconds", default=0.0, always=True)
    queue: "Any" = fact(
        [record(TicketFacts)], "the runs that wait for its GPUs, the next one first", default=(), always=True
    )
    queue_error: "str" = fact(a_text, "why the queue cannot be read, or empty", default="", always=True)
    ports_taken: "Tuple[str, ...]" = fact(
        [a_text], "who has the others of `ports:`, where they are too few", default=()
    )
    gpus_held: "int" = fact(a_whole_number, "how many of its GPUs your runs have", default=0)
    gpu_limit: "Optional[int]" = fact(
        or_null(a_whole_number), "how many GPUs of the host one user may hold, or null", default=None
    )
    nodes: "Any" = fact(
        [record(NodeFacts)], "its NUMA nodes that have cores for programs of yours", default=()
    )
    cpu_quota: "Optional[float]" = fact(
        or_null(a_number), "how many cores' time the quota of its cgroup allows; null: any", default=None
    )
    set_there: "Tuple[str, ...]" = fact(
        [a_word],
        "the variables that size thread pools or choose networks, and that it sets itself",
        default=(),
    )
    nics: "Any" = fact(
        [record(NicFacts)], "its network interfaces that have addresses, and its RDMA devices", default=()
    )
    gpudirect: "str" = fact(
        a_word,
        "the kernel module by which GPUs and RDMA devices exchange data by themselves, or empty",
        default="",
    )
