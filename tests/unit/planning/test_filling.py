"""Placeholders in arguments and variables: what they stand for, what stays as it is, and what is told."""

from __future__ import annotations

import json

import pytest

from tests.support.planned import asked
from tflaunch.hosts import Host, Hostfile
from tflaunch.inputs.placeholders import filled
from tflaunch.planning.environments import to_prepare
from tflaunch.planning.filling import check
from tflaunch.planning.task_commands import Command
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import JobSpec, Role, TaskId

CLUSTER = {"ps": ["gpu1:20000"], "worker": ["gpu1:20001", "[fd00::2]:20000"], "data": ["gpu1:20002"]}
ROLES = {"data": Role(1), "evaluator": Role(1)}
HOST = Host(name="second")
WORKER = TaskId("worker", 1)


def env(text: str, task: TaskId = WORKER, host: Host = HOST) -> str:
    """What a task gets for `--env X=text`."""
    job = JobSpec(("t.py",), env={"X": text}, roles=ROLES)
    return Command(job, CLUSTER, "t-k3f9x2", addresses={"second": "fd00::2"}).env(task, host, ())["X"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{job}:{index}", "worker:1"),
        ("{host} {port} {address}", "fd00::2 20000 [fd00::2]:20000"),
        ("{ps_hosts}|{worker_hosts}|{data_hosts}", "gpu1:20000|gpu1:20001,[fd00::2]:20000|gpu1:20002"),
        ("{chief_hosts}", ""),  # this cluster has none
        ("{rank}/{world_size} {local_rank} {chief_host}:{chief_port}", "1/2 0 gpu1:20001"),
        ("{run}", "t-k3f9x2"),
        ("{cluster_json}", json.dumps(CLUSTER, separators=(",", ":"))),
    ],
)
def test_what_they_stand_for(text: str, expected: str) -> None:
    assert env(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a":{"b":{}}}', '{"a":{"b":{}}}'),
        ('{"a":{"b":{job}}}', '{"a":{"b":J}}'),
        ('{"a":{{job}}}', '{"a":{job}}'),
        ("${HOME} ${{job}} $job", "${HOME} ${{job}} $job"),
        ("{0} {} { job } {a,b} {job:3} {jo-b} {", "{0} {} { job } {a,b} {job:3} {jo-b} {"),
        ("{job}{job}", "JJ"),
        ("{{job}}", "{job}"),
        ("{{{job}}}", "{J}"),
        ("{{{{job}}}}", "{{job}}"),
        ("{{job}", "{J"),
        ("{job}}", "J}"),
    ],
)
def test_other_braces_stay(text: str, expected: str) -> None:
    assert filled(text, {"job": "J"}.__getitem__) == expected


def test_what_follows_the_dashes_stays_byte_for_byte() -> None:
    job = JobSpec(
        ("t.py",),
        file_args=("--me={index}",),
        args=("--name={index}", "{{index}}"),
        flags=None,
        roles={"worker": Role(args=("--port={port}",))},
    )
    words = Command(job, CLUSTER, "t-k3f9x2").argv(WORKER, HOST)
    assert words[2:] == ("--me=1", "--name={index}", "{{index}}", "--port=20000")


def test_a_value_that_was_not_written_for_tflaunch_stays() -> None:
    job = JobSpec(
        ("t.py",),
        env={"A": "{prot}", "B": "{index}"},
        literal=frozenset({"A"}),
        roles={"worker": Role(env={"C": "{index}", "D": "{prot}"}, literal=frozenset({"D"}))},
    )
    check(job, Hostfile("hosts.yaml", (HOST,)))
    told = Command(job, CLUSTER, "t-k3f9x2").env(WORKER, Host(name="second", env={"H": "{rank}"}), ())
    assert [told[name] for name in "ABCDH"] == ["{prot}", "1", "1", "{prot}", "1"]


@pytest.mark.parametrize(
    ("job", "host", "message", "hint"),
    [
        (
            asked(roles={"data": Role(1, args=("--port={prot}",))}),
            HOST,
            "--job-args data: there is no placeholder {prot}",
            "did you mean {port}? for {prot} itself, write {{prot}}",
        ),
        (asked(env={"X": "{jobs}"}), HOST, "--env X: there is no placeholder {jobs}", "did you mean {job}?"),
        (
            asked(roles={"data": Role(1, env={"X": "{dat_hosts}"})}),
            HOST,
            "--job-env data=X: there is no placeholder {dat_hosts}",
            "did you mean {data_hosts}?",
        ),
        (
            asked(file_args=("{lr}",)),
            HOST,
            "args of the job file: there is no placeholder {lr}",
            "there are {job}",
        ),
        (asked(), Host(name="a", env={"X": "{INDEX}"}), "a: env X: there is no", "did you mean {index}?"),
    ],
)
def test_a_name_that_is_no_placeholder(job: JobSpec, host: Host, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        check(job, Hostfile("hosts.yaml", (host,)))
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_task_without_such_a_value() -> None:
    with pytest.raises(
        PlanError, match=r"--env X: evaluator/0 has no \{port\}: it is no part of the cluster"
    ) as raised:
        env("{port}", TaskId("evaluator", 0))
    assert "--job-env JOB=NAME=VALUE" in raised.value.hint
    with pytest.raises(PlanError, match=r"ps/0 has no \{rank\}"):
        env("{rank}", TaskId("ps", 0))
    assert env("{world_size}", TaskId("ps", 0)) == "2"
    with pytest.raises(UsageError, match=r"--env X: a trial has no \{port\}"):
        check(asked(env={"X": "{port}"}), Hostfile("hosts.yaml", (HOST,)), trials=True)
    check(asked(env={"X": "{index} on {host}"}), Hostfile("hosts.yaml", (HOST,)), trials=True)


def test_more_than_linux_takes() -> None:
    cluster = {"worker": [f"a-host-with-a-long-name-{index}:20000" for index in range(2000)]}
    job = JobSpec(("t.py",), env={"X": "{worker_hosts}{worker_hosts}"})
    with pytest.raises(PlanError, match=r"--env X: filled in for worker/1 it is 1\d\d,\d\d\d bytes"):
        Command(job, cluster, "t-k3f9x2").env(WORKER, HOST, ())


def test_an_environment_is_installed_with_what_is_the_same_for_all_tasks() -> None:
    host = Host(name="a", env={"H": "{index}", "J": "{{index}}"})
    job = JobSpec(("t.py",), env={"A": "1", "B": "{port}", "C": "{port}"}, literal=frozenset({"C"}))
    assert to_prepare(host, job, ())["env"] == {"J": "{index}", "A": "1", "C": "{port}"}
