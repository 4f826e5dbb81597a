"""Runs of which tflaunch must say nothing: all is well, though not everything moves all the time."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import (
    MWMS_RUN,
    PS_RUN,
    PSS_RUN,
    asynchronous,
    coordinated,
    mirrored,
    pipeline,
    plain,
)
from tests.support import ROOT

if TYPE_CHECKING:
    from tests.diagnosis.play import Play

STEPS = 300
COMPUTES = """
until = time.monotonic() + {seconds}
while time.monotonic() < until:
    np.linalg.svd(np.random.rand(200, 200))
"""
# A directory that all hosts of the bed share, as they would share one by NFS.
SHARED = """
shared = "/run/tflaunch-diagnosis/" + os.environ["TFLAUNCH_RUN"]
os.makedirs(shared, exist_ok=True)
import atexit, shutil
if role == "chief" or (role == "worker" and index == 0):
    atexit.register(shutil.rmtree, shared, ignore_errors=True)
"""


def _at(condition: str, code: str) -> str:
    inner = "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
    return f"if {condition}:\n{inner}\n"


def _healthy(name: str, story: str, trainer: str, command: tuple[str, ...], **more: object) -> Cause:
    proof = str(more.pop("proof", "done after"))
    return Cause(name, causes.HEALTHY, story, trainer, command, proof=proof, **more)  # type: ignore[arg-type]


def _loses(play: Play) -> None:
    """One cable does: with one at each end, a packet would have to survive twice."""
    play.bed.delay(play.hosts[1], 1, loss_percent=3)


def _far(play: Play) -> None:
    for host in play.hosts:
        play.bed.delay(host, 25)  # 50 ms from host to host


def _busy(play: Play) -> None:
    """Other programs compute on this machine for two minutes."""
    code = "import time\nuntil = time.monotonic() + 120\nwhile time.monotonic() < until: pass"
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]

    def end() -> None:
        for burner in burners:
            burner.kill()
            burner.wait()

    play.at_the_end(end)


HEALTHY = (
    _healthy("well-async", "Asynchronous training with a ps", asynchronous(steps=STEPS), PS_RUN),
    _healthy(
        "well-sync",
        "SyncReplicasOptimizer",
        (ROOT / "examples" / "sync_replicas.py").read_text(),
        (*PS_RUN, "--", "--steps=4000"),
        proof="step",
    ),
    _healthy(
        "well-proxy",
        "`setup:` of the hostfile names a proxy, which is not for the hosts of the cluster",
        asynchronous(steps=STEPS),
        PS_RUN,
        settings={"setup": "export http_proxy=http://10.77.255.53:3128 https_proxy=http://10.77.255.53:3128"},
    ),
    _healthy("well-mirrored", "MultiWorkerMirroredStrategy", mirrored(steps=STEPS), MWMS_RUN),
    _healthy("well-pipeline", "MultiWorkerMirroredStrategy with tf.data", pipeline(steps=STEPS), MWMS_RUN),
    _healthy("well-coordinated", "ParameterServerStrategy", coordinated(steps=STEPS), PSS_RUN, hosts=4),
    _healthy(
        "well-one-worker",
        "One worker alone, without a server, that computes for 100 s",
        plain(COMPUTES.format(seconds=100) + "print('done after 100 s', flush=True)\n"),
        ("--ps=0", "--workers=1", "--no-flags"),
    ),
    _healthy(
        "well-quiet-worker",
        "One worker that prints nothing for 90 s of training",
        plain(
            """
w = tf.Variable(tf.zeros([200, 200]))
until = time.monotonic() + 90
while time.monotonic() < until:
    w.assign_add(tf.matmul(w, w) + 0.01)
    time.sleep(0.02)
print("done after 90 s", flush=True)
""",
        ),
        ("--ps=0", "--workers=1", "--no-flags"),
    ),
    _healthy(
        "well-slow-checkpoint",
        "The chief takes 25 s to write a checkpoint, while the others wait in an all-reduce",
        mirrored(
            steps=STEPS,
            step=_at(
                "step == 100 and index == 0",
                """
with open("checkpoint", "wb") as file:
    for _ in range(25):
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        time.sleep(1)
""",
            ),
        ),
        MWMS_RUN,
    ),
    _healthy(
        "well-evaluation",
        "One worker evaluates for 90 s, while the others wait in an all-reduce",
        mirrored(steps=STEPS, step=_at("step == 100 and index == 0", COMPUTES.format(seconds=90))),
        MWMS_RUN,
    ),
    _healthy(
        "well-evaluation-in-tensorflow",
        "One worker evaluates for 90 s in TensorFlow, while the others wait",
        mirrored(
            steps=STEPS,
            step=_at(
                "step == 100 and index == 1",
                """
until = time.monotonic() + 90
a = np.random.rand(400, 400).astype(np.float32)
while time.monotonic() < until:
    float(tf.reduce_sum(tf.linalg.matmul(a, a)))
""",
            ),
        ),
        MWMS_RUN,
    ),
    _healthy(
        "well-warm-up",
        "One worker fills its shuffle buffer for 80 s of computing",
        pipeline(steps=STEPS, read=_at("index == 1 and step == 0", COMPUTES.format(seconds=80))),
        MWMS_RUN,
    ),
    _healthy(
        "well-children-read",
        "A child of one worker prepares its data for 80 s of computing, while the worker itself waits for it",
        mirrored(
            steps=STEPS,
            open=_at(
                "index == 2",
                """
code = "import numpy, time\\nuntil = time.monotonic() + 80\\n"
code += "while time.monotonic() < until: numpy.linalg.svd(numpy.ones([200, 200]))"
subprocess.run([sys.executable, "-c", code], check=True)
""",
            ),
        ),
        MWMS_RUN,
    ),
    _healthy(
        "well-downloads",
        "One worker downloads its data for 80 s, slowly, while the others wait",
        mirrored(
            steps=STEPS,
            top="""
            SERVER = '''
            import socket, time
            server = socket.create_server(("", 8123))
            to = server.accept()[0]
            for _ in range(80):
                to.sendall(bytes(100_000))
                time.sleep(1)
            '''
            """.replace("            ", ""),
            open="""
            if index == 0:
                subprocess.Popen([sys.executable, "-c", SERVER])
            if index == 1:
                time.sleep(5)
                with socket.create_connection(("host1", 8123)) as link, open("data", "wb") as data:
                    while piece := link.recv(65536):
                        data.write(piece)
            """,
        ),
        MWMS_RUN,
    ),
    _healthy(
        "well-waits-for-day",
        "All tasks of the program sleep for 90 s, and say so every 10 s",
        mirrored(
            steps=STEPS,
            step=_at(
                "step == 100",
                """
for _ in range(9):
    print("waits for the data of the day", flush=True)
    time.sleep(10)
""",
            ),
        ),
        MWMS_RUN,
    ),
    _healthy(
        "well-pauses",
        "All tasks of an asynchronous program pause for 45 s between two epochs",
        asynchronous(steps=STEPS, step=_at("step == 100", "time.sleep(45)")),
        PS_RUN,
    ),
    _healthy(
        "well-busy-machine",
        "TensorFlow starts on a machine on which four other programs compute",
        mirrored(steps=STEPS),
        MWMS_RUN,
        prepare=_busy,
    ),
    _healthy(
        "well-loss-3",
        "The cable of one host loses 3 % of all packets",
        asynchronous(steps=STEPS, size=20000),
        PS_RUN,
        prepare=_loses,
    ),
    _healthy(
        "well-loss-3-mirrored",
        "The cable of one host loses 3 % of all packets under an all-reduce",
        mirrored(steps=STEPS, size=20000),
        MWMS_RUN,
        prepare=_loses,
    ),
    _healthy(
        "well-far",
        "The hosts are 50 ms from each other",
        asynchronous(steps=STEPS, size=20000),
        PS_RUN,
        prepare=_far,
    ),
    _healthy(
        "well-late-worker",
        "A worker comes before its chief, and waits for the 30 s of TensorFlow's recovery_wait_secs",
        asynchronous(steps=STEPS, before="if is_chief:\n    time.sleep(8)").replace(
            "            recovery_wait_secs=1,\n", ""
        ),
        PS_RUN,
    ),
    _healthy(
        "well-chief-evaluates",
        "The chief of an asynchronous program evaluates for 70 s",
        asynchronous(steps=STEPS, step=_at("is_chief and step == 100", COMPUTES.format(seconds=70))),
        PS_RUN,
    ),
    _healthy(
        "well-early-end",
        "An asynchronous worker has less to do, and ends two minutes before the other",
        asynchronous(steps="60 if index == 1 else 2000"),
        PS_RUN,
        proof="done after 2000",
    ),
    _healthy(
        "well-evaluator",
        "A chief and an evaluator that share a directory; the first checkpoint takes 80 s to come",
        plain(
            """
if role == "evaluator":
    for path in tf.train.checkpoints_iterator(shared):
        print("evaluates", path, flush=True)
else:
    w = tf.Variable(tf.zeros([10]))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=w), shared, max_to_keep=3)
    for step in range(steps):
        w.assign_add(tf.ones([10]))
        if step % 100 == 0 and step > 1200:
            print(f"step {step}, saved {manager.save()}", flush=True)
        time.sleep(0.06)
    print("done after 1600 steps", flush=True)
""",
            steps=1600,
            top=SHARED,
        ),
        ("--ps=0", "--workers=1", "--evaluator", "--no-flags"),
    ),
    _healthy(
        "well-data-service",
        "tf.data service: a dispatcher and a worker of it beside the trainers",
        plain(
            """
address = json.loads(os.environ["TF_CONFIG"])["cluster"]["data"][0]
if role == "data":
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=int(address.rpartition(":")[2])))
    worker = service.WorkerServer(service.WorkerConfig(
        dispatcher_address=address, worker_address=address.rpartition(":")[0] + ":%port%"))
    dispatcher.join()
data = tf.data.Dataset.range(10**9).apply(tf.data.experimental.service.distribute(
    processing_mode="parallel_epochs", service="grpc://" + address))
time.sleep(3)
for step, number in enumerate(data.take(steps)):
    if step % 20 == 0:
        print(f"step {step}, number {int(number)}", flush=True)
    time.sleep(0.4)
print(f"done after {steps} steps", flush=True)
""",
            steps=200,
        ),
        ("--ps=0", "--workers=2", "--job=data=1", "--no-flags"),
    ),
    _healthy(
        "well-tensorboard",
        "TensorBoard beside the trainers",
        asynchronous(steps=STEPS, checkpoints='"logs" if is_chief else None').replace(
            "with session:", "os.makedirs('logs', exist_ok=True)\n    with session:"
        ),
        (*PS_RUN, "--tensorboard=logs", "--ps-hosts=host1", "--worker-hosts=host1"),
        hosts=1,
    ),
    _healthy(
        "well-slow-steps",
        "One worker takes 20 s of computing for each step, and the other waits for it in an all-reduce",
        mirrored(steps=6, read=_at("index == 1", COMPUTES.format(seconds=20))),
        ("--ps=0", "--workers=2", "--no-flags"),
    ),
    _healthy(
        "well-many-ps",
        "A ps that holds no variable has nothing to do",
        asynchronous(steps=1500),
        ("--ps=3", "--workers=1"),
        hosts=4,
    ),
    _healthy(
        "well-threads-wait",
        "A worker with a hundred threads that wait for work",
        mirrored(
            steps=1500,
            open="for _ in range(100):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()",
        ),
        MWMS_RUN,
    ),
)
