"""The viewers of a run on this host: messages in both directions, and how much of events and logs each has got."""

import os
import time

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HostError, explain
from tflaunch.agent.net.channel import PASSED, SILENCE_S, Caller, Channel
from tflaunch.agent.tasks import logs
from tflaunch.protocol import wire
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

    from tflaunch.agent.files.outputs import Outputs, OutputsInTime
    from tflaunch.agent.host.journal import Journal
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.agent.tasks.logs import TaskLogs
    from tflaunch.protocol.selector import Selector

    Connection = Union[Channel, Caller, SealedStream]
    Handler = Callable[["Viewer", wire.Message], None]

COORDINATOR = "coordinator"  # the `client` that decides for a detached run
LOG_PIECE = 64 * 1024
RECEIVE = 64 * 1024  # for a larger buffer the C library asks the kernel for memory each time
OUT_LIMIT = 256 * 1024  # log bytes are read only while less than this waits to be sent
BEAT_S = 2.5


class Viewer:
    """One attached launcher, viewer or coordinator."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.decoder = wire.Decoder()
        self.out = bytearray()
        self.client = ""  # a name that stays the same when the viewer comes back
        self.drives = False  # it renews the lease; if no viewer does, the run ends
        self.launches = False  # until the tasks are released, the run ends when this viewer leaves
        self.private = True  # no other user can read its connection
        self.events_sent = None  # type: Optional[int]  # how many; None: the viewer wants none
        self.credit = 0  # how many log bytes it can still take
        self.behind = False  # there is more log than was sent
        self.sent_at = self.heard_at = time.monotonic()
        self.beats = False  # it gives signs of life, as older ones do not
        self.awaits_room = False  # the connection takes no more for now
        self._follows = None  # type: Optional[Dict[str, List[int]]]  # task -> attempt, offset
        self._cuts = {}  # type: Dict[str, tuple[int, int]]  # task -> attempt, offset of the last reported truncation
        self._wanted = {}  # type: Dict[str, Any]  # the fields of `watch`
        self._owes_through = False

    def send(self, type: str, body: bytes = b"", **fields: "Any") -> None:
        self.out += wire.encode(type, body, **fields)

    def attempt(self, work: "Callable[[], None]", path: str) -> None:
        """Do `work`; answer `failed` if it fails.  Where an error of the system names no path, name `path`."""
        try:
            work()
        except HostError as error:
            self.send("failed", reason=error.reason, hint=error.hint)
        except OSError as error:
            known = explain(error, path)
            self.send("failed", reason=known.reason, hint=known.hint)
        except wire.WireError:
            raise
        except Exception as error:  # a defect in one request must not end the tasks
            import traceback

            note(traceback.format_exc())
            self.send("failed", reason="a defect of tflaunch's agent: %r" % error, hint="see agent.log there")

    def flush(self) -> None:
        """Send what the connection takes now; raises OSError when it is gone."""
        while self.out:
            try:
                sent = self.connection.send(self.out[: 1 << 20])
            except BlockingIOError:
                return
            del self.out[:sent]
            self.sent_at = time.monotonic()
        if getattr(self.connection, "pending", False):
            self.connection.flush()  # type: ignore[union-attr]

    def watch(self, message: wire.Message) -> None:
        """From now on the viewer wants events, and with `logs` also logs; see `wire`."""
        self.client = message["client"]
        self.events_sent = message["after"]
        if message["logs"] is not None:
            self._follows = {str(task): list(at) for task, at in message["logs"].items()}
            self._wanted = message.fields
            self._owes_through = True
            self.credit = message["window"]

    @property
    def follows(self) -> bool:
        """Whether the viewer wants logs."""
        return self._follows is not None

    @property
    def hungry(self) -> bool:
        """Whether the viewer takes more log bytes now."""
        return self.follows and self.credit > 0 and not self.out

    def find(self, found: "Iterator[Dict[str, Any]]") -> bool:
        """Send the next part of what was found, once the last part is sent; returns whether there is more."""
        if self.out:
            return True
        try:
            part = next(found)
        except HostError as error:
            self.send("failed", reason=error.reason, hint=error.hint)
            return False
        if part["files"] or part["left"] or part["last"]:
            self.send("found", **part)
        return not part["last"]

    def read(self, outputs: "Union[Outputs, OutputsInTime]", message: wire.Message) -> None:
        """Send a piece of a file; a viewer limits how much is on its way by how much it requests."""
        fields, body = outputs.read(message["path"], message["offset"], message["size"], message["digest"])
        self.send("piece", body, **fields)

    def send_events(self, journal: "Journal", all_logs: "Mapping[str, TaskLogs]") -> None:
        """Send the events that were not sent yet, if the viewer wants them."""
        while self.events_sent is not None and self.events_sent < len(journal.events):
            event = journal.events[self.events_sent]
            self.events_sent += 1
            fields = {name: value for name, value in event.items() if name != "type"}
            body = b""
            if event["type"] == "exit" and self.private and event["task"] in all_logs:
                body = all_logs[event["task"]].tail(event["attempt"])
            self.send(event["type"], body, **fields)

    def send_logs(self, all_logs: "List[TaskLogs]", turn: int = 0) -> None:
        """Send what is new in the logs, as far as the viewer's credit goes; `turn`: which task is first."""
        if self._follows is None:
            return
        self.behind = False
        for number in range(len(all_logs)):
            if self.credit <= 0 or len(self.out) >= OUT_LIMIT:
                self.behind = True
                break
            self._send_log(all_logs[(number + turn) % len(all_logs)])
        if self._owes_through and not self.behind:
            self._owes_through = False
            self.send("through")

    def _send_log(self, task: "TaskLogs") -> None:
        only = self._wanted.get("tasks")
        if only is not None and task.task not in only:
            return
        assert self._follows is not None  # noqa: S101
        if task.task not in self._follows:
            at = self._follows[task.task] = logs.start(task, self._wanted)
            self.send(
                "log", task=task.task, attempt=at[0], offset=at[1]
            )  # so the viewer knows where its view begins, and does not report earlier bytes as missing
        at = self._follows[task.task]
        begins, cut_at = task.begins(at[0])
        if at[1] <= begins and self._cuts.get(task.task) != (at[0], begins) and cut_at:
            self._cuts[task.task] = (at[0], begins)
            at[1] = begins
            self.send("log", task=task.task, attempt=at[0], offset=begins, cut=cut_at)
        data = task.read(at[0], at[1], min(LOG_PIECE, self.credit))
        if data:
            self.send("log", data, task=task.task, attempt=at[0], offset=at[1])
            at[1] += len(data)
            self.credit -= len(data)
            self.behind |= len(data) == LOG_PIECE or at[0] < task.attempt
        elif at[0] < task.attempt:  # that attempt has ended and is swept: its log grows no more
            at[:] = [at[0] + 1, 0]
            self.behind = True
            self.send(
                "log", task=task.task, attempt=at[0], offset=0
            )  # at once, since the next attempt may never write anything


class Viewers:
    """All viewers, and the socket by which more of them come."""

    def __init__(
        self,
        directory: "RunDirectory",
        selector: "Selector",
        handle: "Callable[[Viewer, wire.Message], None]",
        left: "Callable[[Viewer], None]",
    ) -> None:
        """`handle` takes each message, and raises WireError for an invalid one; `left` gets each viewer that leaves."""
        self.all = []  # type: List[Viewer]
        self._directory = directory
        self._selector = selector
        self._handle = handle
        self._left = left
        self._turn = 0
        self._listener = directory.listen()
        self._listener.setblocking(False)
        selector.register(self._listener, EVENT_READ, self._accept)

    def _accept(self) -> None:
        connection = self._selector.accept(self._listener)
        if connection is not None:
            self.attach(Caller(connection))

    def attach(self, connection: "Connection", private: bool = True) -> Viewer:
        """Add a viewer; without `private` other users may read its connection."""
        viewer = Viewer(connection)
        if not private:
            viewer.private = False
            viewer.decoder = wire.Decoder(head_limit=wire.ANSWER_LIMIT)
        self.all.append(viewer)
        self._welcome(viewer)
        return viewer

    def _welcome(self, viewer: Viewer) -> None:
        viewer.connection.setblocking(False)
        self._selector.register(viewer.connection, EVENT_READ, lambda: self._readable(viewer))
        if isinstance(viewer.connection, Channel):
            self._selector.register(viewer.connection.holder, EVENT_READ, lambda: self.detach(viewer))
        viewer.send(
            "hello",
            run=self._directory.run,
            host=self._directory.host,
            pid=os.getpid(),
            directory=self._directory.path,
            alive=True,
            ports=True,
        )

    def _readable(self, viewer: Viewer) -> None:
        # The selector calls this, too, when more can be sent: then there may be nothing to read.
        try:
            data = viewer.connection.recv(RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.take(viewer, data)
        else:
            self.detach(viewer)

    def take(self, viewer: Viewer, data: bytes) -> None:
        """Handle the messages in what the viewer has sent."""
        viewer.heard_at = time.monotonic()
        try:
            for message in viewer.decoder.feed(data):
                if message.type == PASSED and isinstance(viewer.connection, Caller):
                    self._move(viewer, viewer.connection.channel())
                    self.take(viewer, message.body)  # what the visit has already read from that channel
                else:
                    self._handle(viewer, message)
        except wire.WireError as error:
            note(str(error))
            self.detach(viewer)

    def _move(self, viewer: Viewer, channel: Channel) -> None:
        """From now on use the channel that the viewer has passed, not the connection over which it passed it."""
        self._await_room(viewer, False)
        self._selector.unregister(viewer.connection)
        viewer.connection = channel
        viewer.out.clear()
        try:
            self._welcome(viewer)
        except OSError as error:  # a plain file, for example
            raise wire.WireError("the agent cannot wait for that channel: %s" % error) from error

    def detach(self, viewer: Viewer) -> None:
        """Close the viewer's connection; idempotent."""
        if viewer in self.all:
            self.all.remove(viewer)
            self._await_room(viewer, False)
            connection = viewer.connection
            for each in [connection, *([connection.holder] if isinstance(connection, Channel) else [])]:
                try:
                    self._selector.unregister(each)
                except KeyError:
                    pass  # `_move` has failed
            connection.close()
            self._left(viewer)

    def send_to_launcher(self, type: str, **fields: "Any") -> None:
        """Send that message to the launcher, if it is attached."""
        for viewer in self.all:
            if viewer.launches:
                viewer.send(type, **fields)

    @property
    def hungry(self) -> bool:
        """Whether some viewer takes more log bytes now."""
        return any(viewer.hungry for viewer in self.all)

    @property
    def behind(self) -> bool:
        """Whether the logs already have more bytes for a viewer that takes them."""
        return any(viewer.behind and viewer.hungry for viewer in self.all)

    @property
    def waiting(self) -> bool:
        """Whether there are bytes still to be sent."""
        return any(viewer.out for viewer in self.all)

    def beat(self, now: float) -> None:
        """Send a sign of life to every viewer to which nothing was sent for BEAT_S; let go of those that are silent."""
        for viewer in list(self.all):
            if viewer.beats and now - viewer.heard_at > SILENCE_S:
                self.detach(viewer)  # its connection has died without a word
            elif now - viewer.sent_at >= BEAT_S and not viewer.out:
                viewer.send("beat")

    def pump(self, journal: "Journal", all_logs: "Mapping[str, TaskLogs]") -> None:
        """Send every viewer what is new, as far as it takes it."""
        self._turn += 1  # so that no task is always first
        for viewer in self.all:
            viewer.send_events(journal, all_logs)
            viewer.send_logs(list(all_logs.values()), self._turn)
        for viewer in list(self.all):
            self._flush(viewer)

    def _flush(self, viewer: Viewer) -> None:
        try:
            viewer.flush()
        except OSError:
            self.detach(viewer)
            return
        self._await_room(viewer, bool(viewer.out or getattr(viewer.connection, "pending", False)))

    def _await_room(self, viewer: Viewer, waits: bool) -> None:
        """Wake the loop when the connection takes more, or (`waits` is False) no longer; every turn tries to send."""
        connection = viewer.connection
        if waits == viewer.awaits_room:
            return
        viewer.awaits_room = waits
        if not isinstance(connection, Channel):
            events = EVENT_READ | EVENT_WRITE if waits else EVENT_READ
            self._selector.modify(connection, events, self._selector.get_key(connection).data)
        elif waits:
            self._selector.register(connection.out, EVENT_WRITE, lambda: None)
        else:
            self._selector.unregister(connection.out)
