"""The probe on the real pynvml above a simulated NVML library."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Host
from tests.support.driver import PROBE, ask
from tests.support.lab import PATH
from tests.support.nvml import Fleet
from tflaunch.planning.inventory import Gpu

SCRIPT = """
import json, sys
from tflaunch import gpu_probe
print(json.dumps(gpu_probe.probe()))
"""


def probe(fleet: Fleet | None) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(fleet.env if fleet else {})}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def gpus(fleet: Fleet) -> list[Gpu]:
    """The GPUs as the launcher reads them."""
    found = probe(fleet)
    assert (found["note"], found["lacks"]) == ("", "")
    return [Gpu.from_wire(gpu) for gpu in found["gpus"]]


def test_a_host_without_a_driver_has_no_gpus() -> None:
    assert probe(None) == {"gpus": [], "driver": "", "cuda": "", "note": "", "lacks": "", "locks": {}}


def test_what_a_gpu_is(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "driver 550.54.15",
        "cuda 12040",
        'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-a mem=81559 used=4 util=7 temp=33 power=71000 limit=700000'
        " bus=0000:18:00.0 mode=3",
    )
    found = probe(fleet)
    assert (found["driver"], found["cuda"]) == ("550.54.15", "12.4")
    (gpu,) = gpus(fleet)
    assert gpu == Gpu(
        index=0,
        uuid="GPU-a",
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=81559 << 20,
        memory_used_bytes=4 << 20,
        utilization_percent=7,
        temperature_c=33,
        power_w=71.0,
        power_limit_w=700.0,
        ecc_errors=0,
        compute_mode="exclusive_process",
        persistence=True,
        pci_bus_id="0000:18:00.0",
    )


def test_why_a_gpu_must_not_be_taken(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-free mem=81559 used=4 reserved=600",  # what the driver keeps for itself is nobody's
        "gpu uuid=GPU-used mem=16384 used=2048",
        "gpu uuid=GPU-mine mem=16384 used=100",
        "gpu uuid=GPU-off mem=16384 mode=2",
        "gpu uuid=GPU-lost mem=16384 error=15",
        "gpu uuid=GPU-hidden mem=16384",
        f"proc gpu=2 pid={os.getpid()} mem=90",
        "proc gpu=5 pid=4999999 mem=90",  # as a container sees a process outside
    )
    free, used, mine, off, lost, hidden = gpus(fleet)
    assert free.busy == ""
    assert used.busy == "2.0 GiB in use by a process that is not visible there"
    assert mine.busy == f"in use by {getpass.getuser()} (pid {os.getpid()})"
    assert "PROHIBITED" in off.busy
    assert "lost" in lost.busy.lower()
    assert lost.error
    assert hidden.busy == "in use by somebody (pid 4999999)"
    (process,) = mine.processes
    assert (process.memory_bytes, process.kind) == (90 << 20, "compute")
    assert "python" in process.command
    assert process.started is not None
    assert abs(process.started - time.time()) < 24 * 3600


@pytest.mark.parametrize("driver", ["550.54.15", "470.57.02"])
def test_what_the_driver_reserves_for_itself_is_in_nobodys_use(
    library: Path, tmp_path: Path, driver: str
) -> None:
    (gpu,) = gpus(Fleet(library, tmp_path / "fleet", f"driver {driver}", "gpu mem=81920 used=4 reserved=870"))
    assert (gpu.memory_used_bytes, gpu.busy) == (4 << 20, "")


def test_who_hides_is_seen_by_what_he_uses(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu mem=16384 used=300 util=90",
        "gpu mem=16384 used=300 util=10",  # an idle context, or a desktop
        "gpu mem=16384 used=4 util=100",  # a GPU that has just been initialised
        "gpu mem=16384 used=300 util=30",
        "gpu mem=16384 used=900 util=2",
        "gpu mem=16384 used=9000 util=2",
        "proc gpu=3 pid=4999999 mem=280 graphics=1",
        "proc gpu=4 pid=4999999 mem=880 graphics=1",
        "proc gpu=5 pid=4999999 mem=880 graphics=1",
    )
    assert [gpu.busy for gpu in gpus(fleet)] == [
        "90 % in use by a process that is not visible there",
        "",
        "",
        "30 % in use by a desktop",
        "0.9 GiB in use by a desktop",
        "8.8 GiB in use by a process that is not visible there",
    ]


def test_mig_instances_are_devices_of_their_own(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-x mem=40960",
        "gpu uuid=GPU-a mem=40960 cc=8.0 mig=1",
        'mig gpu=1 uuid=MIG-a name="A100 MIG 3g.20gb" mem=19968 used=15 cc=8.0 gi=1',
        "mig gpu=1 uuid=MIG-b mem=4864 used=9 cc=8.0 gi=2",
        "mig gpu=1 uuid=MIG-c mem=4864 used=300 cc=8.0 gi=3",
        f"proc gpu=1 gi=2 pid={os.getpid()} mem=90",
        "gpu uuid=GPU-b mem=40960 cc=8.0 mig=1",
        "gpu uuid=GPU-c mem=40960 cc=8.0 mig=1 mode=2",
        "mig gpu=3 uuid=MIG-d mem=4864 cc=8.0",
    )
    whole, gpu, empty, closed = gpus(fleet)
    assert (whole.label, whole.gpus_or_instances, whole.busy) == ("0", (whole,), "")
    assert gpu.gpus_or_instances == gpu.mig
    assert "MIG" in gpu.busy
    assert {device.label: (device.uuid, device.busy) for device in gpu.mig} == {
        "1.0": ("MIG-a", ""),
        "1.1": ("MIG-b", f"in use by {getpass.getuser()} (pid {os.getpid()})"),
        "1.2": ("MIG-c", "0.3 GiB in use by a process that is not visible there"),
    }
    assert gpu.mig[0].memory_total_bytes == 19968 << 20
    assert (empty.gpus_or_instances, empty.busy) == ((empty,), "in MIG mode without an instance")
    assert [device.busy for device in closed.gpus_or_instances] == ["compute mode is PROHIBITED"]


def test_how_gpus_are_connected(library: Path, tmp_path: Path) -> None:
    buses = ("18", "2A", "8A")
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        *(f"gpu uuid=GPU-{bus} mem=1024 bus=0000:{bus}:00.0" for bus in buses),
        "nvlink 0 1 4",
        "topo 1 2 30",
    )
    first, second, third = gpus(fleet)
    assert first.links == {1: "NV4", 2: "SYS"}
    assert second.links == {0: "NV4", 2: "PHB"}
    assert third.links == {0: "SYS", 1: "PHB"}


@pytest.mark.parametrize(("code", "word"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_does_not_answer_is_a_fact_of_the_host(
    library: Path, tmp_path: Path, code: int, word: str
) -> None:
    found = probe(Fleet(library, tmp_path / "fleet", f"init_error {code}", "gpu mem=1"))
    assert found["gpus"] == []
    assert word.lower() in found["note"].lower()


def test_nvml_stays_open_from_look_to_look_and_a_new_driver_is_met(library: Path, tmp_path: Path) -> None:
    looks = (
        ("gpu mem=1", 1, ""),
        ("gpu mem=1;init_error 9", 1, ""),  # not opened again: that would fail
        (
            "gpu mem=1;gpu mem=1;loaded 2",
            2,
            "",
        ),  # another driver: opened again within one look, by a new process
        ("gpu mem=1;gpu mem=1;loaded 2;init_error 9", 2, ""),
        ("gpu mem=1;loaded 3;init_error 18", 0, "NVML: RM has detected an NVML/RM version mismatch."),
        ("gpu mem=1;loaded 3", 1, ""),
        ("gpu mem=1;loaded 3;gpu mem=1 error=15", 2, ""),  # after an error on a GPU it is opened again, once
        ("gpu mem=1;loaded 3;gpu mem=1 error=15;init_error 9", 2, ""),
        ("gpu mem=1 error=15;loaded 3;gpu mem=1;init_error 9", 0, "NVML: Driver Not Loaded"),
    )
    answers = ask(Fleet(library, tmp_path / "fleet"), *((fleet.split(";"), PROBE) for fleet, _, _ in looks))
    assert [(len(each.gpus), each.note) for each in answers] == [(count, note) for _, count, note in looks]


def test_what_is_on_gpus_and_instances_by_their_uuids(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-a mem=16384 used=2048 reserved=600",
        "gpu uuid=GPU-m mem=40960 cc=8.0 mig=1",
        "gpu uuid=GPU-lost error=15",
        "mig gpu=1 uuid=MIG-a mem=19968 used=15 cc=8.0 gi=1",
        f"proc gpu=0 pid={os.getpid()} mem=90",
    )
    devices = [("GPU-a", "0"), ("MIG-a", "1.0"), ("GPU-lost", "2"), ("GPU-none", "3"), ("GPU-a", "2")]
    (asked,) = ask(fleet, (None, {"ask": "uses", "devices": devices}))
    told = asked.found
    assert told[0]["memory_used_bytes"] == 2048 << 20
    assert [process["pid"] for process in told[0]["processes"]] == [os.getpid()]
    assert told[1] == {"memory_used_bytes": 15 << 20, "processes": []}
    assert told[2] == {"error": "NVML: GPU is lost"}
    assert told[3] == {"error": "NVML: Not Found"}
    assert told[4] == told[0], "it has another number than before"


def test_the_engines_numbers_are_minors_and_a_slot_has_no_other_gpus(library: Path, tmp_path: Path) -> None:
    """What the kernel numbers, NVML numbers by the bus: `minor:0` may be the GPU of index 1."""
    fleet = Fleet(
        library, tmp_path / "fleet", "gpu uuid=GPU-a mem=1024 minor=1", "gpu uuid=GPU-b mem=1024 minor=0"
    )
    host = Host(tmp_path)
    host.env |= {
        **fleet.env,
        "TFLAUNCH_LEASES": str(tmp_path / "leases"),
        "TFLAUNCH_SLOT_GPUS": "minor:0",
        "PATH": PATH,
    }
    try:
        channel = host.start()
        facts = channel.ask("probe", lease=True, ports=None, count=1, answer="facts")
        assert [gpu["uuid"] for gpu in facts["gpus"]] == ["GPU-b"]
        visit = host.open("visit", run="", host="")
        visit.wait("hello")
        seen = visit.ask("probe", topology=True, answer="facts")
        assert [gpu["uuid"] for gpu in seen["gpus"]] == ["GPU-b"]
    finally:
        host.close()
