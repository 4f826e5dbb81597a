"""Room that an agent keeps for its own files on the disk of its run directory, for when that is full."""

import errno
import os

NAME = "reserve"
BYTES, PIECE = 64 * 1024, 16 * 1024


class Reserve:
    """A file in the run directory that takes up room until that is needed."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)

    def fill(self, beyond: int = 0) -> None:
        """Take up what is missing of the room, or nothing unless the disk has `beyond` bytes more; raises OSError."""
        with open(self._path, "ab", 0) as file:
            before = file.tell()
            missing = max(0, BYTES - before) + beyond
            try:
                if file.write(os.urandom(missing)) != missing:  # zeros may take no room
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            except OSError:
                file.truncate(before)
                raise
            file.truncate(BYTES)

    def free_piece(self) -> bool:
        """Free a piece of it; returns whether there was one."""
        try:
            left = os.path.getsize(self._path) - PIECE
            if left > 0:
                os.truncate(self._path, left)
            else:
                os.unlink(self._path)
        except OSError:
            return False
        return True

    def free(self) -> None:
        """Free all of it: only a few lines follow."""
        try:
            os.unlink(self._path)
        except OSError:
            pass
