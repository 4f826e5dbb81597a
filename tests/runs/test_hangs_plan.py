"""Runs of real TensorFlow that do not keep to the plan, are not ready, or have lost a peer: what is said of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.test_hangs import Impatient
from tests.support.frameworks import WITHOUT_KERAS
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# TensorFlow takes long to begin on a busy machine.
pytestmark = pytest.mark.timeout(300)

BEGINS = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, job, index = config["cluster"], config["task"]["type"], config["task"]["index"]
if os.environ["TFLAUNCH_TASK"] == os.environ.get("LATE"):
    print("prepares its data")
    time.sleep(3600)
import tensorflow as tf
v1 = tf.compat.v1
"""
GRAPH = """
v1.disable_eager_execution()
if job == "ps":
    v1.train.Server(cluster, job_name=job, task_index=index).join()
server = v1.train.Server(cluster, job_name=job, task_index=index)
chief, workers = index == 0, len(cluster["worker"])
with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster))):
    step = v1.train.get_or_create_global_step()
    weight = v1.get_variable("weight", [])
    optimizer = v1.train.SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(0.1), workers, workers)
    train = optimizer.minimize(weight * weight, global_step=step)
hooks = [optimizer.make_session_run_hook(chief, num_tokens=0)]
with v1.train.MonitoredTrainingSession(server.target, chief, hooks=hooks) as session:
    for number in range(20 if index else 10 ** 6):  # one shard is short
        session.run(train)
        time.sleep(0.02)
    print("its data has ended", flush=True)
    os._exit(0)
"""
OWN_ADDRESSES = """
v1.disable_eager_execution()
if job == "ps":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cluster["ps"] = ["127.0.0.1:%d" % free.getsockname()[1]]
server = v1.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()
with v1.device("/job:ps/task:0"):
    v1.train.get_or_create_global_step()
v1.train.MonitoredTrainingSession(server.target, True)
"""
MIRRORED = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("has its strategy", flush=True)
"""


@pytest.fixture
def impatient(tmp_path: Path, network: SshNetwork) -> Iterator[Impatient]:
    made = Impatient(tmp_path, network)
    made.wait_s = 10.0
    yield made
    made.close()


def told(impatient: Impatient, program: str, words: tuple[str, ...], pattern: str) -> None:
    """Run it until a sentence fits."""
    script = impatient.script(BEGINS + program)
    with impatient.start("run", impatient.local(2), script, *words, "--grace=1", WITHOUT_KERAS) as running:
        until(lambda: re.search(pattern, running.err), pattern, 200.0)
        running.interrupt()
        running.done()


def test_a_ps_whose_program_has_addresses_of_its_own(impatient: Impatient) -> None:
    words = ("--ps=1", "--workers=1", "--threshold=other_port_s=5")
    pattern = r"ps/0 on local\d listens on \d+, not on \d+, its port in this run; worker/0 waits"
    told(impatient, OWN_ADDRESSES, words, pattern)


def test_the_survivor_of_a_shard_that_ends_early(impatient: Impatient) -> None:
    words = ("--ps=1", "--workers=2")
    pattern = (
        r"worker/0 on local\d has done nothing for \d+ s, since worker/1 on local\d ended with 0 \d+ s ago"
    )
    told(impatient, GRAPH, words, pattern)


def test_a_mirrored_worker_that_starts_late(impatient: Impatient) -> None:
    words = ("--ps=0", "--workers=2", "--env=LATE=worker/1")
    pattern = r"worker/1 on local\d has not opened its port for \d+ s \(.*see its log for what it does before"
    told(impatient, MIRRORED, words, pattern)
