"""Which hosts dial which: no group that is cut off from another is missed, and what is told of it is complete."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise, product

import pytest

from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.dial_pattern import ALL_HOSTS, PATTERNS, Ways, pattern_for, sparse
from tflaunch.planning.dials import failed_ends
from tflaunch.protocol.dialling import SILENT
from tflaunch.protocol.job import TaskId

PORT = 22000


def plan(*hosts: str, address: Callable[[int], str] = "10.0.{0}.1".format) -> ClusterPlan:
    """The hosts h0, h1, ..., each with the tasks of its words."""
    tasks = [
        TaskPlan(TaskId.parse(text), f"h{number}", address(number), PORT + at, (), (), (), {}, (), None)
        for number, words in enumerate(hosts)
        for at, text in enumerate(words.split())
    ]
    return ClusterPlan("run", tuple(tasks))


def workers(count: int, each: int = 1) -> list[str]:
    """So many hosts with so many workers each."""
    return [
        " ".join(f"worker/{number}" for number in range(host * each, host * each + each))
        for host in range(count)
    ]


def by_host(wanted: dict[str, list[TaskPlan]]) -> dict[str, set[str]]:
    return {source: {task.host for task in tasks} for source, tasks in wanted.items()}


def windows(dialled: Iterable[int], count: int, size: int) -> set[int]:
    """Where the groups of `size` hosts in a row begin of which one is dialled."""
    return {
        start
        for number in dialled
        for start in range(max(0, number - size + 1), min(number, count - size) + 1)
    }


@pytest.mark.parametrize(
    ("count", "q", "g"),
    [
        *[(100, 4, 5), (256, 8, 7), (1000, 8, 7), (1024, 8, 7), (1000, 16, 15)],
        *[(count, *pattern_for(count)) for count in (33, 47, 64, 101, 127, 128, 129, 255, 2047, 2049, 3001)],
    ],
)
def test_every_group_of_hosts_dials_every_other(count: int, q: int, g: int) -> None:
    dialled = sparse(count, q, g)
    for start in range(count - (2 * q - 1) + 1):
        reached = set().union(*dialled[start : start + 2 * q - 1])
        assert windows(reached, count, g) == set(range(count - g + 1)), start


@pytest.mark.parametrize("count", [33, 64, 100, 128, 129, 256, 1000, 1024, 2049])
def test_every_host_dials_and_is_dialled_by_about_as_many(count: int) -> None:
    dialled = sparse(count, *pattern_for(count))
    callers = [0] * count
    for number, targets in enumerate(dialled):
        assert number not in targets
        for target in targets:
            callers[target] += 1
    for made in (list(map(len, dialled)), callers):
        assert min(made) >= 2
        assert max(made) <= 2 * sum(made) / count + 4


def test_how_many_dials_that_is() -> None:
    assert [
        max(map(len, sparse(count, *pattern_for(count)))) for count in (64, 128, 256, 1024, 2048, 4096)
    ] == [*(6, 9, 7, 21, 39, 20)]
    for count, most in ((64, 500), (128, 1_400), (256, 2_400), (1000, 23_000)):
        assert sum(map(len, Ways(plan(*workers(count))).first().values())) < most
    sizes = [most for most, _, _ in PATTERNS]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("count", [33, 64, 100, 256])
def test_whichever_group_is_cut_off_from_another_is_found(count: int) -> None:
    """Racks of neighbouring addresses, however the tasks lie on them: each pair of racks, each way."""
    order = list(range(count))
    random.Random(count).shuffle(order)  # noqa: S311
    ways = Ways(plan(*workers(count), address=lambda number: f"10.0.0.{order[number]}"))
    assert ways.share(ways.first()) < 0.3
    q, g = pattern_for(count)
    rack = max(2 * q - 1, g)
    dialled = {
        (order[int(source[1:])] // rack, order[int(to[1:])] // rack)
        for source, targets in by_host(ways.first()).items()
        for to in targets
    }
    assert dialled >= set(product(range(count // rack), repeat=2))


def test_what_the_program_surely_uses_is_dialled_in_any_case() -> None:
    hosts = [*workers(80), "ps/0", "ps/1 chief/0", "ps/2"]
    made = plan(*hosts)
    first = by_host(Ways(made).first())
    serving, chief = {"h80", "h81", "h82"}, "h81"
    ring = [f"h{number}" for number in range(80)]
    for here, following in zip(ring, [*ring[1:], chief], strict=True):
        assert first[here] >= {*serving, following}
        assert all(here in first[server] for server in serving)
        assert here in first[chief]
        assert chief in first[here]
    assert "h82" not in first["h80"], "ps do not call each other"
    assert len(first["h5"]) < 20


def test_between_few_hosts_all_is_dialled() -> None:
    for count in (1, 2, ALL_HOSTS):
        ways = Ways(plan(*workers(count)))
        assert ways.first() == ways.all()
        assert ways.share(ways.first()) == 1.0


def test_of_many_ports_the_ends_are_dialled_and_each_other_one_by_somebody() -> None:
    ways = Ways(plan(*workers(ALL_HOSTS, 8)))
    first = ways.first()
    assert by_host(first) == by_host(ways.all())
    assert ways.share(first) == 1.0
    assert sum(map(len, first.values())) == ALL_HOSTS * (2 * ALL_HOSTS + 6)
    dialled: dict[tuple[str, str], set[int]] = {}
    for source, tasks in first.items():
        for task in tasks:
            dialled.setdefault((source, task.host), set()).add((task.port or 0) - PORT)
    assert all(ports >= {0, 7} for ports in dialled.values())
    for to in ways.hosts:
        others = [ports for (source, host), ports in dialled.items() if host == to != source]
        assert set().union(*others) == set(range(8))


def test_each_port_is_dialled_though_ps_lie_between_workers() -> None:
    hosts = [f"worker/{3 * n} ps/{n} worker/{3 * n + 1} ps/{40 + n} worker/{3 * n + 2}" for n in range(40)]
    made = plan(*hosts, *[f"ps/{80 + n}" for n in range(40)])
    dialled = {task.id for tasks in Ways(made).first().values() for task in tasks}
    assert dialled == {task.id for task in made.tasks}


def test_names_and_addresses_stand_in_the_order_of_their_numbers() -> None:
    for address in ("node{}.cluster".format, "10.0.{}.1".format, "fd00::{:x}".format):
        made = plan(*workers(40), address=address)
        first = by_host(Ways(ClusterPlan("run", made.tasks[::-1])).first())
        ring = [f"h{number}" for number in range(40)]
        assert all(other in first[one] and one in first[other] for one, other in pairwise(ring))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_told_of_a_cut_is_complete(seed: int) -> None:
    """Two groups that are cut off from each other, and a host that nobody reaches: as if all had been dialled."""
    chance = random.Random(seed)  # noqa: S311
    count = chance.choice([40, 60, 100])
    ways = Ways(plan(*workers(count)))
    one, other = (chance.randrange(count - 20) for _ in range(2))
    sizes = chance.randrange(8, 20), chance.randrange(8, 20)
    cut = set(product(range(one, one + sizes[0]), range(other, other + sizes[1])))
    lonely = chance.randrange(count)

    def result(source: str, to: str) -> float | tuple[str, str]:
        a, b = int(source[1:]), int(to[1:])
        return (SILENT, "") if (a, b) in cut or b == lonely else 0.1

    def blocked(wanted: dict[str, list[TaskPlan]]) -> set[tuple[str, TaskId]]:
        return {
            (source, task.id)
            for source, tasks in wanted.items()
            for task in tasks
            if result(source, task.host) != 0.1
        }

    dialled, told = ways.first(), set[str]()
    while (
        new := failed_ends(
            dialled,
            results := {
                source: [result(source, task.host) for task in tasks] for source, tasks in dialled.items()
            },
        )
        - told
    ):
        told |= new
        for source, tasks in ways.beside(told, dialled).items():
            assert not {task.id for task in tasks} & {task.id for task in dialled[source]}
            dialled[source] = dialled[source] + tasks
    assert results.keys() == dialled.keys()
    assert blocked(dialled) == blocked(ways.all())
