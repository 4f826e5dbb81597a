"""The catalogue is well formed; `scripts/diagnosis` plays it."""

from __future__ import annotations

import ast
import dataclasses
import re

import pytest

from tests.diagnosis import causes
from tests.diagnosis.catalogue import CAUSES
from tests.diagnosis.causes import Cause
from tests.diagnosis.score import prevented, score
from tests.diagnosis.trainers import fill

SYNTAX_ERRORS = ("syntax-error",)
STARTED = "✓ tested the network of 3 hosts in 0.0 s\ntraining 3 tasks\n"
BY_NAME = {cause.name: cause for cause in CAUSES}
each = pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)


def test_it_has_enough_of_each_and_each_once() -> None:
    assert len(BY_NAME) == len(CAUSES)
    healthy = [cause for cause in CAUSES if cause.group == causes.HEALTHY]
    assert len(healthy) >= 20
    assert len(CAUSES) - len(healthy) >= 55
    assert {cause.group for cause in CAUSES} == set(causes.GROUPS)


@each
def test_a_cause_can_be_played_and_scored(cause: Cause) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", cause.name)
    assert cause.story, "a sentence for --list"
    for field in dataclasses.fields(cause):
        value = getattr(cause, field.name)
        if isinstance(value, str) and field.name not in ("trainer", "story", "name", "group"):
            re.compile(value)
    if cause.name not in SYNTAX_ERRORS:
        ast.parse(cause.trainer)
    assert not re.search(r"\$[A-Z]+|^\s*# [A-Z]+$", cause.trainer, re.MULTILINE), "a place that nothing fills"
    assert cause.after or not cause.fault, "a fault comes after a fact"
    if cause.group != causes.HEALTHY:
        assert cause.cause != causes.NEVER
        assert cause.place != causes.NEVER
        assert score(cause, STARTED) == 0, "silence has no score"


def test_a_template_has_its_places_filled() -> None:
    assert fill("a = $ONE\nif a:\n    # TWO\n", one=1, two="b\nc") == "a = 1\nif a:\n    b\n    c\n"
    assert fill("a = 1\n# TWO\n", two="") == "a = 1\n"


def test_the_score_of_a_hang() -> None:
    cause = BY_NAME["input-sleeps"]
    named = "! worker/1 on host2 is at trainer.py:26 in read(); the 2 others wait for it in an all-reduce\n"
    assert score(cause, STARTED + named) == 2
    only_the_place = "! worker/1 on host2 hangs\n"
    assert score(cause, STARTED + only_the_place) == 1
    only_a_symptom = "! worker/0, worker/1, worker/2 have made no progress for 60 s\n"
    assert score(cause, STARTED + only_a_symptom) == 1
    wrong = "! worker/1 on host2 has waited 60 s for worker/0, at trainer.py:26\n"
    assert score(cause, STARTED + wrong) == 0
    wrong = "! worker/0 is at trainer.py:26 in train_step(); the 2 others wait for it\n"
    assert score(cause, STARTED + wrong) == 0


def test_the_score_of_a_failure() -> None:
    cause = BY_NAME["unknown-flag"]
    report = (
        "✗ worker/1 on host2 exited with code 2; its last lines:\n  │ trainer.py: error: --batch_sizes=3\n"
    )
    advice = "  → that is an argument of the program: correct what follows --\n"
    assert score(cause, STARTED + report + advice) == 2
    assert score(cause, STARTED + report) == 1, "a quoted line names no fix"
    refused = "✗ host2: the program does not know --batch_sizes=3 (worker/1); correct what follows --\n"
    assert prevented(refused)
    assert score(cause, refused) == 2


def test_what_is_no_warning_has_no_score() -> None:
    cause = BY_NAME["uneven-data"]
    assert score(cause, STARTED + "✓ worker/1 on host2 finished after 20 s; it had fewer batches\n") == 0
