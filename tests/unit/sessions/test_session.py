"""What comes from a host, checked: how much may come, and that a log goes on where it stopped."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.patience import until
from tests.support.pipes import Nothing, Pipe, sessions
from tflaunch.hosts import Host
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, NoThreads
from tflaunch.protocol.job import TaskId
from tflaunch.sessions import session
from tflaunch.sessions.group import Item, Sessions
from tflaunch.sessions.log_feed import LogFeed
from tflaunch.sessions.session import Ended, Said, Session

# -- one wire


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


def test_a_wire_whose_writer_cannot_be_started_ends_by_that_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, pipe, came = wired()

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    pipe.feed(wire.encode("lacks"))
    assert isinstance(came[-1], Ended) and isinstance(came[-1].error, NoThreads)
    made.close_now()
    made.close_by(0.0)
    assert pipe.closed


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


def test_what_is_posted_goes_in_one_packet_with_the_next_message() -> None:
    made, pipe, _ = wired()
    packets: list[bytes] = []
    pipe.send_now = lambda data: packets.append(data) or True  # type: ignore[func-returns-value, method-assign]
    made.post("keep", gpus=[])
    made.post("watch", after=0, logs={}, window=2000, client="x")
    assert not packets
    assert made.log_credit == 2000  # what is granted may come as soon as it is sent
    made.send("release")
    assert [each.type for packet in packets for each in wire.Decoder().feed(packet)] == [
        "keep",
        "watch",
        "release",
    ]
    made.send("bye")
    assert len(packets) == 2


def test_what_is_posted_goes_before_what_any_thread_sends() -> None:
    made, pipe, _ = wired()
    came: list[str] = []

    def send_now(data: bytes) -> bool:
        came.extend(each.type for each in wire.Decoder().feed(data))
        if came[-1] == "taken":  # of a tunnel's thread, which is here while the owner says the last word
            others = threading.Thread(target=made.send, args=["bye"])
            others.start()
            others.join(0.2)
        return True

    pipe.send_now = send_now  # type: ignore[method-assign]
    made.post("outcome", outcome={})
    made.send("taken", id=1, bytes=1)
    until(lambda: "bye" in came, "the last word")
    assert came == ["outcome", "taken", "bye"]


def test_nothing_is_posted_to_a_session_that_has_ended() -> None:
    made, pipe, _ = wired()
    made.ended = True
    made.post("watch", after=0, logs={}, window=2000, client="x")
    made.ended = False
    made.send("bye")
    assert [each.type for each in wire.Decoder().feed(pipe.sent)] == ["bye"]
    assert made.log_credit == 0


def test_what_is_posted_goes_before_an_upload() -> None:
    made, pipe, _ = wired()
    made.post("keep", gpus=[])
    made.upload(iter([wire.encode("blob", b"x"), wire.encode("blob", b"y")]))
    made.close()
    until(lambda: pipe.closed, "the end of the upload")
    assert [each.type for each in wire.Decoder().feed(pipe.sent)] == ["keep", "blob", "blob"]


def test_a_lease_that_is_posted_goes_with_the_next_renewal_at_the_latest() -> None:
    made, pipe = sessions(lease_s=0.4)
    pipe.feed(wire.encode("hello", run="r", host="gpu01", pid=1, directory="/d"))
    said = made.next(time.monotonic() + 5)
    assert isinstance(said, Said) and said.message.type == "hello"
    made.post(["gpu01"], "keep", gpus=[])
    until(lambda: made.next(time.monotonic() + 0.05) or pipe.sent, "the renewal")
    assert [each.type for each in wire.Decoder().feed(pipe.sent)][:3] == ["renew", "keep", "renew"]


def test_a_flood_of_messages_ends_at_a_limit() -> None:
    _, pipe, came = wired()
    pipe.feed(wire.encode("beat") * (session.UNREAD + 1))
    assert "messages that tflaunch did not ask for" in breach(came)
    assert len(came) == session.UNREAD + 1


# -- whose tasks


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
