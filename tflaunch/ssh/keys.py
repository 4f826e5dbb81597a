"""The user's keys: files read once, ssh-agents and passphrases asked once; then offered to many servers."""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from paramiko import Message, PKey
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import SSHException

from tflaunch.inputs.documents import open_regular
from tflaunch.ssh.config import Target

PASSPHRASE_TRIES = 3
AGENT_ANSWERS_S = 5.0  # the list of its keys; a signature may wait for a finger on a token
AGENT_SIGNS_S = 60.0
FIDO = "a key on a FIDO token, with which tflaunch cannot sign"
_MAGIC = b"openssh-key-v1\0"
_LARGEST = 1024 * 1024  # bytes: OpenSSH reads no larger key


@dataclass(frozen=True)
class Offer:
    """A key to try, and what the user calls it."""

    key: PKey
    label: str


@dataclass(frozen=True)
class Offers:
    """What is offered to one server, in order, and why other keys are not."""

    keys: tuple[Offer, ...]
    skipped: tuple[str, ...]
    remedy: str = ""  # for the first key that is skipped because others may read it
    token: bool = False  # one that is skipped is on a FIDO token


@dataclass
class _File:
    """A key file: its private half when it could be read, its public half when that much is known."""

    key: PKey | None = None
    blob: bytes = b""
    encrypted: bool = False
    problem: str = ""
    remedy: str = ""


class Agent(AgentSSH):
    """One ssh-agent that many threads sign with, with a time limit.  Raises OSError and SSHException."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._turn = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(AGENT_ANSWERS_S)
            self._socket.connect(path)
            self._connect(self._socket)  # type: ignore[attr-defined]
            self._socket.settimeout(AGENT_SIGNS_S)
        except BaseException:
            self._socket.close()
            raise

    def _send_message(self, message: Message) -> object:
        with self._turn:  # one request at a time on one socket
            try:
                return super()._send_message(message)  # type: ignore[misc]
            except (OSError, SSHException):
                self._socket.close()  # what comes late would be taken for another answer
                raise SSHException("the ssh-agent did not answer") from None

    def close(self) -> None:
        """Hang up; keys of this agent can no longer sign."""
        self._socket.close()


class Keys:
    """Every key that the targets name, read in the main thread; `offers()` may be asked by any thread.

    `ask` is given the prompt for the passphrase of an encrypted key that no ssh-agent holds; without it (None:
    there is no terminal) such a key is skipped.
    """

    def __init__(self, targets: Iterable[Target], ask: Callable[[str], str] | None) -> None:
        self._files: dict[Path, _File] = {}
        self._agents: dict[str, Agent | str] = {}  # or why there is none
        targets = tuple(targets)
        for target in targets:
            if target.agent not in self._agents:
                self._agents[target.agent] = _agent(target.agent)
            for path in target.identities:
                if path not in self._files:
                    self._files[path] = _read(path)
        for target in targets:
            for path in target.identities:
                file = self._files[path]
                if not file.encrypted or file.key or file.problem or file.blob in self._held(target):
                    continue
                # A key that nobody named is worth a question only when there is nothing else to try.
                if target.identities_named or not self.offers(target).keys:
                    _unlock(path, file, ask)

    def offers(self, target: Target) -> Offers:
        """The keys for one server: those named for it first, then the agent's, unless IdentitiesOnly."""
        held = self._held(target)
        keys: list[Offer] = []
        skipped: list[str] = []
        remedies: list[str] = []
        for path in target.identities:
            file = self._files[path]
            if file.key:
                keys.append(Offer(file.key, str(path)))
            elif file.blob in held:
                keys.append(Offer(held[file.blob], f"{path} (ssh-agent)"))
            elif file.problem and (target.identities_named or path.exists()):
                skipped.append(f"{path}: {file.problem}")
                remedies += [file.remedy] if file.remedy else []
        if not target.identities_only:
            offered = {offer.key.asbytes() for offer in keys}
            keys += [
                Offer(k, f"{k.comment or k.name} (ssh-agent)") for b, k in held.items() if b not in offered
            ]
        agent = self._agents[target.agent]
        if isinstance(agent, str) and agent:
            skipped.append(agent)
        token = any(reason.endswith(FIDO) for reason in skipped)
        return Offers(tuple(keys), tuple(skipped), next(iter(remedies), ""), token)

    @property
    def notes(self) -> tuple[str, ...]:
        """What ssh would warn of, for the user."""
        return tuple(
            f"{path}: {file.problem}; {file.remedy}" for path, file in self._files.items() if file.remedy
        )

    def close(self) -> None:
        """Hang up every ssh-agent."""
        for agent in self._agents.values():
            if isinstance(agent, Agent):
                agent.close()

    def _held(self, target: Target) -> dict[bytes, AgentKey]:
        agent = self._agents[target.agent]
        return {key.asbytes(): key for key in agent.get_keys()} if isinstance(agent, Agent) else {}


def _agent(path: str) -> Agent | str:
    if not path:
        return ""
    try:
        return Agent(path)
    except TimeoutError:
        return f"ssh-agent {path}: no answer within {AGENT_ANSWERS_S:.0f} s"
    except OSError as error:
        return f"ssh-agent {path}: {error.strerror or error}"
    except Exception as error:  # whatever speaks at that socket need not be an ssh-agent
        return f"ssh-agent {path}: {error or type(error).__name__}"


def _read(path: Path) -> _File:
    try:
        with open_regular(path) as file:
            data, about = file.read(_LARGEST), os.fstat(file.fileno())
    except OSError as error:
        return _File(problem=error.strerror or str(error))
    except ValueError:  # a NUL in its name
        return _File(problem="no such file")
    blob = _public(data) or _public_beside(path)
    if b"PRIVATE KEY" not in data and blob:
        return _File(blob=blob, problem="a public key whose private half no ssh-agent holds")
    if (
        about.st_uid == os.getuid() and about.st_mode & 0o077
    ):  # of other people's files OpenSSH asks no more either
        return _File(
            blob=blob,
            problem=f"Permissions {about.st_mode & 0o7777:04o} are too open: others may read it or write it, so it is "
            "ignored, as by ssh",
            remedy=f"chmod 600 {shlex.quote(str(path))}",
        )
    try:
        key = PKey.from_path(path)
        return _File(key, key.asbytes())
    except TypeError:  # how cryptography says that a passphrase is wanted
        return _File(blob=blob, encrypted=True)
    except (ValueError, SSHException, UnknownKeyType, UnsupportedAlgorithm, OSError):
        if b"sk-" in blob[:8]:  # a kind's name is behind its length
            return _File(blob=blob, problem=FIDO)
        return _File(blob=blob, problem="not a private key in a form that can be read")


def _unlock(path: Path, file: _File, ask: Callable[[str], str] | None) -> None:
    if ask is None:
        file.problem = "encrypted, and there is no terminal to ask for its passphrase (ssh-add it before)"
        return
    for _ in range(PASSPHRASE_TRIES):
        try:
            said = ask(f"Passphrase for {path}: ")
        except EOFError:
            said = ""
        if not said:
            file.problem = "encrypted, and no passphrase was given"
            return
        try:
            file.key = PKey.from_path(path, said.encode())  # type: ignore[arg-type]  # str is refused
        except ValueError:
            continue
        except (SSHException, UnknownKeyType, UnsupportedAlgorithm, OSError, TypeError):
            file.problem = "not a private key in a form that can be read"
        return
    file.problem = f"encrypted, and {PASSPHRASE_TRIES} passphrases were wrong"


def _public(data: bytes) -> bytes:
    """The public half, which OpenSSH's private key files hold in the clear too; b"" when it is not there."""
    words = data.split()
    try:
        if data.startswith((b"ssh-", b"ecdsa-", b"sk-")):
            return base64.b64decode(words[1])
        if data.startswith(b"-----BEGIN OPENSSH PRIVATE KEY"):
            body = base64.b64decode(b"".join(data.strip().splitlines()[1:-1]))
            if body.startswith(_MAGIC):
                message = Message(body[len(_MAGIC) :])
                for _ in ("cipher", "kdf", "kdf options"):
                    message.get_binary()
                return message.get_binary() if message.get_int() else b""
    except (binascii.Error, IndexError):
        pass
    return b""


def _public_beside(path: Path) -> bytes:
    try:
        return _public(Path(f"{path}.pub").read_bytes())
    except OSError:
        return b""
