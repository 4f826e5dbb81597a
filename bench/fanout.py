"""Fan-out: start one trivial task on each host and learn its exit code; and several tasks a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bench import peers
from bench.beds import MANY, Lab
from bench.measure import Figures, Table, interleave
from bench.peers import Peer, present
from bench.plan import Plan
from tflaunch.planning.dial_pattern import ALL_HOSTS

NOTHING = "python3 -c pass"
COMPARED = ("wall s", "client CPU s")
OURS = "tflaunch"
UNDIALLED = "--no-dial-check"
WHOLE = "--dial-check all"  # which is N x N: on real hosts each does its row, here two cores do all


def trivial(lab: Lab, count: int, tasks: int, *options: str) -> Callable[[], Figures]:
    """tflaunch with so many trivial tasks in all: connect, boot, probe, ports, leases, start, exit, clean-up."""
    program = lab.file("nothing/nothing.py", "pass\n")
    words = lab.launch(count, program, *options, tasks=tasks)
    return lambda: lab.run(*words).figures()


def others(
    plan: Plan, table: Table, chosen: Sequence[Peer], hosts: Sequence[str]
) -> dict[str, Callable[[], Figures]]:
    """The peers with the same task on these hosts."""
    methods: dict[str, Callable[[], Figures]] = {}
    for peer in present(chosen, plan, len(hosts), table.remarks):
        words = peer.argv(plan.lab, hosts, NOTHING)
        methods[peer.name] = lambda words=words: plan.lab.run(*words).figures()  # type: ignore[misc]
    return methods


def fan_out(plan: Plan) -> Iterator[Table]:
    """One trivial task a host, on more and more hosts."""
    for count in plan.sizes(4, 16, 64, 128, 256):
        table = Table(f"Fan-out, {count} hosts", OURS, COMPARED, hosts=count)
        table.remarks.append(f"tflaunch run HOSTS nothing.py --ps 0 --workers {count}; the others: {NOTHING}")
        hosts = plan.lab.hosts(count)
        methods = {
            OURS: trivial(plan.lab, count, count),
            f"{OURS} {UNDIALLED}": trivial(plan.lab, count, count, UNDIALLED),
            **(
                {f"{OURS} {WHOLE}": trivial(plan.lab, count, count, *WHOLE.split())}
                if ALL_HOSTS < count <= MANY
                else {}
            ),
            **others(plan, table, peers.ALL, hosts),
        }
        yield interleave(table, methods, plan.rounds, plan.tell)


def tasks(plan: Plan, a_host: int = 8) -> Iterator[Table]:
    """Eight tasks a host: who opens a connection for each of them, and who one for all."""
    count = plan.size(32)
    table = Table(f"Tasks, {a_host} on each of {count} hosts", OURS, COMPARED, hosts=count)
    total = a_host * count
    table.remarks.append(
        f"tflaunch run HOSTS nothing.py --ps 0 --workers {total}; left out: who runs one task a host"
    )
    hosts = [host for host in plan.lab.hosts(count) for _ in range(a_host)]
    able = [peer for peer in peers.ALL if peer.several]
    methods = {OURS: trivial(plan.lab, count, total), **others(plan, table, able, hosts)}
    yield interleave(table, methods, plan.rounds, plan.tell)
