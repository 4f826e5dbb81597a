"""TensorFlow on the executors of a Spark program.

    from tflaunch import spark

    run = spark.run(session, train, workers=4, ps=1, args=[0.01])    # a function, or "trainer.py"
    for event in run:
        if event["event"] == "log":
            print(event["task"], event["line"])
    print(run.wait().status, run.results[0])

The slots are tasks of a barrier stage in the session's own application; see docs/spark.md.

    spark_run   run, SparkRun
"""

from tflaunch.spark.spark_run import SparkRun, run

__all__ = ["SparkRun", "run"]
