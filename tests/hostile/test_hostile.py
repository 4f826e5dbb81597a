"""Whatever a host says, the launcher ends as it promises: its own code against recorded agents that lie.

scripts/attack plays all of it; here is one lie for each field of each message, and for each way to spoil a frame.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.hostile import cases, mutations
from tests.hostile.cases import Case, matrix, recordings, samples
from tests.hostile.known import KNOWN
from tests.hostile.mutations import Mutation, changed, paths
from tests.hostile.whole import sample, whole
from tests.support import ROOT
from tflaunch.protocol import messages, wire

PARTS = 3  # of the selection, for as many workers of pytest
# No recording has them: they take an environment that is installed, or a browser that leaves in the middle.
UNRECORDED = {"preparing", "prepared", "cut"}


def play(chosen: list[Case]) -> list[dict[str, str]]:
    """The promises that these cases break; played by a process without threads, which may fork."""
    program = ROOT
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.attack", "--cases", "-", "--json", "--jobs", "6"],
        input="\n".join(map(str, chosen)),
        cwd=program,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done
    told: list[dict[str, str]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("part", range(PARTS))
def test_no_field_and_no_frame_of_a_host_breaks_a_promise(part: int) -> None:
    chosen = [case for case in cases.selection(coarse=True) if str(case) not in KNOWN][part::PARTS]
    assert play(chosen) == []


def test_what_is_known_to_break_a_promise_is_a_case_of_the_suite() -> None:
    assert set(KNOWN) <= {str(case) for case in matrix()}, "whichever the sample has"


def test_every_message_of_the_wire_is_recorded() -> None:
    missing = messages.FROM_AGENT.keys() - samples().keys()
    assert missing == UNRECORDED, "record one: python -m tests.hostile.record (see SCENARIOS)"


def test_every_field_of_every_message_is_played() -> None:
    played = {(case.mutation.type, case.mutation.path) for case in matrix()}
    for kind in messages.FROM_AGENT.keys() - UNRECORDED - {"beat"}:
        fields = whole(kind, samples()[kind][0])
        assert {(kind, path) for path in paths(fields)} <= played, kind


def test_every_field_has_values_of_each_kind() -> None:
    names = {case.mutation.name for case in matrix() if case.mutation.path == "task"}
    assert {
        "missing",
        "null",
        "minus",
        "huge",
        "digits",
        "nan",
        "escapes",
        "surrogate",
        "long",
        "deep",
    } <= names
    assert {"other-task", "no-task", "traversal", "empty", "newline"} <= names


def test_recorded_messages_are_what_the_wire_allows() -> None:
    for scenario in recordings():
        for message in cases.messages(scenario):
            checked = wire.Message(message.type, dict(message.fields), message.body)
            messages.check(checked, messages.FROM_AGENT)


def test_a_sample_of_each_message_is_what_the_wire_allows() -> None:
    for kind, spec in messages.FROM_AGENT.items():
        if kind != "exit":  # of which a rule holds that no sample knows
            messages.check(wire.Message(kind, sample(spec)), messages.FROM_AGENT)


def test_a_mutation_changes_one_place_and_is_read_back() -> None:
    fields = {"a": [{"b": 1, "c": 2}], "d": "x"}
    assert changed(fields, ["a", "0", "b"], lambda _: "y") == {"a": [{"b": "y", "c": 2}], "d": "x"}
    assert changed(fields, ["a", "0", "b"], mutations.VALUES["missing"]) == {"a": [{"c": 2}], "d": "x"}
    text = "run --json/exit#0:logs>worker/0>1=other-task"
    assert str(Case.parse(text)) == text
    assert Case.parse(text).mutation == Mutation("exit", 0, "logs>worker/0>1", "other-task")
