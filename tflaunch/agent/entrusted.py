"""What a detached run needs of every agent: a door for the coordinator, and on one host the coordinator itself."""

import os
import signal
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.foreign import close_all_but
from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HostError, RunDirectory
from tflaunch.agent.net.peers import Door, PeerError
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.protocol import wire
    from tflaunch.protocol.selector import Selector

MEMORY_LIMIT = 64 << 20  # bytes of memory that a coordinator may leave; 4,096 tasks take a twentieth of that
AGAIN_S = 1.0  # how long the agent waits before it starts the next coordinator


class Entrusted:
    """This agent's part in a run that has no launcher."""

    def __init__(
        self,
        directory: RunDirectory,
        selector: "Selector",
        message: "wire.Message",
        port: int,
        attach: "Callable[[SealedStream], None]",
    ) -> None:
        """Open the door at that port; `attach` takes each connection that the coordinator makes.  Raises HostError."""
        self._directory = directory
        self._selector = selector
        self._attach = attach
        self._plan = None  # type: Optional[Dict[str, Any]]
        self.coordinator = 0  # the pid of this host's coordinator, 0 for none
        self._memory = b""  # the coordinator's, for the next one
        self._coming = bytearray()  # a newer memory, as far as it has come
        self._again_at = 0.0
        try:
            self._door = Door(message["address"], port, bytes.fromhex(message["secret"]))
        except OSError as error:
            raise HostError(
                "the agent cannot listen for the run's coordinator at %s:%d: %s"
                % (message["address"], port, error),
                "correct `address:` of this host",
            ) from error
        self.wide = self._door.wide  # it listens on more than the address of the cluster
        selector.register(self._door.listener, EVENT_READ, self._accept)

    def _accept(self) -> None:
        connection = self._selector.accept(self._door.listener)
        if connection is not None and self._door.welcome(connection):
            self._selector.register(connection, EVENT_READ, lambda: self._prove(connection))
            self._drop_late(time.monotonic())

    def _prove(self, connection: "Any") -> None:
        try:
            stream = self._door.proved(connection)
        except (OSError, PeerError):
            self._unregister(connection)
            return
        if stream is not None:
            self._unregister(connection)
            self._attach(stream)

    def _drop_late(self, now: float) -> None:
        for connection in self._door.late(now):
            self._unregister(connection)
            self._door.drop(connection)

    def _unregister(self, connection: "Any") -> None:
        for key in list(self._selector.get_map().values()):  # a closed socket has no descriptor to find it by
            if key.fileobj is connection:
                self._selector.unregister(connection)

    def change_secret(self, secret: bytes) -> None:
        """See Door.change_secret."""
        self._door.change_secret(secret)

    def coordinate(self, plan: "Dict[str, Any]") -> None:
        """Start the coordinator on this host, and again whenever it dies; for `plan` see tflaunch.agent.coordinator."""
        self._plan = plan
        self._start(plan)

    def try_out(self, plan: "Dict[str, Any]") -> None:
        """Have a coordinator find out whether it reaches all hosts; it decides nothing, and ends."""
        self._start(plan)

    def remember(self, piece: bytes, offset: int, last: bool) -> None:
        """Take a piece of the coordinator's memory; the memory counts once it is complete."""
        if not 0 <= offset <= len(self._coming) or offset + len(piece) > MEMORY_LIMIT:
            return  # an earlier piece never came, or this one is too large: keep the last complete memory
        del self._coming[offset:]  # a coordinator that lost its connection begins again
        self._coming += piece
        if last:
            self._memory = bytes(self._coming)

    def reaped(self, pid: int) -> None:
        """A child process has ended; if it was the coordinator, the next one is due soon."""
        if pid == self.coordinator:
            self.coordinator = 0
            self._again_at = time.monotonic() + AGAIN_S

    def tick(self, now: float) -> None:
        """Drop connections that do not prove themselves in time; start the next coordinator when it is due."""
        self._drop_late(now)
        if self._plan is not None and not self.coordinator and now >= self._again_at:
            self._start(self._plan)

    def _start(self, plan: "Dict[str, Any]") -> None:
        agent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # the tasks have filled the process table
            note("the coordinator: %s" % error)
            self._again_at = time.monotonic() + AGAIN_S
            return
        if pid:
            self.coordinator = pid
            return
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            close_all_but()  # the agent's leases and ports must end with the agent
            processes.end_with_parent(agent)  # nobody else would find it once agent and guard were killed
            from tflaunch.agent.coordinator import Coordinator

            Coordinator(self._directory, plan, self._memory).run()
        except BaseException:  # write it to agent.log; this child must not go on in the caller's code
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
