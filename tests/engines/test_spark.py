"""Runs in slots of a real Spark: what works, and what each death leaves, which is nothing."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.engines.trained import look_from_other_terminals, train, trainer
from tests.support import ROOT
from tests.support import bed as beds
from tests.support import spark as sparks
from tests.support.bed import Bed
from tests.support.launcher import Running
from tests.support.patience import PATIENCE_S, until
from tests.support.spark import SPARK_S, OnSpark, SparkCluster, is_holder

TRAINER = trainer("SPARK", "PYSPARK", "_PYSPARK", "PYTHON_")
TASKS = ("--ps=0", "--workers=2", "--no-flags")
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.own_cluster, pytest.mark.skipif(bool(sparks.missing()), reason=sparks.missing())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[SparkCluster]:
    """A Spark of two hosts, with two cards each: one for all tests here, for its JVMs take long to start."""
    if reason := beds.missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("spark")
    bed = Bed(directory / "bed")
    for host in bed.up(2, share=[str(directory)]):
        host.give_gpus(library, *(f"gpu uuid=GPU-{host.name}-{index}" for index in range(2)))
    cluster = SparkCluster(bed, directory / "cluster", gpus=["0", "1"])
    yield cluster
    cluster.close()
    bed.close()


@pytest.fixture
def user(tmp_path: Path, cluster: SparkCluster) -> Iterator[OnSpark]:
    """A user of that Spark; at the end nothing of theirs is left on its hosts."""
    user = OnSpark(tmp_path, cluster.bed)
    user.cluster = cluster
    yield user
    user.close()


def training(user: OnSpark, *words: str, seconds: float = 600) -> Running:
    """A run whose two tasks train."""
    return train(user, TRAINER, user.slots("2"), TASKS, *words, "--", str(seconds))


def test_a_run_in_slots_of_spark(user: OnSpark) -> None:
    words = ("--ps=1", "--workers=3", "--no-flags", "--fetch=*.txt", "--", "0.1")
    done = user.run("run", user.slots("3"), user.script(TRAINER), *words).ran()
    assert done.out.count("ends") == 4
    assert done.out.count("[]") == 4  # nothing of Spark's own is left in their environment
    assert "nothing is left running" in done.sentences
    user.wait_until_nothing_is_left()
    assert "succeeded" in user.run("ps", "-a").ran().out
    assert "ends" in user.run("logs").ran().out


def test_other_terminals(user: OnSpark) -> None:
    look_from_other_terminals(user, training(user))


def test_what_cannot_be_is_told_before_a_task_starts(user: OnSpark) -> None:
    script = user.script(TRAINER)
    done = user.run("run", user.slots("5"), script, *TASKS, "--", "1").ran(65)
    assert "room for 4 slots of this size, and 5 are wanted" in done.sentences
    done = user.run("run", user.slots("2"), script, *TASKS, "-d", "--", "1").ran(2)
    assert "Spark ends an application with its driver" in done.sentences
    done = user.run(
        "run", user.slots("2", "conf=spark.dynamicAllocation.enabled=true"), script, *TASKS, "--", "1"
    )
    assert "spark.dynamicAllocation.enabled=true" in done.ran(2).sentences
    done = user.run("run", user.slots("ps=1x0+worker=1x1"), script, *TASKS, "--", "1").ran(2)
    assert "of one size" in done.sentences
    elsewhere = f"spark://{user.bed.launcher.address}:1,2"
    done = user.run("run", elsewhere, script, *TASKS, "--", "1").ran(69)
    assert "does not answer" in done.sentences
    assert user.records() == []


def test_a_run_that_waits_for_the_workers_is_given_up(user: OnSpark) -> None:
    with (
        training(user) as first,
        user.start("run", user.slots("3"), user.script(TRAINER), *TASKS, "--", "1") as other,
    ):
        other.wait_for("room for 2 of 3 slots")
        other.interrupt()
        assert other.end() == 130, other.err
        first.interrupt()
        assert first.end() == 130, first.err


DEATHS = {
    "executor": "Spark has lost executor",
    "worker": "Python worker that held a slot",
    "holder": "slot holder",
}


@pytest.mark.parametrize("kind", DEATHS)
def test_a_death_ends_the_run_in_order(user: OnSpark, kind: str) -> None:
    with training(user) as running:
        victims = [each for host in user.bed.hosts for each in user.on_host(host, kind)]
        victims[0].kill(signal.SIGKILL)
        done = running.done(SPARK_S).ran(75)
    assert "was taken back" in done.sentences
    assert DEATHS[kind] in done.sentences
    # A slot's lines come through its holder.
    assert done.out.count("saved by") == (1 if kind == "holder" else 2)
    user.wait_until_nothing_is_left()


def test_a_worker_daemon_that_dies_takes_its_slots_with_it(user: OnSpark) -> None:
    """Those that hold a run, and those that the next one may ask for."""
    with training(user) as running:
        [host] = [host for host in user.bed.hosts if user.on_host(host, "holder")][:1]
        [daemon] = user.on_host(host, "daemon")
        daemon.kill(signal.SIGKILL)
        try:
            done = running.done(SPARK_S).ran(75)
            assert "Spark has lost executor" in done.sentences
            user.wait_until_nothing_is_left()
            done = user.run("run", user.slots("4"), user.script(TRAINER), *TASKS, "--", "1").ran(65)
            assert "room for 2 slots of this size, and 4 are wanted" in done.sentences
        finally:
            user.cluster.start_worker(host)


def session(
    user: OnSpark,
    body: str,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    conf: Sequence[tuple[str, str]] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A Spark program on the launcher's machine: `sc` is its context, `program` the trainer."""
    program = user.script(TRAINER)
    text = f"""
from pyspark import SparkConf, SparkContext
import threading
from tflaunch import api
conf = SparkConf().setMaster({user.cluster.master!r}).set("spark.executor.memory", "480m")
conf.set("spark.executor.cores", "1").set("spark.cores.max", "2").set("spark.ui.enabled", "false")
conf.setAll({conf!r})
sc = SparkContext(conf=conf)
program = {str(program)!r}
options = dict(ps=0, workers=2, flags=False)
{textwrap.dedent(body)}
"""
    path = user.code / "session.py"
    path.write_text(text)
    words = user.bed.launcher.inside(sys.executable, str(path), cwd=user.code)
    with subprocess.Popen(
        words, env=user.env(**(env or {})), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            meanwhile()
            out, err = process.communicate()
        except AssertionError as error:
            process.kill()
            raise AssertionError(f"{error}: {process.communicate()}") from None
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_runs_of_a_spark_program_share_its_application(user: OnSpark) -> None:
    """Two one after the other; one of them is too large; then the program goes on."""
    done = session(
        user,
        """
        for _ in range(2):
            with api.run("spark:2", program, args=["0.1"], **options) as run:
                lines = [event["line"] for event in run if event["event"] == "log"]
            print(run.wait().status, lines.count("ends"))
        try:
            with api.run("spark:3", program, args=["0.1"], **options) as run:
                run.wait()
        except api.TflaunchError as error:
            print(error.exit_code, error.message)
        print("sum", sc.parallelize(range(5), 2).sum())
        sc.stop()
        """,
    )
    assert done.stdout.splitlines() == [
        "succeeded 2",
        "succeeded 2",
        "65 spark: 2 tasks can run at a time in this application, and 3 slots are wanted",
        "sum 10",
    ], done.stderr


def test_a_function_returns_what_each_task_returns(user: OnSpark) -> None:
    done = session(
        user,
        """
        from tflaunch import spark
        def train(base):
            import json, os
            config = json.loads(os.environ["TF_CONFIG"])
            print("computes")
            return base + config["task"]["index"], config["task"]["type"]
        run = spark.run(sc, train, workers=4, ps=1, slots=2, args=[10])
        print(run.results)
        def fails():
            raise ValueError("of the user's own")
        run = spark.run(sc, fails, workers=1)
        print(run.wait().exit_code, "of the user's own" in run.log("worker/0"), "in fails" in run.log("worker/0"))
        for wrong in (lambda: spark.run(sc, lambda: sc, workers=1), lambda: spark.run(object(), train, workers=1)):
            try:
                wrong()
            except api.TflaunchError as error:
                print(error.message.partition(":")[0])
        sc.stop()
        """,
    )
    assert done.stdout.splitlines() == [
        "[(10, 'worker'), (11, 'worker'), (12, 'worker'), (13, 'worker')]",
        "1 True True",
        "<lambda> or its arguments cannot be sent to the executors",
        "object is no SparkSession and no SparkContext",
    ], done.stderr


def test_tasks_have_what_the_session_has_of_hadoop_and_of_archives(user: OnSpark) -> None:
    """Its class path, its delegation tokens in a file of theirs alone, and the Python that an archive has brought."""
    made = user.directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(made)], check=True)
    [packages] = made.glob("lib/python*/site-packages")
    (packages / "of_the_archive.py").write_text("says = 'here'\n")
    archive = user.directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made, ".")
    done = session(
        user,
        """
        from tflaunch import spark
        text = sc._jvm.org.apache.hadoop.io.Text
        token = sc._jvm.org.apache.hadoop.security.token.Token(
            bytearray(b"who"), bytearray(b"a secret of the session"), text("KIND"), text("namenode:8020"))
        sc._jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addToken(token)
        def looks():
            import os, stat, sys
            import of_the_archive
            place = os.environ["HADOOP_TOKEN_FILE_LOCATION"]
            told = open(place, "rb").read()
            jars = os.environ["CLASSPATH"].split(":")
            return (
                os.environ["TFLAUNCH_DEFAULT_FS"], of_the_archive.says, os.path.basename(sys.prefix),
                told[:4] == b"HDTS" and b"a secret of the session" in told, oct(os.stat(place).st_mode),
                any("hadoop-client-api" in jar and os.path.exists(jar) for jar in jars),
                sorted(name for name in os.environ if "secret" in os.environ[name]),
            )
        print(spark.run(sc, looks, workers=2).results)
        sc.stop()
        """,
        conf=[
            ("spark.archives", f"{archive}#environment"),
            ("spark.hadoop.fs.defaultFS", "hdfs://namenode:8020"),
        ],
        env={"PYSPARK_PYTHON": "./environment/bin/python"},
    )
    one: tuple[object, ...] = ("hdfs://namenode:8020", "here", "environment", True, "0o100600", True, [])
    assert done.stdout.splitlines() == [repr([one, one])], done.stderr


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("sc.cancelAllJobs()", "the Spark job was cancelled"),
        ("sc.stop()", "the Spark application was stopped"),
    ],
)
def test_what_a_spark_program_ends_says_so(user: OnSpark, how: str, words: str) -> None:
    done = session(
        user,
        f"""
        begun = 0
        with api.run("spark:2", program, args=["600"], **options) as run:
            for event in run:
                if event["event"] == "log":
                    print(event["line"])
                    begun += event["line"].startswith("attempt 0")
                    if begun == 2 and "attempt 0" in event["line"]:
                        threading.Thread(target=lambda: {how}).start()
            outcome = run.wait()
        print(outcome.exit_code, outcome.first_failure.reason)
        """,
    )
    assert done.stdout.count("saved by") == 2, done.stderr
    assert done.stdout.splitlines()[-1] == f"75 {words}", done.stderr
    user.wait_until_nothing_is_left()


def test_a_session_goes_on_when_a_run_in_it_has_lost_a_worker(user: OnSpark) -> None:

    def kill_a_worker() -> None:
        until(lambda: "2/2" in user.run("ps").out, "both tasks", SPARK_S)
        [victim, *_] = [each for host in user.bed.hosts for each in user.on_host(host, "worker")]
        victim.kill(signal.SIGKILL)

    done = session(
        user,
        """
        with api.run("spark:2", program, args=["600"], **options) as run:
            outcome = run.wait()
        print(outcome.exit_code, outcome.first_failure.reason)
        print("sum", sc.parallelize(range(5), 2).sum())
        """,
        kill_a_worker,
    )
    code, _, rest = done.stdout.partition(" ")
    assert code == "75", done.stderr
    assert "Python worker that held" in rest, done.stderr
    assert rest.endswith("sum 10\n")
    user.wait_until_nothing_is_left()


def test_a_killed_agent_leaves_nothing(user: OnSpark) -> None:
    with training(user) as running:
        for agent in [each for host in user.bed.hosts for each in user.on_host(host, "agent")]:
            agent.kill(signal.SIGKILL)
        done = running.done(SPARK_S)
    assert done.code != 0
    user.wait_until_nothing_is_left()


def test_a_sweep_shares_the_slots(user: OnSpark) -> None:
    script = user.script("import sys\nprint('loss', float(sys.argv[1].partition('=')[2]) ** 2)")
    done = user.run("sweep", user.slots("2"), script, "--grid=lr=3,1,2", "--metric=loss").ran()
    assert "3 of 3 trials" in done.sentences or "3 trials" in done.sentences, done.err + done.out
    user.wait_until_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_driver_frees_everything(user: OnSpark, number: signal.Signals) -> None:
    with training(user, "--lease=30") as running:
        running.signal(number)
        running.end()
        until(lambda: not user.leftovers(), "the end of all that is tflaunch's", SPARK_S)
    assert not [each for host in user.bed.hosts for each in host.processes() if is_holder(each)]


def test_restarts_take_the_slots_again(user: OnSpark) -> None:
    with training(user, "--restarts=1", seconds=6) as running:
        user.on_host(user.bed.hosts[0], "executor")[0].kill(signal.SIGKILL)
        running.wait_for("attempt 1 of", 2)
        done = running.done(SPARK_S).ran()
    assert "taking slots again" in done.sentences
    assert done.out.count("ends") >= 2


def test_each_task_has_the_card_that_spark_gave_it(user: OnSpark) -> None:
    script = user.script("import os\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'])")
    words = ("--ps=0", "--workers=4", "--no-flags")
    done = user.run("run", user.slots("4x1"), script, *words).ran()
    seen = re.findall(r"sees (GPU-host\d-\d)$", done.out, re.MULTILINE)
    assert sorted(seen) == ["GPU-host1-0", "GPU-host1-1", "GPU-host2-0", "GPU-host2-1"]


def test_a_model_over_a_dataframe_sees_the_card_that_spark_gave_its_task(user: OnSpark) -> None:
    done = session(
        user,
        """
        from pyspark.sql import SparkSession
        from tflaunch import spark
        def load():
            import os
            from pyspark import TaskContext
            given = ",".join(TaskContext.get().resources()["gpu"].addresses)
            return lambda x: [given + " as " + os.environ["CUDA_VISIBLE_DEVICES"]] * len(x)
        rows = spark.predict(SparkSession(sc).range(0, 40, 1, 8), load, outputs="card string").collect()
        print(len(rows), *sorted({row.card for row in rows}), sep=", ")
        sc.stop()
        """,
        conf=[("spark.executor.resource.gpu.amount", "1"), ("spark.task.resource.gpu.amount", "1")],
    )
    assert re.fullmatch(r"40(, (\d) as \2)+\n", done.stdout), done.stdout + done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("async_ps.py", ("--ps=1", "--workers=3", "--grace=2", "--", "--steps=900")),
        (
            "multi_worker_mirrored.py",
            ("--ps=0", "--workers=3", "--grace=2", "--", "--steps=60", "--batch_size=48"),
        ),
    ],
)
def test_tensorflow_trains_in_slots_of_spark(user: OnSpark, example: str, words: tuple[str, ...]) -> None:
    with user.start("run", user.slots("3"), EXAMPLES / example, *words) as running:
        done = running.done(4 * PATIENCE_S).ran()
    losses = [float(each) for each in re.findall(r"loss[ =:]+([\d.]+)", done.out)]
    assert losses[-1] < 0.5  # it begins with 0.7
