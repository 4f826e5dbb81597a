"""The loop of every command that stays with its hosts: it takes their messages and dials lost hosts again.

After Ctrl-Z and fg, or when the lid of a laptop was closed, no host counts as silent or slow for the time in which
this process did not run: Links moves its clocks on, and deadlines are counted in `awake_s`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from tflaunch.lifecycle.links import Links
from tflaunch.protocol.errors import Breach, ConnectError, Gone
from tflaunch.protocol.events import Interrupted
from tflaunch.protocol.wire import Message
from tflaunch.sessions.group import Item, Sessions, Stopped, Typed, Written
from tflaunch.sessions.session import Ended, Said
from tflaunch.sessions.watcher import Watcher


class Linked:
    """The hosts of a command, their links and the loop over what they say: a base class.

    A subclass defines what is done with a message (`said`), how a host is dialled again (`dial`) and what the host is
    asked then (`watch`).  It overrides the other methods only where their events matter to it.
    """

    links: Links

    def __init__(self, sessions: Sessions, watcher: Watcher) -> None:
        """Call `link` before `turn`."""
        self._sessions = sessions
        self._watcher = watcher

    def link(self, hosts: Iterable[str], *, up: bool = True) -> None:
        """Stay with these hosts from now on.

        They are connected, except those that were lost already; with `up=False` the first turn dials them all.
        """
        self.links = Links(hosts, self, time.monotonic(), up)
        for host in self.links.up:
            error = self._sessions.ended.get(host)
            if isinstance(error, (Breach, Gone)):
                self.give_up(host, error)
            elif error is not None or host not in self._sessions.by_host:
                self.links.ended(host, "its connection is lost", time.monotonic())

    @property
    def awake_s(self) -> float:
        """A monotonic clock that stands still while this process is stopped."""
        return self._sessions.awake_s

    def turn(self, deadline: float = math.inf) -> Item | None:
        """Wait until something happens, at most until `deadline` (of `awake_s`), and act on it.

        Returns what came, if anything; it wakes at least once a second.  Raises Stopped, unless the subclass
        overrides `interrupted`.
        """
        item = self._sessions.next(min(deadline + self._sessions.slept_s, self.wake_at(time.monotonic())))
        match item:
            case Interrupted():
                self.interrupted(item)
            case Written(host, size):
                self.written(host, size)
            case Typed(key):
                self.typed(key)
            case Ended(host, (Breach() | Gone()) as error):
                self.give_up(host, error)
            case Ended(host, error):
                self.disconnected(host)
                self.links.ended(host, error.message, time.monotonic())
            case Said(host, message) if message.type == "hello" and host not in self.links.up:
                if message["run"]:  # the first hello is the visit's, before it leads to the run
                    self.attached(host, time.monotonic())
            case Said(host, message) if message.type == "failed":
                self.give_up(host, ConnectError(message["reason"], message.fields.get("hint", "")))
            case Said(host, message):
                self.heard(host, time.monotonic())
                self.said(host, message)
        self.tick(time.monotonic())
        return item

    def give_up(self, host: str, error: ConnectError) -> None:
        """Dial that host no more, and do without it."""
        self.links.forget(host)
        self.dead(host, error)

    # What happens, for subclasses.

    def said(self, host: str, message: Message) -> None:
        """Take a message of that host."""
        raise NotImplementedError

    def dead(self, host: str, error: ConnectError) -> None:
        """Do without that host: its agent or slot is gone, or it breaks the protocol.  It is not dialled any more."""
        raise NotImplementedError

    def disconnected(self, host: str) -> None:
        """The connection to that host has ended; it is dialled again."""

    def written(self, host: str, size: int) -> None:
        """That many log bytes of that host have been shown."""

    def typed(self, key: str) -> None:
        """The user has typed that key."""

    def interrupted(self, signal: Interrupted) -> None:
        """End the command, as the user wants: raise Stopped."""
        raise Stopped(signal)

    def attached(self, host: str, now: float) -> None:
        """The host is back."""
        self.links.attached(host, now)

    def heard(self, host: str, now: float) -> None:
        """That host has sent a message, of whatever type."""
        self.links.heard(host, now)

    def tick(self, now: float) -> None:
        """Do what is due by the clock."""
        self.links.tick(now)

    def wake_at(self, now: float) -> float:
        """The time by which `tick` must be called."""
        return self.links.wake_at(now)

    # What Links calls.

    def dial(self, host: str) -> None:
        """Connect to that host again."""
        raise NotImplementedError

    def watch(self, host: str, after: int) -> None:
        """The host is back: ask it for its events after number `after`, and for whatever else was missed."""
        raise NotImplementedError

    def hang_up(self, host: str) -> None:
        """Close the connection to that host, which is silent; its agent may live on."""
        self._sessions.hang_up(host)

    def answers(self, host: str) -> bool:  # noqa: ARG002 - a subclass may ask
        """False: it dials a silent host again at once."""
        return False

    def unreachable(self, host: str, reason: str) -> None:
        """Show that a host is out of reach."""
        self._watcher.unreachable(host, reason)

    def back(self, host: str, away_s: float) -> None:
        """Show that a host is back after `away_s`."""
        self._watcher.back(host, away_s)
