"""Another user of this host, really another uid."""

from __future__ import annotations

import contextlib
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT
from tests.support.agent_over_pipes import Channel

NOBODY = pwd.getpwnam("nobody")
NOW = float(int(time.time()))


def vendor(leases: Path, gpu: int) -> Path:
    """The kernel's file of that GPU, made as the kernel would: root's, readable by all."""
    path = leases / f"devices/sys/bus/pci/devices/0000:{gpu + 1:02x}:00.0/vendor"
    path.parent.mkdir(parents=True)
    path.write_text("0x10de\n")
    path.chmod(0o444)
    return path


@contextlib.contextmanager
def nobody(script: str, *words: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program of his, once it has printed a line; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,  # type: ignore[call-overload]
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# Python may lie where only root comes: it starts as root, and becomes him once all of it is there.
BECOME = f"""\
import ctypes, fcntl, json, os, resource, socket, sys
os.setgroups([])
os.setgid({NOBODY.pw_gid})
os.setuid({NOBODY.pw_uid})
"""
WAIT = "print('ready', flush=True)\nsys.stdin.read()\n"


def done_by_nobody(script: str, *words: object) -> None:
    """What he does at once."""
    subprocess.run([sys.executable, "-c", BECOME + script, *map(str, words)], check=True)


def refused(channel: Channel) -> tuple[str, str]:
    message = channel.next()
    assert message is not None
    assert message.type == "failed", message
    return message["reason"], message["hint"]


LOCK = BECOME + "file = open(sys.argv[1])\nfcntl.flock(file, int(sys.argv[2]))\n" + WAIT
