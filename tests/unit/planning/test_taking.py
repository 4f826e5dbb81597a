"""What a run takes where nobody has counted its workers, and when that is asked: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.planned import facts, some_gpus
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.consent import Consent
from tflaunch.planning.inventory import GpuProcess, HostFacts, Lease, Ticket
from tflaunch.planning.taking import Share, Taking, taking
from tflaunch.protocol.errors import UsageError


def ada(_: str) -> str:
    """Her name on each host."""
    return "ada"


def took(*members: HostFacts, local: bool = False, **most: int) -> Taking:
    """One worker on each of the first free GPUs of each host (all, if it is not said how many), and a ps on g1."""
    hostfile = Hostfile("hosts.yaml", tuple(Host(each.host, "local" if local else "ssh") for each in members))
    shares = [
        Share(each.host, "worker", (gpu.uuid,))
        for each in members
        for gpu in [gpu for gpu in each.gpus_or_instances if not gpu.busy][: most.get(each.host)]
    ]
    shares += [Share(each.host, "worker") for each in members if not each.gpus]
    inventory = {each.host: each for each in members}
    return taking([*shares, Share("g1", "ps")], hostfile, inventory, "mine-aaaaaa", ada)


def with_gpu(host: HostFacts, number: int, **changes: Any) -> HostFacts:
    """The same with that GPU changed."""
    gpus = list(host.gpus)
    gpus[number] = replace(gpus[number], **changes)
    return replace(host, gpus=tuple(gpus))


def on_gpu(user: str, kind: str = "compute") -> dict[str, Any]:
    """Somebody's process on a GPU."""
    busy = f"in use by {user}" if kind == "compute" else ""
    return {"processes": (GpuProcess(7, user, "python3", kind, 1 << 30, None),), "busy": busy}


def test_what_is_asked() -> None:
    lab = [
        facts("g1", some_gpus("g1", 8, {7: "busy"})),
        facts("g2", some_gpus("g2", 8)),
        facts("g3", some_gpus("g3", 4, {1: "busy"})),
    ]
    wanted = took(*lab, g1=7, g2=7, g3=3)
    assert (wanted.much, str(wanted)) == (True, "17 workers and 1 ps on 17 of 20 GPUs of 3 hosts")


@pytest.mark.parametrize(
    ("members", "much"),
    [
        ([facts("g1", some_gpus("g1", 8))], False),  # the machine of one who has one
        ([facts("g1", some_gpus("g1", 9))], True),
        ([facts("g1")], False),
        ([facts("g1"), facts("g2")], True),  # CPUs alone, but of several machines
        ([facts("g1", some_gpus("g1", 1)), facts("g2", some_gpus("g2", 1))], True),
    ],
)
def test_it_is_asked_for_more_than_one_machine_and_more_than_eight_gpus(
    members: list[HostFacts], much: bool
) -> None:
    assert took(*members).much is much


def test_hosts_without_ssh_are_one_machine() -> None:
    assert not took(facts("g1"), facts("g2"), local=True).much
    assert took(facts("g1"), facts("g2")).much


LEASED = {"lease": Lease("bob", "his-bbbbbb", 1.0), "busy": "leased to bob's run his-bbbbbb"}


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, ""),
        (on_gpu("bob"), "bob"),
        (on_gpu(""), "somebody"),  # a container, or another user's process that is hidden
        (on_gpu("ada"), ""),  # one's own
        ({**on_gpu("gdm", "graphics"), "busy": "1.0 GiB in use by a desktop"}, ""),
        (LEASED, "bob"),
        ({"lease": Lease("ada", "hers-aaaaaa", 1.0), "busy": "leased"}, ""),
        ({"promised": Lease("carol", "her-cccccc", 1.0), "busy": "promised"}, "carol"),
    ],
)
def test_it_is_asked_for_the_last_free_gpu_of_a_host_that_others_use(
    change: dict[str, Any], asked: str
) -> None:
    wanted = took(with_gpu(facts("g1", some_gpus("g1", 4)), 0, **change))
    assert wanted.much is bool(asked)
    if asked:
        assert (
            str(wanted)
            == f"3 workers and 1 ps on 3 of 4 GPUs of g1 (none stays free on g1, which {asked} uses)"
        )
    assert not took(with_gpu(facts("g1", some_gpus("g1", 4)), 0, **change), g1=2).much, "one stays free"


def test_who_waits_for_gpus_uses_them() -> None:
    ticket = Ticket("bob", "his-bbbbbb", 1.0, wants=1, uuids=("GPU-g1-0",))
    host = replace(facts("g1", some_gpus("g1", 2)), queue=(ticket,))
    assert took(host).full == {"g1": ("bob",)}
    assert not took(replace(host, queue=(replace(ticket, user="ada"),))).much


class Asked:
    """Answers as it was told, and keeps the questions."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []

    def ask(self, question: str) -> bool | None:
        self.questions.append(question)
        return self.answers.pop(0)


def consent(needed: bool = True) -> Consent:
    hosts = tuple(Host(f"g{number}") for number in range(1, 4))
    return Consent(Hostfile("hosts.yaml", hosts), "mine-aaaaaa", ada, needed)


def test_who_has_agreed_is_asked_again_only_when_it_is_more() -> None:
    inventory = {name: facts(name, some_gpus(name, 4)) for name in ("g1", "g2", "g3")}

    def shares(*counts: int) -> list[Share]:
        return [
            Share(name, "worker", (f"GPU-{name}-{gpu}",))
            for name, count in zip(inventory, counts, strict=False)
            for gpu in range(count)
        ]

    user, asks = consent(), Asked(True, True)
    assert user.lacking(shares(4), inventory) is None
    wanted = user.lacking(shares(2, 2), inventory)
    assert wanted is not None
    user.ask(asks, wanted)
    assert user.lacking(shares(2, 2), inventory) is None
    assert user.lacking(shares(1, 2), inventory) is None
    assert user.lacking(shares(1, 1, 1), inventory) is not None, "another machine"
    wanted = user.lacking(shares(3, 2), inventory)
    assert wanted is not None
    user.ask(asks, wanted)
    assert asks.questions == [
        "4 workers on 4 of 8 GPUs of 2 hosts: go on?",
        "more is free now: 5 workers on 5 of 8 GPUs of 2 hosts: go on?",
    ]
    assert consent(needed=False).lacking(shares(4, 4, 4), inventory) is None


def test_who_waits_is_not_asked_again_for_whoever_comes_to_the_same_hosts_meanwhile() -> None:
    free = {name: facts(name, some_gpus(name, 2)) for name in ("g1", "g2")}
    ticket = Ticket("bob", "his-bbbbbb", 1.0, wants=1, uuids=("GPU-g1-0",))
    shared = {**free, "g1": replace(free["g1"], queue=(ticket,))}

    def shares(*hosts: str) -> list[Share]:
        return [Share(name, "worker", (f"GPU-{name}-{gpu}",)) for name in hosts for gpu in range(2)]

    for hosts in (["g1"], ["g1", "g2"]):
        user = consent()
        if wanted := user.lacking(shares(*hosts), free):
            user.ask(Asked(True), wanted)
        assert user.lacking(shares(*hosts), shared) is not None
        user.agree_for_later(shares(*hosts), free)
        assert user.lacking(shares(*hosts), shared) is None
    user = consent()
    user.agree_for_later(shares("g1"), free)
    assert user.lacking(shares("g1", "g2"), free) is not None, "another machine"


@pytest.mark.parametrize(("answer", "said"), [(False, "nothing was started"), (None, "tflaunch cannot ask")])
def test_who_does_not_agree_is_told_what_to_type(answer: bool | None, said: str) -> None:
    inventory = {name: facts(name, some_gpus(name, 1)) for name in ("g1", "g2")}
    shares = [Share(name, "worker", (f"GPU-{name}-0",)) for name in inventory]
    user = consent()
    wanted = user.lacking(shares, inventory)
    assert wanted is not None
    with pytest.raises(UsageError) as error:
        user.ask(Asked(answer), wanted)
    assert said in error.value.message
    assert error.value.hint == "say how many: --workers 2, or agree to what there is: --yes"
    assert error.value.exit_code == 2
