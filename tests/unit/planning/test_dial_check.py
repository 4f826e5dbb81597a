"""Which pairs are checked before a run, and what a blocked one looks like to the user."""

from __future__ import annotations

from dataclasses import replace

from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.dial_pattern import Ways
from tflaunch.planning.dials import blocked, failed_ends, loads, needed, share_words, to_wire
from tflaunch.protocol.dialling import NARROW, NO_NAME, REFUSED, SILENT, STRANGER
from tflaunch.protocol.job import TaskId


def plan(**hosts: str) -> ClusterPlan:
    """`plan(gpu01="ps/0 worker/0")`: hosts at 10.0.0.1, ...; ports from 2222 on each."""
    tasks = [
        TaskPlan(TaskId.parse(text), host, f"10.0.0.{number}", 2222 + at, (), (), (), {}, (), None)
        for number, (host, words) in enumerate(hosts.items(), 1)
        for at, text in enumerate(words.split())
    ]
    return ClusterPlan("run", tuple(tasks))


def targets(made: ClusterPlan) -> dict[str, list[TaskPlan]]:
    return Ways(made).first()


def pairs(made: ClusterPlan) -> dict[str, set[str]]:
    return {host: {str(task.id) for task in tasks} for host, tasks in targets(made).items()}


def test_workers_and_ps_call_each_other_and_ps_do_not() -> None:
    made = plan(a="ps/0", b="ps/1", c="worker/0", d="worker/1")
    assert pairs(made) == {
        "a": {"worker/0", "worker/1"},
        "b": {"worker/0", "worker/1"},
        "c": {"ps/0", "ps/1", "worker/1"},
        "d": {"ps/0", "ps/1", "worker/0"},
    }


def test_a_host_calls_itself_when_its_tasks_call_each_other() -> None:
    assert pairs(plan(a="ps/0 worker/0", b="worker/1 worker/2")) == {
        "a": {"ps/0", "worker/0", "worker/1", "worker/2"},
        "b": {"ps/0", "worker/0", "worker/1", "worker/2"},
    }
    assert pairs(plan(a="ps/0 ps/1", b="chief/0")) == {"a": {"chief/0"}, "b": {"ps/0", "ps/1"}}
    assert pairs(plan(a="ps/0 ps/1")) == pairs(plan(a="worker/0")) == {}


def test_an_evaluator_neither_calls_nor_is_called() -> None:
    made = plan(a="ps/0", b="worker/0 data/0", c="evaluator/0")
    tasks = [replace(task, port=None) if task.id.job == "evaluator" else task for task in made.tasks]
    made = ClusterPlan("run", tuple(tasks))
    assert pairs(made) == {"a": {"worker/0", "data/0"}, "b": {"ps/0", "worker/0", "data/0"}}
    here = TaskPlan(TaskId("worker", 0), "h", "127.0.0.1", 1, (), (), (), {}, (), None)
    there = replace(here, id=TaskId("evaluator", 0), host="i", address="10.0.0.9", port=None)
    assert not needed(ClusterPlan("run", (here, there)))


def test_not_every_host_calls_the_same_one_first() -> None:
    made = plan(**{f"h{number}": f"worker/{number}" for number in range(8)})
    first = [tasks[0].host for tasks in targets(made).values()]
    assert len(set(first)) >= 7
    assert all(len(tasks) == 7 for tasks in targets(made).values())


def test_what_is_all_on_this_machine_needs_no_check() -> None:
    here = TaskPlan(TaskId("worker", 0), "h", "127.0.0.1", 1, (), (), (), {}, (), None)
    assert not needed(ClusterPlan("run", (here,)))
    assert needed(plan(a="worker/0"))


def test_a_blocked_pair_is_named_with_its_port() -> None:
    wanted = targets(plan(gpu01="ps/0", gpu02="worker/0"))
    assert to_wire(wanted["gpu02"]) == [["10.0.0.1", 2222, "gpu01"]]
    failures, steps = blocked(wanted, {"gpu01": [0.2], "gpu02": [(SILENT, "")]})
    assert failures == {"gpu02": "cannot reach ps/0 at 10.0.0.1:2222: silently dropped (a firewall?)"}
    assert any("`ports:`" in step for step in steps)
    assert any("--no-dial-check" in step for step in steps)
    assert blocked(wanted, {"gpu01": [0.2], "gpu02": [1]}) == ({}, [])


def test_what_is_blocked_for_one_reason_is_one_sentence() -> None:
    wanted = targets(plan(a="ps/0", b="ps/1", c="worker/0 worker/1 worker/2", d="worker/3"))
    results = {host: [0.1] * len(tasks) for host, tasks in wanted.items()}
    results["d"] = [(REFUSED, "") if task.host == "c" else (SILENT, "") for task in wanted["d"]]
    failures, _ = blocked(wanted, results)
    assert failures["d"].splitlines() == [
        "cannot reach ps/0 at 10.0.0.1:2222, ps/1 at 10.0.0.2:2222: silently dropped (a firewall?)",
        "cannot reach worker/0 at 10.0.0.3:2222, worker/1 at 10.0.0.3:2223, worker/2 at 10.0.0.3:2224: "
        "refused (a firewall that rejects?)",
    ]
    results["d"] = [(SILENT, "")] * len(wanted["d"])
    assert blocked(wanted, results)[0] == {
        "d": "cannot reach 5 tasks on a,b,c (ports 2222-2224): silently dropped (a firewall?)"
    }


def test_details_are_told() -> None:
    wanted = targets(plan(a="ps/0", b="worker/0"))
    told = [(NO_NAME, "Name or service not known"), (STRANGER, "it is gpu03 of this run")]
    for (verdict, detail), words in zip(told, ("does not resolve", "something else answers"), strict=True):
        failures, _ = blocked(wanted, {"a": [0.1], "b": [(verdict, detail)]})
        assert words in failures["b"]
        assert failures["b"].endswith(f": {detail}")
    failures, steps = blocked(wanted, {"a": [0.1], "b": [("failed", "Too many open files")]})
    assert failures["b"].endswith(": Too many open files")
    assert len(steps) == 1


def test_every_ordered_pair_of_hosts_has_one_load() -> None:
    wanted = targets(plan(a="ps/0 worker/0", b="worker/1 worker/2", c="ps/1"))
    pairs = [(host, tasks[number].host) for host, tasks in wanted.items() for number in loads(host, tasks)]
    assert sorted(pairs) == [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]


def test_a_pair_that_has_had_its_load_gets_no_other() -> None:
    made = plan(a="ps/0 worker/0", b="worker/1 worker/2", c="ps/1")
    called = targets(made)["a"]
    before = [task for task in called if task.host == "b"][:1]
    more = [task for task in called if task not in before]
    assert [more[number].host for number in loads("a", more, before)] == ["c"]


def test_what_was_not_dialled_is_said() -> None:
    assert share_words(1.0) == ""
    assert share_words(0.0273) == "3 % of the ways between the hosts"
    assert share_words(0.0001).startswith("1 % of")


def test_a_way_that_loses_large_packets_is_told_with_their_size_and_both_mtus() -> None:
    wanted = targets(plan(gpu01="ps/0", gpu02="worker/0", gpu03="worker/1"))
    results: dict[str, list[float | tuple[str, str]]] = {host: [0.1, 0.1] for host in wanted}
    results["gpu02"][[task.host for task in wanted["gpu02"]].index("gpu01")] = (NARROW, "1400")
    assert failed_ends(wanted, results, NARROW) == {"gpu01", "gpu02"}
    failures, steps = blocked(wanted, results, {"gpu01": "9000 (eth0)", "gpu02": "1500 (ens3)"})
    assert failures == {
        "gpu02": "cannot reach ps/0 at 10.0.0.1:2222: it answers, but packets of more than 1400 bytes from there do not"
        " arrive (a smaller MTU on the way?); the MTU is 1500 (ens3) on gpu02 and 9000 (eth0) on gpu01"
    }
    assert steps[0].startswith("`ping -M do -s 1372 10.0.0.1` tries 1400 bytes; give the hosts that MTU")
    results["gpu02"] = [(NARROW, "no number")] * 2
    failures, steps = blocked(wanted, results)
    assert "it answers, but large packets from there do not arrive" in failures["gpu02"]
    assert failures["gpu02"].endswith("(a smaller MTU on the way?): no number")
    assert failed_ends(wanted, results) == {"gpu01", "gpu02", "gpu03"}
    assert failed_ends(wanted, {host: [0.1, 0.1] for host in wanted}) == set()
