"""In-graph replication: one client builds one graph for all workers, which are bare servers.

The task `chief/0` is the client.  It puts the variables on the parameter server and one copy of the model, a tower,
on every worker, averages the gradients of all towers, and runs each step as one session call.  The workers and the
ps run a TensorFlow server and no line of the model.  Choose it for programs that place the parts of one graph by
hand, as model_parallel.py does; with many workers the one client becomes the bottleneck, and between-graph
replication (async_ps.py, sync_replicas.py) does not.

    tflaunch run hostfiles/local.yaml examples/in_graph.py --chief --ps 1 --workers 2 --done chief --no-flags

Only the client ends by itself (`--done chief`); all tasks know who they are from TF_CONFIG (`--no-flags`).

With `--restarts 3 --restart cluster` the run survives failures: every task is part of every step, so all start again,
and go on from the last checkpoint.

The data are points of a noisy plane in ten dimensions.  The client ends with an error if the loss has not fallen.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000, help="end at this step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="points of each worker in a step (%(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where the client writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(rng, count):
    """Draw `count` points of the plane: x (count, DIMENSIONS) and y (count,), float32."""
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return x.astype(np.float32), y.astype(np.float32)


class Tower:
    """The model on one worker; the variables, created by the first tower, are on the parameter servers."""

    def __init__(self, cluster, worker, optimizer):
        setter = v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{worker}")
        with v1.device(setter), v1.variable_scope("model", reuse=v1.AUTO_REUSE):
            self.x = v1.placeholder(tf.float32, [None, DIMENSIONS])
            self.y = v1.placeholder(tf.float32, [None])
            slope = v1.get_variable("slope", [DIMENSIONS], initializer=v1.zeros_initializer())
            height = v1.get_variable("height", [], initializer=v1.zeros_initializer())
            guess = tf.linalg.matvec(self.x, slope) + height
            self.loss = tf.reduce_mean(tf.math.squared_difference(guess, self.y))
            self.variables = [slope, height]
            self.gradients = [
                gradient for gradient, _ in optimizer.compute_gradients(self.loss, self.variables)
            ]

    def feed(self, batch):
        x, y = batch
        return {self.x: x, self.y: y}


def train(flags, server, cluster):
    """Train until step `--steps`; returns the exit code."""
    optimizer = v1.train.GradientDescentOptimizer(flags.learning_rate)
    towers = [Tower(cluster, worker, optimizer) for worker in range(cluster.num_tasks("worker"))]
    with v1.device("/job:ps/task:0"):
        step = v1.train.get_or_create_global_step()
        means = [
            tf.reduce_mean(tf.stack(same), axis=0)
            for same in zip(*(t.gradients for t in towers), strict=True)
        ]
        update = optimizer.apply_gradients(zip(means, towers[0].variables, strict=True), global_step=step)

    run = os.environ.get("TFLAUNCH_RUN")
    # The same directory whenever the client starts again, on the same host.
    train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    resumed = tf.train.latest_checkpoint(train_dir) is not None
    print(f"{'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)

    rng = np.random.default_rng()
    held_out = towers[0].feed(points(np.random.default_rng(0), 1000))
    session = v1.train.MonitoredTrainingSession(
        master=server.target,
        checkpoint_dir=train_dir,
        # The default has each ps write its part of the checkpoint on its own host.
        scaffold=v1.train.Scaffold(saver=v1.train.Saver(sharded=False)),
        save_checkpoint_steps=flags.checkpoint_steps,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
    with session:
        now, first = session.run([step, towers[0].loss], held_out)
        last = first
        print(f"step {now}  loss {first:.4f}", flush=True)
        while now < flags.steps:
            feeds = {}
            for tower in towers:
                feeds.update(tower.feed(points(rng, flags.batch_size)))
            session.run(update, feeds)
            now = session.run(step)
            if now % flags.checkpoint_steps == 0 or now >= flags.steps:
                last = session.run(towers[0].loss, held_out)
                print(f"step {now}  loss {last:.4f}", flush=True)

    print(f"final loss {last:.4f} (first {first:.4f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    job = config["task"]["type"]
    server = v1.train.Server(cluster, job_name=job, task_index=config["task"]["index"])
    if job != "chief":
        server.join()  # until it is stopped
    return train(flags, server, cluster)


if __name__ == "__main__":
    # The client builds the graph of all; eager execution has no sessions.
    with tf.Graph().as_default():
        sys.exit(main())
