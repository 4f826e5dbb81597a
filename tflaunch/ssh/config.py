"""~/.ssh/config, as OpenSSH reads it: from a host to everything that a connection needs; nothing is dialled.

paramiko's parser knows neither Include nor comments behind a value, and takes a Match criterion that it has
never heard of for one that holds; it fills tokens in one after another, so that one's value is taken for the next.
So the text is prepared here first, and tokens are filled in afterwards; what cannot be obeyed is an error.
"""

from __future__ import annotations

import getpass
import glob
import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Literal

import paramiko.config
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError, CouldNotCanonicalize

from tflaunch.hosts import Host
from tflaunch.inputs import hostnames
from tflaunch.inputs.documents import open_regular
from tflaunch.inputs.ownership import written_by_others
from tflaunch.protocol.errors import ConnectError

SSH_PORT = 22
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")

_LARGEST = 4 * 1024 * 1024  # bytes of one file, and of all that it includes
_MATCH_CRITERIA = frozenset(
    {"all", "canonical", "final", "exec", "host", "originalhost", "user", "localuser"}
)
_MATCH_ALONE = frozenset({"all", "canonical", "final"})  # the criteria that take no argument
# Their value is one word; what is behind it is an error of OpenSSH's, too.
_SINGLE = frozenset(
    {
        "addressfamily",
        "connecttimeout",
        "hashknownhosts",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityagent",
        "identityfile",
        "port",
        "proxyusefdpass",
        "stricthostkeychecking",
        "user",
    }
)
# Commands: `#` and quotes are theirs.
_KEPT_WHOLE = frozenset({"proxycommand", "localcommand", "remotecommand", "knownhostscommand"})
_LONGEST_PATH = 4096  # PATH_MAX
_INCLUDE_DEPTH = 16  # OpenSSH's own limit
_HOP_LIMIT = 8
# Silence about these would weaken what the user asked for.
_UNSUPPORTED = {"revokedhostkeys": "none", "proxyusefdpass": "no"}


# Ways in that only `ssh` has: a keyword, its value for no, and what the keyword means.
_BEYOND = {
    "certificatefile": ("none", "CertificateFile"),
    "gssapiauthentication": ("no", "GSSAPIAuthentication"),
    "pkcs11provider": ("none", "PKCS11Provider"),
    "hostbasedauthentication": ("no", "HostbasedAuthentication"),
}


def or_openssh(remedy: str, does: str) -> str:
    """The remedy, and that of the system's `ssh`, which `does` more; where there is none, the remedy alone."""
    other = "`connection: openssh` in the hostfile (or --connection openssh) has the system's `ssh` connect, which "
    if shutil.which("ssh") is None:
        return remedy
    return f"{remedy}; or {other}{does}"


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


class _Parsed(SSHConfig):
    """paramiko's, but for the tokens: those of `Match exec` are filled in as OpenSSH does, the others not yet."""

    def _tokenize(self, config: Mapping[str, object], target_hostname: str, _: str, value: str) -> str:
        return _percent(value, {"hostname": target_hostname, **config}, target_hostname)

    def _expand_variables(self, config: object, _: str) -> object:
        return config


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
    beyond: tuple[str, ...] = ()  # what would let `ssh` in, and is not known here
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
        # Who else may write these is no question to ssh either, but for what they include.
        trusted = (path, SYSTEM_CONFIG)
        self._texts = [
            "\n".join(prepared(file, file.parent if file in trusted else None, named=file in trusted))
            for file in files
            if path or os.path.exists(file)  # noqa: PTH110  Path.exists may raise
        ]
        self._shared = self._parse("")

    def target(self, host: Host) -> Target:
        """Everything that a connection to `host` needs; the hostfile's own settings win over ssh_config."""
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

    def _parse(self, first: str) -> SSHConfig:
        config = _Parsed()
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
            raise ConnectError(
                f"ssh_config forbids a name that cannot be canonicalized: {error}", _CORRECT
            ) from None
        except (KeyError, ValueError, OSError) as error:
            raise ConnectError(f"ssh_config cannot be read: {error!r}", _CORRECT) from None
        if found["hostname"] != name:  # ssh_config's
            found["hostname"] = _percent(str(found["hostname"]), {"hostname": name}, name, "hn")
        for key, harmless in _UNSUPPORTED.items():
            if str(found.get(key, harmless)).lower() != harmless:
                raise ConnectError(
                    f"ssh_config sets {key}, which tflaunch cannot obey", or_openssh(_CORRECT, "obeys it")
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
        found = self._lookup(name, user=user, port=port, identityfile=identity)
        if jump is not None:  # the hostfile's, or the hops before this one
            found.pop("proxycommand", None)
            found["proxyjump"] = jump
        given = {"-F": self._path, "-l": user, "-p": port, "-i": identity, "-J": jump if not before else None}
        words = [word for key, value in given.items() if value is not None for word in (key, str(value))]
        hostname = str(found["hostname"])
        number = _integer(found, "port", SSH_PORT)
        named = [
            _percent(str(file), found, name)
            for file in _list(found.get("identityfile"))
            if str(file).lower() != "none"
        ]
        alias = str(found.get("hostkeyalias", "")).lower()
        jumps, command = self._way(name, found, before)
        return Target(
            name=name,
            hostname=hostname,
            port=number,
            user=str(found.get("user") or getpass.getuser()),
            identities=tuple(map(_expanded, named))
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
            beyond=_beyond(found),
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
                return (), _percent(str(value), found, name)
            if key == "proxyjump":
                text = _percent(str(value), found, name)
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


def host_names(path: Path) -> list[str]:
    """The hosts that an ssh_config spells out, with what it includes, in their order; patterns are none.

    Empty where there is no such file.  Raises ConnectError for what cannot be read.
    """
    if not os.path.exists(path):  # noqa: PTH110  Path.exists may raise
        return []
    found: dict[str, None] = {}
    for line in prepared(path, path.parent if path != Path.home() / ".ssh/config" else None):
        keyword, _, value = line.partition(" ")
        if keyword != "host":
            continue
        for word in value.replace('"', " ").split():
            if not re.search(r"[*?!\[\],/]", word):
                try:
                    hostnames.check(word)
                except ValueError:
                    continue
                found[word] = None
    return list(found)


def known_hosts_name(hostname: str, port: int) -> str:
    """How known_hosts writes a server: its name in lower case, with the port when that is not 22."""
    name = hostname.lower()
    return name if port == SSH_PORT else f"[{name}]:{port}"


_CORRECT = "correct it, or give another file with --ssh-config"
_HOSTFILE = "correct it in the hostfile, or remove the run's record: it was not written by tflaunch"


def prepared(
    path: Path,
    beside: Path | None,
    depth: int = 0,
    inside: str = "Host *",
    *,
    named: bool = True,
    size: list[int] | None = None,
) -> Iterator[str]:
    """The lines of an ssh_config as paramiko understands them, with its Includes in their place.

    `beside` is where relative Includes look (None: ~/.ssh); `inside` is the block that the file stands in; a file
    that is not `named` by the user must be one that nobody else may write; `size` counts the bytes of all of them.
    Raises ConnectError.
    """
    if depth > _INCLUDE_DEPTH:
        raise ConnectError(f"{path}: Too many recursive configuration includes", _CORRECT)
    block, has_command = inside, False
    for number, line in enumerate(_lines(path, named, size := size or [0]), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        keyword, value, words = _keyword(line, where)
        if keyword == "include":
            for file in _included(words, beside or Path.home() / ".ssh", where):
                yield from prepared(file, beside, depth + 1, block, named=False, size=size)
                yield block  # what the file opened ends with it
            continue
        if keyword in ("host", "match"):
            if inside != "Host *":
                # It holds only where the block around the Include holds; paramiko has no such thing.
                raise ConnectError(
                    f"{where}: {line.strip()!r} in a file that is included by a block",
                    or_openssh(_CORRECT, "reads it"),
                )
            block, has_command = f"{keyword} {value}", False
        if keyword == "proxycommand":
            if has_command and value.lower() == "none":
                continue  # the first one holds; paramiko takes this one
            has_command = True
        yield f"{keyword} {value}"


def _lines(path: Path, named: bool, size: list[int]) -> list[str]:
    try:
        with open_regular(path) as file:
            if not named and (reason := written_by_others(path, os.fstat(file.fileno()))):
                raise ConnectError(
                    f"Bad owner or permissions on {path}: it {reason}",
                    f"look into it, then: chown {shlex.quote(getpass.getuser())} {shlex.quote(str(path))}; "
                    f"chmod go-w {shlex.quote(str(path))}",
                )
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConnectError(f"{path}: {error.strerror}", _CORRECT) from None
    size[0] += len(content)
    if size[0] > _LARGEST:
        what = (
            "is larger than"
            if len(content) > _LARGEST
            else "and the files before it are together larger than"
        )
        raise ConnectError(f"{path}: {what} {_LARGEST // 1024**2} MiB; is it an ssh_config?", _CORRECT)
    if (at := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, at) + 1
        raise ConnectError(f"{path}:{line}: a binary file; is it an ssh_config?", _CORRECT)
    return content.decode(errors="surrogateescape").split("\n")


def _keyword(line: str, where: str) -> tuple[str, str, list[str]]:
    """A line's keyword in lower case, its value for paramiko, and the words of it; raises ConnectError."""
    found = re.match(r'\s*(?:"(\w+)"|(\w+))(?:\s*=\s*|\s+)(\S.*?)\s*$', line)
    if not found:
        raise ConnectError(f"{where}: {_short(line)} is not a keyword and a value", _CORRECT)
    keyword = (found[1] or found[2]).lower()
    try:
        words = split(found[3])
    except ValueError:
        raise ConnectError(f"{where}: invalid quotes: {_short(line)}", _CORRECT) from None
    if keyword in _KEPT_WHOLE:
        return keyword, found[3], words
    if not words:
        raise ConnectError(f'{where}: no argument after keyword "{keyword}"', _CORRECT)
    if keyword in _SINGLE and len(words) > 1:
        raise ConnectError(f"{where}: keyword {keyword} extra arguments at end of line", _CORRECT)
    if keyword == "host":
        if not all(words):
            raise ConnectError(f"{where}: keyword host empty argument", _CORRECT)
        return keyword, shlex.join(map(_literal, words)), words
    if keyword == "match":
        return keyword, shlex.join(_criteria(words, where)), words
    if keyword in ("userknownhostsfile", "globalknownhostsfile"):
        return keyword, shlex.join(words), words
    return keyword, " ".join(words), words


def split(text: str) -> list[str]:
    """The words of a line as OpenSSH cuts it, up to a comment (argv_split of its misc.c); raises ValueError."""
    words: list[str] = []
    word: str | None = None  # None: between words
    quote = ""
    rest = iter(range(len(text)))
    for at in rest:
        letter, after = text[at], text[at + 1 : at + 2]
        if not quote and letter in " \t":
            words += [] if word is None else [word]
            word = None
        elif word is None and letter == "#":
            return words
        elif letter == "\\" and after and (after in "\"'\\" or (after == " " and not quote)):
            word = (word or "") + after
            next(rest)
        elif quote == letter:
            quote = ""
        elif not quote and letter in "\"'":
            word, quote = word or "", letter
        else:
            word = (word or "") + letter
    if quote:
        raise ValueError("invalid quotes")
    return words if word is None else [*words, word]


def _included(words: list[str], beside: Path, where: str) -> Iterator[Path]:
    """The files that are meant; where there is none, ssh says nothing either, nor of a user who does not exist."""
    for word in words:
        pattern = os.path.join(beside, os.path.expanduser(word))  # noqa: PTH111, PTH118  Path's raises for no user
        if len(os.fsencode(pattern)) > _LONGEST_PATH:
            raise ConnectError(f"{where}: bad include path {_short(word)}: it is too long", _CORRECT)
        try:
            found = sorted(glob.glob(pattern))  # noqa: PTH207  Path's matches names with a dot in front
        except RecursionError:
            raise ConnectError(
                f"{where}: bad include path {_short(word)}: it is too deep", _CORRECT
            ) from None
        yield from (Path(path) for path in found if not os.path.isdir(path))  # noqa: PTH112


def _criteria(words: list[str], where: str) -> list[str]:
    """The criteria of a Match with their arguments, as paramiko understands them."""
    criteria: list[str] = []
    rest = iter(words)
    for word in rest:
        criterion = word.removeprefix("!").lower()
        if criterion not in _MATCH_CRITERIA:
            known = ", ".join(sorted(_MATCH_CRITERIA))
            raise ConnectError(
                f"{where}: Match {_short(criterion)} is beyond tflaunch (it knows {known})",
                or_openssh(_CORRECT, "may know it"),
            )
        criteria.append("!" * word.startswith("!") + criterion)
        if criterion in _MATCH_ALONE:
            continue
        argument = next(rest, "")
        if not argument:
            raise ConnectError(f"{where}: Missing Match criteria for {criterion}", _CORRECT)
        criteria.append(argument if criterion == "exec" else _literal(argument))
    return criteria


def _literal(pattern: str) -> str:
    """A pattern of OpenSSH's, in which only `*` and `?` mean more than themselves, for fnmatch."""
    return pattern.replace("[", "[[]")


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def check_host(host: Host, name: str) -> None:
    """Refuse what OpenSSH would refuse on its command line, whatever brought it here: a shell may see it next."""
    hops = [] if host.proxy_jump is None else [hop.rpartition("@") for hop in host.proxy_jump.split(",")]
    said = [
        ("name", host.name, hostnames.check_machine),
        ("ssh", name, hostnames.check_machine),
        ("user", host.user or "", hostnames.check_user),
        *(("proxy_jump", user.removeprefix("ssh://"), hostnames.check_user) for user, _, _ in hops),
        *(("proxy_jump", place, hostnames.check_machine) for _, _, place in hops),
    ]
    for key, text, check in said:
        try:
            check(text)
        except ValueError as error:
            raise ConnectError(f"{key}: {_short(text)} {error}", _HOSTFILE) from None
    if host.port is not None and not isinstance(host.port, int):
        raise ConnectError(f"port: {_short(str(host.port))} is not a number", _HOSTFILE)
    if host.identity_file is not None and not host.identity_file.isprintable():
        raise ConnectError(
            f"identity_file: {_short(host.identity_file)} holds a control character", _HOSTFILE
        )


def _hop(spec: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]` or an ssh:// URI of the same; an IPv6 address with a port stands in brackets."""
    text = spec.strip().removeprefix("ssh://").rstrip("/")
    user, _, place = text.rpartition("@")
    found = re.fullmatch(r"\[([^]]+)\](?::([0-9]{1,5}))?|([^:]+)(?::([0-9]{1,5}))?|([0-9a-fA-F:.%]+)", place)
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
    return str(_expanded(_percent(said, found)))


def _strict(found: dict[str, object]) -> StrictHostKeys:
    said = str(found.get("stricthostkeychecking", "ask")).lower()
    if said in ("no", "off"):
        return "off"
    return "accept-new" if said == "accept-new" else "check"


def _family(found: dict[str, object]) -> Literal["any", "inet", "inet6"]:
    said = str(found.get("addressfamily", "any")).lower()
    return "inet" if said == "inet" else "inet6" if said == "inet6" else "any"


def _expanded(name: str) -> Path:
    """The path, `~` filled in; that of a user whom this machine does not know stays as it is, and leads nowhere."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  Path's own raises


def _files(found: dict[str, object], key: str, default: Iterable[str], name: str) -> tuple[Path, ...]:
    # paramiko takes the quotes off a value that is quoted as a whole.
    words = (
        [_percent(word, found, name) for word in shlex.split(str(found[key]))] if key in found else default
    )
    return tuple(_expanded(word) for word in words if word.lower() != "none")


def _percent(text: str, found: Mapping[str, object], name: str = "", allowed: str = "dhijklLnpruC") -> str:
    """Fill in OpenSSH's tokens, all at once: what one brings is no token.  Raises ConnectError."""

    def value(token: re.Match[str]) -> str:
        letter = token[1]
        if letter == "%":
            return "%"
        if letter not in allowed:
            raise ConnectError(f"ssh_config: unknown key %{letter} in {_short(text)}", _CORRECT)
        hostname, port = str(found["hostname"]), str(found.get("port", SSH_PORT))
        user = getpass.getuser()
        remote, jump = str(found.get("user", user)), str(found.get("proxyjump", ""))
        match letter:
            case "d":
                return str(Path.home())
            case "h":
                return hostname
            case "i":
                return str(os.getuid())
            case "j":
                return jump
            case "k":
                return str(found.get("hostkeyalias", name))
            case "l":
                return socket.gethostname()
            case "L":
                return socket.gethostname().partition(".")[0]
            case "n":
                return name
            case "p":
                return port
            case "r":
                return remote
            case "u":
                return user
        whole = f"{socket.gethostname()}{hostname}{port}{remote}{jump}"
        return hashlib.sha1(whole.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()

    return re.sub(r"(?s)%(.?)", value, text)


def _beyond(found: Mapping[str, object]) -> tuple[str, ...]:
    said = [key for key, (no, _) in _BEYOND.items() if _first(found, key, no).lower() != no]
    # Many systems say yes for everybody; it is of use to whoever has a ticket.
    tickets = os.environ.get("KRB5CCNAME") or os.path.exists(f"/tmp/krb5cc_{os.getuid()}")  # noqa: PTH110, S108
    return tuple(_BEYOND[key][1] for key in said if key != "gssapiauthentication" or tickets)


def _first(found: Mapping[str, object], key: str, default: str) -> str:
    """The value; of those that may be said often, the first."""
    return str(next(iter(_list(found.get(key))), default))


def _yes(found: dict[str, object], key: str) -> bool:
    return str(found.get(key, "no")).lower() in ("yes", "true")


def _integer(found: dict[str, object], key: str, default: int) -> int:
    said = str(found.get(key, default))
    if said.lower() == "none":
        return default
    if not re.fullmatch(r"[0-9]{1,9}", said) or not 0 < int(said) < 65536:
        raise ConnectError(f"ssh_config: {key} {_short(said)} is not a number from 1 to 65535", _CORRECT)
    return int(said)


def _seconds(found: dict[str, object], key: str) -> float | None:
    """A time in OpenSSH's notation (`30`, `30s`, `1m30s`); None when it is not said, or 0."""
    said = str(found.get(key, "none")).lower()
    if said == "none":
        return None
    parts = re.findall(r"([0-9]{1,9})(?![0-9])([smhdw]?)", said)
    if "".join(number + unit for number, unit in parts) != said:
        raise ConnectError(f"ssh_config: {key} {_short(said)} is not a time", _CORRECT)
    seconds = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return float(sum(int(number) * seconds[unit] for number, unit in parts)) or None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
