"""A thousand hosts: run, gpus, ps, stop and Ctrl-C; smaller numbers beside them show what grows faster than they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench import fanout, memory, probe, reaction
from bench.beds import TFLAUNCH, patience
from bench.measure import Failed, Table, interleave
from bench.plan import Plan

HOST_BYTES = 40 * 2**20  # namespaces, an sshd and its session, an agent with its guard, a task
PORTS = 1000  # hosts on the bed's bridge, which has 1,024 ports
NOBODY = ("none",)  # of the peers: their figures stand beside fewer hosts


def thousand(plan: Plan) -> Iterator[Table]:
    """As many of them as this machine's memory and swap hold; raises Failed if they hold none of these numbers."""
    about = Path("/proc/meminfo").read_text()
    free_kb = sum(int(about.partition(f"{name}:")[2].split()[0]) for name in ("MemAvailable", "SwapFree"))
    room = min(PORTS, free_kb * 1024 // HOST_BYTES)
    counts = [count for count in plan.sizes(250, 500, 1000) if count <= room]
    if not counts:
        raise Failed(f"this machine has memory for {room} hosts")
    for count in counts:
        ours = replace(plan, counts=(count,), peers=NOBODY)
        yield from fanout.fan_out(ours)
        yield _ps(ours, count)
        ours.lab.give_gpus(count, probe.GPUS)
        yield probe.first_look(ours, count)
        yield from memory.memory(ours)
        yield from reaction.reaction(ours)


def _ps(plan: Plan, count: int) -> Table:
    table = Table(f"ps, {count} hosts", "tflaunch ps", ("wall s", "client CPU s"), count)
    words = (TFLAUNCH, "ps", plan.lab.hostfile(count), *patience(count))
    methods = {"tflaunch ps": lambda: plan.lab.run(*words).figures()}
    return interleave(table, methods, plan.rounds, plan.tell)
