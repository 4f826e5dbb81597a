"""For pytest's `-p`: the second try of tests that failed, each alone.  .ci/run says why there is one.

It hides nothing: before pytest's closing line stand the names of the tests that failed at first and pass now, and the
exit code is 0 only if that is all of them.
"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecondTry(config))


class SecondTry:
    """Compares what passes now with what failed in the run before."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self._failed: set[str] = set(config.cache.get("cache/lastfailed", {}))
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # maybe only its teardown
            self._passed.discard(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # One that is skipped now, or not found again, has not passed.
        if session.exitstatus == pytest.ExitCode.OK and self._failed - self._passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = sorted(self._failed & self._passed)
        if flaky:
            terminalreporter.section("second try", "-")
            terminalreporter.write_line(f"flaky: {len(flaky)} tests failed at first and passed alone:")
            for name in flaky:
                terminalreporter.write_line(f"  {name}")
