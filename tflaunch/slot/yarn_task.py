"""What a container of YARN does: it holds a slot, tells the launcher where, and copies what tasks write to its stdout.

The slot holder's text has this behind it (tflaunch.engines.holder_text), and a call of `main` with what `in_container`
returns.  The settings, with their secrets, are a file beside it.
"""

import glob
import json
import os
import socket
import ssl
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

    from tflaunch.slot.holder import Holder

SETTINGS = "slot.json"
DIAL_S = 5.0
REFUSED = 3  # exit status of whoever has told the launcher: it has all its slots
LOGS = "runs/*/*/*/logs/*.log"  # of tasks, in the holder's directory
LOG_BYTES = 1024 * 1024  # of one log, copied at a time
LINE_BYTES = 64 * 1024
# YARN gives these to each container; tasks that see them would take them for settings of theirs.
MISLEADING = ["MALLOC_ARENA_MAX", "JVM_PID", "YARN_SHELL_ID"]


def in_container() -> "Tuple[Dict[str, Any], Callable[[Holder], None]]":
    """The holder's settings, and what is done once it listens."""
    here = os.getcwd()
    with open(SETTINGS) as file:
        said = json.load(file)
    if said["image"] and is_by_executor():
        # A node without a Docker runtime says nothing of an image that it does not use.
        sys.exit("slot: this node has not used the image %s: its YARN has no Docker runtime" % said["image"])
    board = said["board"]
    os.environ["HOME"] = here  # YARN's /home/ is nobody's
    where = {
        "container": os.environ["CONTAINER_ID"],
        "node": os.environ["NM_HOST"],
        "web": "%s:%s" % (os.environ["NM_HOST"], os.environ["NM_HTTP_PORT"]),
        "python": sys.executable,
    }
    settings = dict(said["holder"], slot=json.dumps(where), clean=MISLEADING)

    def listening(holder: "Holder") -> None:
        echo = LogEcho(LOGS)
        holder.looks.append(echo.look)
        told = dict(board, told=holder.listens)

        def answered(code: int) -> None:
            if code == REFUSED:
                holder.take_back(0.0, "the launcher has all its slots", 0)

        holder.children.fork(lambda: tell(told), answered)

    return settings, listening


def is_by_executor() -> bool:
    """Whether YARN's own executor has started this process; one in an image does not see it."""
    try:
        with open("/proc/%d/cmdline" % os.getppid(), "rb") as file:
            words = file.read()
    except OSError:
        return False
    return b"container_executor" in words or b"container-executor" in words


def tell(told: "Dict[str, Any]") -> None:
    """Tell the launcher where the holder listens, if it can be reached: `yarn logs` tells it, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is what is known
    context.load_verify_locations(cadata=told["certificate"])
    for address in told["addresses"]:
        try:
            line = context.wrap_socket(socket.create_connection((address, told["port"]), DIAL_S))
            said = {"token": told["token"], "told": told["told"]}
            line.sendall(json.dumps(said).encode("ascii") + b"\n")
            answer = line.makefile().readline()
        except OSError:
            continue
        if answer:
            if not json.loads(answer)["wanted"]:
                os._exit(REFUSED)
            return


class LogEcho:
    """Copies the lines that tasks write to stdout, each behind the name of its task."""

    def __init__(self, logs: str) -> None:
        self.logs = logs
        self.read = {}  # type: Dict[str, int]  # how far each log is copied
        self.rest = {}  # type: Dict[str, bytes]  # the beginning of a line

    def look(self) -> None:
        """Copy what is new; of each log at most LOG_BYTES."""
        for path in sorted(glob.glob(self.logs)):
            try:
                self._copy(path)
            except OSError:
                pass  # the next look tries again

    def _copy(self, path: str) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = self.read.get(path, 0)
            if size < begin:  # its task has emptied it
                begin = self.read[path] = size
            if size == begin:
                return
            file.seek(begin)
            data = file.read(LOG_BYTES)
        self.read[path] = begin + len(data)
        *lines, rest = (self.rest.get(path, b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self.rest[path] = rest
        prefix = task_of(path).encode("utf-8", "replace") + b": "
        text = b"".join(prefix + line + b"\n" for line in lines)
        while text:
            text = text[os.write(1, text) :]


def task_of(path: str) -> str:
    """The task whose log that is: `worker/0` of worker-0.log, and of worker-0.1.log, its second attempt."""
    role, _, index = os.path.basename(path).partition(".")[0].rpartition("-")
    return "%s/%s" % (role, index)
