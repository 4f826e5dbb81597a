"""K-means over a DataFrame of Spark: TensorFlow finds the centre that is nearest to each point, Spark adds up.

Each step is two passes over blocks of rows: `tflaunch.spark.predict` with a function, which TensorFrames called
`map_blocks`, and `mapInArrow` with sums of each block, its `reduce_blocks`.  Choose it for whatever TensorFlow is to
compute of rows that Spark has, without training by tasks that know each other.

    python examples/spark_kmeans.py
    spark-submit --master spark://master:7077 examples/spark_kmeans.py --points 10000000

Spark repeats what a lost executor has not finished.  It needs the extra `spark`, Java, and TensorFlow on the executors.
"""

import argparse
import sys

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tflaunch import spark


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--points", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--clusters", type=int, default=4, help="of these points (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="(%(default)s)")
    return parser.parse_args(argv)


def make_points(session, count, clusters):
    """Points around the corners of a polygon, 10 from its middle, at a distance of 1 in x and in y."""
    angle = F.col("id") % clusters * (2 * np.pi / clusters)
    point = F.array(10 * F.cos(angle) + F.randn(1), 10 * F.sin(angle) + F.randn(2))
    return session.range(count).select("id", point.alias("point"))


def nearest_to(centres):
    """What each Python worker calls once, to get what it calls with blocks of points."""

    def load():
        import tensorflow as tf

        fixed = tf.constant(centres)

        def nearest(points):
            distances = tf.reduce_sum((points[:, None, :] - fixed[None, :, :]) ** 2, axis=2)
            return {
                "cluster": tf.argmin(distances, axis=1, output_type=tf.int32),
                "distance": tf.reduce_min(distances, axis=1),
            }

        return nearest

    return load


def add_up(batches):
    """For each block, a row for each cluster in it: how many points, their sum, and that of the distances."""
    import pyarrow as pa

    for batch in batches:
        clusters, distances = (np.asarray(batch.column(name)) for name in ("cluster", "distance"))
        points = np.asarray(batch.column("point").flatten()).reshape(len(clusters), -1)
        found = np.unique(clusters)
        chosen = [clusters == cluster for cluster in found]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(found, pa.int32()),
                pa.array([int(each.sum()) for each in chosen], pa.int64()),
                pa.array([points[each].sum(axis=0).tolist() for each in chosen], pa.list_(pa.float64())),
                pa.array([float(distances[each].sum()) for each in chosen], pa.float64()),
            ],
            names=["cluster", "count", "sum", "distance"],
        )


def step(points, centres):
    """The means of the points that are nearest to each centre, and how far from it they are."""
    assigned = spark.predict(
        points, nearest_to(centres), inputs="point", outputs="cluster int, distance double", batch=4096
    )
    blocks = assigned.mapInArrow(
        add_up, "cluster int, count long, sum array<double>, distance double"
    ).collect()
    moved = centres.copy()
    for cluster in range(len(centres)):
        mine = [block for block in blocks if block.cluster == cluster]
        if mine:  # else it stays where it is
            moved[cluster] = np.sum([block.sum for block in mine], axis=0) / sum(
                block["count"] for block in mine
            )
    return moved, sum(block.distance for block in blocks) / sum(block["count"] for block in blocks)


def main():
    flags = parse_flags()
    session = SparkSession.builder.appName("K-means").getOrCreate()
    points = make_points(session, flags.points, flags.clusters).cache()
    centres = np.array([row.point for row in points.orderBy("id").limit(flags.clusters).collect()])
    distances = []
    for number in range(flags.steps):
        centres, distance = step(points, centres)
        distances.append(distance)
        print(f"step {number}  distance {distance:.4f}", flush=True)
    for centre in centres.tolist():
        print("centre", " ".join(f"{each:.3f}" for each in centre))
    session.stop()
    return 0 if distances[-1] < distances[0] else 1


if __name__ == "__main__":
    sys.exit(main())
