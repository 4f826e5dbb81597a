"""Whether another user may have written a file that tflaunch reads unasked: by OpenSSH's rules for ~/.ssh/config."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

MOST_LINKS = 40  # that Linux follows


def written_by_others(path: Path | int, info: os.stat_result | None = None) -> str:
    """Why another user (root aside) may have written `path`: a phrase to follow its name; "" if none may.

    `path` may be a descriptor; `info` is fstat's answer for the open file.  The user's own group may write: it has the
    user's name and no other member, as Debian and Fedora set accounts up.  Raises OSError.
    """
    info = os.stat(path) if info is None else info  # noqa: PTH116
    if info.st_uid not in (0, os.getuid()):
        return f"belongs to {_account(info.st_uid)}"
    if not stat.S_ISLNK(info.st_mode):  # the mode of a link says nothing
        if info.st_mode & stat.S_IWOTH:
            return f"may be written by everybody (mode {info.st_mode & 0o7777:04o})"
        if info.st_mode & stat.S_IWGRP and (_listed(path) or not _own_group(info.st_gid)):
            return f"may be written by the group {_group(info.st_gid)} (mode {info.st_mode & 0o7777:04o})"
    return ""


def exchanged_by_others(directory: Path) -> str:
    """Why another user (root aside) may exchange files of this user there: as `written_by_others`.  Raises OSError.

    With the sticky bit, every user may write there, but replace only files of their own.
    """
    about = directory.stat()
    sticky = about.st_mode & stat.S_ISVTX and about.st_uid in (0, os.getuid())
    return "" if sticky else written_by_others(directory, about)


def planted(path: Path) -> str:
    """Why another user (root aside) may have put the file `path` there: a sentence; "" if none may.

    It checks the file, its directory and, for a symbolic link, each link on the way with its directory.  Raises
    OSError.
    """
    for _ in range(MOST_LINKS):
        directory = path.parent.resolve()
        if reason := exchanged_by_others(directory):
            return f"its directory {directory} {reason}"
        entry = path.lstat()
        if reason := written_by_others(path, entry):
            what = "it is a symbolic link that" if stat.S_ISLNK(entry.st_mode) else "it"
            return f"{what} {reason}"
        if not stat.S_ISLNK(entry.st_mode):
            return ""
        path = directory / os.readlink(path)  # noqa: PTH115 - as it is written
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _own_group(gid: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        group.gr_name == user.pw_name
        and set(group.gr_mem) <= {user.pw_name}
        and not any(each.pw_gid == gid and each.pw_uid != user.pw_uid for each in pwd.getpwall())
    )


def _listed(path: Path | int) -> bool:
    """Whether the file has an access list: that may let more users write than the mode shows."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except (
        OSError,
        AttributeError,
    ):  # no list, no lists on that file system, or no such call here (macOS)
        return False


def _account(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the id {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"with the id {gid}"
