"""How far a task is, from the end of its log."""

from __future__ import annotations

import json

import pytest

from tests.support.ps import ARRIVED, entry, one, reply, worker
from tflaunch.runs.listing import listing
from tflaunch.runs.progress import Progress, progress_of
from tflaunch.runs.run_states import run_data

KERAS_3 = (
    "Epoch 3/10\n"
    "\x1b[1m  1/469\x1b[0m \x1b[37m━━━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m1:02\x1b[0m 133ms/step - loss: 2.3\b\b\b\b\b\r"
    "\x1b[1m235/469\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━\x1b[0m \x1b[1m0s\x1b[0m 2ms/step - loss: 0.4"
)
KERAS_2 = "Epoch 1/2\n 20/100 [=====>........................] - ETA: 3s - loss: 0.51"
TQDM = " 44%|####4     | 44/100 [00:10<00:12,  4.50it/s]\r 45%|####5     | 45/100 [00:10<01:02:03,  4.50it/s]"


@pytest.mark.parametrize(
    ("tail", "at", "share", "left_s"),
    [
        ("step 402/1000 loss 0.1\n", "step 402/1000", 0.402, None),
        ("Step: 402 of 1000\nsaved\n", "step 402/1000", 0.402, None),
        ("global_step=5/10", "step 5/10", 0.5, None),
        ("step 1/10\nstep 2/10\n", "step 2/10", 0.2, None),
        ("epoch [3/10] loss: 0.3\n", "epoch 3/10", 0.3, None),
        ("Epoch 3/10, step 45/90\n", "epoch 3/10, step 45/90", 0.25, None),
        ("Epoch 3/10\n", "epoch 3/10", 0.2, None),  # it begins
        (KERAS_3, "epoch 3/10", (2 + 235 / 469) / 10, None),
        (KERAS_2, "epoch 1/2", 0.1, None),
        (KERAS_2.partition("\n")[2], "step 20/100", 0.2, None),
        (TQDM, "45/100", 0.45, 3723.0),
        (" 45%|####      | 45/100 [00:10<?, ?it/s]", "45/100", 0.45, None),
        ("step 401/1000\nstep 402/10", "step 401/1000", 0.401, None),  # cut off
        ("step 1/4\nstep 0/0\n", "step 1/4", 0.25, None),
    ],
)
def test_what_a_log_tells(tail: str, at: str, share: float, left_s: float | None) -> None:
    found = progress_of(tail)
    assert found is not None
    assert found == Progress(at, pytest.approx(share), left_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "step 402 loss 0.1",
        "read 3/4 of data/step",
        "2026/11/26 10:00",
        "http://a/epoch/3/4x",
        "GPU 1/2 is busy",
    ],
)
def test_what_is_no_progress(tail: str) -> None:
    assert progress_of(tail) is None


def test_of_a_run_the_chief_tells_first_and_json_has_it_for_each_task() -> None:
    tasks = [worker(0, tail="step 1/4\n"), {**worker(0, tail="step 2/4\n"), "task": "chief/0"}, worker(1)]
    run = one(listing({"h1": reply(entry("run", "h1", tasks=tasks))}, {}, ARRIVED))
    assert str(run.progress) == "step 2/4, 50 %"
    data = {task["task"]: task for task in json.loads(json.dumps(run_data(run)))["tasks"]}
    assert data["worker/0"]["progress"] == {"at": "step 1/4", "share": 0.25, "left_s": None}
    assert data["worker/0"]["tail"] == ""
    assert data["worker/1"]["progress"] is None


def test_one_pass() -> None:
    """A hostile log costs no more than its length."""
    for text in ("9" * 100_000, "1/" * 50_000, " 1%|" * 30_000, "epoch 1/2 " * 10_000, "\x1b[" * 50_000):
        progress_of(text)
