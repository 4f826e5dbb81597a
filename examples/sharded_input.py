"""Sharded input: each worker reads its own part of the TFRecord files, by its task index, with `tf.data`.

Worker i of n reads every n-th file, and all workers train one model, asynchronously, with parameter servers.  Choose
it for data that are too large to be read by every worker, or where each record is to count once.

    tflaunch run hostfiles/local.yaml examples/sharded_input.py --ps 1 --workers 2 --no-flags

All tasks know who they are, and how many, from TF_CONFIG (`--no-flags`).  The files are expected in `--data_dir`, on
each host; a worker writes those that are missing, with noisy points of a plane in ten dimensions.

The run is one pass over the data.  Which records it has learnt from is part of the model: a variable beside the
weights counts them in the same step, and so they come back together from a checkpoint.  With `--restarts 3 --restart
cluster` all tasks start again when one fails, and read what that checkpoint has not seen; a new run with the same
`--train_dir` on worker/0 does so, too, with however many workers.  At the end worker/0 makes sure that every record
was read exactly once, by whichever worker; it ends with an error if not, or if the loss has not fallen.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--data_dir",
        type=Path,
        default=Path("data"),
        help="where the TFRecord files are, on each host (%(default)s)",
    )
    parser.add_argument("--files", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--records", type=int, default=1000, help="in each file (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=16, help="records in a step (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.02, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where worker/0 writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(seed, count):
    """`count` points of the plane: x (count, DIMENSIONS) and y (count,), float32; the same for the same seed."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return x.astype(np.float32), y.astype(np.float32)


def data_files(flags):
    """The paths of all files, in order; those that are missing are written, each whole or not at all."""
    flags.data_dir.mkdir(parents=True, exist_ok=True)
    # With all that is in them in their names, none is taken for another.
    names = [f"plane-{flags.records}-{number:05d}-of-{flags.files:05d}" for number in range(flags.files)]
    paths = [flags.data_dir / f"{name}.tfrecord" for name in names]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        # The name tells apart what two workers write into a directory that they share.
        partial = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}")
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for index, (x, y) in enumerate(zip(*points(number + 1, flags.records), strict=True)):
                features = {
                    "id": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[number * flags.records + index])
                    ),
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                    "y": tf.train.Feature(float_list=tf.train.FloatList(value=[y])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        partial.replace(path)
    return [str(path) for path in paths]


def shard(paths, worker, workers, seen, batch_size):
    """This worker's part of the records, in batches, without those that were `seen` when it began."""
    format = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([DIMENSIONS], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.float32),
    }
    files = tf.data.Dataset.from_tensor_slices(paths).shard(workers, worker)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4).map(
        lambda record: tf.io.parse_single_example(record, format)
    )
    fresh = records.filter(lambda record: tf.equal(tf.gather(seen, record["id"]), 0))
    return fresh.shuffle(1000).batch(batch_size).prefetch(2)


class WorkerSession(v1.train.SessionCreator):
    """Waits for worker/0 to initialise the variables, and looks every second.

    MonitoredTrainingSession does the same for a worker, but looks every 30 seconds only.
    """

    def __init__(self, target, config, scaffold):
        self.target = target
        self.config = config
        self.scaffold = scaffold

    def create_session(self):
        self.scaffold.finalize()
        manager = v1.train.SessionManager(
            local_init_op=self.scaffold.local_init_op,
            ready_op=self.scaffold.ready_op,
            ready_for_local_init_op=self.scaffold.ready_for_local_init_op,
            recovery_wait_secs=1,
        )
        return manager.wait_for_session(self.target, config=self.config)


class Model:
    """The graph of one worker: its variables live on the parameter servers, its input and all else on the worker."""

    def __init__(self, flags, cluster, worker):
        workers, total = cluster.num_tasks("worker"), flags.files * flags.records
        own = f"/job:worker/task:{worker}"
        with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=own)):
            step = v1.train.get_or_create_global_step()
            self.seen = v1.get_variable("seen", [total], tf.int32, v1.zeros_initializer(), trainable=False)
            self.slope = v1.get_variable("slope", [DIMENSIONS], initializer=v1.zeros_initializer())
            self.height = v1.get_variable("height", [], initializer=v1.zeros_initializer())
            with v1.device(f"{own}/device:CPU:0"):
                part = shard(data_files(flags), worker, workers, tf.identity(self.seen), flags.batch_size)
                iterator = v1.data.make_initializable_iterator(part)
                # It begins when the variables are there, restored or not.
                v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
                batch = iterator.get_next()
            self.ids = batch["id"]
            self.held_out_loss = self.loss(*points(0, 1000))
            optimizer = v1.train.GradientDescentOptimizer(flags.learning_rate)
            learn = optimizer.minimize(self.loss(batch["x"], batch["y"]), global_step=step)
            # In one step: only a checkpoint that is taken in its midst can have the one without the other.
            self.train = tf.group(
                learn, v1.scatter_add(self.seen, self.ids, tf.ones_like(self.ids, tf.int32))
            )
            self.count = tf.reduce_sum(self.seen)

    def loss(self, x, y):
        return tf.reduce_mean(tf.math.squared_difference(tf.linalg.matvec(x, self.slope) + self.height, y))


def train(flags, server, cluster, worker):
    """Read this worker's records to their end; returns the exit code."""
    workers, total = cluster.num_tasks("worker"), flags.files * flags.records
    model = Model(flags, cluster, worker)
    # It talks to the parameter servers and to itself: it need not wait for workers that have finished.
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{worker}"])
    # The default has each ps write its part of the checkpoint on its own host.
    scaffold = v1.train.Scaffold(saver=v1.train.Saver(sharded=False))
    resumed = False
    if worker == 0:
        run = os.environ.get("TFLAUNCH_RUN")
        # The same directory whenever worker/0 starts again, on the same host.
        train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
        resumed = tf.train.latest_checkpoint(train_dir) is not None
        print(f"{'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)
        session = v1.train.MonitoredTrainingSession(
            master=server.target,
            checkpoint_dir=train_dir,
            scaffold=scaffold,
            config=config,
            save_checkpoint_steps=flags.checkpoint_steps,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        )
    else:
        # Lets worker/0 begin, so that its first loss is that of untrained variables.
        begun = v1.train.GlobalStepWaiterHook(1)
        session = v1.train.MonitoredSession(WorkerSession(server.target, config, scaffold), [begun])

    mine = steps = 0
    with session:
        first, before = session.run([model.held_out_loss, model.count])
        print(
            f"worker/{worker} of {workers}: {before} of {total} records were learnt from before", flush=True
        )
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                ids, _ = session.run([model.ids, model.train])
                mine += len(ids)
                steps += 1
                if steps % 20 == 0:
                    print(f"worker/{worker} has read {mine} records", flush=True)
        print(f"worker/{worker} has read {mine} records, all of its part", flush=True)
        if worker != 0:
            return 0
        while session.run(model.count) < total:
            time.sleep(0.1)
        times, last = session.run([model.seen, model.held_out_loss])
    if (times != 1).any():
        print(f"{(times != 1).sum()} records were not read exactly once", file=sys.stderr, flush=True)
        return 1
    print(f"each of {total} records was read once, by {workers} workers", flush=True)
    print(f"final loss {last:.4f} (first {first:.4f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print(
        "the loss did not fall: try more --records or a smaller --learning_rate", file=sys.stderr, flush=True
    )
    return 1


def main():
    flags = parse_flags()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    job, index = config["task"]["type"], config["task"]["index"]
    server = v1.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()  # until it is stopped
    return train(flags, server, cluster, index)


if __name__ == "__main__":
    # Between-graph programs build their own graphs; eager execution has no sessions.
    with tf.Graph().as_default():
        sys.exit(main())
