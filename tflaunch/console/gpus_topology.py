"""How the GPUs of a host are connected: a matrix of links."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text, wrapped_words
from tflaunch.planning.inventory import Gpu

_INDEX_COLUMNS = 5
_WORDS = {
    "NV#": "so many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "within one NUMA node",
    "SYS": "between NUMA nodes",
}


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


def legend_lines(columns: int) -> list[Text]:
    """What the words in the matrix mean."""
    words = [f"{word} {meaning}" for word, meaning in _WORDS.items()]
    return [Text(line, "dim") for line in wrapped_words(words, columns, ", ")]
