"""Synchronous training with parameter servers: between-graph, with `SyncReplicasOptimizer`.

As in async_ps.py, the parameter servers hold the variables and every worker builds the same graph.  But a step
averages one gradient of each worker, and all of them wait for it: the result is that of one worker with so many
times the batch.  Choose it for programs with sessions whose gradients must not be stale; choose
`MultiWorkerMirroredStrategy` (multi_worker_mirrored.py) for new programs, where the workers have one speed.

    tflaunch run hostfiles/local.yaml examples/sync_replicas.py --ps 1 --workers 3 -- --backup_workers 1

With back-up workers a step takes the first gradients that come and drops those of the slowest.

With `--restarts 3 --restart cluster` the run survives failures: all tasks start again together, and go on from the
last checkpoint.  To start only what failed is not enough here: the queues by which the workers wait for each other
are on a parameter server, and are closed when the chief stops.

The data are points of a noisy plane in ten dimensions, which each worker draws for itself.  The chief initialises
the variables, runs the queues by which the workers wait for each other, writes the checkpoints, and ends with an
error if the loss has not fallen.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

# Errors only: at 1, TensorFlow warns of "Local rendezvous is aborting" now and then though nothing is wrong.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.logging.set_verbosity(v1.logging.ERROR)  # the classic programs are full of deprecated names

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square


def parse_flags(argv=None):
    """Read the four flags of every distributed trainer, and this one's own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--ps_hosts", required=True, help="host:port of each ps, separated by commas")
    parser.add_argument("--worker_hosts", required=True, help="host:port of each worker, likewise")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"], help="this task's job")
    parser.add_argument("--task_index", required=True, type=int, help="this task's place in its list, from 0")
    parser.add_argument(
        "--backup_workers", type=int, default=0, help="gradients that a step can do without (0)"
    )
    parser.add_argument("--steps", type=int, default=1000, help="end at this global step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="points of each worker in a step (%(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where the chief writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    flags = parser.parse_args(argv)
    tasks = {"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")}
    for job, hosts in tasks.items():
        if not all(hosts):
            parser.error(f"--{job}_hosts is {','.join(hosts)!r}: this trainer needs at least one {job}")
    if not 0 <= flags.backup_workers < len(tasks["worker"]):
        parser.error(
            f"--backup_workers is {flags.backup_workers} of {len(tasks['worker'])} workers: one must count"
        )
    return flags, tasks


def points(rng, count):
    """Draw `count` points of the plane: x (count, DIMENSIONS) and y (count,), float32."""
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return x.astype(np.float32), y.astype(np.float32)


class Model:
    """The graph of one worker: its variables live on the parameter servers, all else on the worker."""

    def __init__(self, flags, workers):
        self.x = v1.placeholder(tf.float32, [None, DIMENSIONS], name="x")
        self.y = v1.placeholder(tf.float32, [None], name="y")
        self.step = v1.train.get_or_create_global_step()
        slope = v1.get_variable("slope", [DIMENSIONS], initializer=v1.zeros_initializer())
        height = v1.get_variable("height", [], initializer=v1.zeros_initializer())
        guess = tf.linalg.matvec(self.x, slope) + height
        self.loss = tf.reduce_mean(tf.math.squared_difference(guess, self.y))
        self.optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(flags.learning_rate),
            replicas_to_aggregate=workers - flags.backup_workers,
            total_num_replicas=workers,
        )
        self.train = self.optimizer.minimize(self.loss, global_step=self.step)
        # A worker begins its next step when it gets a token; each step hands out one for every worker.
        self.tokens = self.optimizer.get_init_tokens_op(workers)


class ChiefHook(v1.train.SessionRunHook):
    """Measures the loss before the first and after the last step; lets nobody wait for a chief that has ended."""

    def __init__(self, model):
        self.model = model
        self.held_out = dict(zip((model.x, model.y), points(np.random.default_rng(0), 1000), strict=True))
        self.first = self.last = None

    def after_create_session(self, session, coord):
        del coord
        step, loss = session.run([self.model.step, self.model.loss], self.held_out)
        print(f"step {step}  loss {loss:.4f}", flush=True)
        if self.first is None:
            self.first = loss

    def end(self, session):
        self.last = session.run(self.model.loss, self.held_out)
        # The queue runner ends with this session, perhaps before it has handed out the tokens of the last step.
        session.run(self.model.tokens)


def own_train_dir():
    """The directory of this run's checkpoints: the same whenever the chief starts again, on the same host."""
    run = os.environ.get("TFLAUNCH_RUN")
    return f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir=".")


class WorkerSession(v1.train.SessionCreator):
    """Waits for the chief, and looks every second; MonitoredTrainingSession looks every 30 seconds only."""

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


def train(flags, server, tasks):
    """Train until the global step is `--steps`; returns the exit code."""
    is_chief = flags.task_index == 0
    own = f"/job:worker/task:{flags.task_index}"
    with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(tasks), worker_device=own)):
        model = Model(flags, len(tasks["worker"]))
    sync = model.optimizer.make_session_run_hook(is_chief)  # the chief's queue runner, and the first tokens
    stop = v1.train.StopAtStepHook(last_step=flags.steps)
    # Without these filters a session would wait for every other worker, for ever if one has already finished.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    # The default has each ps write its part of the checkpoint on its own host.
    scaffold = v1.train.Scaffold(saver=v1.train.Saver(sharded=False))

    if is_chief:
        train_dir = flags.train_dir or own_train_dir()
        resumed = tf.train.latest_checkpoint(train_dir) is not None
        print(f"{'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)
        report = ChiefHook(model)  # before `sync`, which lets the training begin
        session = v1.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=True,
            checkpoint_dir=train_dir,
            scaffold=scaffold,
            hooks=[report, sync, stop],
            config=config,
            save_checkpoint_steps=flags.checkpoint_steps,
            # At the end the queue runner still waits for gradients that nobody sends: by default for 120 seconds.
            stop_grace_period_secs=1,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        )
    else:
        session = v1.train.MonitoredSession(WorkerSession(server.target, config, scaffold), [sync, stop])

    rng = np.random.default_rng()
    made = step = 0
    with session:
        while not session.should_stop():
            batch = dict(zip((model.x, model.y), points(rng, flags.batch_size), strict=True))
            _, step = session.run([model.train, model.step], batch)
            made += 1
            if is_chief and made % max(1, flags.steps // 10) == 0:
                print(f"gradient {made}, step {step}", flush=True)

    print(f"made {made} gradients, until step {flags.steps}", flush=True)
    if not is_chief:
        return 0
    print(f"final loss {report.last:.4f} (first {report.first:.4f})", flush=True)
    if report.last < report.first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags, tasks = parse_flags()
    server = v1.train.Server(
        tf.train.ClusterSpec(tasks), job_name=flags.job_name, task_index=flags.task_index
    )
    if flags.job_name == "ps":
        server.join()  # until it is stopped
    return train(flags, server, tasks)


if __name__ == "__main__":
    # Between-graph programs build their own graphs; eager execution has no sessions.
    with tf.Graph().as_default():
        sys.exit(main())
