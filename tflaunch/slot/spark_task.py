"""What a task of Spark's barrier stage does: it starts a slot holder, says where that listens, and waits for its end.

Spark's executors run this text (tflaunch.engines.spark_slots), by a Python that has pyspark and no tflaunch.
"""

import base64
import glob
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Dict, List, Optional

# In a holder's text: Spark decides which a task has, and tells the task alone.
GPUS = "@the GPUs of the task@"
DIAL_S = 10.0
TRIES = 3  # at each of the driver's addresses
PAUSE_S = 0.3
CLASSES_BYTES = 48 * 1024  # more does not fit into the line for the driver
WORDS_BYTES = 4096  # the end of a holder's stderr
# Reads the holder's text from stdin, after its length in eight digits; nothing follows: it is the lifeline.
BOOT = """\
import os
def read(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise SystemExit("slot: its text has not come")
        data += piece
    return data
exec(compile(read(int(read(8))), "slot_holder", "exec"))
"""


def hold(
    index: int, text: str, board: "Dict[str, Any]", package: "Dict[str, str]", feed: "Any" = None
) -> "List[Any]":
    """Hold the slot whose holder's text is this, until its end.  Returns what tasks have said to be their results.

    board: the `addresses`, `port`, `certificate` and `token` of the driver's SlotBoard, and what `hadoop` has to tell
    (tflaunch.engines.spark_driver).  package: the files of
    tflaunch_task, which tasks import.  feed: makes the slot's feed (tflaunch.slot.spark_feed.Feed), of what asks the
    driver.
    """
    holder = started(text)
    assert holder.stdin is not None  # noqa: S101
    assert holder.stdout is not None  # noqa: S101
    assert holder.stderr is not None  # noqa: S101
    first = holder.stdout.readline()
    if not first:
        words = holder.stderr.read().decode(errors="replace").strip()
        raise RuntimeError("tflaunch: the slot holder could not start: " + words)
    line = dialled(board)
    told = json.loads(first)
    about = about_python()
    about["files"].append(put(package, told["directory"]))
    about["hadoop"] = hadoop(board["hadoop"], told["directory"])
    if feed is not None:
        feed = feed(partial(ask, dialled(board), board, index))
        feed.listen(told["directory"])
        about["rows"] = told["directory"]
    say(line, board, slot=index, told=told, **about)
    threading.Thread(target=until_hung_up, args=[line, holder.stdin], daemon=True).start()
    last = passed_on(holder.stderr)
    say(line, board, slot=index, ended=holder.wait(), words=last)
    if feed is None:
        return []
    feed.close()
    if feed.error:
        raise RuntimeError("tflaunch: " + feed.error)
    return list(feed.results)


def put(package: "Dict[str, str]", directory: str) -> str:
    """Write tflaunch_task in a directory of its own there; returns that."""
    place = os.path.join(directory, "python")
    inside = os.path.join(place, "tflaunch_task")
    os.makedirs(inside, 0o700)
    for name, text in package.items():
        with open(os.path.join(inside, name), "w", encoding="utf-8") as file:
            file.write(text)
    return place


def ask(line: ssl.SSLSocket, board: "Dict[str, Any]", index: int, **said: "Any") -> "Dict[str, Any]":
    """What the driver answers to the feed of that slot, over a line that is the feed's alone.  Raises OSError."""
    say(line, board, feed=index, **said)
    answer = b""
    while not answer.endswith(b"\n"):
        piece = line.recv(WORDS_BYTES)
        if not piece:
            raise OSError("the driver has hung up")
        answer += piece
    return dict(json.loads(answer))


def dialled(board: "Dict[str, Any]") -> ssl.SSLSocket:
    """A connection to the driver, which is the right one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is what is known
    context.load_verify_locations(cadata=board["certificate"])
    first = None  # type: Optional[OSError]
    for number in range(TRIES * len(board["addresses"])):
        if number:
            time.sleep(PAUSE_S)  # many may dial at once
        try:
            address = board["addresses"][number % len(board["addresses"])]
            line = context.wrap_socket(socket.create_connection((address, board["port"]), DIAL_S))
            line.settimeout(None)
            return line
        except OSError as error:
            first = first or error
    raise RuntimeError("tflaunch: the driver cannot be reached from an executor: %s" % first)


def say(line: ssl.SSLSocket, board: "Dict[str, Any]", **said: "Any") -> None:
    """Tell the driver."""
    line.sendall(json.dumps(dict(said, token=board["token"])).encode("ascii") + b"\n")


def started(text: str) -> "subprocess.Popen[bytes]":
    """The slot holder, which ends with this process: its stdin is a lifeline."""
    holder = subprocess.Popen(
        [sys.executable, "-c", BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program = text.replace(GPUS, given_gpus()).encode()
    assert holder.stdin is not None  # noqa: S101
    try:
        holder.stdin.write(b"%08d" % len(program) + program)
        holder.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended, as its stderr tells
    return holder


def given_gpus() -> str:
    """The GPUs that Spark has given to this task, as a slot holder wants them."""
    from pyspark import BarrierTaskContext

    resources = BarrierTaskContext.get().resources()
    found = list(resources["gpu"].addresses) if "gpu" in resources else []
    if not found:
        return "none"
    return ("index:" if all(each.isdigit() for each in found) else "uuid:") + ",".join(found)


def about_python() -> "Dict[str, Any]":
    """The executors' Python, and where it looks: for what the application has brought, and for pyspark."""
    from pyspark import SparkFiles

    root = absolute(SparkFiles.getRootDirectory())
    return {
        "python": absolute(sys.executable),
        "files": [each for each in sys.path if absolute(each).startswith(root + os.sep)],
        "pyspark": os.environ.get("PYTHONPATH", ""),
    }


def hadoop(session: "Dict[str, Any]", directory: str) -> "Dict[str, str]":
    """The variables by which Hadoop's client library in a task has what the session has; no more than is not set here.

    Its delegation tokens are in a file of this user alone, in that directory.
    """
    env = {}
    if session["tokens"] and "HADOOP_TOKEN_FILE_LOCATION" not in os.environ:
        place = env["HADOOP_TOKEN_FILE_LOCATION"] = os.path.join(directory, "tokens")
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(base64.b64decode(session["tokens"]))
    if session["classes"] and "CLASSPATH" not in os.environ:
        env["CLASSPATH"] = class_path()
    return {name: value for name, value in env.items() if value}


def class_path() -> str:
    """That of the executor's JVM above this process, each jar by its name; "" where nobody tells, or it is too long."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
            with open("/proc/%d/stat" % pid, "rb") as status:
                pid = int(status.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            break
        if os.path.basename(words[0]) == "java":
            said = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-cp", "-classpath")]
            parts = "".join(said[-1:]).split(":")
            named = [
                jar
                for part in parts
                for jar in (sorted(glob.glob(part + ".jar")) if part.endswith("/*") else [part])
            ]
            ways = (":".join(named), ":".join(parts))
            return next((way for way in ways if len(way) < CLASSES_BYTES), "")
    return ""


def absolute(path: str) -> str:
    """That path; no link is followed, for a virtual environment's Python is one."""
    return os.path.abspath(path)


def until_hung_up(line: ssl.SSLSocket, lifeline: "IO[bytes]") -> None:
    """End the slot when the driver hangs up, as it does at its end."""
    try:
        while line.recv(WORDS_BYTES):
            pass
    except OSError:
        pass
    lifeline.close()


def passed_on(stderr: "IO[bytes]") -> str:
    """Pass the holder's stderr on to the executor's log until its end; returns its last words."""
    last = b""
    while True:
        piece = os.read(stderr.fileno(), WORDS_BYTES)
        if not piece:
            return last.decode(errors="replace")
        sys.stderr.write(piece.decode(errors="replace"))
        sys.stderr.flush()
        last = (last + piece)[-WORDS_BYTES:]
