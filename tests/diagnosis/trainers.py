"""Small programs of the usual kinds, in real TensorFlow, with places in which something may be wrong.

Each takes source text for its places; `read` is the body of `read(step)`, before it returns a batch.  They train for
ever unless `steps` says how long, a step every 50 ms, and print a line every 20 steps.
"""

from __future__ import annotations

import re
import textwrap

FOREVER = 10**9


def fill(template: str, **parts: object) -> str:
    """`template` with each `# NAME` line replaced by the source for it, as far in; `$NAME` by the words themselves."""
    lines = []
    for line in template.strip("\n").split("\n"):
        mark = line.strip().removeprefix("# ")
        if mark.isupper() and mark.lower() in parts:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(textwrap.indent(textwrap.dedent(str(parts[mark.lower()])).strip("\n"), indent))
        else:
            lines.append(line)
    text = "\n".join(line for line in lines if line)
    return re.sub(r"\$([A-Z]+)", lambda found: str(parts[found[1].lower()]), text) + "\n"


FLAGS = """
import argparse, json, os, signal, socket, subprocess, sys, threading, time
import numpy as np

parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ("ps_hosts", "worker_hosts", "job_name"):
    parser.add_argument("--" + name, default="")
parser.add_argument("--task_index", type=int, default=0)
flags = parser.parse_args()
index = flags.task_index
steps = $STEPS
is_ps, is_chief = flags.job_name == "ps", flags.job_name == "worker" and flags.task_index == 0
# TOP
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
cluster = tf.train.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")})
# ADDRESSES


class Waits(v1.train.SessionCreator):
    # Waits for the chief, and looks every second; MonitoredTrainingSession does so every 30 seconds.
    def __init__(self, target, config, scaffold):
        self.target, self.config, self.scaffold = target, config, scaffold

    def create_session(self):
        self.scaffold.finalize()
        manager = v1.train.SessionManager(
            local_init_op=self.scaffold.local_init_op,
            ready_op=self.scaffold.ready_op,
            ready_for_local_init_op=self.scaffold.ready_for_local_init_op,
            recovery_wait_secs=1,
        )
        return manager.wait_for_session(self.target, config=self.config)


def open_input():
    # OPEN
    return np.random.default_rng(index)


def read(step):
    # READ
    return np.ones([32, 10], np.float32)
"""

ASYNC = (
    FLAGS
    + """

def train():
    open_input()
    # BUILD
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        x = v1.placeholder(tf.float32, [None, 10])
        global_step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [$SIZE, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w[:10]) - 1.0))
        train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=global_step)
    config = v1.ConfigProto(device_filters=$FILTERS)
    # SESSION
    if is_chief:
        session = v1.train.MonitoredTrainingSession(
            master=server.target, is_chief=True, config=config, checkpoint_dir=$CHECKPOINTS, save_checkpoint_secs=20,
            log_step_count_steps=None,
        )
    else:
        session = v1.train.MonitoredSession(Waits(server.target, config, v1.train.Scaffold()))
    with session:
        for step in range(steps):
            now, value, _ = session.run([global_step, loss, train_op], {x: read(step)})
            if step % 20 == 0:
                print(f"step {step} of worker {index}, global step {now}, loss {value:.4f}", flush=True)
            # STEP
            time.sleep(0.05)
    print(f"done after {steps} steps", flush=True)


# BEFORE
server = v1.train.Server(cluster, job_name=flags.job_name, task_index=index)
# AFTER
if is_ps:
    # PS
    server.join()
train()
# END
"""
)

SYNC = (
    FLAGS
    + """

def train():
    open_input()
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        x = v1.placeholder(tf.float32, [None, 10])
        global_step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [10, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        workers = len(flags.worker_hosts.split(","))
        optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.GradientDescentOptimizer(0.01), replicas_to_aggregate=$AGGREGATE, total_num_replicas=$TOTAL
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        hook = optimizer.make_session_run_hook(is_chief, num_tokens=$TOKENS)
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    scaffold = v1.train.Scaffold(
        local_init_op=optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
    )
    if is_chief:
        session = v1.train.MonitoredTrainingSession(
            master=server.target, is_chief=True, config=config, scaffold=scaffold, hooks=[hook],
            log_step_count_steps=None,
        )
    else:
        session = v1.train.MonitoredSession(Waits(server.target, config, scaffold), [hook])
    with session:
        for step in range(steps):
            now, value, _ = session.run([global_step, loss, train_op], {x: read(step)})
            if step % 20 == 0:
                print(f"step {step} of worker {index}, global step {now}, loss {value:.4f}", flush=True)
            time.sleep(0.05)
        print(f"done after {steps} steps", flush=True)
        # LAST


server = v1.train.Server(cluster, job_name=flags.job_name, task_index=index)
if is_ps:
    server.join()
train()
"""
)

CONFIG = """
import json, os, signal, socket, subprocess, sys, threading, time
import numpy as np

task = json.loads(os.environ["TF_CONFIG"])["task"]
role, index = task["type"], task["index"]
steps = $STEPS
# TOP
import tensorflow as tf
"""

# MultiWorkerMirroredStrategy with a loop in Python.
MWMS = (
    CONFIG
    + """
# BEFORE
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.zeros([$SIZE, 1]), aggregation=tf.VariableAggregation.MEAN)


def open_input():
    # OPEN
    return np.random.default_rng(index)


def read(step):
    # READ
    return np.ones([32, 10], np.float32)


def batches():
    open_input()
    for step in range(steps):
        yield step, tf.constant(read(step))


@tf.function(input_signature=[tf.TensorSpec([None, 10])])
def train_step(x):
    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w[:10]) - 1.0))
        [gradient] = tape.gradient(loss, [w])
        gradient = tf.convert_to_tensor(gradient)
        gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        w.assign_sub(0.01 * gradient)
        return loss

    return strategy.run(replica_step, args=(x,))


@tf.function
def evaluate(x):
    losses = strategy.run(lambda x: tf.reduce_mean(tf.square(tf.matmul(x, w[:10]) - 1.0)), args=(x,))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


def main():
    for step, batch in batches():
        loss = train_step(batch)
        if step % 20 == 0:
            print(f"step {step} of worker {index}, loss {float(loss):.4f}", flush=True)
        # STEP
        time.sleep(0.05)
    print(f"done after {steps} steps", flush=True)
    # END


main()
"""
)

# MultiWorkerMirroredStrategy whose input is a tf.data pipeline of Python.
PIPELINE = (
    CONFIG
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.zeros([10, 1]), aggregation=tf.VariableAggregation.MEAN)


def numbers():
    step = 0
    while True:
        # READ
        yield np.ones([32, 10], np.float32)
        step += 1


def pipeline(context):
    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([32, 10]))
    # DATA
    return data.prefetch(2)


@tf.function
def train_step(iterator):
    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        [gradient] = tape.gradient(loss, [w])
        gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        w.assign_sub(0.01 * gradient)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica_step, args=(next(iterator),)), axis=None)


def main():
    iterator = iter(strategy.distribute_datasets_from_function(pipeline))
    for step in range(steps):
        loss = train_step(iterator)
        if step % 20 == 0:
            print(f"step {step} of worker {index}, loss {float(loss):.4f}", flush=True)
        time.sleep(0.05)
    print(f"done after {steps} steps", flush=True)


main()
"""
)

# ParameterServerStrategy: a chief that coordinates.
PSS = (
    CONFIG
    + """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if role in ("ps", "worker"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=index, protocol="grpc"
    )
    # SERVES
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    w = tf.Variable(tf.zeros([10, 1]))


def numbers():
    # NUMBERS
    yield np.ones([32, 10], np.float32)


def data():
    # READ
    return tf.data.Dataset.from_tensors(np.ones([32, 10], np.float32)).repeat()


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def train_step(iterator):
    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        [gradient] = tape.gradient(loss, [w])
        w.assign_sub(0.01 * gradient)

    strategy.run(replica_step, args=(next(iterator),))


def main():
    iterator = iter(coordinator.create_per_worker_dataset(data))
    for step in range(steps):
        coordinator.schedule(train_step, args=(iterator,))
        if step % 20 == 0:
            coordinator.join()
            print(f"step {step}, w {float(w[0, 0]):.4f}", flush=True)
        # STEP
        time.sleep(0.02)
    coordinator.join()
    print(f"done after {steps} steps", flush=True)


main()
"""
)

# Places that are empty unless a cause fills them.
PLACES = dict.fromkeys(
    (
        "top",
        "addresses",
        "open",
        "read",
        "build",
        "session",
        "step",
        "before",
        "after",
        "ps",
        "end",
        "last",
        "data",
        "serves",
        "numbers",
    ),
    "",
)
WORDS = {
    "steps": FOREVER,
    "size": 10,
    "checkpoints": "None",
    "filters": '["/job:ps", f"/job:worker/task:{index}"]',
    "aggregate": "workers",
    "total": "workers",
    "tokens": "workers",
}


def asynchronous(**parts: object) -> str:
    """Between-graph training with a ps; worker/0 is the chief."""
    return fill(ASYNC, **{**PLACES, **WORDS, **parts})


def synchronous(**parts: object) -> str:
    """SyncReplicasOptimizer; `aggregate` and `total` may use `workers`."""
    return fill(SYNC, **{**PLACES, **WORDS, **parts})


def mirrored(**parts: object) -> str:
    """MultiWorkerMirroredStrategy, with a loop in Python."""
    return fill(MWMS, **{**PLACES, **WORDS, **parts})


def pipeline(**parts: object) -> str:
    """MultiWorkerMirroredStrategy, whose input is a tf.data pipeline."""
    return fill(PIPELINE, **{**PLACES, **WORDS, **parts})


def coordinated(**parts: object) -> str:
    """ParameterServerStrategy, with a chief that coordinates."""
    return fill(PSS, **{**PLACES, **WORDS, **parts})


def plain(body: str, *, steps: object = FOREVER, top: str = "") -> str:
    """A program without a strategy, whose tasks know who they are."""
    return fill(CONFIG, steps=steps, top=top) + body.lstrip("\n")


PS_RUN = ("--ps=1", "--workers=2")
MWMS_RUN = ("--ps=0", "--workers=3", "--no-flags")
PSS_RUN = ("--chief", "--ps=1", "--workers=2", "--done=chief", "--no-flags")
