"""Rows from Spark into tasks that only count them, beside TensorFlowOnSpark and what Spark itself makes."""

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
from tests.support.spark import missing

OURS = "tflaunch, record batches"
LIMIT_S = 3000.0
# Two tasks on one machine; the rate is that of the rows between a task's first and its last, of both tasks together.
SESSION = """\
import argparse, json, sys, time
from pyspark.sql import SparkSession
from tflaunch import spark
from tflaunch.spark import tensorflowonspark as shim

session = (SparkSession.builder.master("local-cluster[2,1,1200]").config("spark.executor.memory", "1200m")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.dynamicAllocation.enabled", "false").getOrCreate())
sc = session.sparkContext
sc.setLogLevel("ERROR")

WIDTHS = {"16 floats": (16, 1000000, 400000), "784 + 1 ints": (784, 200000, 100000)}

def frame(width, rows):
    kind = "float" if width == 16 else "int"
    vector = f"array_repeat(cast(id % 97 as {kind}), {width}) as v"
    return session.range(rows).selectExpr(vector, "cast(id % 10 as int) as y").repartition(2)

def rdd(width, rows):
    number = float if width == 16 else int
    return sc.parallelize(range(rows), 2).map(lambda i: ([number(i % 97)] * width, i % 10)).repartition(2)

def clocked(batches):
    import time
    rows, first, begun = 0, None, None
    for count in batches:
        if begun is None:
            begun, first = time.time(), count
        rows += count
    return rows, rows - (first or 0), time.time() - (begun or time.time())

def together(found):
    rate = sum(later / seconds for _, later, seconds in found if seconds)
    return {"rows/s": rate, "rows": sum(each[0] for each in found)}

# --- Spark alone: Arrow in a barrier stage of its own
def alone_frame(data):
    def count(batches):
        import pyarrow
        said = clocked(batch.num_rows for batch in batches)
        yield pyarrow.RecordBatch.from_pydict({name: [float(each)] for name, each in zip("abc", said)})
    found = data.mapInArrow(count, "a double, b double, c double", barrier=True).collect()
    return together([tuple(row) for row in found])

def alone_rdd(data):
    schema = "v array<float>, y int" if isinstance(data.first()[0][0], float) else "v array<int>, y int"
    def count(rows):
        import itertools, pyarrow
        def made():
            while True:
                some = list(itertools.islice(rows, 10000))
                if not some:
                    return
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array(each) for each in zip(*some)], ["v", "y"]).num_rows
        return [clocked(made())]
    return together(data.barrier().mapPartitions(count).collect())

# --- ours
def by_arrow():
    from tflaunch_task import dataset
    return clocked(batch.num_rows for batch in dataset.arrow())

def by_rows(size):
    from tflaunch_task import DataFeed
    feed = DataFeed()
    def counts():
        while not feed.should_stop():
            yield len(feed.next_batch(size))
    return clocked(counts())

def ours(data, columns=None):
    return together(spark.run(session, by_arrow, workers=2, feed=data, columns=columns).results)

def ours_by_rows(data, size):
    return together(spark.run(session, by_rows, args=[size], workers=2, feed=data).results)

# --- TensorFlowOnSpark: what it has counted comes by a file
def theirs(data, size, place):
    from tensorflowonspark import TFCluster
    def program(args, ctx):
        import json, time
        from tensorflowonspark import TFNode
        feed = TFNode.DataFeed(ctx.mgr, True)
        def counts():
            while not feed.should_stop():
                yield len(feed.next_batch(args.size))
        said = clocked(counts())
        with open(f"{args.place}/{ctx.job_name}-{ctx.task_index}", "w") as file:
            json.dump(said, file)
    import os, shutil
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    cluster = TFCluster.run(sc, program, argparse.Namespace(size=size, place=place), 2, 0,
                            input_mode=TFCluster.InputMode.SPARK, master_node="chief")
    cluster.train(data, 1)
    cluster.shutdown()
    return together([json.load(open(os.path.join(place, name))) for name in os.listdir(place)])

place = sys.argv[2]
for number in range(int(sys.argv[1])):
    for title, (width, many, few) in WIDTHS.items():
        for name, do in {
            "Spark, a DataFrame": lambda: alone_frame(frame(width, many)),
            "tflaunch, record batches": lambda: ours(frame(width, many)),
            "Spark, an RDD": lambda: alone_rdd(rdd(width, few)),
            "tflaunch, an RDD": lambda: ours(rdd(width, few), ["v", "y"]),
            "tflaunch, next_batch(100)": lambda: ours_by_rows(rdd(width, few), 100),
            "tflaunch, next_batch(1)": lambda: ours_by_rows(rdd(width, few), 1),
            "TensorFlowOnSpark, next_batch(100)": lambda: theirs(rdd(width, few), 100, place),
            "TensorFlowOnSpark, next_batch(1)": lambda: theirs(rdd(width, few), 1, place),
        }.items():
            begun = time.time()
            try:
                found = {**do(), "all s": time.time() - begun}
                print(json.dumps({"title": title, "name": name, "found": found}), flush=True)
            except BaseException as error:
                print(json.dumps({"title": title, "name": name, "why": str(error)[:300]}), flush=True)
session.stop()
"""


def feed(plan: Plan) -> Iterator[Table]:
    """Two tasks that count the rows of a DataFrame and of an RDD."""
    tables: dict[str, Table] = {}
    if reason := missing():
        yield Table("Rows from Spark", OURS, ("rows/s", "all s"), 2, remarks=[reason])
        return
    plan.tell(f"feed: {plan.rounds} rounds in one Spark session")
    peers = os.pathsep.join(str(path) for path in Path(".venv-bench").resolve().glob("lib/python*/spark"))
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": peers, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "session.py"
        program.write_text(SESSION)
        words = [sys.executable, str(program), str(plan.rounds), f"{place}/counts"]
        env |= {"HOME": place, "TFLAUNCH_STATE": f"{place}/state"}
        done = subprocess.run(
            words, cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    for line in done.stdout.splitlines():
        if not line.startswith('{"title"'):
            continue
        said = json.loads(line)
        title = f"Rows of {said['title']} from Spark into two tasks"
        table = tables.setdefault(title, Table(title, OURS, ("rows/s", "all s"), 2))
        row: Figures | None = said.get("found")
        table.rows.setdefault(said["name"], []).append(row)
        if "why" in said:
            table.remarks.append(f"{said['name']}: {said['why']}")
    if done.returncode or not tables:
        tables.setdefault(
            "Rows from Spark", Table("Rows from Spark", OURS, ("rows/s", "all s"), 2)
        ).remarks.append(done.stderr[-300:])
    yield from tables.values()
