"""Which task waits for which, and why: from what the agents see to sentences for the user; no I/O, no clock.

    worker/1 on gpu02 has waited 60 s for ps/0 at 10.0.0.1:2222: silently dropped (a firewall?)
    ps/1 on gpu01 has not opened its port for 60 s (its last output was 58 s ago); worker/0, worker/2 wait for it
    worker/1 on gpu02 waits for chief/0, which has ended: ...

The signs, on TensorFlow 2.21.  While a peer drops a task's packets, the task has a connection in SYN_SENT, almost
without a gap.  A connect that is refused (the peer has not opened its port, or has ended) leaves no trace in /proc;
then TensorFlow's own line shows the wait ("CreateSession still waiting for response from worker:
/job:ps/replica:0/task:0", every 10 s), or that the task uses no processor time (0.3 % of a core while it waits),
listens itself, and has no connection to that peer.  Two cases are no hangs: a worker that arrives before the chief is
ready sleeps for 30 s, and a ps is idle when no worker asks it for anything.  /proc does not show what blocks a
connection; therefore the task's host connects to the peer once more (`dials`), and that shows it.

A healthy run gives no sentences: only what has lasted `wait_s` counts.  The user gets a sentence once, again when its
cause changes, and one more when the wait ends.

Shipped to hosts, for the coordinator of a detached run, which has loaded `typing` already (lifecycle/states.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.movement import Starving, carries
from tflaunch.diagnosis.rule import Rule, Sentence, endpoint, names_of, trains
from tflaunch.protocol.dialling import DIAL_S, STRANGER, meaning
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Place, Watched
    from tflaunch.diagnosis.thresholds import Thresholds
    from tflaunch.protocol.outcome import TaskExit

GAP_S = 20.0  # between two tries of gRPC to connect
DIAL_LOST_S = 60.0  # a dial whose result has not come by then counts as not made
TOO_LATE = (
    "a task that starts after the chief has ended waits for ever, unless the program sets device_filters; if the run"
    " is to end with the chief, say --done chief"
)
# The same of a task that shows nothing of what it waits for.
SERVES_OR_LATE = (
    "a server (server.join()) gets no more work then, and a session that begins now waits for ever, unless the program"
    " sets device_filters; if the run is to end with the chief, say --done chief"
)

_WAITS = ("blocked", "mute", "ended", "idle")  # one wait may change from one of these kinds to another
_KINDS = (*_WAITS, "shut", "stopped", "disk")
# TensorFlow's line, of master.cc; what comes before it on the line does not matter.
STILL_WAITING = re.compile(r"still waiting for response from worker: /job:(\w+)/replica:\d+/task:(\d+)")


class Hang(NamedTuple):
    """A task that hangs: how, and on which peer."""

    kind: str  # one of _KINDS
    task: str
    peer: str  # the task that it waits for, or ""
    cause: str


def waits_for(line: str) -> str:
    """The task that TensorFlow says it waits for in this line of a log, or ""."""
    found = STILL_WAITING.search(line)
    return f"{found[1]}/{found[2]}" if found else ""


def _told_of(reported: Iterable[Hang], name: str, peer: str, *, shut: bool) -> list[Hang]:
    """What was told of that task's wait for that peer, whose port is `shut` now or is not."""
    return [
        each
        for each in reported
        if (each.task, each.peer) == (name, peer) or (shut and each[:2] == ("shut", peer))
    ]


class _Task:
    """What is known of one task, and since when."""

    def __init__(self, place: Place, limits: Thresholds) -> None:
        self.place = place
        self.fresh_s = limits.fresh_s  # an older look says nothing about now
        self.ended = ""  # how it has ended
        self.look: dict[str, Any] = {}  # the last one
        self.at = 0.0  # the time of the last look
        self.first = 0.0  # the time of the first look
        self.idle_since: float | None = None
        self.state_since: tuple[str, float] = (
            "",
            0.0,
        )  # state of its process as in /proc (T, D), and since when
        self.calls: dict[
            str, tuple[float, float]
        ] = {}  # peer -> first and last time it was seen connecting to it
        self.said: tuple[str, float] = (
            "",
            0.0,
        )  # the peer that its last line says it waits for, and since when
        self.starving = Starving(limits)

    def fresh(self, now: float) -> bool:
        return not self.ended and bool(self.look) and now - self.at <= self.fresh_s

    def shut(self, now: float) -> bool:
        """Whether the task lives and does not listen on its port."""
        return self.fresh(now) and self.look["listens"] is False


class Hangs(Rule):
    """Takes looks, exits and results of dials, and tells which task waits for which."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        tasks, names = watched.places, watched.names
        self._tasks = {task: _Task(place, self._limits) for task, place in tasks.items()}
        self._endpoints: dict[tuple[str, int], str] = {}
        for task, place in tasks.items():
            if place.port is not None:
                for address in (place.address, *names.get(place.address, ())):
                    self._endpoints[address, place.port] = task
        ports = [place.port for place in tasks.values()]
        self._by_port = {
            place.port: task
            for task, place in tasks.items()
            if place.port is not None and ports.count(place.port) == 1
        }
        self._reported: dict[Hang, str] = {}  # with the sentence that told it
        self._wanted: dict[tuple[str, str], None] = {}  # (host, task): the host should dial the task
        self._asked: dict[str, tuple[float, list[str]]] = {}  # host -> (since when it dials, which tasks)
        self._dialled: dict[tuple[str, str], tuple[float, Any]] = {}  # (host, task) -> when, result

    def memory(self) -> dict[str, Any]:
        """What has happened, as JSON can hold it, for `resume`; the looks are left out: new ones come soon."""
        return {
            "tasks": {
                name: [task.ended, task.first, task.idle_since, task.state_since, task.calls, task.said]
                for name, task in self._tasks.items()
            },
            "reported": [[*finding, text] for finding, text in self._reported.items()],
        }

    def resume(self, memory: Any) -> None:
        """Continue from another diagnosis's `memory`; raises ValueError if it does not fit these tasks."""
        from tflaunch.protocol.fields import Each, a_number, a_text, check, of_the_run, one_of, or_null

        a_task, since = of_the_run("a task", self._tasks), (a_text, a_number)
        calls_of_it = Each(a_task, (a_number, a_number))
        of_task = (a_text, a_number, or_null(a_number), since, calls_of_it, since)
        finding = (one_of(*_KINDS), a_task, a_text, a_text, a_text)
        check({"tasks": Each(a_task, of_task), "reported": [finding]}, memory)
        for name, (ended, first, idle_since, state_since, calls, said) in memory["tasks"].items():
            task = self._tasks[name]
            task.ended, task.first, task.idle_since = ended, first, idle_since
            task.state_since, task.said = tuple(state_since), tuple(said)
            task.calls = {peer: (begun, last) for peer, (begun, last) in calls.items()}
        self._reported = {Hang(*each[:-1]): each[-1] for each in memory["reported"]}

    # -- what happens

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for name, look in fields["tasks"].items():
            task = self._tasks.get(name)
            if task is None or task.ended:
                continue
            computes = runs = reads = False
            starves = task.starving.seen(look, now) if now > task.at else False
            if not task.look:
                task.first = task.first or now
            elif now > task.at:
                used = look["cpu_s"] - task.look["cpu_s"]
                computes = not 0 <= used < self._limits.idle_cores * (now - task.at)
                # Who trains with hosts far away may use as little.
                heartbeats = self._limits.still_flow_bytes_s * (now - task.at)
                works = computes or starves or carries(task.look, look, heartbeats)
                task.idle_since = None if works else task.idle_since or task.at
                # A process that is stopped uses no time at all; a child of it may.
                alone = len(look["processes"]) == 1
                turned = look.get("turns", 0) != task.look.get("turns", 0)
                runs = computes or (alone and (used > 0 or turned))
                # Who reads much from a slow disk is in state D at each look, too, but gets what it reads.
                moved = (look.get("io") or 0) - (task.look.get("io") or 0)
                reads = moved > self._limits.still_io_bytes_s * (now - task.at)
            self._note_calls(task, look, now)
            state = look["processes"][0][2] if look["processes"] else ""
            state = {"t": "T"}.get(state, state)
            # Who throttles a task by SIGSTOP and SIGCONT in turns does not stop it: it computes in between.
            if state != task.state_since[0] or (state == "T" and runs) or (state == "D" and reads):
                task.state_since = (state, now)
            peer = waits_for(look["says"])
            if peer != task.said[0]:
                task.said = (peer, now)
            task.look, task.at = dict(look), now

    def _note_calls(self, task: _Task, look: Mapping[str, Any], now: float) -> None:
        connected = {self._peer(each) for each in look["connected"] or ()}
        for peer in {self._peer(each) for each in look["calling"]}:
            if peer:
                first, last = task.calls.get(peer, (now, now))
                task.calls[peer] = (now if now - last > GAP_S else first, now)
        for peer, (_, last) in list(task.calls.items()):
            if peer in connected or now - last > GAP_S:
                del task.calls[peer]

    def _peer(self, endpoint: Sequence[Any]) -> str:
        address, port = endpoint
        return self._endpoints.get((address, port)) or self._by_port.get(port, "")

    def exited(self, exit: TaskExit, now: float) -> None:
        if str(exit.task) in self._tasks:
            self._tasks[str(exit.task)].ended = f"with {exit.exit_code}"

    def lost(self, task: str, now: float) -> None:
        if task in self._tasks and not self._tasks[task].ended:  # it may have ended before its host was lost
            self._tasks[task].ended = "with its host"

    def started(self, task: str, now: float) -> None:
        self._tasks[task] = _Task(self._tasks[task].place, self._limits)

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """Dials, to find out what is in the way."""
        calls: dict[str, list[str]] = {}
        for host, task in self._wanted:
            asked = self._asked.get(host)
            if asked is None or now - asked[0] > DIAL_LOST_S:
                calls.setdefault(host, []).append(task)
        for host, tasks in calls.items():
            self._asked[host] = (now, tasks)
        self._wanted = {}
        places = {task: self._tasks[task].place for tasks in calls.values() for task in tasks}
        return [(host, "dial", self._dial([places[task] for task in tasks])) for host, tasks in calls.items()]

    @staticmethod
    def _dial(places: Sequence[Place]) -> dict[str, Any]:
        targets = [[place.address, place.port, place.host] for place in places]
        return {"key": "", "targets": targets, "patience_s": DIAL_S}

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type != "dialled":
            return
        _, tasks = self._asked.pop(host, (0.0, []))
        for task, result in zip(tasks, fields["results"]):  # noqa: B905  Python 3.8
            self._dialled[host, task] = (now, result)
            self._wanted.pop((host, task), None)

    # -- what it means

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        found = self._findings(now)
        said = self._begun(found, explained, now)
        still = {(finding.kind in _WAITS, finding.task, finding.peer) for finding in found}
        over: dict[tuple[str, str], list[str]] = {}
        for finding in list(self._reported):
            task = self._tasks[finding.task]
            if finding not in found and (task.ended or task.fresh(now)):
                del self._reported[finding]
                if task.ended or (finding.kind in _WAITS, finding.task, finding.peer) in still:
                    continue
                if finding.kind != "shut" or task.look["listens"]:  # else only the waiting tasks are gone
                    over.setdefault((finding.kind, finding.peer), []).append(finding.task)
        return said + [
            Sentence(self._tell_over(kind, tasks, peer), True) for (kind, peer), tasks in over.items()
        ]

    def _begun(self, found: Mapping[Hang, float], explained: AbstractSet[str], now: float) -> list[Sentence]:
        """What has not been said yet; tasks that wait for the same peer share a sentence."""
        groups: dict[Hang, list[str]] = {}
        for finding in found:
            if finding not in self._reported and finding.task not in explained:
                # A closed port or a stopped task has a sentence of its own.
                alike = finding if finding.kind in ("shut", "stopped") else finding._replace(task="")
                groups.setdefault(alike, []).append(finding.task)
        said = []
        for alike, tasks in groups.items():
            findings = [alike._replace(task=task) for task in tasks]
            text = self._tell(alike, tasks, max(found[finding] for finding in findings), now)
            self._reported.update(dict.fromkeys(findings, text))
            said.append(Sentence(text, False))
        return said

    def _findings(self, now: float) -> dict[Hang, float]:
        """All that has lasted long enough to report to the user, each with the time since when it lasts."""
        found: dict[Hang, float] = {}
        for name, task in self._tasks.items():
            if not task.fresh(now):
                continue
            state, since = task.state_since
            if state == "T" and now - since >= self._limits.stopped_s:
                found[Hang("stopped", name, "", str(task.look["processes"][0][0]))] = since
            if state == "D" and now - since >= self._limits.wait_s / 2:
                found[Hang("disk", name, "", task.look["waits_in"])] = since
            for peer, since in self._waits(name, task, now).items():
                other = self._tasks[peer]
                if now - since < self._limits.wait_s:
                    continue
                if other.starving.lately(now):
                    # Of a crowded host slow_hosts.py tells; what was told before is not over.
                    told = _told_of(self._reported, name, peer, shut=other.shut(now))
                    found.update(dict.fromkeys(told, since))
                    continue
                if other.shut(now):
                    if now - other.first >= self._limits.wait_s:
                        found[Hang("shut", peer, "", "")] = other.first
                    continue
                kind, cause = self._why(name, peer, now)
                if kind:
                    found[Hang(kind, name, peer, cause)] = since
        return found

    def _waits(self, name: str, task: _Task, now: float) -> dict[str, float]:
        """The peers that a task waits for, and since when."""
        waits = {peer: since for peer, (since, _) in task.calls.items()}
        peer, since = task.said
        if peer in self._tasks:
            # TensorFlow writes that line only after a wait of 10 s.
            waits[peer] = min(since, waits.get(peer, since), task.idle_since or since)
        return waits or dict.fromkeys(self._seems_to_want(name, task, now), task.idle_since or 0.0)

    def _seems_to_want(self, name: str, task: _Task, now: float) -> list[str]:
        """The peers that every session needs and that this idle task has no connection to.

        Only a chief that has ended and ps that do not listen count: other peers may be gone for good reasons.
        """
        connected = task.look["connected"]
        may_wait = trains(name) and task.look["listens"] and task.state_since[0] != "T"
        if task.idle_since is None or connected is None or not may_wait:
            return []
        met = {name, *map(self._peer, connected)}
        return [
            peer
            for peer, other in self._tasks.items()
            if peer not in met
            and (
                (other.ended and peer == self._watched.chief) or (peer.startswith("ps/") and other.shut(now))
            )
        ]

    def _why(self, name: str, peer: str, now: float) -> tuple[str, str]:
        """(kind, cause) of a wait; ("", "") until that is known."""
        task, other = self._tasks[name], self._tasks[peer]
        if other.ended:
            return "ended" if task.calls or task.said[0] == peer else "idle", other.ended
        if other.fresh(now) and other.state_since[0] == "T":
            return "", ""  # the user gets a sentence about the peer itself
        host = task.place.host
        at, result = self._dialled.get((host, peer), (now - 2 * self._limits.dial_again_s, None))
        if now - at > self._limits.dial_again_s:
            self._wanted[host, peer] = None
        if result is None:
            return "", ""
        if isinstance(result, (int, float)) or result[0] == STRANGER:  # it is TensorFlow that answers
            return "mute", ""
        return "blocked", meaning(*result)

    def explains(self, now: float) -> list[str]:
        return [task for finding in self._reported for task in (finding.task, finding.peer) if task]

    def holds(self) -> list[str]:
        return list(dict.fromkeys(self._reported.values()))

    # -- in words

    def _tell(self, finding: Hang, tasks: list[str], since: float, now: float) -> str:
        """One sentence for all `tasks` that wait in this way, for this peer, for this cause."""
        kind, _, peer, cause = finding
        who, waited = self._watched.who(tasks), f"{now - since:.0f} s"
        first, have = self._tasks[tasks[0]], agreeing(len(tasks), "has", "have")
        if kind == "stopped":
            return f"{who} is stopped (state T): kill -CONT {cause} on {first.place.host} lets it go on"
        if kind == "disk":
            where = f", in {cause}" if cause else ""
            return f"{who} {have} waited in the kernel for {waited} (state D{where}: a disk? NFS?)"
        if kind == "shut":
            look = first.look
            output = (
                f"its last output was {look['quiet_s']:.0f} s ago" if look["log_bytes"] else "no output yet"
            )
            waiters = [
                name
                for name, task in self._tasks.items()
                if task.fresh(now) and tasks[0] in self._waits(name, task, now)
            ]
            wait = agreeing(len(waiters), "waits", "wait")
            return f"{who} has not opened its port for {waited} ({output}); {names_of(waiters)} {wait} for it"
        if kind == "idle":
            what = f"{have} done nothing for {waited} and {have} no connection to {peer}"
            return f"{who} {what}, which has ended {cause}; {SERVES_OR_LATE}"
        if kind == "ended":
            return f"{who} {have} waited {waited} for {peer}, which has ended {cause}; {TOO_LATE}"
        there = f"{peer} at {endpoint(self._tasks[peer].place)}"
        if kind == "mute":
            return f"{who} {have} waited {waited} for {there}, which takes connections but does not answer"
        return f"{who} {have} waited {waited} for {there}: {cause}"

    def _tell_over(self, kind: str, tasks: list[str], peer: str) -> str:
        who, one = self._watched.who(tasks), len(tasks) == 1
        if kind == "shut":
            return f"{who} has opened its port" if one else f"{who} have opened their ports"
        if kind in ("stopped", "disk", "idle"):
            return f"{who} {'goes' if one else 'go'} on"
        return f"{who} {'waits' if one else 'wait'} no longer for {peer}"
