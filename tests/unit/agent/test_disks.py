"""What an agent sees of its host's disks and of PSI: files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

from tflaunch.agent.tasks.disks import Disks, pressures
from tflaunch.protocol import messages
from tflaunch.protocol.wire import Message

STATS = """\
   7       0 loop0 1065 93 10280 405 399 711 2702 222 0 548 718 0 0 0 0 88 90
   8       0 sda 2000 10 8000 900 1000 20 4000 700 0 1500 1600 0 0 0 0 0 0
   8       1 sda1 2000 10 8000 900 1000 20 4000 700 0 1500 1600 0 0 0 0 0 0
 259       0 nvme0n1 10 0 80 9 0 0 0 0 0 20 9
 254       0 vda 7 0 56 9 3 0 24 0 0 30 9 0 0 0 0 0 0
 254      16 vdb 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""


def disks(tmp_path: Path, text: str) -> Disks:
    stats = tmp_path / "diskstats"
    stats.write_text(text)
    for name in ("loop0", "sda", "nvme0n1", "vda", "vdb"):
        (tmp_path / "block" / name / "device").mkdir(parents=True, exist_ok=True)
    (tmp_path / "block/sda/device/model").write_text("ST4000NM0035-1V4  \n")
    return Disks(str(stats), str(tmp_path / "block"))


def test_whole_disks_that_have_done_something(tmp_path: Path) -> None:
    found = disks(tmp_path, STATS).look()["disks"]
    assert found == {
        "sda": [3000, 12000 * 512, 1500, "ST4000NM0035-1V4"],
        "vda": [10, 80 * 512, 30, "vd"],
        "nvme0n1": [10, 80 * 512, 20, "nv"],
    }


def test_of_many_disks_the_busiest(tmp_path: Path) -> None:
    lines = []
    for number in range(40):
        (tmp_path / "block" / f"sd{number}").mkdir(parents=True)
        lines.append(f"8 {number} sd{number} 5 0 8 1 0 0 0 0 0 {number} 9\n")
    assert list(disks(tmp_path, "".join(lines)).look()["disks"]) == [
        f"sd{number}" for number in range(39, 23, -1)
    ]


def test_a_kernel_that_tells_nothing_or_nonsense(tmp_path: Path) -> None:
    assert Disks(str(tmp_path / "none"), str(tmp_path)).look()["disks"] == {}
    assert disks(tmp_path, "8 0 sda x y\n").look()["disks"] == {}
    assert pressures(str(tmp_path)) == {}
    for name in ("cpu", "io", "memory"):
        (tmp_path / name).write_text("")
    assert pressures(str(tmp_path)) == {}


def test_what_programs_wait_for(tmp_path: Path) -> None:
    place = tmp_path / "100% mine.slice"  # a cgroup may have any name
    place.mkdir()
    for number, name in enumerate(("cpu", "io", "memory")):
        lines = [
            f"{kind} avg10=0.00 avg60=0.71 avg300=2.41 total={number}9999\n" for kind in ("some", "full")
        ]
        (place / f"{name}.pressure").write_text("".join(lines[: 1 if name == "cpu" else 2]))
    own = Disks(own=str(place))
    assert own.look()["own_pressure"] == {"cpu": 9, "io": 19, "memory": 29}
    (place / "io.pressure").unlink()
    assert own.look()["own_pressure"] == {"cpu": 9, "memory": 29}
    assert "own_pressure" not in own.look(contained=True), "its engine has the tasks in cgroups of its own"


def test_this_machine(tmp_path: Path) -> None:
    machine = {"swapped": 0, **Disks().look()}
    messages.check(Message("looked", {"tasks": {}, "machine": machine}), messages.FROM_AGENT)
    if Path("/proc/pressure").is_dir():
        assert set(machine["pressure"]) == {"cpu", "io", "memory"}
