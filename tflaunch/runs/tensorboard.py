"""TensorBoard of a run, as it is asked for, told of and reached; it runs on a host, and its end is never the run's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError, ConnectErrors
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.tcp_streams import TYPES
from tflaunch.protocol.wire import Message
from tflaunch.runs.follow import Follower
from tflaunch.runs.tunnel import Tunnel
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.watcher import Watcher

LIVES_S = 5.0  # so often the host hears that somebody is here


def host_of(tasks: Mapping[TaskId, str]) -> str:
    """The host of the chief, else of worker/0, else of the first task."""
    return tasks[min(tasks, key=lambda task: (task.job != "chief", task.job != "worker", task))]


class TensorBoard:
    """TensorBoard of one run on one host, behind a wire that comes and goes."""

    def __init__(self, run_id: str, host: str, logdir: str, tunnel: Tunnel, watcher: Watcher) -> None:
        self.host = host
        self.failed = False
        self._run_id = run_id
        self.logdir = logdir
        self._tunnel = tunnel
        self._watcher = watcher
        self._shown = False

    def said(self, message: Message, send: Callable[..., None]) -> None:
        """A message of that host, of whatever kind; `send` answers it."""
        if message.type in TYPES:
            self._tunnel.take(message)
        elif message.type == "board" and message["state"] == "up":
            self._tunnel.begin(send)
            if not self._shown:
                self._shown = True
                self._watcher.tensorboard(self._run_id, self._tunnel.url, self.host, self.logdir)
        elif message.type == "board":
            self.failed = True
            self._tunnel.pause()
            text = "".join(f"\n    {line}" for line in message["lines"])
            hint = ""
            if "No module named" in text:
                hint = "; install it for the python of the tasks there: pip install tensorboard"
            self._watcher.warn(f"no TensorBoard on {self.host}: {message['why']}{hint}{text}")

    def lost(self) -> None:
        """The wire is lost."""
        self._tunnel.pause()


def show_tensorboard(follower: Follower, logdir: str, tunnel: Tunnel, watcher: Watcher) -> None:
    """Have TensorBoard started for that run, alive or ended, and show it until it fails.  Raises Stopped.

    It is no part of the run, and ends with this command.
    """
    tasks = {TaskId.parse(task.task): task.host for task in follower.run.tasks}
    host = host_of(tasks) if tasks else ""
    asked = {share.host: share.asked for share in follower.run.shares}.get(host, "")
    if asked not in follower.hosts:
        error = ConnectError(f"the chief's part of {follower.run.run_id} is there", "is it up?")
        raise ConnectErrors({host or "?": error}, 1)
    _Show(follower, host, TensorBoard(follower.run.run_id, asked, logdir, tunnel, watcher), watcher).run()


class _Show(Linked):
    """Sees to it that there is a wire, and a TensorBoard behind it."""

    def __init__(self, follower: Follower, name: str, tensorboard: TensorBoard, watcher: Watcher) -> None:
        super().__init__(follower.sessions, watcher)
        self._host = follower.host(tensorboard.host)
        self._first = wire.encode("board", run=follower.run.run_id, host=name, logdir=tensorboard.logdir)
        self._tensorboard = tensorboard
        for other in list(self._sessions.by_host):  # they look at the run itself
            self._sessions.drop(other)

    def run(self) -> None:
        """Until it fails. Raises ConnectErrors, Stopped."""
        self.link([self._host.name], up=False)
        lives_at = self.awake_s
        while not self._tensorboard.failed:
            self.turn(lives_at)
            if self.awake_s >= lives_at:
                lives_at = self.awake_s + LIVES_S
                self._sessions.send(self.links.up, "renew", lease_s=LIVES_S)

    def said(self, host: str, message: Message) -> None:
        """Hand it on."""
        self._tensorboard.said(message, self._sessions.by_host[host].send)

    def dead(self, host: str, error: ConnectError) -> None:
        """It cannot be shown any more."""
        raise ConnectErrors({host: error}, 1)

    def disconnected(self, host: str) -> None:  # noqa: ARG002 - there is only one
        """Nothing passes through the tunnel until the host is back."""
        self._tensorboard.lost()

    def dial(self, host: str) -> None:  # noqa: ARG002
        """Go in again."""
        self._sessions.connect([self._host], "visit", "", lambda _: self._first)

    def hang_up(self, host: str) -> None:
        """Let go of a wire."""
        self._tensorboard.lost()
        super().hang_up(host)

    def watch(self, host: str, after: int) -> None:
        """It is on its way: `board` tells."""
