"""What the tasks of a detached run have used: `samples.jsonl` of the run directory on its coordinator's host.

    {"format": 1, "began": 1764.5, "every_s": 5.0}      the first line; epoch seconds by this host's clock
    [3.2, {"worker/0": [...], "gpu02": [...]}]          seconds after that; tallies (lifecycle/tallies.py)
    {"over": true}                                      the last line, once the run is over

A file that has become too large loses every second tally of each task; the counters in the others have all.
"""

import os

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import hosts_of, replace
from tflaunch.lifecycle.tallies import EVERY_S, Spacing, of_host, tallies_of, thinned
from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Mapping

    from tflaunch.agent.host.rundir import RunDirectory

NAME = "samples.jsonl"
MOST_BYTES = 4 << 20


class TallyFile:
    """Keeps the tallies; where the disk refuses them, the run goes on without."""

    def __init__(
        self, directory: "RunDirectory", watched: "Mapping[str, Any]", began: float, zero: float
    ) -> None:
        """`watched`: the `data` of the run's watchdog; `began`, `zero`: when the tasks were released, in epoch seconds
        and by the clock of all times here."""
        self._path = os.path.join(directory.path, NAME)
        self._zero = zero
        self._began = began
        self._tallies = tallies_of(watched)
        self._waiting = []  # type: List[Any]  # lines
        self._write_at = zero
        self._size = -1  # of the file; not known yet
        self._spacing = Spacing(EVERY_S)
        self._refused = False

    def follow(self, watched: "Mapping[str, Any]") -> None:
        """Some tasks are on other hosts now."""
        self._tallies = tallies_of(watched)

    def looked(self, host: str, fields: "Mapping[str, Any]", now: float) -> None:
        """Take the fields of a `looked` message; they are written every EVERY_S, those of all hosts together."""
        at, gpus = round(now - self._zero, 1), fields.get("gpus") or {}
        tallies = {task: self._tallies.of(task, look, gpus) for task, look in fields["tasks"].items()}
        of_it = of_host(fields.get("machine") or {})
        if of_it:
            tallies[host] = of_it
        self._waiting += thinned(self._spacing, [[at, tallies]])
        if now >= self._write_at:
            self._write_at = now + EVERY_S
            self._write()

    def close(self) -> None:
        """The run is over."""
        self._waiting.append({"over": True})
        self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._refused:
            return
        try:
            if self._size < 0:
                self._begin()
            self._append(waiting)
            if self._size > MOST_BYTES:
                self._thin_out()
        except OSError as error:
            self._refused = True
            note("%s: %s" % (NAME, error))

    def _begin(self) -> None:
        """Go on where an earlier coordinator of the run has stopped, or make the file."""
        head = next(read(self._path), None)
        if isinstance(head, dict) and "every_s" in head:
            self._spacing = Spacing(head["every_s"])
            self._size = os.path.getsize(self._path)
            self._append([None])  # the last line may be torn: it ends here
        else:
            self._replace([])

    def _append(self, lines: "List[Any]") -> None:
        data = "".join("\n" if line is None else wire.dumps(line) + "\n" for line in lines).encode("ascii")
        with open(
            self._path, "ab", 0
        ) as file:  # not from the reserve of a full disk: that is for what decides
            file.write(data)
        self._size += len(data)

    def _thin_out(self) -> None:
        self._spacing = Spacing(self._spacing.every_s * 2)
        self._replace(thinned(self._spacing, (line for line in read(self._path) if isinstance(line, list))))

    def _replace(self, lines: "Any") -> None:
        head = {"format": 1, "began": self._began, "every_s": self._spacing.every_s}
        text = "\n".join(wire.dumps(line) for line in [head, *lines]) + "\n"
        replace(self._path, text)
        self._size = len(text)


def read(path: str) -> "Iterator[Any]":
    """What is in the lines of that file, without those that are torn; raises OSError."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield wire.loads(line)
        except ValueError:
            pass


def piece(parent: str, run: str, offset: int) -> bytes:
    """The bytes from there on of that run's file below `parent`, as many as fit into a message; none where it ends."""
    for host in hosts_of(parent, run):
        try:
            with open(os.path.join(parent, run, host, NAME), "rb") as file:
                file.seek(offset)
                return file.read(wire.BODY_LIMIT)
        except FileNotFoundError:
            pass
    return b""
