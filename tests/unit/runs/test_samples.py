"""What the tasks of a run used, thinned out: what becomes of two bins, how large the file is, a torn file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tflaunch.lifecycle.tallies import EVERY_S
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.samples import (
    HOST_NAMES,
    MOST_BINS_OF_TRIALS,
    MOST_BYTES,
    NAMES,
    ROW_BYTES,
    SAMPLES,
    SampleFile,
    Values,
    merged_rows,
    most_bins,
    read_samples,
)

DAY_S = 24 * 3600.0


def row(**values: float | None) -> Values:
    return [values.get(name) for name in NAMES]


def test_rows_become_one() -> None:
    first = row(cores=1.0, quiet_s=9.0, step=10, loss=0.5, sent=100.0)
    second = row(cores=0.5, quiet_s=3.0, step=30, loss=0.25, received=7.0)
    assert merged_rows([first, second]) == row(
        cores=0.75, quiet_s=9.0, step=30, loss=0.25, sent=100.0, received=7.0
    )
    assert merged_rows([[1.0], row(cores=2.0, step=3)]) == row(cores=1.5, step=3), "rows may be short"
    three = [row(cores=1.0, quiet_s=2.0, step=4), row(cores=2.0, quiet_s=5.0), row(cores=6.0, quiet_s=1.0)]
    assert merged_rows(three) == row(cores=3.0, quiet_s=5.0, step=4), "the mean of all, not of means"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / SAMPLES, ["ps/0", "worker/0"], 1000.0)
    file.add(0, {"ps/0": row(cores=0.123456), "worker/0": row(cores=2.0, step=1234567)})
    file.add(3, {"worker/0": row(sent=123456789.0, loss=float("nan"))})
    file.first("ps/0", "listens", 3.21)
    file.first("ps/0", "listens", 9.0)
    file.first("strange/7", "listens", 9.0)
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert (found.began, found.every_s, found.tasks) == (1000.0, EVERY_S, ["ps/0", "worker/0"])
    assert found.firsts == {"ps/0": {"listens": 3.2}}
    assert list(found.series("ps/0", "cores")) == [(EVERY_S / 2, 0.123)]
    assert list(found.series("worker/0", "step")) == [(EVERY_S / 2, 1234567)]
    assert list(found.series("worker/0", "sent")) == [(3.5 * EVERY_S, 1.23e8)]
    assert not list(found.series("worker/0", "loss"))
    assert (tmp_path / SAMPLES).stat().st_mode & 0o777 == 0o600


def test_where_there_is_no_room_each_two_bins_become_one(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / SAMPLES, ["worker/0"], 0.0)
    most = most_bins(1, 0)
    for number in range(most):
        file.add(number, {"worker/0": row(cores=float(number), step=number)})
    file.first("worker/0", "printed", 1.0)
    file.add(file.bin_of(most * EVERY_S), {"worker/0": row(cores=7.0)})
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert found.every_s == 2 * EVERY_S
    assert [number for number, _ in found.bins] == [*range(most // 2 + 1)]
    cores = [value for _, value in found.series("worker/0", "cores")]
    assert cores == [pytest.approx(2 * number + 0.5, rel=5e-3) for number in range(most // 2)] + [7.0]
    assert [value for _, value in found.series("worker/0", "step")] == [*range(1, most, 2)]
    assert found.firsts == {"worker/0": {"printed": 1.0}}


@pytest.mark.parametrize("hosts", [0, 125, 1000])
def test_the_file_of_a_thousand_tasks_stays_below_5_mb(tmp_path: Path, hosts: int) -> None:
    values = dict.fromkeys(NAMES, 1.23e8) | dict.fromkeys(("gpu", "sm", "tensor", "dram"), 99.9)
    rows = {f"worker/{number}": row(**{**values, "step": 10**7 + number}) for number in range(1000)}
    of_hosts = {f"gpu{number:04}": [99.9] * len(HOST_NAMES) for number in range(hosts)}
    file = SampleFile(tmp_path / SAMPLES, [*rows], 0.0)
    file.add(0, {}, dict.fromkeys(of_hosts, ()))
    head = (tmp_path / SAMPLES).stat().st_size
    file.add(1, rows, of_hosts)
    bin_bytes = (tmp_path / SAMPLES).stat().st_size - head
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert found.most == most_bins(1000, hosts)
    assert head + 1000 * 100 + found.most * bin_bytes < 5_000_000, "100: when it did what first"


def test_a_day_fits_and_none_of_it_is_missing(tmp_path: Path) -> None:
    file, at = SampleFile(tmp_path / SAMPLES, [f"worker/{number}" for number in range(1000)], 0.0), 0.0
    while at < DAY_S:  # a look for each bin: as the bins grow, there are fewer to write
        file.add(file.bin_of(at), {"worker/7": row(cores=1.0, step=int(at))})
        at += file.every_s
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert most_bins(1000, 0) // 2 <= len(found.bins) <= most_bins(1000, 0)
    assert [number for number, _ in found.bins] == [*range(len(found.bins))]
    assert len(found.bins) * found.every_s >= DAY_S


DAMAGED = r"""
"x"
null
5
true
[]
["x",[0,1]]
[2,5]
[2,[]]
[2,[9,1]]
[-4,[0,1]]
[7000000000,[0,1]]
[700,[0,1]]
[2,[0,NaN]]
[2,[0,-Infinity]]
[2,[0,1e999]]
[2,[-1,1]]
[2,[true,1]]
[2,[0,"x"]]
[2,[0,[1]]]
[[2],[0,1]]
{}
{"task":7,"first":"printed","at":1}
{"task":0,"first":[],"at":1}
{"task":0,"first":"printed","at":"x"}
{"task":0,"first":"printed","at":true}
{"task":0,"first":"printed","at":NaN}
{"task":0,"first":"printed","at":1e999}
{"task":"x"}
"""


@pytest.mark.parametrize("line", [*DAMAGED.split(), "[2,[0,1" + "0" * 400 + "]]", "[" * 100_000, "\0\xff"])
def test_a_damaged_line_loses_nothing_but_itself(tmp_path: Path, line: str) -> None:
    path = tmp_path / SAMPLES
    file = SampleFile(path, ["ps/0"], 0.0)
    file.add(0, {"ps/0": row(cores=1.0)})
    with path.open("a", encoding="latin-1") as damaged:
        damaged.write(line + "\n")
    file.add(3, {"ps/0": row(cores=2.0)})
    found = read_samples(path)
    assert found is not None
    assert [value for _, value in found.series("ps/0", "cores")] == [1.0, 2.0]
    assert found.firsts == {}
    again = SampleFile(path, ["ps/0"], 0.0)
    again.add(again.bin_of(60.0), {"ps/0": row(cores=3.0)})
    found = read_samples(path)
    assert found is not None
    assert [value for _, value in found.series("ps/0", "cores")] == [1.0, 2.0, 3.0]


HEAD: dict[str, Any] = {"format": 1, "began": 1.0, "every_s": 5.0, "most": 720, "tasks": ["ps/0"]}
NOT_SO: list[dict[str, Any]] = [
    *({"most": value} for value in (0, 1, -2, True, 720.0, "720", None, 10**12)),
    *({"every_s": value} for value in (0, -5.0, 1e-300, True, math.nan, math.inf, 10**400, "5")),
    *({"began": value} for value in (True, math.nan, math.inf, "x", None)),
    *({"tasks": value} for value in ([5], "ps/0", None)),
]
HEADS = ["", "[]", '{"format":1}', *(json.dumps({**HEAD, **each}) for each in NOT_SO)]


def test_with_its_head_a_file_says_something(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_text(f"{json.dumps(HEAD)}\n[0,[0,1.0]]\n")
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None and found.bins == [(0, {"ps/0": [1.0]})]


@pytest.mark.parametrize("head", HEADS)
def test_without_its_head_a_file_says_nothing(tmp_path: Path, head: str) -> None:
    (tmp_path / SAMPLES).write_text(f"{head}\n[0,[0,1.0]]\n")
    assert read_samples(tmp_path / SAMPLES) is None


def test_it_goes_on_after_another_launcher_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES
    file = SampleFile(path, ["worker/0"], 100.0)
    file.add(4, {"worker/0": row(cores=1.0)})
    with path.open("a") as torn:
        torn.write("[5,[0,1.2")
    again = SampleFile(path, ["worker/0", "worker/1"], 900.0)
    assert again.began == 100.0
    assert again.bin_of(0.0) == 5, "never behind what is there"
    again.add(6, {"worker/1": row(cores=2.0)})
    found = read_samples(path)
    assert found is not None
    assert [number for number, _ in found.bins] == [4, 6]
    assert list(found.series("worker/1", "cores")) == [(6.5 * EVERY_S, 2.0)]


@pytest.mark.parametrize("text", ["", "{}\n", "[1,2]\n", '{"format": 2}\n', '{"format": 1}\n', "\0\n"])
def test_a_file_of_another_version_has_no_samples(tmp_path: Path, text: str) -> None:
    (tmp_path / SAMPLES).write_text(text)
    assert read_samples(tmp_path / SAMPLES) is None
    assert read_samples(tmp_path / "none") is None


def test_hosts_have_rows_beside_those_of_their_tasks(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES
    file = SampleFile(path, ["worker/0"], 0.0)
    file.add(0, {"worker/0": row(cores=1.0)}, {"gpu01": [12.5, 0.0, 0.3]})
    file.add(1, {}, {"gpu02": [1.0, 2.0, 3.0], "gpu01": [100.0, None, None]})
    again = SampleFile(path, ["worker/0"], 9.0)
    again.add(again.bin_of(15.0), {"worker/0": row(cores=2.0)}, {"gpu02": [2.0, 0.0, 5.0]})
    found = read_samples(path)
    assert found is not None
    assert found.hosts == ["gpu01", "gpu02"]
    assert found.host_bins == [
        (0, {"gpu01": [12.5, 0, 0.3]}),
        (1, {"gpu02": [1, 2, 3], "gpu01": [100]}),
        (3, {"gpu02": [2, 0, 5]}),
    ]
    assert [number for number, _ in found.bins] == [0, 3]
    assert found.only("worker/0", "gpu02").host_bins == [(1, {"gpu02": [1, 2, 3]}), (3, {"gpu02": [2, 0, 5]})]
    found.thin()
    assert found.host_bins == [
        (0, {"gpu01": [56.25, 0, 0.3], "gpu02": [1, 2, 3]}),
        (1, {"gpu02": [2, 0, 5]}),
    ]


def test_hosts_that_come_later_leave_less_room(tmp_path: Path) -> None:
    rows = {f"worker/{number}": row(cores=1.0) for number in range(1000)}
    file = SampleFile(tmp_path / SAMPLES, [*rows], 0.0)
    for number in range(most_bins(1000, 0) - 1):
        file.add(number, {"worker/0": row(cores=1.0)})
    file.add(file.bin_of(0.0), {}, {f"gpu{number:04}": [1.0, 2.0, 3.0] for number in range(1000)})
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert found.every_s == 2 * EVERY_S
    assert found.most == most_bins(1000, 1000) < most_bins(1000, 0)
    assert len(found.host_bins) == 1 and len(found.host_bins[0][1]) == 1000


@pytest.mark.parametrize("bins", [116, 191, 192, 193, 233])
@pytest.mark.parametrize("later", [0, 7])
def test_each_bin_has_a_number_of_its_own_whatever_room_there_is(
    tmp_path: Path, bins: int, later: int
) -> None:
    tasks = [f"worker/{number}" for number in range(200)]
    file = SampleFile(tmp_path / SAMPLES, tasks, 0.0)
    for number in range(bins):
        file.add(number, {"worker/0": row(step=number)})
    of_hosts = {f"gpu{number}": [1.0, 2.0, 3.0] for number in range(200)}
    file.add(bins + later, {"worker/0": row(step=bins)}, of_hosts)
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert found.most == most_bins(200, 200) == 192
    numbers = [number for number, _ in found.bins]
    assert numbers == sorted(set(numbers)) and numbers[-1] == found.last < found.most
    assert found.host_bins[-1][0] == found.last
    lines = (tmp_path / SAMPLES).read_text().splitlines()
    assert sum(line.startswith("[") for line in lines) == len(numbers), "all that was written is read"
    assert [value for _, value in found.series("worker/0", "step")][-1] == bins


def test_what_has_no_room_any_more_is_thinned_out_at_once(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / SAMPLES, ["worker/0"], 0.0)
    for number in range(700):
        file.add(number, {"worker/0": row(step=number)})
    again = SampleFile(tmp_path / SAMPLES, [f"worker/{number}" for number in range(1000)], 0.0)
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert found.every_s == again.every_s == 16 * EVERY_S
    assert [number for number, _ in found.bins] == [*range(700 // 16 + 1)]
    assert [value for _, value in found.series("worker/0", "step")] == [*range(15, 700, 16), 699]


@pytest.mark.parametrize("damaged", ["[600,[0,9]]", "[0,[0,9]]", "[3,[0,9]]"])
def test_a_bin_with_a_damaged_number_does_not_take_others_with_it(tmp_path: Path, damaged: str) -> None:
    lines = [json.dumps(HEAD), *(f"[{number},[0,{number}]]" for number in range(20))]
    lines[9] = damaged
    (tmp_path / SAMPLES).write_text("".join(f"{line}\n" for line in lines))
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert [number for number, _ in found.bins] == [number for number in range(20) if number != 8]


def test_a_file_from_before_hosts_were_kept_goes_on(tmp_path: Path) -> None:
    path = tmp_path / SAMPLES
    path.write_text(
        '{"format":1,"began":100.0,"every_s":5.0,"most":720,"tasks":["worker/0"]}\n'
        '{"at":3.2,"task":0,"first":"listens"}\n[7,[0,0.98,null,9e4,0,0,1,3,0.5,80,300,1024]]\n'
    )
    old = read_samples(path)
    assert old is not None
    assert (old.hosts, old.host_bins, old.firsts) == ([], [], {"worker/0": {"listens": 3.2}})
    assert list(old.series("worker/0", "gpu_bytes")) == [(7.5 * EVERY_S, 1024)]
    assert not list(old.series("worker/0", "sm"))
    SampleFile(path, ["worker/0"], 900.0).add(9, {}, {"gpu01": [1.0, 2.0, 3.0]})
    found = read_samples(path)
    assert found is not None
    assert found.bins == old.bins
    assert found.host_bins == [(9, {"gpu01": [1, 2, 3]})]


def test_a_disk_that_refuses_is_told_once(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / SAMPLES, ["worker/0"], 0.0)
    (tmp_path / SAMPLES).unlink()
    (tmp_path / SAMPLES).mkdir()
    with pytest.raises(RecordError, match="cannot write"):
        file.add(1, {"worker/0": row(cores=1.0)})
    file.add(2, {"worker/0": row(cores=1.0)})
    file.first("worker/0", "printed", 1.0)


def test_of_many_trials_a_few_run_at_a_time(tmp_path: Path) -> None:
    trials = [f"trial/{number}" for number in range(10_000)]
    file, seats, at = SampleFile(tmp_path / SAMPLES, trials, 0.0, at_once=6), 6, 0.0
    file.add(0, {}, {f"gpu0{number}": [99.9] * 3 for number in range(seats)})
    assert file.bin_of(8 * 3600 - 1) < MOST_BINS_OF_TRIALS, "eight hours at 5 s"
    most = MOST_BYTES // (ROW_BYTES * seats)
    assert most_bins(seats, seats, MOST_BINS_OF_TRIALS) == MOST_BINS_OF_TRIALS < most
    for number in range(1, 61):
        at = number * file.every_s
        first = seats * (number - 1)
        file.add(file.bin_of(at), {trials[first + seat]: row(cores=1.0) for seat in range(seats)})
    again = SampleFile(tmp_path / SAMPLES, trials, 9e9, at_once=6)
    again.add(again.bin_of(at + again.every_s), {"trial/9999": row(cores=2.0)})
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    assert len(found.bins) == 61
    assert found.every_series("cores")["trial/357"] == list(found.series("trial/357", "cores"))
    alone = found.only("trial/16", "gpu00")
    assert [number for number, _ in alone.bins] == [0]
    assert alone.began == found.began + 3 * EVERY_S
    assert not alone.host_bins, "they are of another time"
