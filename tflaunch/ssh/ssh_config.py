"""What ssh_config says of a host, as OpenSSH reads it: everything that a connection needs; nothing is dialled.

What tflaunch cannot obey is an error: to pass over it could weaken what the user asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tflaunch.hosts import Host
from tflaunch.inputs import hostnames
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.algorithms import ALGORITHMS, Algorithms
from tflaunch.ssh.config_keywords import KEYWORDS, hop, is_harmless, port_number, seconds
from tflaunch.ssh.config_lines import EVERYWHERE, SshSetting, read_settings
from tflaunch.ssh.config_match import Answers, answers
from tflaunch.ssh.failures import CORRECT, or_openssh
from tflaunch.ssh.known_hosts import revoked_keys
from tflaunch.ssh.target import SSH_PORT, StrictHostKeys, Target, check_host, known_hosts_name, shortened
from tflaunch.ssh.tokens import OF_WAYS, Tokens, local_user, tilde

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")

_HOP_LIMIT = 8
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
        self._settings: list[SshSetting] = []
        self._revoked: dict[Path, frozenset[bytes]] = {}  # by file
        for file in (path,) if path else (Path.home() / ".ssh/config", SYSTEM_CONFIG):
            # Like ssh: other users may be able to write a file that was named, or the system's.
            trusted = file in (path, SYSTEM_CONFIG)
            if path or os.path.exists(file):  # noqa: PTH110  Path.exists may raise
                self._settings += read_settings(
                    file, trusted=trusted, system=file == SYSTEM_CONFIG and not path
                )

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

    def _answers(self, name: str, **given: object) -> Answers:
        """What ssh_config says about `name`; what is given comes first, as the options of `ssh` do."""
        options = [
            SshSetting(EVERYWHERE, key, (str(value),), "hostfile")
            for key, value in given.items()
            if value is not None
        ]
        found = answers([*options, *self._settings], name)
        for keyword, words in found.items():
            if KEYWORDS[keyword].harmless is not None and not is_harmless(keyword, " ".join(words)):
                raise ConnectError(
                    f"{found.where(keyword)}: ssh_config sets {keyword}, which tflaunch cannot obey",
                    or_openssh(CORRECT, "obeys it"),
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
        _check_user(found)
        hostname = found.first("hostname")
        number = port_number(found.first("port", str(SSH_PORT)))
        alias = found.first("hostkeyalias").lower()
        tokens = Tokens(
            name,
            hostname=hostname,
            port=str(number),
            user=found.first("user"),
            alias=alias,
            jump=found.first("proxyjump"),
        )
        identities = _paths(found, "identityfile", tokens)
        _paths(found, "certificatefile", tokens)  # only whether they can be read as ssh reads them
        jumps, command = self._way(name, found, tokens, before)
        return Target(
            name=name,
            hostname=hostname,
            port=number,
            user=found.first("user") or local_user(),
            identities=identities or tuple(Path.home() / ".ssh" / file for file in DEFAULT_IDENTITIES),
            identities_named="identityfile" in found,
            identities_only=found.is_on("identitiesonly"),
            agent=_agent_socket(found, tokens),
            known_hosts=_paths(found, "userknownhostsfile", tokens, KNOWN_HOSTS),
            global_known_hosts=_global_known_hosts(found),
            # An alias stands for itself; OpenSSH adds no port to it.
            host_key_name=alias or known_hosts_name(hostname, number),
            portless_name="" if alias or number == SSH_PORT else known_hosts_name(hostname, SSH_PORT),
            strict=_strict(found),
            hash_known_hosts=found.is_on("hashknownhosts"),
            family=_family(found),
            timeout_s=seconds(found.first("connecttimeout", "none")),
            bind_address=found.first("bindaddress"),
            revoked=self._revoked_keys(found),
            revoked_by=found.first("revokedhostkeys"),
            rsa_bits=max(int(found.first("requiredrsasize", "0")), 0),
            algorithms=tuple(
                Algorithms(keyword, found.first(keyword), found.where(keyword))
                for keyword in ALGORITHMS
                if keyword in found
            ),
            openssh_only=_openssh_only(found),
            jumps=jumps,
            proxy_command=command,
            ssh=shlex.join(("ssh", *words, name)),
        )

    def _revoked_keys(self, found: Answers) -> frozenset[bytes]:
        """The keys in the file of RevokedHostKeys; raises ConnectError, as ssh refuses every host then."""
        name = found.first("revokedhostkeys", "none")
        if name.lower() == "none":
            return frozenset()
        where = found.where("revokedhostkeys")
        if name.startswith("~") or "%" in name or "${" in name:
            raise ConnectError(
                f"{where}: RevokedHostKeys {shortened(name)} is another file to one version of ssh than to another",
                or_openssh("name it by its whole path", "reads it as your ssh does"),
            )
        path = Path(name)
        if path not in self._revoked:
            self._revoked[path] = revoked_keys(path, where)
        return self._revoked[path]

    def _way(
        self, name: str, found: Answers, tokens: Tokens, before: tuple[str, ...]
    ) -> tuple[tuple[Target, ...], str]:
        """The jump hosts before a target, or its proxy command: whichever ssh_config says first."""
        for keyword, words in found.items():
            if keyword not in ("proxycommand", "proxyjump"):
                continue
            where = found.where(keyword) or "hostfile"
            if keyword == "proxycommand":
                return (), "" if words[0].lower() == "none" else tokens.filled(words[0], OF_WAYS, where)
            hops = words[0].split()[0]  # what follows is nothing to ssh
            if hops.lower() == "none":
                return (), ""
            return self._jumps(name, tokens.filled(hops, OF_WAYS, where), where, before), ""
        return (), ""

    def _jumps(self, name: str, value: str, where: str, before: tuple[str, ...]) -> tuple[Target, ...]:
        """`a,b` as OpenSSH walks it: first a, by the way that a's own configuration names; b from there."""
        hops = [_checked(part, where) for part in value.split(",")]
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


def _checked(spec: str, where: str) -> tuple[str | None, str, int | None]:
    """The user, the host and the port of a jump host; raises ConnectError for what ssh refuses on its command line."""
    found = hop(spec)
    if not found:
        raise ConnectError(f"{where}: ProxyJump {shortened(spec)} is not [user@]host[:port]", CORRECT)
    user, host, _ = found
    for check, word in ((hostnames.check_user, user or ""), (hostnames.check_machine, host)):
        try:
            check(word)
        except ValueError as error:
            raise ConnectError(
                f"{where}: ProxyJump {shortened(spec)}: {shortened(word)} {error}", CORRECT
            ) from None
    return found


def _check_user(found: Answers) -> None:
    """Raise ConnectError for an account that ssh before 10.0 takes as it is written, and later ones fill in."""
    user, where = found.first("user"), found.where("user")
    if where != "hostfile" and ("%" in user or "${" in user):
        raise ConnectError(
            f"{where}: User {shortened(user)} is another account to one version of ssh than to another",
            or_openssh("write the account itself", "reads it as your ssh does"),
        )


def _agent_socket(found: Answers, tokens: Tokens) -> str:
    value, where = found.first("identityagent", "SSH_AUTH_SOCK"), found.where("identityagent")
    if value == "none":
        return ""
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    path = str(tokens.path(value, where))
    return os.environ.get(path[1:], "") if path.startswith("$") else path


def _strict(found: Answers) -> StrictHostKeys:
    value = found.first("stricthostkeychecking", "ask").lower()
    if value in ("no", "off", "false"):
        return "off"
    return "accept-new" if value == "accept-new" else "check"


def _family(found: Answers) -> Literal["any", "inet", "inet6"]:
    value = found.first("addressfamily", "any").lower()
    return "inet" if value == "inet" else "inet6" if value == "inet6" else "any"


def _paths(found: Answers, keyword: str, tokens: Tokens, default: Sequence[str] = ()) -> tuple[Path, ...]:
    """The files that a keyword names; raises ConnectError."""
    words = list(enumerate(found.get(keyword, default)))
    return tuple(tokens.path(word, found.where(keyword, at)) for at, word in words if word.lower() != "none")


def _global_known_hosts(found: Answers) -> tuple[Path, ...]:
    """The system's files of host keys, whose names hold no tokens and no variables to ssh; raises ConnectError."""
    words = enumerate(found.get("globalknownhostsfile", SYSTEM_KNOWN_HOSTS))
    named = [(word, found.where("globalknownhostsfile", at)) for at, word in words if word.lower() != "none"]
    return tuple(Path(tilde(word, where)) for word, where in named)


def _openssh_only(found: Answers) -> tuple[str, ...]:
    wanted = [
        key for key, (no, _) in _OPENSSH_ONLY.items() if found.first(key, no).lower() not in (no, "false")
    ]
    # Many systems say yes to GSSAPI for everybody; it lets only those in who have a ticket.
    ticket = os.environ.get("KRB5CCNAME") or os.path.exists(f"/tmp/krb5cc_{os.getuid()}")  # noqa: PTH110, S108
    return tuple(_OPENSSH_ONLY[key][1] for key in wanted if key != "gssapiauthentication" or ticket)
