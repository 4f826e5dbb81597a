"""The cores of this host by NUMA node, and processes that start on some of them only."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Sequence

SYSTEM = "/sys/devices/system"


def nodes(gpus: "Sequence[Dict[str, Any]]", system: str = SYSTEM) -> "List[Dict[str, Any]]":
    """Fact `nodes`: the NUMA nodes with cores that this process may use; `gpus` are all of the machine.

    Whatever limits the agent (a cpuset, an engine, taskset) limits its tasks, too.  A kernel without NUMA has node 0.
    """
    mine = os.sched_getaffinity(0)
    try:
        numbers = sorted(int(name[4:]) for name in os.listdir(system + "/node") if name[4:].isdigit())
    except OSError:
        numbers = []
    found = []
    for number in numbers:
        place = "%s/node/node%d/" % (system, number)
        cores = _cores(mine.intersection(listed(_read(place + "cpulist"))), system)
        if cores:
            # The columns of `distance` are the nodes that are online, in order.
            far = zip(numbers, map(int, _read(place + "distance").split()))  # noqa: B905 - Python 3.8
            found.append({"node": number, "cores": cores, "distances": {str(key): way for key, way in far}})
    if not found:
        found = [{"node": 0, "cores": _cores(mine, system), "distances": {}}]
    for node in found:
        node["gpus"] = [
            gpu["index"] for gpu in gpus if len(found) == 1 or gpu.get("numa_node") == node["node"]
        ]
    return found


def bind(cpus: "Iterable[int]") -> None:
    """From now on this thread, and what it starts, use only those of these CPUs that are there; raises OSError."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        raise OSError("none of the CPUs that it is bound to may be used here any more") from None


def _cores(cpus: "Any", system: str) -> "List[List[int]]":
    """These CPUs by core: the hyperthreads of one stand together."""
    found = {}  # type: Dict[int, List[int]]
    for cpu in sorted(cpus):
        siblings = listed(_read("%s/cpu/cpu%d/topology/thread_siblings_list" % (system, cpu)))
        found.setdefault(min(siblings, default=cpu), []).append(cpu)
    return list(found.values())


def listed(text: str) -> "List[int]":
    """The numbers of a list as the kernel writes it: `0-7,64-71`."""
    spans = [each.partition("-") for each in text.strip().split(",") if each]
    return [cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
