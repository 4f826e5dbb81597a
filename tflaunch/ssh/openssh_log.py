"""What the system's `ssh` writes into its log at LogLevel DEBUG1: how far it came; pure.

The server can write into that log: ssh quotes what it says, line breaks and all, so that a line of the server's looks
like one of ssh's own.  Three parts are told apart:

- up to the server's first word of more than one line, and no further than the key exchange, every line is ssh's own:
  `own`.  What is said of the host's key and of the way there is taken from these alone.  A server that speaks before
  its key has been checked, as no sshd does, ends them early;
- after the key exchange (`later`), or behind a host's certificate, the server speaks of the login with it: what it
  takes, what it refuses.  Nothing else is taken from there;
- after the login the log tells how the command ended, which is the host's word as well.

What else comes to ssh's stderr (the server's banner, the words of whoever leads to a jump host, the command's) is no
part of its log.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.outcome import signal_named
from tflaunch.sessions.child import STDERR_BYTES, last_words
from tflaunch.ssh.failures import SILENT
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
# A line that quotes the server without a limit to one line: what follows it may be the server's.
_QUOTES = re.compile(
    r"debug1: (Remote: |Server host certificate: |Authentications that can continue: |kex_input_ext_info: |"
    r"client_input_|Server GSSAPI Error:)|Received disconnect from |Unable to negotiate with |"
    r"(?!debug).*: Permission denied \(|channel \d+: open failed: "
)
_EXCHANGED = "debug1: SSH2_MSG_NEWKEYS received"
_COMMAND = "debug1: Sending command: "
_MASTER = re.compile(r"debug1: mux_client_request_session: master session id: ")
_EXIT = re.compile(r"debug1: client_input_channel_req: channel \d+ rtype (exit-status|exit-signal) ")
# Letters that the log shows as they are.
_PLAIN = re.compile(r"[^A-Za-z0-9 /._=-]")
_COMPARED = 200  # of them


class SshLog:
    """Takes what `ssh` writes into its log and to its stderr, in pieces.  `command` is what it is to run."""

    def __init__(self, command: str = "") -> None:
        self.own: list[str] = []  # ssh's own lines
        self.later: list[str] = []  # those of the login, in which the host may have a word
        self.logged_in = False
        self.said = b""  # on stderr, up to the login: by whom, nobody knows
        self._command = _PLAIN.sub("", command)[:_COMPARED]
        self._quoting = False  # the server may have written the next line
        self._exchanged = False
        self._message = ""  # the last of ssh's messages after the login
        self._end = ""  # how the command ended, as sshd said: exit-status, exit-signal
        self._stderr = b""  # of the host's command
        self._rest = b""  # of a line that is not complete

    def feed(self, data: bytes) -> None:
        """Take the next piece of the log."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            self._take(line.decode(errors="replace").rstrip("\r"))

    def hear(self, data: bytes) -> None:
        """Take the next piece of what came to stderr."""
        if self.logged_in:
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]
        else:
            self.said = (self.said + data)[-STDERR_BYTES:]

    def end(self) -> None:
        """No more comes."""
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
            self._rest = b""

    def _take(self, line: str) -> None:
        if self.logged_in:
            if found := _EXIT.match(line):
                self._end = found[1]
            elif line.strip() and not _DEBUG.match(line) and not _CHATTER.match(line):
                self._message = line
        elif self._is_login(line):
            self.logged_in = True
        elif self._exchanged:
            self.later = [*self.later[-MOST_LINES:], line[:SEEN]]
        elif line == _EXCHANGED and self.certified:
            self._exchanged = True
        elif not self._quoting:
            self.own = [*self.own[-MOST_LINES:], line[:SEEN]]
            self._exchanged = line == _EXCHANGED
            self._quoting = _QUOTES.match(line) is not None

    def _is_login(self, line: str) -> bool:
        """Whether ssh has logged in and was given a channel: its own, or one of a ControlMaster's connection."""
        if line.startswith(_COMMAND):  # which nobody knows before
            return (
                self._command != ""
                and _PLAIN.sub("", line[len(_COMMAND) :])[: len(self._command)] == self._command
            )
        return not self._quoting and not self._exchanged and _MASTER.match(line) is not None

    def find(self, pattern: str) -> str:
        """The first group of a pattern in the first of ssh's own lines that begins with it; "" in none."""
        return _first(pattern, self.own)

    def find_later(self, pattern: str) -> str:
        """The same in the lines of the login."""
        return _first(pattern, self.later)

    def has(self, beginning: str) -> bool:
        """Whether one of ssh's own lines begins like that."""
        return any(line.startswith(beginning) for line in self.own)

    @property
    def messages(self) -> list[str]:
        """Those of ssh's own lines that it would show at its usual LogLevel."""
        return _messages(self.own)

    @property
    def words_of_login(self) -> list[str]:
        """The lines of the login that ssh would show at its usual LogLevel."""
        return _messages(self.later)

    @property
    def words(self) -> list[str]:
        """The lines that came to stderr before the login."""
        lines = self.said.decode(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()]

    @property
    def meddled(self) -> bool:
        """Whether the server has written into the log before its key had been checked."""
        return self._quoting and self.own[-1].startswith("debug1: Remote: ")

    @property
    def certified(self) -> bool:
        """Whether the server has shown a certificate, which says what its owner wants it to: ssh's own lines end."""
        return self._quoting and self.own[-1].startswith("debug1: Server host certificate: ")

    @property
    def hostname(self) -> str:
        """What ssh dials, after HostName; "" when it went through a ControlMaster, which dialled long ago."""
        return self.find(r"debug1: Authenticating to (\S+):\d+ as ")

    @property
    def port(self) -> int:
        """The port of sshd; 0 when ssh has not said it."""
        found = self.find(r"debug1: Authenticating to \S+:(\d+) as ") or self.find(
            r"debug1: Connecting to .* port (\d+)\.?$"
        )
        return int(found or 0)

    @property
    def user(self) -> str:
        """The account that ssh logs in to; "" when it has not said it."""
        return self.find(r"debug1: Authenticating to \S+:\d+ as '(.*)'$")

    @property
    def host_key(self) -> str:
        """The fingerprint of the server's key; "" when ssh went through a ControlMaster, or the server shows more."""
        return self.find(r"debug1: Server host key: \S+ (SHA256:\S+)$")

    @property
    def host_key_kind(self) -> str:
        """The kind of the server's key: "ssh-ed25519"."""
        return self.find(r"debug1: Server host (?:key|certificate): (\S+) ")

    @property
    def offered(self) -> list[str]:
        """The keys that ssh has offered, by what the log calls them."""
        named = (re.match(r"debug1: Offering public key: (.*?) \S+ SHA256:", line) for line in self.later)
        return list(dict.fromkeys(found[1] for found in named if found))

    @property
    def has_banner(self) -> bool:
        """Whether the server has said that it is an SSH server."""
        return self.has("debug1: Remote protocol version")

    @property
    def stage(self) -> str:
        """How far ssh came after the banner."""
        return "the login" if self._exchanged else "the key exchange"

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
        begun = self.has("debug1: Connecting to ") and not self.has_banner
        if not begun or self.has("debug1: Connection established"):
            return None
        return ConnectError(f"no answer on port {target.port}", SILENT, absent=True)

    def last_words(self, code: int | None, *, closed: bool) -> str:
        """How the command ended, as `Wire.last_words` says it; `code` is ssh's exit status, None while it runs."""
        if closed or code is None:
            return last_words("", self._stderr)
        if code < 0:
            return last_words(f"the connection broke ({signal_named(-code)} has ended ssh)", self._stderr)
        if self._end == "exit-signal":
            return last_words("ended by a signal", self._stderr)
        if code == 255 and not self._end:
            reason = plain(self._message or "ssh has not said why")
            return last_words(f"the connection broke ({reason})", self._stderr)
        return last_words(f"exit status {code}", self._stderr)


def _first(pattern: str, lines: list[str]) -> str:
    for line in lines:
        if found := re.match(pattern, line):
            return found[1]
    return ""


def _messages(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() and not _DEBUG.match(line) and not _CHATTER.match(line)]


def plain(line: str) -> str:
    """A line of ssh's as part of a sentence: without `ssh: ` in front and the full stop, 300 characters at most."""
    return line.strip().removeprefix("ssh: ").rstrip(".")[:300]
