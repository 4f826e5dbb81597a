"""What drivers of TensorFlowOnSpark call, under the same names, on `tflaunch.spark.run`.

    from tflaunch.spark.tensorflowonspark import TFCluster        # in place of: from tensorflowonspark import TFCluster
    from tflaunch_task import TFNode                              # the same, in the function that tasks run

    cluster = TFCluster.run(sc, main_fun, args, num_executors=4, num_ps=1, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(rdd, num_epochs=3)
    cluster.shutdown()

`num_executors` counts all tasks, as there; a ps takes no executor here.  No call has a time-out of ten minutes: a run
that cannot go on says who waits for whom.  docs/spark-feed.md has what differs.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tflaunch.protocol.errors import UsageError
from tflaunch.spark.spark_run import SparkKeywords, SparkRun, start, succeeded

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame

OPTIONS = (
    *("tensorboard", "input_mode", "log_dir", "driver_ps_nodes", "master_node", "reservation_timeout"),
    *("queues", "eval_node", "release_port"),
)
# Where none are said: TensorFlowOnSpark's "large number", for programs that stop by themselves.
MANY_EPOCHS = 10
RESULTS_S = 600.0  # for Spark to keep what tasks have said of the last rows


class InputMode:
    """Who reads the data: the program itself, or Spark for it."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A cluster that `TFCluster.run` has started, or will when it gets its rows."""

    InputMode = InputMode

    def __init__(self, begin: Callable[..., SparkRun], input_mode: int) -> None:
        self._begin, self._input_mode = begin, input_mode
        self._run: SparkRun | None = None
        self._url: str | None = None
        self._reader: threading.Thread | None = None
        if input_mode == InputMode.TENSORFLOW:
            self._start({})

    @staticmethod
    def run(
        sc: SparkContext,
        map_fun: Callable[[Any, Any], Any],
        tf_args: argparse.Namespace | Sequence[str] | None,
        num_executors: int,
        num_ps: int = 0,
        *more: Any,
        **named: Any,
    ) -> TFCluster:
        """Start `map_fun(tf_args, ctx)` in each task; with InputMode.SPARK, once `train` or `inference` gives rows.

        more, named: tensorboard, input_mode, log_dir, driver_ps_nodes, master_node, reservation_timeout, queues,
        eval_node, release_port, in this order; driver_ps_nodes, queues and release_port are not needed here.
        Raises TflaunchError.
        """
        given = {**dict(zip(OPTIONS, more, strict=False)), **named}
        if unknown := [*(given.keys() - set(OPTIONS)), *more[len(OPTIONS) :]]:
            raise TypeError(f"TFCluster.run has no {unknown[0]!r}")
        chief, evaluator = bool(given.get("master_node")), bool(given.get("eval_node"))
        if given.get("master_node") not in (None, "", "chief", "master"):
            raise UsageError(f"master_node={given['master_node']!r}", "it is 'chief', or left out")
        workers = num_executors - num_ps - chief - evaluator
        if workers < 0 or workers + chief < 1:
            raise UsageError(
                f"num_executors={num_executors} are all tasks, and none is left to train: num_ps={num_ps}",
                "ask for more, or for fewer ps",
            )

        def begin(rows: Mapping[str, Any], *, results: bool = False) -> SparkRun:
            words: dict[str, Any] = {"workers": workers, "ps": num_ps, "chief": chief, "yes": True}
            if evaluator:
                words["evaluator"] = 1
            if given.get("tensorboard"):
                words["tensorboard"] = given.get("log_dir") or "logs"
            words["wait"] = given.get("reservation_timeout", 600)

            def program() -> None:  # it goes to the tasks by value: they have no tflaunch
                from tflaunch_task.tensorflowonspark import run_program

                run_program(map_fun, tf_args)

            return start(sc, program, (), cast("SparkKeywords", {**words, **rows}), results=results)

        return TFCluster(begin, given.get("input_mode", InputMode.TENSORFLOW))

    def train(
        self,
        dataRDD: RDD[Any] | DataFrame,
        num_epochs: int = 0,
        feed_timeout: float = 600,
        qname: str = "input",
    ) -> None:
        """Give these rows to the tasks that read, so many times; returns when the tasks are being started.

        num_epochs: 0 is ten, as there.
        """
        self._spark_mode("train")
        self._start({"feed": dataRDD, "epochs": num_epochs or MANY_EPOCHS})

    def inference(
        self,
        dataRDD: RDD[Any],
        feed_timeout: float = 600,
        qname: str = "input",
    ) -> RDD[Any]:
        """Give these rows to the tasks, wait for the end, and return what they have said of them (batch_results).

        The results are kept on the executors' disks as long as the application lives.  Raises TflaunchError.
        """
        self._spark_mode("inference")
        self._start({"feed": dataRDD}, results=True)
        self.shutdown()
        assert self._run is not None  # noqa: S101
        return self._run.results_of_rows(RESULTS_S)

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Wait for the end of all tasks.  Raises TflaunchError for a run that has not succeeded; TimeoutError."""
        if ssc is not None:
            raise UsageError(
                "shutdown(ssc): streams of the old API are not fed",
                "Structured Streaming: tflaunch.spark.predict takes a streaming DataFrame",
            )
        if self._run is None:
            return  # no rows were given, and no task was started
        assert self._reader is not None  # noqa: S101
        self._reader.join(timeout)  # before `wait`, which drops what is not read
        outcome = self._run.wait(0 if self._reader.is_alive() else None)
        succeeded(self._run, outcome)
        time.sleep(grace_secs)

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard is; None: there is none, or not yet."""
        return self._url

    def _spark_mode(self, what: str) -> None:
        if self._input_mode != InputMode.SPARK:
            raise UsageError(
                f"TFCluster.{what} is of InputMode.SPARK",
                "TFCluster.run(..., input_mode=TFCluster.InputMode.SPARK)",
            )
        if self._run is not None:
            raise UsageError(
                f"TFCluster.{what}: this cluster has its rows already",
                "give all rows at once, rdd.union(other); or run another cluster after shutdown()",
            )

    def _start(self, rows: Mapping[str, Any], *, results: bool = False) -> None:
        self._run = self._begin(rows, results=results)
        self._reader = threading.Thread(target=self._read, args=[self._run], daemon=True)
        self._reader.start()

    def _read(self, run: SparkRun) -> None:
        """Show what the tasks print."""
        for event in run:
            if event["event"] == "log":
                sys.stderr.write(f"{event['task']} {event['line']}\n")
            elif event["event"] == "tensorboard":
                self._url = event["url"]


class TFParallel:
    """The same function in several processes that are no cluster."""

    @staticmethod
    def run(
        sc: SparkContext,
        map_fn: Callable[[Any, Any], Any],
        tf_args: argparse.Namespace | Sequence[str] | None,
        num_executors: int,
        use_barrier: bool = True,
    ) -> None:
        """Run `map_fn(tf_args, ctx)` so many times at once, and wait for the end.  Raises TflaunchError."""
        cluster = TFCluster.run(sc, map_fn, tf_args, num_executors)
        cluster.shutdown()
