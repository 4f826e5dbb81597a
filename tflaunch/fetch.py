"""What the tasks of a run have written, brought here over the wires to its agents, or to what these have left.

Each file comes whole or not at all, and goes on where it stopped: after a lost connection at once, after Ctrl-C
the next time.  Where it goes is decided for each name in the tasks' working directory: DIR/checkpoints, if what
several hosts have below it is the same or does not meet; else DIR/HOST/checkpoints for each of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tflaunch import lanes
from tflaunch.destination import Destination, Part, Refused, cannot_write, present
from tflaunch.errors import ConnectError
from tflaunch.lanes import AHEAD, Lanes, Request, Steps
from tflaunch.patterns import Pattern
from tflaunch.session import Sessions
from tflaunch.wire import Message

PIECE_BYTES = 256 * 1024
BLOCK_BYTES = 4 * 1024 * 1024  # that one digest is of
TOGETHER = 64  # files from all hosts, for each is open
TRIES = 3  # for a file that changes while it is read
SHOWN_S = 0.1
# No other file can be written then either.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE)
_NEVER = Pattern.parse("!__pycache__/")


class Watcher(lanes.Watcher, Protocol):
    """Who is shown how far it has come."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None: ...


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
        patterns: Sequence[Pattern],
        directory: Path,
        overwrite: bool = False,
    ) -> None:
        self._run_id = run_id
        self._hosts = list(hosts)
        self._lanes = Lanes(sessions, hosts, dial, watcher)
        self._watcher = watcher
        self._patterns = patterns
        self._destination = Destination(directory)
        self._overwrite = overwrite
        self._found: dict[str, dict[str, _File]] = {host: {} for host in hosts}
        self._digests: dict[str, dict[str, dict[int, bytes]]] = {}  # path -> host -> offset -> digest
        self._shown_at = 0.0
        self._done = self._total = self._arrived = self._expected = 0
        self.told = Fetched(run_id, str(directory), unreached=self._lanes.unreached)

    def run(self) -> Fetched:
        """Bring all that matches; returns what came of it.

        Raises FetchError when nothing more can be written here, Stopped; what has come stays.
        """
        try:
            self._lanes.work({host: [self._find(host)] for host in self._hosts})
            self._note_unmatched()
            shared = self._shared()
            self._lanes.work({host: [self._compare(host, shared)] for host in self._hosts})
            self._bring_all(self._places())
        except OSError as error:
            raise cannot_write(self._destination.path, error) from None
        return self.told

    def _bring_all(self, places: dict[str, dict[str, str]]) -> None:
        self._total = sum(map(len, places.values()))
        self._expected = sum(self._found[host][path].size for host, paths in places.items() for path in paths)
        several = max(1, min(AHEAD, TOGETHER // len(places)))
        for first in range(0, len(self._hosts), TOGETHER):
            threads = {}
            for host in self._hosts[first : first + TOGETHER]:
                files = iter(places[host].items())
                threads[host] = [self._bring(host, files) for _ in range(several)]
            self._lanes.work(threads)

    # -- what there is

    def _find(self, host: str) -> Steps:
        files = self._found[host]

        def take(message: Message) -> bool:
            for path, size, modified, executable in message["files"]:
                files[path] = _File(size, modified, executable)
            for path, why, bad in message["left"]:
                (self.told.failed if bad else self.told.left)[f"{host}:{path}"] = why
            self.told.there += [name for name in message["there"] if name not in self.told.there]
            return bool(message["last"])

        patterns = [(each.regex, each.wanted) for each in (*self._patterns, _NEVER)]
        roots = sorted({each.root for each in self._patterns if each.wanted})
        yield Request("find", {"patterns": patterns, "roots": [""] if "" in roots else roots}, take)

    def _note_unmatched(self) -> None:
        paths = {path for files in self._found.values() for path in files}
        for pattern in self._patterns:
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

                def take(message: Message, digests: dict[int, bytes] = digests) -> bool:
                    digests[message["offset"]] = message.body
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
            apart = not paths.isdisjoint(parents) or not all(map(self._alike, paths))
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
                replace = self._overwrite
                if (here := present(directory, name)) is not None:
                    try:
                        begins = yield from self._begins_with(path, file, here)
                        size = os.fstat(here).st_size
                    finally:
                        os.close(here)
                    if begins and size == file.size:
                        self.told.same += 1
                        self._arrived += size
                        return
                    replace |= begins  # it has grown since: nothing is lost
                    if not replace:
                        self.told.kept.append(place)
                        self._arrived += file.size
                        return
                part = Part(directory, name, f"{self._run_id} {key}", f"{file.size} {file.modified}")
                arrived = self._arrived
                try:
                    now = yield from self._pieces(path, file, part)
                    if now == file:
                        if part.finish(file.modified, file.executable, replace):
                            self.told.files += 1
                            self.told.bytes += file.size
                        else:
                            self.told.kept.append(place)
                        return
                    part.forget()
                    if now is None:
                        self.told.left[key] = "gone meanwhile"  # an old checkpoint, for example
                        return
                    self._found[host][path] = now
                    self._arrived = arrived
                finally:
                    part.close()
        raise Refused(f"it was written to each of the {TRIES} times that it was read: fetch it again later")

    def _begins_with(self, path: str, file: _File, here: int) -> lanes.Part[bool]:
        """Whether the file there begins with all of the one that is here."""
        info = os.fstat(here)
        if (info.st_size, info.st_mtime_ns) == (file.size, file.modified):
            return True
        return info.st_size <= file.size and (yield from self._equal(path, here, info.st_size))

    def _equal(self, path: str, here: int, size: int) -> lanes.Part[bool]:
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

    def _pieces(self, path: str, file: _File, part: Part) -> lanes.Part[_File | None]:
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
                data = message.body[: max(0, file.size - message["offset"])]
                part.write(message["offset"], data)
                self._arrived += len(data)
                self._show()
            return True

        for offset in range(part.have, max(file.size, part.have + 1), PIECE_BYTES):
            if now is None or now.size < file.size:
                break
            yield _read(path, offset, PIECE_BYTES, take)
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
    return Request("read", {"path": path, "offset": offset, "size": size, "digest": digest}, take)
