"""What an agent does for a detached run: it opens a door for the coordinator and writes down what that decides."""

import time

from tflaunch.agent.files.rundir import HOLDS, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from tflaunch.agent.entrusted import Entrusted
    from tflaunch.agent.files.journal import Journal
    from tflaunch.agent.files.rundir import RunDirectory
    from tflaunch.agent.holdings import Holdings
    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.agent.viewer import Viewer, Viewers
    from tflaunch.protocol.selector import Selector
    from tflaunch.protocol.wire import Message

HELD, HELD_CHARACTERS = 32, 1000  # sentences about the run, and the characters of each, that this host keeps


class Detached:
    """Takes the messages about the coordinator, and those that the coordinator itself sends."""

    def __init__(
        self,
        directory: "RunDirectory",
        journal: "Journal",
        selector: "Selector",
        viewers: "Viewers",
        holdings: "Holdings",
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._selector = selector
        self._viewers = viewers
        self._holdings = holdings
        self._entrusted = None  # type: Optional[Entrusted]

    # -- from the launcher

    def entrust(self, viewer: "Viewer", message: "Message") -> None:
        from tflaunch.agent.entrusted import Entrusted

        port = self._holdings.door_port
        if not port:
            raise HostError("no port is left for the run's agents", "widen `ports:` of this host by one")
        self._entrusted = Entrusted(self._directory, self._selector, message, port, self._attach_peer)
        viewer.send("entrusted", port=port, wide=self._entrusted.wide)

    def _attach_peer(self, stream: "SealedStream") -> None:
        self._viewers.attach(stream, private=False)

    def coordinate(self, viewer: "Viewer", message: "Message") -> None:
        if self._entrusted is None:
            raise HostError("this host has not been entrusted with the run")
        self._entrusted.coordinate(message.fields)

    # -- from the coordinator, or a launcher

    def coordinating(self, viewer: "Viewer", message: "Message") -> None:
        for other in self._viewers.all:  # the launcher may have come back by another connection
            if (other.drives or other.launches) and other is not viewer:
                other.send(message.type, **message.fields)

    def memory(self, viewer: "Viewer", message: "Message") -> None:
        if self._entrusted is not None and viewer.private:  # this host's own coordinator
            self._entrusted.remember(message.body, message["offset"], message["last"])

    def said(self, viewer: "Viewer", message: "Message") -> None:
        self._journal.add("said", text=message["text"], replanned=message.fields.get("replanned", False))

    def holds(self, viewer: "Viewer", message: "Message") -> None:
        self._directory.write(
            HOLDS,
            {
                "at": time.time(),
                "sentences": [text[:HELD_CHARACTERS] for text in message["sentences"][:HELD]],
                "blind": [text[:HELD_CHARACTERS] for text in message["blind"][:HELD]],
            },
        )

    def outcome(self, viewer: "Viewer", message: "Message") -> None:
        if not self._journal.has("outcome"):
            self._journal.add("outcome", outcome=message["outcome"])

    # -- the agent's loop

    @property
    def begun(self) -> bool:
        """Whether the run has been entrusted to its agents."""
        return self._entrusted is not None

    @property
    def coordinator(self) -> int:
        """The pid of this host's coordinator, 0 for none."""
        return self._entrusted.coordinator if self._entrusted is not None else 0

    @property
    def awaits_outcome(self) -> bool:
        """Whether the run's outcome is still missing: a coordinator, this one or the next, has yet to read how the run
        ended on this host and to report how it ended on all hosts."""
        return self.begun and self._journal.has("started") and not self._journal.has("outcome")

    def tick(self, now: float, over: bool) -> None:
        """Start the coordinator again if it has died and is still needed; `over`: the run has ended on this host."""
        if self._entrusted is not None and (self.awaits_outcome or not over):
            self._entrusted.tick(now)

    def reaped(self, pid: int) -> None:
        """A child process has ended, maybe the coordinator."""
        if self._entrusted is not None:
            self._entrusted.reaped(pid)
