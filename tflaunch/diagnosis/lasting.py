"""The base of rules that tell what has lasted: each finding once, and once more when it is over.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.movement import Movement
from tflaunch.diagnosis.rule import Rule, Sentence, trains

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.protocol.outcome import TaskExit

TENSORFLOW = range(2220, 2300)  # the ports of TensorFlow's own examples, which programs copy
GAP_S = 20.0  # what is seen again within this time has lasted: gRPC pauses so long between two calls

NOT_YET = float("inf")


class Finding(NamedTuple):
    """What is wrong, and with whom."""

    text: str
    over: str  # the sentence when it ends; "": none
    tasks: tuple[str, ...]  # whose standstill it explains; the first is the one that it is about


class Track:
    """What is known of one task."""

    def __init__(self, watched: Watched, name: str) -> None:
        place = watched.places[name]
        self.name = name
        self.trains = trains(name)
        self.place = place
        self.movement = Movement(watched.thresholds, place.port)
        self.first: float | None = None  # when an agent first saw it
        self.ended = ""  # how: "ended with 0"
        self.ended_at = 0.0
        self._fresh_s = watched.thresholds.fresh_s

    @property
    def look(self) -> Mapping[str, Any]:
        """The last one; empty before the first."""
        return self.movement.look

    def fresh(self, now: float) -> bool:
        """Whether it lives, as far as is known, and was looked at lately."""
        return not self.ended and bool(self.look) and now - self.movement.at <= self._fresh_s

    def still_s(self, now: float) -> float:
        """For how long it has used no processor time and moved no bytes, to speak of; 0 where bytes are not told."""
        moves = self.movement
        since = moves.still_since if moves.sees_bytes and moves.compared else None
        return 0.0 if since is None or not self.fresh(now) else now - since

    @property
    def other_port(self) -> int:
        """The port that it listens on instead of its own, as a server of TensorFlow; 0: none."""
        ports = self.look.get("listens_on") or ()
        if self.place.port is None or self.look.get("listens") is not False or not ports:
            return 0
        said = self.sign("server_started")[1].rpartition(":")[2].strip()
        if said.isdecimal() and len(said) < 6 and int(said) in ports:
            return int(said)
        return next((port for port in ports if port in TENSORFLOW), 0)

    def sign(self, name: str) -> tuple[int, str, float]:
        """(how often its log says that, the last line, its age in s); (0, "", 0.0) if it does not."""
        count, line, age = self.look.get("signs", {}).get(name, (0, "", 0.0))
        return count, line, age


class Lasting(Rule):
    """A rule that says its `findings`, and what it has seen last."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.limits = watched.thresholds
        self.tracks = {task: Track(watched, task) for task in watched.places}
        self._cluster = {
            (address, place.port)
            for place in watched.places.values()
            if place.port is not None
            for address in (place.address, *watched.names.get(place.address, ()))
        }
        self._lasts: dict[str, tuple[float, float]] = {}  # what is seen -> first and last time
        self._told: dict[str, Finding] = {}
        # When the looks began again, if another watchdog handed on its memory.
        self._resumed: float | None = None

    def findings(self, now: float) -> Mapping[str, Finding]:
        """What is wrong now, by keys that stay the same while it is."""
        return {}

    def over(self, key: str, told: Finding) -> str:
        """The sentence that this finding has ended; "": none."""
        return told.over

    # -- what happens

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for name, look in fields["tasks"].items():
            track = self.tracks.get(name)
            if track is not None and not track.ended:
                track.movement.seen(look, now, self._cluster)
                track.first = now if track.first is None else track.first
                self.noted(track, now)

    def noted(self, track: Track, now: float) -> None:
        """That task has been looked at."""

    def exited(self, exit: TaskExit, now: float) -> None:
        signal = exit.signal_name or f"signal {exit.signal}"
        self._gone(
            str(exit.task),
            f"ended with {exit.code}" if exit.signal is None else f"was ended by {signal}",
            now,
        )

    def lost(self, task: str, now: float) -> None:
        self._gone(task, "was lost with its host", now)

    def _gone(self, task: str, how: str, now: float) -> None:
        if task in self.tracks and not self.tracks[task].ended:  # it may have ended before its host was lost
            self.tracks[task].ended, self.tracks[task].ended_at = how, now

    def started(self, task: str, now: float) -> None:
        if task in self.tracks:
            self.tracks[task] = Track(self.watched, task)
            self._lasts = {key: times for key, times in self._lasts.items() if not key.startswith(task + " ")}

    # -- what lasts

    def note(self, key: str, now: float, so: bool = True) -> None:
        """That is so now, or surely not; begin the key with the task's name and a space."""
        if not so:
            self._lasts.pop(key, None)
            return
        first, last = self._lasts.get(key, (now, now))
        self._lasts[key] = (now if now - last > GAP_S else first, now)

    def lasting(self, now: float) -> Mapping[str, float]:
        """What is still so, with the time since when it is."""
        self._lasts = {key: times for key, times in self._lasts.items() if now - times[1] <= GAP_S}
        return {key: first for key, (first, _) in self._lasts.items()}

    # -- what is told

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        found, said = self.findings(now), []
        self._resumed = now if self._resumed == NOT_YET else self._resumed
        # What was told may not be seen again at once: nobody has looked in between.
        settled = self._resumed is None or now - self._resumed > self.limits.wait_s + GAP_S
        for key, finding in found.items():
            if key not in self._told and not (finding.tasks and finding.tasks[0] in explained):
                self._told[key] = finding
                said.append(Sentence(finding.text, False))
        for key, told in list(self._told.items()):
            tracks = [self.tracks[task] for task in told.tasks]
            if settled and key not in found and all(track.ended or track.fresh(now) for track in tracks):
                del self._told[key]
                over = "" if tracks[0].ended else self.over(key, told)
                if over:
                    said.append(Sentence(over, True))
        return said

    def explains(self, now: float) -> Iterable[str]:
        return {task for told in self._told.values() for task in told.tasks}

    def holds(self) -> Iterable[str]:
        return [told.text for told in self._told.values()]

    def memory(self) -> Any:
        return {
            "ended": {name: [each.ended, each.ended_at] for name, each in self.tracks.items() if each.ended},
            "first": {name: each.first for name, each in self.tracks.items() if each.first is not None},
            "still": {
                name: each.movement.still_since
                for name, each in self.tracks.items()
                if each.movement.still_since is not None
            },
            "lasts": self._lasts,
            "told": {key: list(told) for key, told in self._told.items()},
        }

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_number, a_text, check, of_the_run

        a_task = of_the_run("a task", self.tracks)
        spec = {
            "ended": Each(a_task, (a_text, a_number)),
            "first": Each(a_task, a_number),
            "still": Each(a_task, a_number),
            "lasts": Each(a_text, (a_number, a_number)),
            "told": Each(a_text, (a_text, a_text, [a_task])),
        }
        check(spec, memory)
        self._resumed = NOT_YET
        for name, (how, at) in memory["ended"].items():
            self.tracks[name].ended, self.tracks[name].ended_at = how, at
        for name, first in memory["first"].items():
            self.tracks[name].first = first
        for name, since in memory["still"].items():
            self.tracks[name].movement.still_since = since
        self._lasts = {key: (first, last) for key, (first, last) in memory["lasts"].items()}
        self._told = {
            key: Finding(text, over, tuple(tasks)) for key, (text, over, tasks) in memory["told"].items()
        }
