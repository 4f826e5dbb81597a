"""Engines: how soon a task runs that an engine gives a slot, beside what people use there without tflaunch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Figures, Table
from bench.plan import Plan
from bench.schedulers import on_kubernetes, on_slurm
from tests.support.spark import missing

OURS = "tflaunch"
LIMIT_S = 900.0
# All call a function in two tasks of the same application; it says when it was called.  That of MirroredStrategyRunner
# has a strategy of its own, so that nobody waits for TensorFlow, but for what a peer imports itself; TorchDistributor's
# runs in what torchrun has started.  The value is that of all tasks by tflaunch, and of the first task by the peers.
SESSION = """\
import json, os, sys, time
from pyspark.sql import SparkSession
from tflaunch import spark

try:
    import torch
    if torch.__version__ < "2":  # its torchrun fails where it redirects nothing or all, from Python 3.11 on
        os.environ.update(PET_REDIRECTS="1", PET_TEE="1")
except ImportError:
    pass  # as the method says

session = (SparkSession.builder.master("local-cluster[2,1,600]").config("spark.executor.memory", "600m")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.dynamicAllocation.enabled", "false").getOrCreate())
session.sparkContext.parallelize(range(2), 2).map(abs).collect()

def called(begun):
    import time
    return time.time() - begun

def tflaunch():
    return max(spark.run(session, called, workers=2, args=[time.time()]).results)

def mirrored():
    from spark_tensorflow_distributor import MirroredStrategyRunner
    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
    return runner.run(called, begun=time.time())

def distributor():
    import torch
    from pyspark.ml.torch.distributor import TorchDistributor
    return TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(called, time.time())

methods = {"tflaunch": tflaunch, "spark-tensorflow-distributor": mirrored, "TorchDistributor": distributor}
for _ in range(int(sys.argv[1])):
    for name, run in methods.items():
        begun = time.time()
        try:
            first = run()
        except Exception as error:
            why = f"{name} is left out: {type(error).__name__}: {str(error)[:200]}"
            print(json.dumps({name: None, "why": why}), flush=True)
            continue
        print(json.dumps({name: {"first call s": first, "until the end s": time.time() - begun}}), flush=True)
session.stop()
"""


def engines(plan: Plan) -> Iterator[Table]:
    """Spark, Slurm and Kubernetes."""
    for engine in (on_spark, on_slurm, on_kubernetes):
        if plan.wants(engine.__name__.removeprefix("on_")):
            yield from engine(plan)


def on_spark(plan: Plan) -> Iterator[Table]:
    """Two tasks on Spark's executors of this machine."""
    table = Table("A function on Spark's executors, in a session that is there", OURS, ("first call s",), 2)
    if reason := missing():
        table.remarks.append(reason)
        yield table
        return
    plan.tell(f"engines: {plan.rounds} rounds in one Spark session")
    peers = os.pathsep.join(str(path) for path in Path(".venv-bench").resolve().glob("lib/python*/spark"))
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": peers, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "session.py"
        program.write_text(SESSION)
        words = [sys.executable, str(program), str(plan.rounds)]
        env |= {"HOME": place, "TFLAUNCH_STATE": f"{place}/state"}
        done = subprocess.run(
            words, cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    for line in done.stdout.splitlines():
        said = json.loads(line)
        why = said.pop("why", "")
        for method, figures in said.items():
            row: Figures | None = figures
            table.rows.setdefault(method, []).append(row)
            if why and why not in table.remarks:
                table.remarks.append(why)
    if done.returncode:
        table.remarks.append(done.stderr[-300:])
    yield table
