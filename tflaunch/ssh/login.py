"""From a stream to a login: the host key's check, the keys' turn, and a sentence for every failure."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence

import paramiko
from paramiko import PKey, SSHClient, Transport
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    IncompatiblePeer,
    SSHException,
)

from tflaunch.protocol.errors import ConnectError, NoThreads
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.config import SSH_PORT, Target, known_hosts_name, or_openssh
from tflaunch.ssh.keys import Offers
from tflaunch.ssh.known_hosts import KnownHosts, KnownKey, fingerprint
from tflaunch.ssh.transport import Deadline, NameTimeout, QuietPacketizer, Stream, TunedTransport, text

SLOW = "check the network between, or give --connect-timeout"
SILENT = "is it switched on? does a firewall stand between?"
# Nobody is there.  What this machine itself forbids or lacks says nothing of the host.
_ABSENT = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ETIMEDOUT)
# sshd says this instead of a banner when it has too many connections that did not log in yet.
DROPPED = (b"MaxStartups", b"Not allowed at this time")
# By the keyword of sshd_config: what it is, and one that every OpenSSH of the last ten years has.
_ALGORITHMS = {
    "KexAlgorithms": ("key exchange", "curve25519-sha256@libssh.org"),
    "HostKeyAlgorithms": ("kind of host key", ""),
    "Ciphers": ("cipher", "aes128-gcm@openssh.com"),
    "MACs": ("MAC for the ciphers in common", "hmac-sha2-256-etm@openssh.com"),
}


# What helps where a login asks.
_MASTER = "goes through the connection of a ControlMaster that you have logged in to"


class Dropped(Exception):
    """sshd closed the connection before its banner: it has too many at the moment."""


class HostKeyCheck:
    """Decides about the key that a server shows.

    paramiko's own tables know neither patterns nor revoked keys, and take time that grows with the square of the
    file.
    """

    def __init__(self, known: KnownHosts, target: Target, accept_new: bool) -> None:
        self._known = known
        self._target = target
        self._accept_new = accept_new or target.strict != "check"

    def transport(self, stream: Stream) -> Transport:
        """A transport that asks first for the kinds of key by which the server is known."""
        made = TunedTransport(stream, packetizer_class=QuietPacketizer)  # type: ignore[arg-type]
        kinds = {key.kind for key in self._lines() if not key.marker}
        options = made.get_security_options()
        # An RSA key is shown under the name of a signature: rsa-sha2-512.
        options.key_types = sorted(
            options.key_types,
            key=lambda name: name not in kinds and not ("rsa" in name and "ssh-rsa" in kinds),
        )
        stream.reader = made
        return made

    def accept(self, key: PKey) -> None:
        """Accept the key or raise ConnectError."""
        blob = key.asbytes()
        kind = key.get_name()
        lines = self._lines()
        revoked = [line for line in lines if line.marker == "@revoked" and line.blob == blob]
        if revoked:
            raise ConnectError(
                f"the server shows a {kind} host key that {revoked[0]} has revoked",
                "do not use this host before its administrator has explained it",
            )
        own = [line for line in lines if not line.marker]
        if any(line.blob == blob for line in own or self._portless()):
            return
        if own:
            line = next((line for line in own if line.kind == kind), own[0])
            raise ConnectError(
                f"the server's {kind} host key is not the one in {line}",
                f"either it was set up anew or someone stands between: compare {fingerprint(blob)} with what its "
                f"administrator says, then `ssh-keygen -R '{self._target.host_key_name}' "
                f"-f {line.path}` and `{self._target.ssh}` once",
            )
        if not self._accept_new:
            authority = any(line.marker == "@cert-authority" for line in lines)
            known = (
                f"compare {fingerprint(blob)} with what its administrator says, then `{self._target.ssh}` "
                "once, or use --accept-new"
            )
            raise ConnectError(
                f"the server's {kind} host key is unknown"
                + (
                    " (a @cert-authority line speaks of it, but certificates are not checked)"
                    if authority
                    else ""
                ),
                or_openssh(known, "checks certificates") if authority else known,
            )
        try:
            self._known.add(self._target.host_key_name, kind, blob, hashed=self._target.hash_known_hosts)
        except OSError as error:
            raise ConnectError(
                f"the new host key could not be written to {error.filename}: {error.strerror}",
                "make the file writable, or name another with UserKnownHostsFile",
            ) from None

    def _lines(self) -> list[KnownKey]:
        return self._known.lookup(self._target.host_key_name)

    def _portless(self) -> list[KnownKey]:
        # OpenSSH, too, takes a key for a name without a port as good on every port of that name.
        plain = known_hosts_name(self._target.hostname, SSH_PORT)
        return [line for line in self._known.lookup(plain) if not line.marker]


class Client(SSHClient):
    """What fabric's Connection opens: paramiko's own client looks ten times a second whether a step is done."""

    def __init__(self, transport: Transport, deadline: Deadline) -> None:
        super().__init__()
        self._transport = transport
        self._deadline = deadline
        self._exchanged = threading.Event()

    def connect(self, **_: object) -> None:  # type: ignore[override]
        """Begin; it does not wait."""
        self._transport.banner_timeout = self._deadline.left()
        self._transport.start_client(self._exchanged)

    def exchange_keys(self) -> None:
        """From the banner to a secret that both ends share; raises what paramiko raises."""
        self._exchanged.wait(self._deadline.left())
        if not self._transport.is_active():
            raise self._transport.get_exception() or SSHException("Negotiation failed.")


def log_in(transport: Transport, target: Target, offers: Offers, deadline: Deadline) -> None:
    """Offer one key after another until the server takes one; raises ConnectError."""
    tried: list[str] = []
    user = target.user
    for offer in offers.keys:
        answered = threading.Event()
        try:
            transport.auth_publickey(user, offer.key, answered)
            answered.wait(deadline.left())
            transport.auth_timeout = deadline.left()
            if more := transport.auth_handler.wait_for_response(answered):  # type: ignore[union-attr]
                raise ConnectError(
                    f"user {user}: the server wants more than a key ({', '.join(more)})",
                    or_openssh(
                        "tflaunch asks nothing while connecting: allow the key alone for this account",
                        _MASTER,
                    ),
                )
            return
        except BadAuthenticationType as error:
            raise ConnectError(
                f"user {user}: the server takes no keys, only {', '.join(error.allowed_types)}",
                or_openssh(
                    "set PubkeyAuthentication yes in its sshd_config",
                    "knows Kerberos (`kinit` before), and " + _MASTER
                    if any("gssapi" in kind for kind in error.allowed_types)
                    else _MASTER,
                ),
            ) from None
        except (SSHException, OSError, EOFError) as error:
            tried.append(offer.label)
            if deadline.passed:
                raise ConnectError(
                    f"user {user}: no answer to key {offer.label} within {deadline}",
                    "is the server overloaded, or does an ssh-agent not answer? try --connect-timeout",
                ) from None
            if not transport.is_active():
                raise _ended(user, tried, error) from None
    raise _refused(target, tried, offers)


def _ended(user: str, tried: Sequence[str], error: Exception) -> ConnectError:
    if isinstance(error, AuthenticationException):
        return ConnectError(
            f"user {user}: the server hung up after {_keys(tried)} (too many authentication failures?)",
            "name the right one with `identity_file:`; IdentitiesOnly yes keeps an ssh-agent's keys back",
        )
    return ConnectError(f"user {user}: the login broke off at {tried[-1]} ({text(error)})", SLOW)


def _refused(target: Target, tried: Sequence[str], offers: Offers) -> ConnectError:
    user, reasons = target.user, "".join(f"; skipped {reason}" for reason in offers.skipped)
    beyond = [*target.beyond, *["FIDO tokens"] * offers.token]

    def remedy(usual: str) -> str:
        return or_openssh(usual, f"knows {', '.join(beyond)}") if beyond else usual

    if not tried:
        return ConnectError(
            f"user {user}: there is no key to offer{reasons}",
            remedy(
                offers.remedy
                or "name one with `identity_file:` or IdentityFile, or make one with `ssh-keygen`"
            ),
        )
    return ConnectError(
        f"user {user}: the server refused {_keys(tried)}{reasons}",
        remedy(
            offers.remedy
            or f"put its public half into {user}'s authorized_keys there, or set `user:` or `identity_file:`"
        ),
    )


def unreached(error: Exception, target: Target, deadline: Deadline) -> ConnectError:
    """Why no stream could be opened."""
    port = f"port {target.port}"
    if isinstance(error, NameTimeout):
        return ConnectError(
            f"the name look-up took longer than {deadline}", "is the name server up?", absent=True
        )
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectError(
            "the name does not resolve",
            f"check the spelling of {_name(target)}, or give it a HostName in ~/.ssh/config",
            absent=True,
        )
    if isinstance(error, OSError):
        known = {
            errno.ECONNREFUSED: (f"{port} refuses the connection", "is sshd running there? else set `port:`"),
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
            return ConnectError(*known[error.errno], absent=error.errno in _ABSENT)
    return ConnectError(f"{port} could not be dialled: {text(error)}", f"does `{target.ssh} true` work?")


def explained(
    error: Exception, transport: Transport, target: Target, stream: Stream, deadline: Deadline
) -> Exception:
    """Why a stream did not become an SSH connection."""
    if isinstance(error, ConnectError):
        return error
    if NoThreads.cause_of(error):
        return NoThreads()
    if not transport.remote_version:
        return _bannerless(error, target, stream, deadline)
    stage = "the login" if transport.initial_kex_done else "the key exchange"
    if stream.unacknowledged:
        return ConnectError(
            f"{stage} stopped: the server's banner came, but it has not acknowledged what was sent after it",
            LARGE_PACKETS,
        )
    if deadline.passed:
        return ConnectError(
            f"{stage} did not end within {deadline}",
            "is the host overloaded (give --connect-timeout), or " + LARGE_PACKETS,
        )
    if isinstance(error, IncompatiblePeer):
        return _incompatible(error, transport)
    if stream.ended and not transport.is_active():
        return ConnectError(
            f"the server closed the connection during {stage}",
            "its own log says why (journalctl -u ssh there); may it start no more processes?",
        )
    return ConnectError(f"{stage} failed: {text(error)}", f"does `{target.ssh} true` work?")


def _incompatible(error: IncompatiblePeer, transport: Transport) -> ConnectError:
    """What this side lacks: it may be less than `ssh` has, so that nothing may be wrong with the server."""
    lacking = transport.lacking() if isinstance(transport, TunedTransport) else None
    if lacking is None:
        return ConnectError(
            f"the server has no algorithm in common with tflaunch: {error}", "update its sshd"
        )
    keyword, theirs, ours = lacking
    what, wanted = _ALGORITHMS[keyword]
    remedy = (
        "make one there with `ssh-keygen -A`, and name it by HostKey"
        if keyword == "HostKeyAlgorithms"
        else f"have {wanted} added to {keyword}"
    )
    return ConnectError(
        f"the server allows no {what} that tflaunch has, though `ssh` may have one: it offers {_names(theirs)}; "
        f"tflaunch (by paramiko {paramiko.__version__}) has {_names(ours)}",
        or_openssh(f"{remedy} in its sshd_config", "may have one"),
    )


def _names(algorithms: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in algorithms[:12]) + ", ..." * (len(algorithms) > 12) or "none"


def _bannerless(error: Exception, target: Target, stream: Stream, deadline: Deadline) -> Exception:
    head = stream.head
    if any(word in head for word in DROPPED):
        return Dropped()
    if head and b"SSH-" not in head:
        line = head.splitlines()[0][:80].decode(errors="replace")
        return ConnectError(f"what answers on port {target.port} is not SSH: it said {line!r}", "set `port:`")
    if stream.child and stream.ended and stream.child.failed():
        return ConnectError(
            f"ProxyCommand failed: {stream.child.last_words()}", f"try it alone: `{target.proxy_command}`"
        )
    if deadline.passed:
        return without_banner(target, deadline)
    if stream.ended:
        return Dropped()
    return ConnectError(f"the SSH banner could not be read: {text(error)}", f"does `{target.ssh} true` work?")


def without_banner(target: Target, deadline: Deadline) -> ConnectError:
    """What accepts connections has not said that it is an SSH server."""
    return ConnectError(
        f"connected, but no SSH banner on port {target.port} within {deadline}",
        "is it sshd that listens there? is the host overloaded?",
    )


def _name(target: Target) -> str:
    return "{host}" if target.hostname == target.name and target.ssh.endswith("{host}") else target.hostname


def _keys(tried: Sequence[str]) -> str:
    return f"key {tried[0]}" if len(tried) == 1 else f"{len(tried)} keys: {', '.join(tried)}"
