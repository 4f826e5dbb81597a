"""What is told at the end of what the parts of the tests took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.parts import Parts


def told(*reports: tuple[str, str, float]) -> list[str]:
    parts = Parts(workers=2)
    for nodeid, when, seconds in reports:
        report = SimpleNamespace(nodeid=nodeid, when=when, duration=seconds)
        parts.pytest_runtest_logreport(cast(pytest.TestReport, report))
    return [" ".join(line.split()) for line in parts.lines()]


def test_all_together_and_without_the_engines() -> None:
    one = ("tests/runs/test_a.py::test_a", "setup", 30.0)
    assert told(one) == ["runs 1 tests 30.0 s"]
    more = (
        one,
        ("tests/runs/test_a.py::test_a", "call", 90.0),
        ("tests/unit/test_b.py::test_b", "setup", 60.0),
    )
    assert told(*more) == [
        "runs 1 tests 120.0 s",
        "unit 1 tests 60.0 s",
        "all 2 tests 180.0 s: 1.5 min of 2 workers",
    ]
    assert told(*more, ("tests/engines/test_c.py::test_c", "setup", 300.0)) == [
        "engines 1 tests 300.0 s",
        "runs 1 tests 120.0 s",
        "unit 1 tests 60.0 s",
        "all 3 tests 480.0 s: 4.0 min of 2 workers",
        "all but engines 2 tests 180.0 s: 1.5 min of 2 workers",
    ]
