"""What the system's `ssh` says at LogLevel DEBUG1: how far it came, to which machine, and why it ended; pure."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import socket
from dataclasses import replace

from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.config import Target, known_hosts_name
from tflaunch.ssh.login import DROPPED, SILENT, Dropped, unreached, without_banner
from tflaunch.ssh.transport import WORDS_LIMIT, Deadline, words

MOST_LINES = 400  # before the login, which takes some fifty
LONGEST_LINE = 16 * 1024

_DEBUG = re.compile(r"debug[123]: ")
# What it says of its own at VERBOSE; and of hosts whose keys others gather.
_CHATTER = re.compile(
    r"Authenticated to |Transferred: sent |Bytes per second: |Warning: Permanently added |"
    r"Authenticated using |\*\* WARNING: connection is not using a post-quantum|\*\* This session may be vulnerable|"
    r"\*\* The server may need to be upgraded"
)
# It has logged in and was given a channel: its own, or one of a master's connection.
_IN = re.compile(r"debug1: Sending command: |debug1: mux_client_request_session: master session id")
# The end of what it says of a host key that has changed: where the known one is, and what comes of it.
_WARNED = re.compile(
    r"Offending \S+ key in |.* you have requested strict checking|Password authentication is disabled|"
    r"Host key verification failed"
)
_EXIT = re.compile(r"rtype (exit-status|exit-signal) ")
# The system's own words, in the locale C or the user's: both are looked for.
_ERRNOS = {
    os.strerror(number): number
    for number in (
        errno.ECONNREFUSED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
        errno.EACCES,
        errno.EPERM,
    )
}
_CONFIG = re.compile(
    r"Bad configuration option|terminating, \d+ bad configuration|Bad owner or permissions on|"
    r"Can't open user config file|line \d+: |command-line: line 0|Unsupported option|no argument after keyword"
)
_ALGORITHM = re.compile(r"Unable to negotiate with .*?: no matching (.+?) found\. Their offer: (.*)")
# What the outer `ssh` says when the one that leads to a jump host has ended.
_FAR_END = re.compile(
    r"(kex|ssh)_exchange_identification|Connection (closed|reset) by UNKNOWN|banner exchange"
)
# What that one says when no TCP connection came about, to the jump host or behind it.
_ABSENT = re.compile(
    r"Could not resolve hostname|connect to host .*: (?!Permission denied|Operation not permitted)|"
    r"open failed: connect failed"
)
# Methods that want somebody who answers.
_ASKING = ("keyboard-interactive", "password")


class SshLog:
    """Takes what `ssh` writes to stderr, in pieces; what the far side says there, once logged in, is `said`."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # up to the login
        self.logged_in = False
        self.changed = (
            False  # the host key is not the known one: refused, whatever StrictHostKeyChecking says
        )
        self._warned = False
        self._end = ""  # how the command ended, as sshd said: exit-status, exit-signal
        self._said = b""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take more of it."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            self._line(line)

    def end(self) -> None:
        """No more comes."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if not self.logged_in:
            self.logged_in = _IN.match(text) is not None
            self._warned = self._warned or "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
            self.changed = self.changed or (self._warned and _WARNED.match(text) is not None)
            self.lines = [*self.lines[-MOST_LINES:], text]
            return
        # What the far side says may end without a newline, before what ssh has to say.
        own = re.search(r"debug[123]: ", text)
        if own and (found := _EXIT.search(text, own.start())):
            self._end = found[1]
        text = text[: own.start()] if own else text
        if text and not _CHATTER.match(text):
            self._said = (self._said + text.encode(errors="replace") + b"\n")[-WORDS_LIMIT:]

    @property
    def hostname(self) -> str:
        """What it dials, after HostName; "" when it went through a master, which dialled long ago."""
        return self._find(r"debug1: Authenticating to (\S+):\d+ as ")

    @property
    def port(self) -> int:
        """The port of sshd; 0 when it was not told."""
        found = self._find(r"debug1: Authenticating to \S+:(\d+) as ") or self._find(
            r"Connecting to .* port (\d+)"
        )
        return int(found or 0)

    @property
    def user(self) -> str:
        """Whom it logs in as, as far as it was told."""
        return self._find(r"debug1: Authenticating to \S+:\d+ as '(.*)'")

    @property
    def host_key(self) -> str:
        """The fingerprint of the key that the server showed; "" when it went through a master."""
        return self._find(r"debug1: Server host key: \S+ (SHA256:\S+)")

    def known(self, target: Target) -> Target:
        """The target with what ssh has said of it."""
        return replace(
            target,
            hostname=self.hostname or target.hostname,
            port=self.port or target.port,
            user=self.user or target.user,
        )

    def last_words(self, code: int | None, *, closed: bool) -> str:
        """How it ended, as `Wire.last_words` tells it; `code` None: it has not."""
        if closed or code is None:
            return words("", self._said)
        if code < 0:
            return words(f"the connection broke ({_signal(code)} has ended ssh)", self._said)
        if self._end == "exit-signal":
            return words("ended by a signal", self._said)
        if code == 255 and not self._end:
            # The last line is ssh's own, what is before it the far side's.
            *before, last = self._said.decode(errors="replace").strip().splitlines() or [
                "ssh has not said why"
            ]
            return words(f"the connection broke ({_plain(last)})", "\n".join(before).encode())
        return words(f"exit status {code}", self._said)

    def unanswered(self, target: Target) -> ConnectError | None:
        """What to say as long as no TCP connection stands; None once one does, or where `ssh` makes none itself."""
        begun = self._has("Connecting to ") and not self._has("Remote protocol version")
        if not begun or self._has("Connection established"):
            return None
        return ConnectError(f"no answer on port {target.port}", SILENT, absent=True)

    def why(self, code: int | None, target: Target, deadline: Deadline) -> Exception:
        """Why there is no login: a ConnectError, or Dropped; `code` None: it was not over at the deadline."""
        own = [
            line
            for line in self.lines
            if line.strip() and not _DEBUG.match(line) and not _CHATTER.match(line)
        ]
        text = "\n".join(own)
        if self.changed:
            return self._changed(text, target)
        if code is None:
            return self._late(own, target, deadline)
        if code < 0:
            return ConnectError(f"{_signal(code)} has ended ssh before the login", "try again")
        behind_proxy = self._has("Executing proxy command") and not self._has("Remote protocol version")
        if behind_proxy and not self._has("Server host key:"):
            return self._broken_way(own, target)
        if found := re.search(r"revoked by file (.*)|is marked as revoked|WARNING: REVOKED HOST KEY", text):
            return ConnectError(
                f"the server shows a {self._kind} host key that {found[1] or 'known_hosts'} has revoked",
                "do not use this host before its administrator has explained it",
            )
        if "Host key verification failed" in text or "host key is known for" in text:
            return ConnectError(
                f"the server's {self._kind} host key is unknown",
                f"compare {self.host_key} with what its administrator says, then `{target.ssh}` once, or use "
                "--accept-new",
            )
        if found := _ALGORITHM.search(text):
            return ConnectError(
                f"the server has no {found[1]} in common with `ssh` here: it offers {found[2][:300]}",
                f"`{target.ssh}` fails alike: change Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms in "
                "~/.ssh/config or in its sshd_config",
            )
        if "Could not resolve hostname" in text:
            return unreached(socket.gaierror(), target, deadline)
        if found := re.search(r"connect to host .* port \d+: (.*)", text):
            number = _ERRNOS.get(found[1].strip(), 0)
            return unreached(OSError(number, found[1].strip()), target, deadline)
        if "Too many authentication failures" in text:
            return ConnectError(
                f"user {target.user}: the server hung up after {_keys(self._tried)} (too many authentication failures)",
                "name the right one with `identity_file:`; IdentitiesOnly yes keeps an ssh-agent's keys back",
            )
        if found := re.search(r"Permission denied \((.*)\)", text):
            return self._refused(found[1].split(","), target)
        if "timed out during banner exchange" in text:
            return without_banner(target, deadline)
        if not self._has("Remote protocol version"):
            answer = self._find(r"banner line 0: (.*)")
            if answer and not any(word.decode() in answer for word in DROPPED):
                return ConnectError(
                    f"what answers on port {target.port} is not SSH: it said {answer[:80]!r}", "set `port:`"
                )
            if found := re.search(
                r"could not read protocol version|[Ii]nvalid.*banner.*|banner line.*", text
            ):
                return ConnectError(
                    f"what answers on port {target.port} is not SSH: {found[0]}", "set `port:`"
                )
            if re.search(r"exchange_identification|Connection (closed|reset)", text):
                return Dropped()
        elif found := re.search(r"Protocol major versions differ.*", text):
            return ConnectError(f"what answers on port {target.port} is not SSH 2: {found[0]}", "set `port:`")
        if found := re.search(r"channel 0: open failed: (.*?)(: open failed)?$", text, re.MULTILINE):
            return ConnectError(
                f"the server logged in but refused a session ({found[1]})",
                f"raise MaxSessions there; does `{target.ssh} true` work?",
            )
        if _CONFIG.search(text):
            return ConnectError(
                f"ssh cannot use its configuration: {_plain('; '.join(own))}",
                "correct it, or give another file with --ssh-config",
            )
        if own and re.search(
            r"Connection (closed|reset)|Broken pipe|Received disconnect|Timeout, server", own[-1]
        ):
            return ConnectError(
                f"the server closed the connection during {self._stage}",
                "its own log says why (journalctl -u ssh there); may it start no more processes?",
            )
        last = f": {_plain(own[-1])}" if own else ""
        return ConnectError(f"ssh ended with exit status {code}{last}", f"does `{target.ssh} true` work?")

    # -- what it finds in the lines ---------------------------------------------------------------------------

    def _find(self, pattern: str) -> str:
        for line in self.lines:
            if found := re.search(pattern, line):
                return found[1]
        return ""

    def _has(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    @property
    def _kind(self) -> str:
        return self._find(r"debug1: Server host key: (\S+) ") or self._find(
            r"debug1: Server host certificate: (\S+) "
        )

    @property
    def _tried(self) -> list[str]:
        """The keys that were offered."""
        named = (re.match(r"debug1: Offering public key: (\S+)", line) for line in self.lines)
        return list(dict.fromkeys(found[1] for found in named if found))

    @property
    def _stage(self) -> str:
        return "the login" if self._has("SSH2_MSG_NEWKEYS received") else "the key exchange"

    def _late(self, own: list[str], target: Target, deadline: Deadline) -> ConnectError:
        """It is stuck: where, its log says."""
        if self._has("Executing proxy command") and not self._has("Remote protocol version"):
            return ConnectError(
                f"nothing came through its ProxyJump or ProxyCommand within {deadline}",
                f"does `{target.ssh} true` work?",
            )
        if not self._has("Connecting to ") and not self._has("Remote protocol version"):
            return ConnectError(
                f"ssh did not begin to connect within {deadline}: it looks up the name, runs a `Match exec`, or waits "
                "for a ControlMaster that does not answer",
                f"does `{target.ssh} true` work? `{target.ssh.replace('ssh', 'ssh -O exit', 1)}` ends a ControlMaster "
                "whose host is gone",
            )
        if not self._has("Connection established") and not self._has("Remote protocol version"):
            return unreached(TimeoutError(), target, deadline)
        if not self._has("Remote protocol version"):
            return without_banner(target, deadline)
        waits = f"; ssh said last: {_plain(own[-1])}" if own else ""
        if self._stage == "the login":
            return ConnectError(
                f"the login did not end within {deadline}{waits}",
                "does a key wait for a finger on its token, or does an ssh-agent not answer? is the host overloaded? "
                "give --connect-timeout",
            )
        return ConnectError(
            f"the key exchange did not end within {deadline}{waits}",
            "is the host overloaded (give --connect-timeout), or " + LARGE_PACKETS,
        )

    def _broken_way(self, own: list[str], target: Target) -> Exception:
        theirs = [line for line in own if not _FAR_END.search(line)]
        if not theirs:
            return Dropped()
        telling = [line for line in theirs if not line.startswith("stdio forwarding failed")] or theirs
        return ConnectError(
            f"the way through its ProxyJump or ProxyCommand failed: {_plain(telling[-1])}",
            f"does `{target.ssh} true` work?",
            absent=_ABSENT.search(telling[-1]) is not None,
        )

    def _changed(self, text: str, target: Target) -> ConnectError:
        found = re.search(r"Offending \S+ key in (.*):(\d+)", text)
        path = found[1] if found else "~/.ssh/known_hosts"
        place = f"{path}:{found[2]}" if found else "known_hosts"
        name = known_hosts_name(target.hostname, target.port)
        return ConnectError(
            f"the server's {self._kind} host key is not the one in {place}",
            f"either it was set up anew or someone stands between: compare {self.host_key} with what its "
            f"administrator says, then `ssh-keygen -R '{name}' -f {shlex.quote(path)}` and `{target.ssh}` once",
        )

    def _refused(self, methods: list[str], target: Target) -> ConnectError:
        asking = [method for method in _ASKING if method in methods]
        master = (
            f"tflaunch answers no question; log in once yourself: write `ControlMaster auto`, `ControlPath "
            f"~/.ssh/%C` and `ControlPersist 8h` for it into your ssh_config, then `{target.ssh}`; tflaunch goes "
            "through that connection"
        )
        user, takes = f"user {target.user}", ", ".join(methods)
        if found := self._find(r"(session request failed: .*)"):
            return ConnectError(
                f"{user}: the connection of its ControlMaster takes no more sessions ({found})",
                "raise MaxSessions in its sshd_config; each run takes one",
            )
        if self._has("with partial success"):
            return ConnectError(f"{user}: the server wants more than a key ({takes})", master)
        if "publickey" not in methods and not any("gssapi" in method for method in methods):
            return ConnectError(f"{user}: the server takes no keys, only {takes}", master)
        tried = self._tried
        if not tried:
            own = "name a key with `identity_file:` or IdentityFile, `ssh-add` one that is encrypted, or `kinit` where "
            return ConnectError(
                f"{user}: ssh had no key to offer; the server takes {takes}",
                f"{own}Kerberos is used" + (f"; {master}" if asking else ""),
            )
        if accepted := self._find(r"debug1: Server accepts key: (\S+)"):
            return ConnectError(
                f"{user}: the server would take key {accepted}, but ssh could not sign with it",
                f"is it encrypted? `ssh-add {shlex.quote(accepted)}` before; is its token there?",
            )
        return ConnectError(
            f"{user}: the server refused {_keys(tried)}"
            + (f"; it takes {takes}" if len(methods) > 1 else ""),
            f"put its public half into {target.user}'s authorized_keys there, or set `user:` or `identity_file:`"
            + (f"; where a key is not enough: {master}" if asking else ""),
        )


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _keys(tried: list[str]) -> str:
    return f"key {tried[0]}" if len(tried) == 1 else f"{len(tried)} keys: {', '.join(tried)}"


def _plain(line: str) -> str:
    """A line of ssh's for a sentence: without its name in front, the machine, which the row names, and a full stop."""
    return line.strip().removeprefix("ssh: ").rstrip(".")[:300]
