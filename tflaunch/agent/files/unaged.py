"""Keeps systemd-tmpfiles from directories that are in use."""

import fcntl
import os

from tflaunch.protocol import directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict


class Unaged:
    """Keeps directories, and all below them, from systemd-tmpfiles as long as this process lives.

    That removes from /var/tmp what has not been touched for 30 days, but skips a directory that some process has locked
    (flock), shared or not (tmpfiles.d(5)); the lock of a file does not count.
    """

    def __init__(self) -> None:
        self._held = {}  # type: Dict[str, int]

    def add(self, path: str) -> None:
        """Keep that directory, too, as soon as it is there."""
        if self._held.setdefault(path, -1) < 0:
            self.check()

    def check(self) -> None:
        """Lock those that could not be locked yet: systemd-tmpfiles itself may be at work there."""
        for path, held in list(self._held.items()):
            if held >= 0:
                continue
            try:
                descriptor = os.open(path, directories.DIRECTORY)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._held[path] = descriptor
            except OSError:
                os.close(descriptor)  # systemd-tmpfiles has locked it just now, or the disk has no locks
