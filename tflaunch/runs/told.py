"""Which sentences the user was told before: what is true of every run is told once on a terminal."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tflaunch.protocol.errors import RecordError
from tflaunch.runs.record_files import make_root, state_root

FILE = ".told"  # beside the records; a line for each sentence: its digest
_MOST = 64 * 1024  # bytes: then all is told once more


def is_new(text: str, root: Path | None = None) -> bool:
    """Return whether the user was never told that sentence on this machine, and note that it is told now.

    Where that cannot be noted, every sentence is new.
    """
    line = (
        hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest().encode() + b"\n"
    )
    path = (state_root() if root is None else root) / FILE
    try:
        make_root(path.parent)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            known = os.pread(descriptor, _MOST, 0)
            if line in known.splitlines(keepends=True):
                return False
            if len(known) == _MOST:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, line)  # in one piece: another tflaunch may do the same
        finally:
            os.close(descriptor)
    except (OSError, RecordError):
        pass
    return True
