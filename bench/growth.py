"""Growth: what each host adds, from the tables that were measured, and what that makes of 1,000 and 10,000 hosts.

A pure model: a straight line through the medians, by least squares.  The launcher is one Python process, so that its
CPU time is that of one core, whatever a laptop has; the hosts, which share the cores of a test bed, have their own
in earnest.  What a measured line does not show (a network's own limits, a switch, a name server) is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean

from bench.measure import Table

FAR = (1_000, 10_000)
LAPTOP = "an 8-core laptop with 16 GiB"
# What a title begins with, the method, the figure; and for those that end something, the limit and what it is.
SERIES = (
    ("Fan-out", "tflaunch", "client CPU s", 60.0, "one core is busy for a minute to start a run"),
    ("Fan-out", "tflaunch", "wall s", 0.0, ""),
    ("Fan-out", "ssh, xargs -P 64", "client CPU s", 0.0, ""),
    ("Tasks", "tflaunch", "client CPU s", 0.0, ""),
    ("Logs", "tflaunch", "client CPU ms/MB", 0.0, ""),
    ("A task dies", "tflaunch", "tasks gone s", 0.0, ""),
    ("Ctrl-C", "tflaunch", "prompt s", 0.0, ""),
    ("stop", "tflaunch stop", "client CPU s", 60.0, "one core is busy for a minute to stop a run"),
    ("GPUs, the first", "tflaunch gpus", "client CPU s", 0.0, ""),
    ("GPUs, each", "tflaunch gpus --watch", "client CPU s", 2.0, "--watch cannot keep its 2 s"),
    ("Memory", "tflaunch run", "client MiB", 16 * 1024.0, "the memory is full"),
    (
        "Memory",
        "tflaunch run",
        "client threads",
        10_000.0,
        "a login's usual limit of tasks (systemd's TasksMax)",
    ),
    ("Memory", "tflaunch run", "client files", 1024.0, "the usual `ulimit -n`"),
    ("Memory", "tflaunch run", "client idle CPU %", 100.0, "one core does nothing but wait for hosts"),
)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What is there without a host, and what each adds; of points with two numbers of hosts at least."""
    middle_x, middle_y = mean(x for x, _ in points), mean(y for _, y in points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    each = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    return middle_y - each * middle_x, each


def growth(tables: Iterable[Table]) -> Iterator[Table]:
    """A table, if anything was measured with several numbers of hosts."""
    measured = list(tables)
    model = Table(f"Growth, and a model of {LAPTOP}", "", ())
    ends: list[tuple[float, str]] = []
    for title, method, figure, limit, what in SERIES:
        points = [
            (float(table.hosts), value)
            for table in measured
            if table.title.startswith(title) and (value := table.median(method, figure)) is not None
        ]
        if len({hosts for hosts, _ in points}) < 2:
            continue
        fixed, each = line(points)
        largest, value = max(points)
        model.rows[f"{title}: {method}, {figure}"] = [
            {
                "hosts": largest,
                "measured": value,
                "fixed": fixed,
                "per host": each,
                **{f"at {hosts:,}": fixed + each * hosts for hosts in FAR},
            }
        ]
        if limit and each > 0:
            ends.append(((limit - fixed) / each, f"{what} ({figure}, {limit:g})"))
    model.remarks += [f"from {hosts:,.0f} hosts on: {what}" for hosts, what in sorted(ends)]
    model.remarks.append(
        "wall times are those of a bed, whose hosts share the launcher's cores: see the CPU times"
    )
    if model.rows:
        yield model
