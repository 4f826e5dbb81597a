"""`tflaunch check` on real sshd and on the bed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.checks import fake_tensorflow
from tests.support.launcher import Launcher, processes
from tests.support.nvml import Fleet, build
from tests.support.patience import until
from tests.support.sshd import SshNetwork, make_key


def document(launcher: Launcher, *words: str | Path, code: int = 0, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(launcher.run("check", *words, "--json", **more).ran(code).out)
    assert told["exit_code"] == code
    return told


def test_a_machine_that_is_listed_twice_is_an_error_as_for_a_run(
    network: SshNetwork, launcher: Launcher
) -> None:
    host = network.add()
    network.prepend(f"Host alias\n  HostName {host.address}\n  Port {host.port}\n  User {host.user}\n")
    network.prepend(f"  IdentityFile {network.key}\n  UserKnownHostsFile {network.known_hosts}\n")
    hosts = launcher.hostfile([host.name, "alias"])
    told = document(launcher, hosts, "--no-tensorflow", code=70)
    assert [each["what"] for each in told["findings"] if each["topic"] == "hosts"] == [
        "host1,alias are one machine, and a run refuses that"
    ]
    refused = launcher.run("run", hosts, launcher.script("pass"), "--ps=0", "--workers=2").ran(65)
    assert "host1 and alias are one machine" in refused.sentences


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_hosts_that_differ_and_hosts_that_fail(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    new, old = fake_tensorflow(tmp_path / "new"), fake_tensorflow(tmp_path / "old", "2.15.1")
    for _ in range(6):
        network.add()
    odd = network.add(known=False)
    with network.known_hosts.open("a") as lines:  # another key than it shows
        kind, blob = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
        lines.write(f"[{odd.address}]:{odd.port} {kind} {blob}\n")
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
    hosts = [
        *({"name": f"host{n}", "setup": f"export PYTHONPATH={new}"} for n in (1, 2)),
        {"name": "host3", "setup": f"export PYTHONPATH={old}"},
        {"name": "host4", "python": str(empty / "bin/python")},
        {"name": "host5", "setup": ["echo hello there", "false"]},
        {"name": "host6", "python": "/no/such/python"},
        {"name": "host7"},
        {"name": "dead", "ssh": "127.0.0.1", "port": closed_port()},
    ]
    told = document(launcher, launcher.hostfile(hosts), code=69)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for each in told["findings"]:
        for host in each["hosts"]:
            by_host.setdefault(host, []).append(each)

    def said(host: str) -> str:
        return " | ".join(f"{each['level']} {each['topic']}: {each['what']}" for each in by_host[host])

    assert "warning versions: TensorFlow is 2.15.1, on the other hosts 2.21.0" in said("host3")
    assert "error tensorflow: TensorFlow does not import in" in said("host4")
    assert "No module named 'tensorflow'" in said("host4")
    assert "error setup: hello there setup failed with exit code 1" in said("host5").replace("\n", " ")
    assert "error setup: no program /no/such/python on this host" in said("host6")
    assert "error connection:" in said("host7")
    assert "key" in said("host7")
    assert "error connection:" in said("dead")
    assert not [each for each in by_host.get("host1", []) if each["level"] != "note"]
    reached = {f"host{n}" for n in range(1, 7)}
    assert told["dials"].keys() == reached
    assert all(
        isinstance(way["result"], float) and to in reached
        for each in told["dials"].values()
        for to, way in each.items()
    )
    launcher.wait_until_no_run_is_kept()

    told_people = launcher.run("check", launcher.directory / "hosts.yaml").ran(69).out
    assert "✓  host[1-2] " in told_people
    assert "TensorFlow is 2.15.1, on the other hosts 2.21.0" in told_people
    assert "8 hosts, 2 without an answer" in told_people


def test_tensorflow_itself_is_imported_as_a_task_would(launcher: Launcher) -> None:
    told = document(launcher, launcher.local(1, python=sys.executable))
    [host] = told["hosts"]
    assert host["versions"]["TensorFlow"].startswith("2.")
    assert host["versions"].keys() >= {"Python", "TensorFlow", "Keras", "protobuf", "NumPy"}
    assert host["task"]["report"]["tensorflow"]["gpus"] == 0
    launcher.wait_until_no_run_is_kept()


def test_without_tensorflow_what_is_installed_is_told(launcher: Launcher, tmp_path: Path) -> None:
    path = fake_tensorflow(tmp_path / "never", body="raise SystemExit(3)")
    hostfile = launcher.local(1, python=sys.executable, env={"PYTHONPATH": str(path)})
    told = document(launcher, hostfile, "--no-tensorflow")
    assert told["hosts"][0]["versions"]["TensorFlow"].startswith("2.")
    assert "tensorflow" not in told["hosts"][0]["task"]["report"]
    [finding] = document(launcher, hostfile, code=70)["findings"]
    assert "SystemExit: 3" in finding["what"]


def test_an_import_that_hangs_is_ended_and_tells_where(launcher: Launcher, tmp_path: Path) -> None:
    path = fake_tensorflow(tmp_path / "slow", body="import time\ntime.sleep(1000)")
    hostfile = launcher.local(1, python=sys.executable, env={"PYTHONPATH": str(path)})
    [finding] = document(launcher, hostfile, "--timeout=15", code=70)["findings"]
    assert finding["what"] == "the import of TensorFlow did not end within 15 s, and was stopped"
    assert any("slow/tensorflow/__init__.py" in line for line in finding["lines"])
    launcher.wait_until_no_run_is_kept()


@pytest.mark.parametrize("hard", [False, True])
def test_whatever_ends_it_nothing_is_left(launcher: Launcher, tmp_path: Path, hard: bool) -> None:
    body = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)"
    path = fake_tensorflow(tmp_path / "slow", body=body)
    hostfile = launcher.local(2, python=sys.executable, env={"PYTHONPATH": str(path)})
    with launcher.start("check", hostfile) as running:
        until(
            lambda: [
                each
                for each in processes()
                if "sleep" in each.words and each.env.get("TFLAUNCH_RUN", "")[:5] == "check"
            ],
            "the import",
        )
        if hard:
            running.process.kill()
        else:
            running.interrupt()
            assert running.end() == 130
            assert "nothing is left on the hosts" in running.err
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()


GPUS = """
class config:
    list_physical_devices = staticmethod(lambda kind: SEEN)
import os
SEEN = [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each in KNOWN]
"""


def test_the_task_is_shown_the_free_gpus_of_its_host(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    gpus = ("gpu uuid=GPU-0 mem=16384 used=9000", "gpu uuid=GPU-1 mem=16384", "gpu uuid=GPU-2 mem=16384")
    library = build(tmp_path)
    hosts = []
    for number, known in enumerate((["GPU-1", "GPU-2"], ["GPU-1"]), 1):
        network.add(env=Fleet(library, tmp_path / f"fleet{number}", *gpus).env)
        path = fake_tensorflow(tmp_path / f"tf{number}", body=f"KNOWN = {known!r}\n{GPUS}")
        hosts.append({"name": f"host{number}", "setup": f"export PYTHONPATH={path}"})
    told = document(launcher, launcher.hostfile(hosts, gpus="auto"), code=70)
    errors = [(each["hosts"], each["what"]) for each in told["findings"] if each["level"] == "error"]
    assert errors == [(["host2"], "TensorFlow sees 1 of 2 free GPUs")]
    assert [each["task"]["report"]["tensorflow"]["gpus"] for each in told["hosts"]] == [2, 1]
    assert [gpu["busy"] != "" for gpu in told["hosts"][0]["gpus"]] == [True, False, False]
    models = json.loads((launcher.home / ".cache/tflaunch/gpu-models.json").read_text())
    assert models == [told["hosts"][0]["gpus"][0]["name"]], "the shell completes them"


def test_firewalls_clocks_and_disks(bed: Bed, far: FarLauncher) -> None:
    one, two, three = bed.up(3, clock=True)
    two.set_clock(75)
    bed.block(three, one, 22000)
    bed.narrow(one, two, 1400)
    two.small_disk("/small", 2**20)
    hosts = [
        {"name": one.name, "ports": "22000-22009"},
        {"name": two.name, "run_dir": "/small", "ports": "22000-22009"},
        {"name": three.name, "ports": "22000-22009"},
    ]
    words = (far.hostfile(hosts, python=sys.executable), "--no-tensorflow")
    told = document(far, *words, code=70)
    said = {(each["level"], *each["hosts"], each["topic"]): each["what"] for each in told["findings"]}
    assert said["error", "host3", "network"] == (
        "cannot reach host1 at host1:22000: silently dropped (a firewall?)"
    )
    for host, other in (("host1", "host2"), ("host2", "host1")):
        assert said["error", host, "network"].startswith(
            f"cannot reach {other} at {other}:22000: it answers, but"
        )
    assert "s ahead of those of the others" in said["warning", "host2", "clock"]
    assert "1 MiB are free on the disk of /small" in said["error", "host2", "disk"].replace("0 MiB", "1 MiB")
    assert "reaches the ports of the tasks" in said["note", "host1", "host2", "host3", "exposed"]
    assert told["dials"]["host1"]["host3"]["result"] > 0
    assert {each["interface"] for each in told["hosts"]} == {"eth0"}
    assert 70 < told["hosts"][1]["clock"]["ahead_s"] < 80
    far.wait_until_no_run_is_kept()


def test_a_host_that_freezes_in_the_middle_does_not_keep_the_others(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = [one.name, {"name": two.name, "setup": ["touch /tmp/there", "sleep 1000"]}]
    hostfile = far.hostfile(hosts, python=sys.executable)
    with far.start("check", hostfile, "--no-tensorflow", "--timeout=600", "--json") as running:
        until(lambda: two.path("/tmp/there").exists(), "its setup")
        two.freeze()
        try:
            told = json.loads(running.done().ran(69).out)
        finally:
            two.thaw()
    [finding] = [each for each in told["findings"] if each["level"] != "note"]
    assert finding["hosts"] == ["host2"]
    assert "the connection was lost: its agent has sent nothing for 10 s" in finding["what"]
    assert told["dials"].keys() == {"host1"}
    far.wait_until_nothing_is_left()
    until(lambda: far.run_directories() == [], "the directories go")


def test_bandwidth_is_measured_pair_by_pair(bed: Bed, far: FarLauncher) -> None:
    hosts = bed.up(4)
    bed.delay(hosts[3], 40)
    words = (far.hostfile(hosts, python=sys.executable), "--no-tensorflow", "--bandwidth")
    told = document(far, *words)
    names = [host.name for host in hosts]
    assert {a: list(row) for a, row in told["bandwidth"].items()} == {
        a: [b for b in names if b != a] for a in names
    }
    assert all(way["bits_per_s"] > 0 for row in told["bandwidth"].values() for way in row.values())
    said = [each["what"] for each in told["findings"] if each["topic"] == "network"]
    assert [
        each for each in said if each.startswith("host4 <-> host[1-3]: ") and "bit/s, the median of" in each
    ]
    assert [each for each in said if "the median of the 12 pairs is 0." in each]
    shown = far.run("check", *words).ran().out
    assert "12 ways measured: " in shown
    assert [line.split()[0] for line in shown.splitlines() if "host4" in line.split()[:1]]
    assert far.run_directories() == []


@pytest.mark.parametrize("freezes", [False, True])
def test_bandwidth_ends_at_once_with_ctrl_c_and_goes_on_without_a_frozen_host(
    bed: Bed, far: FarLauncher, freezes: bool
) -> None:
    hosts = bed.up(3)
    words = (far.hostfile(hosts, python=sys.executable), "--no-tensorflow", "--bandwidth")
    # Who is impatient is told at once when the calls are over.
    program = (
        "import sys; from tflaunch.cli import main, reporting; reporting.PATIENT_S = 0.0; sys.exit(main())"
    )
    inside, argv = bed.launcher.inside(cwd=far.code), far.argv
    far.argv = lambda *each: [*inside, sys.executable, "-c", program, *argv(*each)[len(inside) + 3 :]]  # type: ignore[method-assign]
    with far.start("check", *words) as running:
        until(lambda: "tested the network of 3 hosts" in running.err, "the calls")
        if freezes:
            hosts[1].freeze()
            assert running.end() == 69
            assert "ways measured" in running.out
        else:
            running.interrupt()
            assert running.end() == 130
            assert "nothing is left on the hosts" in running.err
    if freezes:
        hosts[1].thaw()
    far.wait_until_nothing_is_left()
