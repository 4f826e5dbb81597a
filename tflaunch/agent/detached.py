"""What an agent does for a detached run: it opens a door for the coordinator and writes down what that decides."""

import time

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HOLDS, HostError
from tflaunch.agent.viewer import COORDINATOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

    from tflaunch.agent.entrusted import Entrusted
    from tflaunch.agent.holdings import Holdings
    from tflaunch.agent.host.journal import Journal
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.agent.tasks.team import Team
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
        *,
        holdings: "Holdings",
        team: "Team",
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._selector = selector
        self._viewers = viewers
        self._holdings = holdings
        self._team = team
        self._entrusted = None  # type: Optional[Entrusted]
        self._begun = False
        self._askers = []  # type: List[Viewer]  # they want the launcher to hand the run over

    # -- from the launcher

    def entrust(self, viewer: "Viewer", message: "Message") -> None:
        from tflaunch.agent.entrusted import Entrusted

        if self._begun and self._entrusted is not None:
            raise HostError("the run goes on without a launcher already")
        port = self._holdings.hold_door()
        if not port:
            raise HostError("no port is left for the run's agents", "widen `ports:` of this host by one")
        if self._entrusted is None:
            self._entrusted = Entrusted(self._directory, self._selector, message, port, self._attach_peer)
        else:  # an earlier handover has failed
            self._entrusted.change_secret(bytes.fromhex(message["secret"]))
        self._begun = not message.fields.get("later", False)
        viewer.send("entrusted", port=port, wide=self._entrusted.wide)

    def _attach_peer(self, stream: "SealedStream") -> None:
        self._viewers.attach(stream, private=False)

    def coordinate(self, viewer: "Viewer", message: "Message") -> None:
        if self._entrusted is None:
            raise HostError("this host has not been entrusted with the run")
        plan = message.fields
        if plan.get("trial"):
            self._entrusted.try_out(plan)
            return
        if "clock" not in plan:
            self._entrusted.coordinate(plan)
            return
        if not self._begun:
            # The coordinator goes on by the launcher's clock: all times in its memory are times of that.
            self._entrusted.coordinate(dict(plan, ahead_s=plan["clock"] - time.monotonic()))
            self._journal.add(
                "said", text="the run goes on without its launcher, which has handed it over", replanned=False
            )
            self.took_over()
        viewer.send("handed", reason="", hint="")

    def stay(self, viewer: "Viewer", message: "Message") -> None:
        self._answer(message["reason"], message["hint"])

    # -- from a user, by a viewer

    def detach(self, viewer: "Viewer", message: "Message") -> None:
        """Ask the launcher to hand the run over; see `wire`."""
        launchers = [each for each in self._viewers.all if each.drives and each is not viewer]
        if self._begun:
            viewer.send("handed", reason="", hint="")
        elif self._team.ending:
            viewer.send("handed", reason="the run is about to end", hint="watch it: tflaunch attach")
        elif not self._journal.has("started"):
            hint = "try again when they run, or start the run with --detach"
            viewer.send("handed", reason="its tasks have not started yet", hint=hint)
        elif not launchers:
            reason = "its launcher is not connected to this host"
            hint = "if the launcher is gone, the run ends with its lease; to end it now: tflaunch stop"
            viewer.send("handed", reason=reason, hint=hint)
        else:
            self._askers.append(viewer)
            for each in launchers:
                each.send("detach")

    def _answer(self, reason: str, hint: str) -> None:
        for viewer in self._askers:
            if viewer in self._viewers.all:
                viewer.send("handed", reason=reason, hint=hint)
        del self._askers[:]

    def left(self, viewer: "Viewer") -> None:
        """A viewer has gone; if it was the launcher, it answers nobody any more."""
        if self._askers and viewer.drives and not self._begun:
            self._answer("the connection of its launcher to this host is lost", "try again when it is back")

    # -- from the coordinator, or a launcher

    def took_over(self) -> None:
        """There is a coordinator: the run needs no launcher any more."""
        if self._entrusted is None:
            return
        self._begun = True
        self._answer("", "")
        plan = self._directory.read("plan.json")
        about = plan.get("about")
        if isinstance(about, dict) and not about.get("detached"):
            try:
                self._directory.write("plan.json", dict(plan, about=dict(about, detached=True)))
            except OSError as error:
                note("plan.json: %s" % error)

    def coordinating(self, viewer: "Viewer", message: "Message") -> None:
        for other in self._viewers.all:  # the launcher may have come back by another connection
            if (other.drives or other.launches) and other is not viewer:
                other.send(message.type, **message.fields)

    def memory(self, viewer: "Viewer", message: "Message") -> None:
        # From this host's own coordinator, or a launcher that hands the run over; but once there is a coordinator, only
        # that knows what has happened.
        launcher = viewer.drives and viewer.client != COORDINATOR
        if self._entrusted is not None and viewer.private and not (launcher and self._begun):
            self._entrusted.remember(message.body, message["offset"], message["last"])

    def said(self, viewer: "Viewer", message: "Message") -> None:
        self._journal.add("said", text=message["text"], replanned=message.fields.get("replanned", False))

    def holds(self, viewer: "Viewer", message: "Message") -> None:
        told = {
            "at": time.time(),
            "sentences": [text[:HELD_CHARACTERS] for text in message["sentences"][:HELD]],
            "blind": [text[:HELD_CHARACTERS] for text in message["blind"][:HELD]],
        }
        try:
            self._directory.write(HOLDS, told)
        except OSError as error:  # the agent's loop ends the run for that, in order
            note("%s: %s" % (HOLDS, error))

    def outcome(self, viewer: "Viewer", message: "Message") -> None:
        if not self._journal.has("outcome"):
            has_all = viewer.events_sent == len(self._journal.events)
            self._journal.add("outcome", outcome=message["outcome"])
            if has_all and viewer.events_sent is not None:
                viewer.events_sent += 1  # it names all tasks of the run, and who has sent it knows them

    # -- the agent's loop

    @property
    def begun(self) -> bool:
        """Whether the run has been entrusted to its agents: no launcher decides for it."""
        return self._begun

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
