"""Model parallelism: one network, its first half of the layers on worker/0, the second half on worker/1.

Each half, with its variables, its gradients and their optimizer, is placed on its worker by `tf.device`; between
the two goes what the last layer of the first half puts out, and on the way back its gradient.  Choose it for a model
that does not fit into the memory of one machine or GPU.  It makes nothing faster: one half waits while the other
works.

    tflaunch run hostfiles/local.yaml examples/model_parallel.py --ps 0 --workers 2 --done chief --no-flags

There is no parameter server (`--ps 0`): each worker holds the variables of its own layers.  worker/0 is the client,
too; it builds the whole graph, and its end is the end of the run (`--done chief`).  The others are servers and run no
line of the model.  With more workers the layers are dealt out among all of them.  TF_CONFIG tells the tasks who they
are (`--no-flags`).

With `--restarts 3 --restart cluster` the run survives failures: without any of its parts the model is none, so all
start again, and go on from the last checkpoint, which worker/0 writes with the variables of all.

The data are points of the plane; those of opposite quadrants are of one class, which takes more than one layer to
learn.  The client ends with an error if the loss has not fallen.
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

WIDTHS = [2, 32, 32, 32, 2]  # of what goes into each layer, and of what comes out at last


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000, help="end at this step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="points in a step (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="of Adam (%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where worker/0 writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(rng, count):
    """Draw `count` points: float32 coordinates (count, 2) and int32 classes (count,), each 0 or 1."""
    x = rng.uniform(-1, 1, (count, 2))
    return x.astype(np.float32), (x[:, 0] * x[:, 1] > 0).astype(np.int32)


class Model:
    """The graph of the whole network; layer i of n is on worker i * workers // n."""

    def __init__(self, workers, learning_rate):
        layers = len(WIDTHS) - 1
        self.places = [f"/job:worker/task:{layer * workers // layers}" for layer in range(layers)]
        with tf.device(self.places[0]):
            self.x = flow = v1.placeholder(tf.float32, [None, WIDTHS[0]])
            self.step = v1.train.get_or_create_global_step()
        for layer, place in enumerate(self.places):
            with tf.device(place), v1.variable_scope(f"layer{layer}"):
                shape = WIDTHS[layer : layer + 2]
                kernel = v1.get_variable("kernel", shape, initializer=v1.glorot_uniform_initializer(layer))
                bias = v1.get_variable("bias", shape[1:], initializer=v1.zeros_initializer())
                flow = tf.add(tf.matmul(flow, kernel), bias, name="sums")
                if layer < layers - 1:
                    flow = tf.nn.relu(flow)
        with tf.device(self.places[-1]):
            self.label = v1.placeholder(tf.int32, [None])
            self.loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.label, logits=flow)
            )
        optimizer = v1.train.AdamOptimizer(learning_rate)
        # Without that, the gradients of all layers would be computed on one worker.
        gradients = optimizer.compute_gradients(self.loss, colocate_gradients_with_ops=True)
        self.train = optimizer.apply_gradients(gradients, global_step=self.step)

    def feed(self, batch):
        x, label = batch
        return {self.x: x, self.label: label}


def where_it_runs(session, model, batch):
    """The worker on which the sums of each layer were computed, as TensorFlow's trace of one step tells."""
    options, told = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), v1.RunMetadata()
    session.run(model.loss, model.feed(batch), options=options, run_metadata=told)
    ran = {}
    for device in told.step_stats.dev_stats:
        task = device.device.partition("/job:")[2].partition("/device:")[0].replace("/replica:0/task:", "/")
        for node in device.node_stats:
            layer = node.node_name.partition("/")[0]
            if layer.startswith("layer") and "MatMul" in node.node_name:
                ran[layer] = task
    return dict(sorted(ran.items()))


def train(flags, server, workers):
    """Train until step `--steps`; returns the exit code."""
    model = Model(workers, flags.learning_rate)
    run = os.environ.get("TFLAUNCH_RUN")
    # The same directory whenever the client starts again, on the same host.
    train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    resumed = tf.train.latest_checkpoint(train_dir) is not None
    print(f"{'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)

    rng = np.random.default_rng()
    held_out = points(np.random.default_rng(0), 1000)
    session = v1.train.MonitoredTrainingSession(
        master=server.target,
        checkpoint_dir=train_dir,
        # The default has each worker write its part of the checkpoint on its own host.
        scaffold=v1.train.Scaffold(saver=v1.train.Saver(sharded=False)),
        save_checkpoint_steps=flags.checkpoint_steps,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
    with session:
        for layer, task in where_it_runs(session, model, held_out).items():
            print(f"{layer} runs on {task}", flush=True)
        now, first = session.run([model.step, model.loss], model.feed(held_out))
        last = first
        print(f"step {now}  loss {first:.4f}", flush=True)
        while now < flags.steps:
            session.run(model.train, model.feed(points(rng, flags.batch_size)))
            now = session.run(model.step)
            if now % flags.checkpoint_steps == 0 or now >= flags.steps:
                last = session.run(model.loss, model.feed(held_out))
                print(f"step {now}  loss {last:.4f}", flush=True)

    print(f"final loss {last:.4f} (first {first:.4f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, index = tf.train.ClusterSpec(config["cluster"]), config["task"]["index"]
    server = v1.train.Server(cluster, job_name="worker", task_index=index)
    if index != 0:
        server.join()  # until it is stopped
    return train(flags, server, cluster.num_tasks("worker"))


if __name__ == "__main__":
    # The client builds the graph of all; eager execution has no sessions.
    with tf.Graph().as_default():
        sys.exit(main())
