"""Generated ssh_configs, and what `ssh -G` and tflaunch make of each: keywords, spellings, nesting, Match, variables.

Whatever `ssh` refuses tflaunch refuses; what `ssh` takes means the same, or is refused with the proposal to have the
system's `ssh` connect.
"""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.config_keywords import ALIASES, KEYWORDS
from tflaunch.ssh.ssh_config import SshConfig
from tflaunch.ssh.target import Target

NAMES = ("gpu01", "GPU01", "gpu02", "10.0.0.1", "a.lab", "::1")
# Keywords that ssh has learnt after 9.2, the version by which these tests were written.
NEWER = {
    "channeltimeout",
    "obscurekeystroketiming",
    "refuseconnection",
    "tag",
    "versionaddendum",
    "warnweakcrypto",
}
PATTERNS = (
    *(
        "gpu*",
        "gpu0?",
        "!gpu01",
        "*",
        "gpu01",
        "GPU*",
        "10.*",
        "*.lab",
        "!*.lab",
        "g[p]u01",
        '"gpu01"',
        "'gpu*'",
    ),
    *("gpu02,gpu01", "'a b'"),
)
VALUES = {
    "User": ("ann", '"bob"', "%u", "${LAB}", "'c d'", "a b", '"', "#", "ann # why", "ann#why", "$LAB", ""),
    "Port": (
        "22",
        "ssh",
        "2222",
        "nosuch",
        "0",
        "65536",
        "+23",
        "0x16",
        '"24"',
        "22 23",
        "SSH",
        "domain",
        "-1",
    ),
    "HostName": (
        "10.0.0.1",
        "%h.lab",
        "%n",
        "%%x",
        "A.Lab",
        "gpu02",
        "::1",
        "${LAB}",
        "%h%h",
        "h.",
        "%",
        "10.0.0.1 x",
    ),
    "IdentityFile": ("~/.ssh/a", "/k/b", "none", "rel", '"/k/c d"', "/k/b", "'"),
    "CertificateFile": ("/k/cert", "none"),
    "UserKnownHostsFile": (
        *(
            "~/kh",
            "${LAB}/kh /k/kh",
            "%d/%h-%n-%p-%r-%u-%k-%i",
            "none",
            "none /x",
            "${NOPE}/x",
            "${LAB",
            "%z",
            "$LAB/x",
        ),
        *("'/k/a b' ~/c", "%C", "~nosuch/x", "a${}b", "%%h", "${LAB}${LAB}", "%j"),
    ),
    "GlobalKnownHostsFile": ("~/kh /etc/kh", "none", "%d/${LAB}"),
    "HostKeyAlias": ("Alias", "%h", "${LAB}", "a b"),
    "StrictHostKeyChecking": ("yes", "ASK", "no", "accept-new", "off", "maybe", "true", "false"),
    "HashKnownHosts": ("yes", "No", "true", "maybe", "1"),
    "IdentitiesOnly": ("yes", "no", "TRUE", "on"),
    "AddressFamily": ("inet", "INET6", "any", "inet4"),
    "ConnectTimeout": ("5", "1m30s", "1M", "none", "None", "0", "-1", "1y", "5 6", "1h 2m", ""),
    "ProxyCommand": ("nc %h %p", "none", 'nc "%n" %r # x', "= nc", "nc %%h", "'nc' \"a b\"", '"'),
    "ProxyJump": (
        *(
            "jump",
            "none",
            "ann@jump:2022",
            "a,b",
            "None",
            "a # why",
            "none # why",
            ",a",
            "a,",
            "ann@",
            "@a",
            "a:0",
        ),
        *("a:99999", "a:ssh", "ssh://ann@a:22", "[::1]:22", "::1", "a:", "a b,c"),
    ),
    "CanonicalizeHostname": ("yes", "no", "always", "maybe"),
    "CanonicalizeMaxDots": ("0", "x", "2"),
    "IdentityAgent": ("none", "SSH_AUTH_SOCK", "$LAB", "${LAB}/s", "${NOPE}/s", "~/s", "$N-A", "%d/s"),
    "IgnoreUnknown": ("UseKeychain", "use*,no*", "*,!usekeychain", "nosuch"),
    "UseKeychain": ("yes",),
    "NoSuchKeyword": ("yes", '"'),
    "Ciphers": ("aes128-ctr", "-aes*", "+aes128-cbc", "^aes256-ctr"),
    "RequiredRSASize": ("2048", "big"),
    "Compression": ("yes", "maybe"),
    "ServerAliveInterval": ("5", "x", "1m"),
    "CheckHostIP": ("no", "yes"),
    "KnownHostsCommand": ("none", "/bin/true %H"),
    "PubkeyAuthentication": ("yes", "no", "unbound", "dunno"),
    "PreferredAuthentications": ("publickey", "password"),
    "BindAddress": ("127.0.0.1",),
    "DSAAuthentication": ("yes", "x"),
    "KeepAlive": ("yes", "x"),
    "Protocol": ("2",),
    "SendEnv": ("LANG LC_*",),
}
WORDS = ("host", "originalhost", "user", "localuser", "Host", "!host", "!originalhost", "!user", "!localuser")
ARGUMENTS = (*PATTERNS, "ann", "root", "ro*,!root", "x", "!x", "")
CONDITIONS = (
    "all",
    "final",
    "canonical",
    "!final",
    "!all",
    "exec true",
    "!exec false",
    'exec "test %h = 10.0.0.1"',
)
ODD = (
    "# x",
    "",
    "  ",
    "nonsense",
    "Port",
    "=",
    '"Port" 23',
    "Port=24",
    "Port = 25",
    "Port==26",
    "\tPort\t27 ",
    "Host",
)


@dataclass
class Generated:
    """A configuration with the files that it includes, and the host that is asked about."""

    seed: int
    files: dict[str, str] = field(default_factory=dict)  # by name; "config" is the one that is named
    name: str = ""

    def __str__(self) -> str:
        texts = [f"--- {name}\n{text}" for name, text in self.files.items()]
        return "\n".join([f"seed {self.seed}: ssh -G -F config {self.name}", *texts])


def generated(seed: int) -> Generated:
    """The configuration of that number."""
    chance = random.Random(seed)  # noqa: S311
    made = Generated(seed, name=chance.choice(NAMES))
    # Some have nothing wrong with them, so that what they mean is compared.
    wild = chance.random() < 0.5
    for name, depth in (("two", 2), ("one", 1), ("config", 0)):
        made.files[name] = "".join(
            _line(chance, depth, wild) for _ in range(chance.randint(1, 4 if depth else 8))
        )
    return made


def _line(chance: random.Random, depth: int, wild: bool) -> str:
    kind = chance.random()
    if kind < 0.2:
        line = "Host " + " ".join(chance.sample(PATTERNS, chance.randint(1, 2)))
    elif kind < 0.4:
        line = chance.choice(("Match ", "Match ", "match\t")) + _conditions(chance, wild)
    elif kind < 0.5 and depth < 2:
        line = (
            "Include DIRECTORY/" + chance.choice(("one", "two", "t*", "none"))
            if depth == 0
            else "Include DIRECTORY/two"
        )
    elif kind < 0.53 and wild:
        line = chance.choice(ODD)
    else:
        keyword = chance.choice(list(VALUES))
        values = VALUES[keyword] if wild else VALUES[keyword][:3]
        if not wild and keyword in (
            "NoSuchKeyword",
            "UseKeychain",
            "Ciphers",
            "CheckHostIP",
            "KnownHostsCommand",
        ):
            return "# nothing\n"
        spelt = chance.choice((keyword, keyword, keyword.lower(), keyword.upper()))
        line = f"{spelt}{chance.choice((' ', ' ', '  ', ' = ', '='))}{chance.choice(values)}"
    return chance.choice(("", "", "  ", "\t")) + line + "\n"


def _conditions(chance: random.Random, wild: bool) -> str:
    made = []
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.4:
            made.append(chance.choice(CONDITIONS if wild else CONDITIONS[:3]))
        else:
            gap = chance.choice((" ", " ", "=", " = ")) if wild else " "
            argument = chance.choice(ARGUMENTS if wild else ARGUMENTS[:9])
            made.append(chance.choice(WORDS) + gap + argument)
        if made[-1] == "all":
            break
    return " ".join(made)


def disagreement(made: Generated, directory: Path) -> str:
    """In what ssh and tflaunch differ about a configuration; "" where they agree.

    The directory must be written by nobody else; $LAB is set in it, $NOPE is not.
    """
    for name, text in made.files.items():
        (directory / name).write_text(text.replace("DIRECTORY", str(directory)))
    config = directory / "config"
    asked = subprocess.run(
        ["ssh", "-G", "-F", str(config), made.name],
        capture_output=True,
        text=True,
        check=False,
        errors="surrogateescape",
        stdin=subprocess.DEVNULL,
    )
    try:
        ours = SshConfig(config).target(Host(name=made.name))
    except ConnectError as error:
        if asked.returncode == 0 and not may_be_refused(error):
            return f"{made}\nssh takes it; tflaunch: {error.message}"
        return ""
    if asked.returncode:
        return f"{made}\ntflaunch takes it; ssh: {asked.stderr}"
    theirs: dict[str, list[str]] = {}
    for line in asked.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        theirs.setdefault(keyword, []).append(value)
    wrong = [
        f"{what}: tflaunch {mine!r}, ssh {its!r}"
        for what, (mine, its) in _compared(ours, theirs).items()
        if mine != its
    ]
    return f"{made}\n" + "\n".join(wrong) if wrong else ""


def may_be_refused(error: ConnectError) -> bool:
    """Whether tflaunch may refuse in that way what ssh takes: it says so, and proposes `ssh` itself.

    What `ssh -G` prints as it is written (IdentityFile) it refuses only later, when it connects.
    """
    later = (
        "which is not set",
        "unknown key",
        "no such user",
        "no public key",
        "RevokedHostKeys",
        "CanonicalDomains",
    )
    return "connection: openssh" in error.hint or any(word in error.message for word in later)


def _compared(ours: Target, theirs: dict[str, list[str]]) -> dict[str, tuple[object, object]]:
    def first(keyword: str, default: str = "") -> str:
        return theirs.get(keyword, [default])[0]

    def files(keyword: str) -> str:
        said = first(keyword)
        return "" if said.lower() == "none" else said

    def home(path: str) -> str:
        return str(Path(path).expanduser())

    strict = {"ask": "check", "true": "check", "accept-new": "accept-new", "false": "off"}
    tokens = {"%%": "%", "%h": ours.hostname, "%p": str(ours.port), "%n": ours.name, "%r": ours.user}
    command = "".join(tokens.get(part, part) for part in _parts(first("proxycommand")))
    identities = [name for name in theirs.get("identityfile", ()) if name.lower() != "none"]
    timeout = first("connecttimeout", "none")
    alias = first("hostkeyalias")
    compared: dict[str, tuple[object, object]] = {
        "hostname": (ours.hostname, first("hostname")),
        "port": (ours.port, int(first("port"))),
        "user": (ours.user, first("user")),
        "known": (
            " ".join(map(str, ours.known_hosts)),
            " ".join(home(word) for word in files("userknownhostsfile").split(" ") if word),
        ),
        "strict": (ours.strict, strict[first("stricthostkeychecking")]),
        "hashed": (ours.hash_known_hosts, first("hashknownhosts") == "yes"),
        "only": (ours.identities_only, first("identitiesonly") == "yes"),
        "family": (ours.family, first("addressfamily")),
        "bind address": (ours.bind_address, first("bindaddress")),
        "timeout": (ours.timeout_s, None if timeout in ("none", "0") else float(timeout)),
        "command": (ours.proxy_command, command),
        "jumps": (bool(ours.jumps), bool(first("proxyjump")) and first("proxyjump") != ours.name),
        "bits": (ours.rsa_bits or 1024, int(first("requiredrsasize", "1024"))),
    }
    if alias:
        compared["alias"] = (ours.host_key_name, alias)
    if ours.identities_named and identities:
        compared["keys"] = ([str(path) for path in ours.identities], [home(name) for name in identities])
    return compared


def _parts(text: str) -> list[str]:
    parts = []
    while text:
        size = 2 if text[0] == "%" else 1
        parts.append(text[:size])
        text = text[size:]
    return parts


def keywords_unlike(directory: Path) -> list[str]:
    """The keywords of tflaunch's table that ssh does not know."""
    unlike = []
    for keyword in sorted({*KEYWORDS, *ALIASES} - NEWER):
        config = directory / "keyword"
        config.write_text(f"{keyword} yes\n")
        asked = subprocess.run(
            ["ssh", "-G", "-F", str(config), "x"], capture_output=True, text=True, check=False
        )
        if "Bad configuration option" in asked.stderr:
            unlike.append(keyword)
    return unlike


def prepare() -> None:
    """Set the variables that the configurations name."""
    os.environ["LAB"] = "/lab"
    os.environ.pop("NOPE", None)
