"""The feed of this slot, as record batches: a connection to it, and one pass over its rows."""

import base64
import json
import mmap
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Mapping, Optional

VARIABLE = "TFLAUNCH_FEED"  # the directory of the feed's socket
SOCKET = "feed.sock"


class FeedError(RuntimeError):
    """The rows cannot be read, or not so; the text says why, and what to do."""


class Line:
    """A connection to the feed of this slot (tflaunch.slot.spark_feed), for one reader.  Raises FeedError."""

    def __init__(self) -> None:
        self._lines = None  # type: Any
        self._socket = socket.socket(socket.AF_UNIX)
        directory = os.environ.get(VARIABLE)
        if not directory:
            raise FeedError(
                "this run has no feed: give it rows, tflaunch.spark.run(session, ..., feed=DATAFRAME or RDD)"
            )
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # The whole path may be too long for a socket.
                self._socket.connect("/proc/self/fd/%d/%s" % (fd, SOCKET))
            finally:
                os.close(fd)
        except OSError as error:
            self._socket.close()
            raise FeedError("the feed of this slot cannot be reached: %s" % error) from None
        self._lines = self._socket.makefile("rb")

    def ask(self, **said: "Any") -> "Dict[str, Any]":
        """What the feed answers."""
        try:
            self._socket.sendall(json.dumps(said).encode("ascii") + b"\n")
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise FeedError(
                "the feed has ended: the slot of this task is taken back, or its Spark task has failed"
            )
        answer = json.loads(line)  # type: Dict[str, Any]
        if "error" in answer:
            raise FeedError(answer["error"])
        return answer

    def read(self, size: int) -> bytearray:
        """So many bytes that follow an answer."""
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self._lines.readinto(view[done:])
            if not count:
                raise FeedError("the feed has ended in the middle of a record batch")
            done += count
        return data

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Hang up: whoever reads no more says so in this way."""
        if self._lines is not None:
            self._lines.close()
        self._socket.close()


class Reading:
    """One pass over the rows: an iterator of record batches.  It ends at the end of the rows, or by `close`."""

    def __init__(self, even: bool, skip_rows: int = 0) -> None:
        import_pyarrow()
        self._line = Line()
        try:
            self.told = self._line.ask(task=os.environ.get("TFLAUNCH_TASK", ""), even=even)
        except FeedError:
            self._line.close()
            raise
        self.schema = schema_of(self.told)
        self.rows = 0
        self.left = 0  # rows that this reader does not get, so that no other gets fewer
        self.left_all = True  # there are no more of them, which Spark has not made
        self._even, self._skip = even, skip_rows
        self._map = None  # type: Optional[mmap.mmap]
        self._over = False

    def __iter__(self) -> "Reading":
        return self

    def __next__(self) -> "Any":
        while not self._over:
            answer = self._line.ask(next=True)
            if answer.get("end"):
                self.left, self.left_all = answer["left"], answer["all"]
                self.close()
                break
            batch = self._batch(answer)
            skipped = min(self._skip, batch.num_rows)
            self._skip -= skipped
            self.rows += batch.num_rows
            if skipped < batch.num_rows:
                return batch.slice(skipped)
        raise StopIteration

    def _batch(self, answer: "Mapping[str, Any]") -> "Any":
        pyarrow = import_pyarrow()
        at, size = answer["at"], answer["bytes"]
        if at is None:
            data = self._line.read(size)  # type: Any
        else:
            if self._map is None or len(self._map) < at + size:
                with open(self.told["spool"], "rb") as file:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            data = memoryview(self._map)[at : at + size]
        batch = pyarrow.ipc.read_record_batch(pyarrow.py_buffer(data), self.schema)
        return batch.slice(answer["from"], answer["rows"])

    def close(self) -> None:
        """Read no more."""
        if not self._over:
            self._over = True
            self._line.close()


def record_batches(even: bool, epochs: "Optional[int]") -> "Iterator[Any]":
    """The rows as pyarrow.RecordBatch, of sizes as they come, so many times.  Raises FeedError."""
    number = 0
    while True:
        reading = Reading(even)
        try:
            for each in reading:
                yield each
            say_left(reading)
        finally:
            reading.close()
        number += 1
        if number >= (epochs or reading.told["epochs"]):
            return


def rows_of_each() -> int:
    """How many rows each task gets, where none gets more than another.  Raises FeedError."""
    line = Line()
    try:
        return int(line.ask(count=True)["rows"])
    finally:
        line.close()


def say(text: str) -> None:
    """A sentence in the task's log."""
    sys.stderr.write("tflaunch: %s\n" % text)
    sys.stderr.flush()


def say_left(reading: "Reading") -> None:
    """Say how many rows are left out, so that no task gets more than another."""
    if reading._even and reading.left > 0:
        if not reading.rows:
            raise FeedError(
                "the rows are all in other slots: a task has none, so with even=True none gets any; leave "
                "repartition=False out"
            )
        count = "%d of %d rows" % (reading.left, reading.rows + reading.left)
        if not reading.left_all:
            count = "rows after the first %d" % reading.rows
        say("%s are left out here: every task reads as many as the one that has the fewest" % count)


def import_pyarrow() -> "Any":
    """pyarrow; raises FeedError."""
    try:
        import pyarrow
    except ImportError:
        raise FeedError(
            "the feed needs pyarrow in this Python, %s: it is not installed there" % sys.executable
        ) from None
    return pyarrow


def schema_of(told: "Mapping[str, Any]") -> "Any":
    """The schema of the record batches."""
    pyarrow = import_pyarrow()
    return pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(told["schema"])))
