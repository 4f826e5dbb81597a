"""Models over DataFrames, on a real Spark with real TensorFlow: what `tflaunch.spark.predict` and `Model` promise."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import spark as sparks
from tflaunch import spark
from tflaunch.protocol.errors import UsageError

MISSING = sparks.missing() or ("" if importlib.util.find_spec("tensorflow") else "no TensorFlow here")

pytestmark = [pytest.mark.own_cluster, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

LOADED = re.compile(r"^tflaunch: process (\d+) has loaded (.+) in [\d.]+ s$", re.MULTILINE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models are, and what they themselves say of their rows."""
    directory = tmp_path_factory.mktemp("models")
    maker = Path(__file__).with_name("predicted_models.py")
    done = subprocess.run([sys.executable, maker, directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark and its Python workers write."""
    return tmp_path_factory.mktemp("log") / "spark.log"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[Any]:
    """A Spark with two Python workers at a time, for all tests here."""
    from pyspark import cloudpickle

    with sparks.session_here(tmp_path_factory.mktemp("session"), log) as session:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
        yield session
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def table(session: Any, models: Path) -> Any:
    """In eight parts, the rows that the models were asked about, with columns of other kinds beside them."""
    import numpy as np

    rows = np.load(models / "rows.npy")
    listed = [(number, row.tolist()) for number, row in enumerate(rows)]
    df = session.createDataFrame(listed, "id int, features array<float>").repartition(8)
    return df.selectExpr("id", "features", "concat('row ', id) as name").cache()


def loads(log: Path) -> Counter[tuple[str, str]]:
    """How often each process has loaded each model."""
    return Counter(LOADED.findall(log.read_text(errors="replace")))


@pytest.mark.parametrize("name", ["scores.keras", "scores.h5", "scores"])
def test_it_says_what_the_model_says(table: Any, models: Path, log: Path, name: str) -> None:
    import numpy as np

    output = "output_0" if name == "scores" else "scores"
    scored = spark.predict(table, models / name, inputs="features", outputs={output: "said"}, batch=100)
    assert scored.columns == ["id", "features", "name", "said"]
    assert scored.schema["said"].dataType.simpleString() == "array<float>"
    rows = sorted(scored.collect())
    said = np.load(models / "said.npy")
    assert len(rows) == len(said) == 10_000
    np.testing.assert_allclose(np.array([row.said for row in rows]), said, atol=1e-6)
    assert rows[7].name == "row 7"
    np.testing.assert_array_equal([row.features for row in rows], np.load(models / "rows.npy"))
    # Another job finds the workers with their model.
    assert scored.where("said[0] >= 0").count() == 10_000
    counts = {pid: count for (pid, path), count in loads(log).items() if path == str(models / name)}
    assert counts, log.read_text()
    assert set(counts.values()) == {1}
    assert len(counts) < 16  # tasks


def test_vectors_and_a_pipeline_that_is_saved_and_loaded(session: Any, models: Path, tmp_path: Path) -> None:
    import numpy as np
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    rows = np.load(models / "rows.npy")[:50]
    rows[::2, 1:] = 0  # so that the assembler makes sparse vectors of some
    listed = [(number, *row.tolist(), "ab"[number % 2]) for number, row in enumerate(rows)]
    df = session.createDataFrame(listed, "id int, a float, b float, c float, d float, letter string")
    indexer = StringIndexer(inputCol="letter", outputCol="code")
    assembler = VectorAssembler(inputCols=["a", "b", "c", "d"], outputCol="features")
    model = spark.Model(models / "scores.keras", inputs=["features"], outputs={"scores": "said"}, batch=7)
    pipeline = Pipeline(stages=[indexer, assembler, model]).fit(df)
    before = pipeline.transform(df).orderBy("id").collect()
    assert {type(row.features).__name__ for row in before} == {"SparseVector", "DenseVector"}
    assert {row.code for row in before} == {0.0, 1.0}

    pipeline.write().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    stage = loaded.stages[-1]
    assert (stage.getPath(), stage.getInputs()) == (str(models / "scores.keras"), ["features"])
    assert (stage.getOutputs(), stage.getBatch(), stage.uid) == ({"scores": "said"}, 7, model.uid)
    after = loaded.transform(df).orderBy("id").collect()
    assert after == before
    alone = spark.Model.load(str(next((tmp_path / "pipeline/stages").glob("2_*"))))
    assert alone.getBatch() == 7
    # As the model itself says, of the rows that were not changed.
    said = np.array([row.said for row in after])[1::2]
    np.testing.assert_allclose(said, np.load(models / "said.npy")[1:50:2], atol=1e-6)


def test_two_inputs_by_name_and_a_number_for_each_row(session: Any, models: Path) -> None:
    import numpy as np

    said = np.load(models / "two.npz")
    widths = np.load(models / "rows.npy")[:100, 0]
    listed = [(number, float(width), number % 10) for number, width in enumerate(widths)]
    df = session.createDataFrame(listed, "id int, width double, code bigint")
    rows = spark.predict(df, f"file://{models}/two.keras").orderBy("id").collect()
    np.testing.assert_allclose([row.price for row in rows], said["arr_0"][:, 0], atol=1e-5)
    np.testing.assert_allclose([row.kind for row in rows], said["arr_1"], atol=1e-5)
    kinds = spark.predict(df, models / "two.keras", outputs={"kind": "sort"}).orderBy("id").collect()
    assert [row[3:] for row in kinds] == [(row.kind,) for row in rows]


def test_a_stream(session: Any, table: Any, models: Path, tmp_path: Path) -> None:
    import numpy as np

    df = table.where("id < 900").repartition(3)
    df.write.parquet(str(tmp_path / "rows"))
    files = len(list((tmp_path / "rows").glob("*.parquet")))
    assert files == 3
    stream = (
        session.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
    )
    scored = spark.predict(stream, models / "scores", inputs="features")
    query = (
        scored.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "scored"))
    )
    query.awaitTermination()
    assert len([each for each in query.recentProgress if each["numInputRows"]]) == 3
    written = session.read.parquet(str(tmp_path / "scored"))
    whole = spark.predict(df, models / "scores", inputs="features")
    found, expected = sorted(written.collect()), sorted(whole.collect())
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert len(found) == 900
    np.testing.assert_allclose([row[3] for row in found], [row[3] for row in expected], atol=1e-6)


def test_strings_and_nulls(session: Any, models: Path) -> None:
    df = session.createDataFrame([(0, "grün"), (1, None), (2, ""), (3, "x")], "id int, text string").coalesce(
        1
    )
    scored = spark.predict(df, models / "several", signature="text", batch=2)
    assert scored.schema.simpleString() == "struct<id:int,text:string,length:int,upper:string>"
    assert [tuple(row) for row in scored.orderBy("id").collect()] == [
        (0, "grün", 5, "GRüN"),
        (1, None, None, None),
        (2, "", 0, ""),
        (3, "x", 1, "X"),
    ]
    binary = spark.predict(
        df.selectExpr("cast(text as binary) as bytes"),
        models / "several",
        signature="text",
        outputs=["length"],
    )
    assert [row.length for row in binary.collect()] == [5, None, 0, 1]
    # A null in an array is one of its row.
    whole = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    arrays = session.createDataFrame(
        [(0, whole[0]), (1, None), (2, [1.0, 2.0, 3.0, None, 5.0, 6.0]), (3, whole[0])],
        "id int, image array<double>",
    )
    rows = spark.predict(arrays, models / "several", signature="image").orderBy("id").collect()
    assert [row.half for row in rows] == [[1, 2, 3], None, None, [1, 2, 3]]
    assert rows[3].turned == [[1, 4], [2, 5], [3, 6]]
    nothing = spark.predict(arrays.where("image is null"), models / "several", signature="image")
    assert [row.turned for row in nothing.collect()] == [None]


def test_a_signature_for_so_many_rows_gets_as_many(session: Any, models: Path) -> None:
    df = session.createDataFrame([(i, [i, 2]) for i in range(6)], "id int, x array<int>").coalesce(1)
    scored = spark.predict(df, models / "several", signature="four", batch=100)
    assert scored.schema["square"].dataType.simpleString() == "array<array<bigint>>"
    rows = scored.orderBy("id").collect()
    assert [row["sum"] for row in rows] == [2, 3, 4, 5, 6, 7]
    assert rows[5].square == [[25, 10], [10, 4]]


def test_all_kinds_of_columns_are_kept(session: Any) -> None:
    from pyspark.ml.linalg import Vectors

    listed = [(number, Vectors.sparse(2, [0], [float(number)]), {"a": number}) for number in range(3)]
    df = session.createDataFrame(listed, ["id", "v", "m"])
    df = df.selectExpr(
        "*",
        "cast(id as decimal(20,2)) as price",
        "timestamp'2020-01-01 00:00:00' as at",
        "timestamp_ntz'2020-01-01 00:00:00' as local",
        "date'2020-01-01' as day",
        "interval 3 days as for",
        "named_struct('a', id, 'b', array('x', null)) as of",
        "cast(null as string) as nothing",
        "true as `a.b`",
        "1 as twice",
        "2 as twice",
    )
    scored = spark.predict(df, plus_one, inputs=["id"], outputs="more double")
    assert scored.schema.fields[:-1] == df.schema.fields
    assert scored.drop("more").collect() == df.collect()
    assert [row.more for row in scored.collect()] == [1.0, 2.0, 3.0]


def plus_one() -> Callable[..., Any]:
    return lambda x: x + 1.0


def sizes() -> Callable[..., Any]:
    import numpy as np

    return lambda x: np.full(len(x), len(x))


def test_the_model_gets_as_many_rows_as_batch_says(session: Any) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = session.conf.get(key)
    try:
        for most in ("7", "10000"):
            session.conf.set(key, most)
            rows = spark.predict(session.range(0, 95, 1, 1), sizes, outputs="rows int").collect()
            assert Counter(row.rows for row in rows) == {95: 95}
            rows = spark.predict(session.range(0, 95, 1, 1), sizes, outputs="rows int", batch=10).collect()
            assert [row.rows for row in rows] == [10] * 90 + [5] * 5
            assert [row.id for row in rows] == list(range(95))
    finally:
        session.conf.set(key, before)


def test_functions(session: Any) -> None:
    df = session.range(0, 4, 1, 1).selectExpr(
        "id", "cast(id as double) / 2 as half", "concat('n', id) as name"
    )

    def by_place() -> Callable[..., Any]:
        import os

        def call(number: Any, name: Any) -> Any:
            return (
                number * 2,
                [each.upper() for each in name],
                [os.environ["CUDA_VISIBLE_DEVICES"]] * len(number),
            )

        return call

    scored = spark.predict(
        df, by_place, inputs=["half", "name"], outputs="twice float, upper string, gpus string"
    )
    assert [tuple(row)[3:] for row in scored.collect()] == [(float(i), f"N{i}", "-1") for i in range(4)]

    def by_name() -> Callable[..., Any]:
        import numpy as np

        def call(*, x: Any, words: Any) -> Any:
            ragged = np.empty(len(x), object)
            ragged[:] = [list(range(each)) or None for each in x]
            return {"matrix": np.stack([x, x], 1)[:, :, None], "upto": ragged, "left": words}

        return call

    scored = spark.predict(
        df,
        by_name,
        inputs={"id": "x", "name": "words"},
        outputs="upto array<int>, matrix array<array<bigint>>",
    )
    assert [tuple(row)[3:] for row in scored.collect()] == [
        (None, [[0], [0]]),
        ([0], [[1], [1]]),
        ([0, 1], [[2], [2]]),
        ([0, 1, 2], [[3], [3]]),
    ]
    listed = spark.predict(
        df, lambda: lambda x: [f"{each}!" for each in x], inputs="id", outputs="said string"
    )
    assert [row.said for row in listed.collect()] == ["0!", "1!", "2!", "3!"]

    two = spark.predict(
        spark.predict(df, plus_one, inputs="id", outputs="a double"), plus_one, inputs="a", outputs="b float"
    )
    assert [row.b for row in two.collect()] == [2, 3, 4, 5]


def at_its_job(df: Any, function: Callable[[], Any], outputs: str, **more: Any) -> str:
    """What the job of a function that does what it may not has failed with."""
    with pytest.raises(Exception, match="tflaunch: ") as caught:
        spark.predict(df, function, outputs=outputs, **more).collect()
    return re.findall(r"tflaunch: ([^\n]+)", str(caught.value))[-1]


def test_what_only_the_rows_tell(session: Any, models: Path) -> None:
    df = session.range(0, 4, 1, 1)
    assert "output 'a' has 1 for 4 rows" in at_its_job(df, lambda: lambda x: x[:1], "a long")
    assert "output 'a' is float64, and was declared as int" in at_its_job(
        df, lambda: lambda x: x / 2, "a int"
    )
    assert "output 'a' has 300, which is no int8" in at_its_job(df, lambda: lambda x: x + 300, "a tinyint")
    assert "returned b, and no a" in at_its_job(df, lambda: lambda x: {"b": x}, "a long")
    assert "1 arrays, and 2 are wanted" in at_its_job(df, lambda: lambda x: x, "a long, b long")
    assert "has returned int" in at_its_job(df, lambda: 3, "a long")
    ragged = df.selectExpr("sequence(0, id) as xs")
    assert "column 'xs' has arrays of 1 and of 4 values" in at_its_job(ragged, plus_one, "a double")
    scored = spark.predict(df.selectExpr("array(id, id, id) as f"), models / "scores", inputs="f")
    with pytest.raises(Exception, match="column 'f' has 3 values a row, and input 'features' takes 4"):
        scored.collect()
    scored = spark.predict(df.selectExpr("array(id, 3000000000) as x"), models / "several", signature="four")
    with pytest.raises(Exception, match="column 'x' has 3000000000, which is no int32"):
        scored.collect()


WRONG: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "which": (
        "id, id as a",
        "scores",
        {},
        r"which columns\? the model takes features \(float32 \[None, 4\]\)",
    ),
    "column": ("id", "scores", {"inputs": "x"}, "no column 'x': they are id"),
    "input": ("id", "scores", {"inputs": {"id": "x"}}, "no input 'x'"),
    "lacking": ("id", "two.keras", {"inputs": {"id": "code"}}, "no column for width"),
    "string": ("'a' as a", "scores", {}, "column 'a' is string, and input features"),
    "number": ("1 as a", "several", {"signature": "text"}, "column 'a' is int, and input text"),
    "double": ("1D as width, 1D as code", "two.keras", {}, "column 'code' is double, and input code"),
    "scalar": ("1D as a", "scores", {}, "one value a row, and input features .* takes 4"),
    "map": ("map('k', 1) as a", "scores", {}, "column 'a' is map<string,int>: a model takes"),
    "time": ("now() as a", "scores", {}, "column 'a' is timestamp: a model takes"),
    "decimal": ("1.5 as a", "scores", {}, r"column 'a' is decimal\(2,1\): a model takes"),
    "structs": ("array(named_struct('x', 1)) as a", "scores", {}, "column 'a' is array<struct<x:int>>"),
    "clash": ("array(1,2,3,4) as OUTPUT_0", "scores", {}, "there is a column 'output_0' already"),
    "output": ("array(1,2,3,4) as a", "scores", {"outputs": "x"}, "no output 'x': the model gives output_0"),
    "typed": (
        "1F as x",
        "several",
        {"signature": "odd", "outputs": ["wave"]},
        "output wave .* Spark does not have",
    ),
    "reduced": (
        "1F as x",
        "several",
        {"signature": "odd", "outputs": ["mean"]},
        "does not say what there is for",
    ),
    "for all": (
        "1F as x, 2F as by",
        "several",
        {"signature": "scaled"},
        "input by .* one value for all rows",
    ),
    "signature": ("1 as a", "scores", {"signature": "other"}, "has no signature other"),
    "path": ("1 as a", "elsewhere", {}, "the executor on .* cannot see .*/elsewhere"),
    "directory": ("1 as a", "", {}, "is no SavedModel: it is a directory without saved_model.pb"),
    "file": ("1 as a", "rows.npy", {}, "is no SavedModel: it is a file"),
    "keras": ("1 as a", "broken.keras", {}, "Keras cannot load .*broken.keras"),
    "saved": ("1 as a", "broken", {}, "TensorFlow cannot load .*broken"),
    "kept": (
        "1 as a, make_interval(1) as i",
        "scores",
        {},
        "column 'i' is interval, which Spark does not hand",
    ),
    "twice": ("1 as a, 2 as a", "scores", {"inputs": "a"}, "there are 2 columns 'a'"),
    "batch": ("1 as a", "scores", {"batch": 0}, "batch: 0 is no number of rows"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_refused_before_the_job(session: Any, models: Path, kind: str) -> None:
    columns, name, keywords, words = WRONG[kind]
    (models / "broken.keras").write_text("no zip")
    (models / "broken").mkdir(exist_ok=True)
    (models / "broken/saved_model.pb").write_text("no SavedModel")
    df = session.sql(f"select {columns} from range(1)")  # noqa: S608 - it is the table's
    with pytest.raises(UsageError, match=words) as caught:
        spark.predict(df, models / name, **keywords)
    assert caught.value.hint


def test_what_a_function_cannot_be(session: Any) -> None:
    df = session.range(1).selectExpr("id", "map(1, 2) as m")
    lock = threading.Lock()
    for words, keywords in {
        "which columns does the function take": {"outputs": "a int"},
        "column 'm' is map<int,int>": {"outputs": "a int", "inputs": "m"},
        "the types of what a function returns are not known": {"inputs": "id"},
        "is no schema of Spark": {"inputs": "id", "outputs": "a whatever"},
        "a map<int,int>: a function returns numbers": {"inputs": "id", "outputs": "a map<int,int>"},
        "there is a column 'ID' already": {"inputs": "id", "outputs": "ID int"},
    }.items():
        with pytest.raises(UsageError, match=re.escape(words)) as caught:
            spark.predict(df, plus_one, **keywords)
        assert caught.value.hint
    with pytest.raises(UsageError, match="cannot be sent to the executors"):
        spark.predict(df, lambda: lock, inputs="id", outputs="a int")
    with pytest.raises(UsageError, match="a model with a path"):
        spark.Model(plus_one)
    with pytest.raises(UsageError, match="has no model"):
        spark.Model().transform(df)
    with pytest.raises(UsageError, match="batch"):
        spark.Model("x", batch="many")


def test_another_model_at_the_same_path_is_loaded(session: Any, models: Path, tmp_path: Path) -> None:
    import shutil

    place = tmp_path / "model.keras"
    df = session.range(1).selectExpr("array(1, 2, 3, 4) as f")
    shutil.copy(models / "scores.keras", place)
    assert "scores" in spark.predict(df, place).columns
    shutil.copy(models / "two.keras", place)
    with pytest.raises(UsageError, match="width"):
        spark.predict(df, place)
