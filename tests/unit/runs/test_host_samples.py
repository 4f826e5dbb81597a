"""What a coordinator keeps of its tasks' use, what a launcher makes of it, and both halves of a run handed over."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent import tally_file
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tally_file import TallyFile, piece
from tflaunch.agent.visit import Visit
from tflaunch.lifecycle.tallies import EVERY_S
from tflaunch.protocol import wire
from tflaunch.runs.host_samples import HostSamples, merged, read_host_samples
from tflaunch.runs.samples import HOST_NAMES, NAMES, Sampled, most_bins

PLACES = {"ps/0": ["gpu01", "gpu01.lab", 2222], "worker/0": ["gpu02", "10.0.0.2", None]}
WATCHED = {
    "places": PLACES,
    "names": {"gpu01.lab": ["10.0.0.1"]},
    "settings": {"gpus": {"worker/0": ["GPU-a"]}},
}
TASKS = frozenset(PLACES)
HOSTS = frozenset(("gpu01", "gpu02"))
BEGAN = 1000.0


def look(cpu_s: float, sent: int = 0, **more: Any) -> dict[str, Any]:
    """A look as agent/tasks/look.py makes it for another host, as far as it is read here."""
    made = {"listens": None, "cpu_s": cpu_s, "io": 0, "quiet_s": 1.0, "log_bytes": 0, "says": ""}
    return {**made, "flows": [["10.0.0.1", 2222, 40000, sent, 0, 0, 0, 0.1]], **more}


def loss(number: str) -> dict[str, Any]:
    """The signs of a look: for another host it has of the line with the loss the number alone."""
    return {"loss": [3, number, 0.5]}


class Host:
    """The run directory of the host that decides; its coordinators' clock begins at 50."""

    def __init__(self, parent: Path) -> None:
        self.directory = RunDirectory(str(parent), "run-1", "gpu01")
        self.directory.create()
        self.parent, self.path = str(parent), Path(self.directory.path) / tally_file.NAME
        self.file = self.coordinator()

    def coordinator(self) -> TallyFile:
        return TallyFile(self.directory, WATCHED, BEGAN, 50.0)

    def looked(self, at: float, tasks: dict[str, Any], **more: Any) -> None:
        self.file.looked("gpu02", {"tasks": tasks, **more}, 50.0 + at)

    def brought(self) -> HostSamples:
        found = read_host_samples(self.path, TASKS, HOSTS)
        assert found is not None
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "runs").mkdir(mode=0o700)
    return Host(tmp_path / "runs")


def values(sampled: Sampled, task: str, column: str) -> list[float]:
    return [value for _, value in sampled.series(task, column)]


def test_a_run_without_a_launcher_has_all_values(host: Host) -> None:
    gpus = {"GPU-a": {"use": 80, "power_w": 300.0, "memory_bytes": 5}}
    host.looked(1.0, {"worker/0": look(1.0, io=100, step=7)}, gpus=gpus)
    host.looked(2.0, {"ps/0": look(0.0, listens=True, log_bytes=1)})
    host.looked(
        6.0, {"worker/0": look(11.0, 5000, io=1100, step=19, quiet_s=3.0, signs=loss("-0.25"))}, gpus=gpus
    )
    host.looked(7.0, {"ps/0": look(0.5, listens=True, log_bytes=9, signs=loss("step 3 loss: 0.5"))})
    host.file.close()
    assert host.path.stat().st_mode & 0o777 == 0o600
    there = host.brought()
    assert there.over
    whole = merged(None, there)
    assert (whole.began, whole.every_s, sorted(whole.tasks)) == (BEGAN, EVERY_S, sorted(TASKS))
    for column, value in {
        "cores": 2.0,
        "sent": 1000.0,
        "peers": 1000.0,
        "files": 200.0,
        "quiet_s": 3.0,
        "step": 19,
        "loss": -0.25,
        "gpu": 80.0,
        "watts": 300.0,
        "gpu_bytes": 5,
    }.items():
        assert values(whole, "worker/0", column) == [value], column
    assert values(whole, "ps/0", "cores") == [0.1]
    assert values(whole, "ps/0", "loss") == [0.5]
    assert whole.firsts == {"ps/0": {"listens": 2.0, "printed": 2.0}, "worker/0": {"peers": 6.0}}


@pytest.mark.parametrize("number", ["", "nan", "inf", "1e999", "loss 1e999", "val_loss: 3"])
def test_what_is_no_loss_is_none(host: Host, number: str) -> None:
    for at in range(2):
        host.looked(EVERY_S * at, {"worker/0": look(at, signs=loss(number))})
    host.file.close()
    assert values(merged(None, host.brought()), "worker/0", "loss") == []
    assert values(merged(None, host.brought()), "worker/0", "cores") == [0.2]


def test_a_file_that_is_full_loses_looks_and_nothing_of_what_they_counted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally_file, "MOST_BYTES", 20_000)
    last = 2000
    for number in range(last + 1):
        host.looked(EVERY_S * number, {"worker/0": look(2.0 * number, 100 * number, log_bytes=number > 500)})
        assert number % 100 or host.path.stat().st_size < 21_000
    host.file.close()
    there = host.brought()
    assert there.every_s >= 4 * EVERY_S
    rows = list(there.rows("worker/0"))
    assert len(rows) > 60
    before = [at for at, _ in there.tallies["worker/0"]]
    passed_s = [later - earlier for earlier, later in itertools.pairwise(before)]
    used_s = sum(row[0] * each for each, (_, row) in zip(passed_s, rows, strict=True) if row[0] is not None)
    assert used_s == pytest.approx(2.0 * before[-1] / EVERY_S)
    assert before[-1] > EVERY_S * (last - 2 * there.every_s / EVERY_S)
    assert there.firsts("worker/0")["printed"] == 501 * EVERY_S, "what was new stays where it was"
    whole = merged(None, there)
    assert whole.every_s == there.every_s
    assert set(values(whole, "worker/0", "sent")) == {20.0}


def pressed(ms: int) -> dict[str, Any]:
    """What a host says of itself that has waited so long for a processor, and a tenth of it for a disk."""
    return {"swapped": 0, "pressure": {"cpu": ms, "memory": 0, "io": ms // 10}}


def test_hosts_and_gpm_are_kept_and_thinned_out_with_the_tasks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally_file, "MOST_BYTES", 20_000)
    gpus = {"GPU-a": {"use": 80, "power_w": 300.0, "memory_bytes": 5, "gpm": [63.0, 21.0, 40.0]}}
    for number in range(400):
        waited = {"machine": pressed(1000 * number), "gpus": gpus}
        host.looked(EVERY_S * number, {"worker/0": look(10.0 * number)}, **waited)
    host.file.close()
    assert host.path.stat().st_size < 20_500
    there = host.brought()
    assert there.every_s > EVERY_S
    whole = merged(None, there)
    assert whole.hosts == ["gpu02"]
    assert len(whole.host_bins) == len(whole.bins) > 20
    assert all(rows == {"gpu02": [20.0, 0.0, 2.0]} for _, rows in whole.host_bins)
    for column, value in (("sm", 63.0), ("tensor", 21.0), ("dram", 40.0)):
        assert set(values(whole, "worker/0", column)) == {value}


def test_rows_of_hosts_stand_behind_those_of_the_launcher(host: Host) -> None:
    before = Sampled(BEGAN - 10.0, EVERY_S, most_bins(1, 1), ["worker/0"], hosts=["gpu01", "gpu02"])
    before.host_bins = [(number, {"gpu02": [1.0, 1.0, 1.0]}) for number in range(2)]
    for number in range(3):
        host.looked(EVERY_S * number + 1.0, {"worker/0": look(number)}, machine=pressed(500 * number))
    whole = merged(before, host.brought())
    assert whole.hosts == ["gpu01", "gpu02"]
    assert whole.host_bins == [
        *((number, {"gpu02": [1.0, 1.0, 1.0]}) for number in range(2)),
        *((number, {"gpu02": [10.0, 0.0, 1.0]}) for number in (3, 4)),
    ]


def test_the_next_coordinator_goes_on_where_a_line_was_torn(host: Host) -> None:
    for number in range(3):
        host.looked(EVERY_S * number, {"worker/0": look(number)})
    with host.path.open("a") as torn:
        torn.write('[15.0,{"worker/0":[3,')
    host.file = host.coordinator()
    for number in range(4, 7):
        host.looked(EVERY_S * number, {"worker/0": look(number)})
    host.file.close()
    at = [at for at, _ in host.brought().tallies["worker/0"]]
    assert at == [0.0, 5.0, 10.0, 20.0, 25.0, 30.0]
    assert values(merged(None, host.brought()), "worker/0", "cores") == [0.2] * 5


def test_a_disk_that_refuses_does_not_end_the_run(host: Host) -> None:
    host.path.mkdir()
    host.looked(0.0, {"worker/0": look(1)})
    host.looked(9.0, {"worker/0": look(2)})
    host.file.close()
    assert not list(host.path.iterdir())


def test_what_the_launcher_saw_stands_before_what_the_hosts_have_kept(host: Host) -> None:
    before = Sampled(BEGAN - 40.0, EVERY_S, most_bins(1, 0), ["worker/0"])
    before.bins = [(number, {"worker/0": [1.0]}) for number in range(8)]
    before.firsts = {"worker/0": {"printed": 2.0}}
    for number in range(4):
        host.looked(EVERY_S * number + 1.0, {"worker/0": look(10.0 * number, log_bytes=3, listens=True)})
    whole = merged(before, host.brought())
    assert [number for number, _ in whole.bins] == [*range(8), 9, 10, 11]
    assert values(whole, "worker/0", "cores") == [1.0] * 8 + [2.0] * 3
    assert whole.firsts["worker/0"] == {"printed": 2.0, "listens": 41.0}


def test_bins_are_as_long_as_the_longer_of_both(host: Host) -> None:
    before = Sampled(BEGAN, EVERY_S, most_bins(1, 0), ["worker/0"])
    before.bins = [(number, {"worker/0": [float(number)]}) for number in range(8)]
    there = HostSamples(BEGAN, 4 * EVERY_S)
    there.tallies["worker/0"] = [(at, [at, *[None] * 4, 0.0, *[None] * 5, 0]) for at in (40.0, 60.0, 80.0)]
    whole = merged(before, there)
    assert whole.every_s == 4 * EVERY_S
    assert [number for number, _ in whole.bins] == [0, 1, 3, 4]
    assert values(whole, "worker/0", "cores") == [1.5, 5.5, 1.0, 1.0]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[" * 100_000,
        "[1]",
        '[-1,{"worker/0":[1,1,1,1,1,1,1,1,1,1,1,0]}]',
        '[1e300,{"worker/0":[1,1,1,1,1,1,1,1,1,1,1,0]}]',
        '[1,{"worker/0":[1,1,1]}]',
        '[1,{"worker/0":[1,1,1,1,1,1,1,1,1,1,1,"7"]}]',
        '[1,{"worker/0":[1,1,1,1,1,1,1,1,NaN,1,1,0]}]',
        '[1,{"../../x":[1,1,1,1,1,1,1,1,1,1,1,0]}]',
        '[1,{"worker/0":[1,1,1,1,1,1,1,1,1,1,1,-9,1,1,0]}]',
        '[1,{"worker/0":[1,1,1,0]}]',
        '[1,{"gpu01":[1,1,0]}]',
        '[1,{"gpu01":[1,-1,1,0]}]',
        '[1,{"gpu01":[1,1e300,1,0]}]',
        '[1,{"gpu01":[1,1,1,1,1,1,1,1,1,1,1,0]}]',
        '[1,{"gpu99":[1,1,1,0]}]',
        '[1,{"worker/99":[1,1,1,1,1,1,1,1,1,1,1,0]}]',
    ],
)
def test_a_host_that_lies_has_no_samples(tmp_path: Path, line: str) -> None:
    path = tmp_path / "host-samples.jsonl"
    path.write_text(json.dumps({"format": 1, "began": 1.0, "every_s": 1e14}) + "\n" + line + "\n")
    found = read_host_samples(path, TASKS, HOSTS)
    assert found is not None and not found.tallies and not found.of_hosts
    assert merged(None, found).bins == merged(None, found).host_bins == []
    path.write_text(line)
    assert read_host_samples(path, TASKS, HOSTS) is None


def test_a_far_future_is_thinned_out(tmp_path: Path) -> None:
    there = HostSamples(BEGAN, EVERY_S)
    there.tallies["worker/0"] = [(at, [at, *[None] * 4, 0.0, *[None] * 5, 0]) for at in (1.0, 9e14)]
    assert merged(None, there).bins[0][0] < most_bins(1, 0)


def test_a_visit_brings_it_in_pieces(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        host.looked(EVERY_S * number, {name: look(number) for name in PLACES})
    assert piece(host.parent, "run-2", 0) == b""
    monkeypatch.setattr(wire, "BODY_LIMIT", 500)
    (theirs, ours), (back, out) = os.pipe(), os.pipe()
    asked = [wire.encode("samples", run="run-1", offset=offset) for offset in (0, 500, 10**6)]
    try:
        Visit(host.parent, theirs, out).run(b"".join([*asked, wire.encode("bye")]))
        said = wire.Decoder().feed(os.read(back, 1 << 20))
    finally:
        for each in (theirs, ours, back, out):
            os.close(each)
    assert [message.type for message in said] == ["hello", *["samples"] * 3]
    first, second, last = (message.body for message in said[1:])
    assert (len(first), len(second), last) == (500, 500, b"")
    assert host.path.read_bytes().startswith(first + second)


def test_a_row_has_a_value_for_each_column() -> None:
    there = HostSamples(BEGAN, EVERY_S)
    there.tallies["worker/0"] = [(at, [at, *[None] * 4, 0.0, *[None] * 5, 0]) for at in (1.0, 2.0)]
    [(_, row)] = there.rows("worker/0")
    assert len(row) == len(NAMES)
    there.of_hosts["gpu01"] = [(at, [int(at)] * 4) for at in (1.0, 2.0)]
    [(_, row)] = there.rows_of_host("gpu01")
    assert len(row) == len(HOST_NAMES)


def test_waits_that_a_host_does_not_tell_are_missing_alone(host: Host) -> None:
    for number in range(4):
        machine: dict[str, Any] = {"swapped": 0, "pressure": {"cpu": 9000 + 500 * number, "io": 50 * number}}
        if number > 1:
            machine["own_pressure"] = {"cpu": 250 * number}
        host.looked(EVERY_S * number, {"worker/0": look(number)}, machine=machine)
    host.file.close()
    rows = [row for _, row in host.brought().rows_of_host("gpu02")]
    assert rows == [[10, None, 1], [None, None, 1], [5, None, 1]]
