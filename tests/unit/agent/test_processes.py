"""What counts as a process."""

from __future__ import annotations

import os
from pathlib import Path

from tflaunch.agent.host import processes


def test_threads_of_the_kernel_are_no_processes() -> None:
    stats = {
        path.parent.name: path.read_text().rpartition(")")[2].split()
        for path in Path("/proc").glob("[1-9]*/stat")
    }
    kernel = {int(pid) for pid, fields in stats.items() if int(fields[6]) & processes.PF_KTHREAD}
    assert kernel.isdisjoint(processes.every())
    assert os.getpid() in processes.every()
