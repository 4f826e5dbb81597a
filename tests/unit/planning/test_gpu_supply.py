"""Which GPUs the tasks get, and the sentences when there are too few."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from tests.support.planned import BUSY, PROGRAM, asked, facts, places, plan, refused, some_gpus, split, taken
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.inventory import (
    NO_INSTANCE,
    Gpu,
    GpuProcess,
    HostFacts,
    Lease,
    MigInstance,
    when_free,
    why_busy,
)
from tflaunch.planning.plan import PORTS_HELD, usable_gpus
from tflaunch.planning.plan import places as trial_places
from tflaunch.protocol.errors import EXIT_PLAN, PlanError
from tflaunch.protocol.job import Role

# --- GPUs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "gpus", "message", "hint"),
    [
        (
            {"workers": 3, "gpus_per_worker": 2},
            [some_gpus("g1", 4), some_gpus("g2", 4, BUSY)],
            "need 6 GPUs (3 workers x 2), 5 are free: g1 4, g2 1 of 4 (3 busy: processes)",
            "Ask for 2 workers at most, or lower --gpus-per-worker.",
        ),
        (
            {"workers": 6},
            [some_gpus("g1", 4), some_gpus("g2", 4, BUSY)],
            "need 6 GPUs (6 workers x 1), 5 are free: g1 4, g2 1 of 4 (3 busy: processes)",
            "Ask for 5 workers at most, or place workers without GPUs: --gpus-per-worker 0.",
        ),
        (
            {"workers": 3, "gpus_per_worker": 2},
            [some_gpus("g1", 3), some_gpus("g2", 3)],
            "need 6 GPUs (3 workers x 2), 6 are free: g[1-2] 3; they hold 2 workers, since the GPUs of one"
            " are on one host",
            "Ask for 2 workers at most, or lower --gpus-per-worker.",
        ),
        (
            {"workers": 4, "chief": True},
            [some_gpus("g1", 4)],
            "need 5 GPUs (the chief and 4 workers x 1), 4 are free: g1 4",
            "Ask for 3 workers at most, or place workers without GPUs: --gpus-per-worker 0.",
        ),
        (
            {},
            [some_gpus("g1", 1, {0: "pid 12 (python)"}), ()],
            "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 1 (1 busy: pid 12 (python)), g2 none",
            "Place workers without GPUs: --gpus-per-worker 0.",
        ),
        (
            {"gpus_per_worker": 2},
            [(), ()],
            "need 2 GPUs (1 worker x 2), 0 are free: g[1-2] none",
            "Lower --gpus-per-worker.",
        ),
        (
            {"workers": 4},
            [some_gpus("g1", 4, {0: "a", 1: "b", 2: "c", 3: "a"})],
            "need 4 GPUs (4 workers x 1), 0 are free: g1 0 of 4 (4 busy: a, b, ...)",
            "Place workers without GPUs: --gpus-per-worker 0.",
        ),
    ],
)
def test_too_few_gpus(job: dict[str, Any], gpus: list[tuple[Gpu, ...]], message: str, hint: str) -> None:
    error = refused(asked(PROGRAM, **job), *(facts(f"g{i}", some) for i, some in enumerate(gpus, 1)))
    assert (error.message, error.hint) == (message, hint)
    assert error.exit_code == EXIT_PLAN


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("auto", [0, 2, 3]),
        (2, [0, 2]),
        (4, [0, 2, 3]),
        ((3, "GPU-g1-0"), [0, 3]),
        ((3, "GPU-g1-3"), [3]),
    ],
)
def test_gpus_that_a_host_gives(gpus: Any, expected: list[int]) -> None:
    planned = plan(
        asked(PROGRAM, ps=0), facts("g1", some_gpus("g1", 4, {1: "leased"})), hosts={"g1": {"gpus": gpus}}
    )
    assert [task.gpu_labels for task in planned.tasks] == [(str(index),) for index in expected]
    assert [task.gpus for task in planned.tasks] == [(f"GPU-g1-{index}",) for index in expected]
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in planned.tasks] == [f"GPU-g1-{i}" for i in expected]


def test_what_options_leave_out_of_named_gpus_is_not_busy() -> None:
    members, hosts = facts("g1", some_gpus("g1", 3)), {"g1": {"gpus": (0, 2)}}
    planned = plan(asked(PROGRAM, ps=0), members, hosts=hosts, exclude=("g1:2",))
    assert [task.gpu_labels for task in planned.tasks] == [("0",)]
    busy = facts("g1", some_gpus("g1", 3, {0: "in use by ada"}))
    error = refused(asked(PROGRAM), busy, exclude=("g1:1,2",))
    assert error.message.endswith("g1 0 of 3 (1 busy: in use by ada; 2 left out: in --exclude)")


def test_a_host_that_gives_no_gpus_is_a_host_without() -> None:
    planned = plan(asked(PROGRAM), facts("g1", some_gpus("g1", 4)), hosts={"g1": {"gpus": 0}})
    assert [(str(task.id), task.gpus) for task in planned.tasks] == [("ps/0", ()), ("worker/0", ())]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (5, "g1: `gpus: 5`, but 2 GPUs are there"),
        ((0, 7), "g1: `gpus:` names 7, but 2 GPUs are there; 0: GPU-g1-0; 1: GPU-g1-1"),
        (("GPU-nope",), "g1: `gpus:` names GPU-nope, but 2 GPUs are there; 0: GPU-g1-0; 1: GPU-g1-1"),
        ((1,), "g1: `gpus:` names 1, which is busy: 3 processes use 40 GiB"),
    ],
)
def test_gpus_that_a_host_cannot_give(gpus: Any, message: str) -> None:
    some = some_gpus("g1", 2, {1: "3 processes use 40 GiB"})
    assert refused(asked(PROGRAM), facts("g1", some), hosts={"g1": {"gpus": gpus}}).message == message


def test_gpus_that_the_driver_does_not_show() -> None:
    silent = facts("g1", gpu_note="the driver does not answer")
    error = refused(asked(PROGRAM), silent, hosts={"g1": {"gpus": 2}})
    assert error.message == (
        "need 1 GPU (1 worker x 1), 0 are free: g1 none, for they cannot be seen (the driver does not answer)"
    )
    assert plan(asked(PROGRAM), silent).notes == (
        "g1: no GPUs can be seen: the driver does not answer; look with nvidia-smi on g1",
    )


def test_too_few_gpus_where_those_of_a_host_cannot_be_seen() -> None:
    there = facts("g1", some_gpus("g1", 1))
    silent = [facts(f"g{n}", gpu_note="NVML: RM has detected an NVML/RM version mismatch.") for n in (2, 3)]
    error = refused(asked(PROGRAM, workers=2), there, *silent)
    assert error.message == (
        "need 2 GPUs (2 workers x 1), 1 is free: g1 1, "
        "g[2-3] none, for they cannot be seen (NVML: RM has detected an NVML/RM version mismatch.)"
    )
    repaired = "On g[2-3], the driver was updated: reboot it, or reload its kernel modules"
    assert error.hint.startswith(repaired)
    error = refused(asked(PROGRAM, workers=2, gpus_per_worker="all"), there, *silent)
    assert error.hint.startswith(repaired)
    unwanted = {name: {"gpus": 0} for name in ("g2", "g3")}
    assert "driver" not in refused(asked(PROGRAM, workers=2), there, *silent, hosts=unwanted).hint


def test_workers_go_to_gpus_only_and_a_note_says_so() -> None:
    planned = plan(asked(PROGRAM, ps=2), facts("g1", some_gpus("g1", 2)), facts("g2"), facts("g3"))
    assert places(planned) == {"ps/0": "g2", "ps/1": "g3", "worker/0": "g1", "worker/1": "g1"}
    assert planned.notes == (
        "no worker runs on g[2-3], which have no GPU to give; to start workers without GPUs: --gpus-per-worker 0",
    )


def test_who_asks_for_a_kind_of_gpu_never_trains_without_any() -> None:
    asks = {"selects_gpus": "--gpu-model H100"}
    error = refused(asked(PROGRAM, workers=2, **asks), facts("g1"), facts("g2"))
    assert error.exit_code == EXIT_PLAN
    assert error.message == "--gpu-model H100: no worker gets a GPU: g[1-2] none"
    assert error.hint == "Leave that out, or say --gpus-per-worker 0: the workers then run on CPUs."
    assert refused(asked(PROGRAM, **asks), facts("g1", some_gpus("g1", 1)), hosts={"g1": {"gpus": 0}})
    with pytest.raises(PlanError, match="no worker gets a GPU"):
        trial_places(asked(PROGRAM, **asks), Hostfile("hosts.yaml", (Host("g1"),)), {"g1": facts("g1")}, [])
    # Who says that workers need none, or asks for them elsewhere, is not told.
    assert not taken(plan(asked(PROGRAM, workers=1, gpus_per_worker=0, **asks), facts("g1")))
    evaluator = {"evaluator": Role(1, "g2", 1)}
    job = asked(PROGRAM, ps=0, workers=1, worker_hosts="g1", roles=evaluator, **asks)
    assert taken(plan(job, facts("g1"), facts("g2", some_gpus("g2", 1)))) == ["g2:0"]


def test_a_gpu_seen_under_two_names_is_given_once() -> None:
    shared = some_gpus("box", 2)
    planned = plan(asked(PROGRAM, ps=0), facts("g1", shared), facts("g2", shared))
    assert sorted(uuid for task in planned.tasks for uuid in task.gpus) == ["GPU-box-0", "GPU-box-1"]
    assert (
        "g2: GPUs that an earlier host of the hostfile has, too (the same machine?), are used there only"
        in planned.notes
    )


def test_models_are_mixed_only_where_that_is_asked_for_and_noted() -> None:
    members = (
        facts("g1", some_gpus("g1", 2)),
        facts("g2", some_gpus("g2", 2)),
        facts("g3", some_gpus("g3", 1, name="V100")),
    )
    error = refused(asked(PROGRAM), *members)
    assert (error.exit_code, error.message) == (
        65,
        "5 workers would get GPUs of 2 models: 4 x A100 (g[1-2]), 1 x V100 (g3); in step, the slowest sets the pace",
    )
    assert error.hint == (
        "Take one model: --gpu-model A100, say how many workers: --workers N, or mix them: --mix-models."
    )
    error = refused(asked(PROGRAM, workers=5), *members)
    assert error.message.endswith("sets the pace. No one model is enough for 5 workers")
    assert error.hint == (
        "Take one model: --gpu-model A100, ask for fewer workers: --workers N, or mix them: --mix-models."
    )
    assert not plan(asked(PROGRAM, workers=4), *members).notes
    planned = plan(replace(asked(PROGRAM), mix_models=True), *members)
    assert planned.notes == (
        "the workers get GPUs of different models: 4 x A100 (g[1-2]), 1 x V100 (g3); "
        "where they train in step, all wait for the slowest",
    )


def models(host: str, letters: str) -> HostFacts:
    """A host with a GPU of each of those models."""
    gpus = (Gpu(i, f"GPU-{host}-{i}", name, 80 << 30, 0) for i, name in enumerate(letters))
    return facts(host, tuple(gpus))


@pytest.mark.parametrize(
    ("workers", "each", "hosts", "expected"),
    [
        (2, 1, ["A", "BB"], ["g2:0", "g2:1"]),
        (2, 1, ["AA", "BB"], ["g1:0", "g1:1"]),  # the first that is enough
        (2, 1, ["AB", "B", "A"], ["g1:0", "g3:0"]),
        (1, 2, ["AB", "BB"], ["g2:0,1"]),
        (2, 2, ["ABBA", "AA"], ["g1:0,3", "g2:0,1"]),
        # None is enough, so only --mix-models helps.
        (2, 1, ["A", "B"], ["g1:0", "g2:0"]),
        (2, 2, ["AB", "AA", "BB"], ["g2:0,1", "g3:0,1"]),  # but each worker can have one model
        (2, 2, ["AB", "AA"], ["g1:0,1", "g2:0,1"]),  # nothing else would do
        (2, 2, ["ABAB"], ["g1:0,2", "g1:1,3"]),
    ],
)
def test_counted_workers_get_gpus_of_one_model(
    workers: int, each: int, hosts: list[str], expected: list[str]
) -> None:
    members = [models(f"g{i}", letters) for i, letters in enumerate(hosts, 1)]
    job = asked(PROGRAM, workers=workers, gpus_per_worker=each, ps=0)
    planned = plan(replace(job, mix_models=True), *members)
    assert taken(planned) == expected
    if len({letter for place in expected for letter in _letters(place, hosts)}) == 1:
        assert taken(plan(job, *members)) == expected
    else:
        assert "--mix-models" in f"{(error := refused(job, *members)).message} {error.hint}"
    used = {letter for place in expected for letter in _letters(place, hosts)}
    assert [note.partition(":")[0] for note in planned.notes] == (
        ["the workers get GPUs of different models, since no one model is enough"] if len(used) > 1 else []
    )


def _letters(place: str, hosts: list[str]) -> str:
    host, _, labels = place.partition(":")
    return "".join(hosts[int(host[1:]) - 1][int(label)] for label in labels.split(","))


def test_the_chief_and_slots_count_for_one_model() -> None:
    members = [models("g1", "AA"), models("g2", "BBB")]
    assert taken(plan(asked(PROGRAM, workers=2, chief=True, ps=0), *members)) == ["g2:0", "g2:1", "g2:2"]
    slots = {"g1": {"slots": 1}}
    assert taken(plan(asked(PROGRAM, workers=2, ps=0), *members, hosts=slots)) == ["g2:0", "g2:1"]


def test_workers_that_are_not_counted_use_all_gpus() -> None:
    assert taken(plan(asked(PROGRAM, ps=0), models("g1", "A"), models("g2", "AA"))) == [
        *("g1:0", "g2:0", "g2:1"),
    ]


def test_a_worker_gets_gpus_of_one_model_though_nobody_counted_them() -> None:
    assert taken(plan(asked(PROGRAM, ps=0, gpus_per_worker=2), models("g1", "AAAB"))) == ["g1:0,1"]
    error = refused(asked(PROGRAM, ps=0, workers=2, gpus_per_worker=2), models("g1", "AAAB"))
    assert error.message == (
        "need 4 GPUs (2 workers x 2), 4 are free: g1 4; they hold 1 worker, since the GPUs of one are on one host and "
        "of one model (--mix-models)"
    )


def test_all_gpus_of_a_host_are_one_worker_s() -> None:
    members = (models("g1", "AAA"), models("g2", "A"), models("g3", ""))
    job = asked(PROGRAM, ps=0, gpus_per_worker="all")
    assert taken(plan(job, *members)) == ["g1:0,1,2", "g2:0"]
    assert taken(plan(asked(PROGRAM, ps=0, workers=1, gpus_per_worker="all"), *members)) == ["g1:0,1,2"]
    error = refused(asked(PROGRAM, ps=0, workers=3, gpus_per_worker="all"), *members)
    assert error.message == (
        "need 3 hosts with a free GPU (3 workers, each with all GPUs of its host), 2 have one: g1 3, g2 1, g3 none"
    )
    assert error.hint == "Ask for 2 workers at most, or say how many GPUs one gets: --gpus-per-worker 1."
    assert taken(plan(job, models("g1", "AA"), hosts={"g1": {"gpus": (1,)}})) == ["g1:1"]


def test_all_gpus_of_a_host_that_has_two_models_are_refused_unless_they_may_be_mixed() -> None:
    job = asked(PROGRAM, ps=0, gpus_per_worker="all")
    error = refused(job, models("g1", "AAB"))
    assert error.message.startswith("1 worker would get GPUs of 2 models: 2 x A (g1), 1 x B (g1)")
    assert taken(plan(replace(job, mix_models=True), models("g1", "AAB"))) == ["g1:0,1,2"]
    counted = asked(PROGRAM, ps=0, workers=1, gpus_per_worker="all")
    assert taken(plan(counted, models("g1", "AAB"))) == ["g1:0,1"], "all of one model"


def test_all_instances_of_a_host_are_no_worker_s() -> None:
    error = refused(asked(PROGRAM, ps=0, gpus_per_worker="all"), facts("g1", (split("g1", 0, 2),)), mig="")
    assert "0.0 is a MIG instance, of which a process can use only one" in error.message


# --- MIG instances ---------------------------------------------------------------------------------------


def test_every_worker_gets_one_instance() -> None:
    members = [facts("g1", (split("g1", 0, 2), *some_gpus("g1", 2)[1:])), facts("g2", some_gpus("g2", 1))]
    planned = plan(asked(PROGRAM, ps=1), *members, mig="")
    assert taken(planned) == ["g1:0.0", "g1:0.1"]
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in planned.tasks] == ["", "MIG-g1-0-0", "MIG-g1-0-1"]
    assert taken(plan(asked(PROGRAM, ps=0), *members)) == ["g1:1", "g2:0"], "whole GPUs, unless asked"


def test_all_instances_of_a_large_host_find_ports() -> None:
    ports = tuple(range(20000, 20000 + PORTS_HELD))
    host = facts("g1", tuple(split("g1", index, 7) for index in range(8)), ports=ports)
    assert len(plan(asked(PROGRAM), host, mig="").tasks) == 56 + 14


def test_instances_of_one_profile_are_preferred() -> None:
    members = [facts("g1", (split("g1", 0, 1, "3g.40gb"),)), facts("g2", (split("g2", 0, 2),))]
    assert taken(plan(asked(PROGRAM, workers=2, ps=0), *members, mig="")) == ["g2:0.0", "g2:0.1"]
    assert taken(plan(asked(PROGRAM, ps=0), *members, mig="3g")) == ["g1:0.0"]


def test_where_mig_is_on_the_next_step_is_told() -> None:
    whole, parts = facts("g1", some_gpus("g1", 1)), facts("g2", (split("g2", 0, 7),))
    error = refused(asked(PROGRAM), parts)
    assert (
        error.message == "need 1 GPU (1 worker x 1), 0 are free: g2 0 of 7 (7 left out: in MIG mode (--mig))"
    )
    assert error.hint == (
        "Take the MIG instances of g2 with --mig, or place workers without GPUs: --gpus-per-worker 0."
    )
    error = refused(asked(PROGRAM, workers=2), whole, parts)
    assert error.hint == (
        "Ask for 1 worker at most, take the MIG instances of g2 with --mig, or place workers without GPUs:"
        " --gpus-per-worker 0."
    )
    assert plan(asked(PROGRAM), whole, parts).notes == (
        "g2: no whole GPU is free for workers; to give them MIG instances, add --mig",
    )
    assert plan(asked(PROGRAM), whole, parts, hosts={"g2": {"gpus": 0}}).notes == (
        "no worker runs on g2, which has no GPU to give; to start workers without GPUs: --gpus-per-worker 0",
    )
    error = refused(asked(PROGRAM), whole, mig="1g.5gb")
    assert error.message == (
        "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 1 (1 left out: not in MIG mode (--mig))"
    )
    assert error.hint == "Leave out --mig, or place workers without GPUs: --gpus-per-worker 0."
    error = refused(asked(PROGRAM), whole, min_memory_bytes=900 << 30)
    assert error.hint.startswith("Leave out --min-gpu-memory, or place")
    empty = facts("g1", (dataclasses.replace(some_gpus("g1", 1)[0], mig_mode=True, busy=NO_INSTANCE),))
    for mig in (None, ""):
        error = refused(asked(PROGRAM), empty, mig=mig)
        assert "g1 0 of 1 (1 busy: in MIG mode without an instance)" in error.message
        assert "--mig" not in error.hint


def test_mig_is_no_advice_where_it_would_not_help() -> None:
    parts = facts("g2", (split("g2", 0, 7), some_gpus("g2", 2)[1]))
    assert "--mig" not in refused(asked(PROGRAM), parts, model="V100").hint
    assert "--mig" not in refused(asked(PROGRAM), parts, exclude=("g2:0,1",)).hint
    assert "--mig" not in refused(asked(PROGRAM), parts, min_memory_bytes=90 << 30).hint
    instances = tuple(replace(each, busy="in use by ada") for each in parts.gpus[0].mig)
    used = facts("g2", (replace(parts.gpus[0], mig=instances),))
    assert "--mig" not in refused(asked(PROGRAM), used).hint
    left = refused(asked(PROGRAM), parts, include=("g2:0",))
    assert "take the MIG instances of g2 with --mig" in left.hint.lower().replace("mig i", "MIG i")


def test_a_host_whose_free_gpu_an_option_leaves_out_is_not_said_to_have_none() -> None:
    """Its GPU 1 is free: only --include keeps workers from it."""
    parts = facts("g3", (split("g3", 0, 2), some_gpus("g3", 2)[1]))
    made = plan(asked(PROGRAM), facts("g1", some_gpus("g1", 1)), parts, include=("g1", "g3:0"))
    assert made.notes == ("g3: no whole GPU is free for workers; to give them MIG instances, add --mig",)


@pytest.mark.parametrize(
    ("first", "busy", "there", "take"),
    [
        ("A100", {}, "4 x A100 (g1), 4 free", "A100"),
        ("NVIDIA H100 80GB HBM3", {0: "x"}, "4 x NVIDIA H100 80GB HBM3 (g1), 3 free", "H100"),
    ],
)
def test_a_model_that_no_host_has(first: str, busy: dict[int, str], there: str, take: str) -> None:
    members = [
        facts("g1", some_gpus("g1", 4, busy, name=first)),
        facts("g2", some_gpus("g2", 2, name="Tesla T4")),
    ]
    for job in ({}, {"roles": {"data": Role(1, gpus=1)}}):
        error = refused(asked(PROGRAM, **job), *members, model="V100")
        assert error.message == (
            f"--gpu-model V100: none of the 6 GPUs is one; there are {there}; 2 x Tesla T4 (g2), 2 free"
        )
        assert error.hint == f"Name a model that is there: --gpu-model {take}, or leave --gpu-model out."
    assert plan(asked(PROGRAM), *members, model=take).tasks


def test_a_model_that_is_there_and_busy_is_busy() -> None:
    members = (facts("g1", (*some_gpus("g1", 2, {0: "in use by ada"}, "V100"), *some_gpus("g1", 4)[2:])),)
    error = refused(asked(PROGRAM, workers=2), *members, model="V100")
    assert error.message == (
        "need 2 GPUs (2 workers x 1), 1 is free: g1 1 of 4 (1 busy: in use by ada; 2 left out: no V100 (--gpu-model))"
    )


def test_a_worker_that_is_larger_than_any_host() -> None:
    members = [facts("g1", some_gpus("g1", 8)), facts("g2", some_gpus("g2", 9, {0: "x"})), facts("g3")]
    error = refused(asked(PROGRAM, workers=2, gpus_per_worker=9), *members)
    assert error.message == (
        "no host has 9 free GPUs for a worker; g[1-2] have the most: 8"
        " (2 workers x 9: g1 8, g2 8 of 9 (1 busy: x), g3 none)"
    )
    assert error.hint == "Give each worker fewer: --gpus-per-worker 8."
    assert plan(asked(PROGRAM, workers=2, gpus_per_worker=8), *members).tasks


@pytest.mark.parametrize(
    ("gpus", "mig", "expected"),
    [
        (("0.1", "MIG-g1-1-0"), None, ["g1:0.1", "g1:1.0"]),
        (("0.1", 2), None, ["g1:0.1", "g1:2"]),
        ((0,), "", ["g1:0.0", "g1:0.1"]),
        (("GPU-g1-1",), "", ["g1:1.0", "g1:1.1"]),
        ((1, "1.0"), "", ["g1:1.0", "g1:1.1"]),
        (3, "", ["g1:0.0", "g1:0.1", "g1:1.0"]),
        (1, None, ["g1:2"]),
    ],
)
def test_instances_that_a_host_gives(gpus: Any, mig: str | None, expected: list[str]) -> None:
    members = facts("g1", (split("g1", 0, 2), split("g1", 1, 2), some_gpus("g1", 3)[2]))
    job = replace(asked(PROGRAM, ps=0), mix_models=True)  # a whole GPU is another model than an instance
    assert taken(plan(job, members, hosts={"g1": {"gpus": gpus}}, mig=mig)) == expected


@pytest.mark.parametrize(
    ("gpus", "mig", "each", "message", "hint"),
    [
        (
            (0,),
            None,
            None,
            "g1: `gpus:` names 0, which is busy: in MIG mode (--mig)",
            "Take its instances with --mig, or name them: 0.0, 0.1.",
        ),
        (
            ("0.2",),
            None,
            None,
            "g1: `gpus:` names 0.2, but 3 GPUs are there; 0.0: MIG-g1-0-0; 0.1: MIG-g1-0-1; 1: GPU-g1-1",
            "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
        ),
        (
            (1,),
            "",
            None,
            "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 3 (1 left out: not in MIG mode (--mig); `gpus: [1]`)",
            "Leave out --mig, or place workers without GPUs: --gpus-per-worker 0.",
        ),
        (
            ("0.0", "0.1"),
            None,
            2,
            "g1: 0.0 is a MIG instance, of which a process can use only one",
            "Leave out --gpus-per-worker 2; more workers use more instances: --workers.",
        ),
    ],
)
def test_instances_that_a_host_cannot_give(
    gpus: Any, mig: str | None, each: int | None, message: str, hint: str
) -> None:
    members = facts("g1", (split("g1", 0, 2), some_gpus("g1", 2)[1]))
    job = asked(PROGRAM, gpus_per_worker=each)
    error = refused(job, members, hosts={"g1": {"gpus": gpus}}, mig=mig)
    assert (error.message, error.hint) == (message, hint)


def test_slots_limit_workers() -> None:
    one = {"g1": {"slots": 1}, "g2": {"slots": 1}}
    error = refused(asked(PROGRAM, workers=4), facts("g1"), facts("g2"), hosts=one)
    assert error.message == "need 4 slots (4 workers), 2 are given: g[1-2] 1"
    assert error.hint == "Ask for 2 workers at most, or raise `slots:`."
    error = refused(asked(PROGRAM, workers=2), facts("g1", some_gpus("g1", 4)), hosts={"g1": {"slots": 1}})
    assert error.message == (
        "need 2 GPUs (2 workers x 1), 4 are free: g1 4 (`slots: 1`); they hold 1 worker, since the GPUs of"
        " one are on one host and `slots:` limits them"
    )


# --- GPUs that a run could use -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "settings", "expected"),
    [
        ({}, {}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),
        ({"workers": 1}, {}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),
        ({"gpus_per_worker": 3}, {}, {"g1": [0, 1, 2, 3]}),  # no two GPUs make a worker
        ({"gpus_per_worker": 0}, {}, {}),
        ({"workers": 0, "ps": 1, "done": "never"}, {}, {}),
        ({"worker_hosts": "g2"}, {}, {"g2": [0, 1]}),
        ({}, {"g1": {"gpus": 2}}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),  # any two
        ({}, {"g1": {"gpus": (1, 3)}}, {"g1": [1, 3], "g2": [0, 1]}),
        ({}, {"g1": {"gpus": 0}}, {"g2": [0, 1]}),
        ({"workers": 1}, {"g1": {"slots": 1}}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),
    ],
)
def test_what_a_run_waits_for(
    job: dict[str, Any], settings: dict[str, dict[str, Any]], expected: dict[str, list[int]]
) -> None:
    members = {
        "g1": facts("g1", some_gpus("g1", 4)),
        "g2": facts("g2", some_gpus("g2", 3, {2: "broken: GPU is lost"})),
        "c1": facts("c1"),
    }
    hostfile = Hostfile("hosts.yaml", tuple(Host(name=name, **settings.get(name, {})) for name in members))
    usable = usable_gpus(asked(PROGRAM, **job), hostfile, members)
    assert {host: [int(each[-1]) for each in uuids] for host, uuids in usable.items()} == expected


def test_gpus_as_they_are_when_nobody_uses_them() -> None:
    (gpu,) = some_gpus("g1", 1)
    process = GpuProcess(1, "ada", "train", "compute", None, None)
    lease, promise = Lease("bob", "his-run", 0.0), Lease("eve", "her-run", 0.0)
    instance = MigInstance(0, "MIG-a", "1g", 1 << 30, 1 << 30, "leased", (process,), lease, gpu=gpu.index)
    used = [
        replace(gpu, memory_used_bytes=9 << 30),
        replace(gpu, processes=(process,)),
        replace(gpu, lease=lease),
        replace(gpu, promised=promise),
    ]
    closed = [
        replace(gpu, error="GPU is lost"),
        replace(gpu, compute_mode="prohibited"),
        replace(gpu, lease_error="no directory"),
        replace(gpu, mig_mode=True, mig=(instance,)),
    ]
    both = tuple(replace(gpu, busy=why_busy(gpu)) for gpu in (*used, *closed))
    assert all(gpu.busy for gpu in both)
    free = when_free({"g1": facts("g1", both)})["g1"].gpus
    assert [gpu.busy for gpu in free] == [""] * 4 + [gpu.busy for gpu in both[4:]]
    assert free[-1].mig[0].busy == ""


def test_who_uses_a_gpu_is_told_before_who_waits_for_it() -> None:
    (gpu,) = some_gpus("g1", 1)
    promised = replace(gpu, promised=Lease("eve", "her-run", 0.0))
    assert why_busy(promised).startswith("promised to eve's run her-run, which waits since ")
    leased = replace(promised, lease=Lease("bob", "his-run", 0.0))
    assert why_busy(leased) == "leased to bob's run his-run"
