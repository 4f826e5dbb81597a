"""Which settings of an ssh_config hold for a host: Host and Match lines, canonical names, tokens."""

from __future__ import annotations

import contextlib
import fnmatch
import getpass
import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.config_lines import CORRECT, Block, Criterion, Setting
from tflaunch.ssh.target import SSH_PORT, shortened

# keyword in lower case -> the words of its value; of IdentityFile, those of every line
Answers = Mapping[str, Sequence[str]]

FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


def answers(settings: Iterable[Setting], name: str) -> dict[str, list[str]]:
    """What the settings say of the host `name`, in their order, with the tokens in HostName filled in.

    Of each keyword the first value holds; of IdentityFile all do.  Raises ConnectError.
    """
    settings = tuple(settings)
    found: dict[str, list[str]] = {}
    _collect(settings, found, name)
    found.setdefault("hostname", [name])
    canonical = _canonical_name(name, found)
    if canonical:
        found["hostname"] = [canonical]
    _collect(settings, found, canonical or name, canonical=bool(canonical), final=True)
    return found


def first(found: Answers, keyword: str, default: str = "") -> str:
    """The value of a keyword; of one that several lines may set, the first."""
    return next(iter(found.get(keyword, ())), default)


def expanded(text: str, found: Answers, name: str = "", allowed: str = "dhijklLnpruC") -> str:
    """Fill in OpenSSH's tokens, all at once: a value that holds a `%` brings no token.  Raises ConnectError."""

    def value(token: re.Match[str]) -> str:
        letter = token[1]
        if letter == "%":
            return "%"
        if letter not in allowed:
            raise ConnectError(f"ssh_config: unknown key %{letter} in {shortened(text)}", CORRECT)
        hostname, port = first(found, "hostname"), first(found, "port", str(SSH_PORT))
        remote, jump = first(found, "user", getpass.getuser()), first(found, "proxyjump")
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
                return first(found, "hostkeyalias", name)
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
                return getpass.getuser()
        whole = f"{socket.gethostname()}{hostname}{port}{remote}{jump}"
        return hashlib.sha1(whole.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()

    return re.sub(r"(?s)%(.?)", value, text)


def _collect(
    settings: Sequence[Setting],
    found: dict[str, list[str]],
    name: str,
    *,
    canonical: bool = False,
    final: bool = False,
) -> None:
    """Add the settings of the blocks that hold for `name`; a Match sees what was found before it."""
    holding: dict[int, bool] = {}  # decided at the first setting of a block, for all of them
    for setting in settings:
        block = id(setting.block)
        if block not in holding:
            holding[block] = _holds(setting.block, found, name, canonical, final)
        if not holding[block]:
            continue
        if setting.keyword == "hostname" and "hostname" not in found:
            found["hostname"] = [expanded(setting.words[0], {"hostname": [name]}, name, "hn")]
        elif setting.keyword == "identityfile":
            files = found.setdefault("identityfile", [])
            files += [file for file in setting.words if file not in files]
        else:
            found.setdefault(setting.keyword, list(setting.words))


def _holds(block: Block, found: Answers, name: str, canonical: bool, final: bool) -> bool:
    if not block.criteria:
        return _matches(name, block.patterns)
    known = {"canonical": canonical, "final": final, "all": True}
    for each in block.criteria:
        passed = known[each.name] if each.name in known else _meets(each, found, name)
        if passed == each.negated:
            return False
    return True


def _meets(criterion: Criterion, found: Answers, name: str) -> bool:
    argument = criterion.argument
    if criterion.name == "exec":
        return _succeeds(expanded(argument, {"hostname": [name], **found}, name))
    if criterion.name == "host":
        return _matches(first(found, "hostname", name), argument.split(","))
    if criterion.name == "originalhost":
        return _matches(name, argument.split(","))
    user = first(found, "user", getpass.getuser()) if criterion.name == "user" else getpass.getuser()
    return _matches(user, argument.split(","))


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


def _canonical_name(name: str, found: Answers) -> str:
    """The name in one of CanonicalDomains that resolves; "" where names are not to be canonicalized."""
    wanted = first(found, "canonicalizehostname", "no").lower() in ("yes", "always")
    most_dots = first(found, "canonicalizemaxdots", "1")
    if not re.fullmatch("-?[0-9]{1,3}", most_dots):
        raise ConnectError(
            f"ssh_config cannot be read: CanonicalizeMaxDots {shortened(most_dots)} is not a number", CORRECT
        )
    if not wanted or name.count(".") > int(most_dots):
        return ""
    if "canonicaldomains" not in found:
        raise ConnectError("ssh_config cannot be read: CanonicalizeHostname needs CanonicalDomains", CORRECT)
    family = FAMILIES.get(first(found, "addressfamily", "any").lower(), socket.AF_UNSPEC)
    for domain in found["canonicaldomains"]:
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(f"{name}.{domain}", None, family, socket.SOCK_STREAM)
            return f"{name}.{domain}"
    if first(found, "canonicalizefallbacklocal", "yes").lower() != "yes":
        raise ConnectError(f"ssh_config forbids a name that cannot be canonicalized: {name}", CORRECT)
    return name
