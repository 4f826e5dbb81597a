"""Synchronous training with an evaluator beside it: chief and workers train, the evaluator reads their checkpoints.

The evaluator is no part of the cluster: it has a TF_CONFIG, but nobody calls it, and it calls nobody.  Whenever
the chief has written a checkpoint, it computes the loss on points that nobody trains on.  Choose it when evaluation
takes long, so that the workers should not stand still for it, or when it needs no GPU.

    tflaunch run hostfiles/local.yaml examples/evaluator.py --ps 0 --workers 1 --chief --evaluator --no-flags \
        --grace 2 -- --train_dir /tmp/plane

`--train_dir` is on a disk that all hosts share; here they are one machine.  Where it is not, the evaluator sees no
checkpoint, says so every 20 seconds, and the run succeeds without it: nobody awaits its success.

When the training is done, the evaluator has 60 seconds (`--job-grace evaluator=TIME`) for the last checkpoint.  With
`--restarts 3`, an evaluator that fails starts again alone; after the failure of another task all others start again,
together, from the last checkpoint, and the evaluator goes on.
`--job-end evaluator=sidecar` lets the training go on without it.
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

DIMENSIONS = 10
WAIT_S = 20  # for a checkpoint, before the evaluator says that none comes
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=400, help="end at this step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="points of one worker (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument("--train_dir", required=True, help="for checkpoints, on a disk that all hosts share")
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(seed, count):
    """So many points of a noisy plane: x (count, DIMENSIONS) and y (count,), float32."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return x.astype(np.float32), y.astype(np.float32)


class Plane(tf.Module):
    """The model, and how many steps it has been trained for: what a checkpoint holds."""

    def __init__(self):
        super().__init__()
        self.slope = tf.Variable(tf.zeros([DIMENSIONS]), aggregation=tf.VariableAggregation.MEAN)
        self.step = tf.Variable(
            0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def loss(self, x, y):
        return tf.reduce_mean(tf.math.squared_difference(tf.linalg.matvec(x, self.slope), y))


def train(flags, chief):
    """What chief and workers do; only the chief writes checkpoints."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        plane = Plane()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(plane=plane), flags.train_dir, max_to_keep=5)
    manager.restore_or_initialize()
    done = int(plane.step.numpy())
    print(f"{'resumes' if done else 'begins'} at step {done}", flush=True)

    def read(context):
        """A worker's own points, drawn anew after a restart."""
        part = tf.data.Dataset.from_tensor_slices(points(1 + context.input_pipeline_id, 2048))
        return part.shuffle(2048).repeat().batch(flags.batch_size)

    @tf.function
    def train_step(iterator):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = plane.loss(x, y)
            plane.slope.assign_sub(flags.learning_rate * tape.gradient(loss, plane.slope))

        strategy.run(replica_step, args=next(iterator))
        plane.step.assign_add(1)

    batches = iter(strategy.distribute_datasets_from_function(read))
    for now in range(done + 1, flags.steps + 1):
        train_step(batches)
        if chief and (now % flags.checkpoint_steps == 0 or now == flags.steps):
            print(f"wrote {manager.save(checkpoint_number=now)}", flush=True)
    return 0


def evaluate(flags):
    """What the evaluator does, until it has seen the checkpoint of the last step."""
    plane, held_out, first = Plane(), points(0, 4096), None
    checkpoint = tf.train.Checkpoint(plane=plane)
    untrained = float(plane.loss(*held_out))

    def complain():
        """Says that nothing comes; on another host the chief writes where this process cannot see it."""
        where = f"{flags.train_dir} on {os.uname().nodename}"
        print(f"no checkpoint in {where} for {WAIT_S} s: is it on a disk that the chief shares?", flush=True)
        return False  # go on waiting

    paths = tf.train.checkpoints_iterator(flags.train_dir, timeout=WAIT_S, timeout_fn=complain)
    for path in paths:
        checkpoint.restore(path).expect_partial()
        loss = float(plane.loss(*held_out))
        first = loss if first is None else first
        print(f"step {int(plane.step)}  loss {loss:.4f} (untrained {untrained:.4f})", flush=True)
        if plane.step >= flags.steps:
            print(f"final loss {loss:.6f} (first {first:.6f})", flush=True)
            return 0
    return 1


def main():
    flags = parse_flags()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    print(f"{resolver.task_type} {resolver.task_id} of {sorted(resolver.cluster_spec().jobs)}", flush=True)
    if resolver.task_type == "evaluator":
        return evaluate(flags)
    return train(flags, chief=resolver.task_type == "chief")


if __name__ == "__main__":
    sys.exit(main())
