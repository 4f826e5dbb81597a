"""The known_hosts files: read once, asked by many threads, written for `--accept-new`; OpenSSH's format."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tflaunch.inputs.documents import open_regular
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.failures import or_openssh

_HASHED = "|1|"
_KRL = b"SSHKRL\n\0"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    path: Path
    line: int  # from 1
    marker: Literal["", "@revoked", "@cert-authority"]
    kind: str  # "ssh-ed25519"
    blob: bytes  # the public key as SSH sends it

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class KnownHosts:
    """The keys in the given files; a file that does not exist holds none, a line that is no key is skipped.

    New keys go to the first of `own`, the user's files; without such a file, like ssh, tflaunch takes none.
    Raises OSError for a file that exists and cannot be read.
    """

    def __init__(self, own: Iterable[Path], shared: Iterable[Path] = ()) -> None:
        self.own = tuple(own)
        self._named: dict[str, list[KnownKey]] = defaultdict(list)
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []  # salt, digest
        self._patterns: list[tuple[list[str], KnownKey]] = []
        self._lock = threading.Lock()
        for path in (*self.own, *shared):
            if os.path.exists(path):  # noqa: PTH110  Path.exists may raise
                with open_regular(path) as file:
                    lines = file.read().decode(errors="replace").split("\n")
                for number, line in enumerate(lines, 1):
                    self._read(path, number, line)

    def lookup(self, name: str) -> list[KnownKey]:
        """Every line about `name`: `gpu01`, `[gpu01]:2222`, or an alias."""
        return list(self._find(name))

    def add(self, name: str, kind: str, blob: bytes, *, hashed: bool = False) -> None:
        """Add a key, here and at the end of the user's first file, which there must be; raises OSError."""
        path = self.own[0]
        key = base64.b64encode(blob).decode()
        with self._lock:
            if path.parent == Path.home() / ".ssh":  # like ssh, which makes no other directory
                path.parent.mkdir(mode=0o700, exist_ok=True)
            old = path.read_bytes() if path.exists() else b""
            line = f"{_hash(name) if hashed else name} {kind} {key}\n"
            if old and not old.endswith(b"\n"):
                line = "\n" + line
            # One write in append mode: another ssh may be adding a line of its own.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
            self._named[name].append(KnownKey(path, old.count(b"\n") + line.count("\n"), "", kind, blob))

    def _find(self, name: str) -> Iterator[KnownKey]:
        yield from self._named.get(name, ())
        for salt, digest, key in self._hashed:
            if hmac.digest(salt, name.encode(), "sha1") == digest:
                yield key
        for patterns, key in self._patterns:
            if _matches(name, patterns):
                yield key

    def _read(self, path: Path, number: int, line: str) -> None:
        words = _words(line)
        marker: Literal["", "@revoked", "@cert-authority"] = ""
        if words and (words[0] == "@revoked" or words[0] == "@cert-authority"):
            marker = "@revoked" if words[0] == "@revoked" else "@cert-authority"
            words = words[1:]
        if len(words) < 3 or words[0].startswith("@"):
            return
        try:
            key = KnownKey(path, number, marker, words[1], _blob(words[1], words[2]))
            if words[0].startswith(_HASHED):
                salt, digest = (base64.b64decode(part) for part in words[0][len(_HASHED) :].split("|"))
                self._hashed.append((salt, digest, key))
                return
        except (binascii.Error, ValueError):
            return
        names = words[0].lower().split(",")
        if any(re.search(r"[*?!]", name) for name in names):
            self._patterns.append((names, key))
        else:
            for name in names:
                self._named[name].append(key)


def revoked_keys(path: Path, where: str) -> frozenset[bytes]:
    """The public keys that a file of RevokedHostKeys lists, a line each.

    Raises ConnectError for a file that cannot be read, with which ssh refuses every host, and for a KRL.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise ConnectError(
            f"{where}: RevokedHostKeys {path}: {error.strerror or error}; `ssh` refuses every host then",
            "name a file that can be read",
        ) from None
    if data.startswith(_KRL):
        raise ConnectError(
            f"{where}: RevokedHostKeys {path} is a key revocation list, which tflaunch does not read",
            or_openssh("name a file with a public key in each line", "reads it"),
        )
    found = set()
    for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
        words = _words(line)
        if not words:
            continue
        try:
            found.add(_blob(*words[:2]))
        except (TypeError, binascii.Error, ValueError):
            raise ConnectError(
                f"{path}:{number}: no public key; `ssh` refuses every host then",
                "write KIND and KEY into each line",
            ) from None
    return frozenset(found)


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint as OpenSSH shows it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def rsa_bits(blob: bytes) -> int:
    """The size of an RSA key; 0 for a key of another kind."""
    kind, *numbers = _fields(blob)
    return int.from_bytes(numbers[1], "big").bit_length() if kind == b"ssh-rsa" and len(numbers) == 2 else 0


def _fields(blob: bytes) -> list[bytes]:
    """The strings of a public key as SSH sends it; raises ValueError where they are cut short."""
    fields = []
    while blob:
        end = 4 + int.from_bytes(blob[:4], "big")
        if end > len(blob):
            raise ValueError("the key is cut short")
        fields.append(blob[4:end])
        blob = blob[end:]
    return fields or [b""]


def _words(line: str) -> list[str]:
    """The words of a line, as ssh cuts them; none of a comment."""
    line = line.strip(" \t\r")
    return [] if not line or line.startswith("#") else re.split(r"[ \t]+", line)


def _blob(kind: str, text: str) -> bytes:
    """A public key as SSH sends it; raises ValueError (or binascii.Error) for one that ssh would not read."""
    blob = base64.b64decode(text, validate=True)
    if _fields(blob)[0] != kind.encode() or base64.b64encode(blob) != text.encode():
        raise ValueError("the key is of another kind, or not written as a key is")
    return blob


def _matches(name: str, patterns: list[str]) -> bool:
    # Brackets are part of `[host]:port`, never a character class.
    hits = [
        pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern.lstrip("!").replace("[", "[[]"))
    ]
    return bool(hits) and not any(pattern.startswith("!") for pattern in hits)


def _hash(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"{_HASHED}{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
