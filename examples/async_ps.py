"""Asynchronous training with parameter servers: the classic between-graph pattern.

The parameter servers (job `ps`) hold the variables.  Every worker builds the same graph, reads the variables,
computes gradients on its own batches and applies them at once, waiting for no other worker.  Choose this
pattern when workers differ in speed or may come and go, and when a gradient that is a few steps old does no
harm.  Choose synchronous training (`SyncReplicasOptimizer`, `MultiWorkerMirroredStrategy`) when every step
must see the gradients of all workers.

    tflaunch run hostfiles/local.yaml examples/async_ps.py --ps 2 --workers 2 -- --steps 8000

By hand it is one process per task, each with the same two lists and its own name:

    python examples/async_ps.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223 \
        --job_name=ps --task_index=0
    python examples/async_ps.py --ps_hosts=localhost:2222 --worker_hosts=localhost:2223 \
        --job_name=worker --task_index=0

The data are two noisy spirals, one per class, which each worker draws for itself: a two-layer network starts
at the loss of a coin toss, 0.7, and learns to tell them apart.  Worker 0 is the chief: it initialises the
variables, writes the checkpoints, and ends with an error if the loss has not fallen.

Any task may fail and start again (`tflaunch run ... --restarts 3`).  A worker joins those that train.  With a
parameter server its variables are gone: all workers wait until it is back and the chief has restored them from
the last checkpoint, so `--checkpoint_steps` is what a failure costs at most.  Likewise when the chief itself
starts again.
"""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

# Errors only: at 1, TensorFlow warns of "Local rendezvous is aborting" now and then though nothing is wrong.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

try:
    import numpy as np
    import tensorflow as tf
except ModuleNotFoundError as missing:
    if missing.name not in ("numpy", "tensorflow"):
        raise
    sys.exit(
        f"{platform.node()}: {sys.executable} has no module {missing.name}. Install it there with "
        f"`{sys.executable} -m pip install tensorflow`, or run this with a Python that has it "
        "(`python:` in the hostfile)."
    )

v1 = tf.compat.v1

HIDDEN_UNITS = 128
TURNS = 2  # of each spiral
NOISE = 0.03  # standard deviation; the spirals fill a circle of radius 1
HELD_OUT_POINTS = 1000


def parse_flags(argv=None):
    """Read the four flags of every distributed trainer, and this one's own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--ps_hosts", required=True, help="host:port of each ps, separated by commas")
    parser.add_argument("--worker_hosts", required=True, help="host:port of each worker, likewise")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"], help="this task's job")
    parser.add_argument("--task_index", required=True, type=int, help="this task's place in its list, from 0")
    parser.add_argument("--steps", type=int, default=4000, help="end at this global step (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="points in a step (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=0.005, help="of Adam (%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where the chief writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, help="steps from one checkpoint to the next (a quarter of --steps)"
    )
    flags = parser.parse_args(argv)
    tasks = {"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")}
    for job, hosts in tasks.items():
        if not all(hosts):
            parser.error(f"--{job}_hosts is {','.join(hosts)!r}: this trainer needs at least one {job}")
    count = len(tasks[flags.job_name])
    if not 0 <= flags.task_index < count:
        parser.error(f"--task_index is {flags.task_index}, but --{flags.job_name}_hosts lists {count}")
    if flags.checkpoint_steps is None:
        flags.checkpoint_steps = max(1, flags.steps // 4)
    if min(flags.steps, flags.batch_size, flags.checkpoint_steps) < 1:
        parser.error("--steps, --batch_size and --checkpoint_steps start at 1")
    return flags, tasks


def spirals(rng, count):
    """Draw `count` points: float32 coordinates (count, 2) and int32 classes (count,), each 0 or 1."""
    label = rng.integers(0, 2, count)
    radius = np.sqrt(rng.uniform(0.02, 1, count))
    angle = 2 * np.pi * TURNS * radius + np.pi * label
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += rng.normal(0, NOISE, points.shape)
    return points.astype(np.float32), label.astype(np.int32)


class Model:
    """The graph of one worker: its variables live on the parameter servers, all else on the worker."""

    def __init__(self, learning_rate):
        self.points = v1.placeholder(tf.float32, [None, 2], name="points")
        self.label = v1.placeholder(tf.int32, [None], name="label")
        self.step = v1.train.get_or_create_global_step()
        inward, outward = v1.glorot_uniform_initializer(1), v1.glorot_uniform_initializer(2)
        w1 = v1.get_variable("hidden/kernel", [2, HIDDEN_UNITS], initializer=inward)
        b1 = v1.get_variable("hidden/bias", [HIDDEN_UNITS], initializer=v1.zeros_initializer())
        w2 = v1.get_variable("logits/kernel", [HIDDEN_UNITS, 2], initializer=outward)
        b2 = v1.get_variable("logits/bias", [2], initializer=v1.zeros_initializer())
        logits = tf.matmul(tf.nn.relu(tf.matmul(self.points, w1) + b1), w2) + b2
        self.loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.label, logits=logits)
        )
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), self.label)
        self.accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
        self.train = v1.train.AdamOptimizer(learning_rate).minimize(self.loss, global_step=self.step)


class HeldOutLoss(v1.train.SessionRunHook):
    """Measures loss and accuracy on points that nobody trains on; prints a line about ten times a run."""

    def __init__(self, model, task, steps):
        self.model = model
        self.task = task
        self.every = max(1, steps // 10)
        self.next_step = self.every
        self.first = self.last = None  # loss, once there is a session
        self.printed_step = None
        points, label = spirals(np.random.default_rng(0), HELD_OUT_POINTS)
        self.held_out = {model.points: points, model.label: label}

    def measure(self, session):
        wanted = [self.model.step, self.model.loss, self.model.accuracy]
        step, self.last, accuracy = session.run(wanted, self.held_out)
        if self.first is None:
            self.first = self.last
        self.next_step = (step // self.every + 1) * self.every
        if step != self.printed_step:
            print(f"{self.task} step {step:5d}  loss {self.last:.4f}  accuracy {accuracy:.3f}", flush=True)
        self.printed_step = step

    def after_create_session(self, session, coord):
        del coord
        self.measure(session)

    def before_run(self, run_context):
        del run_context
        return v1.train.SessionRunArgs(self.model.step)

    def after_run(self, run_context, run_values):
        if run_values.results >= self.next_step:
            self.measure(run_context.session)

    def end(self, session):
        self.measure(session)


def own_train_dir():
    """The directory of this run's checkpoints: the same whenever the chief starts again, on the same host.

    tflaunch gives each run a name; without it there is nobody to start the chief again.
    """
    run = os.environ.get("TFLAUNCH_RUN")
    return f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir=".")


class WorkerSession(v1.train.SessionCreator):
    """Waits for the chief to initialise the variables, and looks every second.

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


def train(flags, server, cluster):
    """Train until the global step is `--steps`; returns the exit code."""
    task = f"worker/{flags.task_index}"
    is_chief = flags.task_index == 0
    jobs = cluster.as_dict()
    print(f"{task} on {platform.node()}: ps {len(jobs['ps'])}, workers {len(jobs['worker'])}", flush=True)

    own = f"/job:worker/task:{flags.task_index}"
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=own)):
        model = Model(flags.learning_rate)
    report = HeldOutLoss(model, task, flags.steps)
    hooks = [v1.train.StopAtStepHook(last_step=flags.steps), report]
    # A worker talks to the parameter servers and to itself: without these filters its session would wait for
    # every other worker too, for ever if one has already finished.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    # A sharded saver, the default, has each ps write its part on its own host's disk, which only a shared
    # file system brings together again.  This one gathers all variables at the chief.
    scaffold = v1.train.Scaffold(saver=v1.train.Saver(sharded=False))

    resumed = False
    if is_chief:
        train_dir = flags.train_dir or own_train_dir()
        resumed = tf.train.latest_checkpoint(train_dir) is not None
        print(f"{task} {'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)
        session = v1.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=True,
            checkpoint_dir=train_dir,
            scaffold=scaffold,
            hooks=hooks,
            config=config,
            save_checkpoint_steps=flags.checkpoint_steps,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        )
    else:
        # Lets the chief begin, so that its first loss is that of untrained variables.
        hooks.append(v1.train.GlobalStepWaiterHook(1))
        session = v1.train.MonitoredSession(WorkerSession(server.target, config, scaffold), hooks)

    rng = np.random.default_rng(1 + flags.task_index)
    made = 0
    with session:
        while not session.should_stop():
            points, label = spirals(rng, flags.batch_size)
            session.run(model.train, {model.points: points, model.label: label})
            made += 1

    print(f"{task} made {made} of the {flags.steps} steps", flush=True)
    if not is_chief:
        return 0
    print(f"final loss {report.last:.4f} (first {report.first:.4f})", flush=True)
    if report.last < report.first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags, tasks = parse_flags()
    cluster = tf.train.ClusterSpec(tasks)
    server = v1.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        print(f"ps/{flags.task_index} serves on {platform.node()}, until it is stopped", flush=True)
        server.join()
    return train(flags, server, cluster)


if __name__ == "__main__":
    # Between-graph programs build their own graphs; eager execution has no sessions.
    with tf.Graph().as_default():
        sys.exit(main())
