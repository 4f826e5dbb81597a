"""GPUs and hosts that exist in tests alone, as `tflaunch gpus` shows them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tflaunch.console.gpus_page import GpusView
from tflaunch.planning.inventory import Gpu, GpuProcess, HostFacts, Lease, MigInstance, why_busy
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.gpu_overview import (
    Answer,
    Overview,
)

GIB = 1 << 30
NOW = 1_800_000_000.0


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", used: float = 0, **fields: Any) -> Gpu:
    made = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=int(used * GIB),
        **{"utilization_percent": 0, "temperature_c": 30, "power_w": 70.0, "power_limit_w": 700.0, **fields},
    )
    return dataclasses.replace(made, busy=why_busy(made))


def process(user: str = "alice", pid: int = 4711, gib: float = 10, kind: str = "compute") -> GpuProcess:
    command = "/opt/env/bin/python3 -u /home/alice/train.py --lr 1"
    return GpuProcess(pid, user, command, kind, int(gib * GIB), NOW - 7200)


def facts(host: str, *gpus: Gpu, **fields: Any) -> HostFacts:
    return HostFacts(
        host=host,
        hostname=fields.pop("hostname", host),
        boot_id=fields.pop("boot_id", f"boot of {host}"),
        addresses=fields.pop("addresses", ("10.0.0.1",)),
        python="3.11.7",
        cores=64,
        memory_bytes=512 * GIB,
        ports=(),
        gpus=gpus,
        **fields,
    )


def answer(host: str, *gpus: Gpu, **fields: Any) -> Answer:
    driver = {"driver": "550.54.15", "cuda": "12.4"} if gpus else {}
    return Answer(host, facts(host, *gpus, **{"clock": NOW, **driver, **fields}), 0.1)


LOST = gpu(7, "", error="GPU is lost", utilization_percent=None, temperature_c=None, power_w=None)
MIG = gpu(
    2,
    "NVIDIA A100-SXM4-80GB",
    mig_mode=True,
    mig=(
        MigInstance(0, "MIG-a", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB, 0, gpu=2),
        MigInstance(
            1,
            "MIG-b",
            "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            10 * GIB,
            9 * GIB,
            busy="in use",
            processes=(process(),),
            gpu=2,
        ),
    ),
)
LEASED = gpu(3, lease=Lease("bob", "trainer-0102", NOW - 90))

FLEET = [
    answer("gpu01", gpu(0), gpu(1, used=70, utilization_percent=97, processes=(process(),)), LEASED, LOST),
    answer("gpu02", gpu(0, "NVIDIA GeForce RTX 4090", used=3, temperature_c=80), gpu(1, "Tesla V100"), MIG),
    answer("cpu01"),
    answer("cpu02"),
    answer("sick", gpu_note="NVML: Driver Not Loaded", driver=""),
    Answer("dead1", error=ConnectError("no route", "ping {host}")),
    Answer("dead2", error=ConnectError("no route", "ping {host}")),
    Answer("slow"),
]


def page(overview: Overview, columns: int = 160, **options: Any) -> str:
    return "\n".join(line.plain for line in GpusView(columns, **options).page(overview))
