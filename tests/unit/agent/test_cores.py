"""The cores of a host, as the agent reads them from a simulated /sys/devices/system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.numa import simulate_hyperthreads, simulate_nodes
from tflaunch.agent.host import cores

GPUS = [{"index": 0, "numa_node": 0}, {"index": 1, "numa_node": 1}, {"index": 2, "numa_node": None}]


def may_use(monkeypatch: pytest.MonkeyPatch, *cpus: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cpus))


def test_two_sockets_with_hyperthreads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_nodes(tmp_path / "node", ["0-1,4-5", "2-3,6-7", ""])  # the last one has memory alone
    simulate_hyperthreads(tmp_path / "cpu", [(0, 4), (1, 5), (2, 6), (3, 7)])
    may_use(monkeypatch, *range(8))
    first, second = cores.nodes(GPUS, str(tmp_path))
    assert first == {
        "node": 0,
        "cores": [[0, 4], [1, 5]],
        "distances": {"0": 10, "1": 21, "2": 21},
        "gpus": [0],
    }
    assert second["cores"] == [[2, 6], [3, 7]]
    assert second["gpus"] == [1]


def test_a_cpuset_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_nodes(tmp_path / "node", ["0-3", "4-7"])
    may_use(monkeypatch, 5, 6)
    [only] = cores.nodes(GPUS, str(tmp_path))
    assert (only["node"], only["cores"]) == (1, [[5], [6]])
    assert only["gpus"] == [0, 1, 2]  # there are no other cores for their tasks


def test_a_kernel_without_numa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_use(monkeypatch, 0, 1)
    assert cores.nodes([], str(tmp_path)) == [{"node": 0, "cores": [[0], [1]], "distances": {}, "gpus": []}]


def test_this_machine() -> None:
    found = cores.nodes([])
    assert {cpu for node in found for core in node["cores"] for cpu in core} == os.sched_getaffinity(0)
