"""What a detached run needs of every agent: a door for the coordinating one, and on its host the coordinator."""

import os
import signal
import sys
import time

from tflaunch.agent.files.rundir import HostError, RunDirectory
from tflaunch.agent.guard import close_all_but
from tflaunch.agent.net.peers import Door, PeerError
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.protocol import wire
    from tflaunch.protocol.selector import Selector

MEMORY_LIMIT = 64 << 20  # bytes that a coordinator may leave; of 4,096 tasks it is a twentieth of that
AGAIN_S = 1.0  # before a coordinator that has died is started again


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
        """Open the door; raises HostError."""
        self._directory = directory
        self._selector = selector
        self._attach = attach
        self._plan = None  # type: Optional[Dict[str, Any]]
        self.coordinator = 0  # its pid
        self._memory = b""  # what it knows, for the next one
        self._coming = bytearray()  # the next such, as far as it is here
        self._again_at = 0.0
        try:
            self._door = Door(message["address"], port, bytes.fromhex(message["secret"]))
        except OSError as error:
            raise HostError(
                "the run's agents cannot be let in at %s:%d: %s" % (message["address"], port, error),
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
        for key in list(self._selector.get_map().values()):  # a closed socket has no number to find it by
            if key.fileobj is connection:
                self._selector.unregister(connection)

    def coordinate(self, plan: "Dict[str, Any]") -> None:
        """From now on this host decides for the run: `plan` is what `tflaunch.agent.coordinator` takes."""
        self._plan = plan
        self._start()

    def remember(self, piece: bytes, offset: int, last: bool) -> None:
        """A piece of what the coordinator knows; it counts once it is whole."""
        if not 0 <= offset <= len(self._coming) or offset + len(piece) > MEMORY_LIMIT:
            return  # what it follows never came, or it is none: the last whole one counts
        del self._coming[offset:]  # one that lost its connection begins anew
        self._coming += piece
        if last:
            self._memory = bytes(self._coming)

    def reaped(self, pid: int) -> None:
        """That process has ended; if it was the coordinator, another one goes on where it has been."""
        if pid == self.coordinator:
            self.coordinator = 0
            self._again_at = time.monotonic() + AGAIN_S

    def tick(self, now: float) -> None:
        """What time brings about."""
        self._drop_late(now)
        if self._plan is not None and not self.coordinator and now >= self._again_at:
            self._start()

    def _start(self) -> None:
        assert self._plan is not None  # noqa: S101
        try:
            pid = os.fork()
        except OSError as error:  # its tasks have filled the process table
            print("tflaunch agent: the coordinator: %s" % error, file=sys.stderr)
            self._again_at = time.monotonic() + AGAIN_S
            return
        if pid:
            self.coordinator = pid
            return
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            close_all_but()  # leases and ports are the agent's: they must end with it
            from tflaunch.agent.coordinator import Coordinator

            Coordinator(self._directory, self._plan, self._memory).run()
        except BaseException:  # it must reach agent.log, and nothing above
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
