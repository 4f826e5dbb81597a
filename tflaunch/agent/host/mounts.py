"""The file systems that are mounted on this host."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple

# Those that wait for nothing but a disk of this machine: no file server, no process.
LOCAL = ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay")


def mounts() -> "Iterator[Tuple[str, str]]":
    """(mount point, kind of file system); of two at one point, the later one is seen."""
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            for line in table:
                words = line.split()
                point = words[4].decode("unicode_escape").encode("latin-1")
                yield os.fsdecode(point), words[words.index(b"-") + 1].decode()
    except OSError:
        pass  # not Linux


def below(path: str) -> str:
    """A mount point below that real path, or ""."""
    inside = os.path.join(path, "")
    return next((point for point, _ in mounts() if point.startswith(inside)), "")


def at_hand(path: str) -> bool:
    """Whether all at and below that real path is on one local file system."""
    inside, around, kind = os.path.join(path, ""), "", ""
    for point, each in mounts():
        if point.startswith(inside):
            return False
        if inside.startswith(os.path.join(point, "")) and len(point) >= len(around):
            around, kind = point, each
    return kind in LOCAL
