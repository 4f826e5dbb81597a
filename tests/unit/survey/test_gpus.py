"""What `tflaunch gpus` makes of given facts."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from typing import Any

import pytest

from tests.support.gpus import FLEET, GIB, LOST, NOW, answer, facts, gpu, page
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.gpu_overview import (
    Answer,
    WantedGpus,
    document,
    in_one_line,
    look,
    table,
)


def test_two_names_of_one_machine_are_one() -> None:
    same = [answer("gpu01", gpu(0), boot_id="b"), answer("alias", gpu(0), boot_id="b")]
    other = answer("container", gpu(1), boot_id="b")
    overview = look([*same, other])
    assert [machine.names for machine in overview.machines] == [("gpu01", "alias"), ("container",)]
    assert "gpu01 = alias" in page(overview)
    assert overview.counts["free"] == 2
    lost = look(
        [Answer("a", error=None, facts=facts("a", LOST, boot_id="b")), answer("b", LOST, boot_id="b")]
    )
    assert len(lost.machines) == 2 or lost.machines[0].names == ("a", "b")


def test_a_host_that_was_lost_says_so_in_its_place() -> None:
    lost = dataclasses.replace(FLEET[0], error=ConnectError("the connection broke"), age_s=200.0)
    overview = look([lost, FLEET[1]])
    shown = page(overview).splitlines()
    assert shown[1:3] == ["gpu01", "  ✗ the connection broke  (its GPUs were seen 3m ago)"]
    assert list(overview.unreachable) == ["gpu01"]
    assert in_one_line(overview) == "gpu02:0,1,2.0,2.1"
    late = page(look([dataclasses.replace(FLEET[0], age_s=42.0)]))
    assert "! 42s old: the host answers slowly" in late


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (WantedGpus(), "gpu01:0,1,3,7 gpu02:0,1,2.0,2.1"),
        (WantedGpus(free=True), "gpu01:0 gpu02:1,2.0"),
        (WantedGpus(model="h100"), "gpu01:0,1,3"),
        (WantedGpus(model="a100"), "gpu02:2.0,2.1"),
        (WantedGpus(model="MIG 1G"), "gpu02:2.1"),
        (WantedGpus(min_free_bytes=78 * GIB), "gpu01:0,3 gpu02:1"),
        (WantedGpus(free=True, min_free_bytes=40 * GIB), "gpu01:0 gpu02:1,2.0"),
        (WantedGpus(model="b200"), ""),
    ],
)
def test_filters(wanted: WantedGpus, expected: str) -> None:
    overview = look(FLEET, wanted)
    assert in_one_line(overview) == expected
    shown = sum(len(machine.gpus_or_instances) for machine in overview.machines)
    assert overview.hidden == 8 - shown
    if wanted != WantedGpus():
        assert "no NVIDIA driver" not in page(overview)
        assert f"{overview.hidden} not shown" in page(overview) or "no GPU fits; 8 do not" in page(
            look(FLEET[:5], wanted)
        )


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("host", "a:0,1,2 b:0,1"),
        ("memory", "b:1,0 a:0,2,1"),
        ("utilization", "a:2,0,1 b:0,1"),
        ("temperature", "b:1,0 a:1,0,2"),
    ],
)
def test_sorting(sort: Any, expected: str) -> None:
    a = answer(
        "a",
        gpu(0, used=5, utilization_percent=50, temperature_c=40),
        gpu(1, used=60, utilization_percent=None, temperature_c=70),
        gpu(2, used=20, utilization_percent=2, temperature_c=None),
    )
    b = answer(
        "b",
        gpu(0, used=4, utilization_percent=3, temperature_c=30),
        gpu(1, used=0, utilization_percent=4, temperature_c=90),
    )
    assert in_one_line(look([a, b], sort=sort)) == expected


def test_as_data() -> None:
    overview = look(FLEET)
    told = json.loads(json.dumps(document(overview, FLEET, NOW)))
    hosts = {host["host"]: host for host in told["hosts"]}
    assert list(hosts) == [each.host for each in FLEET]
    assert [gpu["state"] for gpu in hosts["gpu01"]["gpus"]] == ["free", "busy", "leased", "broken"]
    assert hosts["gpu01"]["gpus"][1]["processes"][0]["command"].startswith("/opt/env/bin/python3")
    instances = hosts["gpu02"]["gpus"][2]["mig"]
    assert [(each["label"], each["state"]) for each in instances] == [("2.0", "free"), ("2.1", "busy")]
    assert hosts["dead1"]["error"] == {"message": "no route", "hint": "ping dead1"}
    assert hosts["sick"]["gpu_note"] == "NVML: Driver Not Loaded"
    assert told["summary"]["free"] == 3
    assert told["summary"]["models"]["RTX 4090"] == {
        "free": 0,
        "busy": 1,
        "leased": 0,
        "promised": 0,
        "broken": 0,
    }

    rows = list(csv.DictReader(io.StringIO(table(overview))))
    assert [(row["host"], row["index"], row["state"]) for row in rows][3:7] == [
        ("gpu01", "7", "broken"),
        ("gpu02", "0", "busy"),
        ("gpu02", "1", "free"),
        ("gpu02", "2.0", "free"),
    ]
    assert (rows[1]["users"], rows[1]["pids"], rows[1]["memory_free_bytes"]) == (
        "alice",
        "4711",
        str(10 * GIB),
    )
    assert rows[2]["leased_by"] == "bob"
    assert rows[7]["utilization_percent"] == ""
