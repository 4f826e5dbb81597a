"""Real TensorFlow starts again and resumes from its checkpoints."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.support import ROOT
from tests.support.attempts import log, mine
from tests.support.frameworks import WITHOUT_KERAS
from tests.support.launcher import Launcher
from tests.support.patience import until

EXAMPLE = ROOT / "examples" / "async_ps.py"


# Asynchronous training until $OUT/stop appears; tells where each of its sessions begins, and every step.
ASYNC = """
    import os, pathlib, sys, time
    from async_ps import WorkerSession, parse_flags, tf, v1

    class Begins(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            print("begins at", session.run(step), flush=True)

    flags, tasks = parse_flags()
    cluster = tf.train.ClusterSpec(tasks)
    server = v1.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
    if flags.job_name == "ps":
        server.join()
    own = f"/job:worker/task:{flags.task_index}"
    with tf.Graph().as_default(), v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=own)):
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        train = v1.train.GradientDescentOptimizer(0.001).minimize((weight - 1) ** 2, global_step=step)
        config = v1.ConfigProto(device_filters=["/job:ps", own])
        scaffold = v1.train.Scaffold(saver=v1.train.Saver(sharded=False))
        if flags.task_index == 0:
            begun = v1.train.MonitoredTrainingSession(
                server.target, True, flags.train_dir, scaffold, [Begins()], config=config,
                save_checkpoint_steps=20, save_summaries_steps=None, save_summaries_secs=None,
                log_step_count_steps=None,
            )
        else:
            begun = v1.train.MonitoredSession(WorkerSession(server.target, config, scaffold), [Begins()])
        with begun as session:
            while not os.path.exists(os.environ["OUT"] + "/stop"):
                print("step", session.run([step, train])[0], flush=True)
                time.sleep(0.03)
"""


# Synchronous training up to step 60; every fifth is saved, by the first worker where all find it again.
MIRRORED = """
    import os, sys, tempfile, time
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    shared = os.environ["OUT"] + "/train"
    with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64)
        total = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(step=step, total=total)
    first = strategy.cluster_resolver.task_id == 0
    manager = tf.train.CheckpointManager(checkpoint, shared if first else tempfile.mkdtemp(dir="."), 2)
    checkpoint.restore(tf.train.latest_checkpoint(shared))
    print("begins at", step.numpy(), flush=True)

    @tf.function
    def train():
        ones = strategy.run(lambda: tf.constant(1.0))
        total.assign_add(strategy.reduce("sum", ones, axis=None))
        step.assign_add(1)

    while step.numpy() < 60:
        train()
        if step.numpy() % 5 == 0:
            manager.save()
        print("step", step.numpy(), flush=True)
        time.sleep(0.05)
    assert total.numpy() == 120.0, total
"""


def steps(launcher: Launcher, task: str, attempt: int = 0) -> list[int]:
    """The global steps that it has trained."""
    return [int(number) for number in re.findall(r"^step (\d+)$", log(launcher, task, attempt), re.MULTILINE)]


def begins(launcher: Launcher, task: str, attempt: int = 0, session: int = 0) -> int:
    """The global step that this session of an attempt begins at; waits for it."""

    def found() -> list[str]:
        return re.findall(r"^begins at (\d+)$", log(launcher, task, attempt), re.MULTILINE)[session:]

    return int(until(found, f"session {session} of attempt {attempt} of {task}")[0])


def saved(place: Path, pattern: str) -> int:
    """The step of the newest checkpoint; 0 when there is none."""
    names = [path.name for path in place.glob(pattern)]
    return max((int(name.removesuffix(".index").rpartition("-")[2]) for name in names), default=0)


def kill(launcher: Launcher, task: str) -> None:
    """Kill -9 the process of a task."""
    [process] = mine(launcher, task)
    process.kill()


def test_asynchronous_training_survives_the_death_of_each_task(launcher: Launcher, out: Path) -> None:
    shutil.copy(EXAMPLE, launcher.code)
    script = launcher.script(ASYNC)
    words = (
        "--ps=1",
        "--workers=2",
        "--restarts=2",
        f"--env=OUT={out}",
        WITHOUT_KERAS,
        "--",
        "--train_dir=train",
    )

    def checkpoint() -> int:
        return saved(launcher.hosts, "tflaunch-*/*/*/work/train/model.ckpt-*.index")

    with launcher.start("run", launcher.local(3), script, *words) as run:
        # One of them begins: the other may come some steps later.
        assert min(begins(launcher, task) for task in ("worker/0", "worker/1")) == 0
        until(
            lambda: checkpoint() >= 20 and steps(launcher, "worker/1"), "a checkpoint, and both at work", 90.0
        )

        before = checkpoint()
        kill(launcher, "ps/0")  # and with it all variables
        assert begins(launcher, "worker/0", session=1) >= before
        assert begins(launcher, "worker/1", session=1) >= before

        kill(launcher, "worker/1")
        before = checkpoint()
        kill(launcher, "worker/0")
        assert begins(launcher, "worker/1", attempt=1) >= before
        resumed = begins(launcher, "worker/0", attempt=1)
        assert resumed >= before >= 20
        until(lambda: checkpoint() > resumed, "a newer checkpoint")
        (out / "stop").touch()
        done = run.done()
    done.ran()
    for task in ("ps/0", "worker/0", "worker/1"):
        assert re.search(
            rf"{task} on local\d was killed by SIGKILL after .* starts again in 1 s \(restart 1 of 2\)",
            done.err,
        )
    assert steps(launcher, "worker/0", 1) == sorted(steps(launcher, "worker/0", 1))
    assert log(launcher, "worker/0", 2) == ""


def test_the_example_resumes_where_nobody_watches(launcher: Launcher) -> None:
    hosts = launcher.local(3)
    words = (
        "--ps=1",
        "--workers=2",
        "--restarts=2",
        WITHOUT_KERAS,
        "--",
        "--steps=1500",
        "--checkpoint_steps=50",
    )
    launcher.run("run", "-d", hosts, EXAMPLE, *words).ran()

    def checkpoint() -> int:
        return saved(launcher.hosts, "tflaunch-*/*/*/work/train-*/model.ckpt-*.index")

    until(lambda: checkpoint() >= 100, "a checkpoint")
    with launcher.start("attach") as watching:
        before = checkpoint()
        kill(launcher, "ps/0")
        kill(launcher, "worker/0")
        done = watching.done()
    done.ran()
    for task in ("ps/0", "worker/0"):
        assert re.search(rf"{task} on local\d was killed by SIGKILL .* \(restart 1 of 2\)", done.err)
    again = log(launcher, "worker/0", 1)
    assert "worker/0 resumes from" in again
    numbers = [int(number) for number in re.findall(r"^worker/0 step +(\d+) ", again, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert before <= numbers[0]
    assert numbers[-1] >= 1500


def test_mirrored_workers_start_again_together(launcher: Launcher, out: Path) -> None:
    script = launcher.script(MIRRORED)
    words = ("--ps=0", "--workers=2", "--restarts=2", "--grace=1", f"--env=OUT={out}", WITHOUT_KERAS)
    with launcher.start("run", launcher.local(2), script, *words) as run:
        assert begins(launcher, "worker/0") == 0
        until(lambda: max(steps(launcher, "worker/1"), default=0) >= 12, "two checkpoints")
        kill(launcher, "worker/1")
        done = run.done()
    done.ran()
    assert "all tasks are stopped and start again in 1 s (restart 1 of 2)" in done.err
    for task in ("worker/0", "worker/1"):
        assert begins(launcher, task, attempt=1) >= 10
        assert steps(launcher, task, 1) == [*range(begins(launcher, task, attempt=1) + 1, 61)]
