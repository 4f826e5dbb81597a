"""Real TensorFlow on slots: the examples, TensorBoard, bare servers, and what goes on from a checkpoint."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engines.conftest import OnSlots
from tests.runs.test_tensorboard import SCALAR, url_of
from tests.runs.test_up import BOTH, CLIENT, SERVES_S
from tests.support import ROOT
from tests.support.bed import Bed
from tests.support.frameworks import NO_KERAS
from tests.support.patience import PATIENCE_S, until
from tests.support.scheduler import Scheduler

EXAMPLES = ROOT / "examples"
GET = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1]).read().decode())"

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")


def test_tensorboard_shows_a_run_on_slots(
    user: OnSlots, bed: Bed, shared: Path, door: Mapping[str, str]
) -> None:
    words = (
        user.of_these(1, door, env=NO_KERAS),
        user.script(SCALAR),
        "--ps=0",
        "--workers=1",
        f"--env=OUT={shared}",
    )
    with user.start("run", *words, "--tensorboard=logs") as run:
        url = url_of(run)
        run.wait_for("written")

        def read() -> list[list[float]]:
            scalars = f"{url}data/plugin/scalars/scalars?run=train&tag=loss"
            try:
                found: list[list[float]] = json.loads(bed.launcher.do(sys.executable, "-c", GET, scalars))
            except subprocess.CalledProcessError:  # it has not heard of that yet
                return []
            return found

        points = until(read, "the scalars in TensorBoard")
        assert [value for _, _, value in points] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
        (shared / "end").touch()
        assert run.end() == 0, run.err
    # Its files have ended with its slots.
    user.scheduler.wait_until_free()
    gone = user.run("tensorboard", run.run_id, "logs")
    assert gone.code not in (0, 1), gone.err
    assert "slot" in gone.sentences


def test_bare_servers_on_slots(user: OnSlots, bed: Bed, door: Mapping[str, str]) -> None:
    spec = user.directory / "cluster.json"
    words = (user.of_these(door=door), "--ps=1", "--workers=1", f"--spec={spec}")
    with user.start("up", *words) as up:
        up.done(SERVES_S).ran()
    cluster = json.loads(spec.read_text())
    [worker] = cluster["worker"]
    said = bed.launcher.do(sys.executable, "-c", CLIENT, f"grpc://{worker}", "1.5")
    assert json.loads(said.splitlines()[-1]) == {"result": 3.0, "devices": BOTH}
    user.run("stop").ran()
    user.scheduler.wait_until_free()
    assert all(map(user.scheduler.released, user.scheduler.requests()))


def test_workers_on_slots_train_together(user: OnSlots) -> None:
    words = ("--ps=0", "--workers=2", "--no-flags", "--grace=2", "--", "--steps=60", "--checkpoint_steps=30")
    with user.start(
        "run", user.of_these(env=NO_KERAS), EXAMPLES / "multi_worker_mirrored.py", *words
    ) as running:
        done = running.done(4 * PATIENCE_S).ran()
    for number in (0, 1):
        assert f"worker {number} of 2" in done.out
    assert done.out.count("final loss") == 2
    assert len(set(re.findall(r"final loss (\S+)", done.out))) == 1  # every step saw the gradients of both


def test_parameter_servers_go_on_from_the_checkpoint_on_new_slots(
    user: OnSlots, scheduler: Scheduler, shared: Path
) -> None:
    train = shared / "train"
    of_it = ("--steps=4000", "--checkpoint_steps=100", f"--train_dir={train}")
    words = ("--ps=1", "--workers=1", "--restarts=1", "--grace=2", "--", *of_it)
    with user.start("run", user.of_these(env=NO_KERAS), EXAMPLES / "async_ps.py", *words) as running:
        until(lambda: list(train.glob("model.ckpt-?*00.index")), "a checkpoint", 2 * PATIENCE_S)
        scheduler.take_back("s0")
        running.wait_for("resumes from")
        done = running.done(4 * PATIENCE_S).ran()
    before, _, after = done.out.partition("resumes from")
    assert "step     0" in before
    steps = [int(step) for step in re.findall(r"worker/0 step +(\d+)", after)]
    assert steps[0] >= 100
    assert steps[-1] >= 4000
    assert len(scheduler.requests()) == 2
    assert all(map(scheduler.released, scheduler.requests()))
