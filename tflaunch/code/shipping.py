"""Shipping the code to the hosts: to each host the files that it lacks, and no more."""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tflaunch.protocol import wire
from tflaunch.protocol.code_manifest import PIECE_BYTES
from tflaunch.protocol.errors import Breach

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.protocol.errors import ConnectError
    from tflaunch.sessions.group import Sessions

# A manifest up to this size goes with the question: that saves a round trip where the code is new.
_ASKED_BYTES = 8 * 1024
_PIECE_FILES = 200  # in one frame: few enough that a host writes them at once
_LEVEL = 3  # of compression


@dataclass(frozen=True)
class Shipped:
    """How much of the code the hosts lacked and were sent; equal files count as one content."""

    sent: Mapping[str, tuple[int, int]]  # host -> how many contents it was sent, and their bytes
    contents: int  # how many contents were sent to any host
    bytes: int
    whole: bool  # each host lacked all of the code


def ship(
    sessions: Sessions, bundle: Bundle, hosts: Collection[str], timeout_s: float
) -> tuple[Shipped, dict[str, ConnectError]]:
    """Send the code to the hosts that lack it; returns what was sent, and the error of each host without it.

    Hosts that have said that they keep it (Cluster.open) are not asked again.  Raises Stopped.
    """
    manifest = bundle.manifest
    first = manifest if len(manifest) <= _ASKED_BYTES else b""
    keep = {name for name, said in sessions.early.take("code").items() if said["have"]}
    asked = [name for name in hosts if name not in keep]
    sessions.send(asked, "code", first, digest=bundle.digest)
    replies, failures = sessions.gather("code", asked, timeout_s)
    unknown = [name for name, said in replies.items() if not said["have"] and said["lacks"] is None]
    if unknown and not failures:
        for name in unknown:
            sessions.by_host[name].upload(_in_pieces(manifest))
        more, failures = sessions.gather("code", unknown, timeout_s)
        replies |= more
    lacking = [name for name, said in replies.items() if not said["have"]]
    places = {place for place, entry in enumerate(bundle.entries) if entry[1] in ("f", "x")}
    for name in lacking:
        lacks = replies[name]["lacks"]
        if not lacks or len(set(lacks)) < len(lacks) or not places.issuperset(lacks):
            failures[name] = Breach("it says that it lacks code that it was not asked about")
    if lacking and not failures:
        moving = _Moving(sum(_size(bundle, replies[name]["lacks"]) for name in lacking))
        groups = defaultdict(list)
        for name in lacking:
            groups[tuple(replies[name]["lacks"])].append(name)
        for lacks, names in groups.items():
            made = frames(bundle, lacks)
            shared = _Shared(made) if len(names) > 1 else made  # frames for one host are not kept
            for name in names:
                sessions.by_host[name].upload(moving.count(shared))
        _, failures = sessions.gather("code", lacking, timeout_s, "shipping", moved=moving.now)
    lacked = {} if failures else {name: replies[name]["lacks"] for name in lacking}
    return _shipped(bundle, {name: lacked.get(name, ()) for name in hosts}), failures


def _size(bundle: Bundle, places: Iterable[int]) -> int:
    """The bytes of the contents at those places of the manifest."""
    return sum(int(bundle.entries[place][3]) for place in places)


def _shipped(bundle: Bundle, lacked: Mapping[str, Collection[int]]) -> Shipped:
    sent = {name: (len(places), _size(bundle, places)) for name, places in lacked.items()}
    went = set().union(*lacked.values())
    whole = all(len(places) == len(bundle.contents) for places in lacked.values())
    return Shipped(sent, len(went), _size(bundle, went), whole)


class _Moving:
    """Counts the bytes of contents, not packed, that have been handed to the connections of all hosts."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._moved = 0
        self._lock = threading.Lock()

    def now(self) -> tuple[int, int]:
        return min(self._moved, self._whole), self._whole

    def count(self, frames: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
        """The frames alone; each is counted when the next one is asked for: then it has been sent."""
        for frame, size in frames:
            yield frame
            with self._lock:
                self._moved += size


def _in_pieces(manifest: bytes) -> Iterator[bytes]:
    for start in range(0, len(manifest), PIECE_BYTES):
        end = start + PIECE_BYTES
        yield wire.encode("manifest", manifest[start:end], last=end >= len(manifest))


class _Shared:
    """Frames for several hosts, each packed once, when the first host is ready for it."""

    def __init__(self, frames: Iterator[tuple[bytes, int]]) -> None:
        self._more = frames
        self._made: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        number = 0
        while True:
            with self._lock:
                if number == len(self._made):
                    frame = next(self._more, None)
                    if frame is None:
                        return
                    self._made.append(frame)
            yield self._made[number]
            number += 1


def frames(bundle: Bundle, lacks: Iterable[int]) -> Iterator[tuple[bytes, int]]:
    """The contents at those places of the manifest, as frames: each has many small ones, or a part of a large one.

    Beside each frame, the bytes of contents in it before they were packed.
    """
    piece = bytearray()
    files = 0
    for place in lacks:
        rest = memoryview(bundle.contents[str(bundle.entries[place][2])])
        files += 1
        while len(piece) + len(rest) > PIECE_BYTES or files > _PIECE_FILES:
            room = PIECE_BYTES - len(piece)
            piece += rest[:room]
            rest = rest[room:]
            yield _blob(bytes(piece), last=False)
            piece.clear()
            files = 0
        piece += rest
    yield _blob(bytes(piece), last=True)


def _blob(piece: bytes, last: bool) -> tuple[bytes, int]:
    packed = zlib.compress(piece, _LEVEL)
    pays = len(packed) < len(piece)
    return wire.encode("blob", packed if pays else piece, packed=pays, last=last), len(piece)
