"""A run on the executors of a Spark program: of a file, or of a function of the program."""

from __future__ import annotations

import atexit
import pickle
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tflaunch.api.keywords import Keywords
from tflaunch.api.running import Prepared, Run
from tflaunch.engines.spark_rows import NO_READERS, SparkRows
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from tflaunch.protocol.outcome import Outcome

OF_ROWS = ("columns", "epochs", "spool", "repartition")
RESULT = "tflaunch-result-{job}-{index}.pickle"
# What each task of a run of a function runs.  Its cloudpickle is that of the executors' pyspark, which takes long to
# import: so cloudpickle comes alone at first, below a package that is empty.
PROGRAM = '''\
"""Calls the function that came with it, and leaves what it returns to be fetched."""

import importlib.util
import os
import sys
import types

sys.path.extend(filter(None, os.environ.get("TFLAUNCH_PYSPARK", "").split(":")))


def read():
    from pyspark import cloudpickle

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "function.pickle"), "rb") as file:
        return (cloudpickle, *cloudpickle.load(file))


class Alone(types.ModuleType):
    def __getattr__(self, name):
        """Where a function has kept this package, it has the real one behind it."""
        if sys.modules.get("pyspark") is self:
            raise AttributeError(name)
        return getattr(importlib.import_module("pyspark"), name)


there, found = importlib.util.find_spec("pyspark"), None
if there is not None:
    alone = sys.modules["pyspark"] = Alone("pyspark")
    alone.__path__ = list(there.submodule_search_locations)
    try:
        found = read()
    except Exception:  # it needs more of pyspark, or is wrong, as it will say again
        pass
    del sys.modules["pyspark"]
cloudpickle, function, args = found or read()
value = function(*args)
job, _, index = os.environ["TFLAUNCH_TASK"].partition("/")
name = "tflaunch-result-%s-%s.pickle" % (job, index)
with open(name + ".new", "wb") as file:
    cloudpickle.dump(value, file)
os.replace(name + ".new", name)
'''


class SparkKeywords(Keywords, total=False):
    """What `run` takes beside the options of tflaunch.api.run."""

    slots: int | None
    feed: DataFrame | RDD[Any] | None
    columns: Sequence[str] | str | None
    epochs: int
    spool: bool | str
    repartition: bool


class SparkRun(Run):
    """A run on the executors of a Spark program; of a function, it has what each worker's call returned."""

    def __init__(self, prepared: Prepared, results: Path | None, rows: SparkRows | None = None) -> None:
        self._results = results  # where the values come to, of a function's run
        self._rows = rows  # which live as long as this run
        if rows is not None:
            rows.readers = partial(_readers_in, prepared)
        super().__init__(prepared)

    def results_of_rows(self, timeout_s: float) -> Any:
        """An RDD of what tasks have said of the rows of their feed.  Raises TflaunchError."""
        if self._rows is None or not self._rows.finished.wait(timeout_s) or self._rows.results is None:
            raise TflaunchError(
                f"{self.id}: there are no results of its rows", f"why: tflaunch status {self.id}"
            )
        return self._rows.results

    @property
    def results(self) -> list[Any]:
        """What the function returned in each chief and worker, the chief first, then by index; waits for the end.

        Raises UsageError for the run of a file; TflaunchError where a task's value is not here, as after a failure.
        """
        if self._results is None:
            raise UsageError(
                "the run of a file has no results", "give a function; or fetch what the program wrote"
            )
        outcome = self.wait()
        found = []
        for task in sorted(outcome.exits, key=lambda task: (task.job != "chief", task.index)):
            if task.job not in ("chief", "worker"):
                continue
            name = RESULT.format(job=task.job, index=task.index)
            path = next(self._results.rglob(name), None)
            if path is None:
                raise TflaunchError(
                    f"{task}: its result is not here: the run {outcome.status}",
                    f"why: tflaunch status {self.id}, tflaunch logs {self.id} {task}",
                )
            found.append(pickle.loads(path.read_bytes()))  # noqa: S301 - the caller's own function wrote it
        return found


def run(
    spark: SparkSession | SparkContext,
    program: str | PathLike[str] | Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    **keywords: Unpack[SparkKeywords],
) -> SparkRun:
    """Start a program on executors of this session, as `tflaunch run` does, and return at once.

    program: a Python file, or a function, which each task calls with `args`.  slots: how many tasks of Spark hold the
    run; without it, as many as there are workers and chiefs, for a ps shares one.  The rest is as for tflaunch.api.run.

    feed: rows that the chief and the workers read, each an equal part: `from tflaunch_task import dataset` there.
    columns: which of a DataFrame; of an RDD their names, or names and types as Spark writes a schema.  epochs: how
    often tasks read the rows unless they say it themselves; Spark makes them once.  spool: each slot keeps its rows in
    a file, for epochs and restarts, of half of the disk's free space at most, or of a size: "50GB"; False: none, as
    for a stream.  repartition: False for rows that have a partition for each slot already.

    Raises TflaunchError for what is wrong with the options, the session, the rows or the code; what comes later,
    `wait` raises.
    """
    return start(spark, program, args, keywords)


def start(
    spark: SparkSession | SparkContext,
    program: str | PathLike[str] | Callable[..., Any],
    args: Sequence[Any],
    keywords: SparkKeywords,
    *,
    results: bool = False,
) -> SparkRun:
    """The same as `run`.  results: whether what tasks say of the rows is kept, for `results_of_rows`."""
    context = _context(spark)
    readers = (keywords.get("workers") or 0) + int(keywords.get("chief") or 0)
    count = keywords.pop("slots", None) or max(1, readers)
    gpus = int(float(context.getConf().get("spark.task.resource.gpu.amount", "0") or 0))
    hosts = f"spark:{count}x{gpus}" if gpus else f"spark:{count}"
    feed = keywords.pop("feed", None)
    of_rows: dict[str, Any] = {name: keywords.pop(name) for name in OF_ROWS if name in keywords}  # type: ignore[misc]
    rows = None
    if feed is not None:
        if count > max(1, readers):
            raise UsageError(
                f"{count} slots and {counted(readers, 'task')} that read: who reads the rows of the others?",
                "leave slots= out, or ask for as many workers",
            )
        if keywords.get("container"):
            raise UsageError("feed= and container= do not go together: a container does not see the slot", "")
        rows = SparkRows(feed, of_rows.pop("columns", None), **of_rows, results=results)
        hosts += f",feed={rows.key}"
    elif of_rows:
        raise UsageError(f"{', '.join(f'{name}=' for name in of_rows)}: of which rows?", "add feed=ROWS")
    given = cast("Keywords", keywords)
    if not callable(program):
        return SparkRun(Prepared(hosts, program, [str(each) for each in args], given), None, rows)
    directory = _staged(program, args)
    given.setdefault("flags", False)
    given.setdefault("ps", 0)
    given["fetch"] = [RESULT.format(job="*", index="*"), *given.get("fetch", ())]
    given.setdefault("fetch_to", directory / "results")
    prepared = Prepared(hosts, directory / "code" / "function.py", (), given)
    return SparkRun(prepared, Path(given["fetch_to"] or directory / "results"), rows)


def succeeded(run: Run, outcome: Outcome) -> None:
    """Raise TflaunchError for a run that has not."""
    if outcome.status != "succeeded":
        raise TflaunchError(
            f"{run.id}: the run {outcome.status}", f"why: tflaunch status {run.id}, tflaunch logs {run.id}"
        )


def _readers_in(prepared: Prepared, slot: int) -> list[str]:
    """The tasks of the run that read in that slot."""
    plans = prepared.reporter.plans
    return [
        str(task.id)
        for task in (plans[-1].tasks if plans else ())
        if task.host.rpartition("-")[2] == str(slot) and task.id.job not in NO_READERS
    ]


def _context(spark: Any) -> SparkContext:
    """The context of a session, which is the one of this process.  Raises UsageError."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "this is a session of Spark Connect: it has no SparkContext, and a barrier stage needs one",
            "start the program as a driver: spark-submit, or SparkSession.builder.master(...)",
        )
    context = getattr(spark, "sparkContext", spark)
    if not hasattr(context, "parallelize"):
        raise UsageError(f"{type(spark).__name__} is no SparkSession and no SparkContext", "give the session")
    if context._jsc is None or type(context)._active_spark_context is not context:
        raise UsageError("the Spark application of this session is stopped", "make a new one")
    return context


def _staged(function: Callable[..., Any], args: Sequence[Any]) -> Path:
    """A directory with `code`, whose program calls the function; it goes with this process.  Raises UsageError."""
    from pyspark import cloudpickle

    try:
        pickled = cloudpickle.dumps((function, tuple(args)))
    except Exception as error:  # whatever the caller's objects raise
        name = getattr(function, "__name__", "the function")
        raise UsageError(
            f"{name} or its arguments cannot be sent to the executors: {error}",
            "a session, a file or a lock belongs to one process: make it inside the function",
        ) from None
    directory = Path(tempfile.mkdtemp(prefix="tflaunch-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "code").mkdir()
    (directory / "code/function.py").write_text(PROGRAM)
    (directory / "code/function.pickle").write_bytes(pickled)
    return directory
