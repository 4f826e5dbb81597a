"""Why the system's `ssh` did not log in, by its log and its exit status; the same sentences as for paramiko's login."""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
from collections.abc import Callable

from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.outcome import signal_named
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import DROPPED, Dropped
from tflaunch.ssh.failures import (
    CORRECT,
    closed_during,
    key_changed,
    key_list,
    key_revoked,
    key_unknown,
    not_ssh,
    session_refused,
    too_many_keys,
    unreached,
    without_banner,
)
from tflaunch.ssh.openssh_log import SshLog, plain
from tflaunch.ssh.target import Target, known_hosts_name

# How ssh words the errors of the system, in the user's locale.
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
    r"Can't open user config file|line \d+: |command-line: line 0|Unsupported option|no argument after keyword|"
    r"percent_expand: |tilde_expand|nvironment variable"
)
_ALGORITHM = re.compile(r"(?m)^Unable to negotiate with .*?: no matching (.+?) found\. Their offer: (.*)")
# What the outer `ssh` says when the one that leads to a jump host has ended.
_FAR_END = re.compile(
    r"(kex|ssh)_exchange_identification|Connection (closed|reset) by UNKNOWN|banner exchange"
)
# What the ssh that leads to a jump host says when it, or the jump host, gets no TCP connection.
_ABSENT = re.compile(
    r"Could not resolve hostname|connect to host .*: (?!Permission denied|Operation not permitted)|"
    r"open failed: connect failed"
)
# Methods that ask the user a question.
_ASKING = ("keyboard-interactive", "password")


# The server's key as ssh itself has written it: its kind and its fingerprint, both "" where it has not.
Shown = tuple[str, str]


def why_not(
    log: SshLog, code: int | None, target: Target, deadline: Deadline, shown: Callable[[], Shown]
) -> Exception:
    """Why there is no login: a ConnectError, or Dropped; `code` is ssh's exit status, None: it runs at the deadline.

    `shown` finds out which key the server has, where the log cannot be believed.
    """
    if code is None:
        return _late(log, target, deadline)
    if code < 0:
        return ConnectError(f"{signal_named(-code)} has ended ssh before the login", "try again")
    if (
        log.has("debug1: Executing proxy command")
        and not log.has_banner
        and not log.has("debug1: Server host")
    ):
        return _broken_way(log, target)
    messages = log.messages or ([] if log.own else log.words)  # without a log it did not come as far as that
    text = "\n".join(messages)
    reason = (
        _of_host_key(log, text, target, shown)
        or _of_dial(text, target, deadline)
        or _of_user(log, target)
        or _of_banner(log, text, target, deadline)
    )
    if reason:
        return reason
    if found := log.find_later(r"channel 0: open failed: (.*?)(?:: open failed)?$"):
        return session_refused(plain(found)[:100], target)
    if _CONFIG.search(text) and not log.has_banner:
        return ConnectError(f"ssh cannot use its configuration: {plain('; '.join(messages))}", CORRECT)
    last = (log.words_of_login or messages or [""])[-1]
    whose = "the last line of its log, which may be the server's: " if log.words_of_login else ""
    if re.match(
        r"Connection (closed|reset)|Disconnected from |.*Broken pipe|Received disconnect|Timeout, server",
        last,
    ):
        return closed_during(log.stage)
    said = f": {whose}{plain(last)}" if last else ""
    return ConnectError(f"ssh ended with exit status {code}{said}", f"does `{target.ssh} true` work?")


def _of_host_key(log: SshLog, text: str, target: Target, shown: Callable[[], Shown]) -> ConnectError | None:
    if log.meddled:
        return ConnectError(
            "the server wrote into ssh's log before its key had been checked, as no sshd does, and there is no login",
            f"someone may intercept the connection: `{target.ssh}` shows what ssh says",
        )
    if found := re.search(r"^Host key .* revoked by file (.*)$", text, re.MULTILINE):
        return key_revoked(log.host_key_kind, found[1])
    if re.search(r"^@ +WARNING: REVOKED HOST KEY DETECTED", text, re.MULTILINE):
        return key_revoked(log.host_key_kind, "known_hosts")
    if found := re.search(
        r"^Error checking host key .* in revoked keys file (.*): (.*)$", text, re.MULTILINE
    ):
        return ConnectError(
            f"RevokedHostKeys {found[1]}: {found[2]}; `ssh` refuses every host then",
            "name a file that can be read",
        )
    if re.search(r"^@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED", text, re.MULTILINE):
        return _changed_key(log, text, target, shown)
    if re.search(r"^Host key verification failed|^No \S+ host key is known for", text, re.MULTILINE):
        kind, fingerprint = shown()
        return key_unknown(kind or log.host_key_kind, fingerprint, target)
    if log.certified and log.stage == "the key exchange":
        kind, fingerprint = shown()
        return ConnectError(
            "ssh does not trust the server's host certificate, or the connection broke there",
            f"`{target.ssh}` says which; does a @cert-authority line in known_hosts name its authority?"
            + (f" its plain {kind} key is {fingerprint}" if fingerprint else ""),
        )
    if found := _ALGORITHM.search(text):
        return ConnectError(
            f"the server has no {found[1]} in common with `ssh` here: it offers {found[2][:300]}",
            f"`{target.ssh}` fails alike: change Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms in "
            "~/.ssh/config or in its sshd_config",
        )
    return None


def _of_dial(text: str, target: Target, deadline: Deadline) -> ConnectError | None:
    if re.search(r"^(ssh: )?Could not resolve hostname", text, re.MULTILINE):
        return unreached(socket.gaierror(), target, deadline)
    if found := re.search(r"^(?:ssh: )?connect to host .* port \d+: (.*)$", text, re.MULTILINE):
        number = _ERRNOS.get(found[1].strip(), 0)
        return unreached(OSError(number, found[1].strip()), target, deadline)
    return None


def _of_user(log: SshLog, target: Target) -> ConnectError | None:
    """What the server says of the login; through a ControlMaster's connection, what its owner was told."""
    for line in (*log.own, *log.later):
        if re.match(r"Received disconnect .*: Too many authentication failures", line):
            return too_many_keys(target.user, _named(log.offered))
        if found := re.match(r"(?!debug).*: Permission denied \((.*)\)", line):
            methods = [name for name in found[1].split(",") if re.fullmatch(r"[\w.@-]{1,64}", name)]
            return _refused(log, methods[:8], target)
    return None


def _of_banner(log: SshLog, text: str, target: Target, deadline: Deadline) -> Exception | None:
    if re.search(r"^Connection timed out during banner exchange", text, re.MULTILINE):
        return without_banner(target, deadline)
    if log.has_banner:
        found = re.search(r"^Protocol major versions differ.*", text, re.MULTILINE)
        return not_ssh(target, found[0]) if found else None
    answer = log.find(r"debug1: (?:kex|ssh)_exchange_identification: (?:banner line 0: )?(.*)")
    if answer and not any(word.decode() in answer for word in DROPPED):
        return not_ssh(target, f"it said {answer[:80]!r}")
    if found := re.search(r".*could not read protocol version|.*[Ii]nvalid.*banner.*|.*banner line.*", text):
        return not_ssh(target, found[0])
    if re.search(r"exchange_identification|Connection (closed|reset)", text):
        return Dropped()
    return None


def _late(log: SshLog, target: Target, deadline: Deadline) -> ConnectError:
    """Why ssh, which still runs, has not logged in."""
    if log.has("debug1: Executing proxy command") and not log.has_banner:
        return ConnectError(
            f"nothing came through its ProxyJump or ProxyCommand within {deadline}",
            f"does `{target.ssh} true` work?",
        )
    if not log.has("debug1: Connecting to ") and not log.has_banner:
        return ConnectError(
            f"ssh did not begin to connect within {deadline}: it looks up the name, runs a `Match exec`, or waits "
            "for a ControlMaster that does not answer",
            f"does `{target.ssh} true` work? `{target.ssh.replace('ssh', 'ssh -O exit', 1)}` ends a ControlMaster "
            "whose host is gone",
        )
    if not log.has("debug1: Connection established") and not log.has_banner:
        return unreached(TimeoutError(), target, deadline)
    if not log.has_banner:
        return without_banner(target, deadline)
    # On stderr may be ssh, who asks for a finger on a token, or the host with its banner.
    waits = f"; the last words were {plain(log.words[-1])!r}" if log.words else ""
    if log.stage == "the login":
        return ConnectError(
            f"the login did not end within {deadline}{waits}",
            "does a key wait for a finger on its token, or does an ssh-agent not answer? is the host overloaded? "
            "give --connect-timeout",
        )
    return ConnectError(
        f"the key exchange did not end within {deadline}",
        "is the host overloaded (give --connect-timeout), or " + LARGE_PACKETS,
    )


def _broken_way(log: SshLog, target: Target) -> Exception:
    """Why there is no stream: in the words of whoever should have led there."""
    theirs = [line for line in log.words if not _FAR_END.search(line)]
    if not theirs:
        return Dropped()
    telling = [line for line in theirs if not line.startswith("stdio forwarding failed")] or theirs
    return ConnectError(
        f"the way through its ProxyJump or ProxyCommand failed; it said: {plain(telling[-1])}",
        f"does `{target.ssh} true` work?",
        absent=_ABSENT.search(telling[-1]) is not None,
    )


def _changed_key(log: SshLog, text: str, target: Target, shown: Callable[[], Shown]) -> ConnectError:
    found = re.search(r"^Offending \S+ key in (.*):(\d+)$", text, re.MULTILINE)
    path = found[1] if found else "~/.ssh/known_hosts"
    place = f"{path}:{found[2]}" if found else "known_hosts"
    name = target.host_key_name or known_hosts_name(target.hostname, target.port)
    forget = f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(path)}"
    kind, fingerprint = shown()
    return key_changed(kind or log.host_key_kind, place, fingerprint, forget, target, known_as=name)


def _named(offered: list[str]) -> list[str]:
    """What to call the keys that ssh has offered; the host might have written the list: only files are named."""
    files = [label for label in offered if os.path.isfile(os.path.expanduser(label))]  # noqa: PTH111, PTH113
    others = len(offered) - len(files)
    return [
        *files,
        *(["1 of an ssh-agent"] if others == 1 else [f"{others} of an ssh-agent"] if others else []),
    ]


def _refused(log: SshLog, methods: list[str], target: Target) -> ConnectError:
    asking = [method for method in _ASKING if method in methods]
    master = (
        f"tflaunch answers no question; log in once yourself: write `ControlMaster auto`, `ControlPath "
        f"~/.ssh/%C` and `ControlPersist 8h` for it into your ssh_config, then `{target.ssh}`; tflaunch goes "
        "through that connection"
    )
    user, takes = f"user {target.user}", ", ".join(methods)
    if found := log.find(r"mux_client_request_session: (session request failed: .*)"):
        return ConnectError(
            f"{user}: the connection of its ControlMaster takes no more sessions ({found})",
            "raise MaxSessions in its sshd_config; each run takes one",
        )
    if any("with partial success" in line for line in log.later):
        return ConnectError(f"{user}: the server wants more than a key ({takes})", master)
    if "publickey" not in methods and not any("gssapi" in method for method in methods):
        return ConnectError(f"{user}: the server takes no keys, only {takes}", master)
    tried = _named(log.offered)
    if not tried:
        own = "name a key with `identity_file:` or IdentityFile, `ssh-add` one that is encrypted, or `kinit` where "
        return ConnectError(
            f"{user}: ssh had no key to offer; the server takes {takes}",
            f"{own}Kerberos is used" + (f"; {master}" if asking else ""),
        )
    accepted = _named(
        [found] if (found := log.find_later(r"debug1: Server accepts key: (.*?) \S+ SHA256:")) else []
    )
    if accepted:
        add = (
            "`ssh-add` it before"
            if accepted[0].endswith("ssh-agent")
            else f"`ssh-add {shlex.quote(accepted[0])}` before"
        )
        return ConnectError(
            f"{user}: the server would take key {accepted[0]}, but ssh could not sign with it",
            f"is it encrypted? {add}; is its token there?",
        )
    return ConnectError(
        f"{user}: the server refused {key_list(tried)}" + (f"; it takes {takes}" if len(methods) > 1 else ""),
        f"put its public half into {target.user}'s authorized_keys there, or set `user:` or `identity_file:`"
        + (f"; where a key is not enough: {master}" if asking else ""),
    )
