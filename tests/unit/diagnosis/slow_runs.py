"""Runs that go on, look by look, as the agents of their hosts would tell of them."""

from __future__ import annotations

from typing import Any

from tflaunch.agent.tasks.look import PACES
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit

LOOK_S = 5.0
PORT = 2222
LONG_QUEUE = 200_000


class Link:
    """A connection from one task to another's port, as both ends see it."""

    def __init__(self, caller: str, called: str, number: int) -> None:
        self.caller, self.called, self.own_port = caller, called, 40000 + number
        self.bytes_s = 500_000.0
        self.unanswered = 0.0  # share of the looks that see no answer yet
        self.full = {caller: 0.0, called: 0.0}  # share of the looks at that end that see a long send queue
        self.rtt_ms, self.least_rtt_ms = 20.0, 0.1
        self.again = 0.0  # share of the segments
        self.total, self.segments, self.resent = 1_000_000.0, 1000.0, 0.0

    def go(self) -> None:
        self.total += self.bytes_s * LOOK_S
        self.segments += self.bytes_s * LOOK_S / 1400
        self.resent += self.bytes_s * LOOK_S / 1400 * self.again


class Run:
    """A run whose agents are asked every LOOK_S; each task has a host of its own unless `hosts` says otherwise."""

    def __init__(self, *tasks: str, hosts: dict[str, str] | None = None, **settings: Any) -> None:
        given = hosts or {}
        self.places = {
            task: (given.get(task, f"host{number + 1}"), f"10.0.0.{number + 1}", PORT)
            for number, task in enumerate(tasks)
        }
        self.settings = settings
        self.watchdog = Watchdog(self.places, {}, {}, settings)
        self.now = 1000.0
        self.watchdog.begin(self.now)
        self.looks = 0
        self.living = list(tasks)
        self.cores = dict.fromkeys(tasks, 0.5)
        self.waiting = dict.fromkeys(tasks, 0.02)
        self.held = dict.fromkeys(tasks, 0.0)
        self.steps_s = dict.fromkeys(tasks, 0.0)
        self.facts: dict[str, dict[str, Any]] = {task: {"cores": 4.0} for task in tasks}
        self.in_disk = dict.fromkeys(tasks, 0.0)  # share of the looks
        self.used = {task: {"cpu_s": 9.0, "waited_s": 1.0, "held_s": 0.0, "step": 0.0} for task in tasks}
        self.machines: dict[str, dict[str, Any]] = {}  # host -> what its agent says of it
        self.gpus: dict[str, dict[str, Any]] = {}
        self.links: list[Link] = []
        # task -> the stacks of its main thread, one after the other at each question; each with its wait channel
        self.stacks: dict[str, list[tuple[list[list[Any]], str]]] = {}
        # task -> the stacks of its other threads, each with its wait channel, the same at each question
        self.others: dict[str, list[tuple[list[list[Any]], str]]] = {}
        self.disk: dict[str, tuple[int, int]] = {}  # task -> bytes, threads that wait
        self.asked = dict.fromkeys(tasks, 0)  # how often for its stacks
        self.signals = True  # the last question for stacks allows them

    def link(self, *pairs: tuple[str, str]) -> Run:
        self.links += [Link(*pair, number) for number, pair in enumerate(pairs, len(self.links))]
        return self

    def between(self, caller: str, called: str) -> Link:
        return next(each for each in self.links if (each.caller, each.called) == (caller, called))

    def of(self, task: str) -> list[Link]:
        return [each for each in self.links if task in (each.caller, each.called)]

    def speed(self, task: str, bytes_s: float) -> None:
        for each in self.of(task):
            each.bytes_s = bytes_s

    def end(self, task: str) -> None:
        self.living.remove(task)
        self.links = [each for each in self.links if task not in (each.caller, each.called)]
        self.watchdog.happened(TaskExit(TaskId.parse(task), self.places[task][0], 0, None, 1.0), self.now)

    def on(self, seconds: float) -> list[str]:
        """Let time go on; what is said meanwhile."""
        said = []
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            self.looks += 1
            for each in self.links:
                each.go()
            for host in sorted({place[0] for place in self.places.values()}):
                tasks = {task: self._look(task) for task in self.living if self.places[task][0] == host}
                more: dict[str, Any] = {"machine": self.machines[host]} if host in self.machines else {}
                if self.gpus:
                    more["gpus"], more["gpus_age_s"] = self.gpus, 0.1
                self.watchdog.said(host, "looked", {"tasks": tasks, **more}, self.now)
            hosts = [place[0] for place in self.places.values()]
            for host, type, fields in self.watchdog.questions(hosts, self.now):
                if type == "inspect":
                    self.signals = fields.get("signals", True)
                    told = {task: [self._inspected(task)] for task in fields["tasks"]}
                    self.watchdog.said(host, "inspected", {"tasks": told, "asker": fields["asker"]}, self.now)
            said += [each.text for each in self.watchdog.sentences(self.now)]
        return said

    def _inspected(self, task: str) -> dict[str, Any]:
        at, self.asked[task] = self.asked[task], self.asked[task] + 1
        found = self.stacks.get(task, [])
        frames, channel = found[at % len(found)] if found else ([], "")
        all_found = [(frames, channel), *self.others.get(task, ())]
        stacks = [{"main": not number, "frames": each} for number, (each, _) in enumerate(all_found)]
        threads = [
            [4711 + number, "python3", {"": "R", "__iomap_dio_rw": "D"}.get(each, "S"), each, 1.0]
            for number, (_, each) in enumerate(all_found)
        ]
        return {
            "pid": 4711,
            "name": "python3",
            "threads": threads,
            "stacks": stacks if found else None,
            "why_none": "",
            "age_s": 0.1,
        }

    def _now(self, share: float) -> bool:
        """True in that share of the looks, spread evenly."""
        return int(self.looks * share) > int((self.looks - 1) * share)

    def _look(self, task: str) -> dict[str, Any]:
        used = self.used[task]
        used["cpu_s"] += self.cores[task] * LOOK_S
        used["waited_s"] += self.waiting[task] * LOOK_S
        used["held_s"] += self.held[task] * LOOK_S
        used["step"] += self.steps_s[task] * LOOK_S
        flows, paces, least = [], [], []
        for each in self.of(task):
            calls = each.caller == task
            peer = self.places[each.called if calls else each.caller]
            ports = (PORT, each.own_port) if calls else (each.own_port, PORT)
            queued = LONG_QUEUE if self._now(each.full[task]) else 0
            half = int(each.total / 2)
            flows.append([peer[1], *ports, half, half, queued, 0, each.rtt_ms])
            least.append(each.least_rtt_ms)
            waits = calls and self._now(each.unanswered)
            paces.append([int(each.resent), int(each.segments), 5 if waits else 9, 9])
        look = {
            **{"listens": True, "connected": [], "calling": [], "waits_in": "", "quiet_s": 1.0, "signs": {}},
            **{"processes": [[4711, "python3", "D" if self._now(self.in_disk[task]) else "S"]]},
            **{"log_bytes": self.looks, "says": "step 7"},
            **{
                "flows": flows,
                "paces": paces[:PACES],
                "least_rtts": least[:PACES],
                "io": 0,
                "turns": 50 * self.looks,
            },
            **{"cpu_s": used["cpu_s"], "waited_s": used["waited_s"], "held_s": used["held_s"]},
            **{"disk": self.disk.get(task, (0, 0))},
            **self.facts[task],
        }
        if self.steps_s[task]:
            look["step"] = int(used["step"])
        return look


WORKERS = ("worker/0", "worker/1", "worker/2")


def asynchronous(*workers: str, **settings: Any) -> Run:
    """Workers of a ps, which calls them, too."""
    names = workers or WORKERS
    run = Run("ps/0", *names, **settings)
    return run.link(*(("ps/0", name) for name in names), *((name, "ps/0") for name in names))


def mirrored() -> Run:
    """Three workers in a ring, in which each calls the next one."""
    return Run(*WORKERS).link(("worker/2", "worker/1"), ("worker/0", "worker/2"), ("worker/1", "worker/0"))


def one(said: list[str]) -> str:
    [text] = said
    return text
