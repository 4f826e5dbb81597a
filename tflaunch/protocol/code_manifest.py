"""The digests by which shipped code is named: of each content, and of its manifest (agent/files/code_store)."""

import sys

from tflaunch.protocol.light_stdlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE_BYTES = 1 << 18  # contents are sent in messages of so many bytes
SMALL_BYTES = 1 << 20  # to copy this much code takes less time than to start a process
_DIGITS = 40  # of a SHA-256 make a name


def hasher(size: int) -> "Any":
    """A SHA-256 object for `size` bytes, to give to `named`: the one that is fastest, its import included."""
    if size <= SMALL_BYTES and "hashlib" not in sys.modules:
        return sha256()
    import hashlib  # five times as fast, once it is loaded

    return hashlib.sha256()


def named(hasher: "Any") -> str:
    """The name of the content that was hashed."""
    return hasher.hexdigest()[:_DIGITS]  # type: ignore[no-any-return]


def digest_of(data: "bytes | memoryview") -> str:
    """The name of that content."""
    made = hasher(len(data))
    made.update(data)
    return named(made)
