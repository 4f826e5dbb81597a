"""What an agent sees of a task's pace, and of its host's load: real processes, and cgroups of both generations."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.agent.host.host_processes import WHOLE, HostProcesses
from tflaunch.agent.host.load import Load, swapped
from tflaunch.agent.tasks import pace
from tflaunch.agent.tasks.pace import FEW, PARTS, Waits, pace_of, quota_of


@pytest.fixture
def burner() -> Iterator[processes.Process]:
    """A program with more threads than it may have processors."""
    loop = "while :; do :; done"
    core = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen(["taskset", "-c", core, "sh", "-c", f"{loop} & {loop} & {loop}"]) as burning:
        found = processes.read(burning.pid)
        assert found is not None
        try:
            yield found
        finally:
            for each in [*processes.descendants(burning.pid, processes.every()), found]:
                os.kill(each.pid, 9)


def test_threads_that_wait_for_a_processor(burner: processes.Process) -> None:
    waits = Waits()

    def seen() -> dict[str, object]:
        tree = [burner, *processes.descendants(burner.pid, processes.every())]
        waits.begin({each.pid for each in tree})
        return pace_of(tree, waits, "step 4\n")

    until(lambda: float(str(seen()["waited_s"])) > 0.5, "three loops on one core wait for it")
    last = seen()
    assert last["cores"] == 1
    assert last["step"] == 4
    assert int(str(last["memory"]).strip("[]").split(",")[0]) > 100_000


def test_pages_of_memory_that_a_disk_brings_back(tmp_path: Path) -> None:
    """As the kernel tells the process itself."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 22))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
            assert sum(pages[at] for at in range(0, len(pages), 1 << 16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    own = processes.read(os.getpid())
    assert own is not None
    assert before <= own.faults <= resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    assert own.threads == len([*Path("/proc/self/task").iterdir()])


def process(pid: int, seconds: float, start: int = 7) -> processes.Process:
    found = processes.Process(pid, 1, "R", start, f"program{pid}")
    found.ticks = int(seconds * os.sysconf("SC_CLK_TCK"))
    return found


def test_what_else_computes_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    load = Load()
    first = {pid: process(pid, 100.0) for pid in (10, 11, 12, 13)}
    assert load.look(first, {10}, True)["others"] == []
    now += 10.0
    used = {10: 9.0, 11: 5.0, 12: 15.0, 13: 0.1}
    second = {pid: process(pid, 100.0 + used[pid]) for pid in first}
    second[14] = process(14, 3.0)
    assert load.look(second, {10}, True)["others"] == [[12, "program12", 1.5], [11, "program11", 0.5]]
    now += 10.0
    another = {11: process(11, 900.0, start=8)}  # it has the pid of one that has ended
    assert load.look(another, set(), True)["others"] == []
    assert "others" not in load.look(second, set(), False), "that goes over no plain network"
    assert load.look(None, set(), False)["cores"] == os.cpu_count()


def test_one_that_was_not_read_each_time_has_used_its_time_since_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    load, rested = Load(), process(11, 100.0)
    for _ in range(4):  # as `HostProcesses` hands on what rests
        assert load.look({11: rested}, set(), True)["others"] == []
        now += 10.0
    assert load.look({11: process(11, 120.0)}, set(), True)["others"] == [[11, "program11", 0.5]]
    now += 10.0
    assert load.look({11: process(11, 130.0)}, set(), True)["others"] == [[11, "program11", 1.0]]


def test_the_processor_time_of_a_process_is_read(burner: processes.Process) -> None:
    def ticks() -> int:
        found = processes.read(burner.pid)
        return found.ticks if found else 0

    until(lambda: ticks() > burner.ticks, "it computes")


def test_what_a_host_has_swapped(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 7\npswpin 3\npswpout 4\n")
    assert swapped(str(vmstat)) == 7 * os.sysconf("SC_PAGE_SIZE")
    assert swapped(str(tmp_path / "none")) == 0


def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str]) -> None:
    """Let each process be in that cgroup."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    read = pace.contents
    monkeypatch.setattr(
        pace, "contents", lambda path: line.encode() if path.startswith("/proc/") else read(path)
    )


def test_the_quota_of_a_cgroup_of_the_second_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "pod/cpu.max": "50000 100000\n",
        "pod/cpu.stat": "usage_usec 7\nnr_throttled 2\nthrottled_usec 2500000\n",
        "pod/task/cpu.max": "max 100000\n",
        "pod/task/cpu.stat": "usage_usec 7\n",
    }
    cgroup(tmp_path, monkeypatch, "0::/pod/task\n", files)
    assert quota_of(1, str(tmp_path)) == (0.5, 2.5)


def test_the_quota_of_a_cgroup_of_the_first_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n",
        "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/a/cpu.stat": "nr_periods 3\nnr_throttled 2\nthrottled_time 1500000000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    cgroup(tmp_path, monkeypatch, "5:memory:/a\n4:cpu,cpuacct:/a\n", files)
    assert quota_of(1, str(tmp_path)) == (2.0, 1.5)


@pytest.mark.parametrize("line", ["", "garbage", "0::/../..\n", "4:cpu:/a\n"])
def test_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    cgroup(tmp_path, monkeypatch, line, {})
    assert quota_of(1, str(tmp_path)) == (None, None)


def test_a_task_that_has_just_ended() -> None:
    assert pace_of([], Waits(), "step 4") == {"turns": 0}
    gone = processes.Process(2**22 - 1, 1, "S", 0, "python3")
    seen = pace_of([gone], Waits(), "")
    assert (seen["waited_s"], seen["memory"]) == (0.0, [0, 0])


def test_of_many_threads_each_look_reads_some_and_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    contents = pace.contents
    monkeypatch.setattr(pace, "contents", lambda path: asked.append(path) or contents(path))
    leave = threading.Event()
    many = [threading.Thread(target=leave.wait) for _ in range(4 * FEW)]
    for each in many:
        each.start()
    try:
        own = processes.read(os.getpid())
        assert own is not None
        waits = Waits()

        def look() -> set[str]:
            asked.clear()
            waits.begin({own.pid})
            waits.of([own])
            return set(asked)

        every = look()
        assert len(every) > 4 * FEW
        parts = [look() for _ in range(PARTS)]
        assert set.union(*parts) == every
        assert sum(map(len, parts)) == len(every)
        assert max(map(len, parts)) < len(every) / 2
    finally:
        leave.set()
        for each in many:
            each.join()


def test_what_is_not_the_runs_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = processes.read
    monkeypatch.setattr(processes, "read", lambda pid: asked.append(pid) or read(pid))
    census, stack = HostProcesses(), contextlib.ExitStack()

    def take(*roots: int) -> dict[int, list[processes.Process]]:
        asked.clear()
        return census.take(roots)

    def child() -> subprocess.Popen[bytes]:
        return stack.enter_context(subprocess.Popen(["sleep", "100"]))

    with stack:
        first = child()
        stack.callback(first.kill)
        assert [each.pid for each in take(first.pid)[first.pid]] == [first.pid]
        assert census.whole
        assert os.getppid() in asked
        second = child()  # a process that is new is read at once
        stack.callback(second.kill)
        found = take(first.pid, second.pid)
        assert [each.pid for trees in found.values() for each in trees] == [first.pid, second.pid]
        assert not census.whole
        assert os.getppid() not in asked
        assert take(os.getppid())[os.getppid()]  # no longer another's
        assert census.whole
        wholes, rest = [], []
        for _ in range(2 * WHOLE):
            take(first.pid)
            wholes.append(census.whole)
            rest.append(census.every.keys() - asked)
        assert sum(wholes) == 2
        # What slept between two whole looks is known, and was not read.
        sleeper = min(max(rest, key=len))
        assert take(sleeper)[sleeper][0].pid == sleeper
        assert sleeper in asked, "it has become a task's"
