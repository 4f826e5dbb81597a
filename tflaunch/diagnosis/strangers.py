"""Tasks that do not keep to the plan: they listen on another port, or call addresses that are no task's.

    ps/0 on host1 listens on 2222, not on 22001: does the program take its cluster from --ps_hosts or TF_CONFIG, or has
    it one of its own?
    worker/0 on host1 takes itself for worker/1 on host2 (its server is host2:22001): the program has another ...
    worker/1 on host2 has called 10.0.0.9:2222 for 60 s without an answer; no task of this run is there: ...

A program may have servers and calls of its own (TensorBoard, a data set, a local server for evaluation), and train: so
nothing is told while the tasks work.  Someone must wait: a trainer that stands still, or that says so in its log.  But
no program takes the endpoint of another task by chance: that is told also while all work.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import TENSORFLOW, Finding, Lasting
from tflaunch.diagnosis.rule import names_of
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.diagnosis.lasting import Track
    from tflaunch.diagnosis.rule import Watched
    from tflaunch.protocol.outcome import TaskExit

DNS, METADATA = 53, "169.254.169.254"
WEB = (80, 443)
ANOTHER_CLUSTER = (
    "the program has another cluster than this run, its tasks in another order, or another index; let it take both, as"
    " they are, from TF_CONFIG or the cluster flags"
)
CLUSTER = "does the program take its cluster from --ps_hosts or TF_CONFIG, or has it addresses of its own?"


class Strangers(Lasting):
    """Takes looks, and tells of ports and addresses that are not the plan's."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._ports = [place.port for place in watched.places.values()]
        self._tasks_at = {
            (address, place.port): task
            for task, place in watched.places.items()
            if place.port is not None
            for address in (place.address, *watched.names.get(place.address, ()))
        }
        # Whose name nobody has looked up (--no-dial-check): a call to that port may be to that task.
        self._unresolved = {
            place.port
            for place in watched.places.values()
            if not _is_ip(place.address) and place.address not in watched.names
        }

    def noted(self, track: Track, now: float) -> None:
        look, name = track.look, track.name
        if posed := self._posed(track):
            self.note(f"{name} poses {posed[0]} {posed[1]}", now)
        elif track.other_port:
            self.note(f"{name} listens {track.other_port}", now)
        for address, port in look["calling"]:
            # A port that only one task has is that task's, by whatever address.
            known = (address, port) in self._cluster or self._ports.count(port) == 1
            if not known and port not in self._unresolved:
                self.note(f"{name} calls {address} {port}", now)
        for address, port in look["connected"] or ():
            foreign = (address, port) not in self._cluster and not self._one_of_us(address, port)
            if foreign and port in TENSORFLOW:
                self.note(f"{name} meets {address} {port}", now)

    def _one_of_us(self, address: str, port: int) -> bool:
        """Whether a task of this run listens there; by another address of its host, or on another port."""
        hosts = {"127.0.0.1", "::1", *(track.place.address for track in self.tracks.values())}
        hosts.update(each for names in self.watched.names.values() for each in names)
        return port in self._ports or (
            address in hosts
            and any(port in (each.look.get("listens_on") or ()) for each in self.tracks.values())
        )

    def findings(self, now: float) -> Mapping[str, Finding]:
        found: dict[str, Finding] = {}
        others: dict[str, str] = {}
        posing: dict[str, tuple[str, str]] = {}
        for key, since in self.lasting(now).items():
            name, what, *rest = key.split(" ")
            track, lasted_s = self.tracks.get(name), now - since
            if track is None or not track.fresh(now):
                continue
            if what == "listens":
                if lasted_s >= self.limits.other_port_s:
                    others[name] = rest[0]
            elif what == "poses":
                if lasted_s >= self.limits.other_port_s:
                    posing[name] = (rest[0], rest[1])
            elif min(lasted_s, self._waits_s(track, now)) >= self.limits.wait_s:
                found[key] = self._call(track, what, rest[0], int(rest[1]), lasted_s)
        waiting = self._waiting(now)
        if others and waiting:
            found["listens"] = self._other(others, waiting)
        if posing:
            waits = [name for name in waiting if name not in posing]
            also = f"; {names_of(waits)} {agreeing(len(waits), 'waits', 'wait')}" if waits else ""
            found["poses"] = Finding(self._in_another_order(posing, also), "", (*posing, *waits))
        return found

    def why_ended(self, exit: TaskExit, now: float) -> str:
        seen = {name: self._posed(track) for name, track in self.tracks.items()}
        posing = {name: posed for name, posed in seen.items() if posed is not None}
        return self._in_another_order(posing) if posing and str(exit.task) in self.tracks else ""

    def _posed(self, track: Track) -> tuple[str, str] | None:
        """(another task of the run, its endpoint) where TensorFlow's server has that, by its log or its port."""
        if track.place.port is None:
            return None
        address, _, port = track.sign("server_started")[1].rpartition("://")[2].strip().rpartition(":")
        if port.isdecimal() and len(port) < 6:
            address = address.strip("[]")
            task = self._tasks_at.get((address, int(port)), track.name)
            own = (track.place.address, *self.watched.names.get(track.place.address, ()))
            if task != track.name and not (address in own and int(port) == track.place.port):
                return task, f"{address}:{port}"
        ports = track.look.get("listens_on") or ()
        if ports and track.place.port not in ports:
            for (address, number), task in self._tasks_at.items():
                if number in ports and self._ports.count(number) == 1:
                    return task, f"{address}:{number}"
        return None

    def _in_another_order(self, posing: Mapping[str, tuple[str, str]], also: str = "") -> str:
        (name, (task, there)), *more = sorted(posing.items())
        text = (
            f"{self.watched.who([name])} takes itself for {self.watched.who([task])} (its server is {there})"
        )
        text += "".join(f", {each} for {other}" for each, (other, _) in more[:3])
        return f"{text}{also}: {ANOTHER_CLUSTER}"

    def _waits_s(self, track: Track, now: float) -> float:
        count, _, age = track.sign("still_waiting")
        return max(track.still_s(now), self.limits.wait_s if count > 1 and age < self.limits.fresh_s else 0.0)

    def _waiting(self, now: float) -> list[str]:
        """The trainers that wait for something."""
        return [
            name
            for name, track in self.tracks.items()
            if track.trains and track.fresh(now) and self._waits_s(track, now) >= self.limits.other_port_s
        ]

    def _other(self, others: Mapping[str, str], waiting: list[str]) -> Finding:
        one, *more = [
            f"{self.watched.who([name])} listens on {port}, not on {self.tracks[name].place.port}"
            for name, port in others.items()
        ]
        also = f"; {names_of(list(others)[1:])} {agreeing(len(more), 'does', 'do')} so, too" if more else ""
        single = len(waiting) == 1
        text = f"{one}, its port in this run{also}; {names_of(waiting)} {'waits' if single else 'wait'}: {CLUSTER}"
        over = f"{names_of(waiting)} {'goes' if single else 'go'} on"
        return Finding(text, over, tuple(dict.fromkeys((*others, *waiting))))

    def _call(self, track: Track, what: str, address: str, port: int, lasted_s: float) -> Finding:
        who = self.watched.who([track.name])
        there = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        over = f"{who} goes on"
        if what == "meets":
            text = (
                f"{who} has done nothing for {lasted_s:.0f} s; it is connected to {there}, where no task of this run"
                f" listens: a server that an earlier run has left, or an address in the program? {CLUSTER}"
            )
        elif port == DNS:
            text = (
                f"{who} has waited {lasted_s:.0f} s for the name server {address}, which does not answer: try `getent"
                f" hosts NAME` on {track.place.host} with the names that the program uses, and see its"
                " /etc/resolv.conf"
            )
        else:
            text = f"{who} has called {there} for {lasted_s:.0f} s without an answer; {_whose(address, port)}"
        return Finding(text, over, (track.name,))


def _is_ip(address: str) -> bool:
    return ":" in address or not address.strip("0123456789.")


def _whose(address: str, port: int) -> str:
    """What that address may be, and what to do."""
    if address == METADATA:
        return "that is a cloud's metadata server: outside that cloud, set NO_GCE_CHECK=true, or give the credentials"
    if port in WEB:
        return (
            "that is a web server: does the program download something? See the proxy, or fetch it beforehand"
        )
    return f"no task of this run is there: {CLUSTER}"
