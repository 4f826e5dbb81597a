"""What each part of the tests took: tests/unit, tests/agent and so on, told before pytest's own summary."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest


class Parts:
    """Counts the tests of each part and adds up their seconds, those of all workers of pytest-xdist together."""

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = report.nodeid.split("/")[1]
        self._tests[part] += report.when == "setup"
        self._seconds[part] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.section("seconds of each part, those of parallel workers added up", "-")
        for part in sorted(self._tests, key=lambda each: -self._seconds[each]):
            terminalreporter.write_line(
                f"{part:<10}{self._tests[part]:>6} tests{self._seconds[part]:>9.1f} s"
            )
