"""What a model says of the rows of a DataFrame, as columns beside those that it has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.engines.spark_driver import never, said
from tflaunch.protocol.errors import LaunchError, UsageError
from tflaunch.spark import columns, in_executor
from tflaunch.spark.columns import InputColumn, Inputs, OutputColumn, Outputs, Signature, Tensor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH = 256
KERAS_FILES = (".keras", ".h5", ".hdf5")


def predict(
    df: DataFrame,
    model: str | PathLike[str] | Callable[[], Callable[..., Any]],
    *,
    inputs: Inputs = None,
    outputs: Outputs | StructType = None,
    signature: str = "serving_default",
    batch: int = BATCH,
) -> DataFrame:
    """The DataFrame with a column more for each output of the model; a streaming one, too.

    model: a directory with a SavedModel, or a file of Keras (.keras, .h5), which every executor can read by that path;
    or a function that returns what is to be called with arrays.
    inputs: {"column": "input"}, or columns; None: by name, or the only one.
    outputs: {"output": "column"}, or the outputs that are wanted; None: all.  Of a function: the schema of what it
    returns, as "score float, best array<int>".
    signature: of a SavedModel.
    batch: how many rows the model gets at a time, whatever the size of Spark's batches.

    Where a column that the model takes is null, or has a null in it, the outputs are null.  For a path, a task of Spark
    reads the signature at once; all else is done when the rows are wanted.
    Raises UsageError for what does not fit, LaunchError where Spark cannot run that task.
    """
    schema = df.schema
    _check(schema, batch)
    task: dict[str, Any] = {"batch": batch, "fixed": False}
    if callable(model):
        given = columns.inputs_of_function(schema, inputs)
        made = columns.outputs_of_function(schema, outputs)
        task["model"] = _function(model)
    else:
        if hasattr(outputs, "fieldNames"):
            raise UsageError("outputs: a schema is for functions", "a model has the types in its signature")
        about = _place(model, signature)
        found, stamp = _described(df, about)
        task["model"] = {**about, "stamp": stamp}
        given = columns.inputs_by_signature(schema, inputs, found)
        made = columns.outputs_by_signature(schema, outputs, found)
        if rows := columns.fixed_rows(found):
            task.update(batch=rows, fixed=True)
    return _mapped(df, given, made, task)


def _mapped(
    df: DataFrame, given: list[InputColumn], made: list[OutputColumn], task: dict[str, Any]
) -> DataFrame:
    """The DataFrame that does it."""
    from pyspark.sql.types import StructField, StructType

    schema = df.schema
    places = [f"c{place}" for place in range(len(schema.names))]
    source = df.toDF(*places)  # for mapInArrow takes no name with a dot in it, and none twice
    prepared: list[Any] = []
    wanted = []
    for each in given:
        at = schema.names.index(each.field.name)
        if each.vector:
            from pyspark.ml.functions import vector_to_array

            prepared.append(vector_to_array(source[places[at]]).alias(f"v{at}"))
            at = len(places) + len(prepared) - 1
        tensor = each.tensor
        shape = None if tensor is None or tensor.shape is None else list(tensor.shape)
        dtype = None if tensor is None else tensor.dtype
        wanted.append(
            {"column": each.field.name, "at": at, "tensor": each.name, "dtype": dtype, "shape": shape}
        )
    task["kept"] = len(schema.names)
    task["inputs"] = wanted
    task["outputs"] = [
        {
            "column": each.column,
            "tensor": each.tensor,
            "place": each.place,
            "leaf": each.leaf,
            "depth": each.depth,
        }
        for each in made
    ]
    types = [StructField(each.column, _spark_type(each), nullable=True) for each in made]
    if prepared:
        source = source.select("*", *prepared)
    return source.mapInArrow(_stage("predict", task), StructType([*schema.fields, *types]))


def _spark_type(made: OutputColumn) -> Any:
    from pyspark.sql import types

    found: Any = {
        "boolean": types.BooleanType,
        "tinyint": types.ByteType,
        "smallint": types.ShortType,
        "int": types.IntegerType,
        "bigint": types.LongType,
        "float": types.FloatType,
        "double": types.DoubleType,
        "string": types.StringType,
        "binary": types.BinaryType,
    }[made.leaf]()
    for _ in range(made.depth):
        found = types.ArrayType(found)
    return found


def _stage(what: str, about: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of a stage: what `in_executor` does, by that name.

    It is made here, and so goes to the executors whole: they have no tflaunch to import it from.
    """
    program = Path(in_executor.__file__).read_text("utf-8")
    name = f"tflaunch_in_executor_{hashlib.sha256(program.encode()).hexdigest()[:16]}"

    def apply(batches: Iterator[Any]) -> Iterator[Any]:
        import sys
        import types

        module: Any = sys.modules.get(name)
        if module is None:
            module = types.ModuleType(name)
            sys.modules[name] = module
            exec(program, module.__dict__)  # noqa: S102 - it is ours
        return module.__dict__[what](batches, about)  # type: ignore[no-any-return]

    return apply


def _place(model: str | PathLike[str], signature: str) -> dict[str, Any]:
    """What executors are told of a model that has a path."""
    path = fspath(model)
    if path.startswith("file:"):
        path = "/" + path[len("file:") :].lstrip("/")
    if not re.match(r"[a-z][a-z0-9+.-]*://", path):
        path = str(Path(path).absolute())  # executors have working directories of their own
    kind = "keras" if path.endswith(KERAS_FILES) else "saved"
    return {"kind": kind, "path": path.rstrip("/"), "signature": signature}


def _function(function: Callable[[], Callable[..., Any]]) -> dict[str, Any]:
    """What executors are told of a function.  Raises UsageError."""
    from pyspark import cloudpickle

    name = getattr(function, "__name__", type(function).__name__)
    try:
        pickled = cloudpickle.dumps(function)
    except Exception as error:  # whatever the caller's objects raise
        raise UsageError(
            f"{name} cannot be sent to the executors: {error}",
            "a model, a session or a lock belongs to one process: make it inside the function",
        ) from None
    stamp = hashlib.sha256(pickled).hexdigest()
    return {"kind": "function", "path": name, "signature": "", "stamp": stamp, "function": pickled}


def _described(df: DataFrame, about: dict[str, Any]) -> tuple[Signature, str]:
    """What the model takes and gives, and the stamp of its files, as an executor sees it.

    Not this process: what the executors reach and have installed is what counts, TensorFlow would take the GPUs of this
    machine, and the worker that loads the model here goes on with it.  Raises UsageError, LaunchError.
    """
    session = df.sparkSession
    try:
        rows = session.range(0, 1, 1, 1).mapInArrow(_stage("describe", about), "told string").collect()
    except Exception as error:  # Spark's, py4j's, of the JVM
        text = str(error)
        if lacking := re.search(r"No module named '(pyarrow|numpy)'", text):
            raise UsageError(
                f"{lacking[1]} is missing, here or in the executors' Python: Spark hands out columns by it",
                "install it there, as tflaunch's extra spark does here; PYSPARK_PYTHON says which Python executors use",
            ) from None
        above, at, _ = text.partition(
            "\n SQLSTATE"
        )  # which pyspark puts below what a Python worker has raised
        words = above.rpartition("\n")[2][:300] if at and "Traceback" in above else said(error)
        raise never(error) or LaunchError(
            {"spark": f"the signature of {about['path']} could not be read: {words}"},
            "the log of that executor, in Spark's pages, may have more",
        ) from None
    told = json.loads(rows[0]["told"])
    if "error" in told:
        raise UsageError(told["error"], told["hint"])
    inputs, outputs = (
        tuple(
            Tensor(name, dtype, None if shape is None else tuple(shape)) for name, dtype, shape in told[part]
        )
        for part in ("inputs", "outputs")
    )
    return Signature(inputs, outputs), told["stamp"]


def _check(schema: StructType, batch: int) -> None:
    """Raises UsageError for a batch that is none, and for a column that Spark cannot hand to Python and back."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch: {batch!r} is no number of rows", "for example: batch=256")
    for field in schema.fields:
        try:
            _arrow_type(field.dataType)
        except Exception:  # of pyspark, by its version
            raise UsageError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Spark does not hand to Python",
                f"leave it out, df.drop({field.name!r}), or cast it",
            ) from None


def _arrow_type(kind: Any) -> None:
    """Raises where Spark has none for this type."""
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        to_arrow_type(kind, timezone="UTC")
    except TypeError:  # of an earlier pyspark, which takes none; or that of a type
        to_arrow_type(kind)
