"""The file systems that are mounted on this host."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple

# Those that wait for nothing but a disk of this machine: no file server, no process.
LOCAL = (b"ext4", b"xfs", b"btrfs", b"zfs", b"tmpfs", b"overlay")


def mounts() -> "Iterator[Tuple[bytes, bytes]]":
    """(mount point, kind of file system), as the kernel writes them; of two at one point, the later one is seen."""
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            for line in table:
                words = line.split()
                yield words[4], words[words.index(b"-") + 1]
    except OSError:
        pass  # not Linux


def _inside(path: str) -> bytes:
    """How the kernel writes that real path, and a slash."""
    written = os.fsencode(os.path.join(path, ""))
    for byte in b"\\ \t\n":
        written = written.replace(b"%c" % byte, b"\\%03o" % byte)
    return written


def below(path: str) -> str:
    """A mount point below that real path, or ""."""
    inside = _inside(path)
    found = next((point for point, _ in mounts() if point.startswith(inside)), b"")
    return os.fsdecode(found.decode("unicode_escape").encode("latin-1"))


def at_hand(path: str) -> bool:
    """Whether all at and below that real path is on one local file system."""
    inside, around, kind = _inside(path), b"", b""
    for point, each in mounts():
        if point.startswith(inside):
            return False
        if inside.startswith(point.rstrip(b"/") + b"/") and len(point) >= len(around):
            around, kind = point, each
    return kind in LOCAL
