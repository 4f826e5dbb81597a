"""What the user's key files and ssh-agents hold, without paramiko: public halves, and why a key cannot be used."""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.inputs.documents import open_regular

if TYPE_CHECKING:
    from paramiko import PKey

AGENT_ANSWERS_S = 5.0  # the list of its keys; a signature may wait for a finger on a token
AGENT_SIGNS_S = 60.0
FIDO = "a key on a FIDO token, with which tflaunch cannot sign"
UNREADABLE = "not a private key in a form that can be read"
_MAGIC = b"openssh-key-v1\0"
_LARGEST = 1024 * 1024  # bytes: OpenSSH reads no larger key, and no larger answer of an agent
_LIST, _LISTED = 11, 12  # SSH_AGENTC_REQUEST_IDENTITIES, SSH_AGENT_IDENTITIES_ANSWER


@dataclass
class KeyFile:
    """What is known of a key file; the private half is there once it was needed and could be read."""

    path: Path
    public: bytes = b""  # the public half as SSH sends it; b"" where it is not known
    encrypted: bool = False
    problem: str = ""  # why the key cannot be used
    remedy: str = ""  # what ssh would warn of, too
    unlocking: str = ""  # what makes an encrypted key usable that no passphrase has opened
    key: PKey | None = None


class Agent:
    """A connection to an ssh-agent, for many threads, with a time limit.  Raises OSError and ValueError."""

    def __init__(self, path: str) -> None:
        self._turn = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(AGENT_ANSWERS_S)
            self._socket.connect(path)
            self.keys = _listed(self.request(bytes([_LIST])))  # the public half of each key, its comment
            self._socket.settimeout(AGENT_SIGNS_S)
        except BaseException:
            self._socket.close()
            raise

    def request(self, message: bytes) -> bytes:
        """The agent's answer to a message; waits while another thread asks."""
        with self._turn:
            try:
                self._socket.sendall(len(message).to_bytes(4, "big") + message)
                size = int.from_bytes(self._receive(4), "big")
                if not 0 < size <= _LARGEST:
                    raise ValueError("it does not answer as an ssh-agent does")
                return self._receive(size)
            except (OSError, ValueError):
                self._socket.close()  # what comes late would be taken for the answer to another message
                raise

    def close(self) -> None:
        """Close the connection; keys of this agent can no longer sign."""
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("it has closed the connection")
            data += more
        return data


def connect_agent(path: str) -> Agent | str:
    """The ssh-agent at that socket, or why it cannot be used; "" without a path."""
    if not path:
        return ""
    try:
        return Agent(path)
    except TimeoutError:
        return f"ssh-agent {path}: no answer within {AGENT_ANSWERS_S:.0f} s"
    except OSError as error:
        return f"ssh-agent {path}: {error.strerror or error}"
    except ValueError as error:
        return f"ssh-agent {path}: {error}"


def read_key(path: Path) -> KeyFile:
    try:
        with open_regular(path) as opened:
            data, about = opened.read(_LARGEST), os.fstat(opened.fileno())
    except OSError as error:
        # Its public half alone names a key of an ssh-agent.
        return KeyFile(path, _public_beside(path), problem=error.strerror or str(error))
    except ValueError:  # a NUL in its name
        return KeyFile(path, problem="no such file")
    public, encrypted = _halves(data)
    file = KeyFile(path, public or _public_beside(path), encrypted)
    if b"PRIVATE KEY" not in data and file.public:
        file.problem = "a public key whose private half no ssh-agent holds"
    elif (
        about.st_uid == os.getuid() and about.st_mode & 0o077
    ):  # OpenSSH asks it of the user's own files alone, too
        file.problem = (
            f"Permissions {about.st_mode & 0o7777:04o} are too open: others may read it or write it, so it is "
            "ignored, as by ssh"
        )
        file.remedy = f"chmod 600 {shlex.quote(str(path))}"
    elif b"sk-" in file.public[:8]:  # a kind's name is behind its length
        file.problem = FIDO
    elif b"PRIVATE KEY" not in data:
        file.problem = UNREADABLE
    return file


def _listed(answer: bytes) -> Sequence[tuple[bytes, str]]:
    """The keys of an agent's answer to _LIST; raises ValueError for another answer."""
    if answer[0] != _LISTED or len(answer) < 5:
        raise ValueError("it does not list its keys")
    found = []
    at = 5
    for _ in range(int.from_bytes(answer[1:5], "big")):
        public, at = _string(answer, at)
        comment, at = _string(answer, at)
        found.append((public, comment.decode(errors="replace")))
    return found


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    """The string of RFC 4251 that begins there, and where the next begins; raises ValueError at the end of data."""
    begin = at + 4
    end = begin + int.from_bytes(data[at:begin], "big")
    if end > len(data) or begin > len(data):
        raise ValueError("it is cut short")
    return data[begin:end], end


def _halves(data: bytes) -> tuple[bytes, bool]:
    """The public half of a key file, b"" where it is not in clear; whether the private half is encrypted."""
    words = data.split()
    try:
        if data.startswith((b"ssh-", b"ecdsa-", b"sk-")):
            return base64.b64decode(words[1]), False
        if data.startswith(b"-----BEGIN OPENSSH PRIVATE KEY"):
            body = base64.b64decode(b"".join(data.strip().splitlines()[1:-1]))
            if body.startswith(_MAGIC):
                cipher, at = _string(body, len(_MAGIC))
                for _ in ("kdf", "kdf options"):
                    _, at = _string(body, at)
                public, _ = _string(body, at + 4)  # behind the number of keys, which is 1
                return public, cipher != b"none"
    except (binascii.Error, IndexError, ValueError):
        pass
    return b"", b"ENCRYPTED" in data


def _public_beside(path: Path) -> bytes:
    try:
        return _halves(Path(f"{path}.pub").read_bytes())[0]
    except OSError:
        return b""
