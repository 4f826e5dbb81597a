"""Whether another user could put something else in the place of a directory.

A user who may write to a directory on the way to it can rename what is in there, unless the sticky bit forbids that.
Open descriptors would not help, since the tasks open paths.  The loader carries this module, because it must know
whether to trust a store before any other module is there.  So this module imports next to nothing.
"""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

LINKS = 40  # the kernel follows no more links than this


def weak_place(path: str) -> "Optional[Tuple[str, os.stat_result]]":
    """The first directory or link on the way to `path`, or `path` itself, through which another user could replace it.

    None if there is none; parts of the path that do not exist do not count.  Raises OSError.
    """
    parts = os.path.join("/" if path[:1] == "/" else os.getcwd(), path).split("/")[::-1]
    here, links, shared = "/", 0, 0
    info = os.lstat(here)
    while True:
        trusted = info.st_uid in (0, os.getuid()) or _hidden(info.st_uid)
        if stat.S_ISLNK(info.st_mode):
            if (shared and not trusted) or links == LINKS:
                return here, info
            goal = os.readlink(here)
            parts += goal.split("/")[::-1]
            links += 1
            here = "/" if goal[:1] == "/" else os.path.dirname(here)
            info = os.lstat(here)
            continue
        shared = info.st_mode & 0o022
        if not trusted or (shared and not info.st_mode & stat.S_ISVTX and not _of_one(here, info)):
            return here, info
        while parts and parts[-1] in ("", "."):
            parts.pop()
        if not parts:
            return None
        part = parts.pop()
        here = os.path.dirname(here) if part == ".." else os.path.join(here, part)
        try:
            info = os.lstat(here)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _hidden(uid: int) -> bool:
    """Whether a user namespace hides whose uid that is.

    In a user namespace, the machine's root, who owns `/` and what is mounted from outside, has the same uid as every
    other user that the namespace does not map.  So nothing distinguishes root from these users.
    """
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            if int(file.read()) != uid:
                return False
        with open("/proc/self/uid_map") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False


def _of_one(path: str, info: os.stat_result) -> bool:
    """Whether the owner is the only member of the group that may write there.

    That holds for root's group, and where every user has a group of the same name (Debian, RHEL), where the umask is
    often 002; Debian's sshd judges the mode of a home directory in the same way.  With an ACL the group's bits mean
    something else.
    """
    import grp
    import pwd

    if info.st_mode & 0o002:
        return False
    try:
        os.getxattr(path, "system.posix_acl_access")
        return False
    except (OSError, AttributeError):  # no such call on macOS
        pass
    if info.st_uid == info.st_gid == 0:
        return True
    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    return (
        (owner.pw_gid, owner.pw_name) == (group.gr_gid, group.gr_name)
        and not set(group.gr_mem) - {owner.pw_name}
        and not any(each.pw_gid == group.gr_gid and each.pw_uid != owner.pw_uid for each in pwd.getpwall())
    )
