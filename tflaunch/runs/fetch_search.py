"""The first half of a fetch: which files the hosts have, which of them are the same, and where each goes.

Where files go is decided for each name in the tasks' working directory, such as `checkpoints`.  If the files that
several hosts have below it are the same or do not collide, they go to DIR/checkpoints; else to DIR/HOST/checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tflaunch.inputs.patterns import EVERYTHING, WantedPaths, Wish
from tflaunch.protocol.wire import Message
from tflaunch.runs.fetch_destination import why_not
from tflaunch.runs.fetch_pipeline import Steps
from tflaunch.runs.fetch_requests import (
    FoundFile,
    check_names,
    check_progress,
    find_request,
    found_file,
    read_request,
)
from tflaunch.runs.fetch_result import Fetched
from tflaunch.text.numbers import amount

BLOCK_BYTES = 4 * 1024 * 1024  # that one digest covers
_THERE = 12  # names that are shown where no file matches


@dataclass
class _Answers:
    """What one host has named so far."""

    left: set[str] = field(default_factory=set)  # paths that do not come
    name_bytes: int = 0
    idle: int = 0  # answers that named nothing new


class Search:
    """The files of these hosts that match a wish."""

    def __init__(self, hosts: Sequence[str], wish: Wish, result: Fetched) -> None:
        """`result` gets what cannot come, and why."""
        self.found: dict[str, dict[str, FoundFile]] = {host: {} for host in hosts}  # host -> path -> file
        self._hosts = hosts
        self._wish = wish
        self._wanted = WantedPaths(wish.patterns)
        self._result = result
        self._digests: dict[str, dict[str, dict[int, bytes]]] = {}  # path -> host -> offset -> digest

    def find(self, host: str, disk_bytes: int) -> Steps:
        """Ask a host for its files; one that is larger than the disk here (`disk_bytes`) cannot come."""
        answers = _Answers()

        def take(message: Message) -> bool:
            before = len(self.found[host]) + len(answers.left)
            self._take_files(host, message, answers, disk_bytes)
            self._take_left(host, message, answers)
            count = len(self.found[host]) + len(answers.left)
            check_names(count, answers.name_bytes)
            answers.idle += count == before
            check_progress(answers.idle)
            if message["last"]:
                there = self._result.there
                there += [name for name in message["there"][:_THERE] if name not in there]
            return bool(message["last"])

        yield find_request(self._wish, self._wanted, take)

    def _take_files(self, host: str, message: Message, answers: _Answers, disk_bytes: int) -> None:
        files, failed = self.found[host], self._result.failed
        for entry in message["files"]:
            path, file = found_file(entry, self._wanted)
            answers.name_bytes += len(path) if path not in files else 0
            if why := why_not(path):
                answers.left.add(path)
                failed[f"{host}:{path}"] = why
            elif file.size > disk_bytes:
                answers.left.add(path)
                failed[f"{host}:{path}"] = (
                    f"it has {amount(file.size)}, the whole disk here {amount(disk_bytes)}"
                )
            else:
                files[path] = file

    def _take_left(self, host: str, message: Message, answers: _Answers) -> None:
        """Note what has a matching name on the host, but is no file."""
        result = self._result
        for path, why, bad in message["left"]:
            answers.name_bytes += len(path) + len(why) if path not in answers.left else 0
            answers.left.add(path)
            if self._wanted.says(path) or self._wanted.says(f"{path}/"):
                (result.failed if bad else result.left)[f"{host}:{path}"] = why
            elif path.rpartition("/")[2].startswith(".") and path not in result.hidden:
                result.hidden.append(path)

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the files of these hosts from the search."""
        for host in hosts:
            self.found[host].clear()

    def unmatched(self) -> list[str]:
        """The patterns that no file matches; not EVERYTHING, which may be nothing."""
        paths = {path for files in self.found.values() for path in files}
        unmatched = []
        for pattern in self._wish.patterns:
            match = re.compile(pattern.regex, re.DOTALL).match
            if pattern.wanted and pattern.text != EVERYTHING and not any(map(match, paths)):
                unmatched.append(pattern.text)
        return unmatched

    def _holders(self, path: str) -> list[str]:
        return [host for host in self._hosts if path in self.found[host]]

    def shared(self) -> list[str]:
        """The paths at which several hosts have files of one size: they may be the same."""
        paths = sorted({path for files in self.found.values() for path in files})
        return [
            path
            for path in paths
            if len(holders := self._holders(path)) > 1
            and len({self.found[host][path].size for host in holders}) == 1
        ]

    def compare(self, host: str, shared: Iterable[str]) -> Steps:
        """Ask a host for digests of its files at these paths, until they are known to differ."""
        for path in shared:
            if path not in self.found[host]:
                continue
            digests = self._digests.setdefault(path, {}).setdefault(host, {})
            for offset in range(0, self.found[host][path].size, BLOCK_BYTES):

                def take(message: Message, digests: dict[int, bytes] = digests, offset: int = offset) -> bool:
                    digests[offset] = message.body
                    return True

                yield read_request(path, offset, BLOCK_BYTES, take, digest=True)
                if len({each.get(offset) for each in self._digests[path].values()} - {None}) > 1:
                    break

    def _is_same(self, path: str) -> bool:
        """Whether all hosts that have that file have the same."""
        holders = self._holders(path)
        if len(holders) == 1:
            return True
        if len({self.found[host][path].size for host in holders}) > 1:
            return False
        first, *others = (self._digests.get(path, {}).get(host) for host in holders)
        return all(other == first for other in others)

    def places(self) -> dict[str, dict[str, str]]:
        """By host: each path to bring from it, and where below the directory it goes."""
        by_top: dict[str, set[str]] = {}
        for path in {path for files in self.found.values() for path in files}:
            by_top.setdefault(path.partition("/")[0], set()).add(path)
        places: dict[str, dict[str, str]] = {host: {} for host in self._hosts}
        taken: dict[str, str] = {}
        for top, paths in sorted(by_top.items()):
            apart = self._collide(top, paths)
            if apart:
                self._result.apart.append(top)
            for path in sorted(paths):
                for host in self._holders(path)[: None if apart else 1]:
                    place = f"{host}/{path}" if apart else path
                    if place in taken:
                        self._result.failed[f"{host}:{path}"] = f"{taken[place]} goes to {place} already"
                    else:
                        places[host][path] = place
                        taken[place] = f"{host}:{path}"
        return places

    def _collide(self, top: str, paths: Collection[str]) -> bool:
        """Whether the files below that name need a directory for each host."""
        parents = {path[:at] for path in paths for at in range(len(path)) if path[at] == "/"}
        # The files would lie in the directory of a host that has this same name.
        return top in self._hosts or not parents.isdisjoint(paths) or not all(map(self._is_same, paths))
