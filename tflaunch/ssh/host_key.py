"""Whether the host key that a server shows is the one that is known for it."""

from __future__ import annotations

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.failures import key_changed, key_revoked, key_unknown
from tflaunch.ssh.known_hosts import KnownHosts, KnownKey, fingerprint, rsa_bits
from tflaunch.ssh.target import Target


class HostKeyCheck:
    """Decides about the key that a server shows.

    paramiko's own tables know neither patterns nor revoked keys, and the time that they take grows with the square of
    the file's size.
    """

    def __init__(self, known: KnownHosts, target: Target, accept_new: bool) -> None:
        self._known = known
        self._target = target
        self._accept_new = accept_new or target.strict != "check"

    @property
    def kinds(self) -> set[str]:
        """The kinds of key by which the server is known: "ssh-ed25519"."""
        return {key.kind for key in self._lines() if not key.marker}

    def accept(self, kind: str, key: bytes) -> None:
        """Return if the server is known by this key, or it is new and may be taken; else raise ConnectError."""
        target = self._target
        lines = self._lines()
        own = [line for line in lines if not line.marker]
        # As with OpenSSH, a line about the name without a port holds for every port of that name of which no line
        # speaks.
        portless = [] if own else self._portless()
        self._check_trust(kind, key, [*lines, *portless])
        if any(line.blob == key for line in own or portless if not line.marker):
            return
        if own:
            line = next((line for line in own if line.kind == kind), own[0])
            forget = f"ssh-keygen -R '{target.host_key_name}' -f {line.path}"
            raise key_changed(
                kind, str(line), fingerprint(key), forget, target, known_as=target.host_key_name
            )
        # `UserKnownHostsFile none` takes no new key, to ssh too.
        if not self._accept_new or not self._known.own:
            raise key_unknown(
                kind,
                fingerprint(key),
                target,
                certificates=any(line.marker == "@cert-authority" for line in lines),
            )
        try:
            self._known.add(target.host_key_name, kind, key, hashed=target.hash_known_hosts)
        except OSError as error:
            raise ConnectError(
                f"the new host key could not be written to {error.filename}: {error.strerror}",
                "make the file writable, or name another with UserKnownHostsFile",
            ) from None

    def _check_trust(self, kind: str, key: bytes, lines: list[KnownKey]) -> None:
        """Raise ConnectError for a key that is revoked or too short."""
        target = self._target
        revoked = [line for line in lines if line.marker == "@revoked" and line.blob == key]
        if revoked or key in target.revoked:
            raise key_revoked(kind, str(revoked[0]) if revoked else target.revoked_by)
        if 0 < (bits := rsa_bits(key)) < target.rsa_bits:
            raise ConnectError(
                f"the server's {kind} host key has {bits} bits, and RequiredRSASize asks for {target.rsa_bits}",
                "give the server a longer key, or another kind: `ssh-keygen -A` there makes what is missing",
            )

    def _lines(self) -> list[KnownKey]:
        return self._known.lookup(self._target.host_key_name)

    def _portless(self) -> list[KnownKey]:
        name = self._target.portless_name
        return self._known.lookup(name) if name else []
