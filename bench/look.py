"""Look: what it costs an agent to see what its tasks do, as the watchdog asks every few seconds."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Failed, Figures, Table
from bench.plan import Plan
from tests.support.agent_over_pipes import Channel, Host, task
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.protocol.wire import encode

LOOKS = 48
CONNECTIONS = 50
THREADS = 60  # as TensorFlow has on a host with eight cores
EVERY_S = Thresholds.look_s
# A task with its connections, which writes a line of progress now and then.
TASK = """\
import socket, sys, threading, time
for _ in range(int(sys.argv[3])):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
calls = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
step = 0
while True:
    print("step", step, "loss 0.31", flush=True)
    step += 1
"""
PAUSES, COMPUTES = "    time.sleep(0.1)\n", "    sum(range(400_000))\n"
TRAIN_S = 20.0


def look(plan: Plan) -> Iterator[Table]:
    """One host; its tasks, and this machine's own processes, are what there is to see."""
    table = Table("A look at the tasks of a host", "1 task", ("agent CPU ms",), 1)
    table.remarks.append(
        f"mean of {LOOKS} looks at tasks with {CONNECTIONS} connections and {THREADS} threads each; the share is that"
        f" of one core at a look every {EVERY_S:g} s"
    )
    shapes = {f"{tasks} tasks": (tasks, CONNECTIONS) for tasks in (4, 8, 16)}
    shapes = {"1 task": (1, CONNECTIONS), **shapes}
    shapes["1 task, 4,000 connections"] = (1, 4000)
    for number in range(plan.rounds):
        for method, (tasks, connections) in shapes.items():
            plan.tell(f"look: {method}, round {number + 1}")
            try:
                row: Figures | None = _cost(tasks, connections)
            except Failed as error:
                row = None
                table.remarks.append(f"{method}: {error}")
            table.rows.setdefault(method, []).append(row)
    yield table
    yield _beside_training(plan)


def _beside_training(plan: Plan) -> Table:
    """What the tasks lose: steps a second of as many as the machine has cores, with looks and without."""
    table = Table("Steps beside the looks", "no look", ("steps/s",), 1)
    tasks = os.cpu_count() or 1
    table.remarks.append(
        f"{tasks} tasks that compute, with {CONNECTIONS} connections and {THREADS} threads each, for {TRAIN_S:g} s; a"
        f" look every {EVERY_S:g} s is what a run has"
    )
    ways = {"no look": 0.0, f"a look every {EVERY_S:g} s": EVERY_S, f"every {EVERY_S / 10:g} s": EVERY_S / 10}
    for number in range(plan.rounds):
        for method, every_s in ways.items():
            plan.tell(f"steps: {method}, round {number + 1}")
            try:
                row: Figures | None = _steps(tasks, every_s)
            except Failed as error:
                row = None
                table.remarks.append(f"{method}: {error}")
            table.rows.setdefault(method, []).append(row)
    return table


def _steps(tasks: int, every_s: float) -> Figures:
    with _looked_at(tasks, CONNECTIONS, COMPUTES) as (channel, _):

        def reached() -> int:
            seen = channel.ask("look", answer="looked")["tasks"]
            return sum(each.get("step", 0) for each in seen.values())

        began, first = time.monotonic(), reached()
        while time.monotonic() < began + TRAIN_S:
            time.sleep(every_s or TRAIN_S)
            last = reached()
        return {"steps/s": (last - first) / (time.monotonic() - began)}


def _cost(tasks: int, connections: int) -> Figures:
    """Look at so many tasks again and again."""
    with _looked_at(tasks, connections, PAUSES) as (channel, agent):
        before = _busy_ms(agent)
        for _ in range(LOOKS):
            seen = channel.ask("look", answer="looked")["tasks"]
        spent_ms = (_busy_ms(agent) - before) / LOOKS
    return {
        "agent CPU ms": spent_ms,
        "share of a core %": 100 * spent_ms / 1000 / EVERY_S,
        "message kB": len(encode("looked", tasks=seen)) / 1e3,
    }


@contextlib.contextmanager
def _looked_at(tasks: int, connections: int, step: str) -> Iterator[tuple[Channel, int]]:
    """An agent with so many tasks, which have their connections; its channel and its pid."""
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    ends: list[socket.socket] = []

    def accept() -> None:
        try:
            while True:
                ends.append(server.accept()[0])
        except OSError:
            return  # the measurement is over

    threading.Thread(target=accept, daemon=True).start()
    with tempfile.TemporaryDirectory() as place:
        host = Host(Path(place), sys.executable)
        try:
            channel = host.open("start")
            agent = channel.wait("hello")["pid"]
            host.watch(agent)
            host.watch(host.guard(agent))
            channel.send("renew", lease_s=120.0)
            channel.ask("probe", lease=False, ports=None, count=0, answer="facts")
            numbers = map(str, (server.getsockname()[1], connections, THREADS))
            words = (sys.executable, "-c", TASK + step, *numbers)
            made = [task(*words, id=f"worker/{number}") for number in range(tasks)]
            channel.send("stage", tasks=made, code=None, ports=[], gpus=[], door=False, attempt=0)
            channel.wait("staged")
            channel.send("release")
            channel.gather("started", tasks)
            for _ in range(6000):  # until all connections are there
                seen = channel.ask("look", answer="looked")["tasks"]
                if all(each["log_bytes"] for each in seen.values()):
                    break
            else:
                raise Failed("the tasks do not get their connections")
            yield channel, agent
            channel.ask("end", grace_s=0.0, answer="swept")
        finally:
            host.close()
            server.close()
            for end in ends:
                end.close()


def _busy_ms(pid: int) -> float:
    """The CPU time of that process, finer than /proc/PID/stat has it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
