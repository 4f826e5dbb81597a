"""One task per machine: synchronous on the GPUs of a machine, asynchronous between the machines.

Each worker has all GPUs of its host and trains on them as one, in step, by `MirroredStrategy`: a copy of the
variables on each GPU, a part of the batch for each, and the gradients averaged between the GPUs, which is quick.
Between machines nobody waits for anybody: a worker fetches the variables from the parameter servers (job `ps`),
computes one averaged gradient, and applies it there.  Choose it for machines with several GPUs each and a network
that is slower than what connects the GPUs, or when machines differ in speed.

    tflaunch run hosts.yaml examples/mirrored_ps.py --gpus-per-worker all --workers 2 --ps 1 --no-flags

On this machine, with two logical CPUs in each worker instead of GPUs:

    tflaunch run hostfiles/local.yaml examples/mirrored_ps.py --workers 2 --ps 1 --no-flags -- --replicas 2

All tasks know who they are from TF_CONFIG (`--no-flags`).  With `--restarts 3` any task may fail and start again, as
of async_ps.py: a worker joins those that train; after a parameter server or worker 0, which writes the checkpoints,
all go on from the last one.

The data are points of a noisy plane in ten dimensions.  Worker 0 ends with an error if the loss has not fallen.
"""

import argparse
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
    parser.add_argument("--steps", type=int, default=1000, help="end at this global step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="points in a step, of all GPUs of a worker together"
    )
    parser.add_argument("--learning_rate", type=float, default=0.02, help="(%(default)s)")
    parser.add_argument(
        "--replicas", type=int, default=2, help="logical CPUs of a worker that has no GPU (%(default)s)"
    )
    parser.add_argument(
        "--train_dir",
        help="where worker 0 writes checkpoints, and resumes from if there is one "
        "(under the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=200, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def devices(replicas):
    """The GPUs of this task; on a host without any, so many parts of its CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{number}" for number in range(len(gpus))]
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return [f"CPU:{number}" for number in range(replicas)]


def points(rng, count):
    """Draw `count` points of the plane: x (count, DIMENSIONS) and y (count,), float32."""
    x = rng.normal(size=(count, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, count)
    return x.astype(np.float32), y.astype(np.float32)


class Machine:
    """The GPUs of this worker, as one."""

    def __init__(self, replicas):
        self.strategy = tf.distribute.MirroredStrategy(devices(replicas))
        with self.strategy.scope():
            self.slope = tf.Variable(tf.zeros([DIMENSIONS]))
            self.height = tf.Variable(0.0)

    def loss(self, x, y):
        guess = tf.linalg.matvec(x, self.slope) + self.height
        return tf.reduce_mean(tf.math.squared_difference(guess, y))

    @tf.function
    def step(self, slope, height, x, y):
        """Each GPU computes a part of the batch at those values; returns the means of the gradients and the loss."""
        self.slope.assign(slope)
        self.height.assign(height)

        def on_one_gpu():
            context = tf.distribute.get_replica_context()
            part, parts = context.replica_id_in_sync_group, context.num_replicas_in_sync
            with tf.GradientTape() as tape:
                loss = self.loss(x[part::parts], y[part::parts])
            return context.all_reduce("MEAN", [*tape.gradient(loss, [self.slope, self.height]), loss])

        return [self.strategy.experimental_local_results(each)[0] for each in self.strategy.run(on_one_gpu)]

    def gradients(self, values, batch):
        """(gradients, loss) of a batch at these values of the variables, as arrays."""
        *gradients, loss = [each.numpy() for each in self.step(*map(tf.constant, (*values, *batch)))]
        return gradients, loss


class WorkerSession(v1.train.SessionCreator):
    """Waits for worker 0 to initialise the variables, and looks every second, not every 30."""

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


class Shared:
    """What is on the parameter servers: a graph with a session, beside the eager program of the GPUs."""

    def __init__(self, flags, cluster, index, train_dir):
        own = f"/job:worker/task:{index}"
        # Its session talks to the parameter servers and to itself, waits for no other worker, and has no GPU.
        config = v1.ConfigProto(device_filters=["/job:ps", own], device_count={"GPU": 0})
        server = tf.distribute.Server(cluster, "worker", index, config=config)
        self.graph = tf.Graph()
        with self.graph.as_default():
            with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"{own}/cpu:0")):
                step = v1.train.get_or_create_global_step()
                zeros = v1.zeros_initializer()
                self.variables = [
                    v1.get_variable("slope", [DIMENSIONS], initializer=zeros),
                    v1.get_variable("height", [], initializer=zeros),
                ]
                self.gradients = [v1.placeholder(tf.float32, each.shape) for each in self.variables]
                pairs = list(zip(self.gradients, self.variables, strict=True))
                optimizer = v1.train.GradientDescentOptimizer(flags.learning_rate)
                self.apply = optimizer.apply_gradients(pairs, global_step=step)
            # A sharded saver, the default, has each ps write a part on its own host.
            scaffold = v1.train.Scaffold(saver=v1.train.Saver(sharded=False))
            hooks = [v1.train.StopAtStepHook(last_step=flags.steps)]
            if index:
                creator = WorkerSession(server.target, config, scaffold)
                self.session = v1.train.MonitoredSession(creator, hooks)
            else:
                self.session = v1.train.MonitoredTrainingSession(
                    master=server.target,
                    checkpoint_dir=train_dir,
                    scaffold=scaffold,
                    hooks=hooks,
                    config=config,
                    save_checkpoint_steps=flags.checkpoint_steps,
                    save_summaries_steps=None,
                    save_summaries_secs=None,
                    log_step_count_steps=None,
                )

    def fetch(self):
        """The values of the variables now."""
        with self.graph.as_default():
            return self.session.run(self.variables)

    def push(self, gradients):
        """Apply these gradients, whatever others have applied meanwhile."""
        with self.graph.as_default():
            self.session.run(self.apply, dict(zip(self.gradients, gradients, strict=True)))

    def close(self):
        """Write the last checkpoint."""
        with self.graph.as_default():
            self.session.close()


def train(flags, resolver):
    """Train until the global step is `--steps`; returns the exit code."""
    index = resolver.task_id
    task = f"worker/{index}"
    machine = Machine(flags.replicas)
    print(f"{task} trains on {machine.strategy.num_replicas_in_sync} devices in step", flush=True)
    run = os.environ.get("TFLAUNCH_RUN")
    # The same directory whenever worker 0 starts again, on the same host.
    train_dir = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    resumed = index == 0 and tf.train.latest_checkpoint(train_dir) is not None
    if index == 0:
        print(f"{task} {'resumes from' if resumed else 'writes to'} {Path(train_dir).resolve()}", flush=True)
    shared = Shared(flags, resolver.cluster_spec(), index, train_dir)
    rng = np.random.default_rng()
    made, first, last = 0, None, None
    while not shared.session.should_stop():
        values = shared.fetch()
        if shared.session.should_stop():  # another worker has made the last step
            break
        gradients, loss = machine.gradients(values, points(rng, flags.batch_size))
        if made % 100 == 0:
            print(f"{task} has made {made} steps  loss {loss:.4f}", flush=True)
        first, last = loss if first is None else first, loss
        shared.push(gradients)
        made += 1
    shared.close()
    print(f"{task} made {made} of the {flags.steps} steps", flush=True)
    if index or first is None:  # None: all had been made before
        return 0
    print(f"final loss {last:.4f} (first {first:.4f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "ps":
        server = tf.distribute.Server(resolver.cluster_spec(), "ps", resolver.task_id, protocol="grpc")
        server.join()  # until it is stopped
    return train(flags, resolver)


if __name__ == "__main__":
    sys.exit(main())
