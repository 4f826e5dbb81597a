"""NUMA nodes of /sys/devices/system that exist in tests alone."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

NEAR, FAR = 10, 21  # as firmware says it of two sockets


def why_no_policies() -> str:
    """Why numactl cannot say here where memory comes from; "": it can."""
    try:
        tried = subprocess.run(
            ["numactl", "--interleave=all", "true"], capture_output=True, text=True, check=False
        )
    except OSError:
        return "there is no numactl here"
    return tried.stderr.strip() if tried.returncode else ""


def simulate_nodes(place: Path, nodes: Sequence[str]) -> None:
    """Write what the kernel has in /sys/devices/system/node of nodes with these CPUs: `0-3,8-11`."""
    place.mkdir(parents=True, exist_ok=True)
    for number, cpus in enumerate(nodes):
        node = place / f"node{number}"
        node.mkdir(exist_ok=True)
        (node / "cpulist").write_text(f"{cpus}\n")
        distances = (str(NEAR if other == number else FAR) for other in range(len(nodes)))
        (node / "distance").write_text(" ".join(distances) + "\n")


def simulate_hyperthreads(place: Path, cores: Sequence[Sequence[int]]) -> None:
    """Write what it has in /sys/devices/system/cpu of these cores, each by its CPUs."""
    for core in cores:
        for cpu in core:
            topology = place / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(",".join(map(str, core)) + "\n")
