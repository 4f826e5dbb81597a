"""NVML that hangs, crashes or crawls, asked as an agent asks it: a sick GPU costs a GPU, a sick driver its GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.dead_files import dead_files, missing
from tests.support.driver import PROBE, ask
from tests.support.hanging_names import hanging_names
from tests.support.nvml import Fleet
from tests.support.patience import until
from tflaunch.agent.host import processes

GPUS = tuple(f'gpu uuid=GPU-{index} name="NVIDIA H100" mem=81559' for index in range(4))
ALL = [("GPU-0", "0"), ("GPU-1", "1"), ("GPU-2", "2"), ("GPU-3", "3")]
# Well above what the simulated library takes on a busy machine.
CALL_S = 3.0
HANGS = "did not return within"


@pytest.fixture
def fleet(library: Path, tmp_path: Path) -> Fleet:
    return Fleet(library, tmp_path / "fleet", *GPUS)


CALLS = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetNvLinkState")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("how", "what"), [("hang", HANGS), ("crash", "crashed (signal 11)"), ("abort", "crashed (signal 6)")]
)
def test_one_sick_gpu_costs_one_gpu(fleet: Fleet, call: str, how: str, what: str) -> None:
    first, again = ask(fleet, ([*GPUS, f"sick {call} {how} gpu=2"], PROBE), (None, PROBE), call_s=CALL_S)
    for asked in (first, again):
        assert (asked.note, [gpu["uuid"] for gpu in asked.gpus if not gpu["error"]]) == (
            "",
            ["GPU-0", "GPU-1", "GPU-3"],
        )
        assert asked.gpus[2]["error"].startswith(f"{call} {what}")
        assert set(asked.gpus[0]["links"]) == {"1", "3"}
    assert again.pids == first.pids, "the second look leaves it alone"


def test_what_a_sick_gpu_said_before_is_kept(fleet: Fleet) -> None:
    (asked,) = ask(fleet, ([*GPUS, "sick nvmlDeviceGetNvLinkState hang gpu=2"], PROBE), call_s=CALL_S)
    assert (asked.gpus[2]["uuid"], asked.gpus[2]["name"]) == ("GPU-2", "NVIDIA H100")


def test_a_gpu_that_hangs_is_none_of_the_others_uuids(fleet: Fleet) -> None:
    """To find a UUID, NVML may touch every GPU; the agent finds its own by their places."""
    looks = [(None, {"ask": what, "devices": ALL}) for what in ("loads", "uses")]
    for asked in ask(fleet, ([*GPUS, "sick * hang gpu=0"], PROBE), *looks, call_s=CALL_S)[1:]:
        assert sorted(asked.found) == [1, 2, 3]
        assert asked.failed[0].startswith("nvmlDeviceGetHandleByIndex did not return")


@pytest.mark.parametrize("ask_for", ["loads", "uses"])
def test_a_gpu_that_falls_off_the_bus_under_a_run(fleet: Fleet, ask_for: str) -> None:
    sick = [*GPUS, "sick * hang gpu=1"]
    well, asked = ask(fleet, (None, PROBE), (sick, {"ask": ask_for, "devices": ALL}), call_s=CALL_S)
    assert well.failed == {}
    assert (sorted(asked.found), list(asked.failed)) == ([0, 2, 3], [1])


@pytest.mark.parametrize(("how", "what"), [("hang", HANGS), ("crash", "crashed (signal 11)")])
@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_sick_driver_is_a_host_without_known_gpus(fleet: Fleet, call: str, how: str, what: str) -> None:
    asked, well = ask(fleet, ([*GPUS, f"sick {call} {how}"], PROBE), (GPUS, PROBE), call_s=CALL_S)
    assert (asked.gpus, asked.pids) == ([], [])
    assert asked.note.startswith(f"NVML: {call} {what}")
    assert asked.note.endswith("no GPU has answered")
    assert len(well.gpus) == 4, "once it is mended, it is asked as ever"


def test_a_driver_that_goes_on_after_a_gpu_hangs_no_more(fleet: Fleet) -> None:
    """Where a GPU takes the whole driver along, CUDA would hang on the others, too."""
    sick = [*GPUS, "sick nvmlDeviceGetUUID crash gpu=2", "sick nvmlDeviceGetMigMode hang gpu=1"]
    (asked,) = ask(fleet, (sick, PROBE), call_s=CALL_S)
    assert [bool(gpu["error"]) for gpu in asked.gpus] == [False, True, True, False]


def test_a_driver_that_is_too_slow(fleet: Fleet) -> None:
    (asked,) = ask(fleet, ([*GPUS, "sick * slow=100"], PROBE), within_s=4.0, call_s=CALL_S)
    assert asked.gpus == []
    assert asked.note.startswith("NVML: too slow: ")
    assert re.search(r"GPU [0-3] answered last", asked.note)


def test_what_cannot_be_killed_is_left_and_counted(fleet: Fleet, dead: Path) -> None:
    first, again = ask(fleet, ([*GPUS, f"sick * stuck={dead}/x gpu=2"], PROBE), (None, PROBE), call_s=CALL_S)
    for asked in (first, again):
        assert [bool(gpu["error"]) for gpu in asked.gpus] == [False, False, True, False]
    child, left = first.pids
    assert again.pids == [child, left]
    process = processes.read(left)
    assert process is not None
    assert processes.left_behind(process)


def test_a_few_processes_are_left_at_most(fleet: Fleet, dead: Path) -> None:
    more = [f"gpu uuid=GPU-{index} mem=81559" for index in range(4, 8)]
    stuck = [f"sick * stuck={dead}/x gpu={gpu}" for gpu in (1, 2, 4, 5)]
    first, again = ask(fleet, ([*GPUS, *more, *stuck], PROBE), (None, PROBE), call_s=CALL_S)
    assert len(first.pids) == 3
    said = [gpu["error"].partition(" ")[0] for gpu in first.gpus]
    hung = "nvmlDeviceGetHandleByIndex"
    assert said == ["", hung, hung, "", hung, "not", "not", "not"]
    assert first.gpus[6]["error"] == "not asked: 3 processes wait in the driver for ever"
    assert again.pids == first.pids
    assert again.gpus == []
    assert again.note.startswith("NVML: not asked: ")


def test_the_driver_is_left_alone_in_between_and_may_hang_over_it(fleet: Fleet) -> None:
    first, again = ask(fleet, ([*GPUS, "sick nvmlShutdown hang"], PROBE), (None, PROBE), call_s=CALL_S)
    assert len(again.gpus) == len(first.gpus) == 4


def test_a_name_service_that_hangs_is_not_nvmls_fault(fleet: Fleet, tmp_path: Path) -> None:
    """The users of processes are looked up, too: where that hangs, they are numbers."""
    with hanging_names(tmp_path) as (inside, somebody):
        sick = [*GPUS, f"proc gpu=1 pid={somebody.pid} mem=500"]
        (asked,) = ask(fleet, (sick, PROBE), call_s=CALL_S, inside=inside)
    assert [gpu["error"] for gpu in asked.gpus] == [""] * 4
    (process,) = asked.gpus[1]["processes"]
    assert (process["pid"], process["user"]) == (somebody.pid, str(somebody.uid))


def test_nothing_is_left_of_what_was_stuck(fleet: Fleet, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    place = tmp_path / "dead"
    place.mkdir()
    with dead_files(place):
        (asked,) = ask(fleet, ([*GPUS, f"sick * stuck={place}/x gpu=0"], PROBE), call_s=CALL_S)
        assert len(asked.pids) == 2
    until(lambda: not any(processes.read(pid) for pid in asked.pids), "the driver to let them go")


def test_the_process_that_asks_is_killed_in_between(fleet: Fleet) -> None:
    first, again = ask(fleet, (None, PROBE), (None, PROBE), kill=True)
    assert len(again.gpus) == len(first.gpus) == 4
    assert again.pids != first.pids
