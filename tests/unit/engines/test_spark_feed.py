"""The feed of a slot with real readers: over its socket, by the package that tasks import; only Spark is missing."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here: scripts/engines spark")

from tests.support.patience import until  # noqa: E402
from tflaunch.engines.spark_rows import SparkRows  # noqa: E402
from tflaunch.slot.spark_feed import Feed, batches_of  # noqa: E402
from tflaunch.spark.tensorflowonspark import InputMode, TFCluster  # noqa: E402
from tflaunch_task import DataFeed, FeedError, context, dataset  # noqa: E402
from tflaunch_task.reading import Reading  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32()))])


def batch(start: int, count: int) -> Any:
    """Rows whose ids begin with `start`."""
    ids = range(start, start + count)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([[each, 0.5] for each in ids], SCHEMA.field("v").type)],
        schema=SCHEMA,
    )


def coded(schema: Any) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


class Slots:
    """Feeds of some slots, and the driver that they ask."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.monkeypatch = directory, monkeypatch
        self.driver = SparkRows.__new__(SparkRows)
        self.driver._lock = threading.Lock()
        self.driver._counts, self.driver._drain, self.driver._wanted = {}, False, 0
        self.readers: dict[int, list[str]] = {}
        self.driver.readers = lambda slot: self.readers.get(slot, [f"worker/{slot}"])
        self.made: dict[int, list[int]] = {}
        self.feeds: list[Feed] = []

    def up(self, *partitions: Sequence[Any], schema: Any = SCHEMA, **words: Any) -> None:
        self.driver._slots = len(partitions)
        for slot, partition in enumerate(partitions):
            self.made[slot] = []
            place = self.directory / f"slot{slot}"
            place.mkdir()
            told = {
                "schema": coded(schema),
                "kind": "",
                "epochs": 1,
                "spool": True,
                "limit": 0,
                **words,
            }

            def ask(slot: int = slot, **said: Any) -> dict[str, Any]:
                return self.driver.heard(slot, said)

            feed = Feed(self._counted(slot, partition), told, ask)
            feed.listen(str(place))
            self.feeds.append(feed)

    def _counted(self, slot: int, partition: Sequence[Any]) -> Iterator[Any]:
        for number, each in enumerate(partition):
            if isinstance(each, BaseException):
                raise each
            self.made[slot].append(number)
            yield each

    def be(self, task: str, slot: int, cluster: Mapping[str, Sequence[str]] | None = None) -> None:
        """Be that task, in that slot, from now on."""
        self.monkeypatch.setenv("TFLAUNCH_FEED", str(self.directory / f"slot{slot}"))
        self.monkeypatch.setenv("TFLAUNCH_TASK", task)
        import json

        self.monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster or {"worker": ["a:1", "b:1"]}}))

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slots]:
    made = Slots(tmp_path, monkeypatch)
    yield made
    made.close()


def ids(batches: Iterator[Any]) -> list[int]:
    return [each for found in batches for each in found.column("id").to_pylist()]


@pytest.mark.parametrize("spool", [True, False])
def test_rows_come_once_each_and_in_order(slots: Slots, spool: bool) -> None:
    slots.up([batch(0, 10), batch(10, 7), batch(17, 0)], spool=spool)
    slots.be("worker/0", 0)
    assert ids(dataset.arrow()) == list(range(17))


def test_no_more_is_taken_from_spark_than_is_about_to_be_read(slots: Slots) -> None:
    slots.up([batch(10 * number, 10) for number in range(50)])
    slots.be("worker/0", 0)
    reading = Reading(even=False)
    assert next(reading).num_rows == 10
    until(lambda: len(slots.made[0]) == 3, "the batches ahead")
    reading.close()  # early: nobody wants more
    again = Reading(even=False)
    assert ids(iter([next(again)])) == list(range(10))
    again.close()
    assert len(slots.made[0]) == 3


def test_epochs_and_a_second_reader_come_from_the_spool(slots: Slots) -> None:
    slots.up([batch(0, 10), batch(10, 10)], epochs=3)
    slots.be("worker/0", 0)
    assert ids(dataset.arrow()) == 3 * list(range(20))
    assert ids(dataset.arrow(epochs=1)) == list(range(20))
    assert slots.made[0] == [0, 1]


def test_without_a_spool_rows_are_read_once(slots: Slots) -> None:
    slots.up([batch(0, 10)], spool=False)
    slots.be("worker/0", 0)
    assert len(ids(dataset.arrow())) == 10
    with pytest.raises(FeedError, match="spool=False keeps none"):
        list(dataset.arrow())


def test_two_tasks_share_a_slot(slots: Slots) -> None:
    slots.readers = {0: ["worker/0", "worker/1"]}
    slots.up([batch(0, 11), batch(11, 6)])
    found = []
    for task in ("worker/0", "worker/1"):
        slots.be(task, 0)
        found.append(ids(dataset.arrow()))
    assert sorted(found[0] + found[1]) == list(range(17))
    assert [len(each) for each in found] == [8, 9]
    slots.be("ps/0", 0)
    assert ids(dataset.arrow()) == []


def test_even_gives_every_task_as_many_rows(slots: Slots, capfd: pytest.CaptureFixture[str]) -> None:
    slots.up([batch(0, 10), batch(10, 5)], [batch(100, 9), batch(109, 3)])
    found: dict[int, list[int]] = {}

    def read(slot: int) -> None:
        reading = slots_of[slot]
        found[slot] = ids(iter(reading))

    slots_of = {}
    for slot in (0, 1):
        slots.be(f"worker/{slot}", slot)
        slots_of[slot] = Reading(even=True)
    threads = [threading.Thread(target=read, args=[slot]) for slot in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == {0: list(range(12)), 1: list(range(100, 112))}
    assert (slots_of[0].left, slots_of[1].left) == (3, 0)


def test_all_rows_in_one_slot_are_an_error_and_no_wait(slots: Slots) -> None:
    slots.up([batch(0, 10)], [])
    slots.be("worker/0", 0)
    with pytest.raises(FeedError, match="all in other slots"):
        list(dataset.arrow(even=True))


def test_all_rows_in_one_slot_are_an_error_however_many_there_are(slots: Slots) -> None:
    slots.up([batch(10 * number, 10) for number in range(50)], [])
    slots.be("worker/0", 0)
    with pytest.raises(FeedError, match="all in other slots"):
        list(dataset.arrow(even=True))
    assert len(slots.made[0]) < 10


def test_rows_that_spark_need_not_make_are_left_out_in_words(
    slots: Slots, capfd: pytest.CaptureFixture[str]
) -> None:
    slots.up([batch(10 * number, 10) for number in range(50)], [batch(0, 15)])
    slots.be("worker/0", 0)
    assert len(ids(dataset.arrow(even=True))) == 15
    assert "rows after the first 15 are left out here" in capfd.readouterr().err
    assert len(slots.made[0]) < 10


def test_tasks_with_a_slot_of_their_own_wait_for_those_that_share_one(slots: Slots) -> None:
    """Also where a slot has told its rows before it was known who reads there."""
    slots.readers = {0: [], 1: []}
    slots.up([batch(0, 100)], [batch(0, 100)])
    until(lambda: all(feed._kept.complete for feed in slots.feeds), "the rows")
    for feed in slots.feeds:
        feed._report()
    slots.readers = {0: ["worker/0", "worker/2"], 1: ["worker/1"]}
    found = []
    for task, slot in (("worker/1", 1), ("worker/0", 0), ("worker/2", 0)):
        slots.be(task, slot)
        found.append(len(ids(dataset.arrow(even=True))))
    assert found == [50, 50, 50]


def test_a_task_that_stops_early_holds_up_no_other(slots: Slots) -> None:
    slots.up(*[[batch(10 * number, 10) for number in range(50)]] * 2)
    slots.be("worker/1", 1)
    reading = Reading(even=True)
    reading.close()
    slots.be("worker/0", 0)
    found: list[int] = []
    reads = threading.Thread(target=lambda: found.append(len(ids(dataset.arrow(even=True)))), daemon=True)
    reads.start()
    until(lambda: found, "the end of the rows")
    assert found == [500]


def test_batches_of_a_row_are_shared(slots: Slots) -> None:
    slots.readers = {0: ["worker/0", "worker/1", "worker/2"]}
    slots.up([batch(number, 1) for number in range(11)])
    found = []
    for task in slots.readers[0]:
        slots.be(task, 0)
        found.append(ids(dataset.arrow(even=True)))
    assert len({each for some in found for each in some}) == 9
    assert [len(each) for each in found] == [3, 3, 3]


def test_a_feed_that_is_closed_leaves_no_thread(slots: Slots) -> None:
    """Spark keeps its Python workers; and a feed of former slots must not tell the driver how many rows it has."""
    before = set(threading.enumerate())
    slots.up([batch(0, 10), batch(10, 10)], [])
    slots.driver._slots = 3  # one that does not come: who reads evenly waits
    slots.be("worker/0", 0)
    reading = Reading(even=True)
    said: list[str] = []

    def read() -> None:
        with pytest.raises(FeedError) as error:
            next(reading)
        said.append(str(error.value))

    threading.Thread(target=read, daemon=True).start()
    until(lambda: slots.feeds[0]._wants, "a task that waits")
    slots.close()
    until(lambda: said, "the answer to that task")
    reading.close()
    until(lambda: not set(threading.enumerate()) - before, "the end of the threads")


def test_results_that_cannot_be_read_are_told(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    class Own:
        """Of the program alone."""

    Own.__module__, Own.__qualname__ = "a_program", "Own"
    module = SimpleNamespace(Own=Own)
    slots.up([batch(0, 10)])
    slots.be("worker/0", 0)
    feed = DataFeed(train_mode=False)
    monkeypatch.setitem(sys.modules, "a_program", module)  # type: ignore[arg-type]
    text = pickle.dumps([Own()])
    monkeypatch.delitem(sys.modules, "a_program")
    monkeypatch.setattr(pickle, "dumps", lambda _: text)
    with pytest.raises(FeedError, match=r"results cannot be read .*a_program"):
        feed.batch_results([1])


def test_executors_without_pyarrow_are_told_before_the_start(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RuntimeError, match="feed= needs pyarrow in the Python of Spark's executors"):
        slots.up([])


def test_rows_are_counted(slots: Slots) -> None:
    slots.up([batch(0, 10), *[batch(10, 5)] * 9], [batch(0, 12)])
    slots.be("worker/0", 0)
    assert dataset.rows() == 12
    assert len(slots.made[0]) > 1


def test_an_error_of_spark_reaches_the_reader(slots: Slots) -> None:
    slots.up([batch(0, 10), ValueError("a partition is broken")])
    slots.be("worker/0", 0)
    with pytest.raises(FeedError, match="ValueError: a partition is broken"):
        list(dataset.arrow())
    assert "broken" in slots.feeds[0].error


def test_a_spool_has_its_limit(slots: Slots) -> None:
    slots.up([batch(0, 1000)] * 50, limit=100_000)
    slots.be("worker/0", 0)
    with pytest.raises(FeedError, match=r'more than 0 MB of disk.*spool="50GB"'):
        list(dataset.arrow())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk")
def test_a_spool_does_not_fill_the_disk(slots: Slots, tmp_path: Path) -> None:
    """Else the tasks' logs could not say why the run fails."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", tmp_path], check=True)
    try:
        slots.up([batch(0, 10_000)] * 200, limit=1 << 40)
        slots.be("worker/0", 0)
        with pytest.raises(FeedError, match="the disk of this slot's rows is full"):
            list(dataset.arrow())
        assert shutil.disk_usage(tmp_path).free > 15_000_000
    finally:
        slots.close()
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_no_feed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TFLAUNCH_FEED", raising=False)
    with pytest.raises(FeedError, match="this run has no feed"):
        list(dataset.arrow())
    monkeypatch.setenv("TFLAUNCH_FEED", str(tmp_path))
    with pytest.raises(FeedError, match="cannot be reached"):
        list(dataset.arrow())


def test_a_dataset_of_tensorflow(slots: Slots) -> None:
    tf = pytest.importorskip("tensorflow")
    slots.up([batch(0, 10), batch(10, 7)], epochs=2)
    slots.be("worker/0", 0, {"worker": ["a:1"], "ps": ["b:1"]})
    found = dataset(["v", "id"], batch=8)
    assert found.element_spec == (
        tf.TensorSpec([None, 2], tf.float32),
        tf.TensorSpec([None], tf.int64),
    )
    assert [len(each) for _, each in found] == 2 * [8, 8, 1]
    assert [int(each) for _, some in found.take(3) for each in some] == list(range(17))
    features, label = next(iter(dataset(label="id", batch=3)))
    assert features.shape == (3, 2)
    assert label.numpy().tolist() == [0, 1, 2]
    assert set(next(iter(dataset(batch=3)))) == {"id", "v"}
    assert [len(each) for each in dataset("id", batch=10, steps=3, epochs=2)] == [10, 7, 10] * 2
    assert [len(each) for each in dataset("id", batch=10, epochs=1, drop_remainder=True)] == [10]
    assert next(iter(dataset("id", batch=2, skip_rows=5))).numpy().tolist() == [5, 6]
    assert next(iter(dataset("v", batch=2, shapes={"v": (2, 1)}))).shape == (2, 2, 1)


def test_types_and_what_does_not_fit(slots: Slots) -> None:
    tf = pytest.importorskip("tensorflow")
    schema = pa.schema(
        [
            ("word", pa.string()),
            ("raw", pa.binary()),
            ("ok", pa.bool_()),
            ("few", pa.list_(pa.int32())),
            ("x", pa.float64()),
            ("n", pa.int32()),
        ]
    )
    rows: list[Any] = [["a", "b"], [b"1", b"2"], [True, False], [[1], [2, 3]], [0.5, None], [1, None]]
    made = [pa.array(each, field.type) for each, field in zip(rows, schema, strict=True)]
    slots.up([pa.RecordBatch.from_arrays(made, schema=schema)], schema=schema)
    slots.be("worker/0", 0, {"worker": ["a:1"]})
    found = next(iter(dataset(["word", "raw", "ok", "few", "x"], ragged=["few"])))
    assert found[0].numpy().tolist() == [b"a", b"b"]
    assert found[1].numpy().tolist() == [b"1", b"2"]
    assert found[2].numpy().tolist() == [True, False]
    assert found[3].to_list() == [[1], [2, 3]]
    assert tf.math.is_nan(found[4]).numpy().tolist() == [False, True]
    for columns, words in {
        "few": "different lengths",
        "n": "n has nulls",
        "none": "no column 'none'",
    }.items():
        with pytest.raises((FeedError, tf.errors.UnknownError), match=words):
            list(dataset(columns))


def test_rows_as_tensorflowonspark_gives_them(slots: Slots) -> None:
    schema = pa.schema([("_1", pa.list_(pa.int64())), ("_2", pa.int64())])
    words = {"schema": coded(schema), "kind": "tuple"}
    rows = [([number, 7], number) for number in range(1000)]
    slots.up(list(batches_of(rows, words)), schema=schema, kind="tuple", epochs=2)
    slots.be("worker/0", 0)
    feed = DataFeed(None)
    assert feed.next_batch(1) == rows[:1]
    assert feed.next_batch(998) == rows[1:999]
    assert not feed.should_stop()
    assert feed.next_batch(1002) == [rows[999], *rows]
    assert feed.next_batch(10) == []
    assert feed.should_stop()
    feed = DataFeed(None, input_mapping={"b": "labels", "a": "images"})
    assert feed.next_batch(2) == {"images": [[0, 7], [1, 7]], "labels": [0, 1]}
    feed.terminate()
    assert feed.next_batch(2) == {"images": [], "labels": []}
    DataFeed(None, train_mode=False).batch_results([1, "a"])
    assert slots.feeds[0].results == [1, "a"]


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "value"])
def test_rows_of_an_rdd_come_back_as_they_were(slots: Slots, kind: str) -> None:
    numbers = range(5)
    rows: list[Any] = {
        "tuple": [(each, "x") for each in numbers],
        "list": [[each, "x"] for each in numbers],
        "dict": [{"a": each, "b": "x"} for each in numbers],
        "value": [float(each) for each in numbers],
    }[kind]
    schema = pa.schema([("a", pa.float64())] if kind == "value" else [("a", pa.int64()), ("b", pa.string())])
    slots.up(list(batches_of(rows, {"schema": coded(schema), "kind": kind})), schema=schema, kind=kind)
    slots.be("worker/0", 0)
    assert DataFeed().next_batch(9) == rows


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1, 2), (1,)], "row 1 of a partition has 1 columns, not 2"),
        ([(1, 2), (1, "x")], "column b: row 1 of a partition is no int64"),
        ([(1, 2), 3], "row 1 of a partition has no columns, not 2"),
    ],
)
def test_rows_of_an_rdd_that_do_not_fit(rows: list[Any], words: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(Exception, match=words):
        list(batches_of(rows, {"schema": coded(schema), "kind": "tuple"}))


def test_batches_of_wide_rows_are_small() -> None:
    """A slot must not have ten thousand images as objects of Python."""
    taken = 0

    def rows() -> Iterator[Any]:
        nonlocal taken
        for number in range(30_000):
            taken += 1
            yield [number] * 784, number

    feed = {"schema": coded(pa.schema([("v", pa.list_(pa.int32())), ("y", pa.int32())])), "kind": "tuple"}
    batches = batches_of(rows(), feed)
    sizes = []
    for each in batches:
        sizes.append(each.num_rows)
        assert taken == sum(sizes)
        assert each.nbytes < 4 * 1024 * 1024
    assert sum(sizes) == 30_000
    assert len(sizes) < 100
    narrow = {"schema": coded(pa.schema([("y", pa.int32())])), "kind": "value"}
    assert max(each.num_rows for each in batches_of(range(30_000), narrow)) == 10_000


@pytest.mark.parametrize("spool", [True, False])
def test_a_large_batch_is_kept_in_pieces(slots: Slots, spool: bool) -> None:
    """Without a spool it would be in memory several times."""
    wide = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int32(), 784))])
    values = pa.FixedSizeListArray.from_arrays(pa.array([7] * 784 * 5000, pa.int32()), 784)
    whole = pa.RecordBatch.from_arrays([pa.array(range(5000)), values], schema=wide)
    slots.up([whole], schema=wide, spool=spool)
    slots.be("worker/0", 0)
    reading = Reading(even=False)
    first = next(reading)
    assert first.num_rows < 2000
    until(lambda: len(slots.feeds[0]._kept._places) == 3, "the pieces ahead")
    assert sum(size for _, size, _ in slots.feeds[0]._kept._places) < 13 * 1024 * 1024
    assert ids(iter([first, *reading])) == list(range(5000))


def test_results_are_those_of_the_last_attempt() -> None:
    """Slots that are taken anew read the rows again."""
    rows = SparkRows.__new__(SparkRows)
    rows._lock, rows.finished = threading.Lock(), threading.Event()
    over = []
    rows._hold = lambda *_: over.append(rows.finished.is_set())  # type: ignore[method-assign]
    for _ in range(2):
        rows.hold(1, print)
        assert rows.finished.is_set()
    assert over == [False, False]


def test_train_without_epochs_reads_ten_times_as_theirs_does() -> None:
    given: list[Any] = []

    def begin(rows: Mapping[str, Any], *, results: bool) -> Any:
        given.append(rows["epochs"])
        return []

    for epochs in (0, 1, 3):
        TFCluster(begin, InputMode.SPARK).train([], epochs)  # type: ignore[arg-type]
    assert given == [10, 1, 3]


def test_the_context_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_TASK", "worker/1")
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"ps": ["a:1"], "chief": ["b:1"], "worker": ["c:1", "d:1"]}}'
    )
    monkeypatch.setenv("TFLAUNCH_DEFAULT_FS", "hdfs://namenode:8020")
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    ctx: SimpleNamespace = context()
    assert (ctx.job_name, ctx.task_index, ctx.num_workers, ctx.worker_num) == ("worker", 1, 3, 3)
    assert ctx.cluster_spec["ps"] == ["a:1"]
    assert ctx.absolute_path("/data") == "hdfs://namenode:8020/data"
    assert ctx.absolute_path("data") == "hdfs://namenode:8020/user/ann/data"
    assert ctx.absolute_path("file:///data") == "file:///data"
    monkeypatch.setenv("TFLAUNCH_DEFAULT_FS", "file:///")
    assert context().absolute_path("/data") == "file:///data"
