"""Whether the host key that a server shows is the one that is known for it."""

from __future__ import annotations

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.failures import key_changed, key_revoked, key_unknown
from tflaunch.ssh.known_hosts import KnownHosts, KnownKey, fingerprint
from tflaunch.ssh.target import SSH_PORT, Target, known_hosts_name


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
        lines = self._lines()
        revoked = [line for line in lines if line.marker == "@revoked" and line.blob == key]
        if revoked:
            raise key_revoked(kind, str(revoked[0]))
        own = [line for line in lines if not line.marker]
        if any(line.blob == key for line in own or self._portless()):
            return
        if own:
            line = next((line for line in own if line.kind == kind), own[0])
            forget = f"ssh-keygen -R '{self._target.host_key_name}' -f {line.path}"
            name = self._target.host_key_name
            raise key_changed(kind, str(line), fingerprint(key), forget, self._target, known_as=name)
        if not self._accept_new:
            raise key_unknown(
                kind,
                fingerprint(key),
                self._target,
                certificates=any(line.marker == "@cert-authority" for line in lines),
            )
        try:
            self._known.add(self._target.host_key_name, kind, key, hashed=self._target.hash_known_hosts)
        except OSError as error:
            raise ConnectError(
                f"the new host key could not be written to {error.filename}: {error.strerror}",
                "make the file writable, or name another with UserKnownHostsFile",
            ) from None

    def _lines(self) -> list[KnownKey]:
        return self._known.lookup(self._target.host_key_name)

    def _portless(self) -> list[KnownKey]:
        # As with OpenSSH, a key that is known for a name without a port is good on every port of that name.
        plain = known_hosts_name(self._target.hostname, SSH_PORT)
        return [line for line in self._known.lookup(plain) if not line.marker]
