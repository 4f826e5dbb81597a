"""What the tasks of a run have written, brought here over the wires to its agents, or to what these have left.

Each file comes whole or not at all, and goes on where it stopped: after a lost connection at once, after Ctrl-C
the next time.  Where it goes is decided for each name in the tasks' working directory: DIR/checkpoints, if what
several hosts have below it is the same or does not meet; else DIR/HOST/checkpoints for each of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tflaunch.inputs.patterns import Wanted, Wish
from tflaunch.inputs.sizes import amount
from tflaunch.protocol.errors import ConnectError, FetchError
from tflaunch.protocol.wire import Message
from tflaunch.runs import fetch_pipeline
from tflaunch.runs.fetch_destination import (
    FATAL,
    Destination,
    Part,
    Refused,
    cannot_write,
    leads_elsewhere,
    make_executable,
    present,
    why_not,
)
from tflaunch.runs.fetch_pipeline import AHEAD, Dishonest, Pipeline, Request, Steps
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.watcher import Watcher

PIECE_BYTES = 256 * 1024
BLOCK_BYTES = 4 * 1024 * 1024  # that one digest is of
TOGETHER = 64  # files from all hosts, for each is open
TRIES = 3  # for a file that changes while it is read
SHOWN_S = 0.1
# What a host may tell: an agent stops at so many files itself.
FILES, NAMES_BYTES, THERE = 100_000, 32 * 2**20, 12
_NUMBERS = range(2**63)  # sizes that a disk knows; times, from 1970, too
_DIGEST_BYTES = 32


@dataclass
class Fetched:
    """What has come, and what has not."""

    run_id: str
    directory: str
    files: int = 0
    bytes: int = 0
    same: int = 0  # were here already
    apart: list[str] = field(default_factory=list)  # names that each host has a directory of its own for
    kept: list[str] = field(default_factory=list)  # files here that are others than those of the run
    failed: dict[str, str] = field(default_factory=dict)  # HOST:PATH -> why it did not come
    left: dict[str, str] = field(default_factory=dict)  # HOST:PATH -> why it is none: a link, gone meanwhile
    hidden: list[str] = field(default_factory=list)  # names with a dot, which no pattern names
    unmatched: list[str] = field(default_factory=list)  # patterns
    there: list[str] = field(default_factory=list)  # names in the working directories, if nothing matches
    unreached: dict[str, ConnectError] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all that was asked for is here."""
        return not (self.kept or self.failed or self.unmatched or self.unreached)


@dataclass(frozen=True)
class _File:
    size: int
    modified: int
    executable: bool


class Fetch:
    """Brings the outputs of one run from its hosts, over wires that are open already."""

    def __init__(
        self,
        run_id: str,
        sessions: Sessions,
        hosts: Sequence[str],
        dial: Callable[[str], None],
        watcher: Watcher,
        *,
        wish: Wish,
    ) -> None:
        self._run_id = run_id
        self._hosts = list(hosts)
        self._pipeline = Pipeline(sessions, hosts, dial, watcher)
        self._watcher = watcher
        self._wish = wish
        self._wanted = Wanted(wish.patterns)
        self._destination = Destination(directory := wish.to or Path(run_id))
        self._found: dict[str, dict[str, _File]] = {host: {} for host in hosts}
        self._digests: dict[str, dict[str, dict[int, bytes]]] = {}  # path -> host -> offset -> digest
        self._mine: set[tuple[int, int]] = set()  # device and inode of the files that have come now
        self._came: list[str] = []  # where they are
        self._spare = 0  # bytes that may come beyond those announced at first
        self._shown_at = 0.0
        self._done = self._total = self._arrived = self._expected = 0
        self.told = Fetched(run_id, str(directory), unreached=self._pipeline.unreached)

    def run(self) -> Fetched:
        """Bring all that matches; returns what came of it.

        A host that tells what no agent tells (a name that was not asked for, more bytes than announced) is given up,
        and nothing of it comes that has not come.  Raises FetchError when it is more than there is room for, or than
        the wish allows, before anything is written; or when nothing more can be written; Stopped.  What has come
        stays.
        """
        try:
            self._pipeline.work({host: [self._find(host)] for host in self._hosts})
            self._forget_unreached()
            self._note_unmatched()
            shared = self._shared()
            self._pipeline.work({host: [self._compare(host, shared)] for host in self._hosts})
            self._forget_unreached()
            self._bring_all(self._with_room(self._places()))
        except OSError as error:
            raise cannot_write(self._destination.path, error) from None
        return self.told

    def _bring_all(self, places: dict[str, dict[str, str]]) -> None:
        self._total = sum(map(len, places.values()))
        self._expected = sum(self._found[host][path].size for host, paths in places.items() for path in paths)
        several = max(1, min(AHEAD, TOGETHER // max(1, len(places))))
        if self._total:
            self._destination.mark([place for paths in places.values() for place in paths.values()])
        try:
            for first in range(0, len(self._hosts), TOGETHER):
                threads = {}
                for host in self._hosts[first : first + TOGETHER]:
                    files = iter(places[host].items())
                    threads[host] = [self._bring(host, files) for _ in range(several)]
                self._pipeline.work(threads)
        finally:
            if self._total:
                self._destination.settle(self._came)

    # -- what there is

    def _find(self, host: str) -> Steps:
        files, told = self._found[host], self.told
        names_bytes = 0
        left: set[str] = set()
        whole = self._destination.room().whole

        def take(message: Message) -> bool:
            nonlocal names_bytes
            for path, size, modified, executable in message["files"]:
                shown = _shown(path)
                if leads_elsewhere(path):
                    raise Dishonest(f"it told of {shown}, which leads out of the directory")
                if not self._wanted.says(path):
                    raise Dishonest(f"it told of {shown}, which was not asked for")
                if size not in _NUMBERS or abs(modified) not in _NUMBERS:
                    raise Dishonest(
                        f"it told of {shown} with {str(size)[:25]} bytes, of {str(modified)[:25]} ns"
                    )
                names_bytes += len(path) if path not in files else 0
                if why := why_not(path):
                    left.add(path)
                    told.failed[f"{host}:{path}"] = why
                elif size > whole:
                    left.add(path)
                    told.failed[f"{host}:{path}"] = (
                        f"it has {amount(size)}, and the disk here {amount(whole)} in all"
                    )
                else:
                    files[path] = _File(size, modified, executable)
            for path, why, bad in message["left"]:
                names_bytes += len(path) + len(why) if path not in left else 0
                left.add(path)
                if self._wanted.says(path) or self._wanted.says(f"{path}/"):
                    (told.failed if bad else told.left)[f"{host}:{path}"] = why
                elif path.rpartition("/")[2].startswith(".") and path not in told.hidden:
                    told.hidden.append(path)
            if len(files) + len(left) > 2 * FILES or names_bytes > NAMES_BYTES:
                raise Dishonest(f"it told of {len(files) + len(left):,} names, {amount(names_bytes)}")
            told.there += [name for name in message["there"][:THERE] if name not in told.there]
            return bool(message["last"])

        roots = sorted({each.root for each in self._wish.patterns if each.wanted})
        fields = {"patterns": self._wanted.regexes, "roots": [""] if "" in roots else roots}
        yield Request("find", fields, take)

    def _forget_unreached(self) -> None:
        for host in self._pipeline.unreached:
            self._found[host].clear()

    def _note_unmatched(self) -> None:
        paths = {path for files in self._found.values() for path in files}
        for pattern in self._wish.patterns:
            match = re.compile(pattern.regex, re.DOTALL).match
            if pattern.wanted and not self.told.unreached and not any(map(match, paths)):
                self.told.unmatched.append(pattern.text)

    def _holders(self, path: str) -> list[str]:
        return [host for host in self._hosts if path in self._found[host]]

    def _shared(self) -> list[str]:
        """The paths that several hosts have, files of one size."""
        paths = sorted({path for files in self._found.values() for path in files})
        return [
            path
            for path in paths
            if len(holders := self._holders(path)) > 1
            and len({self._found[host][path].size for host in holders}) == 1
        ]

    def _compare(self, host: str, shared: Iterable[str]) -> Steps:
        for path in shared:
            if path not in self._found[host]:
                continue
            digests = self._digests.setdefault(path, {}).setdefault(host, {})
            for offset in range(0, self._found[host][path].size, BLOCK_BYTES):

                def take(message: Message, digests: dict[int, bytes] = digests, offset: int = offset) -> bool:
                    digests[offset] = message.body
                    return True

                yield _read(path, offset, BLOCK_BYTES, take, digest=True)
                if len({each.get(offset) for each in self._digests[path].values()} - {None}) > 1:
                    break  # they are known to be different

    def _places(self) -> dict[str, dict[str, str]]:
        """By host: each path that is brought from it, and where it goes."""
        tops: dict[str, set[str]] = {}
        for path in {path for files in self._found.values() for path in files}:
            tops.setdefault(path.partition("/")[0], set()).add(path)
        places: dict[str, dict[str, str]] = {host: {} for host in self._hosts}
        taken: dict[str, str] = {}
        for top, paths in sorted(tops.items()):
            parents = {path[:at] for path in paths for at in range(len(path)) if path[at] == "/"}
            # A top that is called as a host is would get in the way of what is in that host's own directory.
            apart = top in self._hosts or not paths.isdisjoint(parents) or not all(map(self._alike, paths))
            if apart:
                self.told.apart.append(top)
            for path in sorted(paths):
                for host in self._holders(path)[: None if apart else 1]:
                    place = f"{host}/{path}" if apart else path
                    if place in taken:
                        self.told.failed[f"{host}:{path}"] = f"{place} is what {taken[place]} goes to"
                    else:
                        places[host][path] = place
                        taken[place] = f"{host}:{path}"
        return places

    def _with_room(self, places: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        """These places without those of files that alone are too large; raises FetchError if all are, together."""
        room, most = self._destination.room(), self._wish.most_bytes
        allowed = room.bytes if most is None else min(room.bytes, most)
        bytes_of: dict[str, int] = {}
        count = total = 0
        for host, paths in places.items():
            for path, place in list(paths.items()):
                file = self._found[host][path]
                size = self._to_come(host, path, place)
                if size is None:
                    continue
                if room.taken_by(size) > room.bytes or size > allowed:
                    del paths[path]
                    limit = (
                        f"the limit is {amount(most or 0)}"
                        if size <= room.bytes
                        else f"there is room for {room}"
                    )
                    self.told.failed[f"{host}:{path}"] = f"it has {amount(file.size)}, and {limit}"
                    continue
                count += 1
                total += room.taken_by(size) if most is None else size
                bytes_of[host] = bytes_of.get(host, 0) + size
        where = f"{count:,} files, {amount(total)}"
        if len(bytes_of) > 1:
            largest = max(bytes_of, key=lambda host: bytes_of[host])
            where += f" ({amount(bytes_of[largest])} from {largest})"
        if total > room.bytes or (room.files is not None and count > room.files):
            raise FetchError(
                f"{where}, are to come to {self._destination.path}, where there is room for {room}; "
                "nothing was written",
                "make room there, name another directory, or fetch less: patterns choose",
            )
        if total > allowed:
            raise FetchError(
                f"{where}, are to come, and the limit is {amount(allowed)}; nothing was written",
                "raise the limit, or fetch less: patterns choose",
            )
        self._spare = allowed - total
        return places

    def _to_come(self, host: str, path: str, place: str) -> int | None:
        """How many bytes of a file are not here; None: it is here already."""
        file, here = self._found[host][path], self._destination.has(place)
        if here is not None and (here.st_size, here.st_mtime_ns) == (file.size, file.modified):
            return None
        return max(0, file.size - self._destination.has_part(place, *self._part_of(host, path, file)))

    def _part_of(self, host: str, path: str, file: _File) -> tuple[str, str]:
        return f"{self._run_id} {host}:{path}", f"{file.size} {file.modified}"

    def _alike(self, path: str) -> bool:
        holders = self._holders(path)
        if len(holders) == 1:
            return True
        if len({self._found[host][path].size for host in holders}) > 1:
            return False
        first, *others = (self._digests.get(path, {}).get(host) for host in holders)
        return all(other == first for other in others)

    # -- bringing it

    def _bring(self, host: str, places: Iterator[tuple[str, str]]) -> Steps:
        for path, place in places:
            key = f"{host}:{path}"
            try:
                yield from self._bring_one(host, path, place, key)
            except Refused as refused:
                self.told.failed[key] = str(refused)
            except OSError as error:
                if error.errno in FATAL:
                    raise cannot_write(self._destination.path, error) from None
                self.told.failed[key] = f"{place}: {os.strerror(error.errno or 0)}"
            self._done += 1
            self._show()

    def _bring_one(self, host: str, path: str, place: str, key: str) -> Steps:
        for _ in range(TRIES):
            file = self._found[host][path]
            with self._destination.beside(place) as (directory, name):
                replace = self._wish.overwrite
                executable = file.executable and self._wish.keep_mode
                if (here := present(directory, name)) is not None:
                    try:
                        self._refuse_ours(os.fstat(here))
                        begins = yield from self._begins_with(path, file, here)
                        size = os.fstat(here).st_size
                        if begins and size == file.size and executable:
                            make_executable(here)
                    finally:
                        os.close(here)
                    if begins and size == file.size:
                        self.told.same += 1
                        self._arrived += size
                        return
                    replace |= begins and self._destination.is_marked(place)  # it has grown since it came
                    if not replace:
                        self.told.kept.append(place)
                        self._arrived += file.size
                        return
                part = Part(directory, name, *self._part_of(host, path, file))
                arrived = self._arrived
                try:
                    now = yield from self._pieces(path, file, part)
                    if now == file and part.have == file.size:
                        if (other := self._destination.has(place)) is not None:
                            self._refuse_ours(other)
                        if part.finish(file.modified, executable, replace):
                            self._mine.add(_identity(os.fstat(part.file)))
                            self._came.append(place)
                            self.told.files += 1
                            self.told.bytes += file.size
                        else:
                            self.told.kept.append(place)
                        return
                    part.forget()
                    if now is None:
                        self.told.left[key] = "gone meanwhile"  # an old checkpoint, for example
                        return
                    if (more := max(0, now.size - file.size)) > self._spare:
                        raise Refused(f"it has grown to {amount(now.size)}, more than there is room for")
                    self._spare -= more
                    self._found[host][path] = now
                    self._arrived = arrived
                finally:
                    part.close()
        raise Refused(f"it was written to each of the {TRIES} times that it was read: fetch it again later")

    def _refuse_ours(self, info: os.stat_result) -> None:
        """Raises Refused where this disk takes two names for one, as `a` and `A` elsewhere."""
        if _identity(info) in self._mine:
            raise Refused("on this disk its name is that of another file that has just come")

    def _begins_with(self, path: str, file: _File, here: int) -> fetch_pipeline.Part[bool]:
        """Whether the file there begins with all of the one that is here."""
        info = os.fstat(here)
        if (info.st_size, info.st_mtime_ns) == (file.size, file.modified):
            return True
        return info.st_size <= file.size and (yield from self._equal(path, here, info.st_size))

    def _equal(self, path: str, here: int, size: int) -> fetch_pipeline.Part[bool]:
        """Whether the first `size` bytes are the same there."""
        different = False

        def take(message: Message) -> bool:
            nonlocal different
            mine = os.pread(here, min(BLOCK_BYTES, size - message["offset"]), message["offset"])
            different |= hashlib.sha256(mine).digest() != message.body
            return True

        for offset in range(0, size, BLOCK_BYTES):
            if not different:
                yield _read(path, offset, min(BLOCK_BYTES, size - offset), take, digest=True)
        yield None
        return not different

    def _pieces(self, path: str, file: _File, part: Part) -> fetch_pipeline.Part[_File | None]:
        """The rest of the file into `part`; returns what it was when it was read, None: gone. Raises Refused.

        One that only grows, as logs and TensorBoard's events do, is as good as one that does not: what is brought is
        what it was when it was found.
        """
        if part.have > file.size or (part.have and not (yield from self._equal(path, part.file, part.have))):
            part.forget()
        self._arrived += part.have
        now: _File | None = file
        why = ""

        def take(message: Message) -> bool:
            nonlocal now, why
            if message["why"]:
                now, why = None, "" if message["gone"] else message["why"]
            elif now is not None:
                now = _File(message["size"], message["modified"], file.executable)
                part.write(message["offset"], message.body)
                self._arrived += len(message.body)
                self._show()
            return True

        for offset in range(part.have, max(file.size, part.have + 1), PIECE_BYTES):
            if now is None or now.size < file.size:
                break
            yield _read(path, offset, min(PIECE_BYTES, file.size - offset), take)
        yield None
        if why:
            part.forget()
            raise Refused(why)
        if now is not None and now.size > file.size and (yield from self._equal(path, part.file, file.size)):
            return file
        return now

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at >= SHOWN_S or self._done == self._total:
            self._shown_at = now
            note = f"{self._arrived / 2**20:,.1f} of {self._expected / 2**20:,.1f} MiB"
            self._watcher.phase("fetching", self._done, self._total, note)


def _read(
    path: str, offset: int, size: int, take: Callable[[Message], bool], *, digest: bool = False
) -> Request:
    """Ask for that piece of a file, or its digest; an answer that is none to this is dishonest."""

    def checked(message: Message) -> bool:
        if (message["path"], message["offset"], message["digest"]) != (path, offset, digest):
            raise Dishonest(f"it sent another piece than was asked for, of {_shown(path)}")
        most = _DIGEST_BYTES if digest else size
        if len(message.body) > most or (digest and not message["why"] and len(message.body) < most):
            raise Dishonest(
                f"it sent {len(message.body):,} bytes of {_shown(path)} where {most:,} were to come"
            )
        if message["size"] not in _NUMBERS or abs(message["modified"]) not in _NUMBERS:
            raise Dishonest(f"it told of {_shown(path)} with {str(message['size'])[:25]} bytes")
        return take(message)

    return Request("read", {"path": path, "offset": offset, "size": size, "digest": digest}, checked)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _shown(path: str) -> str:
    return ascii(path if len(path) <= 100 else f"{path[:97]}...")
