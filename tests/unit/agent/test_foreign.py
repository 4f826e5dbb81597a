"""What a process that looks for the agent leaves in its log: of a defect its traceback, of what may be nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from tflaunch.agent.host import foreign

NO_USER = 3_999_999_999  # no host has that uid


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Let this process print its errors to that file, as an agent does."""
    before = os.dup(2)
    with path.open("ab") as log, open(2, "w", buffering=1, closefd=False) as stderr:
        os.dup2(log.fileno(), 2)
        try:
            with redirect_stderr(stderr):
                yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def test_a_defect_leaves_its_traceback(tmp_path: Path) -> None:
    with logged(tmp_path / "log"):
        assert foreign.in_time(lambda: 1 // 0) is None
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()


def test_what_has_ended_and_who_has_no_name_leave_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with logged(tmp_path / "log"):
        assert foreign.of_process(ended.pid, "environ") == b""
        assert foreign.user_name(NO_USER) == str(NO_USER)
    assert (tmp_path / "log").read_text() == ""
