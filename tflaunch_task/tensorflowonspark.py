"""What programs of TensorFlowOnSpark call in their tasks, under the same names; its own documents say what each does.

No call waits for ever: a feed that has ended, and a run that has failed, end it.
"""

import base64
import getpass
import json
import os
import pickle
import sys
from types import SimpleNamespace

from tflaunch_task.reading import FeedError, Line, Reading, say_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

SOME = 512  # rows that are made into objects of Python at a time
WORKERS = ("chief", "master", "worker")


class DataFeed:
    """Rows, some at a time, as the driver has given them: tuples of an RDD of tuples.

    The first argument was a queue manager, and is not used.  train_mode: False for inference, which gives one result
    for each row (batch_results) and reads each row once.  input_mapping: {column: tensor}; `next_batch` gives a dict
    of lists by tensor, then, for columns in the order of their sorted names.
    """

    def __init__(
        self,
        mgr: "Any" = None,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: "Optional[Mapping[str, str]]" = None,
    ) -> None:
        self.train_mode = train_mode
        self._tensors = (
            None if input_mapping is None else [tensor for _, tensor in sorted(input_mapping.items())]
        )
        self._reading = None  # type: Optional[Reading]
        self._rows = self._all()
        self._next = []  # type: List[Any]  # rows that are read, the next one last
        self._done = False

    def next_batch(self, batch_size: int) -> "Any":
        """So many rows; fewer at the end, [] after it and after `terminate`.  Raises FeedError."""
        found = []  # type: List[Any]
        while len(found) < batch_size and not self._done:
            if not self._next:
                some = next(self._rows, None)
                if some is None:
                    self._done = True
                    break
                self._next = some[::-1]
            while self._next and len(found) < batch_size:
                found.append(self._next.pop())
        if self._tensors is None:
            return found
        columns = list(zip(*found)) or [()] * len(self._tensors)
        return {tensor: list(column) for tensor, column in zip(self._tensors, columns)}

    def should_stop(self) -> bool:
        """Whether `next_batch` has met the end of the rows, or `terminate` was called."""
        return self._done

    def terminate(self) -> None:
        """Read no more: Spark does not make the rest."""
        self._done = True
        self._next = []
        if self._reading is not None:
            self._reading.close()

    def batch_results(self, results: "Sequence[Any]") -> None:
        """Give results to the driver: of `cluster.inference(rdd)`.  Raises FeedError."""
        line = Line()
        try:
            line.ask(results=base64.b64encode(pickle.dumps(list(results))).decode("ascii"))
        finally:
            line.close()

    def _all(self) -> "Iterator[List[Any]]":
        """All rows, in lists."""
        epoch, epochs = 0, 1
        while epoch < epochs and not self._done:
            self._reading = reading = Reading(even=False)
            epochs = reading.told["epochs"] if self.train_mode else 1
            kind = reading.told["kind"]
            for batch in reading:
                for start in range(0, batch.num_rows, SOME):
                    yield as_rows(batch.slice(start, SOME), kind)
            say_left(reading)
            epoch += 1


def as_rows(batch: "Any", kind: str) -> "List[Any]":
    """The rows of a record batch as they were: kind is that of an RDD's; "" of a DataFrame's, which are tuples."""
    columns = [as_list(column) for column in batch.columns]
    if kind == "value":
        return columns[0]
    rows = zip(*columns)
    if kind == "dict":
        return [dict(zip(batch.schema.names, row)) for row in rows]
    return [list(row) for row in rows] if kind == "list" else list(rows)


def as_list(column: "Any") -> "List[Any]":
    """The values of a column, as Python has them."""
    from pyarrow import types

    if types.is_list(column.type) and not column.null_count:
        lengths = column.value_lengths()
        inner = column.flatten()
        # Lists of one length, which most are, by numpy: ten times as fast.
        if types.is_primitive(inner.type) and not inner.null_count and len(lengths.unique()) == 1:
            found = inner.to_numpy(zero_copy_only=False).reshape((len(column), -1)).tolist()
            return list(found)
    return list(column.to_pylist())


def context() -> "SimpleNamespace":
    """What TensorFlowOnSpark gave a program as `ctx`, under the same names."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    job, _, index = os.environ.get("TFLAUNCH_TASK", "worker/0").partition("/")
    cluster = config.get("cluster") or {job: [""]}  # type: Dict[str, List[str]]
    number = int(index or 0)
    before = sum(
        len(cluster[name]) for name in ("ps", *WORKERS) if name in cluster and _order(name) < _order(job)
    )
    default_fs = os.environ.get("TFLAUNCH_DEFAULT_FS", "file://")
    return SimpleNamespace(
        job_name=job,
        task_index=number,
        executor_id=before + number,
        worker_num=before + number,
        num_workers=sum(len(cluster.get(name, ())) for name in WORKERS),
        cluster_spec=cluster,
        cluster_id=os.environ.get("TFLAUNCH_RUN", ""),
        defaultFS=default_fs,
        default_fs=default_fs,
        working_dir=os.getcwd(),
        user_name=getpass.getuser(),
        mgr=None,
        absolute_path=lambda path: hdfs_path(
            SimpleNamespace(defaultFS=default_fs, working_dir=os.getcwd()), path
        ),
        get_data_feed=lambda train_mode=True, qname_in="input", qname_out="output", input_mapping=None: (
            DataFeed(None, train_mode, qname_in, qname_out, input_mapping)
        ),
        release_port=lambda: None,  # ports are held until a task binds them
        export_saved_model=compat.export_saved_model,
        start_cluster_server=_not_offered,
    )


def run_program(map_fun: "Any", tf_args: "Any") -> None:
    """What each task of a TFCluster runs."""
    ctx = context()
    if isinstance(tf_args, (list, tuple)):
        sys.argv = [sys.argv[0], *tf_args]
    # Tasks of one slot must not write to one relative path.
    place = os.path.join("tasks", "%s-%d" % (ctx.job_name, ctx.task_index))
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    ctx.working_dir = os.getcwd()
    map_fun(tf_args, ctx)


def _order(job: str) -> int:
    return ("ps", *WORKERS, "evaluator").index(job) if job in ("ps", *WORKERS, "evaluator") else 9


def hdfs_path(ctx: "Any", path: str) -> str:
    """The path with its scheme, for libraries of Hadoop; a relative one is below the user's home there."""
    if "://" in path or path.startswith("file:"):
        return path
    default = ctx.defaultFS
    local = default.startswith("file:")
    if path.startswith("/"):
        return "file://" + path if local else default.rstrip("/") + path
    if local:
        return "file://" + os.path.join(os.getcwd(), path)
    return "%s/user/%s/%s" % (default.rstrip("/"), getpass.getuser(), path)


def _not_offered(*_: "Any", **__: "Any") -> None:
    raise FeedError(
        "start_cluster_server is of TensorFlow 1: use a tf.distribute strategy, or tf.distribute.Server with TF_CONFIG"
    )


def _export_saved_model(model: "Any", export_dir: str, is_chief: bool = False) -> None:
    """Save a Keras model for serving: the chief's there, any other's beside its own work, for all take part."""
    place = export_dir if is_chief else "worker_model"
    if hasattr(model, "export"):
        model.export(place)  # Keras 3
    else:
        model.save(place, save_format="tf")


def _disable_auto_shard(options: "Any") -> None:
    """Have tf.data leave a dataset whole in each task."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def _is_gpu_available() -> bool:
    """Whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


compat = SimpleNamespace(
    export_saved_model=_export_saved_model,
    disable_auto_shard=_disable_auto_shard,
    is_gpu_available=_is_gpu_available,
)
TFNode = SimpleNamespace(DataFeed=DataFeed, hdfs_path=hdfs_path, start_cluster_server=_not_offered)
