"""From a stream to a login: banner, key exchange, the server's key, the user's keys; a sentence for every failure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import paramiko
from paramiko import SSHClient, Transport
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    IncompatiblePeer,
    SSHException,
)

from tflaunch.protocol.errors import ConnectError, NoThreads
from tflaunch.sessions.wires import LARGE_PACKETS
from tflaunch.ssh.algorithms import Algorithms
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import DROPPED, Dropped
from tflaunch.ssh.failures import (
    SLOW,
    closed_during,
    key_list,
    not_ssh,
    or_openssh,
    text,
    too_many_keys,
    without_banner,
)
from tflaunch.ssh.host_key import HostKeyCheck
from tflaunch.ssh.keys import Offer, Offers
from tflaunch.ssh.target import Target, shortened
from tflaunch.ssh.transport import QuietPacketizer, SshStream, TunedTransport

# Keyword of sshd_config -> what it is about, and an algorithm that every OpenSSH of the last ten years has.
_ALGORITHMS = {
    "KexAlgorithms": ("key exchange", "curve25519-sha256@libssh.org"),
    "HostKeyAlgorithms": ("kind of host key", ""),
    "Ciphers": ("cipher", "aes128-gcm@openssh.com"),
    "MACs": ("MAC for the ciphers in common", "hmac-sha2-256-etm@openssh.com"),
}
# Keyword of ssh_config -> the attribute of paramiko's options.
_ATTRIBUTES = {
    "ciphers": "ciphers",
    "macs": "digests",
    "kexalgorithms": "kex",
    "hostkeyalgorithms": "key_types",
}
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # the signatures that an RSA key makes
# How the system's `ssh` helps where a login asks questions.
_MASTER = "goes through the connection of a ControlMaster that you have logged in to"


class LoginClient(SSHClient):
    """paramiko's client, as fabric's Connection opens it, with tflaunch's login.

    paramiko's own looks ten times a second whether a step is done, knows no deadline over all steps, and reads
    keys and known_hosts for each host anew.
    """

    def __init__(
        self, target: Target, check: HostKeyCheck, offers: Callable[[Target], Offers], deadline: Deadline
    ) -> None:
        super().__init__()
        self._target = target
        self._check = check
        self._offers = offers
        self._deadline = deadline
        self._exchanged = threading.Event()  # both ends share a secret, or never will
        self._started = False
        self.stream: SshStream  # once it is started
        self.host_key = b""  # the server's, as SSH sends it, once it has been accepted

    def start(self, stream: SshStream) -> None:
        """Begin the handshake, which a thread of paramiko's continues; raises ConnectError."""
        self._started, self.stream = True, stream
        self._transport = transport = _transport(stream, self._check.kinds)
        with self._explaining():
            _restrict(transport, self._target.algorithms)
            transport.banner_timeout = self._deadline.left()
            transport.start_client(self._exchanged)

    def connect(self, sock: SshStream, **_: object) -> None:  # type: ignore[override]
        """Log in over the stream; fabric's other arguments are in the target.  Raises ConnectError, Dropped."""
        if not self._started:
            self.start(sock)
        transport: Transport = self._transport
        with self._explaining():
            offers = self._offers(self._target)
            self._exchanged.wait(self._deadline.left())
            if not transport.is_active():
                raise transport.get_exception() or SSHException("Negotiation failed.")
            key = transport.get_remote_server_key()
            self._check.accept(key.get_name(), key.asbytes())
            self.host_key = key.asbytes()
            log_in(transport, self._target, offers, self._deadline)

    def close(self) -> None:
        """Close the connection; idempotent, from any thread."""
        # The stream first: paramiko's own farewell would wait for a peer that does not read.
        if self._started:
            self.stream.close()
            self._transport.close()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Close the connection if something inside fails; raise ConnectError or Dropped in its place."""
        try:
            yield
        except Exception as error:
            reason = explained(error, self._transport, self._target, self.stream, self._deadline)
            self.close()
            raise reason from None


def _transport(stream: SshStream, known_kinds: set[str]) -> TunedTransport:
    """A transport that asks first for the kinds of host key by which the server is known."""
    made = TunedTransport(stream, packetizer_class=QuietPacketizer)  # type: ignore[arg-type]
    options = made.get_security_options()
    # An RSA key is shown under the name of a signature: rsa-sha2-512.
    options.key_types = sorted(
        options.key_types,
        key=lambda name: name not in known_kinds and not ("rsa" in name and "ssh-rsa" in known_kinds),
    )
    stream.reader = made
    return made


def _restrict(transport: TunedTransport, algorithms: Sequence[Algorithms]) -> None:
    """Leave out the algorithms that ssh_config does not allow; raises ConnectError where none is left."""
    options = transport.get_security_options()
    for each in algorithms:
        if each.keyword == "pubkeyacceptedalgorithms":
            continue  # it speaks of the user's keys
        attribute = _ATTRIBUTES[each.keyword]
        ours = getattr(options, attribute)
        allowed = each.allowed(ours)
        if not allowed:
            raise ConnectError(
                f"{each.where}: {each.keyword} {shortened(each.value)} allows none that tflaunch has: {_names(ours)}",
                or_openssh("allow one of them", "has others"),
            )
        setattr(options, attribute, allowed)


def _accepted(offers: Sequence[Offer], algorithms: Sequence[Algorithms]) -> Iterator[Offer]:
    """The keys that PubkeyAcceptedAlgorithms allows."""
    rules = [each for each in algorithms if each.keyword == "pubkeyacceptedalgorithms"]
    for offer in offers:
        kind = offer.key.get_name()
        names = _RSA if kind == "ssh-rsa" else (kind,)
        if all(each.allowed(names) for each in rules):
            yield offer


def log_in(transport: Transport, target: Target, offers: Offers, deadline: Deadline) -> None:
    """Offer one key after another until the server takes one; raises ConnectError."""
    tried: list[str] = []
    user = target.user
    for offer in _accepted(offers.keys, target.algorithms):
        answered = threading.Event()
        try:
            transport.auth_publickey(user, offer.key, answered)
            answered.wait(deadline.left())
            transport.auth_timeout = deadline.left()
            if more := transport.auth_handler.wait_for_response(answered):  # type: ignore[union-attr]
                raise ConnectError(
                    f"user {user}: the server wants more than a key ({_names(more)})",
                    or_openssh(
                        "tflaunch asks nothing while connecting: allow the key alone for this account",
                        _MASTER,
                    ),
                )
            return
        except BadAuthenticationType as error:
            raise ConnectError(
                f"user {user}: the server takes no keys, only {_names(error.allowed_types)}",
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
                raise _broken_off(user, tried, error) from None
    raise _refused(target, tried, offers)


def _broken_off(user: str, tried: Sequence[str], error: Exception) -> ConnectError:
    if isinstance(error, AuthenticationException):
        return too_many_keys(user, tried)
    return ConnectError(f"user {user}: the login broke off at {tried[-1]} ({text(error)})", SLOW, again=True)


def _refused(target: Target, tried: Sequence[str], offers: Offers) -> ConnectError:
    user, reasons = target.user, "".join(f"; skipped {reason}" for reason in offers.skipped)
    openssh_only = [*target.openssh_only, *["FIDO tokens"] * offers.token]

    def remedy(usual: str) -> str:
        return or_openssh(usual, f"knows {', '.join(openssh_only)}") if openssh_only else usual

    if not tried:
        return ConnectError(
            f"user {user}: there is no key to offer{reasons}",
            remedy(
                offers.remedy
                or "name one with `identity_file:` or IdentityFile, or make one with `ssh-keygen`"
            ),
        )
    return ConnectError(
        f"user {user}: the server refused {key_list(tried)}{reasons}",
        remedy(
            offers.remedy
            or f"put its public half into {user}'s authorized_keys there, or set `user:` or `identity_file:`"
        ),
    )


def explained(
    error: Exception, transport: Transport, target: Target, stream: SshStream, deadline: Deadline
) -> Exception:
    """Why a stream did not become an SSH connection: a ConnectError, or Dropped."""
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
        return closed_during(stage)
    return ConnectError(f"{stage} failed: {text(error)}", f"does `{target.ssh} true` work?")


def _incompatible(error: IncompatiblePeer, transport: Transport) -> ConnectError:
    """The server and tflaunch have no algorithm in common; that may be paramiko's fault: `ssh` may have one."""
    lacking = transport.lacking() if isinstance(transport, TunedTransport) else None
    if lacking is None:
        return ConnectError(
            f"the server has no algorithm in common with tflaunch: {text(error)}", "update its sshd"
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


def _bannerless(error: Exception, target: Target, stream: SshStream, deadline: Deadline) -> Exception:
    """Why no banner of an SSH server came."""
    head = stream.head
    if any(word in head for word in DROPPED):
        return Dropped()
    if head and b"SSH-" not in head:
        line = head.splitlines()[0][:80].decode(errors="replace")
        return not_ssh(target, f"it said {line!r}")
    if stream.child and stream.ended and stream.child.failed():
        return ConnectError(
            f"ProxyCommand failed: {stream.child.last_words()}", f"try it alone: `{target.proxy_command}`"
        )
    if deadline.passed:
        return without_banner(target, deadline)
    if stream.ended:
        return Dropped()
    return ConnectError(f"the SSH banner could not be read: {text(error)}", f"does `{target.ssh} true` work?")
