"""A real Horovod program, where `scripts/engines horovod` has built Horovod."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support.frameworks import HOROVOD, needs_horovod
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork

# Rank 1 ends in the first attempt, after the ranks have met; the other then fails for want of it.
PROGRAM = """\
import os
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "rank", hvd.rank(), "of", hvd.size(), "local", hvd.local_rank(),
      "sum", total.numpy().tolist(), flush=True)
if os.environ["TFLAUNCH_ATTEMPT"] == "0" and hvd.rank() == 1:
    os._exit(7)
hvd.allreduce(tf.constant([1.0]), op=hvd.Sum)
"""


@needs_horovod
def test_ranks_meet_and_meet_again_after_one_has_died_which_is_named(
    network: SshNetwork, launcher: Launcher
) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name], python=sys.executable)
    words = ("--workers=2", "--restarts=1", "--grace=1", f"--env=PYTHONPATH={HOROVOD}")
    with launcher.start("run", hosts, launcher.script(PROGRAM), *words) as running:
        done = running.done(300).ran()
    for attempt in (0, 1):
        for rank in (0, 1):
            assert f"attempt {attempt} rank {rank} of 2 local 0 sum [3.0]" in done.out
    ends = [line for line in done.err.splitlines() if "exited with code" in line]
    assert "worker/1 on host2 exited with code 7" in ends[0], done.err


HANGS = """\
import time
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()


def load():
    time.sleep(1000)


for step in range(3):
    hvd.allreduce(tf.constant([1.0]), name=f"step{step}")
print("met", flush=True)
if hvd.rank() == 1:
    load()
hvd.allreduce(tf.constant([1.0]), name="last")
"""


@needs_horovod
def test_a_rank_that_hangs_is_named_though_all_go_on_talking(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages"  # so that its frames are a package's
    installed.symlink_to(HOROVOD)
    hosts = launcher.hostfile([network.add().name, network.add().name], python=sys.executable)
    words = ("--workers=2", "--grace=1", "--threshold=wait_s=20", f"--env=PYTHONPATH={installed}")
    with launcher.start("run", hosts, launcher.script(HANGS), *words) as running:
        running.wait_for("met", 2)
        running.wait_for("worker/1 on host2 has done nothing for")
        running.wait_for("in load() and sleeps")
        running.wait_for("worker/0 waits for it")
        running.signal(signal.SIGINT)
        assert running.end() == 130
