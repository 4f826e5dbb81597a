"""The slot that an engine has given for a while: its holder says when the engine takes it back.

The holder starts agents and visits with words in their environment: where it listens, which of the machine's GPUs the
engine has given, its Python, and where the node keeps the agent.  An agent calls it and stays connected: the end of
that connection is the end of the slot.
"""

import os
import struct

from tflaunch.protocol import directories, wire
from tflaunch.protocol.light_stdlib import socket
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, MutableMapping, Optional

    from tflaunch.protocol.selector import Selector

HOLDER, GPUS = "TFLAUNCH_SLOT", "TFLAUNCH_SLOT_GPUS"
LINE_LIMIT = 1024 * 1024  # of what the holder says
DIAL_S = 5  # for a holder that many call at once
GONE = "the slot holder is gone"
_told = {}  # type: Dict[str, str]  # what the holder has told this process


def enter(environment: "MutableMapping[str, str]") -> None:
    """Take the holder's words out of this process's environment: no task sees them."""
    for name in (HOLDER, GPUS, "TFLAUNCH_SLOT_PYTHON"):
        _told[name] = environment.pop(name, "")


def holder() -> str:
    """Where the holder of this slot listens; "" outside of slots."""
    return _told.get(HOLDER, "")


def gives_gpus() -> bool:
    """Whether the engine has said which GPUs this slot has, and it has some."""
    return _told.get(GPUS, "") not in ("", "none") and most() is None


def most() -> "Optional[int]":
    """How many GPUs this slot has, where the engine has said only that."""
    told = _told.get(GPUS, "")
    return int(told[6:]) if told.startswith("count:") else None


def as_many(gpus: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
    """As many of these as the slot has, those first that nobody else holds, as `lease` of each says; {}: one too many.

    All of them where the engine has said no number.
    """
    number = most()
    if number is None:
        return gpus
    devices = [each for gpu in gpus for each in gpu.get("mig") or [gpu] if each.get("lease") != {}]
    # Those that it cannot have come last: they tell why it has too few.
    devices.sort(key=lambda each: bool(each.get("error") or each.get("lease")))
    return _chosen(gpus, "uuid", [each["uuid"] for each in devices[:number]])


def given(gpus: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
    """Those of the machine's GPUs that the engine has given to this slot; all where nobody has said which."""
    told = _told.get(GPUS, "")
    if not told or most() is not None:
        return gpus
    kind, _, listed = told.partition(":")
    return _chosen(gpus, kind, listed.split(","))


def _chosen(gpus: "List[Dict[str, Any]]", kind: str, names: "List[str]") -> "List[Dict[str, Any]]":
    """Those of them that are named so, with links to each other alone."""
    found = []
    for gpu in gpus:
        name = gpu.get(kind)
        if name is None and kind == "minor":
            name = gpu["index"]  # which it mostly is, of a GPU that does not answer
        instances = [each for each in gpu.get("mig", ()) if each.get(kind) in names]
        if str(name) in names:
            found.append(dict(gpu))
        elif instances:
            found.append(dict(gpu, mig=instances))
    there = {str(gpu["index"]) for gpu in found}
    for gpu in found:
        if "links" in gpu:
            gpu["links"] = {other: link for other, link in gpu["links"].items() if other in there}
    return found


class Slot:
    """An agent's connection to the holder of its slot."""

    def __init__(self, selector: "Selector", ends_in: "Callable[[float, str], None]", logs: str = "") -> None:
        """`ends_in(seconds, why)` is called when the engine takes the slot back, and again where it has less time.

        logs: the directory with the logs of tasks, which the engine may show, too.
        """
        self._selector = selector
        self._ends_in = ends_in
        self._heard = bytearray()
        self._socket = None  # type: Optional[socket.socket]
        self._stay()
        connection = socket.socket(socket.AF_UNIX)
        try:
            # Not `settimeout`: with that, connect(2) does not wait while many others are being let in.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", DIAL_S, 0))
            directories.connect(connection, holder())
            connection.sendall(wire.dumps({"agent": os.getpid(), "logs": logs}).encode("ascii") + b"\n")
        except OSError:
            connection.close()
            ends_in(wire.LAST_GRACE_S + wire.RECLAIM_S, GONE)
            return
        connection.setblocking(False)
        self._socket = connection
        selector.register(connection, EVENT_READ, self._read)

    def _stay(self) -> None:
        """Keep the next holder from removing this one's directory, where this agent's run is, as long as it lives."""
        import fcntl

        try:
            place = os.open(os.path.dirname(holder()), directories.DIRECTORY)
            fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # its holder is gone, with the directory; or a file server without locks

    def over(self) -> None:
        """Tell the holder that the run has ended here."""
        self._say(over=True)

    def ended(self, code: int) -> None:
        """Tell the holder how the whole run has ended: the engine may show it as the end of the slot."""
        self._say(ended=code)

    def _say(self, **fields: "Any") -> None:
        if self._socket is not None:
            try:
                self._socket.send(wire.dumps(fields).encode("ascii") + b"\n")
            except OSError:
                pass  # it has ended, or it hangs: the slot is over soon

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._heard += data
        if not data or len(self._heard) > LINE_LIMIT:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
            self._ends_in(wire.LAST_GRACE_S + wire.RECLAIM_S, GONE)
            return
        *lines, rest = bytes(self._heard).split(b"\n")
        self._heard[:] = rest
        for line in lines:
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            said = wire.loads(line.decode("utf-8"))
            seconds, why = float(said["ends_in"]), str(said["why"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return  # a word that this version does not know
        if 0.0 <= seconds < 1e9:
            self._ends_in(seconds, why)
