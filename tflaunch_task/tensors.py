"""The rows as a tf.data.Dataset."""

from tflaunch_task.reading import FeedError, Reading, say_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union


class Wanted:
    """Which columns a program wants, and as what."""

    def __init__(
        self,
        columns: "Union[str, Sequence[str], None]",
        label: "Optional[str]",
        shapes: "Mapping[str, Sequence[int]]",
        ragged: "Tuple[str, ...]",
    ) -> None:
        self.columns, self.label, self.shapes, self.ragged = columns, label, shapes, ragged

    def names(self, schema: "Any") -> "List[str]":
        """The columns that are read, of those of the feed.  Raises FeedError for one that it does not have."""
        if self.columns is None:
            names = [name for name in schema.names if name != self.label]
        else:
            names = [self.columns] if isinstance(self.columns, str) else list(self.columns)
        names += [self.label] if self.label and self.label not in names else []
        for name in [*names, *self.shapes, *self.ragged]:
            if name not in schema.names:
                raise FeedError("the feed has no column %r: it has %s" % (name, ", ".join(schema.names)))
        return names

    def element(self, found: "Mapping[str, Any]") -> "Any":
        """What the dataset gives for these values of the columns."""
        if self.label:
            rest = {name: value for name, value in found.items() if name != self.label}
            return (next(iter(rest.values())) if len(rest) == 1 else rest), found[self.label]
        if self.columns is None:
            return dict(found)
        if isinstance(self.columns, str):
            return found[self.columns]
        return tuple(found[name] for name in self.columns)


def tensors(
    wanted: "Wanted",
    size: int,
    *,
    epochs: "Optional[int]",
    steps: "Optional[int]",
    even: bool,
    skip_rows: int,
    drop_remainder: bool,
) -> "Any":
    """A tf.data.Dataset; see `dataset`."""
    import tensorflow as tf

    if size < 1 or (steps is not None and steps < 1):
        raise FeedError("batch=%r, steps=%r: both are 1 or more" % (size, steps))
    # The first rows are read now: the width of a list is known by them alone.
    first = [Pass(wanted, size, even, skip_rows)]
    try:
        first[0].peek()
    except FeedError:
        first[0].close()
        raise
    names, schema = first[0].names, first[0].schema
    number = epochs or first[0].reading.told["epochs"]
    signature = wanted.element(
        {
            name: spec_of(name, schema.field(name).type, wanted, first[0].widths.get(name), tf)
            for name in names
        }
    )

    def one(again: bool) -> "Iterator[Any]":
        """The batches of one pass."""
        found = first.pop() if first else Pass(wanted, size, even, 0 if again else skip_rows)
        try:
            for columns in found:
                if drop_remainder and found.last_rows < size:
                    break
                yield wanted.element(as_tensors(columns, wanted, tf))
        finally:
            found.close()

    def all_batches() -> "Iterator[Any]":
        for epoch in range(number):
            if steps is None:
                for each in one(epoch > 0):
                    yield each
                continue
            count = 0
            while count < steps:
                before = count
                for each in one(epoch > 0 or count > 0):
                    yield each
                    count += 1
                    if count == steps:
                        break
                if count == before:
                    raise FeedError(
                        "steps=%d, and this task has not a single batch of %d rows" % (steps, size)
                    )

    found = tf.data.Dataset.from_generator(all_batches, output_signature=signature)
    options = tf.data.Options()
    # Each task reads its own part of the rows: there is nothing to shard.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return found.with_options(options).prefetch(2)


class Pass:
    """One pass over the rows in batches of one size: dicts of numpy arrays, or of a ragged column's two."""

    def __init__(self, wanted: "Wanted", size: int, even: bool, skip_rows: int) -> None:
        self.reading = Reading(even, skip_rows)
        self.schema = self.reading.schema
        try:
            self.names = wanted.names(self.schema)
        except FeedError:
            self.close()
            raise
        self.widths = {}  # type: Dict[str, Tuple[int, ...]]  # the shape of a list's value in the first row
        self.last_rows = 0  # in the batch that came last
        self._wanted, self._size = wanted, size
        self._some = None  # type: Any  # record batches, one after the other, of which `_at` rows are used
        self._at = 0
        self._ended = False

    def peek(self) -> None:
        """Read the first rows, and learn how wide lists are."""
        self._fill()
        if self._some is None:
            return
        for name in self.names:
            if name not in self._wanted.ragged and is_list(self.schema.field(name).type):
                value = as_numpy(name, self._some.column(name).slice(0, 1))
                self.widths[name] = value.shape[1:]

    def __iter__(self) -> "Iterator[Dict[str, Any]]":
        while True:
            self._fill()
            if self._some is None:
                say_left(self.reading)
                return
            part = self._some.slice(self._at, self._size)
            self._at += part.num_rows
            self.last_rows = part.num_rows
            yield {name: self._value(name, part.column(name)) for name in self.names}

    def _fill(self) -> None:
        """Have at least one batch's rows, as far as there are so many."""
        import pyarrow

        have = self._some.num_rows - self._at if self._some is not None else 0
        parts = []
        while have < self._size and not self._ended:
            batch = next(self.reading, None)
            if batch is None:
                self._ended = True
                break
            parts.append(batch.select(self.names))
            have += batch.num_rows
        if parts:
            if self._some is not None and self._at < self._some.num_rows:
                parts.insert(0, self._some.slice(self._at))
            self._some = parts[0] if len(parts) == 1 else joined(parts, pyarrow)
            self._at = 0
        elif not have:
            self._some = None

    def _value(self, name: str, column: "Any") -> "Any":
        if name in self._wanted.ragged:
            return as_ragged(name, column)
        value = as_numpy(name, column)
        shape = self._wanted.shapes.get(name)
        if shape is not None:
            try:
                return value.reshape((len(value), *shape))
            except ValueError:
                raise FeedError(
                    "column %s: shapes= says %s, and a row has %s" % (name, tuple(shape), value.shape[1:])
                ) from None
        if name in self.widths and value.shape[1:] != self.widths[name]:
            raise lengths_differ(name, self.widths[name], value.shape[1:])
        return value

    def close(self) -> None:
        """Read no more."""
        self.reading.close()


def joined(parts: "List[Any]", pyarrow: "Any") -> "Any":
    """One record batch of several."""
    (whole,) = pyarrow.Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def is_list(kind: "Any") -> bool:
    """Whether that is an Arrow type of lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def lengths_differ(name: str, one: "Any", other: "Any") -> "FeedError":
    """The error for lists of different lengths."""
    return FeedError(
        "column %s: rows have lists of different lengths, %s and %s: ragged=[%r] makes a RaggedTensor of it"
        % (name, "x".join(map(str, one)), "x".join(map(str, other)), name)
    )


def as_numpy(name: str, column: "Any") -> "Any":
    """The values of a column: a numpy array whose first axis is that of the rows.  Raises FeedError."""
    from pyarrow import types

    kind = column.type
    if column.null_count and not types.is_floating(kind):
        raise FeedError(
            "column %s has nulls, which only a column of floats can have (as NaN): df.fillna, or df.dropna"
            % name
        )
    if is_list(kind):
        inner = as_numpy(name, column.flatten())
        if types.is_fixed_size_list(kind):
            return inner.reshape((len(column), kind.list_size, *inner.shape[1:]))
        lengths = column.value_lengths()
        if not len(column):
            return inner.reshape((0, 0, *inner.shape[1:]))
        import numpy as np

        found = lengths.to_numpy(zero_copy_only=False)
        if (found != found[0]).any():
            other = found[np.argmax(found != found[0])]
            raise lengths_differ(name, (found[0],), (other,))
        return inner.reshape((len(column), int(found[0]), *inner.shape[1:]))
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    ):
        import numpy as np

        found = np.empty(len(column), dtype=object)
        found[:] = column.to_pylist()
        return found
    return column.to_numpy(zero_copy_only=False)


def as_ragged(name: str, column: "Any") -> "Tuple[Any, Any]":
    """(values, row splits) of a column of lists."""
    import numpy as np

    if not is_list(column.type):
        raise FeedError("ragged=[%r]: that column has no lists: its type is %s" % (name, column.type))
    values = as_numpy(name, column.flatten())
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    return values, np.concatenate([[0], np.cumsum(lengths, dtype="int64")])


def as_tensors(columns: "Mapping[str, Any]", wanted: "Wanted", tf: "Any") -> "Dict[str, Any]":
    """The same, a RaggedTensor for a ragged column."""
    return {
        name: tf.RaggedTensor.from_row_splits(*value) if name in wanted.ragged else value
        for name, value in columns.items()
    }


def spec_of(name: str, kind: "Any", wanted: "Wanted", width: "Optional[Sequence[int]]", tf: "Any") -> "Any":
    """The TensorSpec of a column of that Arrow type."""
    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    text = str(kind)
    dtype = tf.string if "string" in text or "binary" in text else tf.as_dtype(kind.to_pandas_dtype())
    if name in wanted.ragged:
        return tf.RaggedTensorSpec([None, None], dtype, ragged_rank=1)
    inside = wanted.shapes.get(name) or width
    shape = [None, *(inside if inside is not None else [None] * depth)]
    return tf.TensorSpec(shape, dtype)
