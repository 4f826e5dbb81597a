"""Room that an agent keeps for its own files on the disk of its run directory, for when that is full."""

import os

NAME = "reserve"
BYTES, PIECE = 64 * 1024, 16 * 1024


class Reserve:
    """A file in the run directory that takes up room until that is needed."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)

    def fill(self) -> None:
        """Take up the room; raises OSError."""
        with open(self._path, "wb") as file:
            file.write(os.urandom(BYTES))  # zeros may take no room

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
