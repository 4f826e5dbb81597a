"""The size of a directory tree on disk, and its removal, whatever its modes are and without following links."""

import os
import stat
import time

from tflaunch.protocol import directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

ALIVE = "it is alive"  # why a run is not removed
GOING = ".clean-"  # how the names of trees that are being removed begin
DEPTH = 64  # levels of directories that are open at a time


class Size:
    """The size of a tree on its disk, and when something in it was last written; no link is followed."""

    def __init__(self, path: str) -> None:
        self.bytes = 0  # in allocated blocks; without files that have another hard link outside of the tree
        self.modified = 0.0
        self.unread = []  # type: List[str]
        self._shared = {}  # type: Dict[Tuple[int, int], int]
        # Dates in the future, from an archive for example, are ignored.
        self._now = time.time() + 60.0
        try:
            top = os.lstat(path)
            self._add(top)
        except OSError as error:
            self.unread.append(sentence(path, error))
            return
        pending = [path] if stat.S_ISDIR(top.st_mode) else []
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        try:
                            info = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # gone meanwhile
                        self._add(info)
                        # Not into mounts: they are not the run's, and may not answer.
                        if stat.S_ISDIR(info.st_mode) and info.st_dev == top.st_dev:
                            pending.append(entry.path)
            except OSError as error:
                self.unread.append(sentence(directory, error))

    def _add(self, info: os.stat_result) -> None:
        if info.st_mtime <= self._now:
            self.modified = max(self.modified, info.st_mtime)
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            key = (info.st_dev, info.st_ino)
            left = self._shared[key] = self._shared.get(key, info.st_nlink) - 1
            if left:
                return
        self.bytes += info.st_blocks * 512

    @property
    def idle_s(self) -> float:
        """For how long nothing in the tree was written."""
        return max(0.0, time.time() - self.modified)


def free(path: str) -> "Tuple[int, List[str]]":
    """Remove a tree; returns the bytes that were freed, and what could not be removed, each with why."""
    before = Size(path).bytes
    problems = remove(path)
    return before - (Size(path).bytes if problems else 0), problems


def set_aside(path: str) -> str:
    """Rename a tree that is to be removed, so that nothing finds it by its name any more; returns the new path."""
    directory, name = os.path.split(path)
    aside = os.path.join(directory, "%s%s-%s" % (GOING, name[:100], os.urandom(4).hex()))
    os.rename(path, aside)
    return aside


def remove(path: str) -> "List[str]":
    """Remove a tree, whatever its modes are, and links themselves; returns what could not be removed, each with why."""
    problems = []  # type: List[str]
    directory, name = os.path.split(path)
    try:
        inside = os.open(directory or ".", directories.WAY)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [sentence(path, error)]
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=inside)
            return []
        top = _enter(name, inside)
        try:
            before = None  # type: Optional[set[str]]
            names = set(os.listdir(top))
            # `_empty` moves what lies deeper than DEPTH up to here, for the next round.
            while names and (before is None or not names <= before):
                problems = []
                _empty(top, path, top, 0, problems)
                before, names = names, set(os.listdir(top))
        finally:
            os.close(top)
        if not problems:
            os.rmdir(name, dir_fd=inside)
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(sentence(path, error))
    finally:
        os.close(inside)
    return problems


def _enter(name: str, inside: int) -> int:
    """Open a directory, and give its owner all rights in it first."""
    found = os.open(name, directories.WAY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        info = os.fstat(found)
        if info.st_mode & 0o700 != 0o700:  # caches of Go and pip are read-only
            # The directory that is open, whatever has its name by now.
            opened = "/proc/self/fd/%d" % found if hasattr(os, "O_PATH") else found
            os.chmod(opened, stat.S_IMODE(info.st_mode) | 0o700)
        return os.open(".", directories.DIRECTORY, dir_fd=found)
    finally:
        os.close(found)


def _empty(directory: int, shown: str, top: int, depth: int, problems: "List[str]") -> None:
    for name in os.listdir(directory):
        path = os.path.join(shown, name)
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            below = _enter(name, directory)
            try:
                if depth >= DEPTH:
                    os.rename(name, os.urandom(8).hex(), src_dir_fd=directory, dst_dir_fd=top)
                    continue
                _empty(below, path, top, depth + 1, problems)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            pass  # gone already
        except OSError as error:
            if not any(each.startswith(path) for each in problems):  # else the cause is in the list already
                problems.append(sentence(path, error))


def sentence(path: str, error: OSError) -> str:
    """`path: why`."""
    return "%s: %s" % (path, os.strerror(error.errno or 0))
