"""Runs on hosts with two networks of different speed, on the bed: which one the tasks' bytes take."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.bed import Bed, FarLauncher, can_shape
from tests.support.bed.machines import BedHost

SENT = 20_000_000  # bytes, of which the other traffic of a run is a small part
# The worker sends to the ps, at the address that the cluster spec has.
SENDS = f"""\
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
address, _, port = config["cluster"]["ps"][0].rpartition(":")
if config["task"]["type"] == "ps":
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("", int(port)))
        listener.listen()
        taken, left = listener.accept()[0], {SENT}
        while left and (data := taken.recv(1 << 16)):
            left -= len(data)
        taken.sendall(b"!")
else:
    import time
    while True:
        try:
            way = socket.create_connection((address, int(port)), 5)
            break
        except OSError:
            time.sleep(0.1)
    way.settimeout(None)
    way.sendall(bytes({SENT}))
    assert way.recv(1) == b"!"
    print("sent to", address, flush=True)
"""
APART = ("--ps=1", "--workers=1", "--ps-hosts=host1", "--worker-hosts=host2", "--ps-grace=5")


@pytest.fixture
def hosts(bed: Bed) -> list[BedHost]:
    """Two hosts with 1 Gbit/s at eth0, by which SSH comes, and 10 Gbit/s at eth1."""
    made = bed.up(2)
    bed.second_network(*made)
    return made


def sent_over(far: FarLauncher, hosts: list[BedHost], *more: str) -> tuple[list[str], str]:
    """Run; returns (the interfaces of the ps's host that the bytes came by, what the run said)."""
    names = ("eth0", "eth1")
    before = {name: hosts[0].bytes_received(name) for name in names}
    done = far.run("run", far.hostfile(hosts), far.script(SENDS), *APART, *more).ran()
    return [name for name in names if hosts[0].bytes_received(name) - before[name] > SENT], done.sentences


def test_the_bytes_of_a_run_go_over_the_fast_network(far: FarLauncher, hosts: list[BedHost]) -> None:
    ways, said = sent_over(far, hosts)
    assert ways == ["eth1"]
    assert "over eth1 (10 Gbit/s, 10.78.0.0/16), the fastest network that all their hosts are in" in said

    ways, said = sent_over(far, hosts, "--network=none")
    assert ways == ["eth0"]
    assert "fastest network" not in said
    assert sent_over(far, hosts, "--network=eth0")[0] == ["eth0"]
    assert sent_over(far, hosts, "--network=10.78.0.0/16")[0] == ["eth1"]


def test_a_host_that_lacks_the_fast_network(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    bed.second_network(one)
    ways, said = sent_over(far, [one, two])
    assert ways == ["eth0"]
    assert "fastest network" not in said
    done = far.run("run", far.hostfile([one, two]), far.script(SENDS), *APART, "--network=eth1").ran(65)
    assert "--network eth1: host2 is not in it; host2 has eth0 (10.77.0.2/16)" in done.sentences


def test_a_firewall_on_the_fast_network(bed: Bed, far: FarLauncher, hosts: list[BedHost]) -> None:
    """Without the user's word for it the run does without; with that, it ends as at any other firewall."""
    one, two = hosts
    bed.block_fast(two, one)
    ways, said = sent_over(far, hosts)
    assert ways == ["eth0"]
    assert re.search(r"host[12] cannot reach (ps|worker)/0 at 10\.78\.0\.[12]:\d+: ", said)
    assert "the run begins anew without the network 10.78.0.0/16, by the addresses that SSH has" in said
    done = far.run("run", far.hostfile(hosts), far.script(SENDS), *APART, "--network=eth1").ran(70)
    assert "nothing was started" in done.sentences


def test_interfaces_whose_names_differ(bed: Bed, far: FarLauncher, hosts: list[BedHost]) -> None:
    """The third host names one itself, which stays."""
    hosts[1].do("sh", "-c", "ip link set eth1 down; ip link set eth1 name ens7; ip link set ens7 up")
    more = bed.up(1, env={"GLOO_SOCKET_IFNAME": "mine"})
    bed.second_network(*more)
    shows = "import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.environ['MASTER_ADDR'], flush=True)"
    words = (
        far.hostfile([*hosts, *more]),
        far.script(shows),
        "--ps=0",
        "--workers=3",
        "--framework=torch",
        "--json",
    )
    for option in ([], ["--network=ens7"]):
        done = far.run("run", *words, *option).ran()
        lines = {event["task"]: event["line"] for event in done.events if event["event"] == "log"}
        assert lines == {
            "worker/0": "eth1 10.78.0.1",
            "worker/1": "ens7 10.78.0.1",
            "worker/2": "mine 10.78.0.1",
        }


def test_gpus_shows_the_networks(far: FarLauncher, hosts: list[BedHost], library: Path) -> None:
    hosts[0].give_gpus(library, "gpu uuid=GPU-a")
    shown = far.run("gpus", far.hostfile(hosts), "--topology").ran().out
    assert "eth0  1 Gbit/s" in shown
    assert "eth1  10 Gbit/s" in shown
    document = json.loads(far.run("gpus", far.hostfile(hosts), "--json").ran().out)
    nics = {nic["name"]: (nic["mbit_s"], nic["networks"]) for nic in document["hosts"][1]["nics"]}
    assert nics == {"eth0": (1000, ["10.77.0.2/16"]), "eth1": (10_000, ["10.78.0.2/16"])}


def test_check_tells_of_the_network_that_a_run_takes(
    bed: Bed, far: FarLauncher, hosts: list[BedHost]
) -> None:
    words = ("check", far.hostfile(hosts, python=sys.executable), "--no-tensorflow")

    def said() -> str:
        return " ".join(far.run(*words).out.split())

    assert "eth1 (10 Gbit/s, 10.78.0.0/16) connects all hosts, too: a run takes it" in said()
    bed.block_fast(hosts[1], hosts[0])
    assert "there (silently dropped (a firewall?)): a run goes without it" in said()


@pytest.mark.skipif(not can_shape(), reason="this kernel cannot shape (sch_tbf)")
def test_check_names_the_network_that_is_slower_than_its_link_says(
    bed: Bed, far: FarLauncher, hosts: list[BedHost]
) -> None:
    """eth1 says 10 Gbit/s, and a switch with a bad port lets a fiftieth through; eth0 has its 1 Gbit/s."""
    for host in hosts:
        bed.shape(host, "eth1", 200)
    words = ("check", far.hostfile(hosts, python=sys.executable), "--no-tensorflow", "--bandwidth", "--json")
    document = json.loads(far.run(*words).out)
    [other] = document["networks"]
    assert other["interfaces"] == {"host1": "eth1", "host2": "eth1"}
    fast = document["bandwidth"]["host1"]["host2"]["bits_per_s"]
    slow = other["bandwidth"]["host1"]["host2"]["bits_per_s"]
    assert slow < fast <= 1.1e9
    told = [
        finding["what"] for finding in document["findings"] if "no way between the hosts" in finding["what"]
    ]
    assert [each.partition(": ")[0] for each in told] == ["eth1 (10 Gbit/s, 10.78.0.0/16)"]
