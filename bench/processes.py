"""The processes behind a measurement, as this machine sees them: those on the hosts are among them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bench.measure import Failed
from tests.support.launcher import Process, processes

PATIENCE_S = 120.0


def having(count: int, wanted: Callable[[Process], bool], what: str) -> list[Process]:
    """Wait until there are so many such processes; raises Failed."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [each for each in processes() if wanted(each)]) < count:
        if time.monotonic() > deadline:
            raise Failed(f"{len(found)} of {count} {what} were there after {PATIENCE_S:.0f} s")
        time.sleep(0.2)
    return found


class Watch:
    """Waits for the end of processes: the kernel tells, nobody asks again and again."""

    def __init__(self, watched: Iterable[int]) -> None:
        self.ended: dict[int, float] = {}  # when, by pid
        self._left: dict[int, int] = {}
        self._poll = select.poll()
        for pid in watched:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                self._left[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    @property
    def left(self) -> list[int]:
        """Those that have not ended."""
        return [*self._left.values()]

    def wait(self, seconds: float) -> None:
        """Wait for all of them, at most so long."""
        deadline = time.monotonic() + seconds
        while self._left and (rest := deadline - time.monotonic()) > 0:
            for descriptor, _ in self._poll.poll(rest * 1000):
                self.ended[self._left.pop(descriptor)] = time.monotonic()
                self._poll.unregister(descriptor)
                os.close(descriptor)

    def kill(self) -> None:
        """End those that are left."""
        for descriptor in self._left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        self.wait(10)


def cpu_s(pids: Sequence[int]) -> float:
    """The CPU time that these processes have used until now, their ended children's included."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(pids: Iterable[int]) -> int:
    """Their memory; what several processes share is divided between them (PSS)."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024


def descendants(pid: int) -> list[int]:
    """The process, its children, theirs, ..."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found
