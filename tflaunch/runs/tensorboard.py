"""TensorBoard of a run: it runs on one of the hosts, and a tunnel leads to it.  When it fails, the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError, ConnectErrors
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.tcp_streams import TYPES
from tflaunch.protocol.wire import Message
from tflaunch.runs.follow import Follower
from tflaunch.runs.tunnel import BrowserTunnel
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.watcher import Watcher

RENEW_S = 5.0  # how often the command tells the agent that it is still there


def host_of(tasks: Mapping[TaskId, str]) -> str:
    """The host of the chief, else of worker/0, else of the first task."""
    return tasks[min(tasks, key=lambda task: (task.job != "chief", task.job != "worker", task))]


class TensorBoard:
    """TensorBoard of one run on one host, reached over a connection that may be lost and come back."""

    def __init__(self, run_id: str, host: str, logdir: str, tunnel: BrowserTunnel, watcher: Watcher) -> None:
        self.host = host
        self.failed = False
        self._run_id = run_id
        self.logdir = logdir
        self._tunnel = tunnel
        self._watcher = watcher
        self._shown = False

    def said(self, message: Message, send: Callable[..., None]) -> None:
        """Take a message of any type from that host; `send` sends one to it."""
        if message.type in TYPES:
            self._tunnel.take(message)
        elif message.type == "tensorboard" and message["state"] == "up":
            self._tunnel.begin(send)
            if not self._shown:
                self._shown = True
                self._watcher.tensorboard(self._run_id, self._tunnel.url, self.host, self.logdir)
        elif message.type == "tensorboard":
            self.failed = True
            self._tunnel.pause()
            text = "".join(f"\n    {line}" for line in message["lines"])
            hint = ""
            if "No module named" in text:
                hint = "; the Python of the tasks there lacks it: a line `tensorboard` in --requirements installs it"
            self._watcher.warn(f"no TensorBoard on {self.host}: {message['why']}{hint}{text}")

    def lost(self) -> None:
        """The connection is lost: a browser waits until `said` gets the next `tensorboard`."""
        self._tunnel.pause()


def show_tensorboard(follower: Follower, logdir: str, tunnel: BrowserTunnel, watcher: Watcher) -> None:
    """Start TensorBoard for that run, alive or ended, and show it until it fails.

    It is not a part of the run, and ends with this command.  Raises ConnectErrors, Stopped.
    """
    tasks = {TaskId.parse(task.task): task.host for task in follower.run.tasks}
    host = host_of(tasks) if tasks else ""
    asked = {share.host: share.asked for share in follower.run.shares}.get(host, "")
    if asked not in follower.hosts:
        error = ConnectError(f"the chief of {follower.run.run_id} was on this host", "is the host up?")
        raise ConnectErrors({host or "?": error}, 1)
    _Show(follower, host, TensorBoard(follower.run.run_id, asked, logdir, tunnel, watcher), watcher).run()


class _Show(Linked):
    """Keeps a connection to the host, with a TensorBoard behind it."""

    def __init__(self, follower: Follower, name: str, tensorboard: TensorBoard, watcher: Watcher) -> None:
        super().__init__(follower.sessions, watcher)
        self._host = follower.host(tensorboard.host)
        self._first = wire.encode(
            "tensorboard", run=follower.run.run_id, host=name, logdir=tensorboard.logdir
        )
        self._tensorboard = tensorboard
        for other in list(self._sessions.by_host):  # these sessions follow the run itself
            self._sessions.leave(other)

    def run(self) -> None:
        """Show TensorBoard until it fails.  Raises ConnectErrors, Stopped."""
        self.link([self._host.name], up=False)
        renew_at = self.awake_s
        while not self._tensorboard.failed:
            self.turn(renew_at)
            if self.awake_s >= renew_at:
                renew_at = self.awake_s + RENEW_S
                self._sessions.send(self.links.up, "renew", lease_s=RENEW_S)

    def said(self, host: str, message: Message) -> None:
        """Pass the message to the TensorBoard object."""
        self._tensorboard.said(message, self._sessions.by_host[host].send)

    def dead(self, host: str, error: ConnectError) -> None:
        """TensorBoard cannot be shown any more."""
        raise ConnectErrors({host: error}, 1)

    def disconnected(self, host: str) -> None:  # noqa: ARG002 - there is only one
        """Let browsers wait until the host is back."""
        self._tensorboard.lost()

    def dial(self, host: str) -> None:  # noqa: ARG002
        """Connect to the host again, and ask for TensorBoard."""
        self._sessions.connect([self._host], "visit", "", lambda _: self._first)

    def hang_up(self, host: str) -> None:
        """Close the silent connection, and let browsers wait."""
        self._tensorboard.lost()
        super().hang_up(host)

    def watch(self, host: str, after: int) -> None:
        """Ask for nothing: the first message did, and the agent answers it with `tensorboard`."""
