"""TFEstimator and TFModel of TensorFlowOnSpark's pipeline API, under the same names, on TFCluster and `predict`.

    from tflaunch.spark.pipeline import TFEstimator, TFModel    # for: from tensorflowonspark.pipeline import ...

New programs have `tflaunch.spark.Estimator` and `Model`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator as SparkEstimator
from pyspark.ml import Model as SparkModel
from pyspark.ml.param import Param, Params

from tflaunch.protocol.errors import UsageError
from tflaunch.spark.predicting import predict
from tflaunch.spark.tensorflowonspark import InputMode, TFCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Each parameter, with its default: None is none.  Those of files, queues and RDMA are taken, and not needed.
PARAMETERS: Mapping[str, Any] = {
    "input_mapping": None,  # {column: tensor}
    "output_mapping": None,  # {tensor: column}
    "batch_size": 100,
    "cluster_size": 1,
    "num_ps": 0,
    "epochs": 1,
    "steps": 1000,
    "model_dir": None,
    "export_dir": None,
    "tensorboard": False,
    "master_node": "chief",
    "grace_secs": 30,
    "signature_def_key": None,
    "tag_set": None,
    "driver_ps_nodes": False,
    "feed_timeout": 600,
    "input_mode": InputMode.SPARK,
    "protocol": "grpc",
    "readers": 1,
    "tfrecord_dir": None,
}


class TFParams(Params):  # type: ignore[misc]  # Any where pyspark has no types
    """All parameters, each with its setX and getX; `args` are the program's own."""

    args: Any = None

    def __init__(self, args: argparse.Namespace | Mapping[str, Any] | Sequence[str] | None) -> None:
        super().__init__()
        self.args = args
        self._setDefault(**PARAMETERS)

    def merge_args_params(self) -> argparse.Namespace:
        """The program's own arguments, and over them all parameters, their defaults as well."""
        if isinstance(self.args, argparse.Namespace):
            found = vars(self.args).copy()
        elif isinstance(self.args, Mapping):
            found = dict(self.args)
        else:
            found = {"argv": list(self.args)} if self.args else {}
        found.update({name: self.getOrDefault(name) for name in PARAMETERS})
        return argparse.Namespace(**found)


def _declare(name: str) -> None:
    camel = "PS" if name == "ps" else "".join(part.capitalize() for part in name.split("_"))
    camel = {"NumPs": "NumPS", "TfrecordDir": "TFRecordDir"}.get(camel, camel)
    setattr(TFParams, name, Param(Params._dummy(), name, f"{name} of TensorFlowOnSpark"))
    setattr(TFParams, f"set{camel}", lambda self, value: self._set(**{name: value}))
    setattr(TFParams, f"get{camel}", lambda self: self.getOrDefault(name))


for _name in PARAMETERS:
    _declare(_name)


class TFEstimator(TFParams, SparkEstimator):  # type: ignore[misc]
    """Trains by `train_fn(args, ctx)` on the columns of `setInputMapping`, in the order of their sorted names."""

    def __init__(
        self,
        train_fn: Callable[[Any, Any], Any],
        tf_args: argparse.Namespace | Mapping[str, Any] | Sequence[str] | None,
        export_fn: Any = None,
    ) -> None:
        super().__init__(tf_args)
        if export_fn is not None:
            raise UsageError("TFEstimator: export_fn is of TensorFlow 1", "save the model in train_fn")
        self.train_fn = train_fn

    def _fit(self, dataset: DataFrame) -> TFModel:
        args = self.merge_args_params()
        if not args.input_mapping:
            raise UsageError("TFEstimator: which columns?", "setInputMapping({'column': 'tensor'})")
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            args,
            args.cluster_size,
            args.num_ps,
            tensorboard=args.tensorboard,
            input_mode=args.input_mode,
            log_dir=args.model_dir,
            master_node=args.master_node,
        )
        if args.input_mode == InputMode.SPARK:
            cluster.train(dataset.select(sorted(args.input_mapping)), args.epochs)
        cluster.shutdown()
        model: TFModel = self._copyValues(TFModel(self.args))
        return model


class TFModel(TFParams, SparkModel):  # type: ignore[misc]
    """Applies the model in export_dir, or model_dir; of the columns, only its outputs are kept, as there."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        args = self.merge_args_params()
        place = args.export_dir or args.model_dir
        if not (place and args.input_mapping and args.output_mapping):
            raise UsageError(
                "TFModel: which model, which columns?", "setExportDir, setInputMapping, setOutputMapping"
            )
        columns = [args.output_mapping[tensor] for tensor in sorted(args.output_mapping)]
        found = predict(
            dataset.select(sorted(args.input_mapping)),
            place,
            inputs=args.input_mapping,
            outputs=args.output_mapping,
            signature=args.signature_def_key or "serving_default",
            batch=args.batch_size,
        )
        return found.select(*columns)
