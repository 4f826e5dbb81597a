"""What ssh_config says of a host, as OpenSSH reads it: everything that a connection needs; nothing is dialled.

What tflaunch cannot obey is an error: to pass over it could weaken what the user asked for.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.config_lines import CORRECT, EVERYWHERE, Setting, read_settings
from tflaunch.ssh.config_match import Answers, answers, expanded, first
from tflaunch.ssh.failures import or_openssh
from tflaunch.ssh.target import SSH_PORT, StrictHostKeys, Target, check_host, known_hosts_name, shortened

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")

_HOP_LIMIT = 8
# keyword -> the value with which it asks for nothing; any other would weaken the connection if it were ignored
_UNSUPPORTED = {"revokedhostkeys": "none", "proxyusefdpass": "no"}
# Ways to log in that only the system's `ssh` has: keyword -> the value that means no, and how people write it
_OPENSSH_ONLY = {
    "certificatefile": ("none", "CertificateFile"),
    "gssapiauthentication": ("no", "GSSAPIAuthentication"),
    "pkcs11provider": ("none", "PKCS11Provider"),
    "hostbasedauthentication": ("no", "HostbasedAuthentication"),
}


class SshConfig:
    """The configuration files, read once; `target()` answers for one host.

    `path` is the only file to read; without it those are read that ssh reads: the user's and the system's.
    Raises ConnectError for a file that cannot be read or holds something that would have to be ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._settings: list[Setting] = []
        user_directory = Path.home() / ".ssh"
        for file in (path,) if path else (user_directory / "config", SYSTEM_CONFIG):
            # Like ssh: other users may be able to write a file that was named, or the system's.
            trusted = file in (path, SYSTEM_CONFIG)
            if path or os.path.exists(file):  # noqa: PTH110  Path.exists may raise
                beside = file.parent if trusted else user_directory
                self._settings += read_settings(file, beside, trusted=trusted)

    def target(self, host: Host) -> Target:
        """Everything that a connection to `host` needs; the hostfile's own settings win over ssh_config.

        Raises ConnectError.
        """
        name = host.ssh_host or host.name
        check_host(host, name)
        target = self._target(
            name,
            user=host.user,
            port=host.port,
            identity=host.identity_file,
            jump=host.proxy_jump,
        )
        # Equal remedies fold into one row of the report, so the name stays open where it is the host's own.
        same = name == host.name and target.ssh.endswith(" " + name)
        return replace(target, ssh=target.ssh.removesuffix(name) + "{host}") if same else target

    def _answers(self, name: str, **given: object) -> dict[str, list[str]]:
        """What ssh_config says about `name`; what is given comes first, as the options of `ssh` do."""
        options = [
            Setting(EVERYWHERE, key, (str(value),)) for key, value in given.items() if value is not None
        ]
        found = answers([*options, *self._settings], name)
        for key, harmless in _UNSUPPORTED.items():
            if first(found, key, harmless).lower() != harmless:
                raise ConnectError(
                    f"ssh_config sets {key}, which tflaunch cannot obey", or_openssh(CORRECT, "obeys it")
                )
        return found

    def _target(
        self,
        name: str,
        *,
        user: str | None = None,
        port: int | None = None,
        identity: str | None = None,
        jump: str | None = None,
        before: tuple[str, ...] = (),
    ) -> Target:
        """The target of that name; `before`: the hosts that are reached through it, the farthest first."""
        found = self._answers(name, user=user, port=port, identityfile=identity)
        if jump is not None:  # the hostfile's, or the hops before this one
            found.pop("proxycommand", None)
            found["proxyjump"] = [jump]
        given = {"-F": self._path, "-l": user, "-p": port, "-i": identity, "-J": jump if not before else None}
        words = [word for key, value in given.items() if value is not None for word in (key, str(value))]
        hostname = first(found, "hostname")
        number = _port(found)
        identities = [
            expanded(file, found, name) for file in found.get("identityfile", ()) if file.lower() != "none"
        ]
        jumps, command = self._way(name, found, before)
        return Target(
            name=name,
            hostname=hostname,
            port=number,
            user=first(found, "user") or getpass.getuser(),
            identities=tuple(map(_path, identities))
            or tuple(Path.home() / ".ssh" / file for file in DEFAULT_IDENTITIES),
            identities_named="identityfile" in found,
            identities_only=_yes(found, "identitiesonly"),
            agent=_agent_socket(found),
            known_hosts=_files(found, "userknownhostsfile", KNOWN_HOSTS, name),
            global_known_hosts=_files(found, "globalknownhostsfile", SYSTEM_KNOWN_HOSTS, name),
            # An alias stands for itself; OpenSSH adds no port to it.
            host_key_name=first(found, "hostkeyalias").lower() or known_hosts_name(hostname, number),
            strict=_strict(found),
            hash_known_hosts=_yes(found, "hashknownhosts"),
            family=_family(found),
            timeout_s=_seconds(found, "connecttimeout"),
            openssh_only=_openssh_only(found),
            jumps=jumps,
            proxy_command=command,
            ssh=shlex.join(("ssh", *words, name)),
        )

    def _way(self, name: str, found: Answers, before: tuple[str, ...]) -> tuple[tuple[Target, ...], str]:
        """The jump hosts before a target, or its proxy command: whichever ssh_config says first."""
        for keyword, words in found.items():
            value = " ".join(words)
            if keyword == "proxycommand":
                return (), "" if value.lower() == "none" else expanded(value, found, name)
            if keyword == "proxyjump":
                value = expanded(value, found, name)
                return (() if value.lower() == "none" else self._jumps(name, value, before)), ""
        return (), ""

    def _jumps(self, name: str, value: str, before: tuple[str, ...]) -> tuple[Target, ...]:
        """`a,b` as OpenSSH walks it: first a, by the way that a's own configuration names; b from there."""
        hops = [_hop(part) for part in value.split(",")]
        first_host = hops[0][1]
        if first_host == name or first_host in before:
            return ()  # `Host *` with a ProxyJump matches the jump host too
        if len(before) >= _HOP_LIMIT:
            raise ConnectError(f"ssh_config leads through more than {_HOP_LIMIT} jump hosts", CORRECT)
        jumps: list[Target] = []
        for user, host, port in hops:
            # Later hops are reached from the one before them, whatever their own configuration says.
            way = "none" if jumps else None
            jump = self._target(host, user=user, port=port, jump=way, before=(*before, name))
            jumps += (*jump.jumps, replace(jump, jumps=()))
        return tuple(jumps)


def _hop(spec: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` or an ssh:// URI of the same; an IPv6 address with a port stands in brackets."""
    text = spec.strip().removeprefix("ssh://").rstrip("/")
    user, _, place = text.rpartition("@")
    found = re.fullmatch(r"\[([^]]+)\](?::([0-9]{1,5}))?|([^:]+)(?::([0-9]{1,5}))?|([0-9a-fA-F:.%]+)", place)
    if not found:
        raise ConnectError(f"ProxyJump {spec.strip()!r} is not [user@]host[:port]", CORRECT)
    port = found[2] or found[4]
    return user or None, found[1] or found[3] or found[5], int(port) if port else None


def _agent_socket(found: Answers) -> str:
    value = first(found, "identityagent", "SSH_AUTH_SOCK").strip('"')
    if value.lower() == "none":
        return ""
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if value.startswith("$"):
        return os.environ.get(value.strip("${}"), "")
    return str(_path(expanded(value, found)))


def _strict(found: Answers) -> StrictHostKeys:
    value = first(found, "stricthostkeychecking", "ask").lower()
    if value in ("no", "off"):
        return "off"
    return "accept-new" if value == "accept-new" else "check"


def _family(found: Answers) -> Literal["any", "inet", "inet6"]:
    value = first(found, "addressfamily", "any").lower()
    return "inet" if value == "inet" else "inet6" if value == "inet6" else "any"


def _path(name: str) -> Path:
    """The path, `~` filled in; that of a user whom this machine does not know stays as it is, and leads nowhere."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  Path's own raises


def _files(found: Answers, keyword: str, default: Sequence[str], name: str) -> tuple[Path, ...]:
    words: Iterable[str] = default
    if keyword in found:
        words = (expanded(word, found, name) for word in found[keyword])
    return tuple(_path(word) for word in words if word.lower() != "none")


def _openssh_only(found: Answers) -> tuple[str, ...]:
    wanted = [key for key, (no, _) in _OPENSSH_ONLY.items() if first(found, key, no).lower() != no]
    # Many systems say yes to GSSAPI for everybody; it lets only those in who have a ticket.
    ticket = os.environ.get("KRB5CCNAME") or os.path.exists(f"/tmp/krb5cc_{os.getuid()}")  # noqa: PTH110, S108
    return tuple(_OPENSSH_ONLY[key][1] for key in wanted if key != "gssapiauthentication" or ticket)


def _yes(found: Answers, keyword: str) -> bool:
    return first(found, keyword, "no").lower() in ("yes", "true")


def _port(found: Answers) -> int:
    value = first(found, "port", "none")
    if value.lower() == "none":
        return SSH_PORT
    if not re.fullmatch(r"[0-9]{1,9}", value) or not 0 < int(value) < 65536:
        raise ConnectError(f"ssh_config: port {shortened(value)} is not a number from 1 to 65535", CORRECT)
    return int(value)


def _seconds(found: Answers, keyword: str) -> float | None:
    """A time in OpenSSH's notation (`30`, `30s`, `1m30s`); None when it is not said, or 0."""
    value = first(found, keyword, "none").lower()
    if value == "none":
        return None
    parts = re.findall(r"([0-9]{1,9})(?![0-9])([smhdw]?)", value)
    if "".join(number + unit for number, unit in parts) != value:
        raise ConnectError(f"ssh_config: {keyword} {shortened(value)} is not a time", CORRECT)
    seconds = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return float(sum(int(number) * seconds[unit] for number, unit in parts)) or None
