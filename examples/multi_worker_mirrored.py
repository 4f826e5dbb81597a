"""Synchronous training without parameter servers: `MultiWorkerMirroredStrategy` with a loop of its own.

Every worker has a copy of all variables and a part of the data; each step averages the gradients of all workers
by a collective all-reduce.  Choose it for synchronous training on workers of one speed, above all with GPUs.

    tflaunch run hostfiles/local.yaml examples/multi_worker_mirrored.py --ps 0 --workers 2 --no-flags --grace 2

There must be no ps in the cluster (`--ps 0`), and TF_CONFIG tells each worker who it is (`--no-flags`).

When one worker fails, all others fail with it: with `--restarts 3` all start again, together, and go on from the
last checkpoint.  These programs ignore the request to end; the small `--grace` saves the wait.  Each worker keeps
checkpoints in a directory of its own, so that the hosts need share no disk; when they start, they agree on the
newest that all of them have.  (Should a worker move to another host, all begin anew, unless `--train_dir` is on a
disk that the hosts do share.)

The data are the points of a noisy plane in ten dimensions; each worker reads every n-th of them.  Each worker ends
with an error if the loss has not fallen.  The loop is written out because `fit` of Keras 3 does not support this
strategy.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square
POINTS = 4096


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000, help="end at this step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="points in a step, of all workers together (%(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where each worker writes checkpoints, and resumes from if all have one, in a directory of its own "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points():
    """All points of the plane: x (POINTS, DIMENSIONS) and y (POINTS,), float32; the same on every worker."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(POINTS, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, POINTS)
    return x.astype(np.float32), y.astype(np.float32)


class Model(tf.Module):
    """A plane.  What is assigned to its variables is first averaged over all replicas."""

    def __init__(self):
        super().__init__()
        mean = tf.VariableAggregation.MEAN
        self.slope = tf.Variable(tf.zeros([DIMENSIONS]), aggregation=mean)
        self.height = tf.Variable(0.0, aggregation=mean)

    def loss(self, x, y):
        guess = tf.linalg.matvec(x, self.slope) + self.height
        return tf.reduce_mean(tf.math.squared_difference(guess, y))


def newest_of_all(strategy, manager):
    """The newest step whose checkpoint every worker has; 0 if there is none."""
    mine = max((int(path.rpartition("-")[2]) for path in manager.checkpoints), default=0)
    newest = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([mine]))
    # When a worker fails, another may already have written the next checkpoint: the oldest of the newest it is.
    return int(tf.reduce_min(strategy.gather(newest, axis=0)))


def train(flags, strategy, worker):
    """Train until step `--steps`; returns the exit code."""
    with strategy.scope():
        model = Model()
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def read(context):
        """The part of the data that this worker reads."""
        part = tf.data.Dataset.from_tensor_slices(points())
        part = part.shard(context.num_input_pipelines, context.input_pipeline_id)
        part = part.shuffle(POINTS).repeat()
        return part.batch(context.get_per_replica_batch_size(flags.batch_size))

    @tf.function
    def train_step(iterator):
        """One step; returns its loss, averaged over all replicas."""

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = model.loss(x, y)
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(flags.learning_rate * gradient)
            return loss

        losses = strategy.run(replica_step, args=next(iterator))
        step.assign_add(1)
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    @tf.function
    def make_equal():
        """Average the copies of each variable: after two failures they may be of two attempts at the same step."""
        strategy.run(lambda: [variable.assign(variable) for variable in model.trainable_variables])

    run = os.environ.get("TFLAUNCH_RUN")
    # The same directory whenever the worker starts again, on the same host.
    train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, step=step),
        Path(train_dir).resolve() / f"worker-{worker}",
        max_to_keep=3,
    )
    if resumed := newest_of_all(strategy, manager):
        manager.checkpoint.restore(f"{manager.directory}/ckpt-{resumed}").assert_consumed()
        make_equal()
    print(f"{f'resumes at step {resumed} from' if resumed else 'writes to'} {manager.directory}", flush=True)

    everything = points()
    first = float(model.loss(*everything))
    batches = iter(strategy.distribute_datasets_from_function(read))
    for now in range(resumed + 1, flags.steps + 1):
        loss = train_step(batches)
        if now % flags.checkpoint_steps == 0 or now == flags.steps:
            manager.save(checkpoint_number=now)
            print(f"step {now}  loss of the batch {float(loss):.4f}", flush=True)

    last = float(model.loss(*everything))
    print(f"final loss {last:.6f} (first {first:.6f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    print(f"worker {resolver.task_id} of {len(resolver.cluster_spec().as_dict()['worker'])}", flush=True)
    return train(flags, strategy, resolver.task_id)


if __name__ == "__main__":
    sys.exit(main())
