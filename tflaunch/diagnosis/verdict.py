"""Of tasks that stand still: for which of them the others wait, and that in words.

The odd one out is the task that does not stand where the others do.  Its peers wait for it within TensorFlow: in an
all-reduce, in session.run, at a barrier; it sleeps, waits for a file or a server, computes, or is at another line.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.rule import names_of, trains
from tflaunch.diagnosis.standing import FOR_PEERS, OWN_THREADS
from tflaunch.text.numbers import agreeing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.diagnosis.standing import Stand

LINE_SHOWN = 120  # characters of a log line

SAME_STEPS = "give all tasks the same number of steps (an even share of the data, or .repeat())"
MEETING = "has each a rank of its own, and all the same address of rank 0, as tflaunch tells them?"
DEADLOCK = "threads of its own wait for each other (a deadlock, or a producer that has ended)"
SPAWN = (
    "a process that was forked after TensorFlow had started cannot use TensorFlow: start it before, or with"
    ' multiprocessing.set_start_method("spawn")'
)
CHIEFLESS = (
    "for the program none of them is the chief; one must be: is_chief=(task_index == 0), with an init_op"
)
COORDINATOR = (
    "add --chief --done chief, where the program's coordinator is the chief (ParameterServerStrategy); where a worker"
    " should train, look whether it is told that it is a ps"
)
REPLICAS = (
    "with SyncReplicasOptimizer a step needs replicas_to_aggregate gradients: no more than there are workers that"
    " still run, and every worker needs the same number of steps"
)
NEXT = {  # what to do, or a question, which ends the sentence
    "dns": "is the name server of this host reachable (/etc/resolv.conf)?",
    "dial": "is that server up, and does a firewall let this host reach it?",
    "net": "set a time limit for the connection",
    "file_lock": "`lslocks` on that host shows which process holds it",
    "fifo": "who should open its other end?",
    "pipe": "a task has no terminal: take the answer from an argument",
    "input": "a task has no terminal: take the answer from an argument",
    "data": "its files, or the tf.data service",
    "queue": DEADLOCK,
    "lock": DEADLOCK,
    "event": DEADLOCK,
    "join": DEADLOCK,
    "disk": "is the file server up?",
}


CERTAIN = ("file_lock", "fifo", "dns", "dial", "lock")


class Seen(NamedTuple):
    """What is known of a task in a standstill."""

    stand: Stand
    cores: float
    quiet_s: float
    says: str  # the last line of its log, "" when it is not worth quoting
    strangers: tuple[str, ...]  # endpoints outside the run that it is connected to, or calls
    forked: bool = False  # it waits for a process that was forked after TensorFlow had started
    child: str = ""  # the process that it waits for: `pid 4712, sleep`
    listens: bool = False  # it has a port open


class Verdict(NamedTuple):
    """Which tasks keep the others waiting, and the sentence about it."""

    culprits: tuple[str, ...]  # empty: all stand alike
    text: str
    sure: bool  # False: they may do so on purpose, and more patience is in place
    certain: bool = False  # no program does so on purpose


class Court:
    """Judges one standstill of a run."""

    def __init__(
        self,
        watched: Watched,
        seen: Mapping[str, Seen],
        ended: Mapping[str, str],
        waited_s: float,
        met: bool,
    ) -> None:
        """`met`: tasks of the run have connections to each other."""
        self._watched = watched
        self._seen = dict(sorted(seen.items(), key=lambda item: _order(item[0])))
        self._ended = ended  # trainers that have ended, and how: `with 0`
        self._waited = f"{waited_s:.0f} s"
        self._met = met

    def of_all(self) -> Verdict | None:
        """When all trainers stand still, or wait for a few that compute."""
        working = {name: seen for name, seen in self._seen.items() if seen.stand.kind != "serves"}
        if not working:
            return self._all_serve()
        if len(self._watched.places) == 1 and all(map(_is_server, working.values())):
            return None
        waiting = {name for name, seen in working.items() if seen.stand.kind in FOR_PEERS}
        culprits = [name for name in working if name not in waiting]
        chiefless = [name for name in waiting if working[name].stand.kind == "chief"]
        if chiefless and not culprits and self._watched.chief in waiting - set(chiefless):
            culprits = [self._watched.chief]
        if not culprits:
            return self._all_wait(working)
        if (
            len(working) == len(culprits) == len(self._seen) and not self._met
        ):  # each may work for itself, and pause
            verdict = self._none_waits(working) if len(working) > 1 else self._odd(culprits, ())
            return verdict._replace(sure=verdict.certain)
        if len(working) > 1 and len(culprits) == len(working):
            return self._none_waits(working)
        return self._odd(culprits, sorted(set(self._seen) - set(culprits), key=_order))

    def _all_serve(self) -> Verdict | None:
        """Servers that nobody asks for anything: the task that should is not there, or a server itself."""
        tasks = list(self._watched.places)
        alone = all(trains(task) or task.startswith(("ps/", "evaluator/")) for task in tasks)
        if self._watched.endless or len(tasks) == 1 or not alone:
            return None  # a server that others use; a task of the user's own may give them work
        who = f"every task is a server ({names_of(sorted(tasks, key=_order))})"
        text = f"{who} and has waited {self._waited} for work; none is the coordinator, which gives it: "
        chief = next((task for task in tasks if task in ("chief/0", "master/0")), "")
        text += f"{chief} must be it, and not call server.join()" if chief else COORDINATOR
        # Once somebody from outside has connected, he may come again.
        sure = not self._met and not any(seen.strangers for seen in self._seen.values())
        return Verdict((), text, sure)

    def of_one(self, name: str) -> Verdict | None:
        """When one task stands still while its peers go on."""
        seen = self._seen[name]
        if seen.stand.kind == "serves":
            return None
        text = f"{self._watched.who([name])} has done nothing for {self._waited} while its peers go on: "
        # One that just waits may serve.
        return Verdict((name,), text + self._it_is(seen) + self._question(seen), seen.stand.kind != "wait")

    def _odd(self, culprits: Sequence[str], others: Sequence[str]) -> Verdict:
        if len(culprits) > 1 and self._majority(culprits):
            common = self._majority(culprits)
            odd = [name for name in culprits if self._key(name) != common]
            if odd:
                others = sorted({*others, *culprits} - set(odd), key=_order)
                culprits = odd
        first = culprits[0]
        seen = self._seen[first]
        busy = seen.stand.kind in ("busy", "native")
        who = self._watched.who(culprits[:1]) if len(culprits) == 1 else names_of(culprits)
        have = agreeing(len(culprits), "has", "have")
        if busy:
            text = f"{who} {have} used {seen.cores:.1f} cores and moved no byte for {self._waited}: "
        else:
            text = f"{who} {have} done nothing for {self._waited}: "
        text += self._it_is(seen, len(culprits))
        if others:
            wait = agreeing(len(others), "waits", "wait")
            text += f"; {names_of(others)} {wait} for {agreeing(len(culprits), 'it', 'them')}"
            text += self._at(others)
        text += self._question(seen)
        unknown = not seen.stand.place and seen.stand.kind != "native"
        sure = not (busy and (seen.stand.deep or unknown))
        certain = all(self._seen[name].forked or self._seen[name].stand.kind in CERTAIN for name in culprits)
        return Verdict(tuple(culprits), text, sure, certain)

    def _all_wait(self, working: Mapping[str, Seen]) -> Verdict:
        places: dict[str, list[str]] = {}
        for name, seen in working.items():
            places.setdefault(seen.stand.place, []).append(name)
        kinds = {seen.stand.kind for seen in working.values()}
        if len(places) > 1:
            return self._two_lines(places)
        place = next(iter(places))
        names = list(working)
        unknown = " (tflaunch stacks shows where)" if self._watched.stacks else ""
        where = f" at {place}" if place else unknown
        if len(names) == 1:
            what = working[names[0]].stand.words
            text = f"{self._watched.who(names)} has done nothing for {self._waited}: it {what}{where}"
        else:
            what = {
                "op": "wait in the same operation of TensorFlow (an all-reduce?)",
                "session": "wait in session.run",
                "collective": "wait in a collective (an all-reduce?)",
                "meet": "still wait to meet each other",
                "chief": "wait for a chief to initialise the variables",
            }.get(next(iter(kinds)), "wait for each other" if len(kinds) > 1 else "wait")
            who = f"all {len(names)} tasks ({names_of(names)})"
            text = f"{who} have done nothing for {self._waited}: they {what}{where}"
        if self._ended:
            return Verdict((), text + self._ends(), True, kinds == {"chief"})
        if kinds == {"chief"}:
            return Verdict((), f"{text}: {CHIEFLESS}", True, True)
        if kinds == {"session"}:
            ps = [name for name in self._watched.places if name.startswith("ps/")]
            text += f"; {REPLICAS}" if ps else ""
        elif kinds == {"coordinator"}:
            text += "; a worker or ps does not answer: what do their logs say?"
        elif kinds == {"meet"} and len(names) > 1:
            text += f"; {MEETING}"
        elif len(names) > 1:
            text += f"; {SAME_STEPS}; or a collective of an earlier step still misses a task"
        return Verdict((), text, True)

    def _two_lines(self, places: Mapping[str, Sequence[str]]) -> Verdict:
        """All wait within TensorFlow, but not for the same: say each line."""
        ranked = sorted(places.items(), key=lambda item: (len(item[1]), _order(item[1][0])))
        if len(ranked) == 2 and len(ranked[0][1]) == len(ranked[1][1]):
            # Of two tasks neither is the odd one: say both alike.
            culprits: tuple[str, ...] = ()
        else:
            culprits = tuple(ranked[0][1])
        parts = [
            f"{names_of(names)} {agreeing(len(names), 'is', 'are')} at {place or 'an unknown place'}"
            f" ({self._seen[names[0]].stand.words})"
            for place, names in ranked[:3]
        ]
        if len(ranked) > 3:
            parts.append(f"others at {len(ranked) - 3} more places")
        text = (
            f"nothing has moved for {self._waited}: the tasks wait for each other at different lines: "
            + "; ".join(parts)
            + f": {SAME_STEPS}, and have all of them call the same collectives in the same order"
        )
        return Verdict(culprits, text + self._ends(), True)

    def _none_waits(self, working: Mapping[str, Seen]) -> Verdict:
        """Nobody stands within TensorFlow: the one that differs, or all at the same place of their own."""
        names = list(working)
        common = self._majority(names)
        odd = [name for name in names if self._key(name) != common] if common else []
        if odd:
            return self._odd(odd, [name for name in names if name not in odd])
        keys = {self._key(name) for name in names}
        if len(keys) > 1:  # two tasks at two places
            loud = [name for name in names if working[name].stand.kind not in ("sleep", *OWN_THREADS)]
            if len(loud) == 1:
                return self._odd(loud, [name for name in names if name not in loud])
            parts = "; ".join(f"{name} {self._in_short(working[name])}" for name in names[:4])
            return Verdict((), f"nothing has moved for {self._waited}: {parts}{self._ends()}", True)
        seen = working[names[0]]
        text = (
            f"all {len(names)} tasks ({names_of(names)}) have done nothing for {self._waited}: "
            + self._it_is(seen, len(names))
        )
        if seen.stand.kind == "sleep":
            text += ": do they wait for a file? Each host has its own disks, unless they share a directory"
        return Verdict((), text + self._ends() + self._question(seen), seen.stand.kind != "sleep")

    def _key(self, name: str) -> tuple[str, str]:
        stand = self._seen[name].stand
        return stand.kind, stand.place

    def _majority(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Where more than half of them stand."""
        keys = [self._key(name) for name in names]
        best = max(keys, key=keys.count)
        return best if keys.count(best) * 2 > len(keys) else None

    # -- in words

    def _it_is(self, seen: Seen, count: int = 1) -> str:
        stand = seen.stand
        it, place = ("it is", stand.place) if count == 1 else ("they are", stand.place)
        words = stand.words if count == 1 else _plural(stand.words)
        text = f"{it} at {place} and {words}" if place else f"{it.split()[0]} {words}"
        if not place and self._watched.stacks and stand.kind != "native":
            text += " (tflaunch stacks shows where)"
        if stand.kind in ("child", "children") and seen.child:
            text += f" ({seen.child})"
        if stand.kind in ("net", "poll", "dial", "dns") and seen.strangers:
            text += f" (connections to {names_of(seen.strangers)})"
        if seen.forked:
            text += f"; {SPAWN}"
        elif stand.kind in NEXT and not NEXT[stand.kind].endswith("?"):
            text += f"; {NEXT[stand.kind]}"
        if seen.says:
            text += f'; it goes on writing "{seen.says[:LINE_SHOWN]}"'
        return text

    @staticmethod
    def _question(seen: Seen) -> str:
        """What the user should find out: the end of the sentence, for it is a question."""
        text = "" if seen.forked else NEXT.get(seen.stand.kind, "")
        return f"; {text}" if text.endswith("?") else ""

    @staticmethod
    def _in_short(seen: Seen) -> str:
        place = f"is at {seen.stand.place} and " if seen.stand.place else ""
        return f"{place}{seen.stand.words}"

    def _at(self, names: Sequence[str]) -> str:
        stands = [self._seen[name].stand for name in names]
        places = {stand.place for stand in stands if stand.place and stand.kind != "serves"}
        return f" at {places.pop()}" if len(places) == 1 else ""

    def _ends(self) -> str:
        """What is said of the tasks that have ended."""
        if not self._ended:
            return ""
        names = sorted(self._ended, key=_order)
        have = agreeing(len(names), "has", "have")
        return (
            f"; {names_of(names)} {have} ended {self._ended[names[0]]} and no longer takes part: {SAME_STEPS}"
        )


def _is_server(seen: Seen) -> bool:
    """Whether it waits for somebody to call it: a notebook, TensorBoard, a program that serves a model."""
    return seen.listens and seen.stand.kind in ("accept", "poll")


def _plural(words: str) -> str:
    """`waits for a lock` -> `wait for a lock`."""
    verb, space, rest = words.partition(" ")
    return ("do" if verb == "does" else verb.rstrip("s")) + space + rest


def _order(task: str) -> tuple[str, int]:
    job, _, index = task.partition("/")
    return job, int(index) if index.isdigit() else 0
