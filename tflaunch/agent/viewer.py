"""Whoever is attached to a run on this host: the messages in both directions, and how far it has seen."""

import os
import time

from tflaunch.agent.files.journal import note
from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.net.channel import PASSED, Caller, Channel
from tflaunch.agent.tasks import logs
from tflaunch.protocol import wire
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

    from tflaunch.agent.files.journal import Journal
    from tflaunch.agent.files.outputs import Outputs
    from tflaunch.agent.files.rundir import RunDirectory
    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.agent.tasks.logs import TaskLogs
    from tflaunch.protocol.selector import Selector

    Connection = Union[Channel, Caller, SealedStream]

COORDINATOR = "coordinator"  # the client that decides for a detached run
LOG_PIECE = 64 * 1024
RECEIVE = 64 * 1024  # for more the C library asks the kernel for memory each time
OUT_LIMIT = 256 * 1024  # log bytes are read only while less than this waits to be sent
BEAT_S = 2.5


class Viewer:
    """One attached launcher, viewer or coordinator."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.decoder = wire.Decoder()
        self.out = bytearray()
        self.client = ""  # the same after a reconnect
        self.drives = False  # it renews the lease: the run ends without it
        self.launches = False  # the run ends with it until the tasks are released
        self.private = True  # nobody on the way reads what it is sent
        self.told = None  # type: Optional[int]  # the last event that was sent; None: none are wanted
        self.credit = 0
        self.behind = False  # there is more log than was read
        self.sent_at = time.monotonic()
        self.waits = False  # for the connection to take more
        self._follows = None  # type: Optional[Dict[str, List[int]]]  # task -> attempt, offset
        self._cuts = {}  # type: Dict[str, tuple[int, int]]  # task -> attempt, offset at which it was said
        self._wanted = {}  # type: Dict[str, Any]
        self._says_when_through = False

    def send(self, type: str, body: bytes = b"", **fields: "Any") -> None:
        self.out += wire.encode(type, body, **fields)

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
        """From now on it wants events, and with `logs` also what the tasks print; see `wire`."""
        self.client = message["client"]
        self.told = message["after"]
        if message["logs"] is not None:
            self._follows = {str(task): list(at) for task, at in message["logs"].items()}
            self._wanted = message.fields
            self._says_when_through = True
            self.credit = message["window"]

    @property
    def follows(self) -> bool:
        """Whether it wants logs."""
        return self._follows is not None

    @property
    def hungry(self) -> bool:
        """Whether it takes more log bytes now."""
        return self.follows and self.credit > 0 and not self.out

    def find(self, found: "Iterator[Dict[str, Any]]") -> bool:
        """Send the next part of what was found, as soon as the last one has left; whether there is more."""
        if self.out:
            return True
        try:
            told = next(found)
        except HostError as error:
            self.send("failed", reason=error.reason, hint=error.hint)
            return False
        if told["files"] or told["left"] or told["last"]:
            self.send("found", **told)
        return not told["last"]

    def read(self, outputs: "Outputs", message: wire.Message) -> None:
        """Send a piece of a file; whoever asks does not ask for more than is to be under way."""
        fields, body = outputs.read(message["path"], message["offset"], message["size"], message["digest"])
        self.send("piece", body, **fields)

    def tell(self, journal: "Journal", all_logs: "Mapping[str, TaskLogs]") -> None:
        """Send the events that it has not seen."""
        while self.told is not None and self.told < len(journal.events):
            event = journal.events[self.told]
            self.told += 1
            fields = {name: value for name, value in event.items() if name != "type"}
            body = b""
            if event["type"] == "exit" and self.private and event["task"] in all_logs:
                body = all_logs[event["task"]].tail(event["attempt"])
            self.send(event["type"], body, **fields)

    def pump(self, all_logs: "List[TaskLogs]", turn: int = 0) -> None:
        """Send what there is of the logs, as much as it has given credit for; `turn`: who is first."""
        if self._follows is None:
            return
        self.behind = False
        for number in range(len(all_logs)):
            if self.credit <= 0 or len(self.out) >= OUT_LIMIT:
                self.behind = True
                break
            self._pump(all_logs[(number + turn) % len(all_logs)])
        if self._says_when_through and not self.behind:
            self._says_when_through = False
            self.send("through")

    def _pump(self, task: "TaskLogs") -> None:
        only = self._wanted.get("tasks")
        if only is not None and task.task not in only:
            return
        assert self._follows is not None  # noqa: S101
        if task.task not in self._follows:
            at = self._follows[task.task] = logs.start(task, self._wanted)
            self.send("log", task=task.task, attempt=at[0], offset=at[1])  # what came before is not missing
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
        elif at[0] < task.attempt:  # that attempt is over, and swept: nothing more is written there
            at[:] = [at[0] + 1, 0]
            self.behind = True
            self.send("log", task=task.task, attempt=at[0], offset=0)  # it may never write anything


class Viewers:
    """All that are attached, and the socket where more come in."""

    def __init__(
        self,
        directory: "RunDirectory",
        selector: "Selector",
        handle: "Callable[[Viewer, wire.Message], None]",
        left: "Callable[[Viewer], None]",
    ) -> None:
        """`handle` takes what one of them says, and raises WireError at nonsense; `left` hears who is gone."""
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
        """One more; without `private` others may read on the way what it is sent."""
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
        )

    def _readable(self, viewer: Viewer) -> None:
        # Writability is handled by trying: the selector says here only that something is worth trying.
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
        """Do what it says."""
        try:
            for message in viewer.decoder.feed(data):
                if message.type == PASSED and isinstance(viewer.connection, Caller):
                    self._move(viewer, viewer.connection.channel())
                    self.take(viewer, message.body)  # what has been read already from that channel
                else:
                    self._handle(viewer, message)
        except wire.WireError as error:
            note(str(error))
            self.detach(viewer)

    def _move(self, viewer: Viewer, channel: Channel) -> None:
        """From now on it is spoken to by that channel, which it has passed on."""
        self._wait(viewer, False)
        self._selector.unregister(viewer.connection)
        viewer.connection = channel
        viewer.out.clear()
        try:
            self._welcome(viewer)
        except OSError as error:  # a plain file, for example
            raise wire.WireError("a channel that nobody can wait for: %s" % error) from error

    def detach(self, viewer: Viewer) -> None:
        """No more of that one; idempotent."""
        if viewer in self.all:
            self.all.remove(viewer)
            self._wait(viewer, False)
            connection = viewer.connection
            for each in [connection, *([connection.holder] if isinstance(connection, Channel) else [])]:
                try:
                    self._selector.unregister(each)
                except KeyError:
                    pass  # nobody could wait for it
            connection.close()
            self._left(viewer)

    def tell_launcher(self, type: str, **fields: "Any") -> None:
        """That message to whoever launches the run."""
        for viewer in self.all:
            if viewer.launches:
                viewer.send(type, **fields)

    @property
    def hungry(self) -> bool:
        """Whether some of them take more log bytes now."""
        return any(viewer.hungry for viewer in self.all)

    @property
    def behind(self) -> bool:
        """Whether there are such bytes at once."""
        return any(viewer.behind and viewer.hungry for viewer in self.all)

    @property
    def waiting(self) -> bool:
        """Whether something has still to be sent."""
        return any(viewer.out for viewer in self.all)

    def beat(self, now: float) -> None:
        """A sign of life to all that have heard nothing for a while."""
        for viewer in self.all:
            if now - viewer.sent_at >= BEAT_S and not viewer.out:
                viewer.send("beat")

    def pump(self, journal: "Journal", all_logs: "Mapping[str, TaskLogs]") -> None:
        """Bring every one up to date, as far as it takes it."""
        self._turn += 1  # no task is always first
        for viewer in self.all:
            viewer.tell(journal, all_logs)
            viewer.pump(list(all_logs.values()), self._turn)
        for viewer in list(self.all):
            self._flush(viewer)

    def _flush(self, viewer: Viewer) -> None:
        try:
            viewer.flush()
        except OSError:
            self.detach(viewer)
            return
        self._wait(viewer, bool(viewer.out or getattr(viewer.connection, "pending", False)))

    def _wait(self, viewer: Viewer, waits: bool) -> None:
        """Wake the loop, or not, when more can be sent: that is tried at each turn."""
        connection = viewer.connection
        if waits == viewer.waits:
            return
        viewer.waits = waits
        if not isinstance(connection, Channel):
            events = EVENT_READ | EVENT_WRITE if waits else EVENT_READ
            self._selector.modify(connection, events, self._selector.get_key(connection).data)
        elif waits:
            self._selector.register(connection.out, EVENT_WRITE, lambda: None)
        else:
            self._selector.unregister(connection.out)
