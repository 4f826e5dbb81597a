"""~/.ssh/config, as OpenSSH reads it: from a host to everything that a connection needs; nothing is dialled.

paramiko's parser knows neither Include nor comments behind a value, and takes a Match criterion that it has
never heard of for one that holds.  So the text is prepared here first; what cannot be obeyed is an error.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Literal

import paramiko.config
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError, CouldNotCanonicalize

from tflaunch.errors import ConnectError
from tflaunch.hosts import Host

SSH_PORT = 22
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")

_MATCH_CRITERIA = frozenset(
    {"all", "canonical", "final", "exec", "host", "originalhost", "user", "localuser"}
)
_MATCH_ALONE = frozenset({"all", "canonical", "final"})  # the criteria that take no argument
_KEPT_WHOLE = frozenset(
    {"proxycommand", "localcommand", "remotecommand", "knownhostscommand", "match"}
)  # `#` is theirs
_INCLUDE_DEPTH = 16  # OpenSSH's own limit
_HOP_LIMIT = 8
# Silence about these would weaken what the user asked for.
_UNSUPPORTED = {"revokedhostkeys": "none", "proxyusefdpass": "no"}


class _MatchExec:
    """Runs the command of `Match exec`; in place of invoke, which would read the user's terminal meanwhile."""

    def __init__(self, command: str) -> None:
        shell = os.environ.get("SHELL", "/bin/sh")
        status = subprocess.run(
            [shell, "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        ).returncode
        self.ok = status == 0

    @classmethod
    def run(cls, command: str, **_: object) -> _MatchExec:
        return cls(command)


paramiko.config.invoke = _MatchExec  # type: ignore[attr-defined]

StrictHostKeys = Literal["check", "accept-new", "off"]


@dataclass(frozen=True)
class Target:
    """Where one connection goes and how, with every question that ssh_config answers already answered."""

    name: str  # what was looked up in ssh_config
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...]  # in the order to try; files that do not exist are left in
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
    jumps: tuple[Target, ...] = ()  # in the order in which they are passed
    proxy_command: str = ""
    ssh: str = ""  # the command that asks OpenSSH for the same connection; `{host}` for the hostfile's name


class SshConfig:
    """The configuration files, read once; `target()` answers for one host.

    Raises ConnectError for a file that cannot be read or holds something that would have to be ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        files = (path,) if path else (Path.home() / ".ssh/config", SYSTEM_CONFIG)
        self._texts = [
            "\n".join(_prepared(file, file.parent if path or file == SYSTEM_CONFIG else None))
            for file in files
            if path or file.exists()
        ]
        self._shared = self._parse("")

    def target(self, host: Host) -> Target:
        """Everything that a connection to `host` needs; the hostfile's own settings win over ssh_config."""
        name = host.ssh_host or host.name
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

    def _parse(self, first: str) -> SSHConfig:
        config = SSHConfig()
        try:
            for text in (first, *self._texts):
                config.parse(StringIO(text))
        except (ConfigParseError, ValueError) as error:
            raise ConnectError(f"ssh_config cannot be read: {error}", _CORRECT) from None
        return config

    def _lookup(self, name: str, **settled: object) -> dict[str, object]:
        """What ssh_config says about `name`, given settings that come first as those of a command line do."""
        lines = [f"  {key} {value}\n" for key, value in settled.items() if value is not None]
        config = self._parse("Host *\n" + "".join(lines)) if lines else self._shared
        try:
            found: dict[str, object] = {**config.lookup(name)}
        except CouldNotCanonicalize as error:
            raise ConnectError(f"ssh_config forbids a name that cannot be canonicalized: {error}") from None
        except (KeyError, ValueError, OSError) as error:
            raise ConnectError(f"ssh_config cannot be read: {error!r}", _CORRECT) from None
        for key, harmless in _UNSUPPORTED.items():
            if str(found.get(key, harmless)).lower() != harmless:
                raise ConnectError(f"ssh_config sets {key}, which tflaunch cannot obey", _CORRECT)
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
        found = self._lookup(name, user=user, port=port, identityfile=identity)
        if jump is not None:  # the hostfile's, or the hops before this one
            found.pop("proxycommand", None)
            found["proxyjump"] = jump
        given = {"-F": self._path, "-l": user, "-p": port, "-i": identity, "-J": jump if not before else None}
        words = [word for key, value in given.items() if value is not None for word in (key, str(value))]
        hostname = str(found["hostname"])
        number = _integer(found, "port", SSH_PORT)
        named = [str(file) for file in _list(found.get("identityfile")) if str(file).lower() != "none"]
        alias = str(found.get("hostkeyalias", "")).lower()
        jumps, command = self._way(name, found, before)
        return Target(
            name=name,
            hostname=hostname,
            port=number,
            user=str(found.get("user") or getpass.getuser()),
            identities=tuple(Path(file).expanduser() for file in named)
            or tuple(Path.home() / ".ssh" / file for file in DEFAULT_IDENTITIES),
            identities_named="identityfile" in found,
            identities_only=_yes(found, "identitiesonly"),
            agent=_agent(found),
            known_hosts=_files(found, "userknownhostsfile", KNOWN_HOSTS, name),
            global_known_hosts=_files(found, "globalknownhostsfile", SYSTEM_KNOWN_HOSTS, name),
            # An alias stands for itself; OpenSSH adds no port to it.
            host_key_name=alias or known_hosts_name(hostname, number),
            strict=_strict(found),
            hash_known_hosts=_yes(found, "hashknownhosts"),
            family=_family(found),
            timeout_s=_seconds(found, "connecttimeout"),
            jumps=jumps,
            proxy_command=command,
            ssh=shlex.join(("ssh", *words, name)),
        )

    def _way(
        self, name: str, found: dict[str, object], before: tuple[str, ...]
    ) -> tuple[tuple[Target, ...], str]:
        """The hops before a target, or its proxy command: whichever ssh_config says first."""
        for key, value in found.items():
            if key == "proxycommand":
                if value is None:
                    return (), ""
                # paramiko fills in %h, %p and %r.
                return (), str(value).replace("%n", name).replace("%%", "%")
            if key == "proxyjump":
                text = str(value).strip()
                return ((), "") if text.lower() == "none" else (self._hops(name, text, before), "")
        return (), ""

    def _hops(self, name: str, text: str, before: tuple[str, ...]) -> tuple[Target, ...]:
        """`a,b` as OpenSSH walks it: first a, by the way that a's own configuration names; b from there."""
        specs = [_hop(part) for part in text.split(",")]
        first_host = specs[0][1]
        if first_host == name or first_host in before:
            return ()  # `Host *` with a ProxyJump matches the jump host too
        if len(before) >= _HOP_LIMIT:
            raise ConnectError(f"ssh_config leads through more than {_HOP_LIMIT} jump hosts", _CORRECT)
        hops: list[Target] = []
        for user, host, port in specs:
            # Later hops are reached from the one before them, whatever their own configuration says.
            way = "none" if hops else None
            hop = self._target(host, user=user, port=port, jump=way, before=(*before, name))
            hops += (*hop.jumps, replace(hop, jumps=()))
        return tuple(hops)


def known_hosts_name(hostname: str, port: int) -> str:
    """How known_hosts writes a server: its name in lower case, with the port when that is not 22."""
    name = hostname.lower()
    return name if port == SSH_PORT else f"[{name}]:{port}"


_CORRECT = "correct it, or give another file with --ssh-config"


def _prepared(path: Path, beside: Path | None, depth: int = 0, inside: str = "Host *") -> Iterator[str]:
    """The lines of an ssh_config with its Includes in their place.

    `beside` is where relative Includes look (None: ~/.ssh); `inside` is the block that the file stands in.
    """
    if depth > _INCLUDE_DEPTH:
        raise ConnectError(f"{path}: Include goes deeper than {_INCLUDE_DEPTH} files", _CORRECT)
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise ConnectError(f"{path}: {error.strerror}", _CORRECT) from None
    block = inside
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        try:
            keyword, value = _keyword(line)
        except ValueError:
            raise ConnectError(f"{where}: {line.strip()!r} is not a keyword and a value", _CORRECT) from None
        if keyword == "include":
            for file in _included(value, beside or Path.home() / ".ssh"):
                yield from _prepared(file, beside, depth + 1, block)
                yield block  # what the file opened ends with it
            continue
        if keyword in ("host", "match"):
            if inside != "Host *":
                # It holds only where the block around the Include holds; paramiko has no such thing.
                raise ConnectError(
                    f"{where}: {line.strip()!r} in a file that is included by a block", _CORRECT
                )
            if keyword == "match":
                _check_match(value, where)
            block = f"{keyword} {value}"
        yield f"{keyword} {value}"


def _keyword(line: str) -> tuple[str, str]:
    """A line's keyword in lower case and its value without the comment behind it; raises ValueError."""
    found = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(\S.*?)\s*$", line)
    if not found:
        raise ValueError
    keyword, value = found[1].lower(), found[2]
    if keyword not in _KEPT_WHOLE:
        quoted_or_not = re.match(r'((?:"[^"]*"|[^"\s#]\S*|\s+(?!#))*)', value)
        value = quoted_or_not[1].rstrip() if quoted_or_not else value
    return keyword, value


def _included(value: str, beside: Path) -> Iterator[Path]:
    for word in shlex.split(value):
        pattern = Path(word).expanduser()
        pattern = pattern if pattern.is_absolute() else beside / pattern
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _check_match(value: str, where: str) -> None:
    words = iter(shlex.split(value))
    for word in words:
        criterion = word.removeprefix("!").lower()
        if criterion not in _MATCH_CRITERIA:
            known = ", ".join(sorted(_MATCH_CRITERIA))
            raise ConnectError(f"{where}: Match {criterion} is beyond tflaunch (it knows {known})", _CORRECT)
        if criterion not in _MATCH_ALONE:
            next(words, "")


def _hop(spec: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` or an ssh:// URI of the same; an IPv6 address with a port stands in brackets."""
    text = spec.strip().removeprefix("ssh://").rstrip("/")
    user, _, place = text.rpartition("@")
    found = re.fullmatch(r"\[([^]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|([0-9a-fA-F:.%]+)", place)
    if not found:
        raise ConnectError(f"ProxyJump {spec.strip()!r} is not [user@]host[:port]", _CORRECT)
    port = found[2] or found[4]
    return user or None, found[1] or found[3] or found[5], int(port) if port else None


def _agent(found: dict[str, object]) -> str:
    said = str(found.get("identityagent", "SSH_AUTH_SOCK")).strip('"')
    if said.lower() == "none":
        return ""
    if said == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if said.startswith("$"):
        return os.environ.get(said.strip("${}"), "")
    return str(Path(_percent(said, found)).expanduser())


def _strict(found: dict[str, object]) -> StrictHostKeys:
    said = str(found.get("stricthostkeychecking", "ask")).lower()
    if said in ("no", "off"):
        return "off"
    return "accept-new" if said == "accept-new" else "check"


def _family(found: dict[str, object]) -> Literal["any", "inet", "inet6"]:
    said = str(found.get("addressfamily", "any")).lower()
    return "inet" if said == "inet" else "inet6" if said == "inet6" else "any"


def _files(found: dict[str, object], key: str, default: Iterable[str], name: str) -> tuple[Path, ...]:
    # paramiko takes the quotes off a value that is quoted as a whole.
    words = (
        [_percent(word, found, name) for word in shlex.split(str(found[key]))] if key in found else default
    )
    return tuple(Path(word).expanduser() for word in words if word.lower() != "none")


def _percent(text: str, found: dict[str, object], name: str = "") -> str:
    user = getpass.getuser()
    values = {
        "%": "%",
        "d": str(Path.home()),
        "h": str(found["hostname"]),
        "n": name,
        "p": str(found.get("port", SSH_PORT)),
        "r": str(found.get("user", user)),
        "u": user,
        "k": str(found.get("hostkeyalias", found["hostname"])),
    }
    return re.sub(r"%(.)", lambda token: values.get(token[1], token[0]), text)


def _yes(found: dict[str, object], key: str) -> bool:
    return str(found.get(key, "no")).lower() in ("yes", "true")


def _integer(found: dict[str, object], key: str, default: int) -> int:
    said = str(found.get(key, default))
    if said.lower() == "none":
        return default
    if not said.isdecimal():
        raise ConnectError(f"ssh_config: {key} {said!r} is not a number", _CORRECT)
    return int(said)


def _seconds(found: dict[str, object], key: str) -> float | None:
    """A time in OpenSSH's notation (`30`, `30s`, `1m30s`); None when it is not said, or 0."""
    said = str(found.get(key, "none")).lower()
    if said == "none":
        return None
    parts = re.findall(r"(\d+)([smhdw]?)", said)
    if "".join(number + unit for number, unit in parts) != said:
        raise ConnectError(f"ssh_config: {key} {said!r} is not a time", _CORRECT)
    seconds = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return float(sum(int(number) * seconds[unit] for number, unit in parts)) or None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
