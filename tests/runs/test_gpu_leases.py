"""GPUs and MIG instances that runs take, over SSH; NVML is simulated."""

from __future__ import annotations

import getpass
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tests.support.nvml import Fleet
from tests.support.sshd import SshNetwork


def test_a_run_takes_only_free_gpus_and_masks_each_task(
    library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> None:
    # The hosts' python3 has no pynvml of its own: the launcher sends it.
    busy = Fleet(
        library, tmp_path / "busy", "gpu uuid=GPU-a0 mem=16384 used=9000", "gpu uuid=GPU-a1 mem=16384"
    )
    free = Fleet(library, tmp_path / "free", "gpu uuid=GPU-b0 mem=16384", "gpu uuid=GPU-b1 mem=16384")
    network.add(env=busy.env)
    network.add(env=free.env)
    script = launcher.script("import os\nprint('GPU', os.environ['CUDA_VISIBLE_DEVICES'] or 'none')\n")
    hostfile = launcher.hostfile(["host1", "host2"], gpus="auto")
    done = launcher.run("run", hostfile, script, "--ps", "1", "--done", "all", "--yes").ran()
    seen = dict(re.findall(r"^(\S+) +│ GPU (\S+)$", done.out, re.MULTILINE))
    assert seen == {"worker/0": "GPU-a1", "worker/1": "GPU-b0", "worker/2": "GPU-b1", "ps/0": "none"}

    refused = launcher.run("run", hostfile, script, "--workers", "4", "--ps", "0")
    assert refused.code == 65
    assert "need 4 GPUs" in refused.sentences
    assert "3 are free" in refused.sentences


# ---- leases


@pytest.fixture
def two_gpus(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Path:
    """A hostfile of two hosts, one GPU each, and their common lease directory."""
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


def test_a_gpu_is_leased_for_as_long_as_its_run(launcher: Launcher, two_gpus: Path, tmp_path: Path) -> None:
    trainer = launcher.script(HOLD)
    words = ("run", two_gpus, trainer, "--ps=0", f"--env=GO={tmp_path / 'go'}")
    with launcher.start(*words, "--workers=1") as first:
        first.wait_for("has GPU-a")
        with launcher.start(*words, "--workers=1") as second:
            second.wait_for("has GPU-b")
            refused = launcher.run(*words, "--workers=1")
            assert refused.code == 65
            assert f"leased to {getpass.getuser()}'s run {first.run_id}" in refused.sentences
            planned = launcher.run(*words, "--dry-run")
            assert planned.code == 65, "a dry run sees leases, too"
            # The launcher and every agent of the first run die without a word: its GPU is free.
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
    launcher: Launcher, two_gpus: Path, tmp_path: Path, plant: str
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
    words = ("run", two_gpus, launcher.script(HOLD), "--ps=0", f"--env=GO={tmp_path / 'go'}")
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


def test_launchers_that_race_never_share_a_gpu(launcher: Launcher, two_gpus: Path, tmp_path: Path) -> None:
    trainer = launcher.script(
        """\
        import fcntl, os, time
        lock = open(os.environ["OUT"] + "/" + os.environ["CUDA_VISIBLE_DEVICES"], "a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another task has this GPU now
        time.sleep(0.1)
        """
    )
    words = ("run", two_gpus, trainer, "--ps=0", "--workers=2", f"--env=OUT={tmp_path}")
    for _ in range(5):
        running = [launcher.start(*words) for _ in range(3)]
        ends = [each.done() for each in running]
        # A loser is told that the GPUs are taken; no task ever meets another on its GPU.
        assert {end.code for end in ends} <= {0, 65}, ends
        assert 0 in {end.code for end in ends}, ends


def test_what_the_command_line_says_of_gpus(
    library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> None:
    gpus = [f"gpu uuid=GPU-{number} mem=81559 bus=0000:{number}0:00.0" for number in range(1, 5)]
    gpus[0] += ' name="NVIDIA A100"'
    fleet = Fleet(library, tmp_path / "fleet", *gpus, "nvlink 1 3 18")
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
    """`run` on a host with a whole GPU and one in four instances, one of them in use."""
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


def test_two_workers_get_two_instances_of_one_gpu(
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


def test_whole_gpus_are_taken_unless_instances_are_asked_for_or_named(
    launcher: Launcher, parted: tuple[str | Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    assert "has GPU-w\n" in launcher.run(*map(str, parted), "--ps=0").ran().out
    refused = launcher.run(*map(str, parted), "--ps=0", "--workers=3").ran(65)
    assert "4 left out: in MIG mode (--mig)" in refused.sentences
    assert "take the MIG instances of host1 with --mig" in refused.sentences
    refused = launcher.run(*map(str, parted), "--mig", "--ps=0", "--gpus-per-worker=2").ran(2)
    assert "--mig --gpus-per-worker 2: a process can use one MIG instance only" in refused.sentences
    launcher.hostfile(["host1"], gpus=[1.2, "MIG-a"])
    named = launcher.run(*map(str, parted), "--ps=0").ran().out
    assert sorted(re.findall(r"has (\S+)", named)) == ["MIG-a", "MIG-b"]
    only = launcher.run(*map(str, parted), "--mig", "--ps=0", "--include=host1:1.1").ran().out
    assert re.findall(r"has (\S+)", only) == ["MIG-a"]


def test_runs_share_the_instances_of_a_gpu_without_colliding(
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
