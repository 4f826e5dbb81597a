"""Looks of tasks that have GPUs, as agents send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tflaunch.diagnosis.rule import Place, Rule, Watched
from tflaunch.diagnosis.thresholds import Thresholds

LOOK_S = Thresholds.look_s


def gpu(use: int | None = 98, power: float | None = 620.0, **facts: Any) -> dict[str, Any]:
    """A GPU of an H100's kind."""
    return {
        **{"use": use, "power_w": power, "limit_w": 700.0, "memory_bytes": 70 << 30, "pids": [4711]},
        **{"error": "", **facts},
    }


class Looks:
    """A run of so many workers, each with a GPU on a host of its own; the agents look every LOOK_S."""

    def __init__(self, rule: Callable[[Watched], Rule], workers: int = 2, **settings: Any) -> None:
        self.tasks = [f"worker/{n}" for n in range(workers)]
        places = {task: Place(f"gpu{n:02}", f"10.0.0.{n}", 2222) for n, task in enumerate(self.tasks)}
        gpus = {task: [f"GPU-{n}"] for n, task in enumerate(self.tasks)}
        self.watched = Watched(places, gpus=gpus, **settings)
        self.rule = rule(self.watched)
        self.now = 1000.0
        self.looks = {task: self.look() for task in self.tasks}
        self.gpus = {task: gpu() for task in self.tasks}
        self.cores = dict.fromkeys(self.tasks, 1.0)  # that each task uses
        self.bytes_s = dict.fromkeys(self.tasks, 10_000_000)  # that each task moves
        self.fabrics: dict[str, list[int] | None] = {}
        self.heard: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.stops: list[Any] = []

    @staticmethod
    def look(**facts: Any) -> dict[str, Any]:
        return {
            **{"listens": True, "connected": [], "calling": [], "waits_in": "", "quiet_s": 1.0},
            **{"processes": [[4711, "python3", "S"]], "cpu_s": 3.0, "log_bytes": 100, "says": "step 7"},
            **{"flows": [["10.0.0.9", 2222, 40000, 0, 0, 0, 0, 0.2]], "signs": {}},
            **facts,
        }

    def sign(self, name: str, count: int, line: str, *tasks: str) -> None:
        """From now on that sign is in their looks."""
        for task in tasks or self.tasks:
            self.looks[task]["signs"][name] = [count, line, 1.0]

    def see(self, tasks: Sequence[str], **facts: Any) -> None:
        """From now on these GPUs are like this."""
        for task in tasks:
            self.gpus[task] = gpu(**facts)

    def on(self, seconds: float, quiet: bool = False) -> list[str]:
        """Go on; returns the sentences of that time."""
        before = len(self.heard)
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            for task, look in self.looks.items():
                look["cpu_s"] += self.cores[task] * LOOK_S
                look["quiet_s"] = look["quiet_s"] + LOOK_S if quiet else 1.0
                for flow in look["flows"] or ():
                    flow[3] += int(self.bytes_s[task] * LOOK_S)
                self.rule.looked(self.watched.places[task].host, self._message(task, look), self.now)
            self.asked += [(host, fields) for host, type, fields in self.rule.questions(self.now)]
            self.heard += [each.text for each in self.rule.sentences(self.now, frozenset())]
            stop = self.rule.stop(self.now)
            if stop is not None:
                self.stops.append(stop)
        return self.heard[before:]

    def _message(self, task: str, look: Mapping[str, Any]) -> dict[str, Any]:
        host = self.watched.places[task].host
        message: dict[str, Any] = {"tasks": {task: {**look, "flows": [*map(list, look["flows"] or ())]}}}
        if look["flows"] is None:
            message["tasks"][task]["flows"] = None
        if task in self.gpus:
            message["gpus"] = {self.watched.gpus[task][0]: self.gpus[task]}
            message["gpus_age_s"] = 1.0
        if host in self.fabrics:
            message["fabrics"] = self.fabrics[host]
        return message
