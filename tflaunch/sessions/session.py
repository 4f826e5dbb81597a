"""One agent as the launcher sees it: messages go out, and what comes in is put into a queue.

The wire's own thread calls `_take`.  While a write would make the caller wait, a writer thread does the writing.
"""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tflaunch.hosts import Host
from tflaunch.protocol import messages, wire
from tflaunch.protocol.errors import Breach, ConnectError, NoThreads, WireClosed
from tflaunch.sessions import payload
from tflaunch.sessions.wires import Wire

IDLE_S = 1.0  # a writer thread with nothing to write for so long ends
UNREAD = 50_000  # at most so many messages of one host wait to be read: no agent sends so many unasked
_COMMAND = "exec /bin/sh -c"  # how the line begins that boots the agent
_SWALLOWED = "a start-up file of the login shell there reads what was sent to the agent"

# How a connection ends of whose packets none is acknowledged any more: by the kernel's words, and by those of `ssh`.
_TIMED_OUT = (os.strerror(errno.ETIMEDOUT), "not responding")


class Said(NamedTuple):
    """A message of an agent; `session` is the number of the Session that it came by."""

    host: str
    message: wire.Message
    session: int = 0


class Ended(NamedTuple):
    """The wire to an agent has ended, or could not be opened; `error` says why, for the user."""

    host: str
    error: ConnectError
    session: int = 0  # 0: it could not be opened


class Silent(ConnectError):
    """Nothing has come from an agent in time; it may still come."""


class Damaged(ConnectError):
    """The code that a host keeps is damaged; to ship it again repairs it."""


_numbers = itertools.count(1)


class Session:
    """A wire to an agent that is up, or boots: `put` gets a Said for each message and, at the end, one Ended.

    No method waits for the host: a host that takes nothing any more must not stop the others.
    """

    def __init__(self, host: Host, channel: Wire, put: Callable[[Said | Ended], None]) -> None:
        self.host = host
        self.number = next(_numbers)
        self.ended = False  # its end was reported, or is not waited for
        self.directory = ""  # the run directory there, once the agent has said it
        self.module_sent = False  # whether the module that the probe lacked was sent
        self._channel = channel
        self._put = put
        self._decoder = wire.Decoder(magic=True, head_limit=wire.ANSWER_LIMIT)
        self._sent_agent = self._up = False  # the host lacked the agent; the agent has sent a message
        # Two counts each for messages and for bytes of log: each count is changed by one thread only.
        self._heard = self.read = 0
        self._log_came = self._log_granted = 0
        self._uploading = False
        self._over = False  # what still comes is ignored
        self._sending = threading.Lock()
        # For what cannot be sent at once; while there is a writer thread, everything goes this way.
        self._outbox: queue.SimpleQueue[bytes | Iterator[bytes] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._starting = threading.Lock()
        self._posting = threading.Lock()
        self._posted = b""  # what goes with the next message
        channel.listen(self._take)

    def send(self, type: str, body: bytes = b"", **fields: Any) -> None:
        """Send a message.  A wire that has ended is no error here: its Ended comes through the queue."""
        self.send_frame(wire.encode(type, body, **fields), type, fields)

    def send_frame(self, frame: bytes, type: str, fields: Mapping[str, Any]) -> None:
        """Send the frame of a message with these fields, which may go to other hosts, too."""
        if self.ended:
            return
        with self._posting:  # a tunnel sends from a thread of its own
            frame, self._posted = self._posted + frame, b""
            self._grant(type, fields)
            if self._sending.acquire(blocking=False):
                try:
                    if self._writer is None and self._channel.send_now(frame):
                        return
                except WireClosed:
                    self._channel.close()
                    return
                finally:
                    self._sending.release()
            self._put_out(frame)

    def post(self, type: str, **fields: Any) -> None:
        """Send a message with the next one: a packet costs this process and the host more than what is in it."""
        self.post_frame(wire.encode(type, **fields), type, fields)

    def post_frame(self, frame: bytes, type: str, fields: Mapping[str, Any]) -> None:
        """Send the frame of a message with the next one."""
        if self.ended:
            return
        with self._posting:
            self._posted += frame
            self._grant(type, fields)

    def _grant(self, type: str, fields: Mapping[str, Any]) -> None:
        if type == "watch":  # bytes that an earlier `watch` granted may still be under way
            self._log_granted += fields.get("window", 0)
        elif type == "credit":
            self._log_granted += fields["bytes"]

    def upload(self, frames: Iterator[bytes]) -> None:
        """Send many frames, one after the other; messages that are sent meanwhile go in between."""
        with self._posting:
            posted, self._posted = self._posted, b""
            self._put_out(itertools.chain([posted] * bool(posted), frames))

    @property
    def log_credit(self) -> int:
        """How many more bytes of log the agent may send."""
        return self._log_granted - self._log_came

    @property
    def acknowledged(self) -> bool:
        """Whether the host's kernel acknowledges what is sent; False where nothing tells."""
        return self._channel.acknowledged

    def close(self) -> None:
        """Close the wire once all queued frames are sent; idempotent."""
        with self._starting:
            if self._writer is not None:
                self._outbox.put(None)
                return
        self._channel.close()

    def close_by(self, deadline: float) -> None:
        """Close the wire at `deadline` (monotonic) at the latest; frames still queued then are dropped."""
        if (writer := self._writer) is not None:
            writer.join(max(0.0, deadline - time.monotonic()))
        self._channel.close()

    def close_now(self) -> None:
        """Close at once; frames still queued are dropped."""
        self.ended = True
        self.close()
        self.close_by(time.monotonic())

    def _put_out(self, item: bytes | Iterator[bytes]) -> None:
        self._outbox.put(item)
        with self._starting:
            if self._writer is None:
                writer = threading.Thread(target=self._write, name=f"write {self.host.name}", daemon=True)
                writer.start()  # it may fail: then there is no writer, and whoever closes waits for none
                self._writer = writer

    def _write(self) -> None:
        frames: Iterator[bytes] | None = None
        try:
            while True:
                try:
                    item = self._outbox.get(block=frames is None, timeout=IDLE_S)
                except queue.Empty:
                    if frames is None and self._leave():
                        return
                    item = next(frames, b"") if frames else b""
                    frames = frames if item else None
                    self._uploading = frames is not None
                if item is None:
                    break
                if not isinstance(item, bytes):
                    frames = item
                elif item:
                    with self._sending:
                        self._channel.send(item)
        except WireClosed:
            pass
        self._channel.close()

    def _leave(self) -> bool:
        """End the writer thread if there is nothing to send; returns whether it ends."""
        with self._starting:
            if self._outbox.empty():
                self._writer = None
            return self._writer is None

    def silent(self, seconds: float) -> Silent:
        """The error for an agent that has not answered for so long."""
        advice = self._channel.advice
        if self._sent_agent and not self._up:
            kib = len(payload.agent()) // 1024
            return Silent(f"the agent ({kib} KiB) did not arrive within {seconds:g} s", advice.large_packets)
        if not self._decoder.awaiting_magic:
            return Silent(
                f"the agent is up but has not answered for {seconds:g} s",
                "is the host overloaded, or does a disk or a driver hang there? leave it out, or give a longer "
                "--connect-timeout",
            )
        if self._echoed(""):
            return Silent(_SWALLOWED, advice.start_up)
        return Silent(
            f"nothing came of the agent{advice.silence}{_quoted(self._decoder.noise)}", advice.start_up
        )

    def _echoed(self, words: str) -> bool:
        """Whether the host sent back what was sent to the agent."""
        head = payload.loader()[:16]
        return head in self._decoder.noise or head[:6].decode("utf-8", "replace") in words

    def _take(self, data: bytes) -> None:
        """Take what comes by the wire; called by the wire's thread, which must not wait."""
        if self._over:
            return
        try:
            for message in self._decoder.feed(data):
                self._hear(messages.check(message, messages.FROM_AGENT))
            if data:
                return
            error = self._explain_end()
        except wire.WireError as broken:
            if self._decoder.awaiting_magic:
                error = ConnectError(
                    f"what came is not an agent's: {broken}{_quoted(broken.noise or self._decoder.noise)}",
                    "silence the start-up files of its shell when they run without a terminal",
                )
            else:
                error = Breach(str(broken))
        except Exception as defect:  # a defect here must not look like a slow host
            error = unexpected(defect)
        self._over = True
        self._put(Ended(self.host.name, error, self.number))

    def _hear(self, message: wire.Message) -> None:
        if message.type == "lacks":
            if self._sent_agent or self._up:
                raise wire.WireError("it asks for the agent once more")
            self._sent_agent = True
            self._put_out(payload.agent())
            return
        self._up = True
        if message.type == "hello":
            self.directory = message["directory"]
        elif message.type == "log":
            self._log_came += len(message.body)
            if self._log_came > self._log_granted:
                raise wire.WireError("it sends more log than it was asked for")
        self._heard += 1
        if self._heard - self.read > UNREAD:
            raise wire.WireError(f"it sends more than {UNREAD} messages that tflaunch did not ask for")
        self._put(Said(self.host.name, message, self.number))

    def _explain_end(self) -> ConnectError:
        words = self._channel.last_words().strip()
        broke = words.startswith("the connection broke")
        timed_out = any(each in words for each in _TIMED_OUT)
        advice = self._channel.advice
        if not self._up:
            if _COMMAND in words:
                return ConnectError(
                    f"the login shell there does not run commands: {_without_command(words)}",
                    advice.no_shell,
                )
            if self._echoed(words):
                return ConnectError(_SWALLOWED, advice.start_up)
            for cause, hint in (
                ("has read what was sent", advice.start_up),
                (
                    "Resource temporarily unavailable",  # of fork: its shell says so, or the loader's Python
                    "end some processes of this user there, or have the limit raised: ulimit -u, or TasksMax of "
                    "systemd",
                ),
                ("no python3", "install Python 3.8 or newer there, or name one by `python:` in the hostfile"),
                ("is too old", "install Python 3.8 or newer there, or name one by `python:` in the hostfile"),
                ("No space left", "make room on its disk"),
            ):
                line = next((line for line in words.splitlines() if cause in line), "")
                if line:
                    return ConnectError(line.rpartition("tflaunch: ")[2], hint)
            if broke:  # the agent is the first thing sent that fills packets
                hint = advice.large_packets if timed_out else advice.cut
                return ConnectError(f"{words} while the agent was on its way", hint, again=True)
        if not self._decoder.awaiting_magic:
            hint = "see agent.log in its run directory"
            if broke:
                hint = advice.large_packets if self._uploading and timed_out else advice.cut
            return ConnectError("lost the agent" + (f": {words}" if words else ""), hint, again=broke)
        return ConnectError(
            "its shell ended before the agent answered"
            + (f": {words}" if words else "")
            + _quoted(self._decoder.noise),
            advice.ended,
        )


def unexpected(error: Exception) -> ConnectError:
    """The error for an exception that tflaunch did not expect: no more threads, or a defect."""
    return NoThreads() if NoThreads.cause_of(error) else ConnectError(f"a defect of tflaunch: {error!r}")


def _without_command(words: str) -> str:
    """The message of a shell, without the command that the shell repeats in it."""
    said = words.partition("it said: ")[2] or words
    lines = [line.partition(_COMMAND)[0].strip(" \t\"'^~") for line in said.splitlines()]
    return "; ".join(line for line in lines if line)[:200]


def _quoted(noise: bytes) -> str:
    text = noise.decode("utf-8", "replace").strip()
    return f"; it printed: {text[:200]!r}" if text else ""
