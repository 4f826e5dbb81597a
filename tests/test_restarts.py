"""Tasks that fail start again, by the rules that were asked for; real TensorFlow resumes from its checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.launcher import Launcher, Process, Running, until

EXAMPLE = Path(__file__).parent.parent / "examples" / "async_ps.py"

# Ends as $PLAN has it for this attempt ({"worker/1": [3, -9]}: with code 3, then by SIGKILL); later attempts wait
# for $OUT/stop.  With HOARD, its first attempt leaves a process behind that holds on to a file and a port.
PLANNED = """
    import fcntl, json, os, signal, socket, sys, time
    task, attempt = os.environ["TFLAUNCH_TASK"], int(os.environ["TFLAUNCH_ATTEMPT"])
    print("attempt", attempt, flush=True)
    ends = json.loads(os.environ["PLAN"]).get(task, [])
    if task == os.environ.get("HOARD"):
        lock = open(os.environ["OUT"] + "/lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = socket.socket()
        port = os.environ["OUT"] + "/port"
        holder.bind(("127.0.0.1", int(open(port).read()) if os.path.exists(port) else 0))
        holder.listen()
        with open(port, "w") as file:
            file.write(str(holder.getsockname()[1]))
        if attempt == 0 and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(600)
            os._exit(0)
    if attempt < len(ends):
        if ends[attempt] < 0:
            os.kill(os.getpid(), -ends[attempt])
        sys.exit(ends[attempt])
    while not os.path.exists(os.environ["OUT"] + "/stop"):
        time.sleep(0.02)
"""

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


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def log(launcher: Launcher, task: str, attempt: int = 0) -> str:
    """What that attempt of a task has written so far, on its host."""
    name = f"{task.replace('/', '-')}{f'.{attempt}' if attempt else ''}.log"
    return "".join(path.read_text() for path in launcher.hosts.glob(f"tflaunch-*/*/*/logs/{name}"))


def steps(launcher: Launcher, task: str, attempt: int = 0) -> list[int]:
    """The global steps that it has trained."""
    return [int(number) for number in re.findall(r"^step (\d+)$", log(launcher, task, attempt), re.MULTILINE)]


def begins(launcher: Launcher, task: str, attempt: int = 0, session: int = 0) -> int:
    """The global step that this session of an attempt begins at; waits for it."""

    def found() -> list[str]:
        return re.findall(r"^begins at (\d+)$", log(launcher, task, attempt), re.MULTILINE)[session:]

    return int(until(found, f"session {session} of attempt {attempt} of {task}", 90.0)[0])


def saved(place: Path, pattern: str) -> int:
    """The step of the newest checkpoint; 0 when there is none."""
    names = [path.name for path in place.glob(pattern)]
    return max((int(name.removesuffix(".index").rpartition("-")[2]) for name in names), default=0)


def mine(launcher: Launcher, task: str) -> list[Process]:
    """The processes of a task."""
    return [
        each for each in launcher.leftovers() if each.env.get("TFLAUNCH_TASK") == task and not each.is_agent
    ]


def kill(launcher: Launcher, task: str) -> None:
    """Kill -9 the process of a task."""
    [process] = mine(launcher, task)
    process.kill()


def planned(
    launcher: Launcher, out: Path, plan: dict[str, list[int]], *words: str, hosts: int = 3
) -> Running:
    """A run of 1 ps and 2 workers that end so."""
    script = launcher.script(PLANNED)
    env = (f"--env=OUT={out}", f"--env=PLAN={json.dumps(plan)}")
    given = ("--ps=1", "--workers=2", "--grace=0.5", "--ps-grace=0.2", *env, *words)
    return launcher.start("run", launcher.local(hosts), script, *given)


# ---- the rules


def test_back_off_grows_and_every_attempt_can_be_seen(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [3, -9]}, "--restarts=2") as run:
        run.wait_for("worker/1 │ attempt 2")
        told = json.loads(launcher.run("status", "--json").ran().out)
        [task] = [each for each in told["tasks"] if each["task"] == "worker/1"]
        assert (task["state"], task["attempts"]) == ("running", 3)
        [listed] = json.loads(launcher.run("ps", "--json").ran().out)["runs"]
        assert [each["attempts"] for each in listed["tasks"] if each["task"] == "worker/1"] == [3]
        shown = launcher.run("status").ran().out
        assert re.search(r"worker/1 +local\d +1 .*exit code 3 .*worker-1\.log", shown)
        assert re.search(r"worker/1 +local\d +2 .*SIGKILL .*worker-1\.1\.log", shown)
        (out / "stop").touch()
        done = run.done().ran()
    assert re.search(r"worker/1 on local\d exited with code 3 .* in 1 s \(restart 1 of 2\)", done.err)
    assert re.search(r"worker/1 on local\d was killed by SIGKILL .* in 2 s \(restart 2 of 2\)", done.err)
    assert "runs again (attempt 3)" in done.err
    assert [log(launcher, "worker/1", attempt) for attempt in range(3)] == [
        f"attempt {attempt}\n" for attempt in range(3)
    ]


def test_what_the_program_itself_ends_with_is_not_retryable(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [-9, 3]}, "--restarts=5", "--restart-on=retryable") as run:
        done = run.done().ran(3)
    assert "(restart 1 of 5)" in done.err
    assert "(restart 2 of 5)" not in done.err
    assert re.search(r"worker/1 on local\d exited with code 3", done.err)


def test_the_budget_is_used_up(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [4, 5]}, "--restarts=1") as run:
        done = run.done().ran(5)
    assert "worker/1 was started again once (--restarts 1); no more" in done.err


def test_failures_outside_the_window_do_not_count(launcher: Launcher, out: Path) -> None:
    plan = {"worker/1": [4, 5]}
    with planned(launcher, out, plan, "--restarts=1", "--restart-window=0.2s") as run:
        run.wait_for("worker/1 │ attempt 2")
        assert run.err.count("it starts again in 1 s (restart 1 of 1)") == 2
        (out / "stop").touch()
        assert run.end() == 0


def test_each_job_has_its_policy(launcher: Launcher, out: Path) -> None:
    plan = {"ps/0": [6], "worker/1": [4]}
    with planned(launcher, out, {"ps/0": [6]}, "--restarts=3", "--restart=worker=task,ps=never") as run:
        assert run.end() == 6
    words = ("--restarts=3", "--restart=ps=task", "--restart=worker=cluster", "--evaluator")
    with planned(launcher, out, plan, *words) as run:
        run.wait_for("are stopped and start again")
        until(lambda: re.search(r"worker/0 +│ attempt [12]", run.out), "worker/0 to start again, too")
        assert "all tasks but evaluator/0 are stopped" in run.err  # it is beside the cluster
        assert re.findall(r"evaluator/0 │ attempt (.)", run.out) == ["0"]
        (out / "stop").touch()
        assert run.end() == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--restarts=1", "--restart=often"], "--restart often: not POLICY or JOB=POLICY"),
        (["--restarts=1", "--restart=ps=task,wroker=task"], "a job is ps, worker, chief"),
        (["--restart=task"], "--restart task without --restarts: nothing starts again"),
    ],
)
def test_policies_that_mean_nothing_are_refused(
    launcher: Launcher, out: Path, words: list[str], sentence: str
) -> None:
    with planned(launcher, out, {}, *words) as run:
        assert sentence in run.done().ran(2).sentences


@pytest.mark.parametrize("policy", ["task", "cluster"])
def test_what_an_attempt_left_behind_is_gone_before_the_next(
    launcher: Launcher, out: Path, policy: str
) -> None:
    words = ("--restarts=1", f"--restart={policy}", "--env=HOARD=worker/1")
    with planned(launcher, out, {"worker/1": [3]}, *words) as run:
        run.wait_for("worker/1 │ attempt 1")
        until(lambda: mine(launcher, "worker/1"), "its second attempt")
        (out / "stop").touch()
        done = run.done().ran()  # it could take the lock and the port
    assert "(restart 1 of 1)" in done.err


@pytest.mark.parametrize("detached", [False, True])
def test_a_last_attempt_that_writes_nothing_is_not_waited_for(
    launcher: Launcher, out: Path, detached: bool
) -> None:
    script = launcher.script("""
        import os, sys
        if os.environ["TFLAUNCH_ATTEMPT"] == "0":
            print("once")
            sys.exit(3)
    """)
    words = ("--ps=0", "--workers=1", "--restarts=1", *(["-d"] if detached else []))
    done = launcher.run("run", launcher.local(1), script, *words).ran()
    if detached:
        [run] = re.findall(r"(\S+) goes on by itself", done.err)
        done = launcher.run("attach", run).ran()
    assert done.out.count("once") == 1
    assert "more bytes of its log" not in done.err


def test_ctrl_c_while_a_restart_waits(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [1, 1, 1]}, "--restarts=3") as run:
        run.wait_for("it starts again in 4 s")
        run.interrupt()
        done = run.done().ran(130)
    assert "stopping 2 tasks" in done.err
    assert not log(launcher, "worker/1", 3)


# ---- TensorFlow


@pytest.mark.timeout(300)
def test_asynchronous_training_survives_the_death_of_each_task(launcher: Launcher, out: Path) -> None:
    shutil.copy(EXAMPLE, launcher.code)
    script = launcher.script(ASYNC)
    words = ("--ps=1", "--workers=2", "--restarts=2", f"--env=OUT={out}", "--", "--train_dir=train")

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


@pytest.mark.timeout(300)
def test_the_example_resumes_where_nobody_watches(launcher: Launcher) -> None:
    hosts = launcher.local(3)
    words = ("--ps=1", "--workers=2", "--restarts=2", "--", "--steps=1500", "--checkpoint_steps=50")
    launcher.run("run", "-d", hosts, EXAMPLE, *words).ran()

    def checkpoint() -> int:
        return saved(launcher.hosts, "tflaunch-*/*/*/work/train-*/model.ckpt-*.index")

    until(lambda: checkpoint() >= 100, "a checkpoint", 90.0)
    with launcher.start("attach") as watching:
        before = checkpoint()
        kill(launcher, "ps/0")
        kill(launcher, "worker/0")
        done = watching.done(120.0)
    done.ran()
    for task in ("ps/0", "worker/0"):
        assert re.search(rf"{task} on local\d was killed by SIGKILL .* \(restart 1 of 2\)", done.err)
    again = log(launcher, "worker/0", 1)
    assert "worker/0 resumes from" in again
    numbers = [int(number) for number in re.findall(r"^worker/0 step +(\d+) ", again, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert before <= numbers[0]
    assert numbers[-1] >= 1500


@pytest.mark.timeout(300)
def test_mirrored_workers_start_again_together(launcher: Launcher, out: Path) -> None:
    script = launcher.script(MIRRORED)
    words = ("--ps=0", "--workers=2", "--restarts=2", "--grace=1", f"--env=OUT={out}")
    with launcher.start("run", launcher.local(2), script, *words) as run:
        assert begins(launcher, "worker/0") == 0
        until(lambda: max(steps(launcher, "worker/1"), default=0) >= 12, "two checkpoints", 90.0)
        kill(launcher, "worker/1")
        done = run.done(120.0)
    done.ran()
    assert "all tasks are stopped and start again in 1 s (restart 1 of 2)" in done.err
    for task in ("worker/0", "worker/1"):
        assert begins(launcher, task, attempt=1) >= 10
        assert steps(launcher, task, 1) == [*range(begins(launcher, task, attempt=1) + 1, 61)]
