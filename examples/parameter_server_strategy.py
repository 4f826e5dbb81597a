"""Asynchronous training with parameter servers in TensorFlow 2: `ParameterServerStrategy`.

One coordinator, the task `chief/0`, runs the program: it creates the variables on the parameter servers and hands
out steps to the workers, which run a `tf.distribute.Server` and nothing else.  Choose it for what async_ps.py is
for, in new programs: a slow or lost worker holds up nobody.

    tflaunch run hostfiles/local.yaml examples/parameter_server_strategy.py \
        --chief --ps 1 --workers 2 --done chief --no-flags

Only the coordinator ends by itself (`--done chief`); all tasks know who they are from TF_CONFIG (`--no-flags`).

With `--restarts 3 --restart ps=cluster,chief=cluster,worker=task` the run survives failures.  The coordinator gives
the steps of a lost worker to the others, and the worker serves again when it is back.  The coordinator does not
survive the loss of a parameter server: then, or when it fails itself, all start again, and go on from the last
checkpoint.

The data are points of a noisy plane in ten dimensions.  The coordinator ends with an error if the loss has not
fallen.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=2000, help="end at this step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=32, help="points in a step (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where the coordinator writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=200, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(seed, count):
    """Endless batches of `count` points: x (count, DIMENSIONS) and y (count,), float32; drawn anew without a seed."""
    slope = tf.range(1, DIMENSIONS + 1, dtype=tf.float32) / DIMENSIONS

    def draw(key):
        x = tf.random.stateless_normal([count, DIMENSIONS], key)
        return x, tf.linalg.matvec(x, slope) + tf.random.stateless_normal([count], key + 1, stddev=NOISE)

    return tf.data.Dataset.random(seed).batch(2).map(draw)


class Model(tf.Module):
    """A plane.  Its variables are created where the strategy says: on the parameter servers, in turn."""

    def __init__(self):
        super().__init__()
        self.slope = tf.Variable(tf.zeros([DIMENSIONS]))
        self.height = tf.Variable(0.0)

    def loss(self, x, y):
        guess = tf.linalg.matvec(x, self.slope) + self.height
        return tf.reduce_mean(tf.math.squared_difference(guess, y))


def coordinate(flags, resolver):
    """Train until step `--steps`; returns the exit code."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Model()
        step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train_step(iterator):
        """One asynchronous step, on whichever worker it is given to."""

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = model.loss(x, y)
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(flags.learning_rate * gradient)

        strategy.run(replica_step, args=next(iterator))

    # Without an io_device each ps would write its part on its own host.  The coordinator writes all of them.
    options = tf.train.CheckpointOptions(experimental_io_device="/job:chief")
    run = os.environ.get("TFLAUNCH_RUN")
    # The same directory whenever the coordinator starts again, on the same host.
    train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, step=step), train_dir, max_to_keep=3
    )
    if manager.latest_checkpoint:
        manager.checkpoint.restore(manager.latest_checkpoint, options=options).assert_consumed()
    resumed = int(step)
    print(
        f"{f'resumes at step {resumed} from' if resumed else 'writes to'} {Path(train_dir).resolve()}",
        flush=True,
    )

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    # Each worker runs this function for itself: its batches are its own.
    batches = iter(coordinator.create_per_worker_dataset(lambda: points(None, flags.batch_size)))

    held_out = next(iter(points(0, 1000)))
    first = last = float(model.loss(*held_out))
    while step < flags.steps:
        amount = min(flags.checkpoint_steps, flags.steps - int(step))
        for _ in range(amount):
            coordinator.schedule(train_step, args=(batches,))
        coordinator.join()  # until all of them are done; those of a lost worker, too
        step.assign_add(amount)
        manager.save(checkpoint_number=int(step), options=options)
        last = float(model.loss(*held_out))
        print(f"step {int(step)}  loss {last:.4f}", flush=True)

    print(f"final loss {last:.4f} (first {first:.4f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()  # until it is stopped
    return coordinate(flags, resolver)


if __name__ == "__main__":
    sys.exit(main())
