"""`tflaunch profile`: traces of real TensorFlow, asked for while it trains; other frameworks are left alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.frameworks import NO_KERAS
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# A ps that holds a variable, and a worker that changes it, as a classic trainer's.
PS = """
    import json, os, time
    import tensorflow as tf
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, (job, index) = tf.train.ClusterSpec(config["cluster"]), config["task"].values()
    if job == "ps":
        tf.distribute.Server(cluster, job_name=job, task_index=index).join()
    tf.config.experimental_connect_to_cluster(cluster, job_name=job, task_index=index)
    with tf.device("/job:ps/task:0"):
        total = tf.Variable(tf.zeros((100, 100)))
    @tf.function
    def step():
        total.assign_add(tf.matmul(total, total) + 1e-3)
    step()
    print("trains", flush=True)
    while True:
        step()
        time.sleep(0.01)
"""
MIRRORED = """
    import time
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = tf.Variable(tf.ones((64, 64)))
    @tf.function
    def step():
        def mine():
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.matmul(total, total))
        return strategy.run(mine)
    step()
    print("trains", flush=True)
    while True:
        step()
        time.sleep(0.01)
"""
# Rank 0 of a framework whose store a stranger's bytes might kill.
STORE = """
    import os, socket
    store = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    print("listens", flush=True)
    store.accept()
    print("a stranger called", flush=True)
"""


def xplane() -> ModuleType:
    """TensorFlow's own reader of traces, without TensorFlow, which takes seconds to load."""
    place = importlib.util.find_spec("tensorflow")
    if place is None or place.origin is None:
        pytest.skip("no TensorFlow here")
    path = Path(place.origin).parent / "tsl" / "profiler" / "protobuf" / "xplane_pb2.py"
    spec = importlib.util.spec_from_file_location("xplane_pb2", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def events(trace: Path, reader: ModuleType) -> set[str]:
    """The names of the events in it, as TensorBoard's plug-in reads them."""
    space = reader.XSpace.FromString(trace.read_bytes())
    return {
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    }


def test_traces_of_a_ps_run_and_of_a_mirrored_one(
    launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    reader = xplane()
    host = network.add(options=["AllowTcpForwarding no"])
    hosts = launcher.hostfile([host.name], python=sys.executable, gpus=0, env=NO_KERAS)
    words = ("--workers=1", "--ps=1", "--detach", "--name=classic")
    launcher.run("run", hosts, launcher.script(PS, "ps.py"), *words).ran()
    with launcher.start(
        "run", hosts, launcher.script(MIRRORED, "mirrored.py"), "--workers=2", "--ps=0", "--name=mirrored"
    ) as mirrored:
        until(lambda: "trains" in launcher.run("logs", "classic", "worker/0").out, "the worker to train")
        mirrored.wait_for("trains", 2)

        done = launcher.run("profile", "classic", "--seconds=1").ran()
        (record,) = launcher.state.glob("classic-*")
        traces = sorted((record / "profile" / "plugins" / "profile").glob("*/*.xplane.pb"))
        assert [trace.name for trace in traces] == ["ps-0.xplane.pb", "worker-0.xplane.pb"]
        assert f"tensorboard --logdir {record / 'profile'}" in done.sentences
        on_ps, on_worker = (events(trace, reader) for trace in traces)
        assert any("MatMul" in name for name in on_ps), on_ps
        assert on_worker

        there = tmp_path / "logs"
        launcher.run("profile", "mirrored", "worker/1", "--seconds=1", "--to", there).ran()
        (trace,) = there.glob("plugins/profile/*/*.xplane.pb")
        assert trace.name == "worker-1.xplane.pb"
        assert any("Collective" in name for name in events(trace, reader))

        launcher.run("stop", "mirrored").ran()
        mirrored.end()
    refused = launcher.run("profile", "mirrored").ran(2)
    assert "no task of mirrored-" in refused.sentences
    launcher.run("stop", "classic").ran()


def test_another_framework_is_left_alone(launcher: Launcher) -> None:
    words = (launcher.local(1), launcher.script(STORE), "--workers=1", "--framework=torch")
    with launcher.start("run", *words) as run:
        run.wait_for("listens")
        done = launcher.run("profile").ran(69)
        assert "worker/0: no TensorFlow server answers at its port" in done.sentences
        assert "tflaunch stacks trainer-" in done.sentences
        assert "a stranger called" not in launcher.run("logs").out
        run.interrupt()
        run.end()
    launcher.wait_until_nothing_is_left()
