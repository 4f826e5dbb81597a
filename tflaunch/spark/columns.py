"""Which columns of a DataFrame go to which inputs of a model, and which columns come back: all before a job starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

Inputs = Mapping[str, str] | Sequence[str] | str | None
Outputs = Mapping[str, str] | Sequence[str] | str | None
Shape = tuple[int | None, ...]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")
# What a value of each of TensorFlow's types is in Spark.
_SPARK_OF = {
    "bool": "boolean",
    "int8": "tinyint",
    "uint8": "smallint",
    "int16": "smallint",
    "uint16": "int",
    "int32": "int",
    "uint32": "bigint",
    "int64": "bigint",
    "float16": "float",
    "bfloat16": "float",
    "float32": "float",
    "float64": "double",
    "string": "string",
}
# What stands in the way of a column, by the beginning of its type, and what helps.
_INSTEAD = {
    "decimal": "cast it: col({0!r}).cast('double')",
    "timestamp": "make a number of it: unix_timestamp({0!r})",
    "date": "make a number of it: unix_date({0!r})",
    "struct": "select its fields as columns",
    "map": "select its values as columns: element_at({0!r}, KEY)",
    "interval": "make a number of it",
}


@dataclass(frozen=True)
class Tensor:
    """An input or an output of a model."""

    name: str
    dtype: str
    shape: Shape | None  # with that of the rows, mostly None; None: of any rank

    def __str__(self) -> str:
        shape = "of any shape"
        if self.shape is not None:
            shape = "[" + ", ".join("None" if each is None else str(each) for each in self.shape) + "]"
        return f"{self.name} ({self.dtype} {shape})"


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class InputColumn:
    """A column that goes to an input."""

    field: StructField
    vector: bool  # of Spark ML: it goes as an array
    tensor: Tensor | None  # None: of a function, at its place or by `name`
    name: str | None


@dataclass(frozen=True)
class OutputColumn:
    """A column that comes back."""

    column: str
    tensor: str  # whose it is, in what the model returns
    place: int  # the same, where it returns several without names
    leaf: str  # its type, or that of its innermost elements
    depth: int  # how many arrays are around it

    @property
    def declared(self) -> str:
        """Its type, as Spark writes it."""
        return "array<" * self.depth + self.leaf + ">" * self.depth


def inputs_by_signature(schema: StructType, inputs: Inputs, signature: Signature) -> list[InputColumn]:
    """A column for each input.  Raises UsageError."""
    tensors = {each.name: each for each in signature.inputs}
    takes = "the model takes " + ", ".join(map(str, signature.inputs))
    if inputs is None:
        if tensors.keys() <= set(schema.names):
            chosen = {name: name for name in tensors}
        elif len(tensors) == 1 and len(schema.names) == 1:
            chosen = {schema.names[0]: next(iter(tensors))}
        else:
            raise UsageError(
                f"which columns? {takes}; the columns are {', '.join(schema.names)}",
                f"inputs={{'COLUMN': {next(iter(tensors), 'INPUT')!r}}}",
            )
    elif isinstance(inputs, Mapping):
        chosen = dict(inputs)
    else:
        columns = [inputs] if isinstance(inputs, str) else list(inputs)
        only = len(columns) == 1 and len(tensors) == 1
        chosen = {columns[0]: next(iter(tensors))} if only else {each: each for each in columns}
    if unknown := [each for each in chosen.values() if each not in tensors]:
        raise UsageError(f"inputs: there is no input {unknown[0]!r}: {takes}", "name each as it stands there")
    if lacking := tensors.keys() - set(chosen.values()):
        raise UsageError(f"inputs: no column for {', '.join(sorted(lacking))}: {takes}", "name one for each")
    if len(set(chosen.values())) < len(chosen):
        raise UsageError(f"inputs: two columns for one input: {takes}", "name one for each")
    return [_fitting(_field(schema, column), tensors[name]) for column, name in chosen.items()]


def inputs_of_function(schema: StructType, inputs: Inputs) -> list[InputColumn]:
    """The columns that a function is called with: by name, or by position.  Raises UsageError."""
    if inputs is None:
        if len(schema.names) > 1:
            raise UsageError(
                f"which columns does the function take? they are {', '.join(schema.names)}",
                "inputs=['COLUMN', ...], or {'COLUMN': 'ARGUMENT'}",
            )
        inputs = schema.names
    if isinstance(inputs, str):
        inputs = [inputs]
    if not inputs:
        raise UsageError("inputs: no column is named", "a function takes at least one")
    names = dict(inputs) if isinstance(inputs, Mapping) else dict.fromkeys(inputs)
    return [_fitting(_field(schema, column), None, name) for column, name in names.items()]


def outputs_by_signature(schema: StructType, outputs: Outputs, signature: Signature) -> list[OutputColumn]:
    """The columns that come back: all outputs, or those that are named.  Raises UsageError."""
    gives = "the model gives " + ", ".join(map(str, signature.outputs))
    if isinstance(outputs, str):
        outputs = [outputs]
    if outputs is None:
        outputs = [each.name for each in signature.outputs]
    chosen = dict(outputs) if isinstance(outputs, Mapping) else {each: each for each in outputs}
    tensors = {each.name: (place, each) for place, each in enumerate(signature.outputs)}
    made = []
    for name, column in chosen.items():
        if name not in tensors:
            raise UsageError(f"outputs: there is no output {name!r}: {gives}", "name it as it stands there")
        place, tensor = tensors[name]
        if tensor.dtype not in _SPARK_OF:
            raise UsageError(
                f"output {tensor} is of a type that Spark does not have",
                "leave it out: outputs=[...] names those that are wanted",
            )
        if tensor.shape is None or not tensor.shape:
            raise UsageError(
                f"output {tensor} does not say what there is for each row",
                "leave it out: outputs=[...] names those that are wanted; or give a function, and say its type",
            )
        depth = 0 if tensor.shape[1:] == (1,) else len(tensor.shape) - 1
        made.append(OutputColumn(column, name, place, _SPARK_OF[tensor.dtype], depth))
    return _unclashing(schema, made)


def outputs_of_function(schema: StructType, outputs: Any) -> list[OutputColumn]:
    """The columns that a function returns, as Spark writes a schema.  Raises UsageError."""
    example = "for example outputs='score float, best array<int>'"
    if not isinstance(outputs, str) and not hasattr(outputs, "fieldNames"):
        raise UsageError("outputs: the types of what a function returns are not known", example)
    declared = outputs if hasattr(outputs, "fieldNames") else _parsed(outputs, example)
    made = []
    for place, field in enumerate(declared.fields):
        leaf, depth = _leaf(field.dataType)
        if leaf not in {*_SPARK_OF.values(), "binary"}:
            raise UsageError(
                f"outputs: {field.name} {field.dataType.simpleString()}: a function returns numbers, strings, "
                "binary, and arrays of them",
                example,
            )
        made.append(OutputColumn(field.name, field.name, place, leaf, depth))
    return _unclashing(schema, made)


def fixed_rows(signature: Signature) -> int | None:
    """How many rows the model takes at a time, if its signature says so.  Raises UsageError."""
    for each in signature.inputs:
        if each.shape == ():
            raise UsageError(f"input {each} takes one value for all rows", "give a function that passes it")
    sizes = {each.shape[0] for each in signature.inputs if each.shape} - {None}
    return sizes.pop() if sizes else None


def _parsed(text: str, example: str) -> Any:
    """The StructType of "NAME TYPE, ..."."""
    from pyspark.sql.types import StructType

    try:
        # Which pyspark has from 4.0 on; before, it asks the JVM in the same words.
        if hasattr(StructType, "fromDDL"):
            return StructType.fromDDL(text)
        from pyspark.sql.types import _parse_datatype_string

        return _parse_datatype_string(text)
    except Exception as error:  # the JVM's, of several kinds
        raise UsageError(
            f"outputs: {text!r} is no schema of Spark: {str(error).splitlines()[0]}", example
        ) from None


def _field(schema: StructType, column: str) -> StructField:
    found = [each for each in schema.fields if each.name == column]
    if not found:
        raise UsageError(
            f"inputs: there is no column {column!r}: they are {', '.join(schema.names)}",
            "a field of a struct is selected as a column first",
        )
    if len(found) > 1:
        raise UsageError(f"there are {len(found)} columns {column!r}", "rename one: df.toDF(...)")
    return found[0]


def _fitting(field: StructField, tensor: Tensor | None, name: str | None = None) -> InputColumn:
    """The column for the input.  Raises UsageError where its type does not fit."""
    kind = field.dataType
    vector = type(kind).__name__ == "VectorUDT"
    leaf, depth = ("double", 1) if vector else _leaf(kind)
    said = f"column {field.name!r} is {'a vector' if vector else kind.simpleString()}"
    if leaf not in {*_SPARK_OF.values(), "binary"}:
        words = leaf.partition("(")[0].partition("<")[0].partition(" ")[0]
        instead = next(
            (hint for key, hint in _INSTEAD.items() if words.startswith(key)), "make another column of it"
        )
        raise UsageError(
            f"{said}: a model takes numbers, strings, binary, arrays of them, and vectors of Spark ML",
            instead.format(field.name),
        )
    if tensor is None:
        return InputColumn(field, vector, None, name)
    if not _goes(leaf, tensor.dtype):
        hint = f"cast it: col({field.name!r}).cast(...)"
        if leaf in ("string", "binary"):
            hint = f"make numbers of it, by StringIndexer or {hint.removeprefix('cast it: ')}"
        elif tensor.dtype not in _SPARK_OF:
            hint = "give a function that makes it of arrays"
        raise UsageError(f"{said}, and input {tensor} does not take that", hint)
    if depth == 0 and tensor.shape is not None:
        size = 1
        for each in tensor.shape[1:]:
            size *= each or 1
        if size != 1:
            raise UsageError(
                f"{said}, one value a row, and input {tensor} takes {size}",
                "make one column of several: array(...), or VectorAssembler",
            )
    return InputColumn(field, vector, tensor, tensor.name)


def _goes(leaf: str, dtype: str) -> bool:
    """Whether values of this type of Spark can be cast to that of TensorFlow, as TensorFlow itself does."""
    if dtype not in _SPARK_OF and dtype != "uint64":
        return False
    if dtype == "string":
        return leaf in ("string", "binary")
    if dtype == "bool":
        return leaf == "boolean"
    if "float" in dtype:
        return leaf in (*_FLOATS, *_INTEGERS, "boolean")
    return leaf in (*_INTEGERS, "boolean")


def _leaf(kind: DataType) -> tuple[str, int]:
    """The innermost type, as Spark writes it, and how many arrays are around it."""
    depth, inner = 0, kind
    while type(inner).__name__ == "ArrayType":
        depth, inner = depth + 1, inner.elementType
    return inner.simpleString(), depth


def _unclashing(schema: StructType, made: list[OutputColumn]) -> list[OutputColumn]:
    """The same.  Raises UsageError where two columns would have one name, which Spark reads without its case."""
    seen = {each.lower() for each in schema.names}
    if not made:
        raise UsageError("outputs: none are wanted", "name at least one")
    for each in made:
        if each.column.lower() in seen:
            raise UsageError(
                f"there is a column {each.column!r} already",
                f"name the output otherwise: outputs={{{each.tensor!r}: 'ANOTHER'}}",
            )
        seen.add(each.column.lower())
    return made
