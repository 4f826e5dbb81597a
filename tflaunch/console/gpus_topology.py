"""How the GPUs of a host are connected: a matrix of links."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text, wrapped_words
from tflaunch.planning.inventory import Gpu, HostFacts, Nic
from tflaunch.planning.networks import speed, usual
from tflaunch.text.safe import one_line

_INDEX_COLUMNS = 5
_WORDS = {
    "NV#": "so many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "within one NUMA node",
    "SYS": "between NUMA nodes",
}

_WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the nearest first


def matrix_lines(gpus: Sequence[Gpu], columns: int, marks: Marks) -> list[Text]:
    """The matrix of the links between GPUs, in several blocks where it is too wide for one."""
    links = {link for gpu in gpus for link in gpu.links.values()}
    width = max(map(len, (*links, *(str(gpu.index) for gpu in gpus))), default=1) + 2
    fit = max(1, (columns - _INDEX_COLUMNS - 2) // width)
    lines = []
    for start in range(0, len(gpus), fit):
        across = gpus[start : start + fit]
        numbers = "".join(str(gpu.index).rjust(width) for gpu in across)
        lines.append(Text(" " * _INDEX_COLUMNS + numbers, "bold"))
        for gpu in gpus:
            line = Text(str(gpu.index).rjust(_INDEX_COLUMNS), "bold")
            for other in across:
                link = gpu.links.get(other.index, marks.dot if other is gpu else "-")
                style = "bold #009e73" if link.startswith("NV") else "dim" if other is gpu else ""
                line.append(link.rjust(width), style)
            if start == 0 and gpu.numa_node is not None and len(gpus) <= fit:
                line.append(f"  NUMA node {gpu.numa_node}", "dim")
            lines.append(line)
    return lines


def nic_lines(facts: HostFacts, marks: Marks) -> list[Text]:
    """The network interfaces and RDMA devices of a host, each with the GPUs that it is near."""
    lines = []
    nics = usual(facts.nics) + [nic for nic in facts.nics if not nic.name]
    for nic in nics:
        line = Text(" " * _INDEX_COLUMNS + one_line(nic.name or nic.rdma), "bold")
        fabric = "RoCE" if nic.fabric == "Ethernet" else nic.fabric
        parts = [
            speed(nic.mbit_s * 1e6) if nic.mbit_s else "",
            " ".join(filter(None, (fabric, nic.rdma if nic.name else ""))),
            ", ".join(nic.networks),
            _nearest(nic),
        ]
        told = f" {marks.dot} ".join(map(one_line, filter(None, parts)))
        lines.append(line.append(f"  {told}", "dim"))
    if facts.gpudirect:
        lines.append(Text(f"{' ' * _INDEX_COLUMNS}GPUDirect RDMA by {one_line(facts.gpudirect)}", "dim"))
    return lines


def _nearest(nic: Nic) -> str:
    """`PIX of GPU 0, 1`: the GPUs that it is nearest to, if it is not as near to all."""
    ways = {_WAYS.index(way): way for way in nic.gpus.values() if way in _WAYS}
    if not ways:
        return ""
    best = ways[min(ways)]
    near = sorted((gpu for gpu, way in nic.gpus.items() if way == best), key=int)
    return f"{best} to GPU {', '.join(near)}"


def legend_lines(columns: int) -> list[Text]:
    """What the words in the matrix mean."""
    words = [f"{word} {meaning}" for word, meaning in _WORDS.items()]
    return [Text(line, "dim") for line in wrapped_words(words, columns, ", ")]
