"""The sentences for an SSH connection that did not come about: what happened, with its numbers, and what to do next."""

from __future__ import annotations

import difflib
import errno
import shutil
import socket
from collections.abc import Sequence

from tflaunch.inputs.engine_words import engines
from tflaunch.protocol.errors import ConnectError, NoThreads
from tflaunch.sessions.socket_tools import text
from tflaunch.ssh.deadline import BindError, Deadline, NameTimeout
from tflaunch.ssh.refused_keys import RefusedKey
from tflaunch.ssh.target import Target

CORRECT = "correct it, or give another file with --ssh-config"  # an ssh_config
SLOW = "check the network between, or give --connect-timeout"
SILENT = "is it switched on? does a firewall stand between?"
# No connection to sshd at all.  What this machine itself forbids or lacks (EACCES, EMFILE) says nothing of the host.
_ABSENT = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ETIMEDOUT)


def key_list(labels: Sequence[str]) -> str:
    """`key ~/.ssh/a`, or `2 keys: ~/.ssh/a, ~/.ssh/b`."""
    return f"key {labels[0]}" if len(labels) == 1 else f"{len(labels)} keys: {', '.join(labels)}"


def or_openssh(remedy: str, advantage: str) -> str:
    """The remedy, and the system's `ssh` as another, whose `advantage` the sentence names, if `ssh` is installed."""
    other = "`connection: openssh` in the hostfile (or --connection openssh) has the system's `ssh` connect, which "
    if shutil.which("ssh") is None:
        return remedy
    return f"{remedy}; or {other}{advantage}"


def unreached(error: Exception, target: Target, deadline: Deadline) -> ConnectError:
    """Why there is no TCP connection to the target, or why its ProxyCommand could not be started."""
    port = f"port {target.port}"
    if isinstance(error, NameTimeout):
        return ConnectError(
            f"the name look-up took longer than {deadline}", "is the name server up?", absent=True
        )
    if isinstance(error, BindError):
        return ConnectError(
            f"this machine cannot dial from {target.bind_address}, which BindAddress names",
            "correct it in ssh_config: `ip address` lists what this machine has",
        )
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectError(
            "the name does not resolve",
            f"check the spelling of {_name(target)}, or give it a HostName in ~/.ssh/config{_or_slots(target)}",
            absent=True,
        )
    if isinstance(error, OSError):
        known = {
            errno.ECONNREFUSED: (
                f"{port} refuses the connection",
                "is sshd running there? if it listens on another port, set `port:`",
            ),
            errno.EHOSTUNREACH: ("there is no route to it", "is it switched on, and is the network up?"),
            errno.ENETUNREACH: ("there is no route to its network", "is the network or the VPN up?"),
            errno.EHOSTDOWN: ("there is no route to it", "is it switched on, and is the network up?"),
            errno.ETIMEDOUT: (f"no answer on {port}", SILENT),
            errno.EACCES: (f"this machine forbids the connection to {port}", "look at its own firewall"),
            errno.EPERM: (f"this machine forbids the connection to {port}", "look at its own firewall"),
            errno.EAGAIN: (NoThreads().message, NoThreads().hint),
            errno.EMFILE: ("this machine has no file descriptors left", "raise `ulimit -n`"),
        }
        if isinstance(error, TimeoutError):
            return ConnectError(f"no answer on {port} within {deadline}", SILENT, absent=True)
        if error.errno in known:
            refused = error.errno == errno.ECONNREFUSED
            return ConnectError(*known[error.errno], absent=error.errno in _ABSENT, again=refused)
    return ConnectError(f"{port} could not be dialled: {text(error)}", f"does `{target.ssh} true` work?")


def without_banner(target: Target, deadline: Deadline) -> ConnectError:
    """Why there is no login where something accepts the connection, but sends no SSH banner."""
    return ConnectError(
        f"connected, but no SSH banner on port {target.port} within {deadline}",
        "does sshd listen there, or something else? is the host overloaded?",
    )


def not_ssh(target: Target, answer: str) -> ConnectError:
    """Why there is no login where something other than sshd answers; `answer` quotes it."""
    return ConnectError(
        f"what answers on port {target.port} is not SSH: {answer}", "set `port:` to the port of sshd"
    )


def key_revoked(kind: str, place: str) -> ConnectError:
    """Why tflaunch refuses a host whose key is revoked; `place` is the line, or the file, that says so."""
    return ConnectError(
        f"the server shows a {_key(kind)} that {place} has revoked",
        "do not use this host before its administrator has explained it",
    )


def key_unknown(kind: str, fingerprint: str, target: Target, *, certificates: bool = False) -> ConnectError:
    """Why tflaunch refuses a host whose key no known_hosts file has; `certificates`: but one of its authority."""
    message = f"the server's {_key(kind)} is unknown"
    otherwise = ""
    if certificates:
        message += " (a @cert-authority line speaks of it, but certificates are not checked)"
        otherwise = or_openssh("", "checks certificates")
    compared = fingerprint or "its fingerprint, which it has not shown again,"
    remedy = (
        f"compare {compared} with what its administrator says, then `{target.ssh}` once, or use --accept-new"
    )
    return RefusedKey(message, remedy + otherwise, kind=kind, fingerprint=fingerprint, otherwise=otherwise)


def key_changed(
    kind: str, place: str, fingerprint: str, forget: str, target: Target, *, known_as: str
) -> ConnectError:
    """Why tflaunch refuses a host whose key is not the one at `place`, which `known_as` begins; `forget` removes it."""
    compared = fingerprint or "its fingerprint, which it has not shown again,"
    return RefusedKey(
        f"the server's {_key(kind)} is not the one in {place}",
        f"either the host was installed anew or someone intercepts the connection: compare {compared} with what its "
        f"administrator says, then `{forget}` and `{target.ssh}` once",
        kind=kind,
        fingerprint=fingerprint,
        place=place,
        known_as=known_as,
    )


def too_many_keys(user: str, labels: Sequence[str]) -> ConnectError:
    """Why there is no login where sshd hung up after too many keys (its MaxAuthTries)."""
    return ConnectError(
        f"user {user}: the server hung up after {key_list(labels)} (too many authentication failures?)",
        "name the right one with `identity_file:`; IdentitiesOnly yes keeps an ssh-agent's keys back",
    )


def closed_during(stage: str) -> ConnectError:
    """Why there is no login where sshd closed the connection during `stage` and gave no reason."""
    return ConnectError(
        f"the server closed the connection during {stage}",
        "the server's log says why: journalctl -u ssh there; perhaps it can start no more processes",
        again=True,
    )


def session_refused(reason: str, target: Target) -> ConnectError:
    """Why no command runs where sshd refuses a session after the login."""
    return ConnectError(
        f"the server logged in but refused a session ({reason})",
        f"raise MaxSessions there; does `{target.ssh} true` work?",
    )


def _key(kind: str) -> str:
    return f"{kind} host key".strip()


def _or_slots(target: Target) -> str:
    """How slots are written of an engine whose word this host's name is like, to be added to a hint."""
    name, words = target.name.lower(), engines()
    near = [word for word in words if len(name) > 2 and word.startswith(name)]
    near += difflib.get_close_matches(name, words, 1, 0.75)
    return f"; slots of an engine are written {near[0]}:4, with their number" if near else ""


def _name(target: Target) -> str:
    return "{host}" if target.hostname == target.name and target.ssh.endswith("{host}") else target.hostname
