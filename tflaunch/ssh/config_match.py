"""Which settings of an ssh_config hold for a host: Host and Match lines, canonical names."""

from __future__ import annotations

import contextlib
import fnmatch
import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.config_keywords import KEYWORDS, YES, port_number
from tflaunch.ssh.config_lines import EVERYWHERE, Block, Criterion, SshSetting
from tflaunch.ssh.deadline import NameTimeout
from tflaunch.ssh.failures import CORRECT, or_openssh
from tflaunch.ssh.resolver import look_up
from tflaunch.ssh.target import SSH_PORT, shortened
from tflaunch.ssh.tokens import OF_HOSTNAME, OF_MATCH, Tokens, local_user

FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
LOOK_UP_S = 30.0  # for each of CanonicalDomains: the system's resolver may try several servers
_COLLECTED = ("identityfile", "certificatefile")  # every line adds to them


class Answers(dict[str, list[str]]):
    """What ssh_config says of a host: keyword in lower case -> the words of its value.

    Of IdentityFile and CertificateFile they are those of every line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], str] = {}

    def add(self, setting: SshSetting) -> None:
        """Take what a line says, if no line before it has said it."""
        found = self.setdefault(setting.keyword, [])
        if found and setting.keyword not in _COLLECTED:
            return
        for word in setting.words:
            if word not in found or setting.keyword not in _COLLECTED:
                self._places[setting.keyword, len(found)] = setting.where
                found.append(word)

    def first(self, keyword: str, default: str = "") -> str:
        """The value of a keyword; of one that several lines may set, the first."""
        return next(iter(self.get(keyword, ())), default)

    def where(self, keyword: str, index: int = 0) -> str:
        """FILE:LINE of that word of a keyword's value; "" for what no file says."""
        return self._places.get((keyword, index), "")

    def is_on(self, keyword: str, default: str = "no") -> bool:
        """Whether a keyword says yes."""
        return self.first(keyword, default).lower() in YES


def answers(settings: Iterable[SshSetting], name: str) -> Answers:
    """What the settings say of the host `name`, in their order; `hostname` is what is to be dialled.

    Raises ConnectError.
    """
    settings = tuple(settings)
    found = Answers()
    _collect(settings, found, name, name)
    hostname = name
    if "hostname" in found:
        tokens = Tokens(name, hostname=name)
        hostname = tokens.filled(found.first("hostname"), OF_HOSTNAME, found.where("hostname"))
    hostname = _small(hostname)
    canonical = _canonical_name(hostname, found)
    found["hostname"] = [canonical or hostname]
    again = any(each.name == "final" for setting in settings for each in setting.block.criteria)
    if again or found.first("canonicalizehostname", "no").lower() not in ("no", "false"):
        # Now a Host line is compared with what is to be dialled, too.
        _collect(settings, found, found.first("hostname"), name, final=True)
    return found


def _collect(
    settings: Sequence[SshSetting], found: Answers, host: str, name: str, *, final: bool = False
) -> None:
    """Add the settings of the blocks that hold for `host`, which is `name` to the user.

    A Match sees what was found before it.
    """
    holding: dict[int, bool] = {id(EVERYWHERE): True}  # decided at a block's line, for all its settings

    def holds(block: Block) -> bool:
        known = id(block)
        if known not in holding:
            holding[known] = (block.outer is None or holds(block.outer)) and _holds(
                block, found, host, name, final
            )
        return holding[known]

    for setting in settings:
        active = holds(setting.block)
        if setting.keyword not in KEYWORDS:
            _check_ignored(setting, found)
        elif active and setting.keyword != "match":
            found.add(setting)


def _check_ignored(setting: SshSetting, found: Answers) -> None:
    """Raise ConnectError for a keyword that nobody knows, unless an IgnoreUnknown before it names it."""
    if _matches(setting.keyword, found.first("ignoreunknown").lower().split(",")):
        return
    raise ConnectError(
        f"{setting.where}: Bad configuration option: {shortened(setting.keyword)}",
        or_openssh(CORRECT, "may know it"),
    )


def _holds(block: Block, found: Answers, host: str, name: str, final: bool) -> bool:
    if not block.criteria:
        return _matches(host, block.patterns)
    hostname = host
    if not final and "hostname" in found:
        hostname = Tokens(name, hostname=name).filled(
            found.first("hostname"), OF_HOSTNAME, found.where("hostname")
        )
    result = True
    for each in block.criteria:
        if each.name == "exec" and not result:
            continue  # once a condition has failed, ssh runs no command
        if each.name in ("all", "final", "canonical"):
            met = final or each.name == "all"
        else:
            met = _meets(each, found, hostname, name)
        if met == each.negated:
            result = False
    return result


def _meets(criterion: Criterion, found: Answers, hostname: str, name: str) -> bool:
    argument = criterion.argument
    user = found.first("user") or local_user()
    if criterion.name == "exec":
        alias = found.first("hostkeyalias") or hostname
        number = str(port_number(found.first("port", str(SSH_PORT))))
        tokens = Tokens(name, hostname=hostname, port=number, user=user, alias=alias)
        return _succeeds(tokens.filled(argument, OF_MATCH))
    if criterion.name == "host":
        return _matches(hostname.lower(), argument.lower().split(","))
    if criterion.name == "originalhost":
        return _matches(name.lower(), argument.lower().split(","))
    return _matches(user if criterion.name == "user" else local_user(), argument.split(","))


def _succeeds(command: str) -> bool:
    """Whether the command of a `Match exec` ends with 0; it gets no input: the terminal is the user's."""
    shell = os.environ.get("SHELL", "/bin/sh")
    done = subprocess.run(
        [shell, "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


def _matches(text: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches and none with a `!` does; only `*` and `?` mean more than themselves."""
    hits = [
        pattern
        for pattern in patterns
        if fnmatch.fnmatchcase(text, pattern.removeprefix("!").replace("[", "[[]"))
    ]
    return bool(hits) and not any(pattern.startswith("!") for pattern in hits)


def _small(hostname: str) -> str:
    """The name in small letters; an address stays as it is."""
    return hostname if _is_address(hostname) else hostname.lower()


def _canonical_name(hostname: str, found: Answers) -> str:
    """The name in one of CanonicalDomains that resolves; "" where names are not to be canonicalized."""
    wanted = found.first("canonicalizehostname", "no").lower()
    if wanted in ("no", "false") or _is_address(hostname):
        return ""
    ways = [found.first(keyword, "none") for keyword in ("proxycommand", "proxyjump")]
    if wanted != "always" and any(way.lower() != "none" for way in ways):
        return ""  # who leads there looks the name up
    if hostname.endswith("."):
        return hostname.rstrip(".")
    most_dots = int(found.first("canonicalizemaxdots", "1"))
    if most_dots >= 0 and hostname.count(".") > most_dots:
        return ""
    family = FAMILIES[found.first("addressfamily", "any").lower()]
    for domain in found.get("canonicaldomains", ()):
        longer = f"{hostname}.{domain}"
        try:
            look_up(longer, None, family, LOOK_UP_S)
        except NameTimeout:
            raise ConnectError(
                f"CanonicalizeHostname: no name server has answered for {longer} within {LOOK_UP_S:g} s",
                "does this machine reach its name servers (/etc/resolv.conf)?",
            ) from None
        except (OSError, UnicodeError):
            continue
        return _small(longer)
    if not found.is_on("canonicalizefallbacklocal", "yes"):
        raise ConnectError(f"ssh_config forbids a name that cannot be canonicalized: {hostname}", CORRECT)
    return ""


def _is_address(hostname: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(hostname)
        return True
    return False
