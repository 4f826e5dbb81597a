"""`python -m bench [WHAT...]`: measure, tell, and leave nothing behind."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console

from bench import (
    engines,
    fanout,
    feed,
    growth,
    horovod_start,
    logs,
    look,
    memory,
    placement,
    probe,
    reaction,
    report,
    shipping,
    startup,
    thousand,
    trials,
)
from bench.beds import lab
from bench.measure import Table
from bench.plan import Plan
from tests.support.bed import missing

MEASUREMENTS: dict[str, Callable[[Plan], Iterator[Table]]] = {
    "fanout": fanout.fan_out,
    "tasks": fanout.tasks,
    "logs": logs.logs,
    "reaction": reaction.reaction,
    "probe": probe.probe,
    "shipping": shipping.shipping,
    "startup": startup.startup,
    "memory": memory.memory,
    "look": look.look,
    "engines": engines.engines,
    "feed": feed.feed,
    "bind": placement.bind,
    "network": placement.network,
    "horovod": horovod_start.horovod,
    "trials": trials.trials,
    "thousand": thousand.thousand,
}


def counts(text: str) -> tuple[int, ...]:
    """4,16,64"""
    return tuple(map(int, text.split(",")))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    names = ", ".join([*MEASUREMENTS, "growth"])
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {names} [all but thousand]")
    parser.add_argument(
        "--hosts", type=counts, default=(), metavar="N,N", help="instead of the usual numbers"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each command [5]")
    parser.add_argument(
        "--peers", default="", metavar="NAME,NAME", help="only those with this in their names"
    )
    parser.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="for growth: an earlier --json"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    given = parser.parse_args()
    if unknown := [what for what in given.what if what not in (*MEASUREMENTS, "growth")]:
        parser.error(f"{', '.join(unknown)}: choose from {names}")
    if given.rounds < 1 or any(count < 1 for count in given.hosts):
        parser.error("rounds and hosts are counted from 1")
    return given


def main() -> None:
    given = arguments()
    if reason := missing():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what cleans up
    console = Console(width=None if sys.stdout.isatty() else 160)
    progress = Console(stderr=True)
    tables = report.read(given.earlier) if given.earlier else []
    with lab() as made, progress.status("") as status:
        peers = tuple(filter(None, given.peers.split(",")))
        plan = Plan(made, given.rounds, given.hosts, peers, status.update)
        try:
            for table in measured(
                given.what or [*(each for each in MEASUREMENTS if each != "thousand"), "growth"], plan, tables
            ):
                tables.append(table)
                report.show(table, console)
                keep(tables, given)  # after each: a night's measuring is not lost to its last minute
        except KeyboardInterrupt:
            status.stop()
            sys.exit(130)
    console.print(report.header(given.rounds), highlight=False)


def measured(what: Iterable[str], plan: Plan, before: list[Table]) -> Iterator[Table]:
    """The tables, one by one; the model of growth comes from those before it."""
    for name in what:
        yield from growth.growth(before) if name == "growth" else MEASUREMENTS[name](plan)


def keep(tables: list[Table], given: argparse.Namespace) -> None:
    """Write the files that were asked for."""
    if given.json:
        given.json.write_text(report.as_json(tables, given.rounds))
    if given.markdown:
        given.markdown.write_text(report.markdown(tables, given.rounds))


main()
