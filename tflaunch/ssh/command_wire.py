"""A command on a host, on a channel of its SSH connection, as a wire."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from paramiko import Channel, Message, Transport
from paramiko.common import cMSG_CHANNEL_REQUEST, cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.ssh_exception import ChannelException, SSHException

from tflaunch.protocol.errors import ConnectError, WireClosed
from tflaunch.sessions.child import STDERR_BYTES, WAIT_S, last_words
from tflaunch.sessions.socket_tools import in_thread, text
from tflaunch.sessions.wires import LARGE_PACKETS, OF_SSH
from tflaunch.ssh.connection import HostConnection
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.failures import SLOW, session_refused
from tflaunch.ssh.transport import SshStream

# Bytes that may be on their way to us; whenever a tenth has come, we grant as many anew.  Launcher and agent agree by
# themselves how much log an agent may send unread.
WINDOW = 16 * 1024 * 1024
PACKET = 128 * 1024  # at most: each costs the same, and sshd sends none beyond 256 KiB
PACKET_HEAD = 1024  # bytes that SSH adds to what is sent, and more

_REFUSED = "the server logged in but refused to run a command"


class SshWire:
    """A command on a host, by an SSH connection of its own, whose thread hands on what comes.

    Raises ConnectError when the command cannot be started within the deadline.
    """

    advice = OF_SSH

    def __init__(self, connection: HostConnection, command: str, first: bytes, deadline: Deadline) -> None:
        self._transport: Transport = connection.transport
        self._stream: SshStream = connection.client.stream
        self._stderr = b""
        self._closed = False  # by us
        self._ungranted = 0  # bytes that came, and for which we have not granted the other side new ones
        self._early: list[bytes] = []  # what came before `listen`
        self._listener: Callable[[bytes], None] | None = None
        self._taking = threading.Lock()
        self._ended = False  # nothing more comes
        self._end_reported = threading.Lock()  # taken by the thread that reports it
        try:
            self._channel = self._transport.open_session(WINDOW, PACKET, deadline.left())
            self._channel.in_buffer = _Inlet(self._take_stdout, self._take_end)
            self._channel.in_stderr_buffer = _Inlet(self._take_stderr)
            self._channel.settimeout(deadline.left())
            _exec(self._transport, self._channel, command)
            if first:
                self._channel.sendall(first)
        except ChannelException as error:
            raise session_refused(error.text, connection.target) from None
        except (SSHException, OSError, EOFError) as error:
            if self._stream.unacknowledged:
                raise ConnectError(
                    "logged in, but the server has not acknowledged the command", LARGE_PACKETS
                ) from None
            if deadline.passed:
                raise ConnectError(f"the command did not start within {deadline}", SLOW) from None
            if self._refused():
                raise ConnectError(_REFUSED, f"does `{connection.target.ssh} true` work?") from None
            if not self._transport.is_active():
                raise ConnectError(
                    f"the connection broke while the command was started ({text(error)})", SLOW, again=True
                ) from None
            # The command has ended without reading `first`: listen and last_words tell why.
        self._channel.settimeout(None)

    def listen(self, take: Callable[[bytes], None]) -> None:
        with self._taking:
            self._listener = take
            for data in self._early:
                take(data)
            self._early.clear()
            ended = self._ended or self._channel.closed  # perhaps before we replaced its buffer
        if ended:
            self._report_end()

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (SSHException, OSError, EOFError) as error:
            reason = self.last_words() or text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def send_now(self, data: bytes) -> bool:
        # At once: the window allows it, no key exchange is under way, and there is room in the socket.
        if (
            len(data) > self._channel.out_window_size
            or not self._transport.clear_to_send.is_set()
            or not self._stream.has_room(len(data) + PACKET_HEAD)
        ):
            return False
        self.send(data)
        return True

    @property
    def acknowledged(self) -> bool:
        return self._stream.acknowledged

    def close(self) -> None:
        self._closed = True
        self._stream.close()  # which ends the transport's thread, too, in its own time

    def last_words(self) -> str:
        broken = self._transport.saved_exception
        if not self._closed and not broken and self._transport.is_active():
            self._channel.status_event.wait(WAIT_S)
        ended = ""
        if self._channel.exit_status >= 0:
            ended = f"exit status {self._channel.exit_status}"
        elif self._refused():
            ended = _REFUSED
        elif broken and not self._closed:
            ended = f"the connection broke ({text(broken)})"
        elif self._channel.closed and not self._closed:
            ended = "ended by a signal"  # paramiko drops the message that says by which
        return last_words(ended, self._stderr)

    def _refused(self) -> bool:
        """Whether the server has refused to run the command."""
        # paramiko answers a request that failed by closing the channel, without a word.
        channel = getattr(self, "_channel", None)
        return (
            channel is not None
            and channel.closed
            and not channel.event_ready
            and channel.exit_status < 0
            and self._transport.is_active()
        )

    # -- called by the transport's thread ---------------------------------------------------------------------

    def _take_stdout(self, data: bytes) -> None:
        self._stream.calm()
        with self._taking:
            if self._listener is None:
                self._early.append(data)
            else:
                self._listener(data)
        self._grant(len(data))

    def _take_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-STDERR_BYTES:]
        self._grant(len(data))

    def _take_end(self) -> None:
        with self._taking:
            self._ended = True
            listened = self._listener is not None
        if listened:
            self._report_end()

    def _report_end(self) -> None:
        """Report the end of the stream to the listener, once."""
        assert self._listener is not None  # noqa: S101
        if not self._end_reported.acquire(blocking=False):
            return
        if self._closed:
            self._listener(b"")
        else:  # the listener will ask for last words, for which the transport's thread must be free
            in_thread(self._listener, b"")

    def _grant(self, size: int) -> None:
        """Grant the server as many new bytes, once they are worth a message."""
        self._ungranted += size
        if self._ungranted > WINDOW // 10:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(self._ungranted)
            self._ungranted = 0
            # Sending may wait: for new keys, or behind a sender whose peer reads no more until we have read.
            in_thread(self._send_grant, message)

    def _send_grant(self, message: Message) -> None:
        with contextlib.suppress(SSHException, OSError, EOFError):  # the connection is at its end
            self._transport._send_user_message(message)  # type: ignore[attr-defined]


class _Inlet:
    """Stands in for a channel's buffer and hands data on at once: paramiko's own needs a thread that waits."""

    def __init__(self, feed: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        self.feed = feed
        self.close = close

    def __len__(self) -> int:
        return 0


def _exec(transport: Transport, channel: Channel, command: str) -> None:
    """Ask for `command` without waiting for the answer, for which Channel.exec_command waits."""
    request = Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)  # a refusal closes the channel
    request.add_string(command)
    transport._send_user_message(request)  # type: ignore[attr-defined]
