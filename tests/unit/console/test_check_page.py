"""What `tflaunch check` shows of given facts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.support.checks import host_answer, task_answer, ways
from tests.support.gpus import gpu
from tflaunch.console.check_page import document as data
from tflaunch.console.check_page import page
from tflaunch.console.run_pages import Marks
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.check_answers import CheckAnswers, HostAnswer
from tflaunch.survey.check_bandwidth import Throughput
from tflaunch.survey.check_findings import Findings


@dataclasses.dataclass
class Paper:
    """A screen of that width."""

    columns: int | None = 80
    marks: Marks = dataclasses.field(default_factory=Marks)


def shown(*hosts: HostAnswer, columns: int | None = 80, **more: Any) -> list[str]:
    screen: Any = Paper(columns)
    return [line.plain for line in page(Findings(CheckAnswers(hosts, **more)), screen)]


def test_a_page_fits_the_terminal_and_hosts_that_agree_share_a_line() -> None:
    many = [host_answer(f"gpu{n:03}") for n in range(200)]
    odd = [host_answer(f"gpu{n:03}", task=task_answer(versions={"numpy": f"1.{n}"})) for n in range(200, 216)]
    dead = [HostAnswer(Host(name="dead"), error=ConnectError("no route " * 20, "look " * 40))]
    lines = shown(*many, *odd, *dead, outside={"gpu000": {}})
    assert max(map(len, lines)) <= 80
    assert lines[0] == "✓  gpu[000-199]  TensorFlow 2.21.0 · 64 cores · 500 GiB free"
    rows = {line.split("  ")[0]: line.split() for line in lines}
    assert rows["TensorFlow"] == ["TensorFlow", "2.21.0"]
    assert rows["NumPy"][:5] == ["NumPy", "2.4.6", "!", "1.200", "gpu200"]
    assert lines[-1] == "✗ 217 hosts, 1 without an answer: 1 error, 16 warnings"


def test_who_reaches_whom_is_a_matrix_where_there_is_room() -> None:
    names = "abc"
    dials = ways("aa", "bb", "cc", "ab", "ba", "ca")
    hosts = [host_answer(name) for name in names]
    lines = shown(*hosts, dials=dials, outside={"a": {}})
    at = lines.index("✗ 6 of 9 connections between the hosts succeed, the slowest in 0.2 ms")
    assert [line.split() for line in lines[at + 1 : at + 5]] == [
        ["from,", "to", "(ms)", *names],
        ["a", "0.2", "0.2", "✗", "no"],
        ["b", "0.2", "0.2", "✗", "no"],
        ["c", "0.2", "✗", "no", "0.2"],
    ]
    narrow = shown(*hosts, dials=dials, outside={"a": {}}, columns=24)
    assert not any("to (ms)" in line for line in narrow)


def test_one_connection_is_told_as_one() -> None:
    assert "✓ the only connection between the hosts succeeds, in 0.2 ms" in shown(
        host_answer("a"), dials=ways("aa", hosts="a"), outside={"a": {}}
    )


def throughput(count: int) -> dict[str, dict[str, Throughput]]:
    """What hosts send each other: 9.4 Gbit/s, but to and from the last one."""
    names = [f"gpu{number:02}" for number in range(count)]
    return {
        a: {b: Throughput(4e8 if names[-1] in (a, b) else 9.4e9, 0.2) for b in names if a != b} for a in names
    }


def test_bandwidth_is_a_matrix_that_splits_and_marks_the_odd_ones() -> None:
    bandwidth = throughput(12)
    del bandwidth["gpu01"]["gpu02"]
    bandwidth["gpu02"]["gpu03"] = Throughput(None, failed=("silent", ""))
    hosts = [host_answer(name) for name in bandwidth]
    for columns in (80, 130, None):
        lines = shown(*hosts, bandwidth=bandwidth, outside={"a": {}}, columns=columns)
        assert max(map(len, lines)) <= (columns or 100)
        heads = [line.split()[3:] for line in lines if line.startswith("from, to (Gbit/s)")]
        assert [name for head in heads for name in head] == list(bandwidth)
        assert (len(heads) == 1) == (columns == 130)
    row = next(line for line in lines if line.startswith("  gpu02"))
    assert row.split()[:5] == ["gpu02", "9.4", "9.4", "✗", "no"]
    assert "! 0.40" in next(line for line in reversed(lines) if line.startswith("  gpu00"))
    assert "! 130 ways measured: 400 Mbit/s to 9.4 Gbit/s, the median 9.4 Gbit/s" in lines
    told = json.loads(json.dumps(data(Findings(CheckAnswers(tuple(hosts), bandwidth=bandwidth)), 1.0, 0)))
    assert told["bandwidth"]["gpu00"]["gpu01"] == {
        "bits_per_s": 9.4e9,
        "rtt_ms": 0.2,
        "lost": 0,
        "failed": None,
    }


def test_the_bandwidth_of_many_hosts_is_a_line_each() -> None:
    bandwidth = throughput(40)
    hosts = [host_answer(name) for name in bandwidth]
    lines = shown(*hosts, bandwidth=bandwidth, outside={"a": {}})
    assert max(map(len, lines)) <= 80
    [row] = [line for line in lines if line.startswith("  gpu39")]
    assert " ".join(row.split()) == "gpu39 400 Mbit/s 400 Mbit/s 400 Mbit/s 400 Mbit/s"
    assert any(line.startswith("    gpu39 <-> gpu[00-38]: 400 Mbit/s") for line in lines)


def test_all_of_it_can_be_told_as_json() -> None:
    findings = Findings(
        CheckAnswers(
            (host_answer("a", gpu(0)), host_answer("b")), ways("aa", "bb", hosts="ab"), {}, {"a": {}}
        )
    )
    told = json.loads(json.dumps(data(findings, 1.0, 70)))
    assert told["exit_code"] == 70
    assert [host["host"] for host in told["hosts"]] == ["a", "b"]
    assert {each["topic"] for each in told["findings"]} == {"network", "gpus"}
