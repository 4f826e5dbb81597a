"""What comes from a host, checked: each field of each message, how much may come, and of whose tasks it may speak."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.agent.requests import Requests
from tflaunch.hosts import Host
from tflaunch.lifecycle import links
from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.links import Links
from tflaunch.lifecycle.states import State
from tflaunch.protocol import messages, wire
from tflaunch.protocol.errors import Breach, ConnectError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import FROM_AGENT, FROM_PEER, TO_AGENT, TO_VISIT
from tflaunch.sessions import group, session
from tflaunch.sessions.group import Item, Sessions
from tflaunch.sessions.log_feed import LogFeed
from tflaunch.sessions.session import Ended, Said, Session

EXIT = {
    "n": 3,
    "time": 1.0,
    "task": "worker/0",
    "attempt": 0,
    "code": 0,
    "signal": None,
    "signal_name": "",
    "seconds": 2.5,
    "stopped": False,
}


def fault(type: str, fields: dict[str, Any], table: Any = FROM_AGENT) -> str:
    """What is wrong with that message, or ""."""
    try:
        messages.check(wire.Message(type, fields), table)
    except wire.WireError as error:
        return str(error)
    return ""


def documented() -> Iterator[tuple[str, str]]:
    """(section, type) of each message that the table of `tflaunch.protocol.wire` names."""
    section = ""
    for line in (wire.__doc__ or "").splitlines():
        if match := re.match(r"    (launcher -> agent|agent -> launcher|events, each|visit \()", line):
            section = match[1]
        elif section and (match := re.match(r"    ([a-z_]+(?:, [a-z]+)*) +(?:\{|such)", line)):
            for name in match[1].split(", "):
                yield section, name


def test_each_message_that_the_wire_documents_has_its_fields_in_a_table() -> None:
    found = list(documented())
    assert len(found) > 60
    for section, type in found:
        if type in ("agent", "lacks"):  # the loader's own
            continue
        tables = {
            "launcher -> agent": [TO_AGENT],
            "agent -> launcher": [FROM_AGENT],
            "events, each": [FROM_AGENT],
            "visit (": [TO_VISIT, FROM_AGENT],
        }[section]
        assert any(type in table for table in tables), (section, type)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("task", "worker", "task is not a task: 'worker'"),
        ("task", "../../etc/0", "task is not a task"),
        ("task", "worker/٣", "task is not a task"),
        ("attempt", True, "attempt is not an attempt: True"),
        ("attempt", -1, "attempt is not an attempt: -1"),
        ("attempt", 0.0, "attempt is not an attempt"),
        ("code", 256, "code is not an exit code: 256"),
        ("code", None, "all of it is not an exit with either a code or a signal"),
        ("signal", 9, "all of it is not an exit with either a code or a signal"),
        ("signal_name", "x" * 2000, "signal_name is not a word"),
        ("seconds", float("nan"), "seconds is not a number: nan"),
        ("seconds", float("inf"), "seconds is not a number: inf"),
        ("seconds", 10**400, "seconds is not a number: a number of 1329 bits"),
        ("stopped", 0, "stopped is not a flag: 0"),
        ("n", 0, "n is not an event number: 0"),
        ("n", [1] * 1000, "n is not an event number: a list of 1000"),
    ],
)
def test_a_field_of_another_type_or_out_of_its_range_is_named(field: str, value: Any, told: str) -> None:
    assert fault("exit", dict(EXIT)) == ""
    assert f"in a message of the type exit, {told}" in fault("exit", {**EXIT, field: value})


def test_a_field_that_is_missing_is_named_and_one_that_nobody_knows_is_dropped() -> None:
    left = {name: value for name, value in EXIT.items() if name != "seconds"}
    assert fault("exit", left) == "in a message of the type exit, seconds is missing"
    message = wire.Message("exit", {**EXIT, "__class__": "x"})
    assert messages.check(message, FROM_AGENT).fields == EXIT


def test_the_words_of_a_command_line_may_be_as_long_as_linux_lets_them_be() -> None:
    request = {"id": "worker/0", "argv": ["x" * (128 * 1024 - 1)], "env": {}, "cwd": None, "setup": []}
    fields = {"tasks": [request], "attempt": 0, "code": None, "ports": [], "gpus": [], "door": False}
    messages.check(wire.Message("stage", fields), messages.TO_AGENT)
    request["argv"] = ["x" * 150_000]
    with pytest.raises(wire.WireError, match=r"argv\.0 is not an argument: 'x+' \(150000 characters\)"):
        messages.check(wire.Message("stage", fields), messages.TO_AGENT)


def test_what_is_wrong_deep_inside_has_its_path() -> None:
    card = {
        "index": 0,
        "uuid": "GPU-1",
        "name": "",
        "memory_total_bytes": 1,
        "memory_used_bytes": 1,
        "error": "",
    }
    facts: dict[str, Any] = {
        "hostname": "gpu01",
        "boot_id": "",
        "addresses": ["10.0.0.1", "fe80::1"],
        "python": "3.11.7",
        "cores": 2,
        "load": 0.5,
        "memory_bytes": 1,
        "memory_available_bytes": 1,
        "disk_free_bytes": 1,
        "ports": [20000],
        "gpus": [card, {**card, "mig": [{**card, "error": "x", "index": -1}]}],
        "driver": "",
        "cuda": "",
        "gpu_note": "",
        "lacks": "",
        "queue": [],
        "queue_error": "",
        "clock": 1.0,
        "proxies": [],
    }
    assert (
        fault("facts", facts)
        == "in a message of the type facts, gpus.1.mig.0.index is not a whole number: -1"
    )
    facts["gpus"][1]["mig"][0]["index"] = 1
    assert fault("facts", facts) == ""
    assert "error" not in facts["gpus"][1]["mig"][0]  # which a MIG instance does not have
    assert "addresses.1 is not an address" in fault(
        "facts", {**facts, "addresses": ["10.0.0.1", "$(reboot)"]}
    )


@pytest.mark.parametrize("name", ["antigravity", "os", "tflaunch.sessions.payload", "../../x", None, 1])
def test_a_host_cannot_name_the_module_that_it_is_sent(name: Any) -> None:
    spec = FROM_AGENT["facts"]["lacks"]
    assert messages.misfit(spec, name, "lacks")
    assert not messages.misfit(spec, "pynvml", "lacks")


def test_messages_of_the_other_direction_and_unknown_ones_are_refused() -> None:
    assert "a message of the type 'stage' is not expected here" in fault("stage", {})
    assert "is not expected here" in fault("\x1b[31m", {})
    assert "\x1b" not in fault("\x1b[31m", {})


def test_an_agent_on_another_host_cannot_start_programs_nor_read_what_tasks_wrote() -> None:
    for type in (
        "add",
        "stage",
        "module",
        "prepare",
        "find",
        "read",
        "board",
        "memory",
        "coordinate",
        "entrust",
    ):
        assert "is not expected here" in fault(type, {}, FROM_PEER)
    watch = {"after": 0, "logs": {"worker/0": [0, 0]}, "window": 1 << 20, "client": "coordinator"}
    assert "logs is not nothing" in fault("watch", dict(watch), FROM_PEER)
    assert fault("watch", {**watch, "logs": None}, FROM_PEER) == ""


# -- one wire


class Pipe:
    """A wire whose far end is the test."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False
        self.feed: Callable[[bytes], None]

    def listen(self, take: Callable[[bytes], None]) -> None:
        self.feed = take

    def send(self, data: bytes) -> None:
        self.sent += data

    def send_now(self, data: bytes) -> bool:
        self.sent += data
        return True

    def close(self) -> None:
        self.closed = True

    def last_words(self) -> str:
        return ""


def wired() -> tuple[Session, Pipe, list[Said | Ended]]:
    """A session whose agent has begun to speak."""
    pipe, came = Pipe(), []  # type: ignore[var-annotated]
    made = Session(Host("gpu01"), pipe, came.append)  # type: ignore[arg-type]
    pipe.feed(wire.MAGIC)
    return made, pipe, came


def breach(came: list[Said | Ended]) -> str:
    """Why the wire has ended, which must be a breach."""
    last = came[-1]
    assert isinstance(last, Ended) and isinstance(last.error, Breach), last
    return last.error.message


def test_a_frame_that_is_none_ends_the_wire_as_a_breach() -> None:
    _, pipe, came = wired()
    pipe.feed(b"\xff" * 8)
    assert "it breaks the protocol between tflaunch and its agents: a frame of" in breach(came)
    pipe.feed(wire.encode("beat"))
    assert len(came) == 1  # nothing more is taken


def test_heads_have_the_limit_of_what_real_ones_need() -> None:
    _, pipe, came = wired()
    size = wire.ANSWER_LIMIT + 1
    pipe.feed(size.to_bytes(4, "big") + bytes(4) + b"[" * 100)
    assert "a frame of 2097153 + 0 bytes" in breach(came)


def test_a_text_before_the_agent_is_still_the_noise_of_a_shell() -> None:
    pipe, came = Pipe(), []  # type: ignore[var-annotated]
    Session(Host("gpu01"), pipe, came.append)  # type: ignore[arg-type]
    pipe.feed(b"x" * (wire.NOISE_LIMIT + 100))
    assert isinstance(came[-1], Ended) and not isinstance(came[-1].error, Breach)
    assert "silence the start-up files" in came[-1].error.hint


def test_a_host_gets_the_agent_once() -> None:
    _, pipe, came = wired()
    pipe.feed(wire.encode("lacks"))
    assert not came
    pipe.feed(wire.encode("lacks"))
    assert "it asks for the agent once more" in breach(came)


def test_a_host_sends_no_more_log_than_it_was_asked_for() -> None:
    made, pipe, came = wired()
    piece = bytes(1000)
    made.send("watch", after=0, logs={}, window=2000, client="x")
    for start in (0, 1000):
        pipe.feed(wire.encode("log", piece, task="worker/0", attempt=0, offset=start))
    made.send("credit", bytes=1000)
    pipe.feed(wire.encode("log", piece, task="worker/0", attempt=0, offset=2000))
    assert len(came) == 3
    pipe.feed(wire.encode("log", b"x", task="worker/0", attempt=0, offset=3000))
    assert "more log than it was asked for" in breach(came)


def test_a_flood_of_messages_ends_at_a_limit() -> None:
    _, pipe, came = wired()
    pipe.feed(wire.encode("beat") * (session.UNREAD + 1))
    assert "messages that tflaunch did not ask for" in breach(came)
    assert len(came) == session.UNREAD + 1


# -- whose tasks


class Nothing:
    """Takes whatever it is told."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def test_a_host_speaks_of_its_own_tasks_only() -> None:
    tasks = {TaskId("worker", 0): "gpu01", TaskId("worker", 1): "gpu02"}
    drive = Driver(State(hosts=tasks), Nothing(), 60.0, 0.0)  # type: ignore[arg-type]
    own = wire.Message("exit", dict(EXIT))
    assert drive.foreign("gpu01", own) == ""
    assert "is about worker/0, which is not on that host" in drive.foreign("gpu02", own)
    swept = wire.Message("swept", {"logs": {"worker/1": [0, 5], "worker/7": [0, 1]}})
    assert "worker/7" in drive.foreign("gpu02", swept)
    looked = wire.Message("looked", {"tasks": {"worker/0": {}}})
    assert "worker/0" in drive.foreign("gpu02", looked)
    assert drive.foreign("gpu02", wire.Message("beat")) == ""


def test_a_host_on_which_all_has_ended_has_told_how_its_tasks_did() -> None:
    tasks = {TaskId("worker", 0): "gpu01", TaskId("worker", 1): "gpu02"}
    drive = Driver(State(hosts=tasks), Nothing(), 60.0, 0.0)  # type: ignore[arg-type]
    drive.feed(TaskStarted(TaskId("worker", 0), "gpu01", 0, 7), 0.0)
    swept = wire.Message("swept", {"n": 2, "logs": {}, "survivors": [], "cards": [], "killed": []})
    assert (
        drive.foreign("gpu01", swept)
        == "it says that all has ended there, and has not reported the exits of its tasks"
    )
    drive.said("gpu02", "exit", {**EXIT, "task": "worker/1", "n": 1}, b"", 1.0)
    assert drive.foreign("gpu02", swept) == ""
    drive.said("gpu01", "expired", {"n": 1, "reason": "no lease", "asked": False}, b"", 2.0)
    assert drive.foreign("gpu01", swept) == ""  # tasks that nothing ends may be left


class Opener:
    """Opens nothing."""

    def open(self, *_: Any) -> Any:
        raise ConnectError("closed")


def sessions() -> tuple[Sessions, Pipe]:
    """The agents of a command that has one, on gpu01."""
    made, pipe = Sessions(Opener(), lambda *_: None), Pipe()
    made.put(group.Connected(Host("gpu01"), pipe))  # type: ignore[arg-type]
    made.next(0.0)
    pipe.feed(wire.MAGIC)
    return made, pipe


def log(offset: int, body: bytes = b"", attempt: int = 0) -> wire.Message:
    return wire.Message("log", {"task": "worker/0", "attempt": attempt, "offset": offset}, body)


def accusation(made: Sessions) -> str:
    item: Item | None = made.next(0.0)
    assert isinstance(item, Ended) and isinstance(item.error, Breach), item
    return item.error.message


@pytest.mark.parametrize(
    "message",
    [log(2**60, b"x"), log(4, b"x"), log(0, b"again"), log(0, b"x", attempt=0), log(7, b"x", attempt=1)],
    ids=["a hole of an exabyte", "a hole", "backwards", "again", "in the middle of the next attempt"],
)
def test_a_log_goes_on_where_it_stopped(message: wire.Message) -> None:
    made, pipe = sessions()
    written: list[tuple[int, bytes]] = []
    feed = LogFeed(made, 1, Nothing(), lambda *told: written.append(told[2:]))  # type: ignore[arg-type]
    feed.expect({TaskId("worker", 0): "gpu01"}, 0)
    feed.take("gpu01", log(0, b"abc"))
    feed.take("gpu01", message)
    assert "the log of worker/0 was to go on at byte 3 of attempt 0" in accusation(made)
    assert written == [(0, b"abc")]
    assert pipe.closed
    feed.take("gpu01", log(3, b"d"))
    feed.take("gpu01", log(0, b"next", attempt=1))
    assert written[1:] == [(3, b"d"), (0, b"next")]


# -- hosts that are back for a moment only


def test_a_host_whose_link_breaks_as_often_as_it_is_back_counts_as_away() -> None:
    link = Links(["gpu01"], Nothing(), 0.0)  # type: ignore[arg-type]
    now = 0.0
    longest = 0.0
    for _ in range(200):
        link.attached("gpu01", now)
        now += 1.0
        link.ended("gpu01", "cut", now)
        longest = link.away_s("gpu01", now)
        if longest > 60.0:
            break
        now += 0.5
    assert 60.0 < longest < 70.0
    assert "it broke" in link.down["gpu01"] and f"within {links.STEADY_S:g} s" in link.down["gpu01"]


def test_a_host_that_was_back_for_a_while_is_away_since_the_last_time() -> None:
    link = Links(["gpu01"], Nothing(), 0.0)  # type: ignore[arg-type]
    up_s = links.STEADY_S + 1.0
    for number in range(50):
        start = number * (up_s + 5.0)
        link.attached("gpu01", start)
        link.heard("gpu01", start + up_s)
        link.ended("gpu01", "cut", start + up_s)
        assert link.away_s("gpu01", start + up_s + 1.0) == pytest.approx(1.0)


def test_json_of_python_cannot_bring_what_json_does_not_have() -> None:
    head = json.dumps({**EXIT, "seconds": float("nan"), "type": "exit"}).encode()
    (message,) = wire.Decoder().feed(len(head).to_bytes(4, "big") + bytes(4) + head)
    assert "seconds is not a number" in fault(message.type, message.fields)


def test_every_message_to_an_agent_has_its_handler(tmp_path: Path) -> None:
    life = dict.fromkeys(("renew", "end", "bye"))
    directory = RunDirectory(str(tmp_path), "run", "h1")
    requests = Requests(directory, *[None] * 4, life=life)  # type: ignore[arg-type]
    assert requests._handlers.keys() == TO_AGENT.keys()
