"""The steps that lines of logs name."""

from __future__ import annotations

import pytest

from tflaunch.diagnosis.steps import last_step
from tflaunch.sessions.printed_numbers import step_in


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 120 of worker 1, global step 240, loss 0.3", 120),
        ("INFO:tensorflow:loss = 0.5, step = 1200 (3.1 sec)", 1200),
        ("global_step=40", 40),
        ("Step: 7/100", 7),
        ('{"step": 3, "loss": 0.1}', 3),
        ("[step 12] loss 0.1", 12),
        ("steps/s: 12.5", None),
        ("step-2 of the recipe", None),
        ("step 1.5", None),
        ("step 1,000", 1000),
        ("Step: 1_000_000 of worker 1", 1_000_000),
        ("step 12,000, loss 0.5", 12_000),
        ("step 1,000/5,000", 1000),
        ("step 1, loss 0.5", 1),
        ("step 1,0.5", 1),
        ("step 0,300", 0),
        ("step 2000,100", 2000),
        ("step 1,000,5", 1),
        ("step 1,000.5", 1),
        ("step=12,345.67", 12),
        ("step=12,345ms", 12),
        ("step=12,345,loss=0.5", 12),
        ("step=12,345,-0.5", 12),
        ("step=12,345.", 12_345),
        ("(step 12,345)", 12_345),
        ("step 12,345: loss 0.5", 12_345),
        ("step 12,345\x1b[0m", 12_345),
        ("step 1_000.5", None),
        ("step ,000", None),
        ("step 1" + ",000" * 6, None),
        ("next step", None),
        ("INFO:tensorflow:global_step/sec: 18.2", None),
        ("step " + "9" * 40, None),
        ("x" * 1000 + " step 7", None),
        ("", None),
    ],
)
def test_what_a_line_names(line: str, step: int | None) -> None:
    assert last_step(line) == step


@pytest.mark.parametrize("after", ["", " ", ".67", ",loss=1", ", loss 1", "/20,000", ")", ".", ": 5"])
@pytest.mark.parametrize("number", ["7", "999", "12,345", "1_000", "2000,100", "1,000,5", "999,1000"])
def test_the_rules_and_the_live_line_read_the_same_step(number: str, after: str) -> None:
    line = f"step {number}{after}"
    step = last_step(line)
    if step is not None:  # `step 7.67` is none to the rules
        shown = step_in(line)
        assert shown is not None and shown[1].partition("/")[0] == str(step)


def test_the_last_line_that_names_one_counts() -> None:
    assert last_step("step 1\nstep 2\nsaved the model\n") == 2
