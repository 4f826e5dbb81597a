"""Tasks that stand still since a peer has ended: the survivors of synchronous training, workers of a ps that is gone.

    worker/0 on a has done nothing for 60 s, since worker/1 on b was ended by SIGKILL 66 s ago: ...

TensorFlow says nothing then: SyncReplicas waits for gradients that nobody sends, and a session waits for its ps.  A
peer that ends while the others go on is healthy: asynchronous workers, evaluators, the end of a run.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding, Lasting
from tflaunch.diagnosis.rule import names_of
from tflaunch.protocol.dialling import REFUSED, meaning
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.diagnosis.lasting import Track
    from tflaunch.protocol.outcome import TaskExit

PS = "its variables are gone: stop the run and start it again from the last checkpoint (--restarts does that by itself)"
ENDED_WELL = (
    "if they train in step (SyncReplicas, MultiWorkerMirrored), give every worker the same number of steps and enough"
    " data (repeat()); if the run is to end with the first one, say --done chief"
)
ENDED_BADLY = (
    "if they train in step (SyncReplicas, MultiWorkerMirrored), the others wait for ever: stop the run; --restarts"
    " starts again what fails"
)


IN_BETWEEN = (
    "something between these hosts cuts connections, a firewall or NAT, mostly those that were idle for long (its time"
    " limit)"
)


class LostPeers(Lasting):
    """Takes looks and exits, and tells who waits for whom that has ended."""

    def why_ended(self, exit: TaskExit, now: float) -> str:
        """What a call right after that end has shown, where a connection of the task was reset and its peer runs."""
        by_endpoint = {
            (address, track.place.port): track
            for track in self.tracks.values()
            for address in (track.place.address, *self.watched.names.get(track.place.address, ()))
        }
        cut, open_to = [], []
        for address, port, verdict in exit.facts.get("dialled") or ():
            peer = by_endpoint.get((address, port))
            if peer is None or peer.ended or not peer.look or peer.place.host == exit.host:
                continue
            if verdict != "open":
                # Its end may be on its way to us.
                refused = "refused (it has just ended, or a firewall rejects)"
                why = refused if verdict == REFUSED else meaning(verdict, "") or verdict
                cut.append(f"{peer.name} on {peer.place.host}: {why}")
            else:
                open_to.append(peer.name)
        begins = f"a connection of {exit.task} on {exit.host} was reset"
        if cut:
            return f"{begins}; its peers, called again at once: {'; '.join(cut[:3])}"
        if open_to:
            return f"{begins}; called again at once, {names_of(open_to)} answered: {IN_BETWEEN}"
        return ""

    def findings(self, now: float) -> Mapping[str, Finding]:
        gone = [track for track in self.tracks.values() if track.ended and self._mattered(track)]
        found: dict[str, list[Track]] = {}
        for track in self.tracks.values():
            if track.trains and track.look.get("listens") and track.still_s(now) >= self.limits.wait_s:
                began = now - track.still_s(now)
                # A task goes on for a little with what it has: the last end before it stood still counts.
                before = [
                    each
                    for each in gone
                    if each.ended_at - self.limits.fresh_s <= began <= each.ended_at + self.limits.lost_peer_s
                ]
                if before:
                    found.setdefault(max(before, key=lambda each: each.ended_at).name, []).append(track)
        return {peer: self._tell(self.tracks[peer], waiting, now) for peer, waiting in found.items()}

    def blind(self) -> list[str]:
        hosts = {
            track.place.host
            for track in self.tracks.values()
            if track.look and not track.ended and not track.movement.sees_bytes
        }
        return [
            f"who waits for whom on {names_of(sorted(hosts))}: the kernel there does not tell how many bytes "
            "connections carry"
        ] * bool(hosts)

    @staticmethod
    def _mattered(track: Track) -> bool:
        return track.place.port is not None and (track.trains or track.name.startswith("ps/"))

    def _tell(self, peer: Track, waiting: list[Track], now: float) -> Finding:
        names = [track.name for track in waiting]
        who, have = self.watched.who(names), agreeing(len(names), "has", "have")
        still_s = max(track.still_s(now) for track in waiting)
        advice = (
            PS if peer.name.startswith("ps/") else ENDED_WELL if peer.ended == "ended with 0" else ENDED_BADLY
        )
        text = (
            f"{who} {have} done nothing for {still_s:.0f} s, since {self.watched.who([peer.name])} {peer.ended}"
            f" {now - peer.ended_at:.0f} s ago: {advice}"
        )
        return Finding(text, f"{who} {agreeing(len(names), 'goes', 'go')} on", tuple(names))
