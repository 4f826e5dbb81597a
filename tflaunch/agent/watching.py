"""What a viewer may see of a run that lives: its events, its logs, the outputs of its tasks, TensorBoard, its ports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from tflaunch.agent.files.outputs import OutputsInTime
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.tasks.team import Team
    from tflaunch.agent.tensorboard_server import TensorBoardServer
    from tflaunch.agent.viewer import Viewer, Viewers
    from tflaunch.protocol.selector import Selector
    from tflaunch.protocol.tcp_streams import Streams
    from tflaunch.protocol.wire import Message


class Watching:
    """Takes the messages `watch`, `credit`, `find` and `read`."""

    def __init__(self, directory: "RunDirectory", viewers: "Viewers", team: "Team") -> None:
        self._directory = directory
        self._team = team
        self._viewers = viewers
        self._outputs = None  # type: Optional[OutputsInTime]
        self._finding = []  # type: List[Tuple[Viewer, Iterator[Dict[str, Any]]]]

    def watch(self, viewer: "Viewer", message: "Message") -> None:
        for other in list(self._viewers.all):
            if message["client"] and other.client == message["client"] and other is not viewer:
                self._viewers.detach(other)  # the same client's earlier connection, which was cut
        viewer.watch(message)

    def credit(self, viewer: "Viewer", message: "Message") -> None:
        viewer.credit += message["bytes"]
        viewer.beats |= not message["bytes"]

    def find(self, viewer: "Viewer", message: "Message") -> None:
        if viewer.private:  # only the user may read what the tasks have written
            self._finding.append((viewer, self._opened().find(message["patterns"], message["roots"])))

    def read(self, viewer: "Viewer", message: "Message") -> None:
        if viewer.private:
            viewer.read(self._opened(), message)

    def _opened(self) -> "OutputsInTime":
        if self._outputs is None:
            from tflaunch.agent.files.outputs import OutputsInTime

            self._outputs = OutputsInTime(self._directory, lambda: self._team.patience_s)
        return self._outputs

    @property
    def restless(self) -> bool:
        """Whether a viewer can take more of the search results at once."""
        return any(not viewer.out for viewer, _ in self._finding)

    def tick(self) -> None:
        """Continue the searches for outputs."""
        for viewer, found in list(self._finding):
            if viewer not in self._viewers.all or not viewer.find(found):
                self._finding.remove((viewer, found))


class TunnelEnd:
    """Takes the message `tensorboard`, which starts TensorBoard, and those of connections to it, or to TensorFlow."""

    def __init__(self, directory: "RunDirectory", selector: "Selector", team: "Team") -> None:
        self._directory = directory
        self._selector = selector
        self._team = team
        self._tensorboard = None  # type: Optional[TensorBoardServer]
        self._streams = {}  # type: Dict[Viewer, Streams]  # to ports of tasks

    def tensorboard(self, viewer: "Viewer", message: "Message") -> None:
        from tflaunch.agent.tensorboard_server import TensorBoardServer

        if self._tensorboard is None and viewer.private and not self._team.ending:
            self._tensorboard = TensorBoardServer(self._directory, self._selector)
        if self._tensorboard is not None and viewer.private:
            self._tensorboard.want(viewer, message["logdir"])

    def take(self, viewer: "Viewer", message: "Message") -> None:
        """A message of `tflaunch.protocol.tcp_streams`."""
        if "port" in message.fields:
            self._reach(viewer, message["stream"], message["port"])
        elif viewer in self._streams:
            self._streams[viewer].take(message)
        elif self._tensorboard is not None:
            self._tensorboard.take(viewer, message)

    def _reach(self, viewer: "Viewer", stream: int, port: int) -> None:
        """Connect to the TensorFlow server of a task."""
        from tflaunch.protocol.tcp_streams import Streams

        requests = [task.request for task in self._team.tasks.values() if task.alive]
        may_be = any(each.get("port") == port and _may_be_tensorflow(each) for each in requests)
        if not (may_be and viewer.private):
            viewer.send("cut", stream=stream)
            return
        if viewer not in self._streams:
            self._streams[viewer] = Streams(self._selector, viewer.send)
        self._streams[viewer].connect(stream, port)

    def left(self, viewer: "Viewer") -> None:
        """Close the connections of a viewer that has gone."""
        if viewer in self._streams:
            self._streams.pop(viewer).close()
        if self._tensorboard is not None:
            self._tensorboard.leave(viewer)

    def tick(self, now: float) -> None:
        """Look whether TensorBoard is up, or overdue to end."""
        if self._tensorboard is not None:
            self._tensorboard.tick(now)

    def reaped(self, pid: int, status: int) -> bool:
        """Whether the child process that has ended was TensorBoard."""
        return self._tensorboard is not None and self._tensorboard.reaped(pid, status)

    def stop(self) -> None:
        """End TensorBoard; see `alive`."""
        if self._tensorboard is not None:
            self._tensorboard.stop()

    @property
    def alive(self) -> bool:
        """Whether TensorBoard still lives."""
        return self._tensorboard is not None and self._tensorboard.alive


def _may_be_tensorflow(request: "Dict[str, Any]") -> bool:
    """Whether a server of TensorFlow may listen at that task's port: those of others need not bear a stranger's bytes.

    A task of one other framework has its variables alone; one that may be of any has those of all.
    """
    env = request["env"]
    return not request.get("rendezvous") and ("MASTER_ADDR" in env) == ("JAX_COORDINATOR_ADDRESS" in env)
