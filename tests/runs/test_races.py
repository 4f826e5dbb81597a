"""Launchers that want the same GPUs at the same moment, again and again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.lab import Gpus, uuid
from tests.support.launcher import Launcher
from tests.support.nvml import build
from tests.support.sshd import SshNetwork

ROUNDS = 25
WAITING = 5  # each so many-th round they wait for each other

# A launcher that carries out one command line after another: it is imported only once.
RACER = """\
import json, sys
from tflaunch.cli import application
for line in sys.stdin:
    print(application()(json.loads(line), standalone_mode=False), flush=True)
"""

# Fails when anybody else has one of its GPUs at the same time.
PROVE = """\
import os, time
GPUs = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
paths = [os.path.join(os.environ["OUT"], GPU) for GPU in GPUs]
for path in paths:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
with open(os.path.join(os.environ["OUT"], "had"), "a") as file:
    file.write(" ".join([os.environ["NAME"], *GPUs]) + "\\n")
time.sleep(0.05)
for path in paths:
    os.unlink(path)
"""


@pytest.fixture
def gpus(tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Gpus:
    """Two hosts, one GPU each."""
    gpus = Gpus(build(tmp_path), tmp_path, network, launcher)
    gpus.add()
    gpus.add()
    return gpus


def test_two_launchers_race_and_no_gpu_is_ever_given_twice(gpus: Gpus) -> None:
    gpus.trainer = gpus.launcher.script(PROVE)
    errors = [gpus.out / f"errors-{name}" for name in "ab"]
    racers = []
    for path in errors:
        with path.open("w") as told:
            racers.append(
                subprocess.Popen(
                    [sys.executable, "-c", RACER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=told,
                    text=True,
                    env={**gpus.launcher.env(), "PYTHONPATH": str(ROOT)},
                    cwd=gpus.launcher.code,
                )
            )
    expected: Counter[str] = Counter()
    try:
        for number in range(ROUNDS):
            patient = number % WAITING == 0
            for racer, name in zip(racers, "ab", strict=True):
                words = [str(word) for word in gpus.words(f"{number}{name}", 2, "--quiet")]
                words[1:1] = ["-F", str(gpus.network.config), *(["--wait"] if patient else [])]
                assert racer.stdin is not None
                racer.stdin.write(json.dumps(words) + "\n")
                racer.stdin.flush()
            codes = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
            why = f"round {number}: {codes}\n" + "".join(path.read_text()[-3000:] for path in errors)
            assert set(codes) <= ({"0"} if patient else {"0", "65"}), why
            assert "0" in codes, why
            expected.update(f"{number}{name}" for name, code in zip("ab", codes, strict=True) if code == "0")
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    had = [line.split() for line in (gpus.out / "had").read_text().splitlines()]
    assert Counter(name for name, *_ in had) == Counter(dict.fromkeys(expected, 2)), "two tasks a run"
    for name in expected:
        assert sorted(gpu for each, *had_by in had if each == name for gpu in had_by) == [uuid(1), uuid(2)]
    assert gpus.tickets == []
