"""The probe on the real pynvml above a simulated NVML library, directly and as a run sees it over SSH."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launcher import Launcher
from tests.nvml import Fleet, build
from tests.sshd import SshNetwork

PROBE = """
import json, sys
from tflaunch import gpu_probe
print(json.dumps(gpu_probe.gpus()))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated library."""
    return build(tmp_path_factory.mktemp("nvml"))


def probe(fleet: Fleet | None) -> tuple[list[dict[str, Any]], str, str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(fleet.env if fleet else {})}
    result = subprocess.run(
        [sys.executable, "-c", PROBE], env=env, check=True, capture_output=True, text=True
    )
    cards, note, lacks = json.loads(result.stdout)
    return cards, note, lacks


def test_a_host_without_a_driver_has_no_cards() -> None:
    assert probe(None) == ([], "", "")


def test_what_each_card_is_and_why_it_must_not_be_taken(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-free mem=81559 used=4',
        "gpu uuid=GPU-used mem=16384 used=2048",
        "gpu uuid=GPU-mine mem=16384 used=100",
        "gpu uuid=GPU-off mem=16384 mode=2",
        "gpu uuid=GPU-lost mem=16384 error=15",
        f"proc gpu=2 pid={os.getpid()} mem=90",
    )
    cards, note, lacks = probe(fleet)
    assert (note, lacks) == ("", "")
    assert cards[0] == {
        "index": 0,
        "uuid": "GPU-free",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 81559 << 20,
        "memory_used_bytes": 4 << 20,
        "busy": "",
    }
    reasons = [card["busy"] for card in cards]
    assert reasons[1] == "2.0 GiB in use by a process that is not visible here"
    assert reasons[2].startswith("in use by ")
    assert f"pid {os.getpid()}" in reasons[2]
    assert "PROHIBITED" in reasons[3]
    assert "lost" in reasons[4].lower()


@pytest.mark.parametrize(("code", "word"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_does_not_answer_is_a_fact_of_the_host(
    library: Path, tmp_path: Path, code: int, word: str
) -> None:
    cards, note, lacks = probe(Fleet(library, tmp_path / "fleet", f"init_error {code}", "gpu mem=1"))
    assert (cards, lacks) == ([], "")
    assert word.lower() in note.lower()


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
    done = launcher.run("run", hostfile, script, "--ps", "1", "--done", "all").ran()
    seen = dict(re.findall(r"^(\S+) +│ card (\S+)$", done.out, re.MULTILINE))
    assert seen == {"worker/0": "GPU-a1", "worker/1": "GPU-b0", "worker/2": "GPU-b1", "ps/0": "none"}

    refused = launcher.run("run", hostfile, script, "--workers", "4", "--ps", "0")
    assert refused.code == 65
    assert "need 4 GPUs" in refused.sentences
    assert "3 are free" in refused.sentences
