"""What each part of the tests took: tests/unit, tests/agent and so on, told before pytest's own summary."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

# Its tests need what not every machine has: the time of the others is told without them, too.
APART = "engines"


class Parts:
    """Counts the tests of each part and adds up their seconds, those of all workers of pytest-xdist together."""

    def __init__(self, workers: int = 1) -> None:
        self._tests: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._workers = workers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = report.nodeid.split("/")[1]
        self._tests[part] += report.when == "setup"
        self._seconds[part] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.section("seconds of each part, those of parallel workers added up", "-")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """The parts, what took longest first, and all of them together."""
        names = sorted(self._tests, key=lambda each: -self._seconds[each])
        told = [self._line(each, [each]) for each in names]
        others = [each for each in names if each != APART]
        if len(names) > 1:
            told.append(self._line("all", names))
        if 1 < len(others) < len(names):
            told.append(self._line(f"all but {APART}", others))
        return told

    def _line(self, said: str, parts: list[str]) -> str:
        tests, seconds = sum(self._tests[each] for each in parts), sum(self._seconds[each] for each in parts)
        shared = (
            f": {seconds / self._workers / 60:.1f} min of {self._workers} workers" if len(parts) > 1 else ""
        )
        return f"{said:<16}{tests:>6} tests{seconds:>9.1f} s{shared}"
