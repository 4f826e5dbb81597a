"""GPUs whose links are narrow, or whose processors rest, as NVML's counters tell of them, look by look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.diagnosis.gpu_facts import gpu
from tests.unit.diagnosis.slow_runs import LOOK_S, WORKERS, Run, asynchronous, one

GPUS = {name: [f"GPU-{name}"] for name in WORKERS}
FULL = [26562] * 18


def seen(facts: Callable[[str, int], dict[str, Any]], looks: int = 40, **settings: Any) -> list[str]:
    """What is said of a run of whose GPUs, a task each, NVML says these facts at its Nth question."""
    run = asynchronous(gpus=GPUS, **settings)
    said = []
    for number in range(looks):
        run.gpus = {f"GPU-{name}": gpu(**facts(name, number // 5)) for name in WORKERS}
        said += run.on(LOOK_S)
    return said


def of_one(**facts: Any) -> Callable[[str, int], dict[str, Any]]:
    """Worker/1's GPU has these facts, the others 18 NVLinks."""
    return lambda name, _: facts if name == "worker/1" else {"nvlinks": FULL}


# ---- PCIe


def test_an_older_generation_of_pcie_and_fewer_lanes() -> None:
    assert one(seen(of_one(pcie=[1, 4]))).startswith(
        "the GPU of worker/1 on host3 has PCIe of generation 1 in place of 4: what goes to and from it takes 8x as long"
    )
    both = one(seen(of_one(pcie=[3, 4], lanes=[4, 16])))
    assert (
        "has 4 of 16 lanes of PCIe and PCIe of generation 3 in place of 4: what goes to and from it takes 8x"
        in both
    )
    assert " takes 256x as long" in one(seen(of_one(pcie=[1, 5], lanes=[1, 16])))
    assert " takes 2.7x as long" in one(seen(of_one(lanes=[6, 16])))


def test_a_link_that_is_slow_while_the_gpu_does_little() -> None:
    assert seen(of_one(pcie=[1, 4], use=30, gpm=[80, 1, 1])) == []
    assert seen(lambda _, at: {"pcie": [1 + 3 * (at % 2), 4]}) == []


# ---- NVLink


def test_an_nvlink_that_is_down() -> None:
    assert one(seen(of_one(nvlinks=[*FULL[1:], 0]))) == (
        "the GPU of worker/1 on host3 has 17 of its NVLinks up, not 18 as the other GPUs of the run have: all GPUs that"
        " exchange data with it wait for that; look at `nvidia-smi nvlink -s -i GPU-worker/1` and at the Xids of"
        " `dmesg` (74) on host3; the links come back with a reset of its GPUs, or a reboot, if they are not broken"
    )


def test_an_nvlink_that_goes_down_in_mid_run_on_all_hosts() -> None:
    text = one(
        seen(lambda name, at: {"nvlinks": FULL if at < 3 or name != "worker/1" else [*FULL[2:], 0, 0]}, 60)
    )
    assert "has 16 of its NVLinks up, not 18 as before: " in text
    alone = Run("worker/0", gpus={"worker/0": ["GPU-0"]})
    alone.gpus = {"GPU-0": gpu(nvlinks=FULL)}
    assert alone.on(120) == []
    alone.gpus = {"GPU-0": gpu(nvlinks=[0] * 18)}
    assert "has 0 of its NVLinks up, not 18 as before" in one(alone.on(200))


def test_an_nvlink_that_is_slower() -> None:
    text = one(seen(of_one(nvlinks=[13281, *FULL[1:]])))
    assert text.startswith(
        "the GPU of worker/1 on host3 has 1 NVLink at 13281 MB/s in place of 26562: all GPUs "
    )
    assert seen(of_one(nvlinks=[25000, *FULL[1:]])) == []
    assert seen(of_one(nvlinks=[25000, *FULL[1:]]), thresholds={"nvlink_ratio": 0.99})


@pytest.mark.parametrize(
    "facts",
    [
        lambda *_: {"nvlinks": None},
        lambda *_: {"nvlinks": [26562] * 12 + [0] * 6},  # no card has more
        lambda *_: {"nvlinks": [1] * 18},
        lambda name, _: {
            "nvlinks": [0] * 18 if name == "worker/1" else FULL
        },  # it was never wired to the others
        lambda name, _: {"nvlinks": [26562] * 6 if name == "worker/1" else FULL},  # another model
        lambda name, at: {
            "nvlinks": [*FULL[1:], 0] if name == "worker/1" and at == 5 else FULL
        },  # for a moment
    ],
)
def test_nvlinks_that_are_as_they_should_be(facts: Callable[[str, int], dict[str, Any]]) -> None:
    assert seen(facts, 60) == []


# ---- GPM


def test_gpus_that_are_busy_all_the_time_on_a_third_of_their_processors() -> None:
    text = one(
        seen(lambda _, at: {"use": 99, "gpm": [32.0, 4.0, 18.0] if at else None, "energy_j": 1000 * at})
    )
    assert text.startswith(
        "the GPUs of worker/0, worker/1, worker/2 have used 32 % of their SMs in the last 100 s on the average, 4 % of"
        " their tensor cores and 18 % of the speed of their memory, at 33 W of 700 W: up to 3.1x faster steps, or"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"use": 99, "gpm": [71.0, 30.0, 40.0]},
        {"use": 99, "gpm": [30.0, 2.0, 88.0]},  # its memory is what bounds it
        {"use": 40, "gpm": [71.0, 30.0, 40.0]},
    ],
)
def test_gpus_that_do_what_they_can(facts: dict[str, Any]) -> None:
    assert seen(lambda *_: facts) == []
