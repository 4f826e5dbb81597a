"""Nothing moves, or one task does not while its peers do: who keeps the others waiting, and where it stands.

    worker/1 on b has done nothing for 65 s: it is at mwms.py:26 in batches() and sleeps; worker/0, worker/2 wait for
    it at mwms.py:40 in train()

A trainer stands still when it uses next to no processor time and moves no bytes but heartbeats (movement.py).  When
all do, or one while its peers move bytes, the agents are asked what its threads wait in and, unless the user forbids
it, for its stacks (standing.py); no task is ended for that.  verdict.py names the odd one out.  A task that computes
while all others wait for it is told only after long, for that may be an evaluation.

What healthy runs do is no standstill: reading and writing files, downloads, waiting of some while others compute.
Tasks that go on writing log lines, runs with a single task, and tasks that all sleep in the program's own code are
given more time.

With GPUs a task that waits for its peers may spin, and neither what it computes nor its bytes need show.  Then more is
asked for: no task writes a line or moves a byte, the main threads of all but a few have not woken once, and two looks
at the stacks find each task at the same line.  Only a task counts as the odd one that uses no processor time and stands
outside what waits for peers, or whose GPUs NVML has seen idle.

Horovod's ranks talk to each other while they wait.  So tasks of which no main thread has woken once, and no line was
written, are looked at in the same way, twice; only who sleeps, or waits for something else than its peers, is told.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.inspections import TWICE_S, Inspections
from tflaunch.diagnosis.movement import Movement
from tflaunch.diagnosis.rule import Rule, Sentence, names_of, trains
from tflaunch.diagnosis.standstills import Standstills
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.diagnosis.standing import Stand
    from tflaunch.diagnosis.standstills import Case
    from tflaunch.diagnosis.thresholds import Thresholds
    from tflaunch.diagnosis.verdict import Seen, Verdict
    from tflaunch.protocol.outcome import TaskExit

NO_TRAINERS = ("ps", "evaluator")
MORE = 1.5  # so much more processor time than others is no noise


class Told(NamedTuple):
    """What was told of a standstill."""

    tasks: tuple[str, ...]  # that it is over for when one of them moves
    kind: str  # still, busy (they compute: it is over when bytes move), talk (it is over when a main thread wakes)
    text: str


class Stillness(Rule):
    """Takes looks, exits and inspections, and tells who does nothing, where it stands, and who waits for it."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        self._moves = {task: Movement(self._limits, place.port) for task, place in watched.places.items()}
        trainers = [task for task in watched.places if trains(task)]
        if not trainers:
            trainers = [task for task in watched.places if task.partition("/")[0] not in NO_TRAINERS]
        self._trainers = [] if watched.serves else trainers
        self._standstills = Standstills(watched, self._moves)
        self._cluster = {
            (address, place.port)
            for place in watched.places.values()
            if place.port is not None
            for address in (place.address, *watched.names.get(place.address, ()))
        }
        self._ended: dict[str, str] = {}  # task -> how it has ended
        self._inspections = Inspections(self._limits)
        self._told: list[Told] = []
        self._news = False  # something has come since the cases were judged last

    # -- what happens

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        self._news = True
        for name, look in fields["tasks"].items():
            if name in self._moves and name not in self._ended:
                self._moves[name].seen(look, now, self._cluster)
                if self._watched.gpus.get(name):
                    self._standstills.note_gpus(
                        name, fields.get("gpus") or {}, now - fields.get("gpus_age_s", 0.0)
                    )

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type == "inspected":
            self._news = True
            for name, processes in fields["tasks"].items():
                if name in self._moves and self._watched.places[name].host == host:
                    self._inspections.take(name, processes, now)

    def exited(self, exit: TaskExit, now: float) -> None:
        self._gone(str(exit.task), f"with {exit.exit_code}")

    def lost(self, task: str, now: float) -> None:
        self._gone(task, "with its host")

    def _gone(self, task: str, how: str) -> None:
        if task in self._moves:
            self._ended.setdefault(task, how)  # it may have ended before its host was lost
            self._told = [told for told in self._told if task not in told.tasks]

    def started(self, task: str, now: float) -> None:
        if task in self._moves:
            self._moves[task] = Movement(self._limits, self._watched.places[task].port)
            self._ended.pop(task, None)
            self._inspections.started(task)
            self._standstills.started(task)
            self._told = [told for told in self._told if task not in told.tasks]

    def _living(self) -> list[str]:
        return [task for task in self._trainers if task not in self._ended]

    # -- questions

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        wanted: dict[tuple[str, bool], list[str]] = {}
        for case in self._standstills.cases(self._living(), now):
            twice = self._twice(case)
            early_s = min(TWICE_S + self._limits.look_s, case.patience_s / 2) if twice else 0.0
            if now - case.since < case.patience_s - early_s or self._known(case):
                continue
            for task in case.tasks:
                due = self._inspections.due(task, case.since, twice=twice, now=now)
                if due is None:
                    continue
                stacks = self._watched.stacks and due
                if stacks:
                    self._inspections.stacks_at[task] = now
                wanted.setdefault((self._watched.places[task].host, stacks), []).append(task)
        # On demand: what the agent has from an earlier question is no answer to this one.
        return [
            (host, "inspect", {"tasks": tasks, "stacks": stacks, **({"on_demand": True} if stacks else {})})
            for (host, stacks), tasks in wanted.items()
        ]

    def _known(self, case: Case) -> bool:
        """Whether the user knows of it."""
        return any(set(told.tasks) & set(case.tasks) for told in self._told)

    # -- what it means

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        if not self._news:  # judging takes its time, and this is asked often
            return []
        self._news = False
        said = self._over(now)
        for case in self._standstills.cases(self._living(), now):
            if now - case.since < case.patience_s or self._known(case):
                continue
            verdict = self._judged(case, now)
            if verdict is None or not explained.isdisjoint(verdict.culprits or case.tasks):
                continue
            limits = self._limits
            if self._twice(case) and not self._proven(case, verdict, now):
                continue
            loops = [self._moves[task].loops(2 * limits.look_s) for task in case.tasks]
            if case.kind == "all" and all(loops):
                # Slow steps, or a pause: each is in a loop of its own.
                moves = [self._moves[task] for task in case.tasks]
                busy = any(each.chatty(case.since) or each.trickles(6 * limits.look_s) for each in moves)
                if busy and not verdict.certain:
                    continue
                verdict = verdict._replace(sure=verdict.certain)
            elif case.kind == "all" and len(case.tasks) == 1 == len(self._watched.places):
                verdict = verdict._replace(sure=verdict.certain)
            if not verdict.sure:
                patience_s = limits.busy_deep_s if case.kind == "busy" else self._pause(case)
                if now - case.since < patience_s:
                    continue
            tasks = verdict.culprits or case.tasks
            computes = case.kind in ("busy", "gpus") and not any(map(self._still, tasks))
            kind = "talk" if case.kind == "talk" else "busy" if computes else "still"
            self._told.append(Told(tasks, kind, verdict.text))
            said.append(Sentence(verdict.text, False))
        return said

    def _twice(self, case: Case) -> bool:
        """Whether one look at the stacks is not enough: processor time and bytes show nothing."""
        return case.kind == "talk" or self._standstills.have_gpus(case.tasks)

    def _still(self, task: str) -> bool:
        return self._moves[task].still_since is not None

    def _proven(self, case: Case, verdict: Verdict, now: float) -> bool:
        """Whether what was seen cannot be a healthy run: two looks that agree, and the odd one waits for no peer."""
        from tflaunch.diagnosis.standing import FOR_PEERS, PAUSES

        for task in case.tasks:
            if not self._inspections.agree(task, case.since):
                return False
        if case.kind == "talk":
            # What the others use as they wait is what talking takes; an odd one that uses more computes.
            most = max((self._moves[task].cores for task in {*case.tasks} - {*verdict.culprits}), default=0.0)
            return bool(verdict.culprits) and all(
                self._inspections.where(task)[0] in PAUSES
                and self._moves[task].cores <= MORE * most + self._limits.still_cores
                for task in verdict.culprits
            )
        for task in verdict.culprits or case.tasks:
            waits_for_peers = self._inspections.where(task)[0] in FOR_PEERS
            if (waits_for_peers or not self._still(task)) and not self._standstills.gpus_rest(task, now):
                return False
        if all(map(self._still, verdict.culprits or case.tasks)):
            return True
        return now - case.since >= (self._limits.busy_s if verdict.sure else self._limits.busy_deep_s)

    def _pause(self, case: Case) -> float:
        """How long tasks may do nothing that seem to have chosen that."""
        met = any(self._moves[task].peers_moved_at is not None for task in case.tasks)
        # Tasks that have never met wait for each other somewhere else: for files, as a rule.
        return self._limits.lone_s if met or len(case.tasks) == 1 else self._limits.chatty_s

    def _over(self, now: float) -> list[Sentence]:
        said = []
        for told in list(self._told):
            moved = [
                task
                for task in told.tasks
                if self._since(told.kind, task) is None and now - self._moves[task].at <= self._limits.fresh_s
            ]
            if moved:
                self._told.remove(told)
                one = len(told.tasks) == 1
                who = self._watched.who(told.tasks) if one else names_of(told.tasks)
                said.append(Sentence(f"{who} {'goes' if one else 'go'} on", True))
        return said

    def _since(self, kind: str, task: str) -> float | None:
        """Since when a task of which that was told does what was told."""
        moves = self._moves[task]
        return {"still": moves.still_since, "busy": moves.mute_since, "talk": moves.rested_since}[kind]

    def _judged(self, case: Case, now: float) -> Verdict | None:
        from tflaunch.diagnosis.verdict import Court

        if self._inspections.awaited(case.tasks, case.since, now):
            return None
        seen = {task: self._seen(task, case, now) for task in case.tasks}
        ended = {task: self._ended[task] for task in self._trainers if task in self._ended}
        met = any(each.trickled_at is not None for each in self._moves.values())
        court = Court(self._watched, seen, ended, now - case.since, met)
        return court.of_one(case.tasks[0]) if case.kind == "one" else court.of_all()

    def _seen(self, task: str, case: Case, now: float) -> Seen:
        from tflaunch.diagnosis.standing import (
            FOR_PEERS,
            child_of,
            forked_after_tensorflow,
            from_the_trainer_on,
            stand_of,
        )
        from tflaunch.diagnosis.verdict import Seen

        movement = self._moves[task]
        look = movement.look
        at, processes = self._inspections.last(task)
        if at < case.since or not processes:
            processes = [_as_process(look)]
        processes = from_the_trainer_on([_without_old_stacks(each, at - case.since) for each in processes])
        stand = self._inspections.remembered(task, stand_of(processes))
        if case.kind == "talk":
            pass  # what it computes, and says, is another thread's
        elif movement.still_since is None:
            spins = case.kind == "gpus" and stand.place and stand.kind in FOR_PEERS
            stand = stand if spins or stand.kind == "native" else stand._replace(kind="busy")
        elif stand.kind in ("busy", "native"):
            stand = stand._replace(kind="")
        says = look["says"] if movement.chatty(case.since) else ""
        return Seen(
            stand,
            movement.cores,
            look["quiet_s"],
            says,
            _strangers(look, self._watched, self._cluster),
            forked_after_tensorflow(processes),
            child_of(processes),
            bool(look.get("listens_on")),
        )

    def explains(self, now: float) -> list[str]:
        return [task for told in self._told for task in told.tasks]

    def holds(self) -> list[str]:
        return [told.text for told in self._told]

    def blind(self) -> list[str]:
        said = []
        hidden = [
            task
            for task in self._trainers
            if task not in self._ended and self._moves[task].look and not self._moves[task].sees_bytes
        ]
        if hidden:
            said.append(
                f"whether {_stand_still(hidden)}: the kernel there does not tell how many bytes a connection"
                " has carried"
            )
        return said

    # -- memory

    def memory(self) -> dict[str, Any]:
        return {
            "ended": self._ended,
            "stacks_at": self._inspections.stacks_at,
            "servers": sorted(self._inspections.servers),
            "since": {
                task: [each.still_since, each.mute_since, each.busy_since]
                for task, each in self._moves.items()
            },
            "told": [[list(told.tasks), told.kind, told.text] for told in self._told],
        }

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_number, a_text, check, of_the_run, one_of, or_null

        a_task, since = of_the_run("a task", self._moves), or_null(a_number)
        check(
            {
                "ended": Each(a_task, a_text),
                "stacks_at": Each(a_task, a_number),
                "servers": [a_task],
                "since": Each(a_task, (since, since, since)),
                "told": [([a_task], one_of("still", "busy", "talk"), a_text)],
            },
            memory,
        )
        self._ended = dict(memory["ended"])
        self._inspections.stacks_at = dict(memory["stacks_at"])
        self._inspections.servers = set(memory["servers"])
        for task, (still, mute, busy) in memory["since"].items():
            each = self._moves[task]
            each.still_since, each.mute_since, each.busy_since = still, mute, busy
        self._told = [Told(tuple(tasks), kind, text) for tasks, kind, text in memory["told"]]


def _strangers(
    look: Mapping[str, Any], watched: Watched, cluster: AbstractSet[tuple[str, int]]
) -> tuple[str, ...]:
    """The endpoints outside the run that a task has connected to, or calls."""
    places = watched.places.values()
    ports = {place.port for place in places}
    found = [
        f"{address}:{port}" if ":" not in address else f"[{address}]:{port}"
        for address, port in [*look["calling"], *(look["connected"] or ())]
        if (address, port) not in cluster and port not in ports
    ]
    return tuple(dict.fromkeys(found))


def _stand_still(tasks: Sequence[str]) -> str:
    return f"{names_of(tasks)} stand{agreeing(len(tasks), 's', '')} still"


def _without_old_stacks(process: Mapping[str, Any], most_s: float) -> Mapping[str, Any]:
    """The process without stacks of a time at which the task may still have moved."""
    return process if process.get("age_s", 0.0) <= most_s else {**process, "stacks": None}


def _as_process(look: Mapping[str, Any]) -> dict[str, Any]:
    """What a look shows of the program, in the shape of an inspection."""
    pid, name, state = look["processes"][0] if look["processes"] else (0, "", "S")
    threads = [[pid, name, state, look["waits_in"], 0.0]]
    return {"pid": pid, "name": name, "threads": threads, "stacks": None, "why_none": ""}
