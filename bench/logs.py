"""Logs: how much comes through and what it costs the launcher; how long a line takes from print to screen."""

from __future__ import annotations

import os
import pty
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench import peers
from bench.beds import TFLAUNCH, Lab
from bench.measure import Cost, Failed, Figures, Table, interleave
from bench.peers import present
from bench.plan import Plan

LINE = 100  # bytes
TOTAL_MB = 200  # of all hosts together
SMALL_MB = 1
STAMPS = 200
EVERY_S = 0.02
# As a trainer prints: whole lines, in blocks as they fill up.
FLOOD = f"""\
import sys
line = "x" * {LINE - 1} + "\\n"
for _ in range(int(float(sys.argv[-1]) * 1000)):
    sys.stdout.write(line * 10)
"""
# The one that is measured tells the time; others, named by the second word, flood meanwhile, or are silent.
STAMP = f"""\
import os, sys, time
talks = os.environ.get("TFLAUNCH_TASK", sys.argv[1]) == "worker/0"
end = time.time() + 1 + {STAMPS * EVERY_S}
time.sleep(1)
if talks:
    for _ in range({STAMPS}):
        print("stamp", time.time_ns(), flush=True)
        time.sleep({EVERY_S})
elif sys.argv[-1] == "flood":
    while time.time() < end:
        print("x" * 99)
"""
Words = Callable[[str, str, int], Sequence[str]]  # program, its argument, hosts -> the command line


def _tflaunch(lab: Lab) -> Words:
    def words(program: str, argument: str, count: int) -> Sequence[str]:
        options = ("--ps", "0", "--workers", str(count), "--", argument)
        return (TFLAUNCH, "run", lab.hostfile(count), str(lab.home / "logs" / program), *options)

    return words


def _others(plan: Plan, table: Table, count: int) -> dict[str, Words]:
    """Those that show lines as they come; parallel-ssh and asyncssh leave that to their caller."""
    hosts = plan.lab.hosts(count)
    chosen = (peers.SSH, peers.SSH_CURVE, peers.PDSH, peers.CLUSH, peers.MPIRUN, peers.PARAMIKO)
    found: dict[str, Words] = {}
    for peer in present(chosen, plan, count, table.remarks):

        def words(program: str, argument: str, _: int, peer: peers.Peer = peer) -> Sequence[str]:
            return peer.argv(
                plan.lab, hosts, f"python3 /home/root/{program} worker/$(cat /home/root/rank) {argument}"
            )

        found[peer.name] = words
    return found


def _install(lab: Lab, count: int) -> None:
    """The programs are where tflaunch ships them from, and on each host for the others."""
    for name, text in (("flood.py", FLOOD), ("stamp.py", STAMP)):
        lab.file(f"logs/{name}", text)
        for host in lab.machines(count):
            (host.directory / "home/root" / name).write_text(text)
    for rank, host in enumerate(lab.machines(count)):
        (host.directory / "home/root/rank").write_text(str(rank))


def logs(plan: Plan) -> Iterator[Table]:
    """Throughput from 1 host and from 16, then latency from one host, idle and beside a flood."""
    for count in plan.sizes(1, 16):
        yield throughput(plan, count)
    for flood in (False, True):
        yield latency(plan, flood)


def throughput(plan: Plan, count: int) -> Table:
    """What TOTAL_MB of lines take beyond what a few of them take, start and end of the run being in both."""
    _install(plan.lab, count)
    table = Table(
        f"Logs from {count} host{'s'[: count > 1]}", "tflaunch", ("MB/s", "client CPU ms/MB"), count
    )
    table.remarks.append(
        f"{TOTAL_MB} MB of {LINE}-byte lines into a file, less what {SMALL_MB} MB takes; "
        f"tflaunch run HOSTS flood.py --ps 0 --workers {count}, which records them in a file for each task besides"
    )

    def method(words: Words) -> Callable[[], Figures]:
        def run(megabytes: int) -> tuple[Cost, int]:
            cost = plan.lab.run(*words("flood.py", str(megabytes / count), count))
            return cost, _torn(plan.lab.directory / "output", count * int(megabytes / count * 1000) * 10)

        def measure() -> Figures:
            (few, _), (many, torn) = run(SMALL_MB), run(TOTAL_MB)
            more = TOTAL_MB - SMALL_MB
            rate = more / max(many.wall_s - few.wall_s, 1e-3)
            return {
                "MB/s": rate,
                "lines/s": rate * 1e6 / LINE,
                "client CPU ms/MB": (many.client_s - few.client_s) / more * 1e3,
                "hosts' CPU ms/MB": (many.hosts_s - few.hosts_s) / more * 1e3,
                "torn lines": float(torn),
            }

        return measure

    ours = {"tflaunch": _tflaunch(plan.lab)}
    methods = {name: method(words) for name, words in {**ours, **_others(plan, table, count)}.items()}
    return interleave(table, methods, plan.rounds, plan.tell)


def _torn(path: Path, expected: int) -> int:
    """How many lines of the flood are not whole, but mixed with others'; raises Failed when anything is missing."""
    line = b"x" * (LINE - 1) + b"\n"
    whole, marks, rest = 0, 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            marks += block.count(b"x")
            lines = rest + block
            end = lines.rfind(b"\n") + 1
            # Something may stand in front of it, but no part of another one.
            whole += lines.count(line, 0, end) - lines.count(b"x" + line, 0, end)
            rest = lines[end:]
    if marks != expected * (LINE - 1):
        raise Failed(f"{marks // (LINE - 1)} lines of {expected} came")
    return expected - whole


def latency(plan: Plan, flood: bool) -> Table:
    """From print to the terminal, of a line every EVERY_S; with a flood, another host writes as fast as it can."""
    _install(plan.lab, 2)
    title = (
        "Latency of a line, beside a flood from another host" if flood else "Latency of a line, nothing else"
    )
    table = Table(title, "tflaunch", ("p50 ms", "p99 ms"), 2)
    table.remarks.append(
        f"{STAMPS} lines, one each {EVERY_S * 1e3:.0f} ms, to a terminal; "
        "tflaunch run HOSTS stamp.py --ps 0 --workers 2"
    )

    def method(words: Words) -> Callable[[], Figures]:
        argv = words("stamp.py", "flood" if flood else "silent", 2)

        def measure() -> Figures:
            seen, shown = _watch(plan.lab, argv)
            if len(seen) < STAMPS:
                raise Failed(f"{len(seen)} of {STAMPS} lines came")
            seen.sort()
            return {
                "p50 ms": seen[len(seen) // 2],
                "p99 ms": seen[len(seen) * 99 // 100],
                "max ms": seen[-1],
                "MB shown": shown / 1e6,
            }

        return measure

    ours = {"tflaunch": _tflaunch(plan.lab)}
    methods = {name: method(words) for name, words in {**ours, **_others(plan, table, 2)}.items()}
    return interleave(table, methods, plan.rounds, plan.tell)


def _watch(lab: Lab, argv: Sequence[str]) -> tuple[list[float], int]:
    """How old each stamp was, in ms, when the terminal showed it; and how many bytes it has shown."""
    screen, terminal = pty.openpty()
    ages: list[float] = []
    shown = 0
    last = rest = b""

    def read() -> None:
        nonlocal shown, rest, last
        with suppress(OSError):  # the terminal is closed: all is read
            while block := os.read(screen, 1 << 16):
                now = time.time_ns()
                shown += len(block)
                last = (last + block)[-300:]
                rest += block
                for found in re.finditer(rb"stamp (\d+)\r?\n", rest):
                    ages.append((now - int(found[1])) / 1e6)
                rest = rest[rest.rfind(b"\n") + 1 :]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with lab.start(*argv, stdout=terminal) as command:
            os.close(terminal)
            command.wait()
    except Failed as failure:
        raise Failed(f"{failure}{last.decode(errors='replace')}") from None
    finally:
        reader.join(5)
        os.close(screen)
    return ages, shown
