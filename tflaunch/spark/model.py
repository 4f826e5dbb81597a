"""A model as a stage of a Spark ML pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pyspark.ml import Model as SparkModel
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable

from tflaunch.protocol.errors import UsageError
from tflaunch.spark.params import PredictParams
from tflaunch.spark.predicting import predict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Model(PredictParams, SparkModel, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """A SavedModel or a file of Keras, whose `transform` is `predict`.

    It is saved and loaded as other stages are; what is saved is the path of the model, not the model.
    """

    path: Any = Param(
        Params._dummy(), "path", "of the model, where every executor reads it", TypeConverters.toString
    )

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        inputs: Mapping[str, str] | Sequence[str] | str | None = None,
        outputs: Mapping[str, str] | Sequence[str] | str | None = None,
        signature: str | None = None,
        batch: int | None = None,
    ) -> None:
        """Take what `predict` takes; a function is none of it, for it could not be loaded again.  Raises UsageError."""
        super().__init__()
        if path is not None and callable(path):
            raise UsageError(
                "a stage of a pipeline is a model with a path", "for a function: tflaunch.spark.predict"
            )
        self._give(
            {
                "path": None if path is None else fspath(path),
                "inputs": plain(inputs),
                "outputs": plain(outputs),
                "signature": signature,
                "batch": batch,
            }
        )

    def getPath(self) -> str:
        return str(self.getOrDefault(self.path))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if not self.isDefined(self.path):
            raise UsageError("the stage has no model", "tflaunch.spark.Model(PATH)")
        return predict(
            dataset,
            self.getPath(),
            inputs=self.getInputs(),
            outputs=self.getOutputs(),
            signature=self.getSignature(),
            batch=self.getBatch(),
        )


def plain(given: Mapping[str, str] | Sequence[str] | str | None) -> dict[str, str] | list[str] | str | None:
    """The same as JSON has it, as which it is saved."""
    if given is None or isinstance(given, str):
        return given
    return dict(given) if isinstance(given, Mapping) else list(given)
