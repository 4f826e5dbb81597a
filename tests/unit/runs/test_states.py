"""What several hosts say of runs, put together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.ps import ARRIVED, NOW, entry, one, reply, worker
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.runs.listing import listing
from tflaunch.runs.record_list import RunInfo
from tflaunch.runs.run_states import HostShare, RunState, failures_of, pick_run, why_picked


def test_a_run_is_put_together_from_all_its_hosts() -> None:
    about = {"launcher": "ada@laptop", "command": ["tflaunch", "run"], "hosts": ["h1", "h2"], "tasks": {}}
    replies = {
        "h1": reply(entry("run", "h1", tasks=[worker(10), worker(2, gpus=["GPU-1", "GPU-2"])], about=about)),
        "h2": reply(
            entry("run", "h2", tasks=[worker(0, "exited", code=0)]), clock=NOW - 3600, others=("a", "b")
        ),
    }
    run = one(found := listing(replies, {}, ARRIVED))
    assert [each.task for each in run.tasks] == ["worker/0", "worker/2", "worker/10"]
    assert (run.state, run.running, run.gpus, run.launcher) == ("running", 2, 2, "ada@laptop")
    assert run.started == NOW - 3600  # the clock of h2 is an hour slow
    assert (found.others, found.failures) == (2, {})


def test_times_are_of_this_machines_clock() -> None:
    told = worker(0, since=NOW + 7200 - 60, output=NOW + 7200 - 5)
    run = one(
        listing(
            {"h1": reply(entry("run", "h1", started=NOW + 7200 - 90, tasks=[told]), clock=NOW + 7200)},
            {},
            ARRIVED,
        )
    )
    assert (run.started, run.tasks[0].since, run.tasks[0].output) == (NOW - 90, NOW - 60, NOW - 5)


def test_a_host_that_answers_long_before_the_last_one_has_no_slow_clock() -> None:
    early, late = (
        entry("run", name, "ended", started=at - 90, ended=at - 60)
        for name, at in (("h1", NOW - 4.6), ("h2", NOW))
    )
    replies = {"h1": reply(early, clock=NOW - 4.6), "h2": reply(late)}
    run = one(listing(replies, {}, {"h1": NOW - 4.6, "h2": NOW}))
    assert (run.started, run.ended) == (NOW - 94.6, NOW - 60)
    run = one(listing({"h1": replies["h1"]}, {}, {"h1": NOW - 4.6}))
    assert run.seconds == pytest.approx(30.0)
    assert run.started == NOW - 94.6


def test_two_that_tell_of_one_directory_count_once() -> None:
    about = {"hosts": ["h1"]}
    replies = {
        "h2": reply(entry("run", "h1", "elsewhere", tasks=[worker(0, "unknown")], about=about)),
        "h1": reply(entry("run", "h1", tasks=[worker(0)], about=about)),
    }
    run = one(listing(replies, {}, ARRIVED))
    assert [(share.host, share.state) for share in run.shares] == [("h1", "alive")]
    assert [each.state for each in run.tasks] == ["running"]


@pytest.mark.parametrize(
    ("shares", "tasks", "state"),
    [
        (["alive"], [worker(0, "staged")], "starting"),
        (["alive", "lost"], [worker(0)], "running"),
        (["strays"], [worker(0)], "running"),
        (["ended", "ended"], [worker(0, "exited", code=0)], "ended"),
        (["ended"], [worker(0, "exited", code=3), worker(1, "exited", code=-1, stopped=True)], "failed"),
        (["ended"], [worker(0, "exited", signal=15, stopped=True)], "stopped"),
        (["lost", "lost"], [worker(0, "lost")], "lost"),
        (["lost", "elsewhere"], [worker(0, "lost")], "unknown"),
    ],
)
def test_the_state_of_a_run(shares: list[str], tasks: list[dict[str, Any]], state: str) -> None:
    entries = [entry("run", f"h{number}", each) for number, each in enumerate(shares)]
    entries[0]["tasks"] = tasks
    assert one(listing({"h": reply(*entries)}, {}, ARRIVED)).state == state


def test_a_detached_run_for_which_nobody_decided_its_end_is_lost_and_says_why() -> None:
    stopped = worker(0, "exited", signal=15, stopped=True)
    why = "no coordinator has renewed the lease for 8 s: its agent ended the tasks"
    told = entry("run", "h1", "ended", tasks=[stopped], about={"detached": True}, why=why, lease_s=8.0)
    run = one(listing({"h1": reply(told)}, {}, ARRIVED))
    assert (run.state, run.troubles, run.lease_s) == ("lost", [f"h1: {why}"], 8.0)
    told["about"] = {}  # its launcher was killed, who has its own record
    assert one(listing({"h1": reply(told)}, {}, ARRIVED)).state == "stopped"


def test_what_had_to_be_ended_is_said_once() -> None:
    said = reply(entry("run", "h1"))
    said.fields["ended"] = [
        {"run": "trainer-abc123", "host": "h1", "killed": ["pid 7 python3 (S)"]},
        {"run": "; rm -r", "host": "h1", "killed": ["pid 8 python3 (S)"]},
    ]
    assert listing({"h1": said, "h2": said}, {}, ARRIVED).tidied == (
        "h1: ended what trainer-abc123 had left, whose agent and guard were killed: pid 7 python3 (S)",
    )


def test_hosts_that_cannot_be_asked_and_hosts_that_nobody_asked() -> None:
    about = {
        "hosts": ["h1", "h2", "h3", "h4"],
        "tasks": {"worker/0": "h1", "worker/1": "h2", "worker/2": "h3"},
    }
    down = {"h2": ConnectError("no route")}
    replies = {"h1": reply(entry("run", "h1", "lost", tasks=[worker(0, "lost")], about=about)), "h4": reply()}
    run = one(listing(replies, down, ARRIVED))
    assert {share.host: share.state for share in run.shares} == {
        **{"h1": "lost", "h2": "unreachable", "h3": "unasked", "h4": "gone"}
    }
    assert {each.task: each.state for each in run.tasks} == {
        **{"worker/0": "lost", "worker/1": "unknown", "worker/2": "unknown"}
    }
    assert run.state == "unknown"


def test_the_last_plan_counts_and_a_host_that_it_has_left_out_does_not() -> None:
    old = {"planned": NOW - 60, "hosts": ["h1", "h2"], "tasks": {"worker/0": "h1", "worker/1": "h2"}}
    new = {"planned": NOW - 5, "hosts": ["h1", "h3"], "tasks": {"worker/0": "h1", "worker/1": "h3"}}
    replies = {
        "h2": reply(
            entry("run", "h2", "ended", tasks=[worker(1, "exited", code=-1, stopped=True)], about=old)
        ),
        "h1": reply(entry("run", "h1", tasks=[worker(0)], about=new)),
        "h3": reply(entry("run", "h3", tasks=[worker(1, attempts=2)], about=new)),
    }
    run = one(listing(replies, {}, ARRIVED))
    assert [(each.task, each.host, each.state, each.attempts) for each in run.tasks] == [
        ("worker/0", "h1", "running", 1),
        ("worker/1", "h3", "running", 2),
    ]
    del replies["h2"]
    assert one(listing(replies, {"h2": ConnectError("no route")}, ARRIVED)).hosts == ("h1", "h3")


def test_what_is_recorded_here_fills_in(tmp_path: Path) -> None:
    infos = [
        RunInfo("run", "ended", tmp_path, NOW - 9, ("tflaunch", "run"), ("h1",), 0),
        RunInfo("away", "running", tmp_path, NOW - 5, ("tflaunch",), ("h1", "h2")),
        RunInfo("over", "ended", tmp_path, NOW - 5, ("tflaunch",), ("h2",), 1),
        RunInfo("here", "orphaned", tmp_path, NOW - 5, ("tflaunch",), ("h1",)),
    ]
    found = listing(
        {"h1": reply(entry("run", "h1", "ended"))}, {"h2": ConnectError("no route")}, ARRIVED, infos
    )
    assert [(run.run_id, run.state) for run in found.runs] == [("away", "unknown"), ("run", "succeeded")]
    assert found.runs[1].command == ("tflaunch", "run")


def test_only_hosts_that_may_have_a_part_of_the_run_matter() -> None:
    failures = {"h2": ConnectError("no route"), "h9": ConnectError("no route")}
    told = RunState("run", (HostShare("h1", "alive"), HostShare("h2", "unreachable")), launcher="ada@laptop")
    assert list(failures_of(told, failures)) == ["h2"]
    unasked = dataclasses.replace(told, shares=(*told.shares, HostShare("other.name.of.h9", "unasked")))
    unknown = dataclasses.replace(told, launcher="")
    assert list(failures_of(unasked, failures)) == list(failures_of(unknown, failures)) == ["h2", "h9"]


def test_a_name_means_the_run_alive_else_the_newest_of_that_name() -> None:
    alive = (HostShare("h1", "alive"),)
    newest, running, other = (
        RunState("mnist-234567", ()),
        RunState("mnist-abcdef", alive),
        RunState("mnist-big-abcdef", alive),
    )
    assert pick_run("mnist", (newest, running, other)) == running
    assert pick_run("mnist", (newest, other)) == newest
    assert pick_run("mnist-big", (newest, running, other)) == other
    with pytest.raises(UsageError, match="2 runs begin with mnist"):
        pick_run("mnist", (running, dataclasses.replace(running, run_id="mnist-bbbbbb")))


def test_which_run_is_meant() -> None:
    alive = (HostShare("h1", "alive"),)
    first, second, ended = RunState("run-aa", alive), RunState("run-ab", alive), RunState("old-aa", ())
    assert pick_run("run-ab", (first, second)) == second
    assert pick_run("run-a", (first, ended)) == first
    assert pick_run(None, (first, ended)) == pick_run(None, (ended, first)) == first
    assert pick_run(None, (ended,)) == ended
    assert why_picked(first) == "run-aa: the only run alive"
    assert why_picked(ended) == "old-aa: the newest run; none is alive"
    for name, among in (
        (None, (first, second)),
        (None, ()),
        ("run-a", (first, second)),
        ("x", (first,)),
    ):
        with pytest.raises(UsageError):
            pick_run(name, among)
    asked = Hostfile("hosts.yaml", (Host("g1"), Host("g2")))
    with pytest.raises(UsageError, match=r"^no run is alive on g\[1-2\] \(hosts.yaml\)$"):
        pick_run(None, (), asked)
    with pytest.raises(UsageError, match=r"^no run x is known on g\[1-2\] \(hosts.yaml\)$"):
        pick_run("x", (first,), asked)
