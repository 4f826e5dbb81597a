"""Which hosts are heard of, and when a host is dialled again; pure, shipped to hosts.

A link is the way to an agent: a launcher's goes over SSH, a coordinator's over TCP.  When a link breaks, the tasks
behind it run on, and their agent keeps what they print until the link is back.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SILENCE_S = 9.0  # a link with no message for so long is broken: an agent sends a beat every 2.5 s
ANSWER_S = 20.0  # from a dial to the agent's first message; after that the host is dialled anew
# A longer gap between ticks (due each second): this process was asleep or busy, and heard no host.
ASLEEP_S = 6.0
LOOK_S = 0.1  # between two looks at all links: hundreds of hosts send something at each moment
# A silent host whose kernel answers is not dialled anew for so long: a login would burden it more.
DEAF_S = 30.0
REDIAL_S = (0.3, 8.0)  # before a host is dialled again: at first, at most; doubled each time, jittered
# After BREAKS links in a row that lasted less than STEADY_S each, a new link does not count as the host's return:
# the host goes on to count as away.  STEADY_S includes the SILENCE_S that it takes to notice a break.
STEADY_S = 20.0
BREAKS = 8


class Transport(Protocol):
    """Carries out what Links decides."""

    def dial(self, host: str) -> None:
        """Begin a new link; then call `Links.attached` once the agent answers, `Links.ended` when the link ends."""

    def hang_up(self, host: str) -> None:
        """Close a link."""

    def answers(self, host: str) -> bool:
        """Whether the host's kernel answers by the link, so that only the agent is silent; False where none tells."""

    def watch(self, host: str, after: int) -> None:
        """Ask the agent for the events after that number, and for the logs from where they stopped."""

    def unreachable(self, host: str, reason: str) -> None:
        """Report that a host is out of reach for now."""

    def back(self, host: str, away_s: float) -> None:
        """Report that a host is back after `away_s`."""


class _Link:
    def __init__(self, now: float, up: bool) -> None:
        self.up = up
        self.up_at = now
        self.heard = now
        self.lost_at = now  # when the host was last heard of; matters while it is not up
        self.breaks = 0  # how often in a row the link was up for less than STEADY_S
        self.after = 0  # the number of the last event that was taken
        self.tries = 0  # since it was last up
        self.dialled_at = now
        self.why = ""  # why it is not up
        self.deaf = False  # it is not up, but stands: the host's kernel answers


class Links:
    """The links to `hosts`; all are up at first, or, with `up=False`, dialled at the next `tick`."""

    def __init__(
        self,
        hosts: Iterable[str],
        transport: Transport,
        now: float,
        up: bool = True,
        *,
        deaf_s: float = DEAF_S,
    ) -> None:
        self._links = {host: _Link(now, up) for host in hosts}
        self._forgotten: dict[str, int] = {}  # host -> the number of its last event that was taken
        self._redial_at = {} if up else dict.fromkeys(self._links, now)  # not of those that are being dialled
        self._transport = transport
        self._deaf_s = deaf_s
        self._look_at = now  # when all links are looked at next
        self._ticked = now

    @property
    def up(self) -> list[str]:
        """The hosts whose links are up."""
        return [host for host, link in self._links.items() if link.up]

    @property
    def down(self) -> dict[str, str]:
        """The hosts whose links are down, each with the reason."""
        return {host: link.why for host, link in self._links.items() if not link.up}

    def forget(self, host: str) -> None:
        """Dial that host no more, and ignore what comes from it."""
        link = self._links.pop(host, None)
        self._redial_at.pop(host, None)
        if link is not None:
            self._forgotten[host] = link.after
            if link.deaf:
                self._transport.hang_up(host)

    @property
    def after(self) -> dict[str, int]:
        """The number of the last event that was taken, for every host."""
        return {**self._forgotten, **{host: link.after for host, link in self._links.items()}}

    def resume(self, after: Mapping[str, int]) -> None:
        """From each host, take only events with higher numbers than `after` gives."""
        for host, number in after.items():
            if host in self._links:
                self._links[host].after = number

    def attached(self, host: str, now: float) -> None:
        """The agent of that host has answered: its link is up."""
        if (link := self._links.get(host)) is not None:
            self._rise(host, link, now, anew=True)

    def _rise(self, host: str, link: _Link, now: float, *, anew: bool) -> None:
        away_s, was_reported = now - link.heard, bool(link.why)
        link.up, link.deaf, link.heard, link.tries, link.why = True, False, now, max(0, link.breaks - 1), ""
        self._redial_at.pop(host, None)
        if anew:
            link.up_at = now
            self._transport.watch(host, link.after)
        if was_reported:
            self._transport.back(host, away_s)

    def ended(self, host: str, reason: str, now: float) -> None:
        """The link has ended, or could not be made: the host is dialled again after a while."""
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
        link.up, link.deaf, link.why = False, False, reason
        least, most = REDIAL_S
        self._redial_at[host] = now + min(most, least * 2**link.tries) * random.uniform(0.5, 1.0)  # noqa: S311
        link.tries += 1
        if first:
            self._transport.unreachable(host, reason)

    def awaited(self, host: str, reason: str, now: float) -> None:
        """The host was dialled, and has not answered yet: report that `reason`, and go on to wait for it."""
        link = self._links.get(host)
        if link is not None:
            link.up, link.why, link.dialled_at = False, reason, now
            self._transport.unreachable(host, reason)

    def heard(self, host: str, now: float) -> bool:
        """A message of any type has come from that host; returns whether a link that was silent is up again by that."""
        link = self._links.get(host)
        if link is None:
            return False
        if back := link.deaf:
            self._rise(host, link, now, anew=False)
        link.heard = now
        return back

    def takes(self, host: str, number: int) -> bool:
        """Whether the event of that number is new; if so, count it as taken."""
        link = self._links.get(host)
        if link is None or number <= link.after:
            return False
        link.after = number
        return True

    def tick(self, now: float) -> None:
        """Dial the hosts whose turn it is, and hang up on silent ones, on those whose kernel answers after DEAF_S.

        Call it often; it looks only every LOOK_S.

        If this process was asleep since the last call (Ctrl-Z, a closed lid), no host counts as silent for that time.
        """
        asleep_s, self._ticked = now - self._ticked, now
        if asleep_s > ASLEEP_S:
            for host, link in self._links.items():
                if link.up:
                    link.heard = min(now, link.heard + asleep_s)
                else:  # its connection may have ended meanwhile, which is noticed only now
                    link.lost_at = min(now, link.lost_at + asleep_s)
                    link.dialled_at = min(now, link.dialled_at + asleep_s)
                if link.deaf:
                    self._redial_at[host] += asleep_s
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for host, link in list(self._links.items()):
            if link.up and now - link.heard > SILENCE_S:
                deaf = self._transport.answers(host)
                if not deaf:
                    self._transport.hang_up(host)
                self.ended(host, f"no sign of life for {SILENCE_S:g} s", now)
                if deaf:
                    link.deaf, self._redial_at[host] = True, now + self._deaf_s
            elif host in self._redial_at and (
                now >= self._redial_at[host] or (link.deaf and not self._transport.answers(host))
            ):
                if link.deaf:
                    self._transport.hang_up(host)
                    link.deaf = False
                del self._redial_at[host]
                link.dialled_at = now
                self._transport.dial(host)
            elif not link.up and host not in self._redial_at and now - link.dialled_at > ANSWER_S:
                # The link broke or froze before the agent's first message: nothing else would notice that.
                self._transport.hang_up(host)
                self.ended(host, f"no answer within {ANSWER_S:g} s", now)

    def away_s(self, host: str, now: float) -> float:
        """How long a host has been out of reach, links that broke at once included; 0 while its link is up."""
        link = self._links.get(host)
        return 0.0 if link is None or link.up else now - link.lost_at

    def wake_at(self, now: float) -> float:
        """The time by which `tick` must be called."""
        return max(self._look_at, min([now + 1.0, *self._redial_at.values()]))
