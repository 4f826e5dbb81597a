"""Tasks that are not ready: variables that nobody initialises, and ports that stay shut though nobody calls them.

    worker/1 on b has waited 90 s for the variables, which chief/0 on a must initialise; chief/0 has done nothing for
    85 s (its last output was 88 s ago: "opening the data"): ...
    worker/1 on c has not opened its port for 60 s (its last output was 58 s ago); worker/0, worker/2 stand still: ...

A worker that arrives before the chief sleeps for 30 s (recovery_wait_secs) and says so: that is no hang.  Programs in
which no task opens its port use no cluster, and of these nothing is told; nor of a task without a port (evaluators,
PyTorch, JAX), nor of a client that never listens but moves bytes to its peers.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.hangs import waits_for
from tflaunch.diagnosis.lasting import Finding, Lasting
from tflaunch.diagnosis.rule import names_of
from tflaunch.diagnosis.stragglers import limit_of
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tflaunch.diagnosis.lasting import Track
    from tflaunch.diagnosis.rule import Watched

SAID = 80  # characters of a last line that are shown


ANSWER_S = 20.0  # for the answer of an agent; then it is told without a place


class Unready(Lasting):
    """Takes looks and exits, and tells whose variables or whose port the others lack."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._asked: dict[str, float] = {}  # task with a shut port -> when its agent was asked what it does
        self._does_there: dict[str, str] = {}  # ... what it does: `is at trainer.py:12 in read() and sleeps`

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        wanted: dict[str, list[str]] = {}
        for name in self._shut_for(now):
            if name not in self._asked and self._idle(self.tracks[name], now):
                self._asked[name] = now
                wanted.setdefault(self.watched.places[name].host, []).append(name)
        stacks = self.watched.stacks
        return [(host, "inspect", {"tasks": tasks, "stacks": stacks}) for host, tasks in wanted.items()]

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type != "inspected":
            return
        from tflaunch.diagnosis.standing import stand_of

        for name, processes in fields["tasks"].items():
            if name in self._asked and processes and self.watched.places[name].host == host:
                stand = stand_of(processes)
                self._does_there[name] = (
                    f"is at {stand.place} and {stand.words}" if stand.place else stand.words
                )

    def started(self, task: str, now: float) -> None:
        super().started(task, now)
        self._asked.pop(task, None)
        self._does_there.pop(task, None)

    def noted(self, track: Track, now: float) -> None:
        count, _, age = track.sign("not_initialized")
        if count and age <= self.limits.recovery_s:
            # A line comes every recovery_wait_secs, which is longer than the pause between two looks.
            self.note(f"{track.name} uninitialized", now)
        shut = track.place.port is not None and track.look["listens"] is False
        # Of a crowded host slow_hosts.py tells; what was told before is not over.
        shut = shut and (f"{track.name} shut" in self._told or not track.movement.starving.lately(now))
        self.note(f"{track.name} shut", now, shut and not track.other_port and not self._talks(track))

    def _talks(self, track: Track) -> bool:
        """Whether it is a client of its peers, which needs no port of its own."""
        return track.movement.peers_moved_at is not None or any(
            (address, port) in self._cluster for address, port in track.look["connected"] or ()
        )

    def findings(self, now: float) -> Mapping[str, Finding]:
        found: dict[str, Finding] = {}
        lasting = self.lasting(now)
        waiting = {}  # task -> since when
        for name, track in self.tracks.items():
            since = lasting.get(f"{name} uninitialized")
            said_at = now - track.sign("not_initialized")[2]
            if since is not None and track.fresh(now) and said_at - since >= self.limits.uninitialized_s:
                waiting[name] = since
        if waiting:
            found["uninitialized"] = self._uninitialized(waiting, now)
        for name, shut_s in self._shut_for(now).items():
            asked_at = self._asked.get(name)
            answer_comes = asked_at is not None and name not in self._does_there and now - asked_at < ANSWER_S
            if not (waiting and name == self.watched.chief) and not answer_comes:
                found[f"{name} shut"] = self._shut(self.tracks[name], shut_s, now)
        return found

    def _shut_for(self, now: float) -> dict[str, float]:
        """The tasks whose port has been shut for too long, and for how long."""
        lasting = self.lasting(now)
        # Of programs in which no task opens its port nothing is told: they use no cluster.
        if not any(track.fresh(now) and track.look["listens"] for track in self.tracks.values()):
            return {}
        found = {}
        for name, track in self.tracks.items():
            shut_s = now - lasting.get(f"{name} shut", now)
            # Who works while nobody waits may prepare its data first.
            works = track.movement.still_since is None and not self._waiting(now)
            longer = works or self._called(track, now)
            if track.fresh(now) and shut_s >= self.limits.wait_s * (2 if longer else 1):
                found[name] = shut_s
        return found

    def _idle(self, track: Track, now: float) -> bool:
        return track.still_s(now) >= self.limits.wait_s / 2

    def _called(self, shut: Track, now: float) -> bool:
        """Whether a task shows that it waits for this one: then another rule (hangs.py) tells both."""
        place, is_ps = shut.place, shut.name.startswith("ps/")
        addresses = (place.address, *self.watched.names.get(place.address, ()))
        return any(
            any(address in addresses and port == place.port for address, port in track.look["calling"])
            or waits_for(track.look["says"]) == shut.name
            or (is_ps and track.trains and track.movement.cores < self.limits.still_cores)
            for track in self.tracks.values()
            if track.fresh(now)
        )

    def over(self, key: str, told: Finding) -> str:
        if key.endswith(" shut") and not self.tracks[told.tasks[0]].look["listens"]:
            return ""  # only the others are gone
        return told.over

    # -- in words

    def _uninitialized(self, waiting: Mapping[str, float], now: float) -> Finding:
        names = list(waiting)
        waited_s = now - min(waiting.values())
        who, have = self.watched.who(names), agreeing(len(names), "has", "have")
        over = f"{who} {agreeing(len(names), 'waits', 'wait')} no longer for the variables"
        chief = self.watched.chief
        if chief in names or chief not in self.tracks:
            text = (
                f"{who} {have} waited {waited_s:.0f} s for the variables, which no task initialises: one task must be"
                " the chief: is_chief=(task_index == 0), with an init_op"
            )
            return Finding(text, over, tuple(names))
        track = self.tracks[chief]
        text = (
            f"{who} {have} waited {waited_s:.0f} s for the variables, which {chief} on {track.place.host} must"
            f" initialise; {chief} {self._does(track, now)}"
        )
        return Finding(text, over, (*names, *([] if track.ended else [chief])))

    def _does(self, track: Track, now: float) -> str:
        """What a task does that others wait for, and what to do."""
        if track.ended:
            return (
                f"{track.ended}: a worker that starts after the chief has ended waits for ever, unless the program sets"
                " device_filters; if the run is to end with the chief, say --done chief"
            )
        if not track.fresh(now):
            return "has not been seen lately: is its host away?"
        look, still_s = track.look, track.still_s(now)
        says = _quoted(look["says"])
        output = (
            f"its last output was {look['quiet_s']:.0f} s ago{says}" if look["log_bytes"] else "no output yet"
        )
        if track.movement.starving.lately(now):
            wants = f"wants to run and hardly gets a processor ({output})"
            quota = limit_of(track.movement.starving.held, look.get("cores") or 0.0, self.limits)
            return f"{wants}: {quota or f'what else computes on {track.place.host}?'}"
        if look["listens"] is False:
            return (
                f"has not opened its port ({output}): see its log for what it does before its server starts"
            )
        if still_s >= self.limits.wait_s / 2:
            return f"has done nothing for {still_s:.0f} s ({output}): what does it do before its session?"
        return (
            f"uses {track.movement.cores:.1f} cores ({output}): it may restore or compute before its session; is it the"
            " chief for the program, too (is_chief)?"
        )

    def _waiting(self, now: float) -> list[str]:
        """The trainers with an open port that stand still."""
        return [
            name
            for name, each in self.tracks.items()
            if each.trains and each.look.get("listens") and each.still_s(now) >= self.limits.wait_s / 4
        ]

    def _shut(self, track: Track, shut_s: float, now: float) -> Finding:
        who, look = self.watched.who([track.name]), track.look
        output = f"its last output was {look['quiet_s']:.0f} s ago" if look["log_bytes"] else "no output yet"
        waiting = self._waiting(now)
        others = "no trainer stands still for it yet"
        if waiting:
            others = f"{names_of(waiting)} {agreeing(len(waiting), 'waits', 'wait')}, maybe for it"
        does = f"uses {track.movement.cores:.1f} cores"
        if self._idle(track, now):
            does = self._does_there.get(track.name, "does nothing")
        text = (
            f"{who} has not opened its port for {shut_s:.0f} s ({output}) and {does}; {others}: see its log for what"
            " it does before its server starts (data, downloads, a look-up of a name)"
        )
        return Finding(text, f"{who} has opened its port", (track.name, *waiting))


def _quoted(line: str) -> str:
    shown = line.strip()[:SAID]
    return f': "{shown}"' if shown else ""
