"""The feed of a slot: the rows of its partition, from Spark's iterator to the tasks of the run that read them.

Spark's executors run this text (tflaunch.engines.spark_slots), by a Python that has pyarrow.  At feed.sock, in the
slot holder's directory, a task (tflaunch_task.reading) says lines of JSON and hears lines of JSON:
    {"task": NAME, "even": BOOL}      {"schema": BASE64, "readers": K, "epochs": N, "kind": ...}
    {"next": true}                    {"rows": N, "from": N, "at": N, "bytes": N}   a record batch: some of its rows.
                                      "at": where it stands in the file `spool`; null: the bytes follow
                                      {"end": true, "rows": N, "left": N, "all": BOOL}   left: all, or at least
    {"count": true}                   {"rows": N}: how many rows every reader gets; all is read from Spark before
    {"results": [[...], ...]}         {"kept": N}
Each answer may be {"error": TEXT}.

The next batch is taken from Spark when a task is about to want it, and no earlier: that is the back-pressure.  Nobody
knows how many rows a partition has before its end, and no reader must get more than another: the driver
(tflaunch.engines.spark_board) hears how many rows each slot has so far, and tells the least of all.
"""

import base64
import json
import os
import pickle
import shutil
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

SOCKET, SPOOL = "feed.sock", "spool"
ALL = 1 << 60  # batches
AHEAD = 2  # batches that are taken from Spark before they are wanted
ROWS = 10000  # of a batch that is made of an RDD's rows, at most
FIRST_ROWS = 100  # of the first one, which tells how large rows are
BATCH_BYTES = 1024 * 1024  # of such a batch; as objects of Python its rows are some ten times as large
ASK_S = 0.03  # between two questions to the driver, while rows wait for other slots
PIECE_BYTES = 4 * 1024 * 1024  # of a batch of Spark's, which may be large, in which it is kept and read
LINE_BYTES = 64 * 1024 * 1024  # results may be many
RESERVE_BYTES = 16 * 1024 * 1024  # of the disk, left free: the tasks' logs are there, and say why a run fails
FREE = 0.5  # of the disk's free space, which a spool may take unless its limit is given


class WrongRows(Exception):
    """What is wrong with the rows, for the user."""


class Spool:
    """The batches of the partition so far: all of them in a file, or the last ones in memory.

    Any thread may use it.  `batches` is read by a thread of its own.
    """

    def __init__(
        self, batches: "Iterator[Any]", directory: str, feed: "Dict[str, Any]", changed: "Callable[[], None]"
    ) -> None:
        self.rows = 0
        self.complete = False
        self.error = ""
        self.condition = threading.Condition()
        self._batches, self._changed = pieces(batches), changed
        self._path = os.path.join(directory, SPOOL) if feed["spool"] else ""
        self._file = None  # type: Any
        self._writer = None  # type: Any
        self._limit = feed["limit"] or int(shutil.disk_usage(directory).free * FREE)
        self._places = []  # type: List[Tuple[int, int, int]]  # of each batch: where, how long, how many rows
        self._whole = {}  # type: Dict[int, Any]  # those that are in no file
        self._wanted = 0
        self._over = False
        threading.Thread(target=self._read, name="rows of Spark", daemon=True).start()

    def want(self, index: int) -> None:
        """Have the batch of that index, and some after it, taken from Spark."""
        with self.condition:
            if index >= self._wanted:
                self._wanted = index + 1
                self.condition.notify_all()

    def batch(self, index: int) -> "Optional[Tuple[int, int, int]]":
        """Where that batch is, how long it is, and its rows; None: it is not there, or not yet.  Raises WrongRows."""
        with self.condition:
            if self.error:
                raise WrongRows(self.error)
            if self._over:
                raise WrongRows("the slot of this task is given back")
            return self._places[index] if index < len(self._places) else None

    def content(self, index: int) -> "Optional[Any]":
        """The batch itself; None where it is in the file.  Raises WrongRows for one that is kept no more."""
        if self._path:
            return None
        with self.condition:
            if index not in self._whole:
                raise WrongRows("these rows have been read before, and spool=False keeps none: leave it out")
            return self._whole[index]

    def want_more(self) -> None:
        """Have one more batch taken from Spark."""
        with self.condition:
            self.want(len(self._places) - AHEAD)

    def forget(self, before: int) -> None:
        """The batches before that index have been read by all, where no file keeps them."""
        with self.condition:
            for index in [each for each in self._whole if each < before]:
                del self._whole[index]
            self.condition.notify_all()

    def close(self) -> None:
        """Take no more from Spark."""
        with self.condition:
            self._over = True
            self.condition.notify_all()

    def _read(self) -> None:
        try:
            while self._is_wanted():
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._keep(batch)
                batch = None
            else:
                return
            with self.condition:
                self.complete = True
        except WrongRows as error:
            self.error = str(error)
        except BaseException as error:  # Spark's, of the rows' makers
            self.error = "Spark's rows end with an error: %s: %s" % (type(error).__name__, str(error)[:2000])
        finally:
            with self.condition:
                self.condition.notify_all()
            self._changed()

    def _is_wanted(self) -> bool:
        with self.condition:
            self.condition.wait_for(lambda: self._over or self._wanted + AHEAD > len(self._places))
            return not self._over

    def _keep(self, batch: "Any") -> None:
        at, data = 0, None
        if self._path:
            at, size = self._written(batch)
        else:
            data = batch.serialize()
            size = len(data)
        with self.condition:
            if data is not None:
                self._whole[len(self._places)] = data
            self._places.append((at, size, batch.num_rows))
            self.rows += batch.num_rows
            self.condition.notify_all()
        self._changed()

    def _written(self, batch: "Any") -> "Tuple[int, int]":
        """Append it to the file; returns where it is there, and how long.  Raises WrongRows."""
        import pyarrow

        try:
            if self._file is None:
                self._file = pyarrow.OSFile(self._path, "wb")
                self._writer = pyarrow.ipc.new_stream(self._file, batch.schema)
            if self._file.tell() + batch.nbytes > self._limit:
                raise WrongRows(
                    "the rows of this slot are more than %s of disk, which their spool may take: give it more, "
                    'spool="50GB", or read them once, spool=False' % megabytes(self._limit)
                )
            if shutil.disk_usage(self._path).free < batch.nbytes + RESERVE_BYTES:
                raise WrongRows(
                    "the disk of this slot's rows is full: %s of them are there; read them once, spool=False"
                    % megabytes(self._file.tell())
                )
            self._writer.write_batch(batch)  # before the first, the schema
            size = pyarrow.ipc.get_record_batch_size(batch)
            return self._file.tell() - size, size
        except OSError as error:
            raise WrongRows("the spool of this slot's rows cannot be written: %s" % error) from None


class Feed:
    """What tasks of the run read in one slot.

    feed: `schema` (of the record batches, serialized, in base64), `columns`, `kind` of an RDD's rows or "", `spool`,
    `limit` in bytes or 0, `epochs`.  ask: says a line to the driver and returns its answer; raises OSError.
    """

    def __init__(
        self, batches: "Iterator[Any]", feed: "Dict[str, Any]", ask: "Callable[..., Dict[str, Any]]"
    ) -> None:
        self.results = []  # type: List[Any]  # what tasks have said of them
        self._batches, self._feed, self._ask = batches, feed, ask
        self._asking = threading.Lock()
        self._news = threading.Event()
        self._even = 0  # rows that every reader may have
        self._final = False  # it grows no more
        self._drain = False  # all is to be read
        self._wants = 0  # rows that a reader waits for, for each of all
        self._waited_for = False  # tasks of other slots wait for rows, and more may be here
        self._closed = False
        self._readers = []  # type: List[str]
        self._places = {}  # type: Dict[str, int]  # the batch that each reader is at
        self._results = threading.Lock()

    def listen(self, directory: str) -> None:
        """Let tasks in at feed.sock there.  Raises OSError; RuntimeError where this Python cannot have rows."""
        try:
            import pyarrow
        except ImportError as error:
            raise RuntimeError(
                "tflaunch: feed= needs pyarrow in the Python of Spark's executors, %s: %s"
                % (sys.executable, error)
            ) from None
        self._directory = directory
        self._kept = Spool(self._batches, directory, self._feed, self._news.set)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(
            "/proc/self/fd/%d/%s" % (fd, SOCKET)
        )  # the whole path may be too long for a socket
        os.close(fd)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._tell_driver, daemon=True).start()

    @property
    def error(self) -> str:
        """Why there are no more rows, though they have not ended; "" while all is well."""
        return self._kept.error

    def close(self) -> None:
        """Let nobody in any more, take no more from Spark, and end all threads: Spark may keep this process."""
        self._closed = True
        self._kept.close()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
        except OSError:
            pass
        self._listener.close()
        self._news.set()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            _, user, _ = struct.unpack(
                "3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            )
            if user != os.geteuid():
                caller.close()
                continue
            threading.Thread(target=self._welcome, args=[caller], daemon=True).start()

    def _welcome(self, caller: "socket.socket") -> None:
        with caller, caller.makefile("rb") as lines:
            reader = None  # type: Optional[Reader]
            try:
                while True:
                    line = lines.readline(LINE_BYTES)
                    if not line.endswith(b"\n"):
                        break
                    said = json.loads(line)
                    content = None
                    try:
                        if "task" in said:
                            reader = self._reader(said)
                            answer = self._first(reader)
                        elif "count" in said:
                            answer = {"rows": self._count()}
                        elif "results" in said:
                            with self._results:
                                self.results += unpickled(said["results"])
                            answer = {"kept": len(self.results)}
                        elif reader is not None:
                            answer, content = self._next(reader)
                        else:
                            answer = {"error": "say which task this is"}
                    except WrongRows as error:
                        answer = {"error": str(error)}
                    caller.sendall(json.dumps(answer).encode("ascii") + b"\n")
                    if content is not None:
                        caller.sendall(content)
            except (OSError, ValueError, KeyError, TypeError):
                pass  # it has hung up, or is none of ours

    def _reader(self, said: "Dict[str, Any]") -> "Reader":
        self._report()  # the plan is known by now
        readers = self._readers
        if said["task"] not in readers:
            return Reader(0, 0, False)
        return Reader(readers.index(said["task"]), len(readers), bool(said.get("even")))

    def _first(self, reader: "Reader") -> "Dict[str, Any]":
        feed = self._feed
        told = {name: feed[name] for name in ("schema", "kind", "epochs")}
        if not self._feed["spool"] and reader.of:
            with self._kept.condition:
                if self._places.setdefault(str(reader.number), 0):
                    raise WrongRows(
                        "these rows have been read before, and spool=False keeps none: leave it out"
                    )
        return dict(told, readers=reader.of, spool=os.path.join(self._directory, SPOOL))

    def _next(self, reader: "Reader") -> "Tuple[Dict[str, Any], Any]":
        """The next rows of that reader."""
        kept = self._kept
        while reader.of:
            kept.want(reader.batch)
            place = kept.batch(reader.batch)
            if place is None:
                with kept.condition:
                    if kept.complete and kept.batch(reader.batch) is None:
                        break
                    kept.condition.wait_for(
                        lambda: kept.complete or kept.error or kept.batch(reader.batch) is not None, 1.0
                    )
                continue
            at, size, rows = place
            begin, end = reader.share(rows)
            begin += reader.within
            count = end - begin
            if reader.even:
                count = min(count, self._even - reader.rows)
                if count <= 0 and end > begin:
                    if self._final:
                        break
                    kept.want(reader.batch + 1)
                    self._wants = max(self._wants, reader.rows + 1)
                    time.sleep(ASK_S)
                    self._report()
                    continue
            if count > 0:
                content = kept.content(reader.batch)
                if not self._feed["spool"]:
                    self._mark(reader)
                reader.rows += count
                reader.within += count
                if begin + count == end:
                    reader.forward(rows)
                answer = {"rows": count, "from": begin, "at": at if content is None else None, "bytes": size}
                return answer, content
            reader.forward(rows)
        return {"end": True, "rows": reader.rows, "left": self._left(reader), "all": kept.complete}, None

    def _mark(self, reader: "Reader") -> None:
        """Note what that reader reads now, so that what all have read is forgotten."""
        self._places[str(reader.number)] = reader.batch + 1
        if len(self._places) == reader.of:
            self._kept.forget(min(self._places.values()) - 1)

    def _left(self, reader: "Reader") -> int:
        """How many rows of the partition, as far as it is known, that reader does not get."""
        return quota(self._kept.rows, reader.number, reader.of) - reader.rows if reader.of else 0

    def _count(self) -> int:
        if not self._feed["spool"]:
            raise WrongRows("rows are counted only where they are kept: leave spool=False out")
        self._drain = True
        while True:
            self._report()
            if self._kept.error:
                raise WrongRows(self._kept.error)
            if self._final:
                return self._even
            time.sleep(ASK_S)

    def _tell_driver(self) -> None:
        """Tell the driver of each change; end where it does not answer, for then the slot ends, too."""
        while not self._closed:
            self._news.wait(ASK_S if self._waited_for else 1.0)
            self._news.clear()
            try:
                self._report()
            except WrongRows:
                return

    def _report(self) -> None:
        """Tell the driver how many rows are here, and hear how many are everywhere.  Raises WrongRows."""
        with self._asking:
            # Again where it answers with other readers than those whose rows were told.
            while self._ask_driver():
                pass
        if self._drain and self._feed["spool"]:
            self._kept.want(ALL)

    def _ask_driver(self) -> bool:
        """Whether to ask again.  Raises WrongRows."""
        kept, of = self._kept, len(self._readers)
        with kept.condition:
            complete, rows = kept.complete, kept.rows
        each = rows // max(1, of)  # each of several readers has at least so many
        try:
            if self._closed:
                raise OSError
            told = self._ask(
                rows=each, readers=of, all=rows, complete=complete, drain=self._drain, wants=self._wants
            )
        except (OSError, ValueError):
            raise WrongRows("the driver of this Spark application does not answer") from None
        self._even, self._final = int(told["even"]), bool(told["final"])
        self._drain = bool(told["drain"])
        self._readers = [str(each) for each in told["readers"]]
        self._waited_for = int(told["wanted"]) > 0 and not complete
        # A task of another slot waits for these rows, and those that read here may have ended.
        if self._waited_for and each < int(told["wanted"]) and self._feed["spool"]:
            kept.want_more()
        return len(self._readers) != of


class Reader:
    """A task that reads, and where it is."""

    def __init__(self, number: int, of: int, even: bool) -> None:
        self.number, self.of, self.even = number, of, even
        self.batch = 0
        self.within = 0  # how many rows of its share of that batch it has
        self.rows = 0  # of all batches
        self.before = 0  # how many rows the batches before that have, for all readers

    def share(self, rows: int) -> "Tuple[int, int]":
        """Which rows of its batch, which has so many, are for this one of several readers: from, to."""
        counts = [
            quota(self.before + rows, number, self.of) - quota(self.before, number, self.of)
            for number in range(self.number + 1)
        ]
        return sum(counts[:-1]), sum(counts)

    def forward(self, rows: int) -> None:
        """On to the next batch, from one of so many rows."""
        self.batch, self.within, self.before = self.batch + 1, 0, self.before + rows


def quota(rows: int, number: int, of: int) -> int:
    """How many of the first rows of a partition are for that one of several readers; all rows have one."""
    return (rows + number) // of


def unpickled(text: str) -> "List[Any]":
    """What a task says of its rows.  Raises WrongRows."""
    try:
        return list(pickle.loads(base64.b64decode(text)))  # noqa: S301 - of a task of this user
    except Exception as error:  # whatever its classes raise, which may be the program's own
        raise WrongRows(
            "results cannot be read in the Python of Spark's executors: %s: %s"
            % (type(error).__name__, error)
        ) from None


def pieces(batches: "Iterator[Any]") -> "Iterator[Any]":
    """The same rows in batches that are not large."""
    for batch in batches:
        count = max(1, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, count):
            yield batch.slice(start, count)
        del batch


def batches_of(rows: "Iterable[Any]", feed: "Dict[str, Any]") -> "Iterator[Any]":
    """Record batches of an RDD's rows.  Raises WrongRows."""
    import itertools

    import pyarrow

    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(feed["schema"])))
    kind, names, start, count = feed["kind"], schema.names, 0, FIRST_ROWS
    rows = iter(rows)
    while True:
        some = list(itertools.islice(rows, count))
        if not some:
            return
        columns = columns_of(some, kind, names, start)
        arrays = [array_of(column, field, start, pyarrow) for column, field in zip(columns, schema)]  # noqa: B905
        start += len(some)
        batch = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
        count = max(1, min(ROWS, BATCH_BYTES * len(some) // max(1, batch.nbytes)))
        some, columns, arrays = [], [], []  # while this waits for who wants the next
        yield batch


def columns_of(rows: "List[Any]", kind: str, names: "Sequence[str]", start: int) -> "Sequence[Any]":
    """The columns of these rows, the first of which is number `start` of its partition.  Raises WrongRows."""
    if kind == "value":
        return [rows]
    if kind == "dict":
        try:
            return [[row[name] for row in rows] for name in names]
        except (KeyError, TypeError):
            pass
    else:
        try:
            if all(len(row) == len(names) for row in rows):
                return list(zip(*rows))  # noqa: B905
        except TypeError:
            pass
    for number, row in enumerate(rows, start):
        if kind == "dict" and not (isinstance(row, dict) and row.keys() >= set(names)):
            raise WrongRows("row %d of a partition is no dict with %s" % (number, ", ".join(names)))
        if kind != "dict" and (not hasattr(row, "__len__") or len(row) != len(names)):
            has = len(row) if hasattr(row, "__len__") else "no"
            raise WrongRows("row %d of a partition has %s columns, not %d" % (number, has, len(names)))
    raise WrongRows("rows of a partition are not all alike")


def array_of(column: "Sequence[Any]", field: "Any", start: int, pyarrow: "Any") -> "Any":
    """The column as an array of that type.  Raises WrongRows."""
    try:
        return pyarrow.array(column, type=field.type)
    except Exception:
        pass
    plain = [each.tolist() if hasattr(each, "tolist") else each for each in column]
    try:
        return pyarrow.array(plain, type=field.type)
    except Exception as error:
        first = error
    for number, each in enumerate(plain, start):
        try:
            pyarrow.array([each], type=field.type)
        except Exception as error:
            raise WrongRows(
                "column %s: row %d of a partition is no %s, as the first row has it: %s"
                % (field.name, number, field.type, str(error)[:200])
            ) from None
    raise WrongRows("column %s: %s" % (field.name, str(first)[:200]))


def megabytes(size: int) -> str:
    """The size, as people read it."""
    return "%.1f GB" % (size / 1e9) if size >= 1e9 else "%.0f MB" % (size / 1e6)
