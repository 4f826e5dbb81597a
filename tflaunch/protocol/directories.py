"""Directories that other users may write to, and what is made there: judged and changed by descriptor, never by path.

In such a directory a name may lead elsewhere by the next system call.  So a directory is opened first, without
following a link, and judged by what was opened; what is in it is reached from that descriptor.  A mode is set only on
a file that this process has made there a moment ago, and only through the descriptor that made it.  A directory gets
its mode as it is made.  Whatever is found there and is not as it should be stays as it is: the caller names it.

Once every directory on the way belongs to this user or root, and others may not write to it or it is sticky
(`ancestry`), no other user can put anything in the place of what this user has there: then its path is as good.
"""

import errno
import os
import stat

from tflaunch.protocol.ancestry import weak_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from tflaunch.protocol.light_stdlib import socket

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A directory that this process may not list, as root's home is for others.
WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # macOS has no O_PATH
# Never through a link, never waiting for the other end of a planted fifo.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WeakPlace(OSError):
    """Another user could put another directory in the place of that path: through `place`, which is as `info` says."""

    def __init__(self, path: str, place: str, info: os.stat_result) -> None:
        super().__init__(
            "another user could put another directory in the place of %s, through %s" % (path, place)
        )
        self.path = path
        self.place = place
        self.info = info


def check_way(path: str) -> None:
    """Raise WeakPlace when another user could put another directory in the place of `path`; OSError."""
    found = weak_place(os.path.dirname(path))
    if found is not None:
        raise WeakPlace(path, *found)


def make(name: str, mode: int, inside: "Optional[int]" = None) -> bool:
    """Make a directory, of exactly that mode from the beginning; False when something has that name.

    Raises OSError.
    """
    shared = mode & 0o077
    # Only where it matters: all threads of a process have one umask.
    before = os.umask(0) if shared else 0
    try:
        os.mkdir(name, mode, dir_fd=inside)
        return True
    except FileExistsError:
        return False
    finally:
        if shared:
            os.umask(before)


def make_file(name: str, mode: int, inside: "Optional[int]" = None) -> int:
    """Make a file for reading and writing, of exactly that mode; raises FileExistsError, OSError."""
    before = os.umask(0)
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE, mode, dir_fd=inside)
    finally:
        os.umask(before)
    try:
        # The directory may have an ACL for what is made in it.
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: str) -> int:
    """Open a directory of this user's alone; it, and what is missing on the way to it, is made with the mode 0700.

    Raises WeakPlace where another user could put another directory in the place of what is there already, and OSError,
    as when another user has made something there meanwhile.  What the directory itself is, the caller judges.
    """
    names = []  # type: List[str]
    top = os.path.join(os.getcwd(), path)
    while not names or not os.path.lexists(top):
        top, name = os.path.split(top)
        names.append(name)
    check_way(os.path.join(top, names[-1]))
    here = os.open(top, WAY)
    while names:
        name = names.pop()
        made = make(name, 0o700, here)
        try:
            below = os.open(name, DIRECTORY if not names else WAY | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
        if (made or names) and os.fstat(here).st_uid != os.getuid():
            os.close(here)
            raise PermissionError(
                errno.EACCES, "another user has just made a directory on the way to it", path
            )
    return here


def connect(connection: "socket.socket", path: str) -> None:
    """Connect to the socket at `path`, which may be longer than the 107 bytes that a socket's path has; OSError."""
    directory = os.open(os.path.dirname(path), WAY)
    try:
        connection.connect("/proc/self/fd/%d/%s" % (directory, os.path.basename(path)))
    finally:
        os.close(directory)


def is_at(descriptor: int, name: str, inside: "Optional[int]" = None) -> bool:
    """Whether the open file is the one that has that name now."""
    try:
        there = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def remove_file(descriptor: int, name: str, inside: int) -> None:
    """Remove the name of an open file, unless another file has that name by now; raises OSError.

    Between the look and the removal the directory's owner can still exchange the two.  He gains nothing: whoever can
    move a file into his directory could have removed it.
    """
    if is_at(descriptor, name, inside):
        os.unlink(name, dir_fd=inside)


def described(info: os.stat_result) -> str:
    """What that is: a link, a FIFO, a file with its mode, links and size."""
    kinds = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
    )
    return next((name for is_one, name in kinds if is_one(info.st_mode)), "file")
