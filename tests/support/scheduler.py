"""What schedules the slots of the plain engine: gives, delays, refuses, takes back, and loses nodes, as a test says.

scheduler = Scheduler(directory, [Node("n1", host.inside()), Node("n2", other.inside())])
scheduler.hold("no node is free")     # requests wait; scheduler.give() lets them have their slots
scheduler.take_back(job, "s0", 10.0)  # TERM to the slot holder, as an engine does
scheduler.lose("s0", swept=True)      # kill -9 of the slot holder and all below it
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.patience import until
from tests.support.plain import get, put


@dataclass(frozen=True)
class Node:
    """A machine that slots may be on; `inside` is the command that runs another one there."""

    name: str
    inside: Sequence[str] = ()
    exec: Sequence[str] = ()  # the same, from the launcher's machine


@dataclass
class Slot:
    """A slot that was given."""

    job: str
    name: str
    node: Node
    process: subprocess.Popen[bytes]
    holder: int  # its pid as this machine sees it; `process` may be what waits for it
    told: Mapping[str, Any] = field(default_factory=dict)


class Scheduler:
    """One for each test; everything that it starts ends with it."""

    def __init__(self, directory: Path, nodes: Sequence[Node]) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.slots: dict[tuple[str, str], Slot] = {}
        self.why = ""  # requests wait, with these words
        self.never = ""  # requests are refused for good
        self.late = 0  # so many slots of each request come only with `give`
        self.env: dict[str, str] = {}  # of the slot holders, beside the test's own
        self._nodes = list(nodes)
        self._done: set[str] = set()
        self._ending: set[tuple[str, str]] = set()  # slots whose holders have had their signal
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._answering = threading.Lock()  # a request that is cancelled is not answered after that
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # -- what an engine does

    def hold(self, why: str) -> None:
        self.why = why

    def give(self) -> None:
        self.why, self.late = "", 0

    def requests(self) -> list[str]:
        """The jobs that were asked for."""
        return sorted(path.stem for path in (self.directory / "requests").glob("job*.json"))

    def wait_for_request(self) -> str:
        return str(until(lambda: next(iter(self.requests()), ""), "a request for slots"))

    def released(self, job: str) -> bool:
        return (self.directory / "released" / f"{job}.json").exists()

    def cancel(self, job: str, words: str) -> None:
        """Cancel a request that waits."""
        with self._answering:
            put(self.directory / "answers" / f"{job}.json", {"cancelled": words})
            self._done.add(job)

    def slot(self, name: str) -> Slot:
        """The newest slot of that name."""
        return [slot for (_, index), slot in self.slots.items() if index == name][-1]

    def take_back(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Tell the slot holder that its slot ends."""
        self._tell(self.slot(name), number)

    def _tell(self, slot: Slot, number: signal.Signals) -> None:
        """TERM once: a Python that has begun to exit would end by another one."""
        if number != signal.SIGTERM or (slot.job, slot.name) not in self._ending:
            self._ending.add((slot.job, slot.name))
            with contextlib.suppress(ProcessLookupError):
                os.kill(slot.holder, number)

    def say_over(self, name: str, words: str, *, swept: bool) -> None:
        """From now on the engine says that this slot is over."""
        slot = self.slot(name)
        put(self.directory / "over" / f"{slot.job}.{name}.json", {"words": words, "swept": swept})

    def give_up(self, name: str, words: str) -> None:
        """Say that a slot is over whose node cannot be reached: what is in it runs on, and hears nothing."""
        slot = self.slot(name)
        self._ending.add((slot.job, slot.name))
        self.say_over(name, words, swept=False)

    def lose(self, name: str, words: str = "the node has failed", *, swept: bool) -> None:
        """Kill the slot holder, and with `swept` all below it, as the end of a container does."""
        slot = self.slot(name)
        below = _below(slot.holder) if swept else []
        os.kill(slot.holder, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.say_over(name, words, swept=swept)

    def wait_until_free(self) -> None:
        """Until every slot holder has ended, and its directory is gone."""
        until(
            lambda: all(slot.process.poll() is not None for slot in self.slots.values()),
            "the end of all slot holders",
        )

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for slot in self.slots.values():
            if slot.process.poll() is None:
                for pid in [*_below(slot.process.pid), slot.process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            slot.process.wait()
            assert slot.process.stdout is not None
            slot.process.stdout.close()

    # -- the thread

    def _serve(self) -> None:
        while not self._stop.wait(0.05):
            for path in sorted((self.directory / "requests").glob("job*.json")):
                with self._answering:
                    if path.stem not in self._done:
                        self._answer(path.stem, get(path))
            for (job, name), slot in self.slots.items():
                over = self.directory / "over" / f"{job}.{name}.json"
                if slot.process.poll() is not None and not over.exists():
                    code = slot.process.returncode  # a holder that is killed leaves what is below it
                    words = f"the slot has ended with {code}"
                    put(
                        over,
                        {
                            "words": words,
                            "swept": code >= 0,
                            "in_order": code >= 0 and code != 75,
                            "code": code,
                        },
                    )
            for path in (self.directory / "released").glob("job*.json"):
                for (job, _), slot in self.slots.items():
                    if job == path.stem and slot.process.poll() is None:
                        self._tell(slot, signal.SIGTERM)

    def _answer(self, job: str, request: Mapping[str, Any]) -> None:
        answer = self.directory / "answers" / f"{job}.json"
        if self.released(job):
            self._done.add(job)
        elif self.never:
            put(answer, {"never": self.never})
            self._done.add(job)
        elif self.why:
            put(answer, {"why": self.why})
        else:
            wanted = request["slots"]
            now = wanted[: len(wanted) - self.late] if self.late else wanted
            for number, each in enumerate(now):
                if (job, each["name"]) not in self.slots:
                    self.slots[job, each["name"]] = self._start(job, number, each)
            given = [self._told(self.slots[job, each["name"]]) for each in now]
            put(answer, {"given": given, "why": "the last one is late"})
            if len(now) == len(wanted):
                told = [{**each, "index": want["name"]} for each, want in zip(given, now, strict=True)]
                put(self.directory / "given" / f"{job}.json", {"run": request["run"], "slots": told})
                self._done.add(job)

    def _start(self, job: str, number: int, wanted: Mapping[str, Any]) -> Slot:
        named = [node for node in self._nodes if node.name == wanted["node"]]
        node = named[0] if named else self._nodes[number % len(self._nodes)]
        log = (self.directory / f"{job}.{wanted['name']}.log").open("ab")
        env = {**os.environ, **self.env}
        process = subprocess.Popen(
            [*node.inside, sys.executable, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        log.close()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(wanted["text"].encode())
        process.stdin.close()
        told = json.loads(process.stdout.readline())
        return Slot(job, wanted["name"], node, process, _last_child(process.pid), told)

    @staticmethod
    def _told(slot: Slot) -> dict[str, Any]:
        return {**slot.told, "name": f"{slot.node.name}-{slot.name}", "exec": list(slot.node.exec)}


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _below(pid: int) -> list[int]:
    return [each for child in _children(pid) for each in (child, *_below(child))]


def _last_child(pid: int) -> int:
    """The process that nsenter and its like have started: the last one down the line that runs the holder's text."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[-2:-1] == [b"-"] and b"python" in words[0]:
            return pid
        children = _children(pid)
        if not children:
            return pid
        pid = children[0]
    return pid
