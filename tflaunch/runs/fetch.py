"""`fetch`: bring files that the tasks of a run wrote from its hosts to this machine.

The agents of the run send the files; once the run has ended, visits do.  Each file comes whole or not at all.  An
interrupted fetch goes on where it stopped: after a lost connection at once, after Ctrl-C with the next `fetch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tflaunch.inputs.patterns import Wish
from tflaunch.protocol.errors import FetchError
from tflaunch.runs.fetch_destination import Destination, Room, cannot_write
from tflaunch.runs.fetch_pipeline import AHEAD, Pipeline
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.fetch_search import Search
from tflaunch.runs.fetch_transfer import Transfer, part_of
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.numbers import amount

TOGETHER = 64  # files under way at a time, from all hosts together: each needs an open descriptor

Places = dict[str, dict[str, str]]  # host -> path -> place below the directory


class Fetch:
    """One fetch of the files of a run that match a wish, over connections that are open already."""

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
        """`dial` reconnects to a host whose connection was lost."""
        self._run_id = run_id
        self._hosts = list(hosts)
        self._pipeline = Pipeline(sessions, hosts, dial, watcher)
        self._watcher = watcher
        self._wish = wish
        directory = wish.to or Path(run_id)
        self._destination = Destination(directory)
        self._result = Fetched(run_id, str(directory), unreached=self._pipeline.unreached)
        self._search = Search(self._hosts, wish, self._result)

    def run(self) -> Fetched:
        """Bring all files that match.

        If a host sends what no agent sends (a name that was not asked for, more bytes than announced), the fetch
        takes no more files from it.  Raises FetchError, before it writes anything, if there is not enough room for
        all files or they are larger than the wish allows; later, if the disk refuses.  Raises Stopped.  Files that
        have come by then stay.
        """
        search, pipeline = self._search, self._pipeline
        try:
            disk_bytes = self._destination.room().whole
            pipeline.work({host: [search.find(host, disk_bytes)] for host in self._hosts})
            search.forget(pipeline.unreached)
            if not pipeline.unreached:
                self._result.unmatched += search.unmatched()
            shared = search.shared()
            pipeline.work({host: [search.compare(host, shared)] for host in self._hosts})
            search.forget(pipeline.unreached)
            places = search.places()
            spare_bytes = self._check_room(places)
            self._bring_all(places, spare_bytes)
        except OSError as error:
            raise cannot_write(self._destination.path, error) from None
        return self._result

    def _bring_all(self, places: Places, spare_bytes: int) -> None:
        transfer = Transfer(
            self._search.found,
            self._destination,
            self._wish,
            self._result,
            self._watcher,
            spare_bytes=spare_bytes,
        )
        transfer.expect(places)
        every = [place for paths in places.values() for place in paths.values()]
        several = max(1, min(AHEAD, TOGETHER // max(1, len(places))))
        if every:
            self._destination.mark(every)
        try:
            for first in range(0, len(self._hosts), TOGETHER):
                steps = {}
                for host in self._hosts[first : first + TOGETHER]:
                    files = iter(places[host].items())
                    steps[host] = [transfer.bring(host, files) for _ in range(several)]
                self._pipeline.work(steps)
        finally:
            if every:
                self._destination.settle(transfer.came)
            self._destination.close()

    def _check_room(self, places: Places) -> int:
        """Remove each file from `places` that alone is too large; returns how many more bytes there is room for.

        Raises FetchError if the other files together are too large.
        """
        room, most = self._destination.room(), self._wish.most_bytes
        allowed = room.bytes if most is None else min(room.bytes, most)
        bytes_of: dict[str, int] = {}  # host -> bytes to come
        count = total = 0
        for host, paths in places.items():
            for path, place in list(paths.items()):
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
                    whole = self._search.found[host][path].size
                    self._result.failed[f"{host}:{path}"] = f"it has {amount(whole)}, and {limit}"
                    continue
                count += 1
                total += room.taken_by(size) if most is None else size
                bytes_of[host] = bytes_of.get(host, 0) + size
        if total > allowed or total > room.bytes or (room.files is not None and count > room.files):
            raise self._too_much(count, total, bytes_of, room, allowed)
        return allowed - total

    def _too_much(
        self, count: int, total: int, bytes_of: dict[str, int], room: Room, allowed: int
    ) -> FetchError:
        files = f"{count:,} files, {amount(total)}"
        if len(bytes_of) > 1:
            largest = max(bytes_of, key=lambda host: bytes_of[host])
            files += f" ({amount(bytes_of[largest])} from {largest})"
        if total > room.bytes or (room.files is not None and count > room.files):
            return FetchError(
                f"{files}, do not fit into {self._destination.path}, where there is room for {room}; "
                "nothing was written",
                "make room there, name another directory, or fetch less: patterns choose",
            )
        return FetchError(
            f"{files}, are more than the limit of {amount(allowed)}; nothing was written",
            "raise the limit, or fetch less: patterns choose",
        )

    def _to_come(self, host: str, path: str, place: str) -> int | None:
        """How many bytes of a file are still to come; None: the whole file is here already."""
        file, here = self._search.found[host][path], self._destination.has(place)
        if here is not None and (here.st_size, here.st_mtime_ns) == (file.size, file.modified):
            return None
        return max(0, file.size - self._destination.has_part(place, *part_of(self._run_id, host, path, file)))
