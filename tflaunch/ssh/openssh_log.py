"""What the system's `ssh` writes to stderr at LogLevel DEBUG1: how far it came, and what the host said; pure."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.child import STDERR_BYTES
from tflaunch.ssh.failures import SILENT, last_words
from tflaunch.ssh.target import Target

MOST_LINES = 400  # before the login, which takes some fifty
LONGEST_LINE = 16 * 1024
SEEN = 2000  # characters of a line before the login are searched: the server can write some of them

_DEBUG = re.compile(r"debug[123]: ")
# What ssh itself says at VERBOSE; and its warnings about the host's keys.
_CHATTER = re.compile(
    r"Authenticated to |Transferred: sent |Bytes per second: |Warning: Permanently added |"
    r"Authenticated using |\*\* WARNING: connection is not using a post-quantum|\*\* This session may be vulnerable|"
    r"\*\* The server may need to be upgraded"
)
# ssh has logged in and was given a channel: its own, or one of a ControlMaster's connection.
_LOGGED_IN = re.compile(r"debug1: Sending command: |debug1: mux_client_request_session: master session id")
# The end of ssh's warning that a host key has changed: where the known key is, and what follows.
_WARNED = re.compile(
    r"Offending \S+ key in |.* you have requested strict checking|Password authentication is disabled|"
    r"Host key verification failed"
)
_EXIT = re.compile(r"rtype (exit-status|exit-signal) ")


class SshLog:
    """Takes what `ssh` writes to stderr, in pieces, and tells ssh's own lines from what the host's command says."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # up to the login
        self.logged_in = False
        # The host key is not the known one: refused, whatever StrictHostKeyChecking says.
        self.changed = False
        self._warned = False
        self._end = ""  # how the command ended, as sshd said: exit-status, exit-signal
        self._stderr = b""  # of the host's command
        self._rest = b""  # of a line that is not complete

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            self._take(line)

    def end(self) -> None:
        """No more comes."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if not self.logged_in:
            self.logged_in = _LOGGED_IN.match(text) is not None
            self._warned = self._warned or "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
            self.changed = self.changed or (self._warned and _WARNED.match(text) is not None)
            self.lines = [*self.lines[-MOST_LINES:], text[:SEEN]]
            return
        # What the command says may end without a newline, before what ssh has to say.
        debug = _DEBUG.search(text)
        if debug and (found := _EXIT.search(text, debug.start())):
            self._end = found[1]
        text = text[: debug.start()] if debug else text
        if text and not _CHATTER.match(text):
            self._stderr = (self._stderr + text.encode(errors="replace") + b"\n")[-STDERR_BYTES:]

    def find(self, pattern: str) -> str:
        """The first group of a pattern in the first line that has it; "" in none."""
        for line in self.lines:
            if found := re.search(pattern, line):
                return found[1]
        return ""

    def has(self, text: str) -> bool:
        """Whether a line before the login holds the text."""
        return any(text in line for line in self.lines)

    @property
    def messages(self) -> list[str]:
        """The lines before the login that ssh would show at its usual LogLevel."""
        return [
            line
            for line in self.lines
            if line.strip() and not _DEBUG.match(line) and not _CHATTER.match(line)
        ]

    @property
    def hostname(self) -> str:
        """What ssh dials, after HostName; "" when it went through a ControlMaster, which dialled long ago."""
        return self.find(r"debug1: Authenticating to (\S+):\d+ as ")

    @property
    def port(self) -> int:
        """The port of sshd; 0 when ssh has not said it."""
        found = self.find(r"debug1: Authenticating to \S+:(\d+) as ") or self.find(
            r"Connecting to .* port (\d+)"
        )
        return int(found or 0)

    @property
    def user(self) -> str:
        """The account that ssh logs in to; "" when it has not said it."""
        return self.find(r"debug1: Authenticating to \S+:\d+ as '(.*)'")

    @property
    def host_key(self) -> str:
        """The fingerprint of the server's key; "" when ssh went through a ControlMaster."""
        return self.find(r"debug1: Server host key: \S+ (SHA256:\S+)")

    @property
    def host_key_kind(self) -> str:
        """The kind of the server's key: "ssh-ed25519"."""
        return self.find(r"debug1: Server host key: (\S+) ") or self.find(
            r"debug1: Server host certificate: (\S+) "
        )

    @property
    def offered(self) -> list[str]:
        """The keys that ssh has offered."""
        named = (re.match(r"debug1: Offering public key: (\S+)", line) for line in self.lines)
        return list(dict.fromkeys(found[1] for found in named if found))

    @property
    def has_banner(self) -> bool:
        """Whether the server has said that it is an SSH server."""
        return self.has("Remote protocol version")

    @property
    def stage(self) -> str:
        """How far ssh came after the banner."""
        return "the login" if self.has("SSH2_MSG_NEWKEYS received") else "the key exchange"

    def known(self, target: Target) -> Target:
        """The target with what ssh has said about it."""
        return replace(
            target,
            hostname=self.hostname or target.hostname,
            port=self.port or target.port,
            user=self.user or target.user,
        )

    def unanswered(self, target: Target) -> ConnectError | None:
        """The error to report as long as no TCP connection stands; None where `ssh` makes none itself."""
        begun = self.has("Connecting to ") and not self.has_banner
        if not begun or self.has("Connection established"):
            return None
        return ConnectError(f"no answer on port {target.port}", SILENT, absent=True)

    def last_words(self, code: int | None, *, closed: bool) -> str:
        """How the command ended, as `Wire.last_words` says it; `code` is ssh's exit status, None while it runs."""
        if closed or code is None:
            return last_words("", self._stderr)
        if code < 0:
            return last_words(f"the connection broke ({signal_name(code)} has ended ssh)", self._stderr)
        if self._end == "exit-signal":
            return last_words("ended by a signal", self._stderr)
        if code == 255 and not self._end:
            # The last line is ssh's own, what is before it the command's.
            *before, last = self._stderr.decode(errors="replace").strip().splitlines() or [
                "ssh has not said why"
            ]
            return last_words(f"the connection broke ({plain(last)})", "\n".join(before).encode())
        return last_words(f"exit status {code}", self._stderr)


def signal_name(code: int) -> str:
    """`SIGKILL` for -9, the exit status of a process that it has ended."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def plain(line: str) -> str:
    """A line of ssh's as part of a sentence: without `ssh: ` in front and the full stop, 300 characters at most."""
    return line.strip().removeprefix("ssh: ").rstrip(".")[:300]
