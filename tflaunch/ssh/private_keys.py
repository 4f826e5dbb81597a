"""Private keys as paramiko signs with them: those of files, and those that an ssh-agent keeps."""

from __future__ import annotations

import contextlib

from cryptography.exceptions import UnsupportedAlgorithm
from paramiko import Message, PKey
from paramiko.agent import AgentKey
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import SSHException

from tflaunch.ssh.key_files import UNREADABLE, Agent, KeyFile

_REFUSED = (SSHException, UnknownKeyType, UnsupportedAlgorithm, OSError)


def load(file: KeyFile) -> None:
    """Read the private key of a file, if it is not encrypted; where that fails, `problem` says why."""
    if file.key or file.problem or file.encrypted:
        return
    try:
        file.key = PKey.from_path(file.path)
        file.public = file.key.asbytes()
    except TypeError:  # how cryptography says that it is encrypted, in a form that we do not know
        file.problem = "encrypted in a form for which tflaunch asks no passphrase (ssh-add it before)"
    except (ValueError, *_REFUSED):
        file.problem = UNREADABLE


def unlock(file: KeyFile, passphrase: str) -> bool:
    """Read an encrypted key; False when the passphrase is wrong.  Any other failure: True, and `problem` says why."""
    try:
        file.key = PKey.from_path(file.path, passphrase.encode())  # type: ignore[arg-type]  # str is refused
    except ValueError:
        return False
    except (TypeError, *_REFUSED):
        file.problem = UNREADABLE
    return True


def of_agent(agent: Agent) -> dict[bytes, AgentKey]:
    """The keys that the agent listed, by their public half; the agent signs with them."""
    signer, found = _Signer(agent), {}
    for public, comment in agent.keys:
        with contextlib.suppress(Exception):  # whatever paramiko makes of a kind of key that it does not know
            key = AgentKey(signer, public, comment)  # type: ignore[arg-type]
            found[key.asbytes()] = key
    return found


class _Signer:
    """Stands in, for AgentKey, for paramiko's own agent, which has no time limit and is not made for threads."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def _send_message(self, message: Message) -> tuple[int, Message]:
        try:
            answer = Message(self._agent.request(message.asbytes()))
        except (OSError, ValueError):
            raise SSHException("the ssh-agent did not answer") from None
        return ord(answer.get_byte()), answer
