"""The messages of launchers, viewers and the coordinator: each type has one handler, in the class of its subject.

Holdings    what the run holds of this host: ports, GPU leases, a place in the queue
CodeUpload  shipped code, on its way into the store
Staging     the tasks: prepared, staged, released, added, restarted, signalled, stopped
DialCheck   whether the hosts of the run reach each other
Watching    events, logs and outputs, as a viewer wants them
Tunnel      TensorBoard, and connections to it
Detached    the run without its launcher: its coordinator
"""

import time

from tflaunch.agent.detached import Detached
from tflaunch.agent.files.code_upload import CodeUpload
from tflaunch.agent.holdings import Holdings
from tflaunch.agent.host.journal import note
from tflaunch.agent.net.dial_check import DialCheck
from tflaunch.agent.staging import Staging
from tflaunch.agent.viewer import COORDINATOR
from tflaunch.agent.watching import TunnelEnd, Watching
from tflaunch.protocol import messages, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Mapping

    from tflaunch.agent.host.journal import Journal
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.tasks.team import Team
    from tflaunch.agent.viewer import Handler, Viewer, Viewers
    from tflaunch.protocol.selector import Selector


class Requests:
    """Passes each message to its handler, and the agent's clock, child processes and end to all subjects."""

    def __init__(
        self,
        directory: "RunDirectory",
        journal: "Journal",
        selector: "Selector",
        team: "Team",
        viewers: "Viewers",
        *,
        life: "Mapping[str, Handler]",
    ) -> None:
        """`life` holds the handlers of the messages that keep or end the agent itself."""
        self._directory = directory
        self.holdings = Holdings(directory, journal, selector)
        self._code = CodeUpload(directory)
        self._dial_check = DialCheck(selector, directory.host, viewers.all)
        self.staging = Staging(directory, team, self.holdings, self._code, self._dial_check)
        self._watching = Watching(directory, viewers, team)
        self._tunnel = TunnelEnd(directory, selector, team)
        self.detached = Detached(directory, journal, selector, viewers, holdings=self.holdings, team=team)
        self._handlers = {
            "probe": self.holdings.probe,
            "module": self.holdings.module,
            "queue": self.holdings.queue,
            "let_go": self.holdings.let_go,
            "keep": self.holdings.keep,
            "clock": self._clock,
            "check": self._check,
            "code": self._code.code,
            "manifest": self._code.manifest,
            "blob": self._code.blob,
            "prepare": self.staging.prepare,
            "stage": self.staging.stage,
            "release": self.staging.release,
            "add": self.staging.add,
            "restart": self.staging.restart,
            "move": self.staging.move,
            "stop": self.staging.stop_tasks,
            "signal": self.staging.signal,
            "look": self.staging.look,
            "inspect": self.staging.inspect,
            "dial": self._dial,
            "push": self._dial_check.push,
            "watch": self._watch,
            "credit": self._watching.credit,
            "find": self._watching.find,
            "read": self._watching.read,
            "tensorboard": self._tunnel.tensorboard,
            "connect": self._tunnel.take,
            "bytes": self._tunnel.take,
            "taken": self._tunnel.take,
            "cut": self._tunnel.take,
            "entrust": self.detached.entrust,
            "coordinate": self.detached.coordinate,
            "coordinating": self.detached.coordinating,
            "detach": self.detached.detach,
            "stay": self.detached.stay,
            "memory": self.detached.memory,
            "said": self.detached.said,
            "holds": self.detached.holds,
            "outcome": self.detached.outcome,
        }  # type: Dict[str, Handler]
        self._handlers.update(life)

    def handle(self, viewer: "Viewer", message: wire.Message) -> None:
        """Carry out the message, or answer `failed`; raises WireError if this viewer may not send it."""
        table = messages.TO_AGENT if viewer.private else messages.FROM_PEER
        if message.type not in table:
            raise wire.WireError("a message that is not taken from there: %r" % message.type)
        try:
            messages.check(message, table)
        except wire.WireError as error:
            note(str(error))
            viewer.send("failed", reason="the agent does not understand the launcher: %s" % error, hint="")
            return
        handler = self._handlers[message.type]
        viewer.attempt(lambda: handler(viewer, message), self._directory.path)

    def _clock(self, viewer: "Viewer", message: wire.Message) -> None:
        viewer.send("clock", sent=message["sent"], time=time.time())

    def _watch(self, viewer: "Viewer", message: wire.Message) -> None:
        self._watching.watch(viewer, message)
        if message["client"] == COORDINATOR:
            self.detached.took_over()

    def _check(self, viewer: "Viewer", message: wire.Message) -> None:
        from tflaunch.agent import host_check

        viewer.send("checked", **host_check.look([self._directory.path, *message["directories"]]))

    def _dial(self, viewer: "Viewer", message: wire.Message) -> None:
        # An intruder on the coordinator's host may not use this one to try what other machines answer.
        if not viewer.private and (
            self._dial_check.busy(viewer) or not self.staging.in_cluster(message["targets"])
        ):
            raise wire.WireError("a dial that is not of this run, or one too many")
        self._dial_check.dial(viewer, message)

    # -- the agent's loop

    @property
    def restless(self) -> bool:
        """Whether `tick` has more to do at once."""
        return self._watching.restless

    def tick(self, now: float, over: bool) -> None:
        """Do what is due; `over`: the run has ended on this host."""
        self.detached.tick(now, over)
        self._dial_check.tick(now)
        self._watching.tick()
        self.holdings.tick(now)
        self.staging.tick(now)
        self._tunnel.tick(now)

    def reaped(self, pid: int, status: int) -> None:
        """Pass on that a child process has ended that is not a task."""
        self.staging.reaped(pid)
        if not self._tunnel.reaped(pid, status):
            self.detached.reaped(pid)

    def left(self, viewer: "Viewer") -> None:
        """Pass on that this viewer has gone."""
        self._tunnel.left(viewer)
        self.detached.left(viewer)

    # -- the run's end

    def stop(self) -> None:
        """Begin to end everything that works for the run, except its tasks; `alive` says when that is done."""
        self.holdings.stop()
        self._dial_check.stop()
        self.staging.stop()
        self._tunnel.stop()

    @property
    def alive(self) -> bool:
        """Whether any process that `stop` ends is still alive."""
        return self.staging.busy or self._tunnel.alive

    def close(self) -> None:
        """Close what the subjects hold open: the agent leaves."""
        self._code.close()
        self.holdings.driver.stop()
