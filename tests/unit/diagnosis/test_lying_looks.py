"""Hosts that lie: facts of the right types, with any values, in any order, never bring the watchdog down."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tflaunch.diagnosis.signs import SIGNS
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.fields import TEXT
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.messages import FROM_AGENT, check
from tflaunch.protocol.outcome import TaskExit
from tflaunch.protocol.wire import Message

PLACES = {
    "ps/0": ("a", "10.0.0.1", 2222),
    "worker/0": ("a", "10.0.0.1", 2223),
    "worker/1": ("b", "b.cluster", 2222),
    "worker/2": ("c", "10.0.0.3", 2222),
    "evaluator/0": ("c", "10.0.0.3", None),
}
WHOLE = [0, 1, 5, 2222, 4711, 2**31, 2**53 - 1]
NUMBERS = [0.0, 1.0, 5.0, -7.5, 1e-300, 9e14, -9e14]
TIMES = [0.0, 1e-300, 5.0, 9e14]
WORDS = [
    "S",
    "R",
    "T",
    "D",
    "",
    "\x1b[2J",
    "hrtimer_nanosleep",
    "futex_do_wait",
    "wait_woken",
    "python3",
    "\ud800",
]
LINES = [
    "",
    "\x1b[2J\u202e",
    "loss: nan " * 20,
    "Started server with target: grpc://10.0.0.1:2222",
    "Started server with target: grpc://:\u00b2\u00b2",
    "CreateSession still waiting for response from worker: /job:ps/replica:0/task:" + "9" * 5000,
    "Waiting for new checkpoint at /tmp/{x}%s",
    "UNAVAILABLE: failed to connect to all addresses; ipv4:10.0.0.1:99999999",
]
VERDICTS = ["refused", "silent", "no route", "stranger", "narrow", "no name", "", "\x1b[2J"]
FUNCTIONS = ["f" * 60000, "f", "<module>", "join", "wait", "", "\n"]
ADDRESSES = ["10.0.0.1", "10.0.0.3", "203.0.113.1", "fd00::1", "::"]
FILES = [
    *["trainer.py", "a" * 60000, "", "/", "<frozen importlib._bootstrap>", "/x/lib/python3.11/queue.py"],
    "/x/lib/python3.11/multiprocessing/pool.py",
    "/x/site-packages/tensorflow/python/eager/execute.py",
    "/x/site-packages/tensorflow/python/client/session.py",
    "/x/site-packages/tensorflow/python/training/server_lib.py",
    "/x/site-packages/tensorflow/python/training/session_manager.py",
    "/x/site-packages/tensorflow/python/ops/script_ops.py",
]


class Liar:
    """Makes up facts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret hangs on it
        self.pick = self.random.choice

    def some(self, make: Any, most: int = 3) -> list[Any]:
        return [make() for _ in range(self.random.randint(0, most))]

    def flow(self) -> list[Any]:
        return [self.pick(ADDRESSES), *(self.pick(WHOLE) for _ in range(6)), self.pick(TIMES)]

    def look(self) -> dict[str, Any]:
        endpoint = lambda: [self.pick(ADDRESSES), self.pick(WHOLE)]  # noqa: E731
        look = {
            "listens": self.pick([None, True, False]),
            "connected": self.pick([None, self.some(endpoint)]),
            "calling": self.some(endpoint),
            "processes": self.some(lambda: [self.pick(WHOLE), self.pick(WORDS), self.pick(WORDS)]),
            "waits_in": self.pick(WORDS),
            "cpu_s": self.pick(NUMBERS),
            "quiet_s": self.pick(NUMBERS),
            "log_bytes": self.pick(WHOLE),
            "says": self.pick([*WORDS, *LINES]),
            "listens_on": self.pick([None, [], [2222], [1, 65535]]),
            "signs": {
                self.pick([*SIGNS, "x"]): [self.pick(WHOLE), self.pick(LINES), self.pick(TIMES)]
                for _ in range(self.random.randint(0, 4))
            },
            "flows": self.pick([None, [], self.some(self.flow)]),
            "io": self.pick([None, *WHOLE]),
            "wrote": self.pick([None, *WHOLE]),
            "turns": self.pick(WHOLE),
            "disk": [self.pick(WHOLE), self.pick(WHOLE)],
            "memory": [self.pick(WHOLE), self.pick(WHOLE)],
            "paces": self.some(lambda: [self.pick(WHOLE) for _ in range(4)]),
            **{name: self.pick(TIMES) for name in ("waited_s", "held_s", "cores")},
            "step": self.pick(WHOLE),
            "faults": self.pick(WHOLE),
        }
        for name in (
            "flows",
            "io",
            "turns",
            "signs",
            "listens_on",
            "disk",
            "memory",
            "paces",
            "cores",
            "step",
        ):
            if not self.random.randint(0, 3):
                del look[name]
        return look

    def still_look(self) -> dict[str, Any]:
        """Of a task that does nothing: only so the rules go on to the end."""
        return {
            **self.look(),
            **{"cpu_s": 1.0, "log_bytes": 1, "flows": [], "io": 1, "turns": self.pick([1, 1, 1, 9])},
        }

    def inspection(self) -> dict[str, Any]:
        pid = lambda: self.pick([4711, 1])  # noqa: E731
        frame = lambda: [self.pick(FILES), self.pick(WHOLE), self.pick(FUNCTIONS)]  # noqa: E731
        thread = lambda: [pid(), *(self.pick(WORDS) for _ in range(3)), self.pick(TIMES)]  # noqa: E731
        stack = lambda: {"main": self.pick([True, False]), "frames": self.some(frame, 5)}  # noqa: E731
        return {
            "pid": pid(),
            "name": self.pick(WORDS),
            "threads": self.some(thread),
            "stacks": self.pick([None, self.some(stack), self.some(stack)]),
            "why_none": self.pick(WORDS),
            "age_s": self.pick(TIMES),
        }

    def machine(self) -> dict[str, Any]:
        disk = lambda: [*(self.pick(WHOLE) for _ in range(3)), self.pick(WORDS)]  # noqa: E731
        counts = lambda: {name: self.pick(WHOLE) for name in self.some(lambda: self.pick(["cpu", "io"]))}  # noqa: E731
        machine = {
            "cores": self.pick(WHOLE),
            "swapped": self.pick(WHOLE),
            "others": self.some(lambda: [self.pick(WHOLE), self.pick(WORDS), self.pick(TIMES)]),
            "disks": {self.pick(["sda", "sdb", *WORDS]): disk() for _ in range(3)},
            "pressure": counts(),
            "own_pressure": counts(),
        }
        return {
            name: value for name, value in machine.items() if name == "swapped" or self.random.random() < 0.8
        }

    def result(self) -> Any:
        return self.pick([self.pick(TIMES), [self.pick(VERDICTS), self.pick(["", "1400", "9" * 400])]])

    def message(self) -> tuple[str, dict[str, Any]]:
        what = self.random.random()
        if what < 0.6:
            return "looked", {
                "tasks": {task: self.still_look() for task in PLACES},
                "machine": self.machine(),
            }
        tasks = self.some(lambda: self.pick([*PLACES, "worker/7"]), 4)
        if what < 0.7:
            return "looked", {"tasks": {task: self.look() for task in tasks}}
        if what < 0.8:
            return "dialled", {
                "results": self.some(self.result, 4),
                "addresses": {self.pick(WORDS): self.some(lambda: self.pick(ADDRESSES))},
                "ways": self.some(lambda: self.pick([None, [self.pick(TIMES), self.pick(WHOLE)]])),
                "asker": self.pick(["hangs", "lost_packets", "stillness", "nobody"]),
            }
        return "inspected", {
            "tasks": {task: self.some(self.inspection) for task in tasks},
            "asker": self.pick(["stillness", "stillness", "slowness", "hangs", "nobody"]),
        }


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_facts_of_the_right_types(seed: int) -> None:
    liar = Liar(seed)
    watchdog = Watchdog(PLACES, {"b.cluster": ["10.0.0.2"]}, {"stall_s": 100.0}, {})
    now = 1000.0
    watchdog.begin(now)
    for _ in range(40):
        now += liar.pick([0.0, 5.0, 5.0, 5.0, 14.0, 61.0, 400.0, -3.0])
        if not liar.random.randint(0, 30):
            task = TaskId.parse(liar.pick([*PLACES]))
            watchdog.happened(TaskExit(task, "a", 0, None, 1.0), now)
        type, fields = liar.message()
        watchdog.said(liar.pick("abc"), type, fields, now)
        watchdog.questions("abc", now)
        assert all(0 < len(each.text) <= TEXT for each in watchdog.sentences(now))
        assert all(0 < len(text) <= TEXT for texts in watchdog.holds() for text in texts)
        watchdog.next_event(now)
        for rule in watchdog.rules.values():
            assert set(rule.explains(now)) <= set(PLACES)
            assert all([*rule.holds(), *rule.blind()])
    data, memory = json.loads(json.dumps([watchdog.data(), watchdog.memory()]))
    another = Watchdog(**data)
    another.begin(now)
    another.resume(memory)
    another.sentences(now)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_facts_are_of_the_right_types(seed: int) -> None:
    type, fields = Liar(seed).message()
    check(Message(type, json.loads(json.dumps(fields)), b""), FROM_AGENT)
