"""A file system that never answers, as that of a file server that is away: who asks it waits in state D.

    with dead_files(directory): ...          # whatever looks into `directory` hangs, and SIGKILL does not end it
    with dead_files(directory, opens=True): ...  # any name in it is a file that opens, and whoever reads it hangs

It is a FUSE server that reads every request and answers none but the first, or those first ones.  It needs root and
/dev/fuse.
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
LOOKUP, GETATTR, OPEN, INIT = 1, 3, 14, 26  # FUSE_INIT is the first request


def missing() -> str:
    """Why there can be none here; "" when there can."""
    if os.geteuid() != 0:
        return "a file system that hangs needs root"
    return "" if Path("/dev/fuse").exists() else "a file system that hangs needs /dev/fuse"


@contextlib.contextmanager
def dead_files(directory: Path, inside: Sequence[str] = (), *, opens: bool = False) -> Iterator[None]:
    """Inside, `directory` hangs; at the end all that waits in it goes on.

    `inside` are the words that run a command on another host.
    """
    argv = [*inside, sys.executable, "-m", "tests.support.dead_files", str(directory), *["opens"] * opens]
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


def answer(opcode: int, node: int) -> bytes:
    """What a server that lives says; b"" to a request that none but such a server answers."""
    if opcode == INIT:
        return struct.pack("=IIIIHHIIHH32x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0)
    mode = 0o40755 if node == 1 and opcode == GETATTR else 0o100644
    attributes = struct.pack("=6Q10I", node, 1 << 20, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
    known = {
        LOOKUP: struct.pack("=QQQQII", 2, 1, 3600, 3600, 0, 0) + attributes,
        GETATTR: struct.pack("=QII", 3600, 0, 0) + attributes,
        OPEN: struct.pack("=QII", 1, 0, 0),
    }
    return known.get(opcode, b"")


def serve(directory: str, opens: bool) -> None:
    """Until stdin ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"dead", os.fsencode(directory), b"fuse", NOSUID_NODEV, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)
    print("mounted", flush=True)
    server = os.fork()
    if server == 0:
        while True:
            request = os.read(fuse, 1 << 20)
            opcode, unique, node = struct.unpack_from("=IQQ", request, 4)
            if said := answer(opcode, node) if opens or opcode == INIT else b"":
                os.write(fuse, struct.pack("=IiQ", 16 + len(said), 0, unique) + said)
    sys.stdin.buffer.read()
    libc.umount2(os.fsencode(directory), DETACH)
    os.kill(server, 9)
    os.waitpid(server, 0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:] == ["opens"])
