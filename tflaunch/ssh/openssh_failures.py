"""Why the system's `ssh` did not log in, by its log and its exit status; the same sentences as for paramiko's login."""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket

from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import DROPPED, Dropped
from tflaunch.ssh.failures import (
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
from tflaunch.ssh.openssh_log import SshLog, plain, signal_name
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
    r"Can't open user config file|line \d+: |command-line: line 0|Unsupported option|no argument after keyword"
)
_ALGORITHM = re.compile(r"Unable to negotiate with .*?: no matching (.+?) found\. Their offer: (.*)")
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


def why_not(log: SshLog, code: int | None, target: Target, deadline: Deadline) -> Exception:
    """Why there is no login: a ConnectError, or Dropped; `code` is ssh's exit status, None: it runs at the deadline."""
    messages = log.messages
    text = "\n".join(messages)
    if log.changed:
        return _changed_key(log, text, target)
    if code is None:
        return _late(log, target, deadline)
    if code < 0:
        return ConnectError(f"{signal_name(code)} has ended ssh before the login", "try again")
    if log.has("Executing proxy command") and not log.has_banner and not log.has("Server host key:"):
        return _broken_way(messages, target)
    reason = (
        _of_host_key(log, text, target)
        or _of_dial(text, target, deadline)
        or _of_user(log, text, target)
        or _of_banner(log, text, target, deadline)
    )
    if reason:
        return reason
    if found := re.search(r"channel 0: open failed: (.*?)(: open failed)?$", text, re.MULTILINE):
        return session_refused(found[1], target)
    if _CONFIG.search(text):
        return ConnectError(
            f"ssh cannot use its configuration: {plain('; '.join(messages))}",
            "correct it, or give another file with --ssh-config",
        )
    last = messages[-1] if messages else ""
    if re.search(r"Connection (closed|reset)|Broken pipe|Received disconnect|Timeout, server", last):
        return closed_during(log.stage)
    said = f": {plain(last)}" if last else ""
    return ConnectError(f"ssh ended with exit status {code}{said}", f"does `{target.ssh} true` work?")


def _of_host_key(log: SshLog, text: str, target: Target) -> ConnectError | None:
    kind = log.host_key_kind
    if found := re.search(r"revoked by file (.*)|is marked as revoked|WARNING: REVOKED HOST KEY", text):
        return key_revoked(kind, found[1] or "known_hosts")
    if "Host key verification failed" in text or "host key is known for" in text:
        return key_unknown(kind, log.host_key, target)
    if found := _ALGORITHM.search(text):
        return ConnectError(
            f"the server has no {found[1]} in common with `ssh` here: it offers {found[2][:300]}",
            f"`{target.ssh}` fails alike: change Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms in "
            "~/.ssh/config or in its sshd_config",
        )
    return None


def _of_dial(text: str, target: Target, deadline: Deadline) -> ConnectError | None:
    if "Could not resolve hostname" in text:
        return unreached(socket.gaierror(), target, deadline)
    if found := re.search(r"connect to host .* port \d+: (.*)", text):
        number = _ERRNOS.get(found[1].strip(), 0)
        return unreached(OSError(number, found[1].strip()), target, deadline)
    return None


def _of_user(log: SshLog, text: str, target: Target) -> ConnectError | None:
    if "Too many authentication failures" in text:
        return too_many_keys(target.user, log.offered)
    if found := re.search(r"Permission denied \(([^()\n]*)\)", text):
        return _refused(log, found[1].split(","), target)
    return None


def _of_banner(log: SshLog, text: str, target: Target, deadline: Deadline) -> Exception | None:
    if "timed out during banner exchange" in text:
        return without_banner(target, deadline)
    if log.has_banner:
        found = re.search(r"Protocol major versions differ.*", text)
        return not_ssh(target, found[0]) if found else None
    answer = log.find(r"banner line 0: (.*)")
    if answer and not any(word.decode() in answer for word in DROPPED):
        return not_ssh(target, f"it said {answer[:80]!r}")
    if found := re.search(r"could not read protocol version|[Ii]nvalid.*banner.*|banner line.*", text):
        return not_ssh(target, found[0])
    if re.search(r"exchange_identification|Connection (closed|reset)", text):
        return Dropped()
    return None


def _late(log: SshLog, target: Target, deadline: Deadline) -> ConnectError:
    """Why ssh, which still runs, has not logged in."""
    if log.has("Executing proxy command") and not log.has_banner:
        return ConnectError(
            f"nothing came through its ProxyJump or ProxyCommand within {deadline}",
            f"does `{target.ssh} true` work?",
        )
    if not log.has("Connecting to ") and not log.has_banner:
        return ConnectError(
            f"ssh did not begin to connect within {deadline}: it looks up the name, runs a `Match exec`, or waits "
            "for a ControlMaster that does not answer",
            f"does `{target.ssh} true` work? `{target.ssh.replace('ssh', 'ssh -O exit', 1)}` ends a ControlMaster "
            "whose host is gone",
        )
    if not log.has("Connection established") and not log.has_banner:
        return unreached(TimeoutError(), target, deadline)
    if not log.has_banner:
        return without_banner(target, deadline)
    messages = log.messages
    waits = f"; ssh said last: {plain(messages[-1])}" if messages else ""
    if log.stage == "the login":
        return ConnectError(
            f"the login did not end within {deadline}{waits}",
            "does a key wait for a finger on its token, or does an ssh-agent not answer? is the host overloaded? "
            "give --connect-timeout",
        )
    return ConnectError(
        f"the key exchange did not end within {deadline}{waits}",
        "is the host overloaded (give --connect-timeout), or " + LARGE_PACKETS,
    )


def _broken_way(messages: list[str], target: Target) -> Exception:
    theirs = [line for line in messages if not _FAR_END.search(line)]
    if not theirs:
        return Dropped()
    telling = [line for line in theirs if not line.startswith("stdio forwarding failed")] or theirs
    return ConnectError(
        f"the way through its ProxyJump or ProxyCommand failed: {plain(telling[-1])}",
        f"does `{target.ssh} true` work?",
        absent=_ABSENT.search(telling[-1]) is not None,
    )


def _changed_key(log: SshLog, text: str, target: Target) -> ConnectError:
    found = re.search(r"Offending \S+ key in (.*):(\d+)", text)
    path = found[1] if found else "~/.ssh/known_hosts"
    place = f"{path}:{found[2]}" if found else "known_hosts"
    name = known_hosts_name(target.hostname, target.port)
    forget = f"ssh-keygen -R '{name}' -f {shlex.quote(path)}"
    return key_changed(log.host_key_kind, place, log.host_key, forget, target, known_as=name)


def _refused(log: SshLog, methods: list[str], target: Target) -> ConnectError:
    asking = [method for method in _ASKING if method in methods]
    master = (
        f"tflaunch answers no question; log in once yourself: write `ControlMaster auto`, `ControlPath "
        f"~/.ssh/%C` and `ControlPersist 8h` for it into your ssh_config, then `{target.ssh}`; tflaunch goes "
        "through that connection"
    )
    user, takes = f"user {target.user}", ", ".join(methods)
    if found := log.find(r"(session request failed: .*)"):
        return ConnectError(
            f"{user}: the connection of its ControlMaster takes no more sessions ({found})",
            "raise MaxSessions in its sshd_config; each run takes one",
        )
    if log.has("with partial success"):
        return ConnectError(f"{user}: the server wants more than a key ({takes})", master)
    if "publickey" not in methods and not any("gssapi" in method for method in methods):
        return ConnectError(f"{user}: the server takes no keys, only {takes}", master)
    tried = log.offered
    if not tried:
        own = "name a key with `identity_file:` or IdentityFile, `ssh-add` one that is encrypted, or `kinit` where "
        return ConnectError(
            f"{user}: ssh had no key to offer; the server takes {takes}",
            f"{own}Kerberos is used" + (f"; {master}" if asking else ""),
        )
    if accepted := log.find(r"debug1: Server accepts key: (\S+)"):
        return ConnectError(
            f"{user}: the server would take key {accepted}, but ssh could not sign with it",
            f"is it encrypted? `ssh-add {shlex.quote(accepted)}` before; is its token there?",
        )
    return ConnectError(
        f"{user}: the server refused {key_list(tried)}" + (f"; it takes {takes}" if len(methods) > 1 else ""),
        f"put its public half into {target.user}'s authorized_keys there, or set `user:` or `identity_file:`"
        + (f"; where a key is not enough: {master}" if asking else ""),
    )
