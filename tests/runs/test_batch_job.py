"""A run in a job of a batch system, whose nodes are reached by SSH."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lab import Gpus
from tests.support.launcher import Launcher
from tests.support.nvml import build
from tests.support.sshd import SshNetwork


def test_a_run_in_a_job_of_slurm_has_the_workers_and_gpus_of_the_job(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> None:
    lab = Gpus(build(tmp_path_factory.mktemp("nvml")), tmp_path, network, launcher)
    lab.add(4)
    lab.add(4)
    lab.let_end("it")
    job = {"SLURM_JOB_NODELIST": "host[1-2]", "SLURMD_NODENAME": "host1", "SLURM_TASKS_PER_NODE": "1,2"}
    job |= {"SLURM_JOB_GPUS": "1,3", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
    words = (
        "run",
        "slurm:",
        "--connection=ssh",
        lab.trainer,
        "--ps=0",
        f"--env=OUT={lab.out}",
        "--env=NAME=it",
    )
    done = launcher.run(*words, env=job).ran()  # the job has counted them: nobody is asked
    gpus_of = sorted(line.rpartition("has ")[2] for line in done.out.splitlines() if "has GPU" in line)
    assert gpus_of == ["GPU-11", "GPU-20", "GPU-21"]
    refused_ = launcher.run(*words, "--workers=4", env=job).ran(65)
    assert "they hold 3 workers" in refused_.sentences
    assert "SLURM_TASKS_PER_NODE=1,2 limits them" in refused_.sentences
    [run] = re.findall(r"^run (\S+)$", done.err, re.MULTILINE)
    launcher.run("clean", "--hosts=host[1-2]", run, "--yes").ran()
