"""Where one SSH connection goes and how: what ssh_config and the hostfile say of a host, settled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tflaunch.hosts import Host
from tflaunch.inputs import hostnames
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.algorithms import Algorithms

SSH_PORT = 22

StrictHostKeys = Literal["check", "accept-new", "off"]

_HOSTFILE = "correct it in the hostfile, or remove the run's record: it was not written by tflaunch"


@dataclass(frozen=True)
class Target:
    """Where one connection goes and how, with every question that ssh_config answers already answered."""

    name: str  # what was looked up in ssh_config
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...]  # key files in the order to try, also those that do not exist
    identities_named: bool  # False: OpenSSH's default names
    identities_only: bool
    agent: str  # socket of the ssh-agent; "" for none
    known_hosts: tuple[Path, ...]  # the user's; new keys are written to the first
    global_known_hosts: tuple[Path, ...]
    host_key_name: str  # what known_hosts calls the server
    strict: StrictHostKeys
    hash_known_hosts: bool
    family: Literal["any", "inet", "inet6"]
    timeout_s: float | None  # ConnectTimeout
    bind_address: str = ""  # the address of this machine to dial from; "" for any
    portless_name: str = ""  # by which known_hosts may name it as well; "" for none
    revoked: frozenset[bytes] = frozenset()  # host keys that RevokedHostKeys names
    revoked_by: str = ""  # the file that does
    rsa_bits: int = 0  # the fewest that an RSA key may have
    algorithms: tuple[Algorithms, ...] = ()  # what ssh_config says of them
    openssh_only: tuple[
        str, ...
    ] = ()  # keywords by which the system's `ssh` may be able to log in, and tflaunch is not
    jumps: tuple[Target, ...] = ()  # jump hosts, in the order in which they are passed
    proxy_command: str = ""
    ssh: str = ""  # the command that asks OpenSSH for the same connection; `{host}` for the hostfile's name


def known_hosts_name(hostname: str, port: int) -> str:
    """How known_hosts writes a server: its name in lower case, with the port when that is not 22."""
    name = hostname.lower()
    return name if port == SSH_PORT else f"[{name}]:{port}"


def check_host(host: Host, name: str) -> None:
    """Raise ConnectError for what OpenSSH refuses on its command line: a shell may see these words next.

    They may come from a run's record, which the hostfile's reader has not checked.
    """
    hops = [] if host.proxy_jump is None else [hop.rpartition("@") for hop in host.proxy_jump.split(",")]
    given = [
        ("name", host.name, hostnames.check_machine),
        ("ssh", name, hostnames.check_machine),
        ("user", host.user or "", hostnames.check_user),
        *(("proxy_jump", user.removeprefix("ssh://"), hostnames.check_user) for user, _, _ in hops),
        *(("proxy_jump", machine, hostnames.check_machine) for _, _, machine in hops),
    ]
    for key, text, check in given:
        try:
            check(text)
        except ValueError as error:
            raise ConnectError(f"{key}: {shortened(text)} {error}", _HOSTFILE) from None
    if host.port is not None and not isinstance(host.port, int):
        raise ConnectError(f"port: {shortened(str(host.port))} is not a number", _HOSTFILE)
    if host.identity_file is not None and not host.identity_file.isprintable():
        raise ConnectError(
            f"identity_file: {shortened(host.identity_file)} holds a control character", _HOSTFILE
        )


def shortened(text: str) -> str:
    """The text in quotes, for a message; the start of one that is longer than 60 characters."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
