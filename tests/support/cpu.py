"""What tests cost: the processor time of each, everything that it starts included, also what outlives its parents.

For pytest's `-p`, as root: `scripts/test -p tests.support.cpu` tells what each part, and the files and tests that cost
most.  Unlike the time on the clock, this hardly depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup/cpuacct")  # cgroups of the first generation
SHOWN = 40


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("numprocesses", 0) or hasattr(config, "workerinput"):
        config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs())


class Meter:
    """Adds to each report what setup, call or teardown have cost, in seconds."""

    def __init__(self) -> None:
        group = GROUPS / f"tflaunch-tests-{os.getpid()}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        self._group = group
        self._usage = group / "cpuacct.usage"
        self._seen = 0.0  # what was before the first test is its own

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = int(self._usage.read_text()) / 1e9
        report.user_properties.append(("cpu_s", round(now - self._seen, 4)))
        report.user_properties.append(("own_s", round(sum(os.times()[:2]), 4)))  # by now, of pytest itself
        self._seen = now
        return report

    def pytest_unconfigure(self) -> None:
        (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # something still runs
            self._group.rmdir()


class Costs:
    """Adds up what all workers tell."""

    def __init__(self) -> None:
        self._parts: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = dict(report.user_properties).get("cpu_s", 0.0)
        self._parts["/".join(report.nodeid.split("/")[:2])] += cost
        self._files[report.nodeid.partition("::")[0]] += cost
        self._tests[report.nodeid] += cost

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        found = self._parts, self._files, self._tests
        for what, costs in zip(("parts", "files that cost most", "tests that cost most"), found, strict=True):
            terminalreporter.section(f"processor seconds: {what}", "-")
            for name, cost in costs.most_common(SHOWN):
                terminalreporter.write_line(f"{cost:>8.1f} s  {name}")
        terminalreporter.write_line(f"{self._parts.total():>8.1f} s  of all")
