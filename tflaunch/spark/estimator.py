"""A run that trains a model, as a stage of a Spark ML pipeline."""

from __future__ import annotations

import argparse
import base64
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pyspark.ml import Estimator as SparkEstimator
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable

from tflaunch.protocol.errors import UsageError
from tflaunch.spark.model import Model, plain
from tflaunch.spark.params import PredictParams
from tflaunch.spark.spark_run import run, succeeded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack


class EstimatorKeywords(TypedDict, total=False):
    """What an Estimator takes beside its function."""

    program: str | PathLike[str] | None
    features: Sequence[str] | str
    label: str
    workers: int
    ps: int
    epochs: int
    train_batch: int
    model_dir: str | PathLike[str]
    settings: Mapping[str, Any]
    inputs: Mapping[str, str] | Sequence[str] | str | None
    outputs: Mapping[str, str] | Sequence[str] | str | None
    signature: str
    batch: int


class Estimator(PredictParams, SparkEstimator, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """Trains in slots of the session's application, and makes a Model of what was saved.

    `train_fn(params)` is called in each task of the run, and reads the rows by `tflaunch_task.dataset`; `params` has
    `features`, `label`, `epochs`, `train_batch`, whatever `settings` says, and `model_dir`: where the chief saves the
    model, a directory of its own for each fit.  A `program` gets `--model_dir=DIR` and `--NAME=VALUE` for `settings`.
    """

    program: Any = Param(Params._dummy(), "program", "the trainer, a file", TypeConverters.toString)
    function: Any = Param(
        Params._dummy(), "function", "train_fn, as cloudpickle has it, in base64", TypeConverters.toString
    )
    features: Any = Param(
        Params._dummy(), "features", "the columns that are read", TypeConverters.toListString
    )
    label: Any = Param(Params._dummy(), "label", "the column of labels", TypeConverters.toString)
    workers: Any = Param(Params._dummy(), "workers", "how many there are", TypeConverters.toInt)
    ps: Any = Param(Params._dummy(), "ps", "how many parameter servers there are", TypeConverters.toInt)
    epochs: Any = Param(Params._dummy(), "epochs", "how often the rows are read", TypeConverters.toInt)
    train_batch: Any = Param(Params._dummy(), "train_batch", "rows of a step", TypeConverters.toInt)
    model_dir: Any = Param(
        Params._dummy(),
        "model_dir",
        "where models are saved, on storage that executors share",
        TypeConverters.toString,
    )
    settings: Any = Param(Params._dummy(), "settings", "what else params has, by name")

    def __init__(
        self,
        train_fn: Callable[[argparse.Namespace], Any] | None = None,
        **given: Unpack[EstimatorKeywords],
    ) -> None:
        """inputs, outputs, signature, batch: of the Model that `fit` makes.  Raises UsageError."""
        super().__init__()
        self._setDefault(workers=1, ps=0, epochs=1, train_batch=32, settings={}, label="")
        program, features = given.get("program"), given.get("features")
        if (train_fn is None) == (program is None) and (train_fn is not None or given):
            raise UsageError("an Estimator has a train_fn or a program, one of both", "give one")
        said: dict[str, Any] = dict(given)
        for name in ("program", "model_dir"):
            said[name] = fspath(said[name]) if said.get(name) is not None else None
        for name in ("inputs", "outputs", "settings"):
            said[name] = plain(said.get(name))
        said["features"] = [features] if isinstance(features, str) else plain(features)
        said["function"] = None if train_fn is None else _pickled(train_fn)
        try:
            self._give(said)
        except AttributeError as error:
            raise TypeError(f"an Estimator has no such keyword: {error}") from None

    def _fit(self, dataset: DataFrame) -> Model:
        """Run it on the rows, and wait.  Raises UsageError, TflaunchError where it does not succeed."""
        said = {name: self.getOrDefault(name) for name in _GIVEN}
        for name in ("features", "model_dir"):
            if not self.isDefined(name):
                why = "slots keep nothing: what is not saved outside is lost" if name == "model_dir" else ""
                raise UsageError(f"the Estimator has no {name}", why or f"Estimator(..., {name}=...)")
        features, label = self.getOrDefault(self.features), said["label"]
        place = f"{self.getOrDefault(self.model_dir).rstrip('/')}/{self.uid}-{secrets.token_hex(4)}"
        words: dict[str, Any] = {
            "workers": said["workers"],
            "ps": said["ps"],
            "feed": dataset,
            "columns": [*features, *([label] if label else [])],
            "epochs": said["epochs"],
            "yes": True,
        }
        session = dataset.sparkSession
        if self.isDefined(self.program):
            args = [
                f"--model_dir={place}",
                *(f"--{name}={value}" for name, value in said["settings"].items()),
            ]
            done = run(session, self.getOrDefault(self.program), args=args, **words)
        else:
            params = argparse.Namespace(
                **said["settings"],
                features=features,
                label=label,
                epochs=said["epochs"],
                train_batch=said["train_batch"],
                model_dir=place,
            )
            done = run(session, _unpickled(self.getOrDefault(self.function)), args=[params], **words)
        for event in done:
            if event["event"] == "log":
                sys.stderr.write(f"{event['task']} {event['line']}\n")
        succeeded(done, done.wait())
        if "://" not in place and not Path(place).exists():
            raise UsageError(
                f"the run has succeeded, and there is no model: {place}",
                "the chief saves it in params.model_dir, on a disk that this machine and all executors share",
            )
        return Model(
            place,
            inputs=self.getInputs(),
            outputs=self.getOutputs(),
            signature=self.getSignature(),
            batch=self.getBatch(),
        )


_GIVEN = ("label", "workers", "ps", "epochs", "train_batch", "settings")


def _pickled(function: Callable[..., Any]) -> str:
    from pyspark import cloudpickle

    try:
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as error:  # whatever its objects raise
        raise UsageError(
            f"train_fn cannot be sent to the executors: {error}",
            "a session, a file or a lock belongs to one process: make it inside the function",
        ) from None


def _unpickled(text: str) -> Callable[..., Any]:
    import pickle

    found: Callable[..., Any] = pickle.loads(base64.b64decode(text))  # noqa: S301 - the caller's own, or its pipeline
    return found
