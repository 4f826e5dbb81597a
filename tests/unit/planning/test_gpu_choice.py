"""Which GPUs a run may take, and which go together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.gpu_choice import GpuChoice, choose, take_nearest
from tflaunch.planning.inventory import Gpu, GpuProcess, HostFacts, Lease, MigInstance, why_busy
from tflaunch.protocol.errors import PlanError, UsageError

HOSTFILE = Hostfile("test", (Host("a"), Host("b")))
USED = GpuProcess(1, "ada", "train", "compute", None, None)


def gpu(index: int, name: str = "NVIDIA H100", gib: float = 80, **fields: object) -> Gpu:
    return Gpu(index, f"GPU-{index}", name, int(gib * 2**30), 0, compute_mode="default", **fields)  # type: ignore[arg-type]


def split(index: int, *profiles: str, **fields: object) -> Gpu:
    """A GPU in MIG mode with an instance of each of those profiles."""
    instances = [
        MigInstance(
            part,
            f"MIG-{index}-{part}",
            f"NVIDIA H100 MIG {profile}",
            int(profile.rpartition(".")[2].removesuffix("gb")) << 30,
            0,
            gpu=index,
        )
        for part, profile in enumerate(profiles)
    ]
    made = gpu(index, mig_mode=True, mig=tuple(instances), **fields)
    return replace(made, busy=why_busy(made))


def after(*gpus: Gpu, host: str = "a", hostfile: Hostfile = HOSTFILE, **choice: object) -> dict[str, str]:
    """Every device of that host after the choice, with why it must not be taken."""
    facts = HostFacts(host, host, "boot", (), "3.11", 8, 2**34, (), tuple(gpus))
    chosen = choose({host: facts}, GpuChoice(**choice), hostfile)  # type: ignore[arg-type]
    return {device.label: device.busy for device in chosen[host].gpus_or_instances}


def free(*gpus: Gpu, **choice: object) -> list[str]:
    """The labels of what is free then."""
    return [label for label, busy in after(*gpus, **choice).items() if not busy]  # type: ignore[arg-type]


def test_no_choice_changes_nothing() -> None:
    assert free(gpu(0), gpu(1, busy="in use")) == ["0"]


def test_model_and_memory() -> None:
    gpus = (gpu(0), gpu(1, "NVIDIA A100-SXM4-40GB", 39.6), gpu(2, "Tesla T4", 15))
    assert free(*gpus, model="a100") == ["1"]
    assert free(*gpus, min_memory_bytes=40 * 2**30) == ["0", "1"]
    assert free(*gpus, min_memory_bytes=41 * 2**30) == ["0"]


def test_include_and_exclude() -> None:
    gpus = (gpu(0), gpu(1), gpu(2))
    assert free(*gpus, exclude=("a:0,2",)) == ["1"]
    assert free(*gpus, exclude=("b",)) == ["0", "1", "2"]
    assert free(*gpus, exclude=("*:1", "a:0")) == ["2"]
    assert free(*gpus, include=("a:1",)) == ["1"]
    assert free(*gpus, include=("b",)) == []
    assert free(*gpus, include=("a",), exclude=("a:1",)) == ["0", "2"]


@pytest.mark.parametrize("pattern", ["a:", "a:x", "a:0-2", "a:0,", "a:03", "a:3.", "a:3.1.0", "c", "c:0"])
def test_a_pattern_that_fits_nothing(pattern: str) -> None:
    with pytest.raises(UsageError):
        free(gpu(0), exclude=(pattern,))


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("a:9", "--include a:9: there is no GPU 9: a has 0, 1, 2.0, 2.1"),
        ("a:0,2.7,8", "--include a:0,2.7,8: there is no GPU 2.7, 8: a has 0, 1, 2.0, 2.1"),
        ("*:4", "--include *:4: there is no GPU 4: a has 0, 1, 2.0, 2.1"),
    ],
)
def test_a_gpu_that_no_host_has_is_no_choice(include: str, message: str) -> None:
    with pytest.raises(PlanError) as error:
        free(gpu(0), gpu(1), split(2, "1g.10gb", "1g.10gb"), include=(include,))
    assert error.value.message == message
    with pytest.raises(PlanError) as error:  # whoever protects a GPU by a wrong number protects none
        free(gpu(0), gpu(1), split(2, "1g.10gb", "1g.10gb"), exclude=(include,))
    assert error.value.message == message.replace("--include", "--exclude")


def test_what_a_host_has_to_choose_from() -> None:
    with pytest.raises(PlanError, match=r": a has 0-3$"):
        free(*map(gpu, range(4)), include=("a:4",))
    with pytest.raises(PlanError, match=r": a has none$"):
        free(include=("a:0",))
    assert free(gpu(0), include=("b:7",)) == [], "b has not answered: nobody knows what it has"


def test_shared_gpus_are_those_that_others_compute_on() -> None:
    busy = replace(gpu(0), busy="in use by ada", processes=(USED,))
    leased = replace(gpu(1), busy="leased", lease=Lease("ada", "run", 0.0))
    lost = replace(gpu(2), busy="broken", error="lost")
    exclusive = replace(gpu(3), busy="in use by ada", compute_mode="exclusive_process")
    assert free(busy, leased, lost, exclusive) == []
    assert free(busy, leased, lost, exclusive, share=True) == ["0"]


def test_without_being_asked_for_no_instance_is_taken() -> None:
    gpus = (gpu(0), split(1, "3g.40gb", "1g.10gb"))
    assert after(*gpus) == {"0": "", "1.0": "in MIG mode (--mig)", "1.1": "in MIG mode (--mig)"}
    assert after(*gpus, share=True) == after(*gpus)


def test_instances_instead_of_whole_gpus() -> None:
    gpus = (gpu(0), split(1, "3g.40gb", "1g.10gb"))
    assert after(*gpus, mig="") == {"0": "not in MIG mode (--mig)", "1.0": "", "1.1": ""}
    assert after(*gpus, mig="1G.10")["1.0"] == "no 1G.10 (--mig)"
    assert free(*gpus, mig="1G.10") == ["1.1"]


def test_every_filter_serves_for_instances_too() -> None:
    used = replace(split(0, "1g.10gb").mig[0], busy="in use by ada", processes=(USED,))
    leased = replace(split(0, "1g.10gb", "1g.10gb").mig[1], busy="leased", lease=Lease("ada", "run", 0.0))
    gpus = (replace(split(0), mig=(used, leased)), split(1, "3g.40gb", "1g.10gb"))
    assert free(*gpus, mig="") == ["1.0", "1.1"]
    assert free(*gpus, mig="", share=True) == ["0.0", "1.0", "1.1"]
    assert free(*gpus, mig="", model="h100") == ["1.0", "1.1"]
    assert free(*gpus, mig="", model="a100") == []
    assert free(*gpus, mig="", min_memory_bytes=20 * 2**30) == ["1.0"]
    assert free(*gpus, mig="", include=("a:1.1",)) == ["1.1"]
    assert free(*gpus, mig="", include=("a:1",)) == ["1.0", "1.1"]
    assert free(*gpus, mig="", exclude=("a:0,1.0",)) == ["1.1"]


def test_what_cannot_be_shared() -> None:
    exclusive = replace(split(0, "1g.10gb"), compute_mode="exclusive_process")
    exclusive = replace(exclusive, mig=(replace(exclusive.mig[0], busy="in use by ada"),))
    nameless = split(1, "1g.10gb")
    nameless = replace(nameless, mig=(replace(nameless.mig[0], uuid="", busy="no UUID"),))
    assert free(exclusive, nameless, split(2), mig="", share=True) == []
    assert free(split(2), share=True) == [], "a GPU in MIG mode without instances is no device"


def test_an_instance_that_the_hostfile_names_is_asked_for() -> None:
    gpus = (gpu(0), split(1, "3g.40gb", "1g.10gb"), split(2, "1g.10gb"))
    hostfile = Hostfile("test", (Host("a", gpus=("1.1", "MIG-2-0")), Host("b")))
    assert free(*gpus, hostfile=hostfile) == ["0", "1.1", "2.0"]
    assert free(*gpus, hostfile=hostfile, host="b") == ["0"]
    assert free(*gpus, hostfile=hostfile, model="a100") == []


def linked(*pairs: tuple[int, int], count: int = 4, link: str = "NV4") -> list[Gpu]:
    """GPUs of which those pairs are joined by `link`, all others by SYS."""
    near = {(a, b) for pair in pairs for a, b in (pair, pair[::-1])}
    return [
        gpu(i, links={j: link if (i, j) in near else "SYS" for j in range(count) if j != i})
        for i in range(count)
    ]


def test_gpus_that_are_joined_go_together() -> None:
    first, rest = take_nearest(linked((0, 3), (1, 2)), 2)
    assert [gpu.index for gpu in first] == [0, 3]
    second, rest = take_nearest(rest, 2)
    assert ([gpu.index for gpu in second], rest) == ([1, 2], [])
    group, _ = take_nearest(linked(*pairwise((1, 2, 3)), (1, 3), link="PIX"), 3)
    assert [gpu.index for gpu in group] == [1, 2, 3]


def test_more_links_are_nearer() -> None:
    gpus = linked((0, 1), link="NV2")
    gpus[2] = replace(gpus[2], links={**gpus[2].links, 3: "NV12"})
    gpus[3] = replace(gpus[3], links={**gpus[3].links, 2: "NV12"})
    assert [gpu.index for gpu in take_nearest(gpus, 2)[0]] == [2, 3]


def test_gpus_of_one_model_go_together() -> None:
    a, b = "A100", "H100"
    gpus = [replace(gpu, name=name) for gpu, name in zip(linked((0, 1)), (a, b, b, a), strict=True)]
    first, rest = take_nearest(gpus, 2)
    assert [gpu.index for gpu in first] == [0, 3], "not the pair that is joined"
    assert [gpu.index for gpu in take_nearest(rest, 2)[0]] == [1, 2]
    assert [gpu.index for gpu in take_nearest(gpus, 3)[0]] == [0, 1, 2], "no model has three"


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9])
def test_equal_gpus_go_by_index(count: int) -> None:
    gpus = linked()
    taken, rest = take_nearest(gpus, count)
    assert [*taken, *rest] == gpus
    assert len(taken) == min(count, 4)
