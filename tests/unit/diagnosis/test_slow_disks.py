"""Disks that are sick and those that are only busy, and hosts short of memory: what is said of each, look by look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.diagnosis.slow_runs import LOOK_S, WORKERS, Run, asynchronous, one
from tflaunch.diagnosis.paces import Paces
from tflaunch.diagnosis.rule import Place, Watched

MIB = 1 << 20
SSD = "SAMSUNG MZ7LH960"
BEFORE = [1_000_000, 1_000_000 * 65536, 500_000, SSD]  # half a ms for each read of 64 KiB


class Disk:
    """What it does in a second, on top of what it has done."""

    def __init__(self, ios: float, size: float, busy: float, before: list[Any] = BEFORE) -> None:
        self.ios, self.bytes, self.busy_ms = ios, ios * size, 1000 * busy
        self.before = before

    def at(self, seconds: float) -> list[Any]:
        ios, size, busy_ms, model = self.before
        return [
            *(int(ios + self.ios * seconds), int(size + self.bytes * seconds)),
            *(int(busy_ms + self.busy_ms * seconds), model),
        ]


SICK = Disk(ios=6, size=65536, busy=1.0)  # 167 ms for each read
QUICK = Disk(ios=400, size=65536, busy=0.2)


def go(
    run: Run, looks: int, disks: Mapping[str, Disk], pressure: Mapping[str, Any] | None = None
) -> list[str]:
    """Host -> its `sda`, and what more its agent says."""
    said = []
    for number in range(looks):
        for host, disk in disks.items():
            more = {
                name: {key: int(ms * number * LOOK_S) for key, ms in of_it.items()}
                for name, of_it in (pressure or {}).items()
            }
            run.machines[host] = {"swapped": 0, "disks": {"sda": disk.at(number * LOOK_S)}, **more}
        said += run.on(LOOK_S)
    return said


def waiting(*tasks: str) -> Run:
    run = asynchronous()
    run.in_disk.update(dict.fromkeys(tasks or ("worker/1",), 0.8))
    return run


def test_a_disk_that_is_slower_than_before_the_run() -> None:
    assert one(go(waiting(), 30, {"host3": SICK})) == (
        "worker/1 on host3 waits for a disk in 83% of the looks of the last 60 s: sda of host3 (SAMSUNG MZ7LH960)"
        " takes 167 ms for each read or write, 333x as long as it used to, with 384 KiB/s in all: it is sick, or"
        " held back (a RAID that is rebuilt, a volume in the cloud that has used up its credits); look at `dmesg` and"
        " `smartctl -a /dev/sda` on host3, and put the data on another disk"
    )


def test_a_disk_that_was_never_quicker_beside_others_of_its_kind() -> None:
    always = Disk(ios=6, size=65536, busy=1.0, before=[100_000, 100_000 * 65536, 16_700_000, SSD])
    text = one(go(waiting(), 30, {"host3": always, "host2": QUICK, "host4": QUICK}))
    assert "333x as long as the disks of its kind on host2, host4, with" in text
    other = Disk(ios=400, size=65536, busy=0.2, before=[*BEFORE[:3], "ST4000NM0035"])
    assert go(waiting(), 30, {"host3": always, "host2": other}) == []


def test_disks_without_a_model_are_no_kind() -> None:
    """Virtual ones all begin with the same letters, whatever is behind them; what one was before still tells."""
    always = Disk(ios=6, size=65536, busy=1.0, before=[100_000, 100_000 * 65536, 16_700_000, "vd"])
    quick = Disk(ios=400, size=65536, busy=0.2, before=[*BEFORE[:3], "vd"])
    assert go(waiting(), 30, {"host3": always, "host2": quick, "host4": quick}) == []
    sick = Disk(ios=6, size=65536, busy=1.0, before=[*BEFORE[:3], "vd"])
    assert "sda of host3 takes 167 ms for each read or write, 333x as long as it used to" in one(
        go(waiting(), 30, {"host3": sick, "host2": quick})
    )


def test_it_is_the_reason_of_a_slow_worker() -> None:
    run = waiting()
    run.speed("worker/1", 100_000)
    text = one(go(run, 30, {"host3": SICK}))
    assert text.startswith(
        "worker/1 on host3 has been 5.0x slower than the other workers for 60 s, which costs the run "
    )
    assert (
        "state D) in 83% of the looks, which moves 0 B/s for it: sda of host3 (SAMSUNG MZ7LH960) takes 167 ms"
        in text
    )


def test_it_is_over() -> None:
    run = waiting()
    go(run, 20, {"host3": SICK})
    run.in_disk["worker/1"] = 0.0
    assert one(go(run, 40, {"host3": QUICK})) == "the disks of host3 are as quick as usual again"


@pytest.mark.parametrize(
    "disk",
    [
        Disk(ios=20_000, size=4096, busy=1.0),  # much to do, and quick
        Disk(ios=200, size=MIB, busy=1.0),  # large reads: ten times as long for each, and not for each byte
        Disk(ios=450, size=4096, busy=1.0),  # small ones: longer for each byte, and not for each of them
        Disk(ios=100, size=65536, busy=1.0),  # ten ms for each: as many disks have
        Disk(ios=1, size=65536, busy=0.2),  # 200 ms for each, now and then
    ],
)
def test_a_disk_that_has_much_to_do_or_little_is_well(disk: Disk) -> None:
    assert go(waiting(), 40, {"host3": disk}) == []


def test_a_disk_for_which_no_task_of_the_run_waits() -> None:
    assert go(asynchronous(), 40, {"host3": SICK}) == []


def test_a_disk_of_which_nothing_is_known() -> None:
    new = Disk(ios=6, size=65536, busy=1.0, before=[10, 655360, 5, SSD])
    assert go(waiting(), 40, {"host3": new}) == []


def test_the_user_sets_how_slow_it_must_be() -> None:
    run = asynchronous(thresholds={"sick_disk_ms": 500.0})
    run.in_disk["worker/1"] = 0.8
    assert go(run, 40, {"host3": SICK}) == []


def test_a_slow_worker_on_a_disk_that_is_full_of_work() -> None:
    run = waiting()
    run.speed("worker/1", 100_000)
    text = one(go(run, 30, {"host3": Disk(ios=200, size=MIB, busy=0.97)}))
    assert (
        "for it; sda is busy in 97% of the time, with 200 MiB/s in all: put the data on a faster one" in text
    )


def test_a_slow_worker_whose_wait_for_a_disk_the_kernel_counts() -> None:
    def slow(pressure: Mapping[str, Any]) -> str:
        run = asynchronous()
        run.in_disk["worker/1"] = 0.2
        run.speed("worker/1", 100_000)
        return one(go(run, 30, {"host3": QUICK}, pressure))

    assert "it waits for a disk of host3 (state D)" in slow({"pressure": {"io": 700}})
    assert "for a disk" not in slow({"pressure": {"io": 100}})
    assert "for a disk" not in slow({"pressure": {"io": 700}, "own_pressure": {"io": 0}}), (
        "others' programs do"
    )


# ---- memory


def short(pressure: Mapping[str, Any], looks: int = 30, faults_s: int = 40, **settings: Any) -> list[str]:
    run = asynchronous(**settings)
    run.facts["worker/1"] = {"memory": [3 << 30, 0], "cores": 4.0, "faults": 7}
    said = []
    for number in range(looks):
        run.facts["worker/1"]["faults"] += int(faults_s * LOOK_S)
        counted = {
            name: {key: int(ms * number * LOOK_S) for key, ms in of_it.items()}
            for name, of_it in pressure.items()
        }
        run.machines["host3"] = {"swapped": 0, **counted}
        said += run.on(LOOK_S)
    return said


def test_a_host_that_is_short_of_memory_before_it_swaps() -> None:
    assert one(short({"pressure": {"memory": 230}})) == (
        "host3 is short of memory: programs have waited for it in 23% of the last 60 s, and worker/1 on host3, which"
        " has 3.0 GiB, for 40 of its own pages a second that the kernel had dropped: it needs less (a smaller shuffle"
        " buffer, fewer batches ahead), or a host, or a limit, with more"
    )


def test_a_slot_that_is_short_of_memory_on_a_host_that_has_enough() -> None:
    assert "in 40% of the last" in one(short({"pressure": {"memory": 450}, "own_pressure": {"memory": 400}}))
    assert short({"pressure": {"memory": 450}, "own_pressure": {"memory": 10}}) == [], (
        "others are short of it"
    )


def test_others_that_are_short_of_memory_beside_a_run_that_is_not() -> None:
    assert short({"pressure": {"memory": 450}}, faults_s=1) == []


@pytest.mark.parametrize("ms", [0, 50, 90])
def test_programs_that_wait_for_memory_now_and_then(ms: int) -> None:
    assert short({"pressure": {"memory": ms}}, 60) == []


def test_the_user_sets_how_short_it_must_be() -> None:
    assert short({"pressure": {"memory": 230}}, thresholds={"memory_share": 0.3}) == []


def test_a_burst_that_is_over_soon() -> None:
    run = asynchronous()
    counted = 0
    said = []
    for number in range(60):
        counted += 5000 if 10 <= number < 15 else 0
        run.machines["host3"] = {"swapped": 0, "pressure": {"memory": counted}}
        run.facts["worker/1"]["faults"] = 200 * number
        said += run.on(LOOK_S)
    assert said == []


def test_the_waits_of_the_host_and_of_the_agents_cgroup_are_not_compared() -> None:
    found = Paces(Watched({"worker/1": Place("host3", "10.0.0.3", 2222)}))
    for at, own in enumerate(({}, {}, {"io": 3}, {"io": 4}, {})):
        machine = {"swapped": 0, "pressure": {"io": 90_000 + 2000 * at, "cpu": 500 * at}, "own_pressure": own}
        found.looked("host3", {"tasks": {}, "machine": machine}, 5.0 * at)
    shares = [found.stalled("host3", "io", 5.0 * at, 5.0 * at + 5.0) for at in range(4)]
    assert shares == [0.4, 0.0, 0.0002, 0.0]
    assert found.stalled("host3", "cpu", 5.0, 10.0) == 0.1


def test_a_kernel_without_these_counters() -> None:
    run = waiting()
    for name in WORKERS:
        run.machines[run.places[name][0]] = {"swapped": 0}
    assert run.on(200) == []
