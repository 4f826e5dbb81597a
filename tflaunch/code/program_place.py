"""Directories that hold more than the code of one program: home directories, those of the system, and the like."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from tflaunch.code.secrets import in_secret_directory

OF_THE_SYSTEM = "a directory of the system"

# Directories of the system, and those that hold the directories of users and disks; a directory below may be a project.
_SYSTEM = {
    "/", "/Applications", "/Users", "/Volumes", "/dev", "/home", "/media", "/mnt", "/opt", "/private", "/private/var",
    "/root", "/run", "/srv", "/usr", "/usr/games", "/usr/local", "/usr/src", "/var", "/var/lib",
    "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp",  # noqa: S108 - where they are the user's alone
}  # fmt: skip
# Directories of the system in which no project lies.
_SYSTEM_TREES = (
    "/Library", "/System", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/private/etc", "/proc",
    "/sbin", "/sys", "/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec",
    "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/var/log", "/var/spool",
)  # fmt: skip


def place_of(directory: Path) -> str:
    """What that directory is, if it holds more than the code of one program; "" if it may be all code."""
    homes = home_directories()
    if directory in homes:
        return "your home directory"
    if why := in_secret_directory(str(directory)):
        return f"a directory for {why}"
    mode = directory.stat().st_mode
    # Containers and some file systems let everybody write everywhere: only a sticky directory is meant for all.
    if mode & stat.S_IWOTH and mode & stat.S_ISVTX:
        return "a directory that everybody may write to"
    if str(directory) in _SYSTEM or any(directory.is_relative_to(tree) for tree in _SYSTEM_TREES):
        return OF_THE_SYSTEM
    if any(home.is_relative_to(directory) for home in homes):
        return "a directory of home directories"
    return ""


def is_of_the_system(directory: Path) -> bool:
    """Whether the programs in that directory are those of the system."""
    return str(directory) in _SYSTEM or place_of(directory) == OF_THE_SYSTEM


def home_directories() -> set[Path]:
    """The home directories of the user, by $HOME and by the system's list of users, without symbolic links."""
    homes = {os.environ.get("HOME", "")}
    try:
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # the system does not list this account
        pass
    return {Path(home).resolve() for home in homes if home.startswith("/")}
