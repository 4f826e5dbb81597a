"""A trainer for a hyper-parameter search: one process with flags, which prints what it is measured by.

`tflaunch sweep` runs it once for each set of values, as many at a time as there are GPUs, and compares the losses:

    tflaunch sweep hosts.yaml examples/hyperparameters.py --metric loss --retries 1 \
        --grid lr=1,0.3,0.1 --grid layers=1,2,3

`--random lr=0.01..1.0:log --random layers=1..3 --trials 20` draws them instead.  Nothing in here knows of tflaunch: the
values come as flags, `--lr=0.3 --layers=2`, and the metric is the key `loss` of the last line that is a JSON object.

Each trial has a working directory of its own, which it writes checkpoints into.  One that fails, or whose launcher
dies, goes on from there if it comes to the same host again; on another one it begins anew, unless `--train_dir` names a
directory on a disk that all hosts see: `-- --train_dir '/data/search/{trial}'`.

The data are two interleaved half moons, which no straight line can part; the metric is the loss on points that the
trial was not trained on.
"""

import argparse
import itertools
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--lr", type=float, default=0.3, help="learning rate (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="hidden layers (%(default)s)")
    parser.add_argument("--units", type=int, default=16, help="of each hidden layer (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="end at this step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="points in a step (%(default)s)")
    parser.add_argument("--checkpoint_steps", type=int, default=100, help="between two (%(default)s)")
    parser.add_argument(
        "--train_dir",
        default="train",
        help="where checkpoints are written, and resumed from (%(default)s, in the working directory)",
    )
    return parser.parse_args(argv)


def moons(rng, count):
    """Draw `count` points: x (count, 2) and which moon each is of (count, 1), float32."""
    angle = rng.uniform(0, np.pi, count)
    label = rng.integers(0, 2, count)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x = np.where(label[:, None] == 1, np.array([1.0, 0.5]) - x, x) + rng.normal(0, 0.1, (count, 2))
    return x.astype(np.float32), label[:, None].astype(np.float32)


class Network(tf.Module):
    """Dense layers with tanh, and one output: the logit of the second moon."""

    def __init__(self, layers, units):
        super().__init__()
        sizes = [2, *[units] * layers, 1]
        draw = tf.random.Generator.from_seed(1)
        self.weights = [
            (tf.Variable(draw.normal([rows, columns]) / rows**0.5), tf.Variable(tf.zeros([columns])))
            for rows, columns in itertools.pairwise(sizes)
        ]

    def __call__(self, x):
        *hidden, (last, bias) = self.weights
        for weight, offset in hidden:
            x = tf.tanh(x @ weight + offset)
        return x @ last + bias


def main():
    flags = parse_flags()
    network = Network(flags.layers, flags.units)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(network=network, step=step)
    manager = tf.train.CheckpointManager(checkpoint, flags.train_dir, max_to_keep=2)
    if manager.restore_or_initialize():
        print(f"resumes at step {step.numpy()}", flush=True)

    def loss_of(x, y):
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, network(x)))

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        variables = network.trainable_variables
        for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
            variable.assign_sub(flags.lr * gradient)
        step.assign_add(1)

    unseen = moons(np.random.default_rng(0), 1000)

    def tell_and_save():
        print(json.dumps({"step": int(step), "loss": float(loss_of(*unseen))}), flush=True)
        manager.save(checkpoint_number=step)

    while step < flags.steps:
        train(*moons(np.random.default_rng(1 + step.numpy()), flags.batch_size))
        if step % flags.checkpoint_steps == 0 and step < flags.steps:
            tell_and_save()
    tell_and_save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
