"""TensorBoard of a run, as it is asked for, told of and reached; it runs on a host, and its end is never the run's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tflaunch.lifecycle.links import Links
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, ConnectError, ConnectErrors
from tflaunch.protocol.events import Interrupted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.tcp_streams import TYPES
from tflaunch.protocol.wire import Message
from tflaunch.runs.follow import View
from tflaunch.runs.tunnel import Tunnel
from tflaunch.sessions.group import Sessions, Stopped
from tflaunch.sessions.session import Ended, Said

LIVES_S = 5.0  # so often the host hears that somebody is here


class Watcher(Protocol):
    """Who is told."""

    def warn(self, text: str) -> None: ...
    def unreachable(self, host: str, reason: str) -> None: ...
    def back(self, host: str, away_s: float) -> None: ...
    def board(self, run_id: str, url: str, host: str, logdir: str) -> None: ...


def host_of(tasks: Mapping[TaskId, str]) -> str:
    """The host of the chief, else of worker/0, else of the first task."""
    return tasks[min(tasks, key=lambda task: (task.job != "chief", task.job != "worker", task))]


class Board:
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
                self._watcher.board(self._run_id, self._tunnel.url, self.host, self.logdir)
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


def show_board(view: View, logdir: str, tunnel: Tunnel, watcher: Watcher) -> None:
    """Have TensorBoard started for that run, alive or ended, and show it until it fails.  Raises Stopped.

    It is no part of the run, and ends with this command.
    """
    tasks = {TaskId.parse(task.task): task.host for task in view.run.tasks}
    host = host_of(tasks) if tasks else ""
    asked = {share.host: share.asked for share in view.run.shares}.get(host, "")
    if asked not in view.hosts:
        error = ConnectError(f"the chief's part of {view.run.run_id} is there", "is it up?")
        raise ConnectErrors({host or "?": error}, 1)
    _Show(view, host, Board(view.run.run_id, asked, logdir, tunnel, watcher), watcher).run()


class _Show:
    """Sees to it that there is a wire, and a TensorBoard behind it."""

    def __init__(self, view: View, name: str, board: Board, watcher: Watcher) -> None:
        self._sessions: Sessions = view.sessions
        self._host = view.host(board.host)
        self._first = wire.encode("board", run=view.run.run_id, host=name, logdir=board.logdir)
        self._board = board
        self._watcher = watcher
        for other in list(self._sessions.by_host):  # they look at the run itself
            self._sessions.drop(other)

    def run(self) -> None:
        """Until it fails. Raises Stopped."""
        name = self._host.name
        links = Links([name], self, time.monotonic(), up=False)
        lives_at = 0.0
        while not self._board.failed:
            item = self._sessions.next(min(links.wake_at(time.monotonic()), lives_at or 1e12))
            now = time.monotonic()
            match item:
                case Interrupted():
                    raise Stopped(item)
                case Ended(_, Breach() as error):
                    raise ConnectErrors({name: error}, 1)
                case Ended(_, error):
                    self._board.lost()
                    links.ended(name, error.message, now)
                case Said(_, message) if message.type == "failed":
                    raise ConnectErrors(
                        {name: ConnectError(message["reason"], message.fields.get("hint", ""))}, 1
                    )
                case Said(_, message) if message.type == "hello":
                    if message["run"]:
                        links.attached(name, now)
                case Said(_, message):
                    links.heard(name, now)
                    self._board.said(message, self._sessions.by_host[name].send)
            links.tick(now)
            if now >= lives_at:
                lives_at = now + LIVES_S
                self._sessions.send(links.up, "renew", lease_s=LIVES_S)

    # What the links want done.

    def dial(self, host: str) -> None:  # noqa: ARG002 - there is only one
        """Go in again."""
        self._sessions.connect([self._host], "visit", "", lambda _: self._first)

    def hang_up(self, host: str) -> None:
        """Let go of a wire."""
        self._board.lost()
        self._sessions.hang_up(host)

    def watch(self, host: str, after: int) -> None:
        """It is on its way: `board` tells."""

    def unreachable(self, host: str, reason: str) -> None:
        """Show that the host is out of reach."""
        self._watcher.unreachable(host, reason)

    def back(self, host: str, away_s: float) -> None:
        """Show that it is back."""
        self._watcher.back(host, away_s)
