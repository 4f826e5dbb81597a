"""The rows that a run reads: a DataFrame or an RDD of the driver's, and how far each slot has read it.

`tflaunch.spark.run(feed=...)` makes one, and names it to the engine by its key, among the settings of the slots.
"""

from __future__ import annotations

import base64
import contextlib
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tflaunch.protocol.errors import UsageError

OF = weakref.WeakValueDictionary[str, "SparkRows"]()  # by their keys
NO_READERS = ("ps", "evaluator")
END_S = 5.0
RESULTS_S = 600.0
_LISTED = 10  # names in an error


class SparkRows:
    """Rows that slots share, a partition each.

    data: a DataFrame or an RDD.  columns: names; for an RDD also with types, as Spark writes a schema; None: all.
    spool: whether each slot keeps its rows in a file, for epochs and restarts, or how large that may be at most.
    results: whether what tasks say of the rows is kept.
    Raises UsageError for what tasks cannot read.
    """

    def __init__(
        self,
        data: Any,
        columns: Sequence[str] | str | None,
        *,
        epochs: int = 1,
        spool: bool | str = True,
        repartition: bool = True,
        results: bool = False,
    ) -> None:
        self.finished = threading.Event()  # the stage is over
        self.results: Any = None  # of `results`: an RDD of what tasks have said of the rows
        self._keep_results = results
        self.key = secrets.token_hex(8)
        self.readers: Callable[[int], Sequence[str]] = lambda _: ()  # the tasks that read in that slot
        self.kind = ""  # of an RDD's rows: tuple, list, dict or value
        self._repartition = repartition
        if epochs < 1:
            raise UsageError(f"epochs={epochs}: it is 1 or more", "leave it out for one")
        if epochs > 1 and spool is False:
            raise UsageError(
                f"epochs={epochs} reads the rows again, and spool=False keeps none", "leave spool=False out"
            )
        if hasattr(data, "mapInArrow"):
            self._data, schema = _of_frame(data, columns)
            self.is_frame = True
        elif hasattr(data, "mapPartitionsWithIndex"):
            self._data, self.is_frame = data, False
            schema, self.kind = _of_rdd(data, columns)
        else:
            raise UsageError(
                f"feed: {type(data).__name__} has no rows of Spark", "give a DataFrame, or an RDD"
            )
        self.words = {
            "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            "kind": self.kind,
            "epochs": epochs,
            "spool": spool is not False,
            "limit": _bytes(spool) if isinstance(spool, str) else 0,
        }
        self._lock = threading.Lock()
        self._counts: dict[int, tuple[int, bool]] = {}
        self._drain = False
        self._wanted = 0
        self._slots = 0
        OF[self.key] = self

    def hold(self, count: int, hold: Callable[..., Any]) -> None:
        """Run a barrier stage of so many tasks, one partition each, and wait for its end.

        hold: what a task does with its index and what makes its record batches, of the names in
        tflaunch.slot.spark_feed.  Raises what Spark raises.
        """
        with self._lock:
            self._counts, self._drain, self._wanted, self._slots = {}, False, 0, count
        self.finished.clear()  # there may have been an attempt before
        try:
            self._hold(count, hold)
        finally:
            self.finished.set()

    def _hold(self, count: int, hold: Callable[..., Any]) -> None:
        data, words = self._data, self.words
        if self._repartition:
            data = data.repartition(count)
        if not self.is_frame:
            found = data.barrier().mapPartitionsWithIndex(
                lambda index, rows: hold(index, lambda feeding: feeding["batches_of"](rows, words))
            )
            if self._keep_results:
                from pyspark import StorageLevel

                self.results = found.persist(StorageLevel.DISK_ONLY)
            found.count()
            return

        def task(batches: Any) -> Any:
            from pyspark import BarrierTaskContext

            hold(BarrierTaskContext.get().partitionId(), lambda _: iter(batches))
            return iter(())

        data.mapInArrow(task, "slot int", barrier=True).collect()

    @property
    def end_s(self) -> float:
        """How long the stage may take to end after its slot holders: results must come to Spark's disks."""
        return RESULTS_S if self._keep_results else END_S

    def partitions(self) -> int | None:
        """How many partitions there are, where their number counts; None: they are made anew."""
        if self._repartition:
            return None
        return int((self._data.rdd if self.is_frame else self._data).getNumPartitions())

    def heard(self, slot: int, said: Mapping[str, Any]) -> dict[str, Any]:
        """A slot's feed says how many rows each of its readers has; the answer is for that slot.

        `even`: how many every reader may have, in all slots; `final`: that grows no more; `drain`: all is to be read;
        `wanted`: so many rows for each reader are to be there, for one waits for them.
        """
        with self._lock:
            readers = list(self.readers(slot))
            # What it has for another number of readers, as before they were known, is no count.
            if readers and int(said["readers"]) == len(readers):
                self._counts[slot] = int(said["rows"]), bool(said["complete"])
            else:
                self._counts.pop(slot, None)
            self._drain = self._drain or bool(said.get("drain"))
            self._wanted = max(self._wanted, int(said.get("wants", 0)))
            all_here = len(self._counts) == self._slots
            even = min(rows for rows, _ in self._counts.values()) if all_here else 0
            # The least is the last word as soon as the slot that has it has no more.
            final = all_here and any(complete for rows, complete in self._counts.values() if rows == even)
            return {
                "even": even,
                "final": final,
                "drain": self._drain,
                "wanted": self._wanted,
                "readers": readers,
            }


def _of_frame(frame: Any, columns: Sequence[str] | str | None) -> tuple[Any, Any]:
    """A DataFrame of the columns that tasks read, and its Arrow schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if isinstance(columns, str):
        columns = [columns]
    names = list(columns) if columns is not None else list(frame.columns)
    for name in names:
        if name not in frame.columns:
            raise UsageError(
                f"feed: the DataFrame has no column {name!r}",
                f"it has {', '.join(frame.columns[:_LISTED])}{', ...' if len(frame.columns) > _LISTED else ''}",
            )
    if len(set(names)) < len(names) or len(set(frame.columns)) < len(frame.columns):
        raise UsageError("feed: two columns have the same name", "rename one: df.withColumnRenamed")
    taken = []
    for name in names:
        column, kind = frame["`" + name.replace("`", "``") + "`"], frame.schema[name].dataType
        if type(kind).__name__ == "VectorUDT":
            from pyspark.ml.functions import vector_to_array

            taken.append(vector_to_array(column).alias(name))
            continue
        if hint := _unreadable(kind):
            raise UsageError(f"feed: column {name!r} is {kind.simpleString()}, which tasks cannot read", hint)
        taken.append(column)
    frame = frame.select(*taken)
    schema = to_arrow_schema(frame.schema)
    # mapInArrow takes no name with a dot; tasks have the names from the schema.
    return frame.toDF(*[f"c{number}" for number, _ in enumerate(taken)]), schema


def _unreadable(kind: Any) -> str:
    """What to do with a column of that type; "" where it can be read."""
    while type(kind).__name__ == "ArrayType":
        kind = kind.elementType
    name = type(kind).__name__
    if name in _READABLE:
        return ""
    if name == "DecimalType":
        return "cast it: col(...).cast('double')"
    if name in ("DateType", "TimestampType", "TimestampNTZType"):
        return "make it a number: unix_timestamp(...), or year(...), month(...)"
    return "name the columns that are read, columns=[...], or select its parts as columns of their own"


_READABLE = frozenset(
    f"{name}Type"
    for name in ("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean", "String", "Binary")
)


def _of_rdd(rdd: Any, columns: Sequence[str] | str | None) -> tuple[Any, str]:
    """The Arrow schema of an RDD's rows, and their kind: tuple, list, dict or value.

    Its first row tells, but for what `columns` says.
    """
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    some = rdd.take(1)
    typed: Any = None
    if isinstance(columns, str):
        if " " not in columns.strip() and ":" not in columns:
            columns = [columns]
        else:
            typed, columns = to_arrow_schema(_ddl(columns)), None
    if not some and typed is None:
        raise UsageError(
            "feed: the RDD has no rows", "if it may have none, say its types: columns='x array<float>, y int'"
        )
    first: Any = some[0] if some else ()
    named = len(typed) if typed is not None else len(columns or ())
    kind = _kind(first, named, pyarrow)
    if typed is not None:
        return typed, kind
    if kind == "dict":
        names = list(columns) if columns is not None else [str(each) for each in first]
        values = [first.get(name) for name in names]
    else:
        values = list(first) if kind in ("tuple", "list") else [first]
        names = list(columns) if columns is not None else [f"_{number}" for number, _ in enumerate(values, 1)]
    if len(names) != len(values):
        raise UsageError(
            f"feed: columns= names {len(names)}, and the first row has {len(values)}", f"it is {first!r:.200}"
        )
    fields = []
    for name, value in zip(names, values, strict=True):
        plain = value.tolist() if hasattr(value, "tolist") else value
        try:
            found = _inferred(value, plain, pyarrow)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError):
            found = None
        if found is None or "null" in str(found) or re.search(r"struct|map|decimal|date|time", str(found)):
            raise UsageError(
                f"feed: column {name!r} of the first row is {value!r:.80}, whose type tasks cannot read",
                "numbers, strings, bytes and lists of them can be read; or say the types: "
                "columns='x array<float>, y int'",
            )
        fields.append(pyarrow.field(name, found))
    return pyarrow.schema(fields), kind


def _kind(first: Any, named: int, pyarrow: Any) -> str:
    """What a row is: tuple, list or dict of columns, or the value of the only one."""
    if isinstance(first, dict):
        return "dict"
    if isinstance(first, tuple):
        return "tuple"
    if isinstance(first, list) and named != 1:
        if named == len(first) > 1:
            return "list"
        with contextlib.suppress(pyarrow.ArrowException, TypeError):
            pyarrow.array([first])  # a vector
            return "value"
        return "list"
    return "value"


def _inferred(value: Any, plain: Any, pyarrow: Any) -> Any:
    """The Arrow type of a value; that of a numpy array's numbers, where it is one."""
    found = pyarrow.array([plain]).type
    if hasattr(value, "dtype"):
        inside = pyarrow.from_numpy_dtype(value.dtype)
        for _ in range(getattr(value, "ndim", 0)):
            inside = pyarrow.list_(inside)
        return inside
    return found


def _ddl(columns: str) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    try:
        schema: Any = _parse_datatype_string(columns)
    except Exception as error:
        raise UsageError(
            f"columns={columns!r} is no schema: {str(error).splitlines()[0]}",
            "for example: 'x array<float>, y int'",
        ) from None
    for field in schema.fields:
        if hint := _unreadable(field.dataType):
            raise UsageError(
                f"columns: {field.name} is {field.dataType.simpleString()}, which tasks cannot read", hint
            )
    return schema


def _bytes(text: str) -> int:
    from tflaunch.inputs.amounts import size

    try:
        return size(text, "an amount of disk")
    except ValueError as error:
        raise UsageError(f"spool={text!r} {error}", "for example: spool='50GB'") from None
