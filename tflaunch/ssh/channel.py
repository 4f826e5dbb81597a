"""A command on a host, on a channel of its SSH connection, as a wire to the agent that it starts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from paramiko import Channel, Message, Transport
from paramiko.common import cMSG_CHANNEL_REQUEST, cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.ssh_exception import ChannelException, SSHException

from tflaunch.protocol.errors import ConnectError, WireClosed
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.config import Target
from tflaunch.ssh.login import SLOW
from tflaunch.ssh.transport import AT_ONCE, END_S, WORDS_LIMIT, Deadline, Stream, apart, text, words

# More may come after each tenth of it; what may be under way, launcher and agent agree on themselves.
WINDOW = 16 * 1024 * 1024
PACKET = 128 * 1024  # at most: each costs the same, and sshd sends none beyond 256 KiB

_REFUSED = "the server logged in but refused to run a command"


@dataclass(frozen=True)
class Link:
    """An authenticated connection."""

    target: Target
    transport: Transport
    stream: Stream
    host_key: bytes

    def close(self) -> None:
        # The stream first: paramiko's own farewell would wait for a peer that does not read.
        self.stream.close()
        self.transport.close()


class SshWire:
    """A command on a host, behind its own SSH connection, whose thread hands on what comes."""

    def __init__(self, link: Link, command: str, first: bytes, deadline: Deadline) -> None:
        self._link = link
        self._stderr = b""
        self._closed = False
        self._to_grant = 0  # bytes that came, and that the other side has not been told of
        self._early: list[bytes] = []  # what came before anybody listened
        self._listener: Callable[[bytes], None] | None = None
        self._taking = threading.Lock()
        self._over = False
        self._told = threading.Lock()  # taken by whoever tells that it is
        try:
            self._channel = link.transport.open_session(WINDOW, PACKET, deadline.left())
            self._channel.in_buffer = _Inlet(self._come, self._end)  # type: ignore[assignment]
            self._channel.in_stderr_buffer = _Inlet(self._murmur)  # type: ignore[assignment]
            self._channel.settimeout(deadline.left())
            _exec(link.transport, self._channel, command)
            if first:
                self._channel.sendall(first)
        except ChannelException as error:
            raise ConnectError(
                f"the server logged in but refused a session ({error.text})",
                f"raise MaxSessions there; does `{link.target.ssh} true` work?",
            ) from None
        except (SSHException, OSError, EOFError) as error:
            if link.stream.unacknowledged:
                raise ConnectError(
                    "logged in, but the server has not acknowledged the command", LARGE_PACKETS
                ) from None
            if deadline.passed:
                raise ConnectError(f"the command did not start within {deadline}", SLOW) from None
            if self._refused():
                raise ConnectError(_REFUSED, f"does `{link.target.ssh} true` work?") from None
            if not link.transport.is_active():
                raise ConnectError(
                    f"the connection broke while the command was started ({text(error)})", SLOW
                ) from None
            # The command has ended without reading `first`: listen and last_words tell why.
        self._channel.settimeout(None)

    def listen(self, take: Callable[[bytes], None]) -> None:
        with self._taking:
            self._listener = take
            for data in self._early:
                take(data)
            self._early.clear()
            over = self._over or self._channel.closed  # or was before anybody could be told
        if over:
            self._tell_end()

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (SSHException, OSError, EOFError) as error:
            reason = self.last_words() or text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def send_now(self, data: bytes) -> bool:
        # One packet, in the window, with keys that are not just being exchanged, for a socket that has room.
        room = min(AT_ONCE, self._channel.out_max_packet_size, self._channel.out_window_size)
        if len(data) > room or not self._link.transport.clear_to_send.is_set() or not self._link.stream.ready:
            return False
        self.send(data)
        return True

    def close(self) -> None:
        self._closed = True
        self._link.stream.close()  # which ends the transport, too: nobody waits for that

    def last_words(self) -> str:
        broken = self._link.transport.saved_exception
        if not self._closed and not broken and self._link.transport.is_active():
            self._channel.status_event.wait(END_S)
        ended = ""
        if self._channel.exit_status >= 0:
            ended = f"exit status {self._channel.exit_status}"
        elif self._refused():
            ended = _REFUSED
        elif broken and not self._closed:
            ended = f"the connection broke ({text(broken)})"
        elif self._channel.closed and not self._closed:
            ended = "ended by a signal"  # paramiko drops the message that says by which
        return words(ended, self._stderr)

    def _refused(self) -> bool:
        # paramiko answers a request that failed by closing the channel, without a word.
        channel = getattr(self, "_channel", None)
        return (
            channel is not None
            and channel.closed
            and not channel.event_ready
            and channel.exit_status < 0
            and self._link.transport.is_active()
        )

    # By the transport's thread.

    def _come(self, data: bytes) -> None:
        self._link.stream.calm()
        with self._taking:
            if self._listener is None:
                self._early.append(data)
            else:
                self._listener(data)
        self._grant(len(data))

    def _murmur(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-WORDS_LIMIT:]
        self._grant(len(data))

    def _end(self) -> None:
        with self._taking:
            self._over = True
            listened = self._listener is not None
        if listened:
            self._tell_end()

    def _tell_end(self) -> None:
        assert self._listener is not None  # noqa: S101
        if not self._told.acquire(blocking=False):
            return
        if self._closed:
            self._listener(b"")
        else:  # whoever is told asks for last words, which only the transport's thread can bring
            apart(self._listener, b"")

    def _grant(self, size: int) -> None:
        """Say that more may come, once it is worth a message."""
        self._to_grant += size
        if self._to_grant > WINDOW // 10:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(self._to_grant)
            self._to_grant = 0
            # It may have to wait: for new keys, or behind a sender for a peer that takes nothing before it is read.
            apart(self._send_grant, message)

    def _send_grant(self, message: Message) -> None:
        with contextlib.suppress(SSHException, OSError, EOFError):  # the connection is at its end
            self._link.transport._send_user_message(message)  # type: ignore[attr-defined]


class _Inlet:
    """What a channel takes for its buffer: paramiko's own would need a thread that waits for what comes."""

    def __init__(self, feed: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        self.feed = feed
        self.close = close

    def __len__(self) -> int:
        return 0


def _exec(transport: Transport, channel: Channel, command: str) -> None:
    """Ask for `command` without waiting for the answer, as Channel.exec_command would."""
    request = Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)  # a refusal closes the channel
    request.add_string(command)
    transport._send_user_message(request)  # type: ignore[attr-defined]
