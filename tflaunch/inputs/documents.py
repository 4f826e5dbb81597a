"""Text files that users write, and their words with line and column."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tflaunch.protocol.errors import ConfigError, DocumentError, EnvFileError, HostfileError, Problem

LARGEST_FILE = 4 * 1024 * 1024  # bytes


class PlacedText(str):
    """A word of a file or a scalar of a YAML document, with its line and column (from 1)."""

    line: int
    column: int

    def __new__(cls, text: str, line: int, column: int) -> PlacedText:
        self = super().__new__(cls, text)
        self.line, self.column = line, column
        return self


def read_file(path: Path, source: str, error: type[DocumentError]) -> str:
    """The text of a file that messages call `source`.

    Raises `error` for a file that may not be read or is no text, OSError or ValueError where the path leads to none.
    """

    def refuse(message: str, hint: str = "", line: int = 0, column: int = 0) -> DocumentError:
        return error([Problem(source, line, column, message)], hint)

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except PermissionError:
        raise refuse("may not be read", f"Look at its permissions: ls -l {source}") from None
    if len(content) > LARGEST_FILE:
        kinds: dict[type[DocumentError], str] = {
            HostfileError: "a hostfile",
            EnvFileError: "a file of variables",
            ConfigError: "a configuration file",
        }
        what = kinds.get(error, "a job file")
        raise refuse(f"is larger than {LARGEST_FILE // 1024**2} MiB; is it {what}?")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refuse("is in UTF-16; save it as UTF-8")
    if b"\0" in content:
        raise refuse("is a binary file; a hostfile is text" if error is HostfileError else "is a binary file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        before = wrong.object[: wrong.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        byte = wrong.object[wrong.start]
        raise refuse(
            f"the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8", "", line, column
        ) from None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file or /dev/null; never wait for a writer of a FIFO.  Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) and path != Path(os.devnull):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file
