"""Networks as the agent reads them from simulated machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.sysfs import SimulatedSys
from tflaunch.agent.net import nics


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedSys:
    return SimulatedSys(tmp_path / "sys")


def test_eight_gpus_with_an_adapter_each(machine: SimulatedSys) -> None:
    """Two sockets; behind each host bridge a switch with a GPU and an adapter, as in a DGX."""
    gpus, addresses = [], []
    for number in range(8):
        switch = f"pci0000:{number}0/0000:{number}0:01.0/0000:{number}1:00.0"
        node = number // 4
        gpus.append(machine.gpu(number, f"{switch}/0000:{number}2:00.0/0000:{number}3:00.0", node))
        path = f"{switch}/0000:{number}2:01.0/0000:{number}4:00.0"
        machine.interface(f"ib{number}", path, node)
        machine.rdma(f"mlx5_{number}", path, node, rate="400 Gb/sec (4X NDR)", layer="InfiniBand")
        addresses.append((f"ib{number}", f"10.{20 + number}.0.1", 16))
    machine.interface("eno1", "pci0000:00/0000:00:1f.0/0000:05:00.0", 0, speed="1000")
    found = {
        nic["name"]: nic
        for nic in nics.nics([("eno1", "10.0.0.1", 24), *addresses], gpus, str(machine.place))
    }
    assert list(found) == ["eno1", *(f"ib{number}" for number in range(8))]
    assert found["ib2"] == {
        "name": "ib2",
        "networks": ["10.22.0.1/16"],
        "mbit_s": 400_000,
        "rdma": "mlx5_2",
        "fabric": "InfiniBand",
        "gpus": {str(gpu): "PIX" if gpu == 2 else "NODE" if gpu < 4 else "SYS" for gpu in range(8)},
    }
    assert found["eno1"]["mbit_s"] == 1000
    assert found["eno1"]["gpus"] == {
        "0": "PHB",
        **dict.fromkeys("123", "NODE"),
        **dict.fromkeys("4567", "SYS"),
    }


def test_a_workstation_with_a_bond_and_a_vlan(machine: SimulatedSys) -> None:
    gpu = machine.gpu(0, "pci0000:00/0000:00:01.0/0000:01:00.0", -1)
    for number in range(2):
        path = f"pci0000:00/0000:00:02.0/0000:02:00.{number}"
        machine.interface(f"enp2s0f{number}", path, -1, speed="25000")
        machine.rdma(f"mlx5_{number}", path, -1, rate="25 Gb/sec (1X EDR)", layer="Ethernet")
    machine.interface("bond0", speed="50000", below="enp2s0f0")
    machine.interface("bond0.7", speed="50000", below="bond0")
    machine.interface("docker0", speed="-1")
    addresses = [("bond0.7", "10.7.0.1", 24), ("docker0", "172.17.0.1", 16), ("bond0.7:x", "10.7.0.9", 24)]
    vlan, docker, other = nics.nics(addresses, [gpu], str(machine.place))
    assert (vlan["networks"], vlan["mbit_s"]) == (["10.7.0.1/24", "10.7.0.9/24"], 50_000)
    assert (vlan["rdma"], vlan["fabric"], vlan["gpus"]) == ("mlx5_0", "Ethernet", {"0": "PHB"})
    assert (docker["mbit_s"], docker["rdma"], docker["gpus"]) == (None, "", {})
    assert (other["name"], other["rdma"], other["mbit_s"], other["networks"]) == ("", "mlx5_1", 25_000, [])


def test_a_virtual_machine_with_one_virtual_interface(machine: SimulatedSys) -> None:
    machine.interface("ens5", "pci0000:00/0000:00:05.0", -1, speed="-1")
    [only] = nics.nics([("ens5", "172.31.4.2", 20)], [], str(machine.place))
    assert only == {
        "name": "ens5",
        "networks": ["172.31.4.2/20"],
        "mbit_s": None,
        "rdma": "",
        "fabric": "",
        "gpus": {},
    }


def test_a_port_that_is_down_is_none(machine: SimulatedSys) -> None:
    path = "pci0000:00/0000:00:02.0/0000:02:00.0"
    machine.rdma("mlx5_0", path, 0, rate="10 Gb/sec (4X SDR)", layer="InfiniBand", state="1: DOWN")
    assert nics.nics([], [], str(machine.place)) == []


def test_several_switches_are_further_than_one(machine: SimulatedSys) -> None:
    root = "pci0000:00/0000:00:01.0/0000:01:00.0"
    near = machine.gpu(0, f"{root}/0000:02:00.0/0000:03:00.0", 0)
    far = machine.gpu(1, f"{root}/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0", 0)
    lost = {"index": 2, "numa_node": None, "pci_bus_id": ""}
    machine.interface("ib0", f"{root}/0000:02:02.0/0000:07:00.0", 0)
    [only] = nics.nics([("ib0", "10.2.0.1", 16)], [near, far, lost], str(machine.place))
    assert only["gpus"] == {"0": "PIX", "1": "PXB"}


def test_what_the_host_says_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nics.YIELDING:
        monkeypatch.delenv(name, raising=False)
    own = tmp_path / "nccl.conf"
    own.write_text("# by the administrator\nNCCL_IB_HCA = mlx5_0\nNCCL_DEBUG=WARN\n")
    monkeypatch.setattr(nics, "NCCL_FILES", (str(own), str(tmp_path / "none")))
    assert nics.set_there() == ["NCCL_IB_HCA"]
    other = tmp_path / "other.conf"
    other.write_text("NCCL_SOCKET_IFNAME==eth7\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(other))
    assert nics.set_there() == ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"]
    monkeypatch.delenv("NCCL_CONF_FILE")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert nics.set_there() == ["NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"]


def test_gpudirect(tmp_path: Path) -> None:
    assert nics.gpudirect(str(tmp_path)) == ""
    (tmp_path / "module/nvidia_peermem").mkdir(parents=True)
    assert nics.gpudirect(str(tmp_path)) == "nvidia_peermem"


@pytest.mark.parametrize("made", ["fifo", "endless"])
def test_what_a_user_has_put_in_the_place_of_nccls_file_holds_nothing_up(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "nccl.conf"
    if made == "fifo":
        os.mkfifo(own)
    else:
        own.symlink_to("/dev/zero")
    for name in nics.YIELDING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_CONF_FILE", str(own))
    assert "NCCL_IB_HCA" not in nics.set_there()
