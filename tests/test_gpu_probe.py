"""The probe on the real pynvml above a simulated NVML library, directly and as a run sees it over SSH."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launcher import Launcher
from tests.nvml import Fleet, build
from tests.sshd import SshNetwork
from tflaunch.planning.inventory import Gpu

PROBE = """
import json, sys
from tflaunch import gpu_probe
print(json.dumps(gpu_probe.probe()))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated library."""
    return build(tmp_path_factory.mktemp("nvml"))


def probe(fleet: Fleet | None) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(fleet.env if fleet else {})}
    result = subprocess.run(
        [sys.executable, "-c", PROBE], env=env, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def cards(fleet: Fleet) -> list[Gpu]:
    """The cards as the launcher reads them."""
    found = probe(fleet)
    assert (found["note"], found["lacks"]) == ("", "")
    return [Gpu.from_wire(card) for card in found["gpus"]]


def test_a_host_without_a_driver_has_no_cards() -> None:
    assert probe(None) == {"gpus": [], "driver": "", "cuda": "", "note": "", "lacks": "", "locks": {}}


def test_what_a_card_is(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "driver 550.54.15",
        "cuda 12040",
        'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-a mem=81559 used=4 util=7 temp=33 power=71000 limit=700000'
        " bus=0000:18:00.0 mode=3",
    )
    found = probe(fleet)
    assert (found["driver"], found["cuda"]) == ("550.54.15", "12.4")
    (card,) = cards(fleet)
    assert card == Gpu(
        index=0,
        uuid="GPU-a",
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=81559 << 20,
        memory_used_bytes=4 << 20,
        utilization_percent=7,
        temperature_c=33,
        power_w=71.0,
        power_limit_w=700.0,
        ecc_errors=0,
        compute_mode="exclusive_process",
        persistence=True,
        pci_bus_id="0000:18:00.0",
    )


def test_why_a_card_must_not_be_taken(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-free mem=81559 used=4 reserved=600",  # what the driver keeps for itself is nobody's
        "gpu uuid=GPU-used mem=16384 used=2048",
        "gpu uuid=GPU-mine mem=16384 used=100",
        "gpu uuid=GPU-off mem=16384 mode=2",
        "gpu uuid=GPU-lost mem=16384 error=15",
        "gpu uuid=GPU-hidden mem=16384",
        f"proc gpu=2 pid={os.getpid()} mem=90",
        "proc gpu=5 pid=4999999 mem=90",  # as a container sees a process outside
    )
    free, used, mine, off, lost, hidden = cards(fleet)
    assert free.busy == ""
    assert used.busy == "2.0 GiB in use by a process that is not visible there"
    assert mine.busy == f"in use by {getpass.getuser()} (pid {os.getpid()})"
    assert "PROHIBITED" in off.busy
    assert "lost" in lost.busy.lower()
    assert lost.error
    assert hidden.busy == "in use by somebody (pid 4999999)"
    (process,) = mine.processes
    assert (process.memory_bytes, process.kind) == (90 << 20, "compute")
    assert "python" in process.command
    assert process.started is not None
    assert abs(process.started - time.time()) < 24 * 3600


@pytest.mark.parametrize("driver", ["550.54.15", "470.57.02"])
def test_what_the_driver_reserves_for_itself_is_in_nobodys_use(
    library: Path, tmp_path: Path, driver: str
) -> None:
    (card,) = cards(
        Fleet(library, tmp_path / "fleet", f"driver {driver}", "gpu mem=81920 used=4 reserved=870")
    )
    assert (card.memory_used_bytes, card.busy) == (4 << 20, "")


def test_who_hides_is_seen_by_what_he_uses(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu mem=16384 used=300 util=90",
        "gpu mem=16384 used=300 util=10",  # an idle context, or a desktop
        "gpu mem=16384 used=4 util=100",  # a card that has just been initialised
        "gpu mem=16384 used=300 util=30",
        "gpu mem=16384 used=900 util=2",
        "gpu mem=16384 used=9000 util=2",
        "proc gpu=3 pid=4999999 mem=280 graphics=1",
        "proc gpu=4 pid=4999999 mem=880 graphics=1",
        "proc gpu=5 pid=4999999 mem=880 graphics=1",
    )
    assert [card.busy for card in cards(fleet)] == [
        "90 % in use by a process that is not visible there",
        "",
        "",
        "30 % in use by a desktop",
        "0.9 GiB in use by a desktop",
        "8.8 GiB in use by a process that is not visible there",
    ]


def test_mig_instances_are_devices_of_their_own(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-x mem=40960",
        "gpu uuid=GPU-a mem=40960 cc=8.0 mig=1",
        'mig gpu=1 uuid=MIG-a name="A100 MIG 3g.20gb" mem=19968 used=15 cc=8.0 gi=1',
        "mig gpu=1 uuid=MIG-b mem=4864 used=9 cc=8.0 gi=2",
        "mig gpu=1 uuid=MIG-c mem=4864 used=300 cc=8.0 gi=3",
        f"proc gpu=1 gi=2 pid={os.getpid()} mem=90",
        "gpu uuid=GPU-b mem=40960 cc=8.0 mig=1",
        "gpu uuid=GPU-c mem=40960 cc=8.0 mig=1 mode=2",
        "mig gpu=3 uuid=MIG-d mem=4864 cc=8.0",
    )
    whole, card, empty, closed = cards(fleet)
    assert (whole.label, whole.devices, whole.busy) == ("0", (whole,), "")
    assert card.devices == card.mig
    assert "MIG" in card.busy
    assert {device.label: (device.uuid, device.busy) for device in card.mig} == {
        "1.0": ("MIG-a", ""),
        "1.1": ("MIG-b", f"in use by {getpass.getuser()} (pid {os.getpid()})"),
        "1.2": ("MIG-c", "0.3 GiB in use by a process that is not visible there"),
    }
    assert card.mig[0].memory_total_bytes == 19968 << 20
    assert (empty.devices, empty.busy) == ((empty,), "in MIG mode without an instance")
    assert [device.busy for device in closed.devices] == ["compute mode is PROHIBITED"]


def test_how_cards_are_connected(library: Path, tmp_path: Path) -> None:
    buses = ("18", "2A", "8A")
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        *(f"gpu uuid=GPU-{bus} mem=1024 bus=0000:{bus}:00.0" for bus in buses),
        "nvlink 0 1 4",
        "topo 1 2 30",
    )
    first, second, third = cards(fleet)
    assert first.links == {1: "NV4", 2: "SYS"}
    assert second.links == {0: "NV4", 2: "PHB"}
    assert third.links == {0: "SYS", 1: "PHB"}


@pytest.mark.parametrize(("code", "word"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_does_not_answer_is_a_fact_of_the_host(
    library: Path, tmp_path: Path, code: int, word: str
) -> None:
    found = probe(Fleet(library, tmp_path / "fleet", f"init_error {code}", "gpu mem=1"))
    assert found["gpus"] == []
    assert word.lower() in found["note"].lower()


LOOK = """
import json, sys
from tflaunch import gpu_probe
look = gpu_probe.Look()
for fleet in sys.stdin:
    with open(sys.argv[1], "w") as file:
        file.write(fleet.replace(";", "\\n"))
    found = look.probe(topology=False)
    print(json.dumps([len(found["gpus"]), found["note"], look.stale]), flush=True)
"""


def test_nvml_stays_open_from_look_to_look_and_a_new_driver_is_met(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **fleet.env}
    looks = (
        ("gpu mem=1", [1, "", False]),
        ("gpu mem=1;init_error 9", [1, "", False]),  # not opened again: that would fail
        ("gpu mem=1;gpu mem=1;loaded 2", [2, "", False]),  # another driver: opened again within one look
        ("gpu mem=1;gpu mem=1;loaded 2;init_error 9", [2, "", False]),
        ("gpu mem=1;loaded 3;init_error 18", [0, "NVML: RM has detected an NVML/RM version mismatch.", True]),
        ("gpu mem=1;loaded 3", [1, "", False]),
        ("gpu mem=1;loaded 3;gpu mem=1 error=15", [2, "", False]),  # after an error on a card ...
        ("gpu mem=1;loaded 3;init_error 9", [0, "NVML: Driver Not Loaded", True]),  # ... it is opened again
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOK, tmp_path / "fleet"],
        input="".join(f"{fleet}\n" for fleet, _ in looks),
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [told for _, told in looks]


def test_what_is_on_cards_and_instances_by_their_uuids(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-a mem=16384 used=2048 reserved=600",
        "gpu uuid=GPU-m mem=40960 cc=8.0 mig=1",
        "gpu uuid=GPU-lost error=15",
        "mig gpu=1 uuid=MIG-a mem=19968 used=15 cc=8.0 gi=1",
        f"proc gpu=0 pid={os.getpid()} mem=90",
    )
    script = (
        "import json; from tflaunch.gpu_probe import Look;"
        "print(json.dumps(Look().uses(['GPU-a', 'MIG-a', 'GPU-lost', 'GPU-none'])))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **fleet.env}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert told["GPU-a"]["memory_used_bytes"] == 2048 << 20
    assert [process["pid"] for process in told["GPU-a"]["processes"]] == [os.getpid()]
    assert told["MIG-a"] == {"memory_used_bytes": 15 << 20, "processes": []}
    assert told["GPU-lost"] == {"error": "NVML: GPU is lost"}
    assert told["GPU-none"] == {"error": "NVML: Not Found"}


def test_a_run_takes_only_free_cards_and_masks_each_task(
    library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> None:
    # The hosts' python3 has no pynvml of its own: the launcher sends it.
    busy = Fleet(
        library, tmp_path / "busy", "gpu uuid=GPU-a0 mem=16384 used=9000", "gpu uuid=GPU-a1 mem=16384"
    )
    free = Fleet(library, tmp_path / "free", "gpu uuid=GPU-b0 mem=16384", "gpu uuid=GPU-b1 mem=16384")
    network.add(env=busy.env)
    network.add(env=free.env)
    script = launcher.script("import os\nprint('card', os.environ['CUDA_VISIBLE_DEVICES'] or 'none')\n")
    hostfile = launcher.hostfile(["host1", "host2"], gpus="auto")
    done = launcher.run("run", hostfile, script, "--ps", "1", "--done", "all", "--yes").ran()
    seen = dict(re.findall(r"^(\S+) +│ card (\S+)$", done.out, re.MULTILINE))
    assert seen == {"worker/0": "GPU-a1", "worker/1": "GPU-b0", "worker/2": "GPU-b1", "ps/0": "none"}

    refused = launcher.run("run", hostfile, script, "--workers", "4", "--ps", "0")
    assert refused.code == 65
    assert "need 4 GPUs" in refused.sentences
    assert "3 are free" in refused.sentences


# ---- leases


@pytest.fixture
def two_cards(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Path:
    """A hostfile of two hosts, one card each, and their common lease directory."""
    env = {"TFLAUNCH_LEASES": str(tmp_path / "leases")}
    for name in ("a", "b"):
        network.add(env={**Fleet(library, tmp_path / name, f"gpu uuid=GPU-{name} mem=16384").env, **env})
    return launcher.hostfile(["host1", "host2"], gpus="auto")


HOLD = """\
import os, time
print("has", os.environ["CUDA_VISIBLE_DEVICES"])
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""


def test_a_card_is_leased_for_as_long_as_its_run(launcher: Launcher, two_cards: Path, tmp_path: Path) -> None:
    trainer = launcher.script(HOLD)
    words = ("run", two_cards, trainer, "--ps=0", f"--env=GO={tmp_path / 'go'}")
    with launcher.start(*words, "--workers=1") as first:
        first.wait_for("has GPU-a")
        with launcher.start(*words, "--workers=1") as second:
            second.wait_for("has GPU-b")
            refused = launcher.run(*words, "--workers=1")
            assert refused.code == 65
            assert f"leased to {getpass.getuser()}'s run {first.run_id}" in refused.sentences
            planned = launcher.run(*words, "--dry-run")
            assert planned.code == 65, "a dry run sees leases, too"
            # The launcher and every agent of the first run die without a word: its card is free.
            first.signal(signal.SIGKILL)
            for process in launcher.leftovers(first.run_id):
                process.kill()
            with launcher.start(*words, "--workers=1") as third:
                third.wait_for("has GPU-a")
                (tmp_path / "go").touch()
                third.done().ran()
            second.done().ran()


@pytest.mark.parametrize("plant", ["link", "fifo", "directory"])
def test_what_somebody_planted_is_neither_followed_nor_waited_for(
    launcher: Launcher, two_cards: Path, tmp_path: Path, plant: str
) -> None:
    leases = tmp_path / "leases"
    leases.mkdir()
    target = tmp_path / "precious"
    target.write_text("mine")
    leases.chmod(0o1777)
    for name in ("GPU-a", "GPU-a.1", "GPU-a.2", "GPU-a.3"):
        trap = leases / name
        if plant == "link":
            trap.symlink_to(target)
        elif plant == "fifo":
            os.mkfifo(trap)
        else:
            trap.mkdir()
    (tmp_path / "go").touch()
    words = ("run", two_cards, launcher.script(HOLD), "--ps=0", f"--env=GO={tmp_path / 'go'}")
    done = launcher.run(*words, "--workers=1").ran()
    assert "has GPU-b" in done.out
    refused = launcher.run(*words, "--workers=2")
    assert refused.code == 65
    assert f"cannot be leased: {leases}/GPU-a is a {plant.replace('fifo', 'FIFO')} of" in refused.sentences
    remove = "rm -r" if plant == "directory" else "rm"
    assert f"he or root may: {remove} {leases}/GPU-a, and likewise under 3 other names" in refused.sentences
    (leases / "GPU-a.2").rmdir() if plant == "directory" else (leases / "GPU-a.2").unlink()
    assert {"has GPU-a", "has GPU-b"} <= set(
        re.findall(r"has \S+", launcher.run(*words, "--workers=2").ran().out)
    )
    assert target.read_text() == "mine"


def test_launchers_that_race_never_share_a_card(launcher: Launcher, two_cards: Path, tmp_path: Path) -> None:
    trainer = launcher.script(
        """\
        import fcntl, os, time
        lock = open(os.environ["OUT"] + "/" + os.environ["CUDA_VISIBLE_DEVICES"], "a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another task has this card now
        time.sleep(0.1)
        """
    )
    words = ("run", two_cards, trainer, "--ps=0", "--workers=2", f"--env=OUT={tmp_path}")
    for _ in range(5):
        running = [launcher.start(*words) for _ in range(3)]
        ends = [each.done() for each in running]
        # A loser is told that the cards are taken; no task ever meets another on its card.
        assert {end.code for end in ends} <= {0, 65}, ends
        assert 0 in {end.code for end in ends}, ends


def test_what_the_command_line_says_of_cards(
    library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> None:
    cards = [f"gpu uuid=GPU-{number} mem=81559 bus=0000:{number}0:00.0" for number in range(1, 5)]
    cards[0] += ' name="NVIDIA A100"'
    fleet = Fleet(library, tmp_path / "fleet", *cards, "nvlink 1 3 18")
    network.add(env={**fleet.env, "TFLAUNCH_LEASES": str(tmp_path / "leases")})
    trainer = launcher.script("import os\nprint('has', os.environ['CUDA_VISIBLE_DEVICES'])\n")
    words = ("run", launcher.hostfile(["host1"], gpus="auto"), trainer, "--ps=0", "--workers=1")
    assert "has GPU-1\n" in launcher.run(*words, "--gpu-model=a100").ran().out
    assert "has GPU-2,GPU-4\n" in launcher.run(*words, "--gpus-per-worker=2").ran().out
    excluded = launcher.run(*words, "--gpus-per-worker=2", "--exclude=host1:1").ran()
    assert "has GPU-3,GPU-4\n" in excluded.out, "of one model"
    refused = launcher.run(*words, "--min-gpu-memory=100GiB").ran(65)
    assert "less than 100 GiB (--min-gpu-memory)" in refused.sentences
    assert "not an amount of memory" in launcher.run(*words, "--min-gpu-memory=lots").ran(2).sentences


# ---- MIG instances


@pytest.fixture
def parted(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> tuple[str | Path, ...]:
    """`run` on a host with a whole card and one in four instances, one of them in use."""
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        'gpu uuid=GPU-w name="NVIDIA A100" mem=40960 cc=8.0',
        'gpu uuid=GPU-m name="NVIDIA A100" mem=40960 cc=8.0 mig=1',
        'mig gpu=1 uuid=MIG-big name="NVIDIA A100 MIG 3g.20gb" mem=19968 cc=8.0',
        *(f'mig gpu=1 uuid=MIG-{name} name="NVIDIA A100 MIG 1g.5gb" mem=4864 cc=8.0' for name in "abc"),
        "proc gpu=1 gi=3 pid=1 mem=1000",
    )
    network.add(env={**fleet.env, "TFLAUNCH_LEASES": str(tmp_path / "leases")})
    trainer = launcher.script(HOLD)
    return ("run", launcher.hostfile(["host1"], gpus="auto"), trainer, f"--env=GO={tmp_path / 'go'}")


def test_two_workers_get_two_instances_of_one_card(
    launcher: Launcher, parted: tuple[str | Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    done = launcher.run(*map(str, parted), "--mig", "1g.5gb", "--ps=1", "--done=all").ran()
    seen = dict(re.findall(r"^(\S+) +│ has ?(\S*)$", done.out, re.MULTILINE))
    assert seen == {"worker/0": "MIG-a", "worker/1": "MIG-b", "ps/0": ""}
    assert "2 workers  on host1  1 MIG instance each" in done.err

    planned = launcher.run(*map(str, parted), "--mig", "--ps=0", "--mix-models", "--dry-run").ran()
    rows = re.findall(r"^worker/[0-9] .* (\S+\.[0-9])$", planned.out, re.MULTILINE)
    assert rows == ["1.0", "1.1", "1.2"]
    data = launcher.run(*map(str, parted), "--mig=3g", "--ps=0", "--dry-run", "--json").ran().events
    (task,) = next(event for event in data if event["event"] == "plan")["tasks"]
    assert (task["gpus"], task["gpu_labels"]) == (["MIG-big"], ["1.0"])
    assert task["env"]["CUDA_VISIBLE_DEVICES"] == "MIG-big"


def test_whole_cards_are_taken_unless_instances_are_asked_for_or_named(
    launcher: Launcher, parted: tuple[str | Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    assert "has GPU-w\n" in launcher.run(*map(str, parted), "--ps=0").ran().out
    refused = launcher.run(*map(str, parted), "--ps=0", "--workers=3").ran(65)
    assert "4 busy: in MIG mode (--mig)" in refused.sentences
    assert "take the MIG instances of host1 with --mig" in refused.sentences
    refused = launcher.run(*map(str, parted), "--mig", "--ps=0", "--gpus-per-worker=2").ran(2)
    assert "--mig --gpus-per-worker 2: a process can use one MIG instance only" in refused.sentences
    launcher.hostfile(["host1"], gpus=[1.2, "MIG-a"])
    named = launcher.run(*map(str, parted), "--ps=0").ran().out
    assert sorted(re.findall(r"has (\S+)", named)) == ["MIG-a", "MIG-b"]
    only = launcher.run(*map(str, parted), "--mig", "--ps=0", "--include=host1:1.1").ran().out
    assert re.findall(r"has (\S+)", only) == ["MIG-a"]


def test_runs_share_the_instances_of_a_card_without_colliding(
    launcher: Launcher, parted: tuple[str | Path, ...], tmp_path: Path
) -> None:
    words = (*map(str, parted), "--mig", "1g.5gb", "--ps=0", "--workers=1")
    with launcher.start(*words) as first, launcher.start(*words) as second:
        first.wait_for("has MIG-")
        second.wait_for("has MIG-")
        refused = launcher.run(*words).ran(65)
        for run in (first.run_id, second.run_id):
            assert f"leased to {getpass.getuser()}'s run {run}" in refused.sentences
        (tmp_path / "go").touch()
        has = [re.findall(r"has (\S+)", each.done().ran().out) for each in (first, second)]
    assert sorted(has) == [["MIG-a"], ["MIG-b"]]
    assert "has MIG-big\n" in launcher.run(*map(str, parted), "--mig=3g", "--ps=0").ran().out
