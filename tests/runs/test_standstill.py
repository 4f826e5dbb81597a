"""A run of real TensorFlow in which nothing moves: who keeps the others waiting, and where it stands."""

from __future__ import annotations

import re

import pytest

from tests.support.frameworks import WITHOUT_KERAS
from tests.support.launcher import Launcher
from tests.support.patience import until


@pytest.mark.timeout(300)
def test_the_input_of_one_worker_of_multi_worker_mirrored_sleeps(launcher: Launcher) -> None:
    trainer = launcher.script(
        """
        import os, time
        import tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            weight = tf.Variable(1.0)
        def batches():
            for number in range(10**6):
                if number == 9 and os.environ["TFLAUNCH_TASK"] == "worker/1":
                    time.sleep(3600)
                yield tf.ones([8])
        data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([8], tf.float32))
        @tf.function
        def step(x):
            def of_replica(x):
                return tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(x * weight))
            return strategy.run(of_replica, args=(x,))
        def train():
            for x in data:
                step(x)
        train()
        """
    )
    words = ("--workers=2", "--ps=0", "--no-flags", "--grace=2", "--threshold=wait_s=8", WITHOUT_KERAS)
    with launcher.start("run", launcher.local(2), trainer, *words) as running:
        until(lambda: "in batches()" in running.err, "the diagnosis", 200.0)
        found = re.search(
            r"worker/1 on local\d has done nothing for \d+ s: it is at trainer.py:10 in batches\(\) and sleeps; "
            r"worker/0 waits for it at trainer.py:20 in train\(\)",
            running.err,
        )
        assert found, running.err
