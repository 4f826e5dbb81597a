"""How shipped code is named and cut: the digests of its contents and of its manifest (tflaunch.agent.files.code_store)."""

from tflaunch.protocol.light_stdlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE_BYTES = 1 << 18  # of contents, in one message
SMALL_BYTES = 1 << 20  # of code that is copied in less time than a process takes
_DIGITS = 40  # of a SHA-256


def hasher(size: int) -> "Any":
    """What makes the digests, of manifests and contents, of so many bytes in all: see `named`."""
    if size <= SMALL_BYTES:
        return sha256()
    import hashlib  # five times as fast, once it is loaded

    return hashlib.sha256()


def named(hasher: "Any") -> str:
    """What it is called by, of which that is the hash."""
    return hasher.hexdigest()[:_DIGITS]  # type: ignore[no-any-return]


def digest_of(data: "bytes | memoryview") -> str:
    made = hasher(len(data))
    made.update(data)
    return named(made)
