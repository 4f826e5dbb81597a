"""A name service that never answers, as an LDAP server that is away: NSS asks it for what is not in /etc/passwd."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

UID = 54321  # in no file
MODULE = """\
#include <unistd.h>
int _nss_hang_getpwuid_r(void) { for (;;) pause(); }
int _nss_hang_getpwnam_r(void) { for (;;) pause(); }
int _nss_hang_getgrgid_r(void) { for (;;) pause(); }
"""


class Somebody(NamedTuple):
    """A process of a user whose name is not known."""

    pid: int
    uid: int


@contextlib.contextmanager
def hanging_names(directory: Path) -> Iterator[tuple[tuple[str, ...], Somebody]]:
    """The words before a command that has it ask that service; and a process of a user of whom it asks."""
    if os.getuid():
        pytest.skip("another name service takes root")
    library = directory / "libnss_hang.so.2"
    gcc = ["gcc", "-w", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(gcc, input=MODULE, text=True, check=True)
    switch = directory / "nsswitch.conf"
    switch.write_text("passwd: files hang\ngroup: files hang\nhosts: files\n")
    mount = f"mount --bind {switch} /etc/nsswitch.conf"
    script = f'{mount} && export LD_LIBRARY_PATH="{directory}:$LD_LIBRARY_PATH" && exec "$@"'
    inside = ("unshare", "-m", "/bin/sh", "-c", script, "sh")
    with subprocess.Popen(["sleep", "600"], user=UID) as process:
        yield inside, Somebody(process.pid, UID)
        process.kill()
