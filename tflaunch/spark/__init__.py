"""TensorFlow on the executors of a Spark program.

    from tflaunch import spark

    run = spark.run(session, train, workers=4, ps=1, args=[0.01])    # a function, or "trainer.py"
    for event in run:
        if event["event"] == "log":
            print(event["task"], event["line"])
    print(run.wait().status, run.results[0])

The slots are tasks of a barrier stage in the session's own application; see docs/spark.md.

    scored = spark.predict(df, "/models/churn", inputs={"features": "x"}, outputs={"output_0": "score"})

    spark_run     run, SparkRun
    predicting    predict
    columns       which of a DataFrame's columns go to which inputs of a model, and what comes back
    in_executor   what executors do for predict; they get its text
    estimator     Estimator: a run as a stage that makes a Model
    tensorflowonspark  what its drivers call
    pipeline      TFEstimator, TFModel of it
    model         Model: predict as a stage of a Spark ML pipeline
    params        the parameters that such stages have in common
"""

from typing import TYPE_CHECKING, Any

from tflaunch.spark.predicting import predict
from tflaunch.spark.spark_run import SparkRun, run

if TYPE_CHECKING:
    from tflaunch.spark.estimator import Estimator
    from tflaunch.spark.model import Model

__all__ = ["Estimator", "Model", "SparkRun", "predict", "run"]


def __getattr__(name: str) -> Any:
    """Stages of a pipeline are classes of pyspark, which is imported when they are used, not before."""
    if name == "Estimator":
        from tflaunch.spark.estimator import Estimator

        return Estimator
    if name == "Model":
        from tflaunch.spark.model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
