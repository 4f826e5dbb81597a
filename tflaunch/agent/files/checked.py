"""The contents of the store that this host need not read again, for it has checked them, and they have not changed.

<parent>/code/checked.json has a line for each: its CRC-32, and what `fstat` said of the open file once it was read and
found whole: device, inode, bytes, mtime, ctime.  The kernel sets the ctime at every change, and no call sets it back.
A line is written only for a disk of this machine (a file server has a clock of its own), and only if the content had
not changed for SETTLED_NS before anything was read: a change in the same tick of the clock would leave the same ctime.
All lines are void after a boot, which may have lost what had not reached the disk, and every 24 hours after it: a disk
may give other bytes without an error.

The store's parent is this user's alone.  Agents replace the file whole: lines that one of them loses, that a full disk
does not take, or that are damaged, mean that a content is checked again.
"""

import os
import time

from tflaunch.agent.host.rundir import replace
from tflaunch.protocol import wire
from tflaunch.protocol.machine import first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

CHECKED = "checked.json"
SETTLED_NS = 3 * 10**9  # no file system of a disk has coarser times than FAT's 2 s
_DAY_S = 86400


class Checked:
    """What has been checked; make one before any content is read."""

    def __init__(self, directory: str) -> None:
        """`directory` is the store's."""
        self._path = os.path.join(directory, CHECKED)
        self._settled = time.time_ns() - SETTLED_NS
        self._when = [first_line("/proc/sys/kernel/random/boot_id"), int(time.monotonic() // _DAY_S)]
        self._lines = {}  # type: Dict[str, List[int]]
        self._new = False
        try:
            with open(self._path) as file:
                kept = wire.loads(file.read())
            if kept["when"] == self._when:
                self._lines = dict(kept["lines"])
        except (OSError, ValueError, LookupError, TypeError):
            pass

    def has(self, digest: str, size: int, check: int, info: os.stat_result) -> bool:
        """Whether that content, open now, had this size and CRC-32 when it was checked, and has not changed."""
        return info.st_size == size and self._lines.get(digest) == _line(check, info)

    def add(self, digest: str, check: int, info: os.stat_result) -> None:
        """It has this CRC-32; `info` is what `fstat` said after all of it was read."""
        if self._when[0] and os.major(info.st_dev) and info.st_ctime_ns < self._settled:
            self._lines[digest] = _line(check, info)
            self._new = True

    def keep(self) -> None:
        """Write down what is new."""
        if self._new:
            try:
                replace(self._path, wire.dumps({"when": self._when, "lines": self._lines}))
            except OSError:
                pass


def _line(check: int, info: os.stat_result) -> "List[int]":
    return [check, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
