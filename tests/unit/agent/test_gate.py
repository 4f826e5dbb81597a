"""The gate of a task that cannot be started, or has started though something failed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tflaunch.agent.host import cores
from tflaunch.agent.tasks.gate import Gate, spawn


@pytest.fixture
def nothing() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def descriptors() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_one_that_cannot_be_started_leaves_nothing_open(nothing: int, error: type[Exception]) -> None:
    def breaks(_: object) -> int:
        raise error

    before = descriptors()
    with pytest.raises(error):
        Gate(nothing, breaks)
    assert descriptors() == before


def test_what_has_started_is_known_though_the_agent_cannot_have_its_own_cores_again(
    nothing: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # `spawn` leaves the place where it was
    bound: list[Iterable[int]] = []
    before = os.sched_getaffinity(0)

    def bind(cpus: Iterable[int]) -> None:
        bound.append(cpus)
        if len(bound) > 1:
            raise OSError("none of the CPUs may be used here any more")

    monkeypatch.setattr(cores, "bind", bind)
    pid = spawn(["/bin/sh", "-c", "exit 7"], dict(os.environ), "/", (nothing,) * 3, [min(before)])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert bound == [[min(before)], before]
    assert "none of the CPUs" in capsys.readouterr().err
