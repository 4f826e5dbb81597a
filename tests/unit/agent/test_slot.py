"""What an agent knows of its slot: what its holder says, and which GPUs belong to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent import host_check, host_facts, slot
from tflaunch.agent.gpus.tickets import QueuePlace
from tflaunch.agent.host.rundir import HostError
from tflaunch.protocol.selector import Selector

Told = list[tuple[float, str]]


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    yield
    slot.enter({})


def gpu(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "mig": [], "error": "", **more}


FOUR = [gpu(0, minor=3), gpu(1, minor=2), gpu(2, minor=1), gpu(3, minor=0)]
SPLIT = gpu(4, minor=4, mig=[{"index": 0, "uuid": "MIG-a"}, {"index": 1, "uuid": "MIG-b"}])


@pytest.mark.parametrize(
    ("told", "there"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("none", []),
        ("minor:0,3", [0, 3]),
        ("minor:2", [1]),
        ("index:0,1", [0, 1]),
        ("uuid:GPU-2,GPU-9", [2]),
        ("uuid:MIG-b", [4]),
        ("planet:0", []),
    ],
)
def test_of_the_machines_gpus_only_those_that_the_engine_has_given_are_there(
    told: str, there: list[int]
) -> None:
    slot.enter({slot.GPUS: told})
    given = slot.given([*FOUR, SPLIT])
    assert [each["index"] for each in given] == there
    if told == "uuid:MIG-b":
        assert [each["uuid"] for each in given[0]["mig"]] == ["MIG-b"]


def test_where_the_engine_has_said_a_number_leases_share_the_gpus_out() -> None:
    """Another slot's are none of this one's, unless there are no others; nor is one beyond its number."""
    slot.enter({slot.GPUS: "count:2"})
    other = {"run": "other-abc123"}
    assert slot.given(FOUR) == FOUR
    assert not slot.gives_gpus()

    def as_many(*gpus: dict[str, Any]) -> list[str]:
        return [device["uuid"] for each in slot.as_many([*gpus]) for device in each["mig"] or [each]]

    mine = [gpu(0, lease=other), gpu(1, lease=None), gpu(2, lease={}), gpu(3, lease=None)]
    assert as_many(*mine) == ["GPU-1", "GPU-3"]
    assert as_many(gpu(0, lease=other), gpu(1, error="lost"), gpu(2, lease=None)) == ["GPU-0", "GPU-2"]
    split = gpu(
        4, mig=[{"index": 0, "uuid": "MIG-a", "lease": other}, {"index": 1, "uuid": "MIG-b", "lease": None}]
    )
    assert as_many(split, gpu(5, lease=None)) == ["MIG-b", "GPU-5"]
    slot.enter({})
    assert slot.as_many(mine) == mine


def test_a_gpu_that_does_not_answer_counts_by_its_index() -> None:
    slot.enter({slot.GPUS: "minor:1"})
    assert [
        each["index"] for each in slot.given([gpu(0, minor=0), gpu(1, error="lost"), gpu(2, minor=None)])
    ] == [1]


def test_no_gpu_speaks_of_its_links_to_one_of_somebody_else() -> None:
    slot.enter({slot.GPUS: "index:0,1"})
    both = [
        gpu(number, links={str(other): "NV18" for other in range(3) if other != number})
        for number in range(3)
    ]
    assert [each["links"] for each in slot.given(both)] == [{"1": "NV18"}, {"0": "NV18"}]


def test_the_holders_words_leave_the_environment() -> None:
    environment = {slot.HOLDER: "/slot.sock", slot.GPUS: "minor:0", "PATH": "/bin"}
    slot.enter(environment)
    assert environment == {"PATH": "/bin"}
    assert slot.holder() == "/slot.sock"


def refused(uuid: str, file: str) -> None:
    raise HostError("no directory for leases here")


@pytest.mark.parametrize(("told", "stands"), [("uuid:GPU-0", False), ("", True)])
def test_a_gpu_that_an_engine_has_given_needs_no_lease(tmp_path: Path, told: str, stands: bool) -> None:
    slot.enter({slot.GPUS: told})
    probed = {"gpus": [gpu(0)], "driver": "1", "cuda": "", "note": "", "lacks": "", "locks": {}}
    found = host_facts.collect([], str(tmp_path), probed, QueuePlace(), lease=refused, strays={})
    assert ("lease_error" in found["gpus"][0]) is stands


def test_logind_ends_nothing_in_a_slot(tmp_path: Path) -> None:
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/user-0.slice/session-3.scope\n")
    user = host_check.logout(str(tmp_path))
    (tmp_path / "etc/systemd/logind.conf").write_text(
        f"[Login]\nKillUserProcesses=yes\nKillOnlyUsers={user['user']}\nKillExcludeUsers=\n"
    )
    assert host_check.logout(str(tmp_path))["kills"] is True
    slot.enter({slot.HOLDER: "/slot.sock"})
    assert host_check.logout(str(tmp_path))["kills"] is False


class Holder:
    """The other end of an agent's call."""

    def __init__(self, directory: Path, open_ones: contextlib.ExitStack) -> None:
        self._open_ones = open_ones
        self.path = directory / "slot.sock"
        self.server = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        inside = os.open(directory, os.O_RDONLY)
        self.server.bind(f"/proc/self/fd/{inside}/slot.sock")
        os.close(inside)
        self.server.listen()

    def called(self, told: Told) -> tuple[slot.Slot, Selector, socket.socket]:
        """An agent that has called."""
        slot.enter({slot.HOLDER: str(self.path)})
        selector = Selector()
        one = slot.Slot(selector, lambda seconds, why: told.append((seconds, why)))
        assert one._socket is not None
        self._open_ones.callback(one._socket.close)
        return one, selector, self._open_ones.enter_context(self.server.accept()[0])


@pytest.fixture
def open_ones() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def turn(selector: Selector) -> None:
    for key, _ in selector.select(0.0):
        key.data()


def test_an_agent_hears_that_its_slot_ends_in_a_directory_of_any_depth(
    tmp_path: Path, open_ones: contextlib.ExitStack
) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    told: Told = []
    one, selector, holder = Holder(deep, open_ones).called(told)
    assert json.loads(holder.recv(4096)) == {"agent": os.getpid(), "logs": ""}
    holder.sendall(b'{"ends_in": 30.0, "why": "PREE')
    turn(selector)
    assert told == []
    holder.sendall(
        b'MPTED"}\n{"weather": "fine"}\nnonsense\n{"ends_in": NaN, "why": ""}\n{"ends_in": 2, "why": "it"}\n'
    )
    turn(selector)
    assert told == [(30.0, "PREEMPTED"), (2.0, "it")]
    one.over()
    assert json.loads(holder.recv(4096)) == {"over": True}
    holder.close()
    turn(selector)
    assert told[2:] == [(6.0, slot.GONE)]
    one.over()  # it says no more, and fails at nothing


def test_a_holder_that_says_too_much_is_none(tmp_path: Path, open_ones: contextlib.ExitStack) -> None:
    told: Told = []
    _, selector, holder = Holder(tmp_path, open_ones).called(told)
    holder.settimeout(0.0)
    line = memoryview(b"x" * (slot.LINE_LIMIT + 65536))
    while line and not told:
        try:
            line = line[holder.send(line) :]
        except BlockingIOError:
            pass
        turn(selector)
    for _ in range(slot.LINE_LIMIT // 1024):
        if not told:
            turn(selector)
    assert told == [(6.0, slot.GONE)]


def test_where_no_holder_answers_the_slot_is_gone(tmp_path: Path) -> None:
    slot.enter({slot.HOLDER: str(tmp_path / "slot.sock")})
    told: Told = []
    slot.Slot(Selector(), lambda seconds, why: told.append((seconds, why)))
    assert told == [(6.0, slot.GONE)]
