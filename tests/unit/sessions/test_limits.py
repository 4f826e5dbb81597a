"""What this machine can hold is said before it fails."""

from __future__ import annotations

import resource

import pytest

from tflaunch.protocol.errors import UsageError
from tflaunch.sessions.limits import OTHER_FILES, few_neighbours, neighbours, refuse_too_many


@pytest.mark.parametrize("limit", [-1, 100 + OTHER_FILES, 1 << 20])
def test_as_many_hosts_as_files_may_be_open(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    refuse_too_many(100)


def test_more_hosts_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(
        UsageError, match=r"2,000 hosts need 2,040 open files at least, .* may have 1,024"
    ) as told:
        refuse_too_many(2000)
    assert "ulimit -Hn 4040" in told.value.hint


def test_more_hosts_than_the_kernel_keeps_neighbours() -> None:
    assert few_neighbours(1024, "1024") == few_neighbours(5000, "") == few_neighbours(5000, "?") == ""
    said = few_neighbours(1025, "1024")
    assert "1,025 hosts, and the kernel here keeps 1,024 neighbours" in said
    assert "`sysctl -w net.ipv4.neigh.default.gc_thresh3=4100`" in said
    assert neighbours() == "" or int(neighbours()) > 0
