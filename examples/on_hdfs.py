"""Data and checkpoints on HDFS, by hdfs-native: TensorFlow itself knows no `hdfs://` any more.

Synchronous workers, as in multi_worker_mirrored.py.  Worker i of n reads every n-th TFRecord file of `--data_dir`: each
is copied to the local disk when its turn comes, and removed when it is read.  Worker 0 writes checkpoints to
`--train_dir`, whole or not at all, and all workers go on from the newest.

    tflaunch run yarn:2,memory=4g examples/on_hdfs.py --ps 0 --workers 2 --no-flags --grace 2 --restarts 3 -- \
        --data_dir hdfs:///user/ada/plane --train_dir hdfs:///user/ada/train

The hosts need `hdfs-native` beside TensorFlow.  It reads Hadoop's configuration where HADOOP_CONF_DIR leads: YARN tells
its containers; over SSH, `--env HADOOP_CONF_DIR=/etc/hadoop/conf` does.  Any other file system of fsspec does as well:
directories without a scheme are on the local disk.

The data are noisy points of a plane in ten dimensions; each worker writes those of its files that are missing.
Each worker ends with an error if the loss has not fallen.
"""

import argparse
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import fsspec
import numpy as np
import tensorflow as tf

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--data_dir", required=True, help="where the TFRecord files are")
    parser.add_argument("--files", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--records", type=int, default=1000, help="in each file (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="end at this step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="of each worker (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument("--train_dir", required=True, help="where checkpoints are written, and resumed from")
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


class Data:
    """TFRecord files in a directory of any file system that fsspec knows; each worker reads its own."""

    def __init__(self, directory, files):
        self.system, self.directory = fsspec.core.url_to_fs(directory)
        self.files = [f"{self.directory}/plane-{number:05d}.tfrecord" for number in range(files)]

    def write_missing(self, worker, workers, records):
        """Write those of this worker's files that are missing, each whole or not at all."""
        self.system.makedirs(self.directory, exist_ok=True)
        for path in self.files[worker::workers]:
            if self.system.exists(path):
                continue
            with tempfile.TemporaryDirectory() as near:
                local = f"{near}/new.tfrecord"
                with tf.io.TFRecordWriter(local) as writer:
                    for point in points(self.files.index(path) + 1, records):
                        writer.write(tf.io.serialize_tensor(point).numpy())
                self.system.put_file(local, f"{path}.new")
            self.system.mv(f"{path}.new", path)

    def dataset(self, worker, workers):
        """The points in this worker's files, again and again: float32, DIMENSIONS + 1 each, the last of them y."""

        def local_copies():
            for path in self.files[worker::workers]:
                with tempfile.TemporaryDirectory() as near:
                    local = f"{near}/copy.tfrecord"
                    self.system.get_file(path, local)
                    yield local  # it is asked for the next one when this one is read

        def parse(record):
            return tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [DIMENSIONS + 1])

        names = tf.data.Dataset.from_generator(local_copies, output_signature=tf.TensorSpec([], tf.string))
        return names.flat_map(tf.data.TFRecordDataset).map(parse).repeat()


class Checkpoints:
    """Checkpoints in a directory of any file system that fsspec knows, of which the newest are kept."""

    def __init__(self, checkpoint, directory, keep=3):
        self.checkpoint, self.keep = checkpoint, keep
        self.system, self.directory = fsspec.core.url_to_fs(directory)

    def steps(self):
        """The steps of which there are checkpoints, the newest last."""
        if not self.system.exists(self.directory):
            return []
        names = [path.rstrip("/").rpartition("/")[2] for path in self.system.ls(self.directory, detail=False)]
        return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))

    def save(self, step):
        """Write a checkpoint: by its name of `step-N`, it is there as a whole, or not at all."""
        new = f"{self.directory}/new-{step}"
        with tempfile.TemporaryDirectory() as near:
            self.checkpoint.write(f"{near}/checkpoint")
            self.system.makedirs(new, exist_ok=True)  # one that a worker was killed in may be there
            self.system.put(f"{near}/", f"{new}/", recursive=True)
        self.system.mv(new, f"{self.directory}/step-{step}")
        for old in self.steps()[: -self.keep]:
            self.system.rm(f"{self.directory}/step-{old}", recursive=True)

    def restore(self, step):
        """Give all variables the values of that checkpoint."""
        with tempfile.TemporaryDirectory() as near:
            self.system.get(f"{self.directory}/step-{step}/", f"{near}/", recursive=True)
            self.checkpoint.read(f"{near}/checkpoint").assert_consumed()


def points(seed, count):
    """`count` points of the plane, float32 (count, DIMENSIONS + 1), the last column y; the same for the same seed."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return np.column_stack([x, y]).astype(np.float32)


class Model(tf.Module):
    """A plane.  What is assigned to its variables is first averaged over all workers."""

    def __init__(self):
        super().__init__()
        mean = tf.VariableAggregation.MEAN
        self.slope = tf.Variable(tf.zeros([DIMENSIONS]), aggregation=mean)
        self.height = tf.Variable(0.0, aggregation=mean)

    def loss(self, batch):
        guess = tf.linalg.matvec(batch[:, :-1], self.slope) + self.height
        return tf.reduce_mean(tf.math.squared_difference(guess, batch[:, -1]))


def train(flags, strategy, worker, workers):
    """Train until step `--steps`; returns the exit code."""
    with strategy.scope():
        model = Model()
    data = Data(flags.data_dir, flags.files)
    data.write_missing(worker, workers, flags.records)

    @tf.function
    def train_step(iterator):
        """One step; returns its loss, averaged over all workers."""

        def replica_step(batch):
            with tf.GradientTape() as tape:
                loss = model.loss(batch)
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(flags.learning_rate * gradient)
            return loss

        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    checkpoints = Checkpoints(tf.train.Checkpoint(model=model), flags.train_dir)
    # No worker writes before all have come to the first step: so all find the same.
    resumed = max(checkpoints.steps(), default=0)
    if resumed:
        checkpoints.restore(resumed)
    print(f"{f'resumes at step {resumed} from' if resumed else 'writes to'} {flags.train_dir}", flush=True)

    held_out = points(0, 1000)
    first = float(model.loss(held_out))

    def read(context):
        """The batches of this worker."""
        part = data.dataset(context.input_pipeline_id, context.num_input_pipelines)
        return part.shuffle(1000).batch(flags.batch_size)

    batches = iter(strategy.distribute_datasets_from_function(read))
    for step in range(resumed + 1, flags.steps + 1):
        loss = train_step(batches)
        if step % flags.checkpoint_steps == 0 or step == flags.steps:
            print(f"step {step}  loss of the batch {float(loss):.4f}", flush=True)
            if worker == 0:
                checkpoints.save(step)

    last = float(model.loss(held_out))
    print(f"final loss {last:.6f} (first {first:.6f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    print(f"worker {resolver.task_id} of {workers}", flush=True)
    return train(flags, strategy, resolver.task_id, workers)


if __name__ == "__main__":
    sys.exit(main())
