"""What a program reads in a task of a run in slots of Spark: rows of the feed, as its framework wants them.

    from tflaunch_task import dataset

    for images, labels in dataset(["image", "label"], batch=64): ...       # a tf.data.Dataset
    for batch in dataset.arrow(): ...                                      # record batches of pyarrow, for the others

Rows come as Spark makes them, each to one of the tasks that read: the chief and the workers.  A ps or an evaluator
reads none.  `context`, `DataFeed`, `TFNode` and `compat` are for programs that were written for TensorFlowOnSpark.

tflaunch puts this package on the path of each task (tflaunch.slot.spark_task); it needs Python 3.8 and pyarrow.

    reading             record batches
    tensors             a tf.data.Dataset
    tensorflowonspark   what its programs call
"""

import json
import os

from tflaunch_task.reading import FeedError, record_batches, rows_of_each
from tflaunch_task.tensorflowonspark import DataFeed, TFNode, compat, context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Union

__all__ = ["DataFeed", "FeedError", "TFNode", "compat", "context", "dataset"]


class _Dataset:
    """`dataset(...)`; see there."""

    def __call__(
        self,
        columns: "Union[str, Sequence[str], None]" = None,
        *,
        batch: int = 32,
        label: "Optional[str]" = None,
        epochs: "Optional[int]" = None,
        steps: "Optional[int]" = None,
        even: "Optional[bool]" = None,
        shapes: "Optional[Mapping[str, Sequence[int]]]" = None,
        ragged: "Sequence[str]" = (),
        skip_rows: int = 0,
        drop_remainder: bool = False,
    ) -> "Any":
        """A tf.data.Dataset of the rows, `batch` at a time.

        columns: a name gives that column's tensor, names give a tuple in their order, None gives a dict of all.  With
        `label`, elements are (features, label): a dict of features, or the tensor of the only one.
        epochs: how often the rows are read; None: as often as the run's `epochs=` says, or once.
        steps: so many batches in each epoch, from the first row again where there are fewer, the rest left out.
        even: no task gets more rows than another, so that none waits for ever in a collective operation; None: so
        where more than one task reads and there is no ps.
        shapes: of a column's value in one row, where a list is not a vector.  ragged: columns whose lists differ in
        length, as RaggedTensor.  skip_rows: so many of the first epoch are left out, as after a restart.

        Numbers, strings, bytes and lists of them keep their types; a null is NaN in a column of floats, and an error in
        all others.  Raises FeedError.
        """
        from tflaunch_task.tensors import Wanted, tensors

        return tensors(
            Wanted(columns, label, shapes or {}, tuple(ragged)),
            batch,
            epochs=epochs,
            steps=steps,
            even=even_by_default() if even is None else even,
            skip_rows=skip_rows,
            drop_remainder=drop_remainder,
        )

    def arrow(self, *, even: bool = False, epochs: "Optional[int]" = None) -> "Iterator[Any]":
        """The rows as pyarrow.RecordBatch, of sizes as they come.  Raises FeedError."""
        return record_batches(even, epochs)

    def rows(self) -> int:
        """How many rows each task gets with `even`.  Has Spark make the rows of all slots, and waits for that.

        Raises FeedError.
        """
        return rows_of_each()


dataset = _Dataset()


def even_by_default() -> bool:
    """Whether tasks of this run wait for each other at each step, as far as their cluster tells."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return not cluster.get("ps") and len(cluster.get("worker", ())) + len(cluster.get("chief", ())) > 1
