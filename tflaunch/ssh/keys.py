"""The user's keys: files read once, ssh-agents and passphrases asked once, in the main thread, before any dial.

What needs paramiko, the private keys themselves, is in `tflaunch.ssh.private_keys`.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.ssh.key_files import FIDO, Agent, KeyFile, connect_agent, read_key
from tflaunch.ssh.target import Target

if TYPE_CHECKING:
    from paramiko import PKey

PASSPHRASE_TRIES = 3


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
    remedy: str = ""  # for the first skipped key that the user can make usable
    token: bool = False  # a skipped key is on a FIDO token


class Keys:
    """Every key that the targets name; made in the main thread, `offers()` may be called by any.

    `ask` is given the prompt for the passphrase of an encrypted key that no ssh-agent holds; without it (None:
    there is no terminal) such a key is skipped.
    """

    def __init__(self, targets: Iterable[Target], ask: Callable[[str], str] | None) -> None:
        self._files: dict[Path, KeyFile] = {}
        self._agents: dict[str, Agent | str] = {}  # by socket: the ssh-agent there, or why it cannot be used
        self._loading = threading.Lock()
        targets = tuple(targets)
        for target in targets:
            if target.agent not in self._agents:
                self._agents[target.agent] = connect_agent(target.agent)
            for path in target.identities:
                if path not in self._files:
                    self._files[path] = read_key(path)
        for target in targets:
            self._unlock(target, ask)

    def offers(self, target: Target) -> Offers:
        """The keys for one server: those named for it first, then the agent's, unless IdentitiesOnly."""
        from tflaunch.ssh import private_keys  # paramiko: only where there is a server to log in to

        agent = self._agents[target.agent]
        held = private_keys.of_agent(agent) if isinstance(agent, Agent) else {}
        keys: list[Offer] = []
        skipped: list[str] = []
        remedies: list[str] = []
        for path in target.identities:
            file = self._files[path]
            with self._loading:
                private_keys.load(file)
            if file.key:
                keys.append(Offer(file.key, str(path)))
            elif file.public in held:
                keys.append(Offer(held[file.public], f"{path} (ssh-agent)"))
            elif file.problem and (target.identities_named or path.exists()):
                skipped.append(f"{path}: {file.problem}")
                remedies += [each for each in (file.remedy, file.unlocking) if each]
        if not target.identities_only:
            offered = {offer.key.asbytes() for offer in keys}
            keys += [
                Offer(key, f"{key.comment or key.name} (ssh-agent)")
                for public, key in held.items()
                if public not in offered
            ]
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
        """Close the connections to ssh-agents."""
        for agent in self._agents.values():
            if isinstance(agent, Agent):
                agent.close()

    def _unlock(self, target: Target, ask: Callable[[str], str] | None) -> None:
        """Ask for the passphrases that the target's encrypted keys need."""
        agent = self._agents[target.agent]
        held = {public for public, _ in agent.keys} if isinstance(agent, Agent) else set()
        for path in target.identities:
            file = self._files[path]
            if not file.encrypted or file.key or file.problem or file.public in held:
                continue
            # A key of OpenSSH's default names is worth a question only when there is nothing else to try.
            if target.identities_named or not self.offers(target).keys:
                _unlock(file, ask)


def _unlock(file: KeyFile, ask: Callable[[str], str] | None) -> None:
    """Ask for the passphrase, and read the private key with it; else say in `problem` why it cannot be used."""
    from tflaunch.ssh import private_keys

    file.unlocking = (
        f"`ssh-add {shlex.quote(str(file.path))}` asks for its passphrase once, for all that follows"
    )
    if ask is None:
        file.problem = "encrypted, and there is no terminal to ask for its passphrase (ssh-add it before)"
        return
    for _ in range(PASSPHRASE_TRIES):
        try:
            passphrase = ask(f"Passphrase for {file.path}: ")
        except EOFError:
            passphrase = ""
        if not passphrase:
            file.problem = "encrypted, and no passphrase was given"
            return
        if private_keys.unlock(file, passphrase):
            return
    file.problem = f"encrypted, and {PASSPHRASE_TRIES} passphrases were wrong"
