"""Hosts that do not reach each other: the dial check, and what is said of a run that hangs for it. On the bed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.far_impatient import Impatient
from tests.support.frameworks import WITHOUT_KERAS
from tests.support.launcher import TELL
from tests.support.patience import until

PORT = 22000  # the first of the range, so that of the one task on each host
QUICK = ("--grace=2", "--ps-grace=0.2")
APART = ("--ps=1", "--workers=1", "--ps-hosts=host1", "--worker-hosts=host2", *QUICK)

# TensorFlow, as one worker with one ps.
TRAINER = """
    import json, os
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    import tensorflow as tf
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    server = v1.train.Server(config["cluster"], job_name=job, task_index=index)
    if job == "ps":
        server.join()
    with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(config["cluster"]))):
        step = v1.train.get_or_create_global_step()
    with v1.train.MonitoredTrainingSession(master=server.target, is_chief=True) as session:
        print("the session is open:", session.run(step))
"""


@pytest.fixture
def impatient(tmp_path: Path, bed: Bed) -> Iterator[Impatient]:
    made = Impatient(tmp_path, bed)
    yield made
    made.close()


def hostfile(far: FarLauncher, bed: Bed, **more: object) -> Path:
    return far.hostfile(bed.hosts, ports=[PORT, PORT + 9], **more)


@pytest.mark.parametrize(
    ("refuse", "said"),
    [(False, "silently dropped (a firewall?)"), (True, "refused (a firewall that rejects?)")],
)
def test_a_firewall_between_two_hosts_ends_the_launch(
    bed: Bed, far: FarLauncher, refuse: bool, said: str
) -> None:
    one, two = bed.up(2)
    bed.block(two, one, PORT, refuse=refuse)
    words = ("run", hostfile(far, bed), far.script(TELL), *APART, "--env=OUT=/tmp")
    done = far.run(*words).ran(70)
    assert "1 host does not reach every peer that its tasks will call; nothing was started" in done.sentences
    assert f"host2 cannot reach ps/0 at host1:{PORT}: {said}" in done.sentences
    assert "`ports:` in the hostfile" in done.sentences
    assert "--no-dial-check" in done.sentences
    far.wait_until_no_run_is_kept()
    assert not one.path("/tmp/ps-0.json").exists()

    bed.heal()
    far.run(*words).ran()


def test_the_ps_must_reach_the_workers_too(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    bed.block(one, two, PORT)
    done = far.run("run", hostfile(far, bed), far.script(TELL), *APART, "--env=OUT=/tmp").ran(70)
    assert f"host1 cannot reach worker/0 at host2:{PORT}: silently dropped (a firewall?)" in done.sentences


def test_hosts_without_a_way_to_each_other(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    bed.cut(one, two)
    done = far.run("run", hostfile(far, bed), far.script(TELL), *APART, "--env=OUT=/tmp", "--json").ran(70)
    told = done.events[-1]
    assert told["event"] == "failures"
    causes = {host: row["cause"] for row in told["rows"] for host in row["hosts"]}
    assert causes.keys() == {"host1", "host2"}
    assert all("no route" in cause for cause in causes.values())


def test_groups_that_are_cut_off_from_each_other_among_many_hosts(bed: Bed, far: FarLauncher) -> None:
    """Few of the ways are dialled, and yet all that are blocked are told; a healthy cluster is told what was tried."""
    hosts = bed.up(40)
    words = ("run", hostfile(far, bed), far.script(TELL), "--ps=0", "--workers=40", "--env=OUT=/tmp", *QUICK)
    done = far.run(*words).ran()
    assert "% of the ways between the hosts were tried; no group of hosts is cut off." in done.sentences
    assert "--dial-check all tries all of them" in done.sentences

    for source in hosts[4:11]:
        for target in hosts[20:25]:
            bed.block(source, target, PORT)
    done = far.run(*words).ran(70)
    assert "7 hosts do not reach every peer that their tasks will call; nothing was started" in done.sentences
    assert f"host[5-11] cannot reach 5 tasks on host[21-25] (port {PORT}): silently dropped" in done.sentences


def test_a_name_that_one_of_many_hosts_knows_as_another(bed: Bed, far: FarLauncher) -> None:
    """It dials only few of them itself; that it finds other addresses shows by a digest."""
    hosts = bed.up(40)
    places = (hosts[12].directory / "hosts").read_text().splitlines()
    other, gone = (
        next(each for each in places if each.split()[1:2] == [name]) for name in ("host30", "host34")
    )
    wrong = other.replace(hosts[29].address, hosts[30].address)
    kept = [wrong if each is other else each for each in places if each is not gone]
    (hosts[12].directory / "hosts").write_text("".join(f"{each}\n" for each in kept))
    words = ("run", hostfile(far, bed), far.script(TELL), "--ps=0", "--workers=40", "--env=OUT=/tmp", *QUICK)
    done = far.run(*words).ran(70)
    assert "1 host does not reach every peer that its tasks will call; nothing was started" in done.sentences
    assert (
        f"cannot reach worker/29 at host30:{PORT}: something else answers there: it is host31 of this run"
        in done.sentences
    )
    assert f"worker/33 at host34:{PORT}: the name does not resolve there" in done.sentences


def test_a_name_that_one_host_does_not_know(bed: Bed, far: FarLauncher) -> None:
    _, two = bed.up(2)
    (two.directory / "hosts").write_text("127.0.0.1 localhost\n")
    done = far.run("run", hostfile(far, bed), far.script(TELL), *APART, "--env=OUT=/tmp").ran(70)
    assert f"host2 cannot reach ps/0 at host1:{PORT}: the name does not resolve there" in done.sentences


def test_an_address_that_leads_to_another_host(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = [{"name": "host1", "address": two.address}, {"name": "host2", "address": one.address}]
    words = (far.hostfile(hosts, ports=[PORT, PORT + 9]), far.script(TELL), *APART, "--env=OUT=/tmp")
    done = far.run("run", *words).ran(70)
    assert (
        f"cannot reach ps/0 at {two.address}:{PORT}: something else answers there: it is host2"
        in done.sentences
    )


def test_a_way_that_loses_large_packets_ends_the_launch(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    bed.narrow(one, two, 1400)
    done = far.run("run", hostfile(far, bed), far.script(TELL), *APART, "--env=OUT=/tmp").ran(70)
    for here, task, there in (("host1", "worker/0", "host2"), ("host2", "ps/0", "host1")):
        assert (
            f"{here} cannot reach {task} at {there}:{PORT}: it answers, but packets of more than 1400 bytes from there"
            f" do not arrive (a smaller MTU on the way?); the MTU is 1500 (eth0) on {here} and 1500 (eth0) on {there}"
        ) in done.sentences
    assert "`ping -M do -s 1372 host1` tries 1400 bytes; give the hosts that MTU" in done.sentences
    assert far.run_directories() == []
    assert not one.path("/tmp/ps-0.json").exists()


def test_a_far_host_and_one_that_loses_packets_are_warned_of(bed: Bed, far: FarLauncher) -> None:
    hosts = bed.up(4)
    bed.delay(hosts[3], 20)
    words = ("run", hostfile(far, bed), far.script(TELL), "--ps=1", "--workers=3", "--env=OUT=/tmp", *QUICK)
    done = far.run(*words).ran()
    assert "host4 <-> host[1-3]: 4" in done.sentences
    assert "the median of the 12 pairs is 0." in done.sentences
    bed.delay(hosts[3], 0)
    assert "the median of" not in far.run(*words).ran().sentences


def test_tensorflow_that_waits_behind_a_firewall_is_explained(bed: Bed, impatient: Impatient) -> None:
    one, two = bed.up(2)
    bed.block(two, one, PORT)
    hosts = hostfile(impatient, bed, python=sys.executable)
    words = ("run", hosts, impatient.script(TRAINER), *APART, "--no-dial-check", WITHOUT_KERAS)
    with impatient.start(*words) as running:
        until(lambda: "silently dropped" in running.err, "the diagnosis")
        bed.heal()
        done = running.done().ran()
    [said] = [line for line in done.err.splitlines() if "silently dropped" in line]
    assert said.startswith("! worker/0 on host2 has waited ")
    assert said.endswith(f"s for ps/0 at host1:{PORT}: silently dropped (a firewall?)")
    assert "the session is open: 0" in done.out
