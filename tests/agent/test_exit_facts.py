"""What the agent tells of its host with the end of a task that failed: real processes, with limits that are real."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

from tests.support.agent_over_pipes import Host, running, shell, task
from tflaunch.agent.tasks import oom_kills


def facts_of_end(host: Host, request: dict[str, Any]) -> dict[str, Any]:
    channel = host.open("start")
    host.watch(channel.wait("hello")["pid"])
    running(channel, request)
    ended = channel.wait("exit")
    facts = ended.fields.get("facts", {})
    channel.send("end", grace_s=0.0)
    channel.wait("swept")
    return dict(facts)


def test_an_end_in_order_has_no_facts(any_host: Host) -> None:
    assert facts_of_end(any_host, shell("exit 0")) == {}


FORKS = """
import os, sys, time
ready, told = os.pipe()
if os.fork():
    os.read(ready, 1)
    os._exit(0)
os.setsid()
os.write(told, b"x")
time.sleep(600)
"""


RESTORED = "INFO:tensorflow:Restoring parameters from /out/model.ckpt-1000"


def test_a_checkpoint_that_is_at_its_last_step(any_host: Host) -> None:
    channel = any_host.open("start")
    any_host.watch(channel.wait("hello")["pid"])
    scripts = {
        "worker/0": (f"echo '{RESTORED}'", "--train_steps=1000"),
        "worker/1": (f"echo '{RESTORED}'", "--max-steps", "900"),
        "worker/2": (f"echo '{RESTORED}'; echo step 1200 loss 0.1", "--train_steps=1000"),
        "worker/3": (
            f"echo 'INFO:tensorflow:Saving checkpoints for 0 into /out'; echo '{RESTORED}'",
            "--steps=1000",
        ),
        "worker/4": (f"echo '{RESTORED}'", "--train_steps=2000"),
        "worker/5": (f"echo '{RESTORED}'", "--train_steps=1000", "--mode=eval"),
        "ps/0": (f"echo '{RESTORED}'", "--train_steps=1000"),
    }
    running(channel, *(task("/bin/sh", "-c", *words, id=name) for name, words in scripts.items()))
    ends = [channel.wait("exit") for _ in scripts]
    left = {end["task"]: end.fields.get("facts", {}).get("nothing_left") for end in ends}
    assert {name: each for name, each in left.items() if each} == {
        "worker/0": [1000, "--train_steps 1000"],
        "worker/1": [1000, "--max-steps 900"],
    }
    channel.send("end", grace_s=0.0)
    channel.wait("swept")


def test_a_program_that_says_itself_what_it_goes_on_from(any_host: Host) -> None:
    channel = any_host.open("start")
    any_host.watch(channel.wait("hello")["pid"])
    scripts = {
        # As in PyTorch's ImageNet example, a loop of Keras, one that tells both, and one with iterations.
        "worker/0": ("=> loaded checkpoint 'checkpoint.pth.tar' (epoch 90)", "--epochs", "90"),
        "worker/1": ("Resuming from epoch 5", "--num_train_epochs=5"),
        "worker/2": ("Restored ckpt at epoch 3, step 1000", "--max-steps=1000"),
        "worker/3": ("Resumed at iteration: 700", "--train-iters=700"),
        # Which name no end, name another, or go on.
        "worker/4": ("Resuming from epoch 4", "--epochs=5"),
        "worker/5": ("Resuming from epoch 5", "--steps=5"),
        "worker/6": ("Resuming from step 1000", "--save_steps=100", "--steps_per_epoch=10"),
        "worker/7": ("Resuming from epoch 5\nEpoch 6/10", "--epochs=5"),
        "worker/8": ("Loading data of epoch 5", "--epochs=5"),
        "worker/9": ("Loading pretrained checkpoint, step 100000", "--steps=1000"),
    }
    prints = 'printf "%b\\n" "$0"'
    running(channel, *(task("/bin/sh", "-c", prints, *words, id=name) for name, words in scripts.items()))
    ends = [channel.wait("exit") for _ in scripts]
    left = {end["task"]: end.fields.get("facts", {}).get("nothing_left") for end in ends}
    assert {name: each for name, each in left.items() if each} == {
        "worker/0": [90, "--epochs 90"],
        "worker/1": [5, "--num_train_epochs 5"],
        "worker/2": [1000, "--max-steps 1000"],
        "worker/3": [700, "--train-iters 700"],
    }
    channel.send("end", grace_s=0.0)
    channel.wait("swept")


def test_a_program_that_goes_to_the_background(any_host: Host, tmp_path: Path) -> None:
    program, other = tmp_path / "train.py", tmp_path / "other.py"
    program.write_text(FORKS)
    other.write_text("import subprocess; subprocess.Popen(['sleep', '600'])")
    channel = any_host.open("start")
    any_host.watch(channel.wait("hello")["pid"])
    by_a_shell = shell(f"{sys.executable} {program} & wait $!; exit 0", id="worker/1")
    with_a_helper = task(sys.executable, str(other), id="worker/2")
    running(channel, task(sys.executable, str(program)), by_a_shell, with_a_helper)
    ends = [channel.wait("exit") for _ in range(3)]
    left = {end["task"]: end.fields.get("facts", {}).get("left_running", []) for end in ends}
    assert [len(left[f"worker/{number}"]) for number in range(3)] == [1, 1, 0]
    assert re.fullmatch(r"pid \d+ python\S*", left["worker/0"][0])
    channel.send("end", grace_s=0.0)
    channel.wait("swept")


def test_after_a_reset_the_peers_are_called_again(any_host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (server, shut)]
        endpoints = [*(f"127.0.0.1:{port}" for port in ports), "127.0.0.1:1"]
        config = {
            "cluster": {"ps": endpoints[:2], "worker": endpoints[2:]},
            "task": {"type": "worker", "index": 0},
        }
        says = "echo UnavailableError: recvmsg: Connection reset by peer; exit 1"
        facts = facts_of_end(any_host, shell(says, env={"TF_CONFIG": json.dumps(config)}))
    assert facts["dialled"] == [["127.0.0.1", ports[0], "open"], ["127.0.0.1", ports[1], "refused"]]


def test_a_failure_tells_the_limits_and_what_was_left(any_host: Host) -> None:
    facts = facts_of_end(any_host, shell("ulimit -n 77; exec false"))
    assert facts["open_files"] == 77, "the program's own limit, though it ended at once"
    assert facts["oom_kills"] == facts["oom_kills_cgroup"] == 0
    assert facts["memory_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    shm = os.statvfs("/dev/shm")
    assert facts["shm_bytes"] == shm.f_blocks * shm.f_frsize
    assert {disk["path"] for disk in facts["disks"]} & {"/tmp", str(any_host.directory / "work")}
    assert not {"cpu", "dialled", "left_running"} & facts.keys()


def test_the_peak_of_memory_is_that_of_the_program(any_host: Host) -> None:
    program = "x = bytearray(150 << 20); import os; os.kill(os.getpid(), 9)"
    facts = facts_of_end(any_host, task(sys.executable, "-c", program))
    assert 150 << 20 < facts["peak_bytes"] < 600 << 20


def test_an_unknown_instruction_tells_the_processor(any_host: Host) -> None:
    facts = facts_of_end(any_host, shell("kill -ILL $$"))
    known = Path("/proc/cpuinfo").read_text().split()
    assert facts["cpu"] == [word for word in facts["cpu"] if word in known]
    assert ("avx2" in facts["cpu"]) == ("avx2" in known)


def test_the_packages_are_those_of_the_tasks_python(any_host: Host) -> None:
    facts = facts_of_end(any_host, task(sys.executable, "-c", "raise SystemExit(1)"))
    import tensorflow.version  # the environment of the tests has it

    assert facts["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert facts["packages"]["tensorflow"] == tensorflow.version.VERSION


def test_a_package_of_pythonpath_hides_that_of_the_python(any_host: Host, tmp_path: Path) -> None:
    (tmp_path / "tensorflow-1.15.5.dist-info").mkdir()
    program = task(sys.executable, "-c", "raise SystemExit(1)", env={"PYTHONPATH": f"/nowhere:{tmp_path}"})
    assert facts_of_end(any_host, program)["packages"]["tensorflow"] == "1.15.5"


def test_counters_of_the_kernel_are_read() -> None:
    counters = oom_kills.counters()
    told = Path("/proc/vmstat").read_text().split()
    assert counters["host"] == int(told[told.index("oom_kill") + 1])
    assert Path(oom_kills.cgroup()).is_dir() or Path(oom_kills.cgroup(old="memory")).is_dir()


def test_files_that_nobody_serves_hold_no_end_up(any_host: Host, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    os.mkfifo(
        tmp_path / "venv" / "pyvenv.cfg"
    )  # who opens it waits for ever, as for a file server that is away
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    facts = facts_of_end(any_host, task(str(python)))
    assert facts["oom_kills"] == 0
    assert "disks" not in facts
