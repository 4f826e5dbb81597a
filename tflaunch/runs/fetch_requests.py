"""What a fetch asks of an agent, and the checks that an answer is one that an agent gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tflaunch.inputs.patterns import WantedPaths, Wish
from tflaunch.protocol.wire import Message
from tflaunch.runs.fetch_destination import leads_elsewhere
from tflaunch.runs.fetch_pipeline import Dishonest, FetchRequest
from tflaunch.text.numbers import amount

# The most files that one host may name: an agent sends no more.
MOST_NAMES, MOST_NAME_BYTES = 200_000, 32 * 2**20
MOST_IDLE = 1000
_NUMBERS = range(2**63)  # valid sizes in bytes, and times in ns since 1970
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class FoundFile:
    """A file on a host, as it was when its agent looked."""

    size: int
    modified: int  # ns since 1970
    executable: bool


def find_request(wish: Wish, wanted: WantedPaths, take: Callable[[Message], bool]) -> FetchRequest:
    """Ask for the names of all files that match; `take` gets each answer."""
    roots = sorted({each.root for each in wish.patterns if each.wanted})
    fields = {"patterns": wanted.regexes, "roots": [""] if "" in roots else roots}
    return FetchRequest("find", fields, take)


def found_file(entry: list[Any], wanted: WantedPaths) -> tuple[str, FoundFile]:
    """The path and facts in an entry of `found`; raises Dishonest for an entry that no agent sends."""
    path, size, modified, executable = entry
    if leads_elsewhere(path):
        raise Dishonest(f"it named {shown(path)}, which leads out of the directory")
    if not wanted.says(path):
        raise Dishonest(f"it named {shown(path)}, which was not asked for")
    if size not in _NUMBERS or abs(modified) not in _NUMBERS:
        raise Dishonest(f"it named {shown(path)}, with {str(size)[:25]} bytes, of {str(modified)[:25]} ns")
    return path, FoundFile(size, modified, executable)


def check_names(count: int, bytes: int) -> None:
    """Raise Dishonest if these are more names than an agent sends."""
    if count > MOST_NAMES or bytes > MOST_NAME_BYTES:
        raise Dishonest(f"it named {count:,} files, in {amount(bytes)}")


def check_progress(idle: int) -> None:
    """Raise Dishonest after so many answers that named nothing new: an agent's answer comes to an end."""
    if idle > MOST_IDLE:
        raise Dishonest(f"it goes on to answer, and has named nothing new {idle:,} times")


def read_request(
    path: str, offset: int, size: int, take: Callable[[Message], bool], *, digest: bool = False
) -> FetchRequest:
    """Ask for that piece of a file, or for its digest; `take` raises Dishonest for the answer to another request."""

    def checked(message: Message) -> bool:
        if (message["path"], message["offset"], message["digest"]) != (path, offset, digest):
            raise Dishonest(f"it sent a piece of {shown(path)} that was not asked for")
        most = _DIGEST_BYTES if digest else size
        if len(message.body) > most or (digest and not message["why"] and len(message.body) < most):
            raise Dishonest(f"it sent {len(message.body):,} bytes of {shown(path)}, not {most:,}")
        if message["size"] not in _NUMBERS or abs(message["modified"]) not in _NUMBERS:
            raise Dishonest(f"it sent a piece of {shown(path)} with {str(message['size'])[:25]} bytes")
        return take(message)

    return FetchRequest("read", {"path": path, "offset": offset, "size": size, "digest": digest}, checked)


def shown(path: str) -> str:
    """A path of a host, shortened, and without characters that act on a terminal."""
    return ascii(path if len(path) <= 100 else f"{path[:97]}...")
