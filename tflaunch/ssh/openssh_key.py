"""Which key a server has, from a file into which ssh itself has written it: the server cannot write there.

Its log would tell, too, but into that the server can write; and KnownHostsCommand, which is told the key, is the
user's, and younger than OpenSSH 8.5.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tflaunch.ssh.known_hosts import fingerprint

# Nobody logs in: there is no way left to do so.
_ASKING = (
    "StrictHostKeyChecking=no",  # the files of known keys are empty
    "GlobalKnownHostsFile=/dev/null",
    "HashKnownHosts=no",
    "PreferredAuthentications=none",
    "PubkeyAuthentication=no",
    "BatchMode=yes",
    "ControlPath=none",
    "PermitLocalCommand=no",
    "ClearAllForwardings=yes",
    "LogLevel=QUIET",
)


def shown_key(
    program: str, words: Sequence[str], name: str, kind: str, seconds: float, *, command_known: bool
) -> tuple[str, str]:
    """The kind and the fingerprint of the key that the server shows now; both "" where there is none.

    ssh is called with these words for the host `name`, asks for a key of `kind` ("" for any), and ends without a login.
    `command_known`: this ssh has KnownHostsCommand.
    """
    with tempfile.TemporaryDirectory(prefix="tflaunch-ssh-") as directory:
        file = Path(directory) / "known_hosts"
        place = str(file).replace("%", "%%")
        options = [*_ASKING, f'UserKnownHostsFile="{place}"']
        if command_known:
            options.append("KnownHostsCommand=none")
        if algorithms := _algorithms(kind):
            options.append(f"HostKeyAlgorithms={algorithms}")
        argv = [
            program,
            *(word for option in options for word in ("-o", option)),
            *words,
            "-T",
            "--",
            name,
            "true",
        ]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=seconds,
                start_new_session=True,
            )
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, found, key = file.read_text().splitlines()[0].split()
            return found, fingerprint(base64.b64decode(key))
    return "", ""


def _algorithms(kind: str) -> str:
    """The names of the signatures by a plain key of that kind."""
    plain = kind.replace("-cert-v01@openssh.com", "" if not kind.startswith("sk-") else "@openssh.com")
    return "rsa-sha2-512,rsa-sha2-256" if plain == "ssh-rsa" else plain
