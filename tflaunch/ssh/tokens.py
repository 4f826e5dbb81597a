"""What a value of ssh_config may name: %-tokens, ${VARIABLES}, and a user's home by `~`, as OpenSSH fills them in."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.failures import CORRECT, or_openssh
from tflaunch.ssh.target import SSH_PORT, shortened

# Which tokens a keyword takes.
OF_FILES = "CdhikLlnpru"
OF_MATCH = OF_FILES
OF_WAYS = "hnpr"  # ProxyCommand, ProxyJump
OF_HOSTNAME = "h"
VARIABLE = re.compile(r"\$\{[^}]*\}?")


def local_user() -> str:
    """The account on this machine, by the system's list, not by $LOGNAME."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return getpass.getuser()


class Tokens:
    """The values of the tokens for one host."""

    def __init__(
        self, name: str, *, hostname: str, port: str = "", user: str = "", alias: str = "", jump: str = ""
    ) -> None:
        """`name`: what was looked up; `jump`: its ProxyJump, "" or "none" for none."""
        user, port, here = user or local_user(), port or str(SSH_PORT), socket.gethostname()
        self._jump = "" if jump.lower() == "none" else jump
        whole = f"{here}{hostname}{port}{user}".encode(errors="surrogateescape")
        self._values: Mapping[str, Callable[[], str]] = {
            "%": lambda: "%",
            "C": lambda: hashlib.sha1(whole, usedforsecurity=False).hexdigest(),
            "d": lambda: str(Path.home()),
            "h": lambda: hostname,
            "i": lambda: str(os.getuid()),
            "k": lambda: alias or name,
            "L": lambda: here.partition(".")[0],
            "l": lambda: here,
            "n": lambda: name,
            "p": lambda: port,
            "r": lambda: user,
            "u": local_user,
        }

    def filled(self, text: str, allowed: str, where: str = "", *, variables: bool = False) -> str:
        """The text with tokens, and where told so, variables filled in, all at once: a value brings no other.

        Raises ConnectError for a token that is not `allowed`, and for a variable that is not set.
        """

        def value(found: re.Match[str]) -> str:
            part = found[0]
            if part.startswith("$"):
                return _variable(part, text, where) if variables else part
            letter = part[1:]
            if letter == "C" and self._jump:
                raise ConnectError(
                    f"{_at(where)}%C in {shortened(text)} means one thing to older ssh and another to newer ssh where "
                    "there is a ProxyJump",
                    or_openssh(CORRECT, "reads it as your ssh does"),
                )
            if not letter or (letter != "%" and letter not in allowed):
                raise ConnectError(
                    f"{_at(where)}unknown key %{letter} in {shortened(text)}",
                    or_openssh(CORRECT, "may know it"),
                )
            return self._values[letter]()

        return re.sub(r"(?s)%.?|\$\{[^}]*\}?", value, text)

    def path(self, text: str, where: str = "") -> Path:
        """The path that the value of a keyword for files names; raises ConnectError."""
        return Path(self.filled(tilde(text, where), OF_FILES, where, variables=True))


def tilde(text: str, where: str = "") -> str:
    """The text with the home that a `~` in front stands for; raises ConnectError for a user who does not exist."""
    full = os.path.expanduser(text)  # noqa: PTH111  Path's raises RuntimeError
    if text.startswith("~") and full.startswith("~"):
        user = text[1:].partition("/")[0]
        raise ConnectError(f"{_at(where)}no such user {shortened(user)} in {shortened(text)}", CORRECT)
    return full


def check_variables(text: str, where: str) -> None:
    """Raise ConnectError for a variable in the text that is not set."""
    for found in VARIABLE.finditer(text):
        _variable(found[0], text, where)


def _variable(part: str, text: str, where: str) -> str:
    name = part[2:].removesuffix("}")
    if not part.endswith("}") or not name:
        raise ConnectError(f"{_at(where)}{shortened(text)} holds a `${{` without a name or its `}}`", CORRECT)
    if name not in os.environ:
        raise ConnectError(
            f"{_at(where)}{shortened(text)} names the variable {name}, which is not set; `ssh` refuses that, too",
            f"export {name} before, or " + CORRECT,
        )
    return os.environ[name]


def _at(where: str) -> str:
    return f"{where}: " if where else "ssh_config: "
