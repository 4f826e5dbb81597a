"""The examples of TensorFlow's distributed patterns: real TensorFlow, each by its one `tflaunch run` line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import ROOT
from tests.support.frameworks import NO_KERAS
from tests.support.sshd import SshNetwork, make_key

EXAMPLES = ROOT / "examples"
TFLAUNCH = [sys.executable, "-c", "import sys; from tflaunch.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Run:
    """What one `tflaunch run` told, event by event."""

    code: int
    events: list[dict[str, Any]]

    def output(self, task: str) -> str:
        """All that the task printed."""
        return "\n".join(
            event["line"] for event in self.events if event.get("task") == task and "line" in event
        )

    def codes(self) -> dict[str, int | None]:
        """The exit code of each task; None for one that was stopped when the work was done."""
        report = self.events[-1]
        assert report["event"] == "report"
        return {exit["task"]: None if exit["stopped"] else exit["code"] for exit in report["exits"]}


def launch(
    directory: Path, example: str, options: str, *arguments: str, kill: tuple[str, str, str] | None = None
) -> Run:
    """Run an example on three hosts with an sshd each, on every one in a working directory of its own.

    `kill` is (task, line, other): once `task` has printed a line that begins so, `other` is killed.
    """
    place = directory / f"network-{len(list(directory.glob('network-*')))}"
    place.mkdir()
    network = SshNetwork(place, make_key(directory / "id_ed25519"))
    hosts = ", ".join(network.add().name for _ in range(3))
    hostfile = directory / "hosts.yaml"
    settings = (
        f"gpus: 0, run_dir: {directory / 'hosts'}, python: {sys.executable}, env: {json.dumps(NO_KERAS)}"
    )
    hostfile.write_text(f"defaults: {{{settings}}}\nhosts: [{hosts}]\n")
    words = ["run", "-F", network.config, hostfile, EXAMPLES / example, *options.split(), "--json"]
    events = []
    with (
        contextlib.closing(network),
        subprocess.Popen(
            [*TFLAUNCH, *words, "--", *arguments],
            cwd=ROOT,
            env={**os.environ, "TFLAUNCH_STATE": str(directory / "runs")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        assert run.stdout
        for line in run.stdout:
            event = json.loads(line)
            events.append(event)
            if kill and event.get("task") == kill[0] and event.get("line", "").startswith(kill[1]):
                os.kill(pid_of(directory, kill[2]), signal.SIGKILL)
                kill = None
    assert not kill
    report = events[-1]
    assert not report["survivors"], events
    assert not report["unverified"], events
    return Run(run.returncode, events)


def pid_of(directory: Path, task: str) -> int:
    """The process of a task of the run below `directory`."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            mine = f"TFLAUNCH_TASK={task}".encode() in (process / "environ").read_bytes().split(b"\0")
            if mine and (process / "cwd").resolve().is_relative_to(directory):
                return int(process.name)
    raise AssertionError(f"{task} does not run")


def losses(output: str) -> tuple[float, float]:
    """The first and the final loss, as the example printed them."""
    # Not from the beginning of a line: a thread of TensorFlow may be in the middle of one.
    found = re.search(r"final loss (\S+) \(first (\S+)\)$", output, re.MULTILINE)
    assert found, output
    return float(found[2]), float(found[1])


def test_sync_replicas_starts_again_from_its_checkpoint_and_resumes(tmp_path: Path) -> None:
    options = "--ps 1 --workers 2 --timeout 300 --ps-grace 0"
    arguments = [f"--train_dir={tmp_path / 'train'}", "--checkpoint_steps=20"]
    run = launch(
        tmp_path,
        "sync_replicas.py",
        f"{options} --restarts 1 --restart cluster",
        *arguments,
        "--steps=300",
        kill=("worker/0", "gradient 60,", "worker/1"),
    )
    chief = run.output("worker/0")
    assert run.code == 0, chief
    assert run.codes() == {"ps/0": None, "worker/0": 0, "worker/1": 0}
    untrained = re.findall(r"^step 0  loss (\S+)$", chief, re.MULTILINE)
    assert len(untrained) == 1
    assert "resumes from" in chief
    first, final = losses(chief)
    assert final < first < float(untrained[0])

    # Now a step can do without one of them.
    again = launch(
        tmp_path,
        "sync_replicas.py",
        options,
        *arguments,
        "--backup_workers=1",
        "--steps=310",
    )
    chief = again.output("worker/0")
    assert again.code == 0, chief
    assert again.codes() == {"ps/0": None, "worker/0": 0, "worker/1": 0}
    assert losses(chief)[0] == final


def test_parameter_server_strategy_survives_the_loss_of_a_worker_and_resumes(tmp_path: Path) -> None:
    options = "--chief --ps 1 --workers 2 --done chief --no-flags --timeout 300 --ps-grace 0"
    run = launch(
        tmp_path,
        "parameter_server_strategy.py",
        f"{options} --restarts 1 --restart ps=cluster,chief=cluster,worker=task",
        "--train_dir=train",
        "--steps=1000",
        kill=("chief/0", "step 200 ", "worker/1"),
    )
    chief = run.output("chief/0")
    assert run.code == 0, chief
    assert run.codes()["chief/0"] == 0
    assert chief.count("writes to") == 1  # the coordinator did not start again
    first, final = losses(chief)
    assert final < 0.1 * first
    # The tasks have a working directory each: the coordinator wrote all, also what the ps holds.
    (train,) = (tmp_path / "hosts").glob("**/train")
    assert list(train.glob("ckpt-1000.data*"))

    again = launch(
        tmp_path,
        "parameter_server_strategy.py",
        options.replace("2", "1"),
        f"--train_dir={train}",
        "--steps=1010",
    )
    chief = again.output("chief/0")
    assert again.code == 0, chief
    assert "resumes at step 1000" in chief
    assert losses(chief)[0] == final


def test_mirrored_ps_is_synchronous_on_a_machine_and_asynchronous_between_them(tmp_path: Path) -> None:
    options = "--ps 1 --workers 2 --no-flags --grace 2"
    flags = ("--steps=300", "--checkpoint_steps=100", "--replicas=2")
    run = launch(tmp_path, "mirrored_ps.py", options, *flags)
    assert run.code == 0
    assert run.codes() == {"ps/0": None, "worker/0": 0, "worker/1": 0}
    made = 0
    for number in range(2):
        output = run.output(f"worker/{number}")
        assert f"worker/{number} trains on 2 devices in step" in output
        found = re.search(rf"^worker/{number} made (\d+) of the 300 steps$", output, re.MULTILINE)
        assert found, output
        made += int(found[1])
    assert 300 <= made <= 301  # a worker may be in a step when the other makes the last one
    first, last = losses(run.output("worker/0"))
    assert last < first / 5


def test_multi_worker_mirrored_agrees_on_a_checkpoint_that_all_workers_have(tmp_path: Path) -> None:
    options = "--ps 0 --workers 2 --no-flags --grace 2 --timeout 300"
    train = tmp_path / "train"
    run = launch(
        tmp_path,
        "multi_worker_mirrored.py",
        options,
        f"--train_dir={train}",
        "--steps=100",
        "--checkpoint_steps=50",
    )
    assert run.code == 0, run.output("worker/0")
    assert run.codes() == {"worker/0": 0, "worker/1": 0}
    first, final = losses(run.output("worker/0"))
    assert final < 0.1 * first
    assert losses(run.output("worker/1")) == (first, final)  # the copies of the variables are the same

    # As if worker/1 had been lost between step 50 and 100.
    state = train / "worker-1" / "checkpoint"
    lines = state.read_text().splitlines()
    lines.remove('all_model_checkpoint_paths: "ckpt-100"')
    lines.remove([line for line in lines if line.startswith("all_model_checkpoint_timestamps")][-1])
    state.write_text("\n".join(lines).replace("ckpt-100", "ckpt-50"))
    again = launch(tmp_path, "multi_worker_mirrored.py", options, f"--train_dir={train}", "--steps=120")
    assert again.code == 0, again.output("worker/0")
    for task in ("worker/0", "worker/1"):
        assert "resumes at step 50" in again.output(task)
        assert final < losses(again.output(task))[0] < first


def test_batch_inference_does_each_file_once_and_goes_on_where_it_failed(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    subprocess.run(
        [sys.executable, EXAMPLES / "batch_inference.py", "--demo", demo],
        env={**os.environ, **NO_KERAS},
        check=True,
    )
    outputs = demo / "out"
    arguments = [f"--model={demo / 'model'}", f"--inputs={demo / 'in'}/*.npy", f"--outputs={outputs}"]
    bad = demo / "in" / "007.npy"
    good = bad.read_bytes()
    bad.write_bytes(good[:100])

    options = "--ps 0 --workers 2 --no-flags --timeout 300"
    run = launch(tmp_path, "batch_inference.py", options, *arguments)
    assert run.code == 1  # worker/1 has the odd files
    assert str(bad) in run.output("worker/1")
    assert not (outputs / bad.name).exists()

    before = {path: path.stat().st_mtime_ns for path in outputs.iterdir()}
    assert all(re.fullmatch(r"\d{3}\.npy", path.name) for path in before)
    bad.write_bytes(good)
    again = launch(tmp_path, "batch_inference.py", options.replace("2", "1"), *arguments)
    assert again.code == 0, again.output("worker/0")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert sorted(path.name for path in outputs.iterdir()) == [f"{number:03d}.npy" for number in range(20)]
    for output in outputs.iterdir():
        rows = np.load(demo / "in" / output.name)
        np.testing.assert_allclose(np.load(output), (rows * rows).sum(axis=1), rtol=1e-5)


def test_in_graph_one_client_trains_on_bare_servers_and_resumes(tmp_path: Path) -> None:
    options = "--chief --ps 1 --workers 2 --done chief --no-flags --timeout 300 --ps-grace 0"
    run = launch(tmp_path, "in_graph.py", options, "--train_dir=train", "--steps=150")
    chief = run.output("chief/0")
    assert run.code == 0, chief
    assert run.codes() == {"ps/0": None, "worker/0": None, "worker/1": None, "chief/0": 0}
    first, final = losses(chief)
    assert final < 0.1 * first
    (train,) = (tmp_path / "hosts").glob("**/train")  # each task has a working directory of its own

    again = launch(tmp_path, "in_graph.py", options.replace("2", "1"), f"--train_dir={train}", "--steps=160")
    assert again.code == 0, again.output("chief/0")
    assert losses(again.output("chief/0"))[0] == final


def test_model_parallel_runs_each_half_on_its_worker_and_resumes(tmp_path: Path) -> None:
    options = "--ps 0 --workers 2 --done chief --no-flags --timeout 300 --ps-grace 0"
    run = launch(tmp_path, "model_parallel.py", options, "--train_dir=train", "--steps=150")
    client = run.output("worker/0")
    assert run.code == 0, client
    assert run.codes() == {"worker/0": 0, "worker/1": None}
    # As TensorFlow's trace tells.
    assert re.findall(r"^layer(\d) runs on (\S+)$", client, re.MULTILINE) == [
        ("0", "worker/0"),
        ("1", "worker/0"),
        ("2", "worker/1"),
        ("3", "worker/1"),
    ]
    first, final = losses(client)
    assert final < 0.5 * first
    # The tasks have a working directory each: worker/0 wrote all, also what worker/1 holds.
    (train,) = (tmp_path / "hosts").glob("**/train")

    again = launch(tmp_path, "model_parallel.py", options, f"--train_dir={train}", "--steps=160")
    client = again.output("worker/0")
    assert again.code == 0, client
    assert losses(client)[0] == final


def test_sharded_input_is_read_once_also_when_a_worker_fails(tmp_path: Path) -> None:
    records = 8 * 250
    run = launch(
        tmp_path,
        "sharded_input.py",
        "--ps 1 --workers 2 --no-flags --timeout 300 --ps-grace 0 --restarts 1 --restart cluster",
        "--train_dir=train",
        "--records=250",
        "--checkpoint_steps=10",
        kill=("worker/0", "worker/0 has read 640 records", "worker/1"),
    )
    chief, other = run.output("worker/0"), run.output("worker/1")
    assert run.code == 0, chief
    assert run.codes() == {"ps/0": None, "worker/0": 0, "worker/1": 0}
    fresh, before = re.findall(r"^worker/0 of 2: (\d+) of 2000 records were", chief, re.MULTILINE)
    assert fresh == "0"
    assert 0 < int(before) <= records  # on a busy machine, all were read before the kill arrived
    assert "resumes from" in chief
    # What both have read since was not in the checkpoint; worker/1 may have begun when worker/0 counts.
    since = [int(re.findall(r"has read (\d+) records, all", output)[-1]) for output in (chief, other)]
    assert 0 < records - sum(since) <= int(before)
    assert f"each of {records} records was read once" in chief
    assert len(list((tmp_path / "hosts").glob("**/data/*-of-00008.tfrecord"))) == 2 * 8
    _, final = losses(chief)
    assert final < 0.02, "its floor is 0.01; what came before the kill may have been enough to learn all"


def test_the_evaluator_of_a_job_file_sees_the_last_checkpoint(tmp_path: Path) -> None:
    options = "--timeout 300 --job-grace evaluator=100"
    run = launch(tmp_path, "job.yaml", options, f"--train_dir={tmp_path / 'train'}", "--steps=200")
    evaluator = run.output("evaluator/0")
    assert run.code == 0, run.output("chief/0")
    assert run.codes() == {"chief/0": 0, "worker/0": 0, "evaluator/0": 0}
    assert "evaluator 0 of ['chief', 'worker']" in evaluator
    untrained = re.search(r"untrained (\S+)\)", evaluator)
    assert untrained, evaluator
    assert losses(evaluator)[1] < 0.1 * float(untrained[1])
    assert (tmp_path / "train" / "ckpt-200.index").exists()
