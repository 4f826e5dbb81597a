"""What Spark's Python workers do for `tflaunch.spark.predict`: load the model once, and give it the rows.

Executors have no tflaunch: they get the text of this file, and import it under another name.  So it imports nothing of
tflaunch, and nothing that they may lack before it can say so; TensorFlow only when the GPUs are chosen.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# The models of this process, the one used last behind the others: a worker outlives a job, and a pipeline has several.
MODELS: OrderedDict[tuple[str, ...], Any] = OrderedDict()
MOST = 4
ARROW = {
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
}

Array = Any  # of numpy
Spec = tuple[
    str, str, "list[int | None] | None"
]  # name, dtype, shape: as TensorFlow names them; None: of any rank


class Unfit(Exception):
    """What cannot be, in a sentence; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"tflaunch: {message}: {hint}" if hint else f"tflaunch: {message}")
        self.message, self.hint = message, hint


class SavedModel:
    """A signature of a SavedModel."""

    def __init__(self, model: dict[str, Any]) -> None:
        tensorflow = _tensorflow()
        path, signature = model["path"], model["signature"]
        if not tensorflow.io.gfile.exists(f"{path}/saved_model.pb"):
            if tensorflow.io.gfile.exists(path):
                what = "a directory without saved_model.pb" if tensorflow.io.gfile.isdir(path) else "a file"
                raise Unfit(f"{path} is no SavedModel: it is {what}", "model.export(DIR) of Keras makes one")
            raise _unseen(path)
        try:
            self._loaded = tensorflow.saved_model.load(path)  # its variables live as long as this
        except Exception as error:  # of TensorFlow, of many kinds
            raise Unfit(
                f"TensorFlow cannot load {path}: {_first_line(error)}",
                "is it whole, and of a version that the executors' TensorFlow reads?",
            ) from error
        signatures = list(self._loaded.signatures)
        if signature not in signatures:
            have = ", ".join(signatures) or "none"
            raise Unfit(f"{path} has no signature {signature}", f"it has: {have}")
        self._function = self._loaded.signatures[signature]
        self._constant = tensorflow.constant
        self.inputs = [
            _spec(name, each) for name, each in self._function.structured_input_signature[1].items()
        ]
        # The file itself has them in no order.
        self.outputs = [_spec(name, each) for name, each in sorted(self._function.structured_outputs.items())]

    def __call__(self, names: Sequence[str | None], arrays: Sequence[Array]) -> Any:
        found = self._function(
            **{str(name): self._constant(each) for name, each in zip(names, arrays, strict=True)}
        )
        return {name: each.numpy() for name, each in found.items()}


class KerasModel:
    """A model of Keras, from a file of its own format, or HDF5."""

    def __init__(self, model: dict[str, Any]) -> None:
        path = model["path"]
        tensorflow = _tensorflow()
        if not tensorflow.io.gfile.exists(path):
            raise _unseen(path)
        try:
            self._model = tensorflow.keras.models.load_model(path, compile=False)
        except Exception as error:  # of Keras, of many kinds
            raise Unfit(
                f"Keras cannot load {path}: {_first_line(error)}",
                "a model with classes of its own is given as a function that loads it, or as a SavedModel: "
                "model.export(DIR)",
            ) from error
        inputs, outputs = getattr(self._model, "inputs", None), getattr(self._model, "outputs", None)
        if not inputs or not outputs:
            raise Unfit(
                f"{path} does not say what it takes: its model is a subclass of keras.Model",
                "make a SavedModel of it: model.export(DIR)",
            )
        self.inputs = [_spec(each.name, each) for each in inputs]
        tree = getattr(self._model, "_outputs_struct", None)
        if isinstance(tree, dict):
            self.outputs = [_spec(name, each) for name, each in tree.items()]
        else:
            names = getattr(self._model, "output_names", None) or [self._model.layers[-1].name]
            self.outputs = [_spec(name, each) for name, each in zip(names, outputs, strict=True)]

    def __call__(self, names: Sequence[str | None], arrays: Sequence[Array]) -> Any:
        given = arrays[0] if len(self.inputs) == 1 else dict(zip(names, arrays, strict=True))
        found = self._model.predict_on_batch(given)
        return tuple(found) if isinstance(found, list) else found


class FunctionModel:
    """What the caller's function has returned."""

    def __init__(self, model: dict[str, Any]) -> None:
        from pyspark import cloudpickle

        self._call = cloudpickle.loads(model["function"])()
        if not callable(self._call):
            raise Unfit(
                f"{model['path']} has returned {type(self._call).__name__}",
                "it is to return what is called with arrays: a function, a model",
            )

    def __call__(self, names: Sequence[str | None], arrays: Sequence[Array]) -> Any:
        if names[0] is None:
            return self._call(*arrays)
        return self._call(**{str(name): each for name, each in zip(names, arrays, strict=True)})


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "saved": SavedModel,
    "keras": KerasModel,
    "function": FunctionModel,
}


def describe(batches: Iterator[Any], model: dict[str, Any]) -> Iterator[Any]:
    """One row: what the model takes and gives, or why there is nothing to say, as JSON."""
    import pyarrow

    for _ in batches:  # all, or Spark waits for its own end of the pipe
        pass
    try:
        stamp = _stamp(model["path"])
        loaded = _loaded({**model, "stamp": stamp})
        told = {"inputs": loaded.inputs, "outputs": loaded.outputs, "stamp": stamp}
    except Unfit as refused:
        told = {"error": refused.message, "hint": refused.hint}
    yield pyarrow.RecordBatch.from_arrays(
        [pyarrow.array([json.dumps(told)], pyarrow.string())], names=["told"]
    )


def predict(batches: Iterator[Any], task: dict[str, Any]) -> Iterator[Any]:
    """The rows with the columns that the model makes of them; it is loaded when the first rows are there."""
    size = task["batch"]
    waiting, rows = [], 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows < size:
            continue
        whole, whole_rows = _joined(waiting), rows - rows % size
        yield _applied(whole.slice(0, whole_rows), task)
        waiting, rows = [whole.slice(whole_rows)], rows - whole_rows
    if rows:
        yield _applied(_joined(waiting), task)


def _joined(batches: list[Any]) -> Any:
    """One record batch of several."""
    import pyarrow

    filled = [each for each in batches if each.num_rows]
    if len(filled) == 1:
        return filled[0]
    return pyarrow.Table.from_batches(filled).combine_chunks().to_batches()[0]


def _applied(rows: Any, task: dict[str, Any]) -> Any:
    """These rows with their outputs; where an input is null, or has a null in it, so are the outputs."""
    import numpy
    import pyarrow

    model = _loaded(task["model"])
    columns = [rows.column(each["at"]) for each in task["inputs"]]
    complete = numpy.ones(rows.num_rows, bool)
    for column in columns:
        complete &= _complete(column)
    count = int(complete.sum())
    if count < rows.num_rows:
        chosen = pyarrow.array(complete)
        columns = [each.filter(chosen) for each in columns]
    made = _outputs(model, columns, count, task)
    if count < rows.num_rows:
        places = pyarrow.array(numpy.cumsum(complete) - 1, mask=~complete)
        made = [each.take(places) for each in made]
    kept = task["kept"]
    return pyarrow.RecordBatch.from_arrays(
        [*rows.columns[:kept], *made],
        names=[*rows.schema.names[:kept], *(each["column"] for each in task["outputs"])],
    )


def _outputs(model: Any, columns: Sequence[Any], count: int, task: dict[str, Any]) -> list[Any]:
    """The columns of the outputs for `count` rows without a null."""
    import pyarrow

    names = [each["tensor"] for each in task["inputs"]]
    parts: list[list[Any]] = [[] for _ in task["outputs"]]
    for start in range(0, count, task["batch"]):
        rows = min(task["batch"], count - start)
        arrays = [
            _fitted(_array(column.slice(start, rows), each["column"]), each)
            for column, each in zip(columns, task["inputs"], strict=True)
        ]
        if task["fixed"] and rows < task["batch"]:  # the signature is for so many rows, and no fewer
            arrays = [each.repeat([1] * (rows - 1) + [task["batch"] - rows + 1], axis=0) for each in arrays]
        found = _by_output(model(names, arrays), task["outputs"])
        for part, array, output in zip(parts, found, task["outputs"], strict=True):
            padded = array[:rows] if task["fixed"] else array
            part.append(_column(padded, rows, output))
    return [
        pyarrow.concat_arrays(part) if part else pyarrow.array([], _type(output))
        for part, output in zip(parts, task["outputs"], strict=True)
    ]


def _complete(column: Any) -> Array:
    """For each row, whether it has a value without a null in it."""
    import numpy
    import pyarrow

    complete = numpy.asarray(column.is_valid())
    if not _is_list(column.type):
        return complete
    inner = _complete(column.flatten())
    if inner.all():
        return complete
    lengths = numpy.asarray(column.value_lengths().fill_null(pyarrow.scalar(0, column.value_lengths().type)))
    ends = numpy.cumsum(lengths)
    nulls = numpy.concatenate([[0], numpy.cumsum(~inner)])
    return complete & (nulls[ends] == nulls[ends - lengths])


def _array(column: Any, name: str) -> Array:
    """A column without nulls as an array with a row for each of its rows."""
    import numpy

    shape = [len(column)]
    while _is_list(column.type):
        lengths = numpy.unique(numpy.asarray(column.value_lengths()))
        if len(lengths) > 1:
            raise Unfit(
                f"column {name!r} has arrays of {lengths[0]} and of {lengths[-1]} values in one batch",
                "a model takes equal ones: pad them before",
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    return numpy.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)


def _fitted(array: Array, tensor: dict[str, Any]) -> Array:
    """The array in the shape and of the type that the model's input is declared with; a function's has none."""
    if (shape := tensor["shape"]) is not None:
        wanted = [len(array), *(-1 if each is None else each for each in shape[1:])]
        known = 1
        for each in wanted:
            known *= each if each > 0 else 1
        open_ones = wanted.count(-1)
        fits = array.ndim == len(wanted) and all(
            w in (-1, have) for w, have in zip(wanted, array.shape, strict=True)
        )
        if not fits:
            if open_ones > 1 or (array.size % known if open_ones else array.size != known):
                row = "x".join(map(str, array.shape[1:])) or "1"
                raise Unfit(
                    f"column {tensor['column']!r} has {row} values a row, and input {tensor['tensor']!r} takes "
                    + "x".join("?" if each is None else str(each) for each in shape[1:])
                )
            array = array.reshape(wanted)
    return array if tensor["dtype"] is None else _cast(array, tensor["dtype"], f"column {tensor['column']!r}")


def _cast(array: Array, dtype: str, whose: str) -> Array:
    """As numbers of that type.  Raises Unfit for integers that it cannot have."""
    import numpy

    if dtype == "string":
        return array
    if dtype == "bfloat16":
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16)
    wanted = numpy.dtype(dtype)
    if array.dtype == wanted:
        return array
    made = array.astype(wanted)
    if array.dtype.kind in "iu" and wanted.kind in "iu" and not (made == array).all():
        wrong = array[made != array].flat[0]
        raise Unfit(f"{whose} has {wrong}, which is no {dtype}")
    return made


def _by_output(found: Any, outputs: Sequence[dict[str, Any]]) -> list[Array]:
    """What a model has returned, for each of the wanted outputs."""
    import numpy

    if isinstance(found, dict):
        if lacking := [each["tensor"] for each in outputs if each["tensor"] not in found]:
            raise Unfit(f"the model has returned {', '.join(map(str, found))}, and no {lacking[0]}")
        chosen = [found[each["tensor"]] for each in outputs]
    else:
        # A list is the values of one output, unless several are wanted.
        several = isinstance(found, tuple) or (isinstance(found, list) and len(outputs) > 1)
        listed = list(found) if several else [found]
        if any(each["place"] >= len(listed) for each in outputs):
            raise Unfit(f"the model has returned {len(listed)} arrays, and {len(outputs)} are wanted")
        chosen = [listed[each["place"]] for each in outputs]
    return [numpy.asarray(each) for each in chosen]


def _column(array: Array, rows: int, output: dict[str, Any]) -> Any:
    """The column of an output, exactly of the type that Spark was told."""
    import numpy
    import pyarrow

    whose, leaf, depth = f"output {output['column']!r}", output["leaf"], output["depth"]
    if array.ndim == 0 or len(array) != rows:
        shape = "x".join(map(str, array.shape)) or "no rows"
        raise Unfit(f"{whose} has {shape} for {rows} rows", "a model gives one value, or array, for each row")
    if depth == 0 and array.ndim > 1 and array.size == rows:
        array = array.reshape(rows)
    if array.dtype == object and array.ndim != depth + 1:  # arrays of several lengths
        try:
            return pyarrow.array(array.tolist(), _type(output))
        except (pyarrow.ArrowException, TypeError) as error:
            raise Unfit(f"{whose} is not {_declared(output)}: {_first_line(error)}") from error
    if array.ndim != depth + 1:
        shape = "x".join(map(str, array.shape[1:])) or "1"
        raise Unfit(f"{whose} has {shape} values a row, which is not {_declared(output)}")
    values = _leaves(array, leaf, whose)
    for axis in range(array.ndim - 1, 0, -1):
        lists = int(numpy.prod(array.shape[:axis]))
        starts = numpy.arange(lists + 1, dtype=numpy.int32) * numpy.int32(array.shape[axis])
        values = pyarrow.ListArray.from_arrays(starts, values)
    return values


def _leaves(array: Array, leaf: str, whose: str) -> Any:
    """The values of an output, one after the other, as Arrow has them."""
    import numpy
    import pyarrow

    flat = array.reshape(-1)
    kind = getattr(pyarrow, ARROW[leaf])()
    try:
        if leaf in ("string", "binary"):
            listed = flat.tolist()
            if leaf == "string" and any(isinstance(each, bytes) for each in listed):
                listed = [each.decode() if isinstance(each, bytes) else each for each in listed]
            return pyarrow.array(listed, kind)
        if array.dtype == object:  # with None in it, as a function may return
            return pyarrow.array(flat.tolist(), kind)
    except UnicodeDecodeError:
        raise Unfit(
            f"{whose} is a string that is not UTF-8", "bytes come from a function with outputs='NAME binary'"
        ) from None
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise Unfit(f"{whose} is not {leaf}: {_first_line(error)}") from error
    wanted = numpy.dtype(kind.to_pandas_dtype())
    rounded = flat.dtype.kind == "f" and wanted.kind != "f"
    if rounded or flat.dtype.kind in "US" or (wanted.kind == "b" and flat.dtype.kind != "b"):
        raise Unfit(f"{whose} is {flat.dtype}, and was declared as {leaf}")
    return pyarrow.array(_cast(flat, wanted.name, whose), kind)


def _type(output: dict[str, Any]) -> Any:
    import pyarrow

    made = getattr(pyarrow, ARROW[output["leaf"]])()
    for _ in range(output["depth"]):
        made = pyarrow.list_(made)
    return made


def _declared(output: dict[str, Any]) -> str:
    depth, leaf = int(output["depth"]), str(output["leaf"])
    return "array<" * depth + leaf + ">" * depth


def _is_list(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


def _loaded(model: dict[str, Any]) -> Any:
    """The model, loaded if this process has not got it."""
    key = (model["kind"], model["path"], model["signature"], model["stamp"])
    if key in MODELS:
        MODELS.move_to_end(key)
        return MODELS[key]
    _choose_devices()
    begin = time.monotonic()
    made = KINDS[model["kind"]](model)
    while len(MODELS) >= MOST:
        MODELS.popitem(last=False)
    MODELS[key] = made
    took = time.monotonic() - begin
    words = f"tflaunch: process {os.getpid()} has loaded {model['path']} in {took:.1f} s"
    print(words, file=sys.stderr, flush=True)
    return made


def _choose_devices() -> None:
    """Show TensorFlow the GPUs that Spark has given this task, else none, and as many cores as it has.

    A worker that Spark uses again keeps those that it began with: the tasks of an executor exchange theirs.
    """
    if "tensorflow" in sys.modules:
        return
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = context.resources().get("gpu") if context else None
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.addresses)
    else:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    cores = str(context.cpus()) if context else "1"
    for name, value in (
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),  # tasks of several jobs may share one
        ("TF_NUM_INTRAOP_THREADS", cores),
        ("TF_NUM_INTEROP_THREADS", cores),
        ("TF_CPP_MIN_LOG_LEVEL", "2"),
    ):
        os.environ.setdefault(name, value)


def _stamp(path: str) -> str:
    """What changes when another model is written to the same path."""
    files = _tensorflow().io.gfile
    stamps = []
    for each in (path, f"{path}/saved_model.pb", f"{path}/variables/variables.index"):
        try:
            found = files.stat(each)
        except Exception:  # noqa: S112 - it is not there, or a store that has no times
            continue
        stamps.append(f"{found.mtime_nsec}.{found.length}")
    return " ".join(stamps)


def _tensorflow() -> Any:
    _choose_devices()
    try:
        import tensorflow
    except ImportError as error:
        raise Unfit(
            f"the executors' Python, {sys.executable}, has no TensorFlow: {_first_line(error)}",
            "install it there; PYSPARK_PYTHON says which Python executors use",
        ) from error
    return tensorflow


def _unseen(path: str) -> Unfit:
    return Unfit(
        f"the executor on {os.uname().nodename} cannot see {path}",
        "a model is read by every executor: put it where all reach it by that name, on a shared disk",
    )


def _spec(name: str, tensor: Any) -> Spec:
    dtype = getattr(tensor.dtype, "name", None) or str(tensor.dtype)
    shape = getattr(tensor, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return (name, dtype, None)
    return (name, dtype, [None if each is None else int(each) for each in shape])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
