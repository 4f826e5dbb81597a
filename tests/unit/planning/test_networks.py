"""Which network tasks dial each other over, and what NCCL is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.planned import asked, facts, plan, refused, some_gpus
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.inventory import HostFacts, Nic
from tflaunch.planning.networks import faster


def nic(name: str, address: str, mbit_s: int | None = None, rdma: str = "", fabric: str = "") -> Nic:
    return Nic(name, (address,) if address else (), mbit_s, rdma, fabric)


def host(number: int, *nics: Nic, gpus: int = 0, **more: Any) -> HostFacts:
    """g1 with eth0 at 10.0.0.1, and these."""
    first = nic("eth0", f"10.0.0.{number}/24", 1000)
    faces = [first, *nics]
    addresses = tuple(each.partition("/")[0] for face in faces for each in face.networks)
    interfaces = tuple(face.name for face in faces for _ in face.networks)
    more = {"addresses": addresses, "interfaces": interfaces, **more}
    return facts(f"g{number}", some_gpus(f"g{number}", gpus), nics=tuple(faces), **more)


def ib(number: int, name: str = "ib0", mbit_s: int | None = 100_000) -> Nic:
    return nic(name, f"10.2.0.{number}/16", mbit_s)


def dialled(planned: ClusterPlan) -> list[str]:
    return [task.address for task in planned.tasks]


JOB = asked(ps=0)
BY_ADDRESS = {"g1": "10.0.0.1", "g2": "10.0.0.2"}


def test_the_fastest_network_of_all_hosts_is_taken_and_told() -> None:
    planned = plan(JOB, host(1, ib(1)), host(2, ib(2, "ibs1")), addresses=BY_ADDRESS)
    assert dialled(planned) == ["10.2.0.1", "10.2.0.2"]
    assert planned.network == "10.2.0.0/16"
    assert planned.notes == (
        "the tasks dial each other over ib0, ibs1 (100 Gbit/s, 10.2.0.0/16), the fastest network that all their hosts "
        "are in; --network none: by the addresses that SSH has",
    )
    assert [task.env["GLOO_SOCKET_IFNAME"] for task in planned.tasks] == ["ib0", "ibs1"]


def test_names_that_may_lead_anywhere_lead_to_the_fast_one() -> None:
    assert dialled(plan(JOB, host(1, ib(1)), host(2, ib(2)))) == ["10.2.0.1", "10.2.0.2"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((), (ib(2),)),  # g1 lacks it
        ((ib(1, mbit_s=1500),), (ib(2, mbit_s=1500),)),  # hardly faster
        ((ib(1, mbit_s=None),), (ib(2, mbit_s=None),)),  # a virtual one
        ((nic("docker0", "172.17.0.1/16", 10**5),), (nic("docker0", "172.17.0.2/16", 10**5),)),
        ((nic("br0", "172.18.0.1/16", 10**5),), (nic("br0", "172.18.0.1/16", 10**5),)),
        ((nic("tun0", "10.9.0.1/32", 10**5),), (nic("tun0", "10.9.0.2/32", 10**5),)),
        ((nic("x", "words", 10**5),), (nic("x", "10.9.0.2/16", 10**5),)),  # a host that lies
    ],
)
def test_what_is_no_better_network_of_all(one: tuple[Nic, ...], two: tuple[Nic, ...]) -> None:
    planned = plan(JOB, host(1, *one), host(2, *two), addresses=BY_ADDRESS)
    assert dialled(planned) == ["10.0.0.1", "10.0.0.2"]
    assert planned.network == ""
    assert planned.notes == ()


def test_what_the_user_has_said_stays() -> None:
    members = host(1, ib(1)), host(2, ib(2))
    said = {"g1": {"address": "10.0.0.1"}}
    assert dialled(plan(JOB, *members, hosts=said, addresses=BY_ADDRESS)) == ["10.0.0.1", "10.0.0.2"]
    assert dialled(plan(asked(ps=0, network="none"), *members)) == ["g1", "g2"]
    already = {"g1": "10.2.0.1", "g2": "10.2.0.2"}
    assert plan(JOB, *members, addresses=already).network == ""
    env = {"GLOO_SOCKET_IFNAME": "mine", "NCCL_SOCKET_IFNAME": "mine"}
    planned = plan(asked(ps=0, env=env), host(1, ib(1), gpus=1), host(2, ib(2), gpus=1))
    assert {task.env[name] for task in planned.tasks for name in env} == {"mine"}


def test_a_slot_of_an_engine_has_an_address_that_nobody_has_written() -> None:
    slots = {f"g{n}": {"address": f"10.0.0.{n}", "slot": {"job": "1"}} for n in (1, 2)}
    assert dialled(plan(JOB, host(1, ib(1)), host(2, ib(2)), hosts=slots)) == ["10.2.0.1", "10.2.0.2"]


@pytest.mark.parametrize("wanted", ["slow1", "10.3.0.0/16", "10.3.9.9/16"])
def test_the_network_that_the_user_names(wanted: str) -> None:
    """Also where the interface has another name on another host, and there are faster ones."""
    one = host(1, ib(1), nic("slow1", "10.3.0.1/16", 100))
    two = host(2, ib(2), nic("other", "10.3.0.2/16", 100))
    planned = plan(asked(ps=0, network=wanted), one, two, hosts={"g1": {"address": "10.0.0.1"}})
    assert dialled(planned) == ["10.3.0.1", "10.3.0.2"]
    assert planned.notes == ()


def test_a_network_that_a_host_is_not_in() -> None:
    for wanted in ("ib0", "10.2.0.0/16", "fd00::/8"):
        error = refused(asked(ps=0, network=wanted), host(1, ib(1)), host(2))
        assert error.message.startswith(f"--network {wanted}: g")
        assert "eth0 (10.0.0." in error.message
    same = nic("br0", "172.18.0.1/16")
    error = refused(asked(ps=0, network="br0"), host(1, same), host(2, same))
    assert "g[1-2] have the same address there, 172.18.0.1" in error.message


def test_one_machine_is_dialled_as_ever() -> None:
    same: dict[str, Any] = {"boot_id": "b", "hostname": "h"}
    planned = plan(asked(ps=0, network="ib0"), host(1, ib(1), **same), host(2, ib(1), **same))
    assert planned.network == ""


def test_what_nccl_is_told() -> None:
    """A machine with eight adapters for eight GPUs, two slower ones for storage, and a board's own network."""

    def dgx(number: int) -> HostFacts:
        rails = [
            nic(f"ib{rail}", f"10.{20 + rail}.0.{number}/16", 400_000, f"mlx5_{rail}", "InfiniBand")
            for rail in range(8)
        ]
        storage = nic("ens1", f"10.9.0.{number}/16", 200_000, "mlx5_8", "Ethernet")
        return host(number, *rails, storage, gpus=8)

    planned = plan(asked(ps=0), dgx(1), dgx(2), addresses=BY_ADDRESS)
    assert dialled(planned) == [f"10.20.0.{1 + number % 2}" for number in range(16)]
    rails = ",".join(f"mlx5_{rail}" for rail in range(8))
    assert {(task.env["NCCL_SOCKET_IFNAME"], task.env["NCCL_IB_HCA"]) for task in planned.tasks} == {
        ("=ib0", f"={rails}")
    }
    assert "NCCL_IB_HCA" not in plan(asked(ps=0, network="eth0"), dgx(1), dgx(2)).tasks[0].env
    alone = plan(asked(ps=0), dgx(1)).tasks[0].env
    assert not [name for name in alone if name.startswith("NCCL")]


def test_nccl_is_told_nothing_that_the_host_says_itself() -> None:
    said = {"gpus": 1, "set_there": ("NCCL_SOCKET_IFNAME",)}
    planned = plan(asked(ps=0), host(1, **said), host(2, gpus=1), addresses=BY_ADDRESS)
    assert [task.env.get("NCCL_SOCKET_IFNAME") for task in planned.tasks] == [None, "=eth0"]
    said = {"gpus": 1, "set_there": ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")}
    for framework in ("torch", "horovod"):
        job = asked(ps=0, framework=framework)
        first, second = plan(job, host(1, ib(1), **said), host(2, ib(2), gpus=1), addresses=BY_ADDRESS).tasks
        assert not [name for name in first.env if name.endswith(("IFNAME", "IFACE"))]
        assert {
            second.env[name] for name in second.env if name.endswith(("GLOO_IFACE", "GLOO_SOCKET_IFNAME"))
        } == {"ib0"}
    planned = plan(asked(ps=0), host(1), host(2), addresses=BY_ADDRESS)
    assert not any("NCCL_SOCKET_IFNAME" in task.env for task in planned.tasks)  # without GPUs


def test_the_speed_now_is_that_of_the_slowest() -> None:
    there = {"g1": host(1, ib(1)), "g2": host(2, ib(2, mbit_s=40_000))}
    found = faster({"g1": "10.0.0.1", "g2": "10.0.0.2"}, there)
    assert found is not None
    now, best = found
    assert (now, best.mbit_s, best.told) == (1000, 40_000, "ib0 (40 Gbit/s, 10.2.0.0/16)")
    assert faster({"g1": "10.2.0.1", "g2": "10.0.0.2"}, there) is not None
    assert faster({"g1": "10.0.0.1"}, {"g1": there["g1"]}) is None
