"""What is shown of a plan."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from tests.support.endings import PLAN, task_plan
from tests.support.screen import PS0, W0, W1, on_terminal, plain, shown
from tflaunch.documents.reporter import Reporter
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.job import TaskId


def test_the_plan_is_a_table_and_one_command() -> None:
    out, err = shown(lambda reporter: reporter.plan(PLAN))
    assert err == ""
    assert out.splitlines() == [
        "task       host    address      GPUs",
        "ps/0       gpu01   gpu01:2000   -",
        "worker/0   gpu01   gpu01:2001   0,3",
        "worker/1   gpu02   gpu02:2001   1,2",
        "",
        "ps/0 runs, in the shipped code:",
        "  python trainer.py --ps_hosts=gpu01:2000 --worker_hosts=gpu01:2001,gpu02:2001 --job_name=ps"
        " --task_index=0 --data 'my set'",
        "and each task likewise, with its own --job_name and --task_index",
        "--json shows each task with its environment",
        "! gpu02 has [proxies]",
    ]


def test_a_narrow_terminal_breaks_neither_an_address_nor_a_word_of_the_command() -> None:
    assert plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=35)) == [
        "ps/0 on gpu01",
        "  gpu01:2000",
        "worker/0 on gpu01",
        "  gpu01:2001, GPUs 0,3",
        "worker/1 on gpu02",
        "  gpu02:2001, GPUs 1,2",
        "",
        "ps/0 runs, in the shipped code:",
        "  python trainer.py \\",
        "    --ps_hosts=gpu01:2000 \\",
        "    --worker_hosts=gpu01:2001,gpu02:2001 \\",  # one word, left for the terminal to wrap
        "    --job_name=ps --task_index=0 \\",
        "    --data 'my set'",
        "and each task likewise, with its",
        "own --job_name and --task_index",
        "--json shows each task with its",
        "environment",
        "! gpu02 has [proxies]",
    ]
    wide = plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=36))
    assert wide[:2] == ["task       host    address      GPUs", "ps/0       gpu01   gpu01:2000   -"]


def test_the_command_that_is_shown_is_the_one_that_runs() -> None:
    screen = "\n".join(plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=30)))
    command = screen[screen.index("  python") : screen.index("and each")]
    assert tuple(shlex.split(command.replace("\\\n", ""))) == PLAN.tasks[0].argv


def test_what_differs_between_tasks_is_named() -> None:
    tasks = [PLAN.tasks[0], PLAN.tasks[2]]
    own = dataclasses.replace(tasks[1], argv=("/opt/python", *tasks[1].argv[1:]), cwd="/srv/train")
    out = shown(lambda reporter: reporter.plan(ClusterPlan("r-1", (tasks[0], own))))[0]
    assert "with its own interpreter, --job_name and --task_index\nother tasks run in /srv/train\n" in out
    assert (
        "each task"
        not in shown(lambda reporter: reporter.plan(ClusterPlan("r-1", (own,))))[0].split("--json")[0]
    )


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ({W0}, None),
        ({TaskId("worker", 7)}, "--only worker/7: the plan has worker/0 to worker/1, so nothing is shown"),
        ({W0, TaskId("ps", 1)}, "--only ps/1: the plan has ps/0"),
        (
            {TaskId("chief", 0)},
            "--only chief/0: the plan has ps/0, worker/0 to worker/1, so nothing is shown",
        ),
    ],
)
def test_a_task_that_the_plan_does_not_have_is_said(only: set[TaskId], said: str | None) -> None:
    err = shown(lambda reporter: reporter.plan(PLAN, brief=True), only=only)[1].splitlines()
    assert [line for line in err if "--only" in line] == ([f"! {said}"] if said else [])
    out = shown(lambda reporter: reporter.plan(PLAN, brief=True), only=only, json=True)[0]
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["text"] for event in events if event["event"] == "warn"] == ([said] if said else [])


def test_the_brief_plan_goes_beside_the_logs_and_fixes_their_width() -> None:
    def act(reporter: Reporter) -> None:
        reporter.plan(PLAN, brief=True)
        reporter.log(PS0, "gpu01", 0, b"line\n")

    out, err = shown(act)
    assert out == "ps/0     │ line\n"
    assert err.splitlines() == [
        "run trainer-abc234",
        "  1 ps       on gpu01",
        "  2 workers  on gpu[01-02]  2 GPUs each",
        "! gpu02 has [proxies]",
    ]


def test_mig_instances_are_shown_as_people_call_them() -> None:
    plan = ClusterPlan("r-1", (task_plan(W0, "gpu01", "0.0"), task_plan(W1, "gpu01", "0.1")))
    out = shown(lambda reporter: reporter.plan(plan))[0]
    assert "worker/1   gpu01   gpu01:2001   0.1" in out.splitlines()
    brief = shown(lambda reporter: reporter.plan(plan, brief=True))[1]
    assert "  2 workers  on gpu01  1 MIG instance each" in brief.splitlines()
    data = shown(lambda reporter: reporter.plan(plan), json=True)[0]
    assert [task["gpu_labels"] for task in json.loads(data)["tasks"]] == [["0.0"], ["0.1"]]
