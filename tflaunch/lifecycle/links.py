"""Which hosts are heard of, when one is dialled again, and when it counts as lost; pure, shipped to the hosts.

A link is whatever leads to an agent: a launcher's goes over SSH, a coordinating agent's over TCP.  One that is
lost says nothing about the tasks behind it: they run on, and so does what they print, until it is back.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SILENCE_S = 9.0  # an agent beats every 2.5 s
ANSWER_S = 20.0  # from a dial to the agent's first word, before it is dialled anew
ASLEEP_S = 6.0  # between two ticks, which come each second: who ticks was asleep, or busy, and heard nobody
LOOK_S = 0.1  # between two looks at all of them: hundreds of hosts say something at each moment
REDIAL_S = (0.3, 8.0)  # before a host is dialled again: at first, at most; doubled each time, jittered
# A link that ends sooner has not brought the host back, once that has happened so often in a row; SILENCE_S of its time
# may have passed without a word.
STEADY_S = 20.0
BREAKS = 8


class Transport(Protocol):
    """What does the work."""

    def dial(self, host: str) -> None:
        """Make a new link; its end, or its failure, is told by `Links.ended`, its success by `attached`."""

    def hang_up(self, host: str) -> None:
        """Let go of a link that is silent."""

    def watch(self, host: str, after: int) -> None:
        """Ask for the events after that one, and for the logs from where they stopped."""

    def unreachable(self, host: str, reason: str) -> None:
        """Tell that a host is out of reach for now."""

    def back(self, host: str, away_s: float) -> None:
        """Tell that it is back."""


class _Link:
    def __init__(self, now: float, up: bool) -> None:
        self.up = up
        self.up_at = now
        self.heard = now
        self.lost_at = now  # since then it is away, while it is not up
        self.breaks = 0  # so often in a row it was up for less than STEADY_S
        self.after = 0  # the last event that was taken
        self.tries = 0
        self.redial_at: float | None = None  # None: it is up, or being dialled
        self.dialled_at = now
        self.why = ""  # it is not up


class Links:
    """The links to `hosts`; all are up at first, or, with `up=False`, dialled at the next `tick`."""

    def __init__(self, hosts: Iterable[str], transport: Transport, now: float, up: bool = True) -> None:
        self._links = {host: _Link(now, up) for host in hosts}
        self._forgotten: dict[str, int] = {}  # host -> the last event of it that was taken
        self._transport = transport
        self._look_at = now  # at all of them
        self._ticked = now
        if not up:
            for link in self._links.values():
                link.redial_at = now

    @property
    def up(self) -> list[str]:
        """The hosts that can be spoken to."""
        return [host for host, link in self._links.items() if link.up]

    @property
    def down(self) -> dict[str, str]:
        """The hosts that cannot, each with why."""
        return {host: link.why for host, link in self._links.items() if not link.up}

    def forget(self, host: str) -> None:
        """Nothing more is wanted of that host."""
        link = self._links.pop(host, None)
        if link is not None:
            self._forgotten[host] = link.after

    @property
    def after(self) -> dict[str, int]:
        """The number of the last event that was taken, of every host."""
        return {**self._forgotten, **{host: link.after for host, link in self._links.items()}}

    def resume(self, after: Mapping[str, int]) -> None:
        """Go on behind these events."""
        for host, number in after.items():
            if host in self._links:
                self._links[host].after = number

    def attached(self, host: str, now: float) -> None:
        """The link leads to the run's agent again."""
        link = self._links.get(host)
        if link is None:
            return
        away_s, was_told = now - link.heard, bool(link.why)
        link.up, link.heard, link.tries, link.redial_at, link.why = (
            True,
            now,
            max(0, link.breaks - 1),
            None,
            "",
        )
        link.up_at = now
        self._transport.watch(host, link.after)
        if was_told:
            self._transport.back(host, away_s)

    def ended(self, host: str, reason: str, now: float) -> None:
        """The link has ended, or could not be made."""
        link = self._links.get(host)
        if link is None:
            return
        first = not link.why
        if link.up:
            link.breaks = link.breaks + 1 if now - link.up_at < STEADY_S else 0
            if link.breaks <= BREAKS:
                link.lost_at = link.heard
            if link.breaks >= BREAKS:
                reason += f"; it broke {link.breaks} times in a row, always within {STEADY_S:g} s"
        link.up, link.why = False, reason
        least, most = REDIAL_S
        link.redial_at = now + min(most, least * 2**link.tries) * random.uniform(0.5, 1.0)  # noqa: S311
        link.tries += 1
        if first:
            self._transport.unreachable(host, reason)

    def heard(self, host: str, now: float) -> None:
        """It has said something, whatever it was."""
        if host in self._links:
            self._links[host].heard = now

    def takes(self, host: str, number: int) -> bool:
        """Whether the event of that number is news, and next in turn."""
        link = self._links.get(host)
        if link is None or number <= link.after:
            return False
        link.after = number
        return True

    def tick(self, now: float) -> None:
        """Dial whom it is time for; hang up on those that are silent.  Call it often: it looks each LOOK_S.

        Who was asleep since the last call (Ctrl-Z, a lid) has heard nobody: no host was silent, or slow, meanwhile.
        """
        asleep_s, self._ticked = now - self._ticked, now
        if asleep_s > ASLEEP_S:
            for link in self._links.values():
                if link.up:
                    link.heard = min(now, link.heard + asleep_s)
                else:  # its connection may have ended meanwhile, which is heard only now
                    link.lost_at = min(now, link.lost_at + asleep_s)
                    link.dialled_at = min(now, link.dialled_at + asleep_s)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for host, link in list(self._links.items()):
            if link.up and now - link.heard > SILENCE_S:
                self._transport.hang_up(host)
                self.ended(host, f"no sign of life for {SILENCE_S:g} s", now)
            elif link.redial_at is not None and now >= link.redial_at:
                link.redial_at, link.dialled_at = None, now
                self._transport.dial(host)
            elif not link.up and link.redial_at is None and now - link.dialled_at > ANSWER_S:
                # Cut, or frozen, between the connection and the first word: nobody else would ever notice.
                self._transport.hang_up(host)
                self.ended(host, f"no answer within {ANSWER_S:g} s", now)

    def away_s(self, host: str, now: float) -> float:
        """For how long a host is out of reach, for moments apart; 0 while it is up."""
        link = self._links.get(host)
        return 0.0 if link is None or link.up else now - link.lost_at

    def wake_at(self, now: float) -> float:
        """When `tick` has something to do at the latest."""
        times = [link.redial_at for link in self._links.values() if link.redial_at is not None]
        return max(self._look_at, min([now + 1.0, *times]))
