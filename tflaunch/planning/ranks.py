"""Which tasks have ranks, for the frameworks whose programs count them; pure.

The tasks whose success decides the end of a run are the processes of such a program, in this order: the chief, the
workers, then jobs of the user's own that decide.  The first one is rank 0: the others meet at its port.  A ps or an
evaluator has no rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tflaunch.frameworks.framework import Framework, Rank
from tflaunch.frameworks.table import named
from tflaunch.protocol.job import EVALUATOR, PS, JobSpec, Role, TaskId, deciding, ends_as


def roles_for(framework: Framework, roles: Mapping[str, Role]) -> dict[str, Role]:
    """The roles, without ps where the framework has none, unless the user asked for some."""
    ps = roles.get(PS, Role())
    if not framework.by_rank or ps.count is not None:
        return dict(roles)
    return {**roles, PS: dataclasses.replace(ps, count=0)}


def ranks(job: JobSpec, cluster: Mapping[str, Sequence[str]]) -> list[TaskId]:
    """The tasks of that cluster in the order of their ranks; `cluster` maps a job to the addresses of its tasks.

    Of a framework whose ranks go by host, those at one address follow each other, the first task's address first.
    """
    names = [
        name
        for name in cluster
        if name not in (PS, EVALUATOR) and (job.role(name).end or ends_as(name)) == "decides"
    ]
    found = sorted(
        (TaskId(name, index) for name in names for index in range(len(cluster[name]))), key=deciding
    )
    if not named(job.framework).by_host:
        return found
    together: dict[str, list[TaskId]] = {}
    for task in found:
        address, _, _ = str(cluster[task.job][task.index]).rpartition(":")
        together.setdefault(address, []).append(task)
    return [task for tasks in together.values() for task in tasks]


def rank_of(
    task: TaskId, ranked: Mapping[TaskId, int], cluster: Mapping[str, Sequence[str]], interface: str
) -> Rank | None:
    """What a framework's launcher would know of `task`, whose number is in `ranked`; None where it has no rank.

    `interface` is the one by which its peers reach its host, "" where that is not known.
    """
    if task not in ranked:
        return None
    first = next(iter(ranked))
    address, _, port = cluster[first.job][first.index].rpartition(":")
    return Rank(ranked[task], len(ranked), task.index, len(cluster[task.job]), address, port, interface)
