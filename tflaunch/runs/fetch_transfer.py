"""The second half of a fetch: the content of each file, whole or not at all, from where it stopped the last time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping

from tflaunch.inputs.patterns import Wish
from tflaunch.protocol.wire import Message
from tflaunch.runs import fetch_pipeline
from tflaunch.runs.fetch_destination import FATAL, Destination, cannot_write
from tflaunch.runs.fetch_part import FilePart, Refused, make_executable, others_write, present
from tflaunch.runs.fetch_pipeline import Steps
from tflaunch.runs.fetch_requests import FoundFile, read_request
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.fetch_search import BLOCK_BYTES
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.numbers import amount

PIECE_BYTES = 256 * 1024
TRIES = 3  # for a file that changes while it is read
SHOWN_S = 0.1


def part_of(run_id: str, host: str, path: str, file: FoundFile) -> tuple[str, str]:
    """What identifies the `FilePart` of a file: `which` and `content`."""
    return f"{run_id} {host}:{path}", f"{file.size} {file.modified}"


class Transfer:
    """Brings files from hosts into a directory, and shows how far it is."""

    def __init__(
        self,
        found: Mapping[str, dict[str, FoundFile]],
        destination: Destination,
        wish: Wish,
        result: Fetched,
        watcher: Watcher,
        *,
        spare_bytes: int,
    ) -> None:
        """`found`: host -> path -> file.  `spare_bytes` may come beyond those that were found."""
        self.came: list[str] = []  # the places of the files that have come
        self._found = found
        self._destination = destination
        self._wish = wish
        self._result = result
        self._watcher = watcher
        self._spare = spare_bytes
        self._ours: set[tuple[int, int]] = set()  # device and inode of the files that have come
        self._done = self._total = self._arrived = self._expected = 0  # files, files, bytes, bytes
        self._shown_at = 0.0

    def expect(self, places: Mapping[str, Mapping[str, str]]) -> None:
        """Say what will be brought: host -> path -> place."""
        self._total = sum(map(len, places.values()))
        self._expected = sum(self._found[host][path].size for host, paths in places.items() for path in paths)

    def bring(self, host: str, places: Iterator[tuple[str, str]]) -> Steps:
        """Bring these files of a host, one after the other; `places` may be shared by several."""
        for path, place in places:
            key = f"{host}:{path}"
            try:
                yield from self._bring_one(host, path, place, key)
            except Refused as refused:
                self._result.failed[key] = str(refused)
            except OSError as error:
                if error.errno in FATAL:
                    raise cannot_write(self._destination.path, error) from None
                self._result.failed[key] = f"{place}: {os.strerror(error.errno or 0)}"
            self._done += 1
            self._show()

    def _bring_one(self, host: str, path: str, place: str, key: str) -> Steps:
        for _ in range(TRIES):
            file = self._found[host][path]
            with self._destination.beside(place) as (directory, name):
                replace = yield from self._settle_present(path, file, place, directory, name)
                if replace is None:
                    return
                part = FilePart(directory, name, *part_of(self._result.run_id, host, path, file))
                arrived = self._arrived
                try:
                    now = yield from self._pieces(path, file, part)
                    if now == file and part.have == file.size:
                        self._finish(part, file, place, replace)
                        return
                    part.forget()
                    if now is None:
                        self._result.left[key] = "gone meanwhile"  # an old checkpoint, for example
                        return
                    if (more := max(0, now.size - file.size)) > self._spare:
                        raise Refused(f"it has grown to {amount(now.size)}, more than there is room for")
                    self._spare -= more
                    self._found[host][path] = now
                    self._arrived = arrived
                finally:
                    part.close()
        raise Refused(f"it changed each of the {TRIES} times that it was read: fetch it again later")

    def _settle_present(
        self, path: str, file: FoundFile, place: str, directory: int, name: str
    ) -> fetch_pipeline.Part[bool | None]:
        """Look at what is here under that name; returns whether to replace it, or None: nothing is to come."""
        replace = self._wish.overwrite
        if (here := present(directory, name)) is None:
            return replace
        try:
            self._refuse_ours(os.fstat(here))
            begins = yield from self._begins_with(path, file, here)
            size = os.fstat(here).st_size
            if begins and size == file.size:
                if self._executable(file) and not others_write(directory):
                    make_executable(here)
                self._result.same += 1
                self._arrived += size
                return None
        finally:
            os.close(here)
        grown = begins and self._destination.is_marked(place)  # on the host, since it was fetched
        if replace or grown:
            return True
        self._result.kept.append(place)
        self._arrived += file.size
        return None

    def _finish(self, part: FilePart, file: FoundFile, place: str, replace: bool) -> None:
        """Give a file that has come whole its name."""
        if (other := self._destination.has(place)) is not None:
            self._refuse_ours(other)
        if part.finish(file.modified, self._executable(file), replace):
            self._ours.add(_identity(os.fstat(part.file)))
            self.came.append(place)
            self._result.files += 1
            self._result.bytes += file.size
        else:
            self._result.kept.append(place)

    def _executable(self, file: FoundFile) -> bool:
        return file.executable and self._wish.keep_mode

    def _refuse_ours(self, info: os.stat_result) -> None:
        """Raise Refused if the disk takes two names for one, such as `a` and `A`, and this one has just come."""
        if _identity(info) in self._ours:
            raise Refused("on this disk it has the name of another file that has just come")

    def _begins_with(self, path: str, file: FoundFile, here: int) -> fetch_pipeline.Part[bool]:
        """Whether the host's file begins with the whole content of the one that is here."""
        info = os.fstat(here)
        if (info.st_size, info.st_mtime_ns) == (file.size, file.modified):
            return True
        return info.st_size <= file.size and (yield from self._equal(path, here, info.st_size))

    def _equal(self, path: str, here: int, size: int) -> fetch_pipeline.Part[bool]:
        """Whether the first `size` bytes are the same on the host and here."""
        different = False

        def take(message: Message) -> bool:
            nonlocal different
            mine = os.pread(here, min(BLOCK_BYTES, size - message["offset"]), message["offset"])
            different |= hashlib.sha256(mine).digest() != message.body
            return True

        for offset in range(0, size, BLOCK_BYTES):
            if not different:
                yield read_request(path, offset, min(BLOCK_BYTES, size - offset), take, digest=True)
        yield None
        return not different

    def _pieces(self, path: str, file: FoundFile, part: FilePart) -> fetch_pipeline.Part[FoundFile | None]:
        """Bring the rest of a file into `part`; returns its state as it was read, None: it is gone.  Raises Refused.

        A file that only grows, as logs and TensorBoard's events do, comes as it was when it was found.
        """
        if part.have > file.size or (part.have and not (yield from self._equal(path, part.file, part.have))):
            part.forget()
        self._arrived += part.have
        now: FoundFile | None = file
        why = ""

        def take(message: Message) -> bool:
            nonlocal now, why
            if message["why"]:
                now, why = None, "" if message["gone"] else message["why"]
            elif now is not None:
                now = FoundFile(message["size"], message["modified"], file.executable)
                part.write(message["offset"], message.body)
                self._arrived += len(message.body)
                self._show()
            return True

        for offset in range(part.have, max(file.size, part.have + 1), PIECE_BYTES):
            if now is None or now.size < file.size:
                break
            yield read_request(path, offset, min(PIECE_BYTES, file.size - offset), take)
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
            moved = (min(self._arrived, self._expected), self._expected)
            note = f"{moved[0] / 2**20:,.1f} of {moved[1] / 2**20:,.1f} MiB"
            self._watcher.phase("fetching", self._done, self._total, note, moved=moved)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
