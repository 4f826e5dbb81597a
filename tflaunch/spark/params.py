"""The parameters that the stages of a Spark ML pipeline have in common."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from tflaunch.protocol.errors import UsageError
from tflaunch.spark.predicting import BATCH


class PredictParams(Params):  # type: ignore[misc]  # Any where pyspark has no types
    """How a model is applied to a DataFrame: `predict` tells what each means.

    An estimator has them, too, and hands them to the model that it makes.
    """

    inputs: Any = Param(Params._dummy(), "inputs", "which column goes to which input of the model")
    outputs: Any = Param(
        Params._dummy(), "outputs", "which outputs are wanted, and the name of each as a column"
    )
    signature: Any = Param(Params._dummy(), "signature", "of a SavedModel", TypeConverters.toString)
    batch: Any = Param(
        Params._dummy(), "batch", "how many rows the model gets at a time", TypeConverters.toInt
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(inputs=None, outputs=None, signature="serving_default", batch=BATCH)

    def getInputs(self) -> dict[str, str] | list[str] | str | None:
        found: dict[str, str] | list[str] | str | None = self.getOrDefault(self.inputs)
        return found

    def getOutputs(self) -> dict[str, str] | list[str] | str | None:
        found: dict[str, str] | list[str] | str | None = self.getOrDefault(self.outputs)
        return found

    def getSignature(self) -> str:
        return str(self.getOrDefault(self.signature))

    def getBatch(self) -> int:
        return int(self.getOrDefault(self.batch))

    def _give(self, given: dict[str, Any]) -> None:
        """Set those that were given.  Raises UsageError for a value that it cannot have."""
        try:
            self._set(**{name: value for name, value in given.items() if value is not None})
        except TypeError as error:
            raise UsageError(str(error), f"{type(self).__name__}: see tflaunch.spark.predict") from None
