"""Input from tf.data service: its own jobs read and prepare the data, the workers train on it.

    tflaunch run hostfiles/local.yaml examples/data_service.py --ps 0 --workers 2 --no-flags \\
        --job dispatcher=1 --job-program dispatcher=examples/data_server.py \\
        --job-args 'dispatcher=--port={port}' \\
        --job reader=2 --job-program reader=examples/data_server.py \\
        --job-args 'reader=--port={port} --address={address} --dispatcher={dispatcher_hosts}' \\
        --env 'DATA_SERVICE={dispatcher_hosts}'

data_server.py knows nothing of ps and workers: its job tells it its port and where the dispatcher is, by placeholders
that tflaunch fills in.  The readers go to machines with many cores: --job-hosts 'reader=storage[1-4]'.

The servers are stopped when the workers are done; the failure of a server ends the run.
"""

from __future__ import annotations

import argparse
import os

import tensorflow as tf


def prepared(number: tf.Tensor) -> tf.Tensor:
    """What a reader does with each record; here, no more than a sum."""
    return tf.reduce_sum(tf.cast(tf.range(number), tf.int64))


def main() -> None:
    """Read all records, each of which arrives at one worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1000)
    arguments = parser.parse_args()
    dataset = tf.data.Dataset.range(arguments.records).map(prepared)
    dataset = dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{os.environ['DATA_SERVICE']}",
            job_name="records",  # of the service: workers with the same name share the records
        )
    )
    count = total = 0
    for each in dataset:
        count, total = count + 1, total + int(each)
    print(f"read {count} records, sum {total}", flush=True)


if __name__ == "__main__":
    main()
