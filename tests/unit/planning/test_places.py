"""Where tasks run: hosts, addresses and ports; and that whatever is planned can run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.planned import PROGRAM, asked, facts, places, plan, refused, some_gpus, split
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.inventory import (
    HostFacts,
)
from tflaunch.planning.plan import ports_wanted
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import JobSpec, Role

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


def test_pack_without_gpus_fills_slots_else_cores_and_starts_again() -> None:
    planned = plan(
        asked(PROGRAM, workers=8, ps=0, place="pack"),
        facts("c1", cores=2),
        facts("c2", cores=4),
        hosts={"c2": {"slots": 3}},
    )
    assert [task.host for task in planned.tasks] == ["c1"] * 2 + ["c2"] * 3 + ["c1"] * 3


def test_ps_go_to_idle_hosts_then_to_those_with_fewest_gpus() -> None:
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
        "l1: its name means loopback there, where no other host reaches it; the other tasks dial 10.0.0.9; "
        "`address:` in the hostfile sets another",
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


def test_a_range_that_is_too_small_blames_nobody_else() -> None:
    only = facts("g1", ports=(30000, 30001), ports_taken=("run b-9zz123",))
    error = refused(asked(PROGRAM, workers=2, ps=1), only, hosts={"g1": {"ports": (30000, 30001)}})
    assert error.message == "g1: need 3 ports, and `ports: 30000-30001` are 2"
    error = refused(asked(PROGRAM, workers=10_000, ps=1), facts("g1"))
    assert error.message == "g1: need 10001 ports, and 20000 to 29999 are 10000"
    assert error.hint == "Name more by `ports:` of g1, or put fewer tasks on g1."


def test_who_has_the_ports_is_told() -> None:
    taken = ("30002: pid 77 (python3) of run a-k3f9x2", "run b-9zz123")
    only = facts("g1", ports=(30000,), ports_taken=taken)
    error = refused(asked(PROGRAM, workers=2, ps=1), only, hosts={"g1": {"ports": (30000, 30002)}})
    assert error.message == (
        "g1: need 3 ports, 1 of `ports: 30000-30002` could be had; 30002: pid 77 (python3) of run a-k3f9x2; "
        "runs that are alive there may hold some: b-9zz123"
    )


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
        "proxies are set: HTTPS_PROXY (g[1-2]), http_proxy (g[1-2]); tasks talk to each other without them: "
        "tflaunch sets no_grpc_proxy",
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
        "cpus": "",
        "numactl": "",
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
        machine = draw(st.integers(0, 3))  # several names may be one machine, with the same GPUs and ports
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
    free = {(one.host, gpu.uuid): gpu for one in members for gpu in one.gpus_or_instances if not gpu.busy}
    given_gpus = [uuid for task in planned.tasks for uuid in task.gpus]
    assert len(given_gpus) == len(set(given_gpus))
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


def test_hosts_that_differ_are_told() -> None:
    """GPUs of several models have a note, or an error, of their own."""
    planned = plan(asked(PROGRAM, ps=0), facts("c1", cores=64), facts("c2", cores=16), facts("c3", cores=48))
    assert planned.notes == ("c2 has 16 cores, c1 64; where workers train in step, all wait for the slowest",)
    planned = plan(
        asked(PROGRAM, ps=0), facts("c1", memory_bytes=512 << 30), facts("c2", memory_bytes=64 << 30)
    )
    assert planned.notes[0].startswith("c2 has 64 GiB of memory, c1 512;")
    eight, two = some_gpus("g1", 8), some_gpus("g2", 2)
    planned = plan(asked(PROGRAM, ps=0), facts("g1", eight, cores=64), facts("g2", two, cores=64))
    assert planned.notes == (
        "g1 has 8 cores for each worker, g2 32; where workers train in step, all wait for the slowest",
        "g1 has 8 GiB of memory for each worker, g2 32; where workers train in step, all wait for the slowest",
    )
    assert (
        plan(
            asked(PROGRAM, ps=0), facts("g1", eight, cores=96), facts("g2", some_gpus("g2", 8), cores=64)
        ).notes
        == ()
    )
    assert plan(asked(PROGRAM, ps=0), facts("c1", cores=12), facts("c2", cores=8)).notes == ()
    assert plan(asked(PROGRAM, ps=1, workers=1), facts("c1", cores=64), facts("c2", cores=8)).notes == ()
