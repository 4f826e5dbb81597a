"""Where tasks run: counts, cards, places, addresses and ports, and the sentences when they do not fit."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import GpuChoice, choose
from tflaunch.planning.inventory import (
    NO_INSTANCE,
    Gpu,
    GpuProcess,
    HostFacts,
    Lease,
    MigDevice,
    when_free,
    why_busy,
)
from tflaunch.planning.plan import PORTS_HELD, plan_cluster, ports_wanted, usable_cards
from tflaunch.protocol.errors import EXIT_PLAN, EXIT_USAGE, PlanError, UsageError
from tflaunch.protocol.job import CHIEF, PS, WORKER, Cards, JobSpec, Role

PROGRAM = ("trainer.py",)


def asked(
    program: tuple[str, ...] = PROGRAM,
    *,
    ps: int | None = None,
    workers: int | None = None,
    chief: bool = False,
    ps_hosts: str | None = None,
    worker_hosts: str | None = None,
    gpus_per_worker: Cards | None = None,
    roles: Mapping[str, Role] | None = None,
    **more: Any,
) -> JobSpec:
    """As `tflaunch run` makes it of the options of these names."""
    usual = {PS: Role(ps, ps_hosts), WORKER: Role(workers, worker_hosts, gpus_per_worker)}
    return JobSpec(program, roles={**usual, **({CHIEF: Role(1)} if chief else {}), **(roles or {})}, **more)


def some_gpus(
    host: str, count: int, busy: Mapping[int, str] | None = None, name: str = "A100"
) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index, f"GPU-{host}-{index}", name, 80 << 30, 0, (busy or {}).get(index, ""))
        for index in range(count)
    )


def split(host: str, index: int, count: int, profile: str = "1g.10gb") -> Gpu:
    """A card in MIG mode with so many instances."""
    instances = tuple(
        MigDevice(part, f"MIG-{host}-{index}-{part}", f"A100 MIG {profile}", 10 << 30, 0, card=index)
        for part in range(count)
    )
    return Gpu(index, f"GPU-{host}-{index}", "A100", 80 << 30, 0, "MIG", mig_mode=True, mig=instances)


def facts(host: str, gpus: tuple[Gpu, ...] = (), **other: Any) -> HostFacts:
    values: dict[str, Any] = {
        "host": host,
        "hostname": host,
        "boot_id": f"boot-{host}",
        "addresses": (f"10.0.0.{host.lstrip('cghlnopu') or 1}",),
        "python": "3.11.7",
        "cores": 8,
        "memory_bytes": 64 << 30,
        "ports": tuple(range(20000, 20064)),
        "gpus": gpus,
    }
    return HostFacts(**{**values, **other})


def plan(
    job: JobSpec,
    *members: HostFacts,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    addresses: Mapping[str, str] | None = None,
    **choice: Any,
) -> ClusterPlan:
    """Plan on hosts with these facts; `hosts` adds hostfile settings, SSH dials the name unless told."""
    settings = hosts or {}
    listed = tuple(Host(name=one.host, **settings.get(one.host, {})) for one in members)
    dialled = {host.name: "" if host.connection == "local" else host.name for host in listed}
    hostfile = Hostfile("hosts.yaml", listed)
    inventory = choose({one.host: one for one in members}, GpuChoice(**choice), hostfile)
    return plan_cluster(job, hostfile, inventory, {**dialled, **(addresses or {})}, "run")


def places(planned: ClusterPlan) -> dict[str, str]:
    return {str(task.id): task.host for task in planned.tasks}


def refused(job: JobSpec, *members: HostFacts, **settings: Any) -> PlanError:
    with pytest.raises(PlanError) as raised:
        plan(job, *members, **settings)
    return raised.value


# --- counts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "hosts", "slots", "expected"),
    [
        # job, cards of each host, slots of each host -> chief, ps, workers
        ({}, [0, 0, 0], {}, (0, 1, 3)),
        ({}, [4, 4], {}, (0, 2, 8)),
        ({}, [4, 0], {}, (0, 1, 4)),
        ({}, [1], {}, (0, 1, 1)),
        ({"gpus_per_worker": 2}, [4, 3], {}, (0, 1, 3)),
        ({"gpus_per_worker": 0}, [4, 4], {}, (0, 1, 2)),
        ({}, [0, 0], {0: 4, 1: 2}, (0, 1, 6)),
        ({}, [4, 4], {0: 1}, (0, 1, 5)),
        ({"workers": 5}, [0, 0], {}, (0, 1, 5)),
        ({"workers": 3, "ps": 2}, [4, 4], {}, (0, 2, 3)),
        ({"ps": 0}, [0, 0], {}, (0, 0, 2)),
        ({"chief": True, "ps": 0}, [0, 0, 0], {}, (1, 0, 2)),
        ({"chief": True}, [0], {}, (1, 1, 1)),
        ({"chief": True}, [4], {}, (1, 1, 3)),
        ({"chief": True, "workers": 0, "ps": 0}, [1], {}, (1, 0, 0)),
        ({"chief": True, "workers": 0}, [0], {}, (1, 1, 0)),
        ({"workers": 0, "ps": 2, "done": "never"}, [0], {}, (0, 2, 0)),
    ],
)
def test_counts(
    job: dict[str, Any], hosts: list[int], slots: dict[int, int], expected: tuple[int, int, int]
) -> None:
    members = [facts(f"g{i}", some_gpus(f"g{i}", count)) for i, count in enumerate(hosts, 1)]
    settings = {f"g{i + 1}": {"slots": count} for i, count in slots.items()}
    jobs = Counter(task.id.job for task in plan(asked(PROGRAM, **job), *members, hosts=settings).tasks)
    assert (jobs["chief"], jobs["ps"], jobs["worker"]) == expected


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"workers": 0, "ps": 0}, "--workers 0 --ps 0 leaves nothing to run"),
        ({"workers": 0}, "there is no worker whose end would end the run"),
        ({"workers": 0, "ps": 2, "done": "chief"}, "there is no worker whose end would end the run"),
        ({"workers": -1}, "--workers -1: a count cannot be negative"),
        ({"ps": -2}, "--ps -2: a count cannot be negative"),
        ({"gpus_per_worker": -1}, "--gpus-per-worker -1: a count cannot be negative"),
        ({"worker_hosts": "nowhere"}, "nowhere"),
    ],
)
def test_counts_that_make_no_job(job: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(asked(PROGRAM, **job), facts("g1"))
    assert message in raised.value.message
    assert raised.value.exit_code == EXIT_USAGE


def test_no_hosts_with_facts() -> None:
    hostfile = Hostfile("hosts.yaml", (Host(name="g1"), Host(name="g2")))
    with pytest.raises(PlanError, match=r"hosts\.yaml: none of 2 hosts can take a task"):
        plan_cluster(asked(PROGRAM), hostfile, {}, {}, "run")


# --- cards -----------------------------------------------------------------------------------------------

BUSY = {0: "processes", 1: "processes", 2: "processes"}


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
            "Ask for 5 workers at most, or place workers without cards: --gpus-per-worker 0.",
        ),
        (
            {"workers": 3, "gpus_per_worker": 2},
            [some_gpus("g1", 3), some_gpus("g2", 3)],
            "need 6 GPUs (3 workers x 2), 6 are free: g[1-2] 3; they hold 2 workers, since the cards of one"
            " are on one host",
            "Ask for 2 workers at most, or lower --gpus-per-worker.",
        ),
        (
            {"workers": 4, "chief": True},
            [some_gpus("g1", 4)],
            "need 5 GPUs (the chief and 4 workers x 1), 4 are free: g1 4",
            "Ask for 3 workers at most, or place workers without cards: --gpus-per-worker 0.",
        ),
        (
            {},
            [some_gpus("g1", 1, {0: "pid 12 (python)"}), ()],
            "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 1 (1 busy: pid 12 (python)), g2 none",
            "Place workers without cards: --gpus-per-worker 0.",
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
            "Place workers without cards: --gpus-per-worker 0.",
        ),
    ],
)
def test_too_few_cards(job: dict[str, Any], gpus: list[tuple[Gpu, ...]], message: str, hint: str) -> None:
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
def test_cards_that_a_host_gives(gpus: Any, expected: list[int]) -> None:
    planned = plan(
        asked(PROGRAM, ps=0), facts("g1", some_gpus("g1", 4, {1: "leased"})), hosts={"g1": {"gpus": gpus}}
    )
    assert [task.gpu_labels for task in planned.tasks] == [(str(index),) for index in expected]
    assert [task.gpus for task in planned.tasks] == [(f"GPU-g1-{index}",) for index in expected]
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in planned.tasks] == [f"GPU-g1-{i}" for i in expected]


def test_what_options_leave_out_of_named_cards_is_not_busy() -> None:
    members, hosts = facts("g1", some_gpus("g1", 3)), {"g1": {"gpus": (0, 2)}}
    planned = plan(asked(PROGRAM, ps=0), members, hosts=hosts, exclude=("g1:2",))
    assert [task.gpu_labels for task in planned.tasks] == [("0",)]
    busy = facts("g1", some_gpus("g1", 3, {0: "in use by ada"}))
    error = refused(asked(PROGRAM), busy, exclude=("g1:1,2",))
    assert error.message.endswith("g1 0 of 3 (3 busy: in use by ada, in --exclude)")


def test_a_host_that_gives_no_cards_is_a_host_without() -> None:
    planned = plan(asked(PROGRAM), facts("g1", some_gpus("g1", 4)), hosts={"g1": {"gpus": 0}})
    assert [(str(task.id), task.gpus) for task in planned.tasks] == [("ps/0", ()), ("worker/0", ())]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (5, "g1: `gpus: 5`, but 2 cards are there"),
        ((0, 7), "g1: `gpus:` names 7, but 2 cards are there; 0: GPU-g1-0; 1: GPU-g1-1"),
        (("GPU-nope",), "g1: `gpus:` names GPU-nope, but 2 cards are there; 0: GPU-g1-0; 1: GPU-g1-1"),
        ((1,), "g1: `gpus:` names 1, which is busy: 3 processes use 40 GiB"),
    ],
)
def test_cards_that_a_host_cannot_give(gpus: Any, message: str) -> None:
    some = some_gpus("g1", 2, {1: "3 processes use 40 GiB"})
    assert refused(asked(PROGRAM), facts("g1", some), hosts={"g1": {"gpus": gpus}}).message == message


def test_cards_that_the_driver_does_not_show() -> None:
    silent = facts("g1", gpu_note="the driver does not answer")
    error = refused(asked(PROGRAM), silent, hosts={"g1": {"gpus": 2}})
    assert error.message == "g1: `gpus: 2`, but no cards can be seen: the driver does not answer"
    assert plan(asked(PROGRAM), silent).notes == ("g1: no cards can be seen: the driver does not answer",)


def test_workers_go_to_cards_only_and_a_note_says_so() -> None:
    planned = plan(asked(PROGRAM, ps=2), facts("g1", some_gpus("g1", 2)), facts("g2"), facts("g3"))
    assert places(planned) == {"ps/0": "g2", "ps/1": "g3", "worker/0": "g1", "worker/1": "g1"}
    assert planned.notes == (
        "workers go to cards only; g[2-3] can give none (--gpus-per-worker 0 places workers without cards)",
    )


def test_a_card_seen_under_two_names_is_given_once() -> None:
    shared = some_gpus("box", 2)
    planned = plan(asked(PROGRAM, ps=0), facts("g1", shared), facts("g2", shared))
    assert sorted(uuid for task in planned.tasks for uuid in task.gpus) == ["GPU-box-0", "GPU-box-1"]
    assert "g2: cards that another host shows too are left to that one" in planned.notes


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
        "workers get different cards: 4 x A100 (g[1-2]), 1 x V100 (g3); in step, the slowest sets the pace",
    )


def taken(planned: ClusterPlan) -> list[str]:
    """The cards of each worker: `g1:0,1`."""
    return [f"{task.host}:{','.join(task.gpu_labels)}" for task in planned.tasks if task.gpus]


def models(host: str, letters: str) -> HostFacts:
    """A host with a card of each of those models."""
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
def test_counted_workers_get_cards_of_one_model(
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
        ["workers get different cards, since no one model is enough"] if len(used) > 1 else []
    )


def _letters(place: str, hosts: list[str]) -> str:
    host, _, labels = place.partition(":")
    return "".join(hosts[int(host[1:]) - 1][int(label)] for label in labels.split(","))


def test_the_chief_and_slots_count_for_one_model() -> None:
    members = [models("g1", "AA"), models("g2", "BBB")]
    assert taken(plan(asked(PROGRAM, workers=2, chief=True, ps=0), *members)) == ["g2:0", "g2:1", "g2:2"]
    slots = {"g1": {"slots": 1}}
    assert taken(plan(asked(PROGRAM, workers=2, ps=0), *members, hosts=slots)) == ["g2:0", "g2:1"]


def test_workers_that_are_not_counted_use_all_cards() -> None:
    assert taken(plan(asked(PROGRAM, ps=0), models("g1", "A"), models("g2", "AA"))) == [
        *("g1:0", "g2:0", "g2:1"),
    ]


def test_a_worker_gets_cards_of_one_model_though_nobody_counted_them() -> None:
    assert taken(plan(asked(PROGRAM, ps=0, gpus_per_worker=2), models("g1", "AAAB"))) == ["g1:0,1"]
    error = refused(asked(PROGRAM, ps=0, workers=2, gpus_per_worker=2), models("g1", "AAAB"))
    assert error.message == (
        "need 4 GPUs (2 workers x 2), 4 are free: g1 4; they hold 1 worker, since the cards of one are on one host and "
        "of one model (--mix-models)"
    )


def test_all_cards_of_a_host_are_one_worker_s() -> None:
    members = (models("g1", "AAA"), models("g2", "A"), models("g3", ""))
    job = asked(PROGRAM, ps=0, gpus_per_worker="all")
    assert taken(plan(job, *members)) == ["g1:0,1,2", "g2:0"]
    assert taken(plan(asked(PROGRAM, ps=0, workers=1, gpus_per_worker="all"), *members)) == ["g1:0,1,2"]
    error = refused(asked(PROGRAM, ps=0, workers=3, gpus_per_worker="all"), *members)
    assert error.message == (
        "need 3 hosts with a free GPU (3 workers, each with all GPUs of its host), 2 have one: g1 3, g2 1, g3 none"
    )
    assert error.hint == "Ask for 2 workers at most, or say how many cards one gets: --gpus-per-worker 1."
    assert taken(plan(job, models("g1", "AA"), hosts={"g1": {"gpus": (1,)}})) == ["g1:1"]


def test_all_cards_of_a_host_that_has_two_models_are_refused_unless_they_may_be_mixed() -> None:
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
    assert taken(plan(asked(PROGRAM, ps=0), *members)) == ["g1:1", "g2:0"], "whole cards, unless asked"


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
    assert error.message == "need 1 GPU (1 worker x 1), 0 are free: g2 0 of 7 (7 busy: in MIG mode (--mig))"
    assert error.hint == (
        "Take the MIG instances of g2 with --mig, or place workers without cards: --gpus-per-worker 0."
    )
    error = refused(asked(PROGRAM, workers=2), whole, parts)
    assert error.hint == (
        "Ask for 1 worker at most, take the MIG instances of g2 with --mig, or place workers without cards:"
        " --gpus-per-worker 0."
    )
    assert plan(asked(PROGRAM), whole, parts).notes == (
        "g2: no whole card is free; --mig gives workers MIG instances instead",
    )
    assert plan(asked(PROGRAM), whole, parts, hosts={"g2": {"gpus": 0}}).notes == (
        "workers go to cards only; g2 can give none (--gpus-per-worker 0 places workers without cards)",
    )
    error = refused(asked(PROGRAM), whole, mig="1g.5gb")
    assert error.message == (
        "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 1 (1 busy: not in MIG mode (--mig))"
    )
    empty = facts("g1", (dataclasses.replace(some_gpus("g1", 1)[0], mig_mode=True, busy=NO_INSTANCE),))
    for mig in (None, ""):
        error = refused(asked(PROGRAM), empty, mig=mig)
        assert "g1 0 of 1 (1 busy: in MIG mode without an instance)" in error.message
        assert "--mig" not in error.hint


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
    job = replace(asked(PROGRAM, ps=0), mix_models=True)  # a whole card is another model than an instance
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
            "g1: `gpus:` names 0.2, but 3 cards are there; 0.0: MIG-g1-0-0; 0.1: MIG-g1-0-1; 1: GPU-g1-1",
            "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
        ),
        (
            (1,),
            "",
            None,
            "need 1 GPU (1 worker x 1), 0 are free: g1 0 of 3 (1 busy: not in MIG mode (--mig); `gpus: [1]`)",
            "Place workers without cards: --gpus-per-worker 0.",
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
        "need 2 GPUs (2 workers x 1), 4 are free: g1 4 (`slots: 1`); they hold 1 worker, since the cards of"
        " one are on one host and `slots:` limits them"
    )


# --- places ----------------------------------------------------------------------------------------------


def test_spread_goes_round_the_hosts() -> None:
    planned = plan(asked(PROGRAM, workers=4, ps=2), facts("c1"), facts("c2"), facts("c3"))
    assert places(planned) == {
        "ps/0": "c2",
        "ps/1": "c3",
        "worker/0": "c1",
        "worker/1": "c2",
        "worker/2": "c3",
        "worker/3": "c1",
    }


def test_pack_fills_a_host_first() -> None:
    members = [facts("g1", some_gpus("g1", 2)), facts("g2", some_gpus("g2", 2)), facts("c3", cores=3)]
    planned = plan(asked(PROGRAM, workers=3, ps=4, place="pack"), *members)
    assert places(planned) == {
        "ps/0": "c3",
        "ps/1": "c3",
        "ps/2": "c3",
        "ps/3": "g2",
        "worker/0": "g1",
        "worker/1": "g1",
        "worker/2": "g2",
    }


def test_pack_without_cards_fills_slots_else_cores_and_starts_again() -> None:
    planned = plan(
        asked(PROGRAM, workers=8, ps=0, place="pack"),
        facts("c1", cores=2),
        facts("c2", cores=4),
        hosts={"c2": {"slots": 3}},
    )
    assert [task.host for task in planned.tasks] == ["c1"] * 2 + ["c2"] * 3 + ["c1"] * 3


def test_ps_go_to_idle_hosts_then_to_those_with_fewest_cards() -> None:
    busy = {0: "leased"}
    members = [facts("g1", some_gpus("g1", 1)), facts("g2", some_gpus("g2", 1, busy)), facts("c3")]
    planned = plan(asked(PROGRAM, ps=4), *members)
    assert [planned.tasks[i].host for i in range(4)] == ["c3", "g2", "c3", "g1"]


def test_the_chief_comes_before_the_first_worker() -> None:
    members = [facts("g1", some_gpus("g1", 1)), facts("g2", some_gpus("g2", 2))]
    planned = plan(asked(PROGRAM, chief=True, ps=1), *members)
    assert places(planned) == {"chief/0": "g1", "ps/0": "g1", "worker/0": "g2", "worker/1": "g2"}
    assert planned.tasks[0].gpus == ("GPU-g1-0",)
    assert list(planned.cluster) == ["chief", "ps", "worker"]
    assert "--chief_hosts=g1:20000" in planned.tasks[0].argv


def test_patterns_choose_hosts() -> None:
    members = [facts(f"c{i}") for i in range(1, 5)]
    planned = plan(asked(PROGRAM, worker_hosts="c[3-4]", ps_hosts="c2", ps=2), *members)
    assert places(planned) == {"ps/0": "c2", "ps/1": "c2", "worker/0": "c3", "worker/1": "c4"}


# --- addresses -------------------------------------------------------------------------------------------


def test_peers_dial_what_ssh_dials_unless_told() -> None:
    planned = plan(
        asked(PROGRAM, ps=0),
        facts("g1"),
        facts("g2"),
        hosts={"g2": {"address": "fd00::2"}},
        addresses={"g1": "10.1.1.1"},
    )
    assert planned.cluster == {"worker": ["10.1.1.1:20000", "[fd00::2]:20000"]}


def test_one_machine_under_several_names_is_dialled_by_loopback() -> None:
    same: dict[str, Any] = {"boot_id": "b", "hostname": "laptop"}
    local = {"l1": {"connection": "local"}, "l2": {"connection": "local"}}
    planned = plan(asked(PROGRAM, ps=0), facts("l1", **same), facts("l2", **same), hosts=local)
    assert planned.cluster == {"worker": ["127.0.0.1:20000", "127.0.0.1:20001"]}
    planned = plan(
        asked(PROGRAM, ps=0),
        facts("l1", **same),
        facts("n2", **same),
        hosts={"l1": {"connection": "local"}},
        addresses={"n2": "127.0.0.2"},
    )
    assert planned.cluster == {"worker": ["127.0.0.1:20000", "127.0.0.2:20001"]}


def test_a_local_host_among_others_is_dialled_by_its_interface() -> None:
    planned = plan(
        asked(PROGRAM, ps=0),
        facts("l1", addresses=("172.17.0.1", "fe80::1%eth0", "10.0.0.9")),
        facts("g2", addresses=("172.17.0.1", "10.0.0.2")),  # both have a container bridge
        hosts={"l1": {"connection": "local"}},
    )
    assert planned.cluster == {"worker": ["10.0.0.9:20000", "g2:20000"]}
    assert planned.notes == (
        "l1: peers dial an address of an interface (l1: 10.0.0.9), because loopback leads them nowhere;"
        " `address:` decides otherwise",
    )


def test_tunnels_to_two_machines_are_not_one_machine() -> None:
    planned = plan(
        asked(PROGRAM, ps=0),
        facts("g1", addresses=("10.0.0.1",)),
        facts("g2", addresses=("10.0.0.2",)),
        addresses={"g1": "127.0.0.1", "g2": "localhost"},
    )
    assert planned.cluster == {"worker": ["10.0.0.1:20000", "10.0.0.2:20000"]}


@pytest.mark.parametrize(
    ("settings", "addresses", "message", "hint"),
    [
        (
            {"address": "127.0.0.1"},
            (),
            "l1: `address: 127.0.0.1` is loopback, which g2 cannot dial",
            "Write the",
        ),
        ({}, (), "l1: g2 cannot dial 127.0.0.1, and it has no other address", "Write `address:` for l1"),
        (
            {},
            ("10.0.0.2",),
            "l1: g2 cannot dial 127.0.0.1, and others have 10.0.0.2 too",
            "Write `address:` for l1",
        ),
    ],
)
def test_addresses_that_lead_nowhere(
    settings: dict[str, str], addresses: tuple[str, ...], message: str, hint: str
) -> None:
    error = refused(
        asked(PROGRAM),
        facts("l1", addresses=addresses),
        facts("g2", addresses=("10.0.0.2",)),
        hosts={"l1": {"connection": "local", **settings}},
    )
    assert error.message == message
    assert error.hint.startswith(hint)


def test_hosts_without_tasks_have_no_say_in_addresses() -> None:
    planned = plan(
        asked(PROGRAM, worker_hosts="l1", ps_hosts="l1"),
        facts("l1", addresses=()),
        facts("g2"),
        hosts={"l1": {"connection": "local"}},
    )
    assert planned.cluster == {"ps": ["127.0.0.1:20000"], "worker": ["127.0.0.1:20001"]}


# --- ports -----------------------------------------------------------------------------------------------


def test_tasks_of_one_host_get_its_ports_from_below() -> None:
    planned = plan(asked(PROGRAM, workers=2, ps=1), facts("g1", ports=(30007, 30001, 30005, 30009)))
    assert [(str(task.id), task.port) for task in planned.tasks] == [
        ("ps/0", 30001),
        ("worker/0", 30005),
        ("worker/1", 30007),
    ]


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({}, "g1: need 3 ports, 2 could be had", "Say --workers and --ps, for more to be held, or put fewer"),
        (
            {"ports": (30000, 30002)},
            "g1: need 3 ports, 2 of `ports: 30000-30002` could be had",
            "Widen `ports:` of g1, or put fewer tasks on g1.",
        ),
    ],
)
def test_too_few_ports(settings: dict[str, Any], message: str, hint: str) -> None:
    job = asked(PROGRAM, workers=2, ps=1)
    error = refused(job, facts("g1", ports=(30000, 30001)), hosts={"g1": settings})
    assert error.message == message
    assert error.hint.startswith(hint)


def test_no_port_at_all() -> None:
    error = refused(asked(PROGRAM, workers=1, ps=1), facts("g1", ports=()))
    assert error.message == "g1: need 2 ports, 0 of 20000 to 29999 could be had"
    assert error.hint.startswith(
        "Others have those there (`ss -tane` shows whose they are), or the kernel gives them"
    )
    assert error.hint.endswith("name others by `ports:` of g1, or put fewer tasks on g1.")


@pytest.mark.parametrize(
    ("job", "hosts", "slots", "expected"),
    [
        ({"workers": 2, "ps": 2}, 4, None, 4),
        ({"workers": 2, "ps": 2, "chief": True}, 4, None, 5),
        ({"workers": 8}, 4, None, 10),
        ({}, 4, None, 72),
        ({"ps": 100}, 4, None, 100),
        ({"workers": 200, "ps": 10}, 100, None, 72),
        ({"workers": 200, "ps": 10}, 1, None, 210),
        ({"workers": 200, "ps": 10}, 2, None, 105),
        ({"workers": 200, "ps": 10, "worker_hosts": "h1"}, 4, None, 203),
        ({"workers": 200, "ps": 10, "place": "pack"}, 100, None, 210),
        ({}, 4, 80, 100),
        ({"workers": 90, "ps": 1}, 4, 80, 91),
        ({"workers": 0, "ps": 0, "chief": True}, 1, None, 1),
    ],
)
def test_ports_wanted(job: dict[str, Any], hosts: int, slots: int | None, expected: int) -> None:
    listed = tuple(Host(name=f"h{i}", slots=slots) for i in range(1, hosts + 1))
    assert ports_wanted(asked(PROGRAM, **job), Hostfile("hosts.yaml", listed)) == expected


# --- the whole -------------------------------------------------------------------------------------------


def test_proxies_are_noted_once() -> None:
    members = [facts(f"g{i}", proxies=("http_proxy", "HTTPS_PROXY")) for i in (1, 2)]
    assert plan(asked(PROGRAM), *members, facts("g3")).notes == (
        "proxies are set: HTTPS_PROXY (g[1-2]), http_proxy (g[1-2]); gRPC between tasks goes around them"
        " (no_grpc_proxy)",
    )
    assert plan(asked(PROGRAM, env={"no_grpc_proxy": "x"}), *members).notes == ()


def test_the_plan_as_data_is_complete() -> None:
    settings = {"python": "/opt/py", "setup": ("module load cuda",), "workdir": "/data/job"}
    planned = plan(asked(PROGRAM, ps=0), facts("g1", some_gpus("g1", 1)), hosts={"g1": settings})
    data = json.loads(json.dumps(planned.to_json()))
    (task,) = data["tasks"]
    assert json.loads(task["env"].pop("TF_CONFIG"))["cluster"] == data["cluster"]
    assert data["run_id"] == task["env"]["TFLAUNCH_RUN"] == "run"
    assert data["notes"] == []
    assert {name: task[name] for name in task if name != "env"} == {
        "task": "worker/0",
        "host": "g1",
        "address": "g1",
        "port": 20000,
        "gpus": ["GPU-g1-0"],
        "gpu_labels": ["0"],
        "argv": [
            "/opt/py",
            "trainer.py",
            "--ps_hosts=",
            "--worker_hosts=g1:20000",
            "--job_name=worker",
            "--task_index=0",
        ],
        "setup": ["module load cuda"],
        "cwd": "/data/job",
        "container": "",
        "mounts": [],
    }


@st.composite
def clusters(draw: st.DrawFn) -> tuple[JobSpec, list[HostFacts], dict[str, dict[str, Any]], str | None]:
    members, settings = [], {}
    for i in range(draw(st.integers(1, 6))):
        name = f"g{i}"
        count = draw(st.integers(0, 4))
        parts = draw(st.sets(st.integers(0, 3), max_size=2))
        busy = dict.fromkeys(draw(st.sets(st.integers(0, 3))), "processes")
        machine = draw(st.integers(0, 3))  # several names may be one machine, with the same cards and ports
        ports = draw(st.sets(st.integers(20000, 20020), min_size=5))
        members.append(
            facts(
                name,
                tuple(
                    split(f"m{machine}", gpu.index, 2) if gpu.index in parts else gpu
                    for gpu in some_gpus(f"m{machine}", count, busy, name="A")
                ),
                boot_id=f"m{machine}",
                hostname=f"m{machine}",
                ports=tuple(sorted(ports)),
                cores=draw(st.integers(1, 4)),
            )
        )
        gpus = draw(st.one_of(st.just("auto"), st.integers(0, count)))
        settings[name] = {"gpus": gpus, "slots": draw(st.one_of(st.none(), st.integers(1, 4)))}
    counts = st.one_of(st.none(), st.integers(0, 8))
    pattern = st.sampled_from([None, "g0", "g*"])
    others = st.builds(Role, st.integers(1, 2), pattern, st.one_of(st.none(), st.integers(0, 2)))
    job = asked(
        PROGRAM,
        ps=draw(counts),
        workers=draw(counts),
        chief=draw(st.booleans()),
        place=draw(st.sampled_from(["spread", "pack"])),
        gpus_per_worker=draw(st.one_of(st.none(), st.integers(0, 3))),
        roles=draw(
            st.dictionaries(st.sampled_from(["chief", "master", "evaluator", "data"]), others, max_size=2)
        ),
    )
    return job, members, settings, draw(st.sampled_from([None, "", "1g"]))


@given(clusters())
def test_whatever_is_planned_can_run(
    cluster: tuple[JobSpec, list[HostFacts], dict[str, dict[str, Any]], str | None],
) -> None:
    job, members, settings, mig = cluster
    try:
        planned = plan(job, *members, hosts=settings, mig=mig)
    except (PlanError, UsageError) as error:
        assert error.message
        return
    inventory = {one.host: one for one in members}
    assert planned.tasks
    free = {(one.host, gpu.uuid): gpu for one in members for gpu in one.devices if not gpu.busy}
    given_cards = [uuid for task in planned.tasks for uuid in task.gpus]
    assert len(given_cards) == len(set(given_cards))
    endpoints = [
        (inventory[task.host].boot_id, task.port) for task in planned.tasks if task.id.job != "evaluator"
    ]
    assert len(endpoints) == len(set(endpoints))
    for task in planned.tasks:
        if task.id.job != "evaluator":
            assert task.port in inventory[task.host].ports
        assert [free[task.host, uuid].label for uuid in task.gpus] == list(task.gpu_labels)
        assert not (task.id.job == "ps" and task.gpus)
        assert all(uuid.startswith("GPU-" if mig is None else "MIG-") for uuid in task.gpus)
        if task.id.job not in ("ps", "worker") and (pattern := job.role(task.id.job).hosts):
            assert pattern in ("g*", task.host)
    jobs = Counter(task.id.job for task in planned.tasks)
    for name, count in jobs.items():
        assert [task.id.index for task in planned.tasks if task.id.job == name] == list(range(count))
        assert job.role(name).count in (None, count)
    assert {*job.others} <= jobs.keys()
    widths = {job: {len(task.gpus) for task in planned.tasks if task.id.job == job} for job in jobs}
    assert all(len(each) == 1 for each in widths.values())
    for name in jobs:
        assert job.role(name).gpus is None or widths[name] == {job.role(name).gpus}
    for name, host in settings.items():
        workers = sum(task.host == name and task.id.job == "worker" for task in planned.tasks)
        assert host["slots"] is None or workers <= host["slots"]
    for task in planned.tasks:
        told = json.loads(task.env["TF_CONFIG"])
        assert told["cluster"] == planned.cluster
        assert "evaluator" not in told["cluster"]
        if task.id.job != "evaluator":
            assert told["cluster"][told["task"]["type"]][told["task"]["index"]].endswith(f":{task.port}")


# --- roles -----------------------------------------------------------------------------------------------


def test_roles_beside_ps_and_workers() -> None:
    roles = {
        "evaluator": Role(1, args=("--eval",), env={"X": "evaluator"}),
        "data": Role(3, hosts="g2", args=("--shards", "8")),
    }
    planned = plan(
        asked(PROGRAM, workers=2, args=("own",), env={"X": "job", "Y": "job"}, roles=roles),
        facts("g1"),
        facts("g2"),
    )
    assert places(planned) == {
        "worker/0": "g1",
        "worker/1": "g2",
        "ps/0": "g1",
        "data/0": "g2",
        "data/1": "g2",
        "data/2": "g2",
        "evaluator/0": "g1",
    }
    assert planned.cluster.keys() == {"data", "ps", "worker"}
    evaluator, data = (
        next(task for task in planned.tasks if str(task.id) == name) for name in ("evaluator/0", "data/2")
    )
    assert (evaluator.port, evaluator.to_json()["port"]) == (None, None)
    assert json.loads(evaluator.env["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}
    assert (evaluator.env["X"], evaluator.env["Y"], data.env["X"]) == ("evaluator", "job", "job")
    assert evaluator.argv[-4:] == ("--job_name=evaluator", "--task_index=0", "own", "--eval")
    assert data.argv[-3:] == ("own", "--shards", "8")
    hosts_of_data = ",".join(planned.cluster["data"])
    assert all(f"--data_hosts={hosts_of_data}" in task.argv for task in planned.tasks)
    assert not any("evaluator_hosts" in word for word in evaluator.argv)


@pytest.mark.parametrize(
    ("workers", "roles", "expected"),
    [
        # task -> host and number of cards; a chief is as a worker unless its role says otherwise
        (2, {"chief": Role(1)}, {"chief/0": "g1 1", "worker/0": "g2 1", "worker/1": "g1 1"}),
        (2, {"master": Role(1)}, {"master/0": "g1 1", "worker/0": "g2 1", "worker/1": "g1 1"}),
        (2, {"chief": Role(1, gpus=0)}, {"chief/0": "g2 0", "worker/0": "g1 1", "worker/1": "g2 1"}),
        (1, {"chief": Role(1, hosts="g2")}, {"chief/0": "g2 1", "worker/0": "g1 1"}),
        # where the fewest cards are left
        (1, {"evaluator": Role(1, gpus=1)}, {"evaluator/0": "g2 1", "worker/0": "g1 1"}),
        (1, {"data": Role(2, gpus=2)}, {"data/0": "g2 2", "data/1": "g1 2", "worker/0": "g1 1"}),
        # workers get what is left
        (
            None,
            {"data": Role(1, gpus=3)},
            {"data/0": "g1 3", "worker/0": "g1 1", "worker/1": "g2 1", "worker/2": "g2 1"},
        ),
        (0, {"chief": Role(1, gpus=0), "data": Role(1, gpus=2)}, {"chief/0": "g1 0", "data/0": "g2 2"}),
    ],
)
def test_cards_of_roles(workers: int | None, roles: dict[str, Role], expected: dict[str, str]) -> None:
    job = asked(PROGRAM, ps=0, workers=workers, roles=roles)
    planned = plan(job, facts("g1", some_gpus("g1", 4)), facts("g2", some_gpus("g2", 2)))
    assert {str(task.id): f"{task.host} {len(task.gpus)}" for task in planned.tasks} == expected


def test_cards_for_ps_that_ask_for_them() -> None:
    job = asked(PROGRAM, workers=1, roles={"ps": Role(1, gpus=1)})
    planned = plan(job, facts("g1", some_gpus("g1", 2)))
    assert [(str(task.id), task.gpu_labels) for task in planned.tasks] == [
        ("ps/0", ("0",)),
        ("worker/0", ("1",)),
    ]


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {"evaluator": Role(2, gpus=2)},
            "need 4 GPUs (2 evaluator x 2), 3 are free: g1 3 of 4 (1 busy: x)",
        ),
        (
            {"data": Role(1, hosts="g1", gpus=4)},
            "need 4 GPUs (1 data x 4), 3 are free: g1 3 of 4 (1 busy: x)",
        ),
        (
            {"data": Role(1, gpus=2)},
            "need 2 GPUs (2 workers x 1), 1 is free: g1 1 of 4 (1 busy: x; 2 for data)",
        ),
    ],
)
def test_too_few_cards_for_roles(roles: dict[str, Role], message: str) -> None:
    error = refused(asked(PROGRAM, ps=0, workers=2, roles=roles), facts("g1", some_gpus("g1", 4, {1: "x"})))
    assert error.message == message
    assert error.hint


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"chief": Role(2)}, "--job chief=2: a cluster has one chief"),
        ({"data": Role(-1)}, "--job data=-1: a count cannot be negative"),
        ({"data": Role(1, gpus=-1)}, "--job-gpus data=-1: a count cannot be negative"),
        ({"data": Role(1, hosts="nowhere")}, "nowhere"),
        ({"ps": Role(gpus=1)}, "how many ps there are is not known"),
        ({"worker": Role(end="stopped")}, "no worker whose end would end the run"),
    ],
)
def test_roles_that_make_no_job(roles: dict[str, Role], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(JobSpec(PROGRAM, roles=roles), facts("g1"))
    assert message in raised.value.message


def test_two_hundred_tasks_of_a_job_of_ones_own() -> None:
    job = asked(PROGRAM, workers=2, roles={"data": Role(200), "evaluator": Role(50)})
    hostfile = Hostfile("hosts.yaml", (Host(name="g1"), Host(name="g2")))
    held = ports_wanted(job, hostfile)
    members = [facts(name, ports=tuple(range(20000, 20000 + held))) for name in ("g1", "g2")]
    planned = plan(job, *members)
    assert {*Counter(task.host for task in planned.tasks).values()} <= {126, 127}
    assert len(planned.cluster["data"]) == 200
    alone = Hostfile("hosts.yaml", (Host(name="g1"),))
    assert ports_wanted(job, alone) >= 203


def test_what_roles_wait_for() -> None:
    members = {"g1": facts("g1", some_gpus("g1", 2)), "g2": facts("g2", some_gpus("g2", 1))}
    hostfile = Hostfile("hosts.yaml", tuple(Host(name=name) for name in members))
    job = asked(PROGRAM, workers=1, worker_hosts="g1", roles={"evaluator": Role(1, hosts="g2", gpus=1)})
    assert {name: len(found) for name, found in usable_cards(job, hostfile, members).items()} == {
        "g1": 2,
        "g2": 1,
    }
    cardless = asked(PROGRAM, workers=1, gpus_per_worker=0, roles={"evaluator": Role(1, gpus=2)})
    assert usable_cards(cardless, hostfile, members).keys() == {"g1"}


# --- cards that a run could use -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "settings", "expected"),
    [
        ({}, {}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),
        ({"workers": 1}, {}, {"g1": [0, 1, 2, 3], "g2": [0, 1]}),
        ({"gpus_per_worker": 3}, {}, {"g1": [0, 1, 2, 3]}),  # no two cards make a worker
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
    usable = usable_cards(asked(PROGRAM, **job), hostfile, members)
    assert {host: [int(each[-1]) for each in uuids] for host, uuids in usable.items()} == expected


def test_cards_as_they_are_when_nobody_uses_them() -> None:
    (card,) = some_gpus("g1", 1)
    process = GpuProcess(1, "ada", "train", "compute", None, None)
    lease, promise = Lease("bob", "his-run", 0.0), Lease("eve", "her-run", 0.0)
    instance = MigDevice(0, "MIG-a", "1g", 1 << 30, 1 << 30, "leased", (process,), lease, card=card.index)
    used = [
        replace(card, memory_used_bytes=9 << 30),
        replace(card, processes=(process,)),
        replace(card, lease=lease),
        replace(card, promised=promise),
    ]
    closed = [
        replace(card, error="GPU is lost"),
        replace(card, compute_mode="prohibited"),
        replace(card, lease_error="no directory"),
        replace(card, mig_mode=True, mig=(instance,)),
    ]
    both = tuple(replace(gpu, busy=why_busy(gpu)) for gpu in (*used, *closed))
    assert all(gpu.busy for gpu in both)
    free = when_free({"g1": facts("g1", both)})["g1"].gpus
    assert [gpu.busy for gpu in free] == [""] * 4 + [gpu.busy for gpu in both[4:]]
    assert free[-1].mig[0].busy == ""


def test_who_uses_a_card_is_told_before_who_waits_for_it() -> None:
    (card,) = some_gpus("g1", 1)
    promised = replace(card, promised=Lease("eve", "her-run", 0.0))
    assert why_busy(promised).startswith("promised to eve's run her-run, which waits since ")
    leased = replace(promised, lease=Lease("bob", "his-run", 0.0))
    assert why_busy(leased) == "leased to bob's run his-run"
