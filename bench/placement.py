"""What it gives to bind tasks to cores, and to dial over the faster network."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator

from bench.beds import TFLAUNCH, Lab, lab
from bench.measure import Failed, Figures, Table, interleave
from bench.plan import Plan
from tests.support.bed import can_shape

SECONDS = 8  # of training, once all tasks have loaded TensorFlow
SENT_MB = 64
# Each worker trains a small network by itself; none begins before all have loaded TensorFlow.
TRAINS = f"""\
import os, pathlib, time
import tensorflow as tf

images, labels = tf.random.normal([256, 784]), tf.zeros([256], tf.int32)
model = tf.keras.Sequential([tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(512, "relu"),
    tf.keras.layers.Dense(10)])
optimizer = tf.keras.optimizers.Adam()

@tf.function
def step():
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

for _ in range(10):
    step()
size = len(__import__("json").loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
place = pathlib.Path("/tmp") / os.environ["TFLAUNCH_RUN"]
place.mkdir(exist_ok=True)
(place / os.environ["TFLAUNCH_TASK"].replace("/", "-")).touch()
while len(list(place.iterdir())) < size:
    time.sleep(0.01)
begun, steps, cpu = time.time(), 0, time.process_time()
while time.time() - begun < {SECONDS}:
    step()
    steps += 1
took = time.time() - begun
print("figures", steps / took, (time.process_time() - cpu) / steps, flush=True)
"""
# The worker writes a variable that the ps holds: TensorFlow's own gRPC.
SENDS = f"""\
import json, os, time
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = tf.distribute.Server(config["cluster"], job_name=task["type"], task_index=task["index"])
if task["type"] == "ps":
    server.join()
with tf.device("/job:ps/task:0"):
    held = tf.compat.v1.get_variable("held", [{SENT_MB << 18}], use_resource=True)
with tf.device("/job:worker/task:0"):
    mine = tf.compat.v1.get_variable("mine", [{SENT_MB << 18}], use_resource=True)
    value = mine.read_value()
send = held.assign(value, read_value=False)
with tf.compat.v1.Session(server.target) as session:
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(send)
    begun = time.time()
    for _ in range(8):
        session.run(send)
    print("figures", 8 * {SENT_MB} * 1.048576 / (time.time() - begun), flush=True)
"""


def bind(plan: Plan) -> Iterator[Table]:
    """Two workers that compute on one host."""
    with lab() as own:
        own.hosts(1)
        program = own.file("placement/trains.py", TRAINS)

        def method(how: str) -> Callable[[], Figures]:
            def once() -> Figures:
                found = _figures(own, program, "--ps=0", "--workers=2", f"--bind={how}")
                each = [rate for rate, _ in found]
                return {
                    "steps/s, all": sum(each),
                    "steps/s, the slowest": min(each),
                    "CPU ms a step": 1000 * sum(cpu for _, cpu in found) / len(found),
                }

            return once

        table = Table("Two workers on two cores", "--bind none", ("steps/s, all", "CPU ms a step"), 1)
        methods = {f"--bind {how}": method(how) for how in ("none", "cores")}
        yield interleave(table, methods, plan.rounds, plan.tell)


def network(plan: Plan) -> Iterator[Table]:
    """From a worker to a ps, on hosts with two networks."""
    table = Table("From a worker to its ps, by TensorFlow's gRPC", "--network none: 1 Gbit/s", ("MB/s",), 2)
    if not can_shape():
        table.remarks.append("this kernel cannot shape a network (sch_tbf)")
        yield table
        return
    with lab() as own:
        own.hosts(2)
        own.bed.second_network(*own.machines(2), mbit_s=1000)
        program = own.file("placement/sends.py", SENDS)
        apart = ("--ps=1", "--workers=1", "--ps-hosts=host1", "--worker-hosts=host2", "--ps-grace=1")

        def method(*words: str) -> Callable[[], Figures]:
            def once() -> Figures:
                ps, _ = own.machines(2)
                before = ps.bytes_received("eth0")
                [(rate,)] = _figures(own, program, *apart, *words)
                return {"MB/s": rate, "MB by eth0": (ps.bytes_received("eth0") - before) / 1e6}

            return once

        methods = {table.reference: method("--network=none"), "as usual: the faster one": method()}
        yield interleave(table, methods, plan.rounds, plan.tell)


def _figures(own: Lab, program: str, *words: str) -> list[tuple[float, ...]]:
    """Run the program on all hosts; what each task that tells figures has told.  Raises Failed."""
    names = [host.name for host in own.bed.hosts]
    hosts = own.file(
        "with-tensorflow.yaml", json.dumps({"defaults": {"python": sys.executable}, "hosts": names})
    )
    own.run(TFLAUNCH, "run", hosts, program, "--no-flags", *words)
    said = (own.directory / "output").read_text(errors="replace")
    found = [tuple(map(float, each.split())) for each in re.findall(r"figures (.*)", said)]
    if not found:
        raise Failed("no task told its figures")
    return found
