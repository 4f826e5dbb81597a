"""File systems of a host's own, that may break: each in a file on a loop device, which goes with the host."""

from __future__ import annotations

from tests.support.bed.machines import Machine

IMAGE = "/run/disk.img"
_MAKE = """\
set -e
[ -e "$2" ] || { truncate -s "$3" "$2"; mkfs.ext4 -q -O ^has_journal "$2"; }
mount -o loop,errors=remount-ro "$2" "$1"
chmod 1777 "$1"
"""
_BREAK = 'dev=$(findmnt -no SOURCE "$1"); echo 1 > "/sys/fs/ext4/${dev##*/}/trigger_fs_error"'


def own_disk(host: Machine, path: str, size_bytes: int) -> None:
    """An empty ext4 of that size at `path`, until the host is switched off."""
    host.do("sh", "-c", _MAKE, "sh", path, IMAGE, str(size_bytes))


def turn_read_only(host: Machine, path: str) -> None:
    """The kernel meets an error on the disk at `path`: whoever writes there hears EROFS, also into open files."""
    host.do("sh", "-c", _BREAK, "sh", path)


def mend(host: Machine, path: str) -> None:
    """What an administrator does: mount it anew; nothing may use it any more."""
    host.do("umount", path)
    host.do("mount", "-o", "loop,errors=remount-ro", IMAGE, path)
