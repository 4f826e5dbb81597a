"""A file system that never answers, as that of a file server that is away: who asks it waits in state D.

    with dead_files(directory): ...          # whatever looks into `directory` hangs, and SIGKILL does not end it

It is a FUSE server that reads every request and answers none but the first.  It needs root and /dev/fuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import ROOT

NOSUID_NODEV = 2 | 4
DETACH = 2
INIT = 26  # FUSE_INIT, the first request


def missing() -> str:
    """Why there can be none here; "" when there can."""
    if os.geteuid() != 0:
        return "a file system that hangs needs root"
    return "" if Path("/dev/fuse").exists() else "a file system that hangs needs /dev/fuse"


@contextlib.contextmanager
def dead_files(directory: Path, inside: Sequence[str] = ()) -> Iterator[None]:
    """Inside, `directory` hangs; at the end all that waits in it goes on.

    `inside` are the words that run a command on another host.
    """
    argv = [*inside, sys.executable, "-m", "tests.support.dead_files", str(directory)]
    server = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        yield
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        server.stdout.close()


def serve(directory: str) -> None:
    """Until stdin ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"dead", os.fsencode(directory), b"fuse", NOSUID_NODEV, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)
    print("mounted", flush=True)
    answer = os.fork()
    if answer == 0:
        while True:
            request = os.read(fuse, 1 << 20)
            opcode, unique = struct.unpack_from("=IQ", request, 4)
            if opcode == INIT:
                said = struct.pack("=IIIIHHIIHH32x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0)
                os.write(fuse, struct.pack("=IiQ", 16 + len(said), 0, unique) + said)
    sys.stdin.buffer.read()
    libc.umount2(os.fsencode(directory), DETACH)
    os.kill(answer, 9)
    os.waitpid(answer, 0)


if __name__ == "__main__":
    serve(sys.argv[1])
