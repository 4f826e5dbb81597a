"""Rows of a real Spark in the tasks of real runs: `tflaunch.spark.run(feed=...)`, and what TensorFlowOnSpark calls."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import spark as sparks
from tests.support.patience import until
from tflaunch import spark
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.spark.tensorflowonspark import TFCluster, TFParallel

pytestmark = [pytest.mark.own_cluster, pytest.mark.skipif(bool(sparks.missing()), reason=sparks.missing())]
tensorflow = pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark with room for two slots, for all tests here."""
    from pyspark import cloudpickle

    place = tmp_path_factory.mktemp("session")
    with sparks.session_here(place, place / "spark.log") as session:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
        yield session
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of their own."""
    monkeypatch.setenv("TFLAUNCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def lines(run: spark.SparkRun) -> list[str]:
    """What its tasks print until its end."""
    return [f"{event['task']} {event['line']}" for event in run if event["event"] == "log"]


def counted(epochs: int | None = None) -> tuple[int, int]:
    """How many rows come, and the sum of their ids."""
    import pyarrow.compute

    from tflaunch_task import dataset

    rows = total = 0
    for batch in dataset.arrow(epochs=epochs):
        rows += batch.num_rows
        total += pyarrow.compute.sum(batch.column(0)).as_py() or 0
    return rows, total


def test_rows_of_a_dataframe_come_once_each(session: Any) -> None:
    count = 1_000_000
    frame = session.range(count).selectExpr("id", "cast(id % 7 as float) as x", "'never read' as word")
    run = spark.run(session, counted, workers=2, feed=frame, columns=["id", "x"])
    found = run.results
    assert sum(rows for rows, _ in found) == count
    assert sum(total for _, total in found) == count * (count - 1) // 2
    assert all(rows > count // 3 for rows, _ in found)


def test_epochs_read_an_rdd_once(session: Any) -> None:
    made = session.sparkContext.accumulator(0)

    def row(number: int) -> tuple[int, list[float]]:
        made.add(1)
        return number, [0.5] * 4

    rows = session.sparkContext.parallelize(range(30_000), 3).map(row)
    run = spark.run(session, counted, workers=2, feed=rows, columns=["id", "v"], epochs=3)
    assert sum(count for count, _ in run.results) == 90_000
    assert sum(total for _, total in run.results) == 3 * 30_000 * 29_999 // 2
    assert 30_000 <= made.value < 40_000  # a look at the first row before


def test_a_restart_reads_the_rows_again(session: Any, tmp_path: Path) -> None:
    def dies_once(mark: str) -> tuple[int, int]:
        import signal

        from tflaunch_task import dataset

        if os.environ["TFLAUNCH_TASK"] == "worker/1" and not Path(mark).exists():
            for batch in dataset.arrow():
                Path(mark).write_text(str(batch.num_rows))
                os.kill(os.getpid(), signal.SIGKILL)
        return counted()

    frame = session.range(5000)
    mark = tmp_path / "mark"
    run = spark.run(session, dies_once, args=[str(mark)], workers=2, feed=frame, restarts=1)
    assert sum(rows for rows, _ in run.results) == 5000
    assert mark.exists()


@pytest.mark.parametrize("spool", [True, False])
def test_a_task_that_reads_no_more_ends_its_slot(session: Any, spool: bool) -> None:
    def stops_early() -> int:
        from tflaunch_task import dataset

        return sum(batch.num_rows for batch, _ in zip(dataset.arrow(), range(2), strict=False))

    frame = session.range(400_000)
    run = spark.run(session, stops_early, workers=2, feed=frame, spool=spool)
    assert run.results == [20_000, 20_000]
    tracker = session.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveJobsIds(), "the end of the Spark job")


def test_the_error_of_a_row_ends_the_run_in_its_words(session: Any) -> None:
    rows = session.sparkContext.parallelize(range(50_000), 2).map(
        lambda number: (number, "x" if number == 45_000 else 1)
    )
    run = spark.run(session, counted, workers=2, feed=rows, columns=["id", "n"])
    said = "\n".join(lines(run))
    assert "column n: row" in said
    assert "is no int64" in said
    assert run.wait().status == "failed"


@tensorflow
def test_tasks_that_wait_for_each_other_get_as_many_rows(session: Any) -> None:
    def train() -> tuple[int, float]:
        import tensorflow as tf

        from tflaunch_task import dataset

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            weights = tf.Variable(tf.zeros([4, 1]))
        steps, loss = 0, 0.0

        @tf.function
        def step(x: Any, y: Any) -> Any:
            def replica() -> Any:
                with tf.GradientTape() as tape:
                    off = tf.reduce_mean((x @ weights - y[:, None]) ** 2)
                gradient = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(off, weights))
                weights.assign_sub(0.1 * gradient)
                return off

            return strategy.reduce("mean", strategy.run(replica), axis=None)

        for x, y in dataset(["v", "y"], batch=10, epochs=4):
            loss = float(step(x, y))
            steps += 1
        return steps, loss

    rows = session.sparkContext.parallelize(range(205), 2).map(
        lambda number: ([float(number % part) / part for part in (2, 3, 5, 7)], float(number % 2) / 2)
    )
    # One slot has a row more than the other.
    frame = session.createDataFrame(rows, "v array<float>, y float")
    run = spark.run(session, train, workers=2, feed=frame)
    said = lines(run)
    (steps, loss), (others, _) = run.results
    assert steps == others > 0
    assert loss < 0.05
    assert any("rows are left out here" in line for line in said)


def test_what_tasks_cannot_read_is_told_before_the_start(session: Any) -> None:
    frame = session.sql(
        "select 1 as n, map('a', 1) as m, current_date() as day, cast(1 as decimal(9, 2)) as price"
    )
    for columns, words in {
        "m": "column 'm' is map<string,int>",
        "day": "column 'day' is date",
        "price": r"column 'price' is decimal\(9,2\)",
        "none": "no column 'none'",
    }.items():
        with pytest.raises(UsageError, match=words):
            spark.run(session, counted, workers=2, feed=frame, columns=columns)
    context = session.sparkContext
    for rows, words in {
        context.parallelize([]): "the RDD has no rows",
        context.parallelize([(1, None)]): "column '_2' of the first row is None",
        context.parallelize([(1, {"a": 2})]): "column '_2' of the first row",
    }.items():
        with pytest.raises(UsageError, match=words):
            spark.run(session, counted, workers=2, feed=rows)
    for words in (
        {"feed": [1, 2]},
        {"feed": frame, "epochs": 2, "spool": False},
        {"feed": frame, "columns": "n", "spool": "much"},
        {"feed": frame, "columns": "n", "slots": 3},
        {"epochs": 2},
    ):
        with pytest.raises(UsageError):
            spark.run(session, counted, workers=2, **words)
    run = spark.run(session, counted, workers=2, feed=frame.repartition(3), columns="n", repartition=False)
    with pytest.raises(UsageError, match="the rows have 3 partitions, and there are 2 slots"):
        run.wait()


def test_columns_have_any_name(session: Any) -> None:
    def names() -> list[str]:
        from tflaunch_task import dataset

        return [name for batch in dataset.arrow() for name in batch.schema.names]

    frame = session.range(1).toDF("n").selectExpr("n as `a.b`", 'n as `it\'s "it"`', "n as `b\u00e4ck``tick`")
    assert spark.run(session, names, workers=1, feed=frame).results == [
        ["a.b", 'it\'s "it"', "b\u00e4ck`tick"]
    ]


def test_a_task_that_stops_early_holds_up_no_other(session: Any) -> None:
    def counts() -> int:
        from tflaunch_task import dataset

        rows = 0
        for batch in dataset.arrow(even=True):
            rows += batch.num_rows
            if os.environ["TFLAUNCH_TASK"] == "worker/1":
                break
        return rows

    found = spark.run(session, counts, workers=2, feed=session.range(400_000)).results
    assert found == [200_000, 10_000]


def test_vectors_of_spark_ml_are_lists(session: Any) -> None:
    from pyspark.ml.linalg import Vectors

    def first() -> list[float]:
        from tflaunch_task import dataset

        return [each for batch in dataset.arrow() for each in batch.column("v").to_pylist()[0]]

    frame = session.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["v"])
    assert spark.run(session, first, workers=1, feed=frame).results == [[1.0, 2.0]]


def test_a_cluster_of_tensorflowonspark_trains_and_infers(
    session: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its kind of program, with nothing but its imports changed."""

    def main_fun(args: argparse.Namespace, ctx: Any) -> None:
        from tflaunch_task import TFNode

        feed = TFNode.DataFeed(ctx.mgr, True)
        rows = 0
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if len(batch) > 0:
                image, label = batch[0]
                assert label == sum(image) // 7
                rows += 1
        Path("seen").write_text(str(rows))
        print("saw", rows, "of", args.what, "as", ctx.job_name, ctx.task_index, "of", ctx.num_workers)
        print("in", Path(ctx.working_dir).name)

    def predict(args: argparse.Namespace, ctx: Any) -> None:
        feed = ctx.get_data_feed(False)
        while not feed.should_stop():
            rows = feed.next_batch(100)
            feed.batch_results([2 * label for _, label in rows])

    rows = session.sparkContext.parallelize(range(1000), 3).map(lambda number: ([number] * 7, number))
    args = argparse.Namespace(what="rows")
    cluster = TFCluster.run(
        session.sparkContext, main_fun, args, 2, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    cluster.train(rows, 2)
    with pytest.raises(UsageError, match="has its rows already"):
        cluster.train(rows, 2)
    cluster.shutdown()
    said = capfd.readouterr().err
    assert sum(int(line.split()[2]) for line in said.splitlines() if " saw " in line) == 2000
    assert "of rows as chief 0 of 2" in said
    assert "in worker-0" in said

    cluster = TFCluster.run(session.sparkContext, predict, args, 2, input_mode=TFCluster.InputMode.SPARK)
    found = cluster.inference(rows)
    assert sorted(found.collect()) == list(range(0, 2000, 2))

    def alone(args: list[str], ctx: Any) -> None:
        import sys

        if sys.argv[1:] != ["--fails"]:
            raise ValueError(sys.argv)
        raise KeyError(ctx.worker_num)

    with pytest.raises(TflaunchError, match="the run failed"):
        TFParallel.run(session.sparkContext, alone, ["--fails"], 2)
    assert "KeyError" in capfd.readouterr().err


@tensorflow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # CrossValidator leaves its threads
def test_an_estimator_in_a_pipeline(session: Any, tmp_path: Path) -> None:
    """With a stage of Spark's own before it, the better of two by CrossValidator; saved, loaded and applied."""
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import StringIndexer
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    def train(params: argparse.Namespace) -> None:
        import tensorflow as tf

        from tflaunch_task import dataset

        weights = tf.Variable(tf.zeros([3, 1]))

        def values(kind_at: Any, n: Any) -> Any:
            x = tf.stack([kind_at, n, tf.ones_like(n)], -1)
            return (tf.cast(x, tf.float32) @ weights)[:, 0]

        for x, y in dataset(params.features, label=params.label, batch=params.train_batch, epochs=40):
            with tf.GradientTape() as tape:
                off = values(x["kind_at"], x["n"]) - tf.cast(y, tf.float32)
                loss = tf.reduce_mean(off**2)
            weights.assign_sub(params.rate * tape.gradient(loss, weights))
        column = tf.TensorSpec([None], tf.float64)
        module = tf.Module()
        module.weights = weights

        @tf.function(input_signature=[column, column])
        def served(kind_at: Any, n: Any) -> Any:
            return {"score": values(kind_at, n)}

        module.served = served
        tf.saved_model.save(module, params.model_dir, signatures=served)

    rows = [("ab"[number % 2], number / 100, 3.0 * (number % 2) + number / 100) for number in range(100)]
    frame = session.createDataFrame(rows, "kind string, n double, y double").repartition(2)
    estimator = spark.Estimator(
        train,
        features=["kind_at", "n"],
        label="y",
        train_batch=10,
        model_dir=tmp_path / "models",
        outputs={"score": "prediction"},
    )
    # By name: by how often each comes in a fold, one of two folds would have them the other way round.
    indexer = StringIndexer(inputCol="kind", outputCol="kind_at", stringOrderType="alphabetAsc")
    pipeline = Pipeline(stages=[indexer, estimator])
    pipeline.write().save(str(tmp_path / "pipeline"))
    again = Pipeline.load(str(tmp_path / "pipeline"))
    judge = RegressionEvaluator(labelCol="y")
    settings = again.getStages()[1].settings
    grid = ParamGridBuilder().addGrid(settings, [{"rate": 0.0}, {"rate": 0.1}]).build()
    found = CrossValidator(estimator=again, estimatorParamMaps=grid, evaluator=judge, numFolds=2, seed=7).fit(
        frame
    )
    assert found.avgMetrics[1] < 0.5 < found.avgMetrics[0]
    found.bestModel.write().save(str(tmp_path / "saved"))
    scored = PipelineModel.load(str(tmp_path / "saved")).transform(frame)
    assert {"kind", "n", "y", "kind_at", "prediction"} == set(scored.columns)
    assert judge.evaluate(scored) < 0.5
    with pytest.raises(UsageError, match="has no model_dir"):
        spark.Estimator(train, features=["n"], label="y").fit(frame)


@tensorflow
def test_the_pipeline_of_tensorflowonspark(session: Any, tmp_path: Path) -> None:
    """Its kind of program, with nothing but its imports changed."""
    from tflaunch.spark.pipeline import TFEstimator, TFModel

    def main_fun(args: argparse.Namespace, ctx: Any) -> None:
        import numpy as np
        import tensorflow as tf

        from tflaunch_task import TFNode

        feed = TFNode.DataFeed(ctx.mgr, True, input_mapping=args.input_mapping)
        weights = tf.Variable([[0.0]])
        while not feed.should_stop():
            batch = feed.next_batch(args.batch_size)
            if not batch["x"]:
                break
            x, y = np.array(batch["x"], "f4"), np.array(batch["y"], "f4")
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights - y) ** 2)
            weights.assign_sub(0.3 * tape.gradient(loss, weights))
        assert (ctx.job_name, args.own) == ("chief", 7)

        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
        def served(x: Any) -> Any:
            return {"said": x @ weights}

        module = tf.Module()
        module.weights, module.served = weights, served
        tf.saved_model.save(module, args.export_dir, signatures=served)

    rows = [([number / 100], [number / 50]) for number in range(100)]
    frame = session.createDataFrame(rows, "b_x array<float>, a_y array<float>")
    estimator = (
        TFEstimator(main_fun, argparse.Namespace(own=7, epochs=1))
        .setInputMapping({"b_x": "x", "a_y": "y"})
        .setExportDir(str(tmp_path / "export"))
        .setClusterSize(1)
        .setEpochs(30)
        .setBatchSize(10)
    )
    model = estimator.fit(frame)
    assert isinstance(model, TFModel)
    scored = model.setInputMapping({"b_x": "x"}).setOutputMapping({"said": "score"}).transform(frame)
    assert scored.columns == ["score"]
    found = [row.score[0] if isinstance(row.score, list) else row.score for row in scored.collect()]
    assert max(abs(said - y) for said, (_, [y]) in zip(found, rows, strict=True)) < 0.1
