"""Which cores of its host each task is bound to, so that no two tasks of the host have one in common; pure.

A GPU has an equal part of the cores of its NUMA node, whichever runs have the other GPUs there: runs that share a host
by GPUs share its cores likewise, and never meet.  A node without GPUs goes to the nearest one that has some.

A quota of processor time, as containers have one, is no core less: each thread runs, and then all are stopped at once.
So the tasks of a host share its quota, and their thread pools are no larger than that.

Where the user asks for it, numactl gives a task memory of the nodes on which its cores are, and of no others, or of
each in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tflaunch.planning.inventory import GpuOrInstance, HostFacts, MigInstance, Node
from tflaunch.protocol.job import Bind, MemoryPolicy

T = TypeVar("T")
Core = tuple[int, ...]  # the numbers of its CPUs: one, or one for each hyperthread
_FAR = 255  # the distance of a node whose distance is not known


@dataclass(frozen=True)
class Cores:
    """The cores of a task; none: it may use all of its host."""

    cores: tuple[Core, ...] = ()
    said: tuple[str, ...] = ()  # variables that the host itself sets
    most: int = 0  # threads that its part of the host's quota has time for; 0: any number
    numactl: str = ""  # the option of numactl that it is started with; "": it is started without

    @property
    def cpus(self) -> str:
        """Their CPUs as the kernel writes such lists: `0-7,64-71`."""
        spans: list[list[int]] = []
        for cpu in sorted(cpu for core in self.cores for cpu in core):
            if spans and cpu == spans[-1][1] + 1:
                spans[-1][1] = cpu
            else:
                spans.append([cpu, cpu])
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)

    @property
    def thread_pools(self) -> dict[str, str]:
        """The variables that size thread pools to these cores and the quota, but for those that the host sets.

        OpenMP's threads compute, one on each core; TensorFlow counts CPUs, as it does by itself.
        """
        if not (self.cores or self.most):
            return {}
        cores, cpus = (
            str(min(filter(None, (count, self.most))))
            for count in (len(self.cores), sum(map(len, self.cores)))
        )
        sizes = {
            "OMP_NUM_THREADS": cores,
            "TF_NUM_INTRAOP_THREADS": cpus,
            "TF_NUM_INTEROP_THREADS": cpus,
        }
        return {name: size for name, size in sizes.items() if name not in self.said}

    def part(self, number: int, count: int) -> Cores:
        """Part `number` of `count` equal ones; all cores where there are fewer.  Memory comes from all the nodes."""
        mine = self.cores if len(self.cores) < count else tuple(_part(self.cores, number, count))
        return replace(self, cores=mine, most=max(1, self.most // count) if self.most else 0)


UNBOUND = Cores()


def share_out(
    bind: Bind,
    facts: HostFacts,
    tasks: Mapping[T, Sequence[GpuOrInstance]],
    memory: MemoryPolicy = "none",
) -> dict[T, Cores]:
    """The cores of these tasks, all that a run has on that host, each with its GPUs; and where their memory is.

    Those that nothing is said of are left out: they are not bound, no quota holds them.
    numa: a task gets the parts of its GPUs; one without GPUs gets as much as a GPU has, from those tasks; where no task
    has GPUs, none is bound.  cores: only the run's own GPUs have parts; without any, the tasks share out the nodes.
    """
    free = bind == "none"
    shares = {} if free or (bind == "auto" and len(facts.nodes) == 1) else _shares(bind, facts, tasks)
    most = max(1, int(facts.cpu_quota / max(1, len(tasks)))) if facts.cpu_quota and not free else 0
    most = most if most < facts.cores else 0
    found = {}
    for task in tasks:
        mine = tuple(shares.get(task, ()))
        found[task] = Cores(mine, facts.set_there, most, _numactl(memory, mine, facts.nodes))
    return {task: cores for task, cores in found.items() if cores != Cores(said=facts.set_there)}


def _numactl(memory: MemoryPolicy, cores: Sequence[Core], nodes: Sequence[Node]) -> str:
    """The option of numactl for a task with these cores, which may be none: it runs on any, then."""
    if memory == "none" or (memory == "membind" and not cores):
        return ""
    near = [str(node.node) for node in nodes if not cores or not {*cores}.isdisjoint(node.cores)]
    return f"--{memory}={','.join(near)}" if near else ""


def _shares(
    bind: Bind, facts: HostFacts, tasks: Mapping[T, Sequence[GpuOrInstance]]
) -> Mapping[T, Sequence[Core]]:
    """The cores of each task that is bound."""
    if not facts.nodes:
        return {}
    own = {_gpu(device) for devices in tasks.values() for device in devices}
    beside = _beside(facts.nodes, own if bind == "cores" else None)
    shares = {task: _of(devices, beside, facts) for task, devices in tasks.items()}
    shares = {task: cores for task, cores in shares.items() if cores}
    bare = [
        task for task, devices in tasks.items() if task not in shares and (bind == "cores" or not devices)
    ]
    if shares:
        weight = sum(len(tasks[task]) for task in shares)
        shares |= _taken(shares, bare, weight, facts.nodes)
    elif bind == "cores":
        shares = _shared_out(facts.nodes, bare)
    return shares


def why_unbound(bind: Bind, facts: HostFacts, gpus: int) -> str:
    """Why no task of a host is bound, which has so many GPUs of the run; a predicate of the host."""
    if not facts.nodes:
        return "does not say which cores it has"
    return "has fewer cores than tasks" if bind == "cores" or gpus else ""


def _gpu(device: GpuOrInstance) -> int:
    return device.gpu if isinstance(device, MigInstance) else device.index


def _beside(nodes: Sequence[Node], counted: Collection[int] | None) -> dict[int, list[Core]]:
    """For each GPU, or each that is `counted`, its part of the cores, by its index."""
    homes = {node.node: [gpu for gpu in node.gpus if counted is None or gpu in counted] for node in nodes}
    homes = {node: gpus for node, gpus in homes.items() if gpus}
    if not homes:
        return {}
    pools = {node.node: list(node.cores) for node in nodes if node.node in homes}
    for node in nodes:
        if node.node not in homes:
            near = min(homes, key=lambda home: (node.distances.get(str(home), _FAR), len(pools[home]), home))
            pools[near] += node.cores
    return {
        gpu: _part(pools[node], place, len(gpus))
        for node, gpus in homes.items()
        for place, gpu in enumerate(sorted(gpus))
    }


def _part(cores: Sequence[Core], number: int, count: int) -> list[Core]:
    """Neighbours, which share their caches."""
    return list(cores[len(cores) * number // count : len(cores) * (number + 1) // count])


def _of(
    devices: Sequence[GpuOrInstance], beside: Mapping[int, Sequence[Core]], facts: HostFacts
) -> list[Core]:
    """The parts of these GPUs; a MIG instance has a part of its GPU's."""
    cores: list[Core] = []
    for device in devices:
        mine = beside.get(_gpu(device), ())
        if isinstance(device, MigInstance):
            labels = sorted(each.label for gpu in facts.gpus if gpu.index == device.gpu for each in gpu.mig)
            mine = _part(mine, labels.index(device.label), len(labels))
        cores += mine
    return cores


def _taken(
    shares: Mapping[T, Sequence[Core]], bare: Sequence[T], weight: int, nodes: Sequence[Node]
) -> dict[T, list[Core]]:
    """All shares once each task of `bare` has as much as one of `weight` GPUs, on one node if it has room.

    It takes them in turn from the task that has most; each keeps a core.
    """
    node_of = {core: node.node for node in nodes for core in node.cores}
    left: dict[int, dict[T, list[Core]]] = defaultdict(dict)
    for task, cores in shares.items():
        for core in cores:
            left[node_of[core]].setdefault(task, []).append(core)
    size = sum(map(len, shares.values())) // max(1, weight + len(bare))
    taken: dict[T, list[Core]] = {}
    for task in bare:
        mine = taken[task] = []
        while len(mine) < size:
            place = max(left.values(), key=_spare)
            if not (spare := _spare(place)):
                break
            for _ in range(min(spare, size - len(mine))):
                mine.append(max(place.values(), key=len).pop())
    kept: dict[T, list[Core]] = defaultdict(list)
    for place in left.values():
        for task, cores in place.items():
            kept[task] += cores
    return {**kept, **taken}


def _spare(shares: Mapping[T, Sequence[Core]]) -> int:
    return sum(len(cores) - 1 for cores in shares.values())


def _shared_out(nodes: Sequence[Node], tasks: Sequence[T]) -> dict[T, list[Core]]:
    """Nodes to tasks in turn, or tasks to nodes; none where a task would get no core."""
    places: dict[int, list[T]] = defaultdict(list)
    shares: dict[T, list[Core]] = {task: [] for task in tasks}
    if len(tasks) >= len(nodes):
        for number, task in enumerate(tasks):
            places[number * len(nodes) // len(tasks)].append(task)
        for place, mine in places.items():
            for number, task in enumerate(mine):
                shares[task] = _part(nodes[place].cores, number, len(mine))
    elif tasks:
        for number, node in enumerate(nodes):
            shares[tasks[number * len(tasks) // len(nodes)]] += node.cores
    return shares if all(shares.values()) else {}
