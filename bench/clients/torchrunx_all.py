"""torchrunx: an agent on each host, by its own SSH client (fabric), and a function in each task."""

from __future__ import annotations

import os
from collections import Counter

import torchrunx

from bench.clients.common import end, given


def run(command: str) -> int:
    """The task."""
    return os.spawnlp(os.P_WAIT, "sh", "sh", "-c", command)


if __name__ == "__main__":
    hosts, given_command = given()
    tasks = Counter(hosts)
    launcher = torchrunx.Launcher(
        hostnames=list(tasks), workers_per_host=next(iter(tasks.values())), backend=None
    )
    results = launcher.run(run, given_command)
    end((code for codes in results.results.values() for code in codes), len(hosts))
