"""The example, as a newcomer runs it: real TensorFlow, by hand and through `tflaunch run`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.frameworks import NO_KERAS

EXAMPLE = ROOT / "examples" / "async_ps.py"
TFLAUNCH = [sys.executable, "-c", "import sys; from tflaunch.cli import main; sys.exit(main())"]


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Ports that TensorFlow may join (TF_GRPC_REUSE_PORT) and nobody else can take."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket(socket.AF_INET6))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("::", 0))
            ports.append(holder.getsockname()[1])
        yield ports


class ByHand:
    """One ps and one worker, each a process of its own."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.directory = directory
        self.hosts = [f"--ps_hosts=localhost:{ports[0]}", f"--worker_hosts=localhost:{ports[1]}"]
        self.env = {**os.environ, **NO_KERAS, "TF_GRPC_REUSE_PORT": "true", "CUDA_VISIBLE_DEVICES": ""}
        self.ps = self.start("ps")

    def start(self, job: str, *arguments: str) -> subprocess.Popen[str]:
        # stderr of the worker is part of what the test sees; the ps writes little.
        return subprocess.Popen(
            [sys.executable, EXAMPLE, *self.hosts, f"--job_name={job}", "--task_index=0", *arguments],
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE if job == "worker" else None,
            stderr=subprocess.STDOUT if job == "worker" else None,
            text=True,
        )

    def train(self, *arguments: str) -> str:
        """Run the worker to its end; returns what it printed."""
        with self.start("worker", *arguments) as worker:
            try:
                output, _ = worker.communicate()
            finally:
                worker.kill()
        assert worker.returncode == 0, output
        return output


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    with held_ports(2) as ports:
        cluster = ByHand(tmp_path, ports)
        try:
            yield cluster
        finally:
            cluster.ps.kill()
            cluster.ps.wait()


def losses(output: str) -> tuple[float, float]:
    """The first and the final loss, as the chief printed them."""
    line = next(line for line in output.splitlines() if line.startswith("final loss"))
    final, first = line.removeprefix("final loss ").rstrip(")").split(" (first ")
    return float(first), float(final)


def test_by_hand_it_learns_and_a_second_start_resumes(by_hand: ByHand) -> None:
    first, final = losses(by_hand.train("--steps=200", "--train_dir=here"))
    assert 0.6 < first < 0.8  # a coin toss between two classes: ln 2
    assert final < 0.9 * first
    assert (by_hand.directory / "here" / "checkpoint").exists()

    output = by_hand.train("--steps=220", "--train_dir=here")
    assert "resumes from" in output
    assert "worker/0 step     0" not in output
    assert losses(output)[0] == final  # every variable came back

    by_hand.ps.terminate()  # as tflaunch does when the workers are done
    by_hand.ps.wait()


def test_without_tensorflow_it_says_which_python_lacks_it(tmp_path: Path) -> None:
    lacking = subprocess.run(
        [sys.executable, "-I", "-S", EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert lacking.returncode == 1
    assert f"{sys.executable} has no module" in lacking.stderr
    assert "Traceback" not in lacking.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--ps_hosts=", "--worker_hosts=a:1"], "--ps_hosts is '': this trainer needs at least one ps"),
        (["--ps_hosts=a:1", "--worker_hosts=b:1"], "--task_index is 1, but --worker_hosts lists 1"),
    ],
)
def test_a_cluster_that_cannot_work_is_refused(flags: list[str], sentence: str) -> None:
    refused = subprocess.run(
        [sys.executable, EXAMPLE, *flags, "--job_name=worker", "--task_index=1"],
        env={**os.environ, **NO_KERAS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert sentence in refused.stderr


def marked(run_id: str) -> list[str]:
    """The processes on this machine that carry the run's mark."""
    mark = f"TFLAUNCH_RUN={run_id}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_tflaunch_trains_it_on_four_hosts_and_leaves_nothing(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts.yaml"
    hostfile.write_text(
        f"defaults: {{connection: local, gpus: 0, run_dir: {tmp_path / 'hosts'}}}\nhosts: ['local[1-4]']\n"
    )
    run = subprocess.run(
        [*TFLAUNCH, "run", hostfile, EXAMPLE, "--ps=2", "--workers=2", "--json", "--", "--steps=400"],
        cwd=ROOT,
        env={**os.environ, **NO_KERAS, "TFLAUNCH_STATE": str(tmp_path / "runs")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    events: list[dict[str, Any]] = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, run.stdout
    report = events[-1]
    assert (report["event"], report["status"]) == ("report", "succeeded")

    chief = "\n".join(
        event["line"] for event in events if event.get("task") == "worker/0" and "line" in event
    )
    first, final = losses(chief)
    assert final < 0.9 * first

    exits = {exit["task"]: exit for exit in report["exits"]}
    assert sorted(exits) == ["ps/0", "ps/1", "worker/0", "worker/1"]
    assert len({exit["host"] for exit in exits.values()}) == 4
    assert [exits[task]["code"] for task in ("worker/0", "worker/1")] == [0, 0]
    assert [exits[task]["stopped"] for task in ("ps/0", "ps/1")] == [True, True]
    assert not report["survivors"]
    assert not report["unverified"]
    assert marked(report["run_id"]) == []
