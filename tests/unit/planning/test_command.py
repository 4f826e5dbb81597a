"""How a task is told who it is: flags, TF_CONFIG, environment, and arguments that arrive byte for byte."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tflaunch.hosts import Host
from tflaunch.inputs.variables import ARGUMENT_LIMIT_BYTES
from tflaunch.planning.task_commands import Command, endpoint, interpreter
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import FLAGS, JobSpec, Requirements, Role, TaskId

CLUSTER = {"ps": ["gpu1:20000"], "worker": ["gpu1:20001", "gpu2:20000"]}
HOST = Host(name="gpu2")
WORKER = TaskId("worker", 1)


def command(job: JobSpec, cluster: dict[str, list[str]] | None = None) -> Command:
    return Command(job, CLUSTER if cluster is None else cluster, "trainer-k3f9x2")


def argv(job: JobSpec, cluster: dict[str, list[str]] | None = None) -> tuple[str, ...]:
    return command(job, cluster).argv(WORKER, HOST)


def test_classic_flags_then_the_users_own_arguments() -> None:
    assert argv(JobSpec(("trainer.py",), args=("--epochs", "3"))) == (
        "python3",
        "trainer.py",
        "--ps_hosts=gpu1:20000",
        "--worker_hosts=gpu1:20001,gpu2:20000",
        "--job_name=worker",
        "--task_index=1",
        "--epochs",
        "3",
    )


def test_module_program_and_no_ps() -> None:
    words = argv(JobSpec(("-m", "pkg.train")), {"worker": ["a:1", "b:2"]})
    assert words[1:5] == ("-m", "pkg.train", "--ps_hosts=", "--worker_hosts=a:1,b:2")


def test_chief_hosts_only_with_a_chief() -> None:
    words = argv(JobSpec(("t.py",)), {"chief": ["c:9"], **CLUSTER})
    assert words[2:7] == (
        "--ps_hosts=gpu1:20000",
        "--worker_hosts=gpu1:20001,gpu2:20000",
        "--chief_hosts=c:9",
        "--job_name=worker",
        "--task_index=1",
    )
    assert not any(word.startswith("--chief") for word in argv(JobSpec(("t.py",))))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (None, []),
        ({"task_index": "task_id"}, ["--ps_hosts", "--worker_hosts", "--job_name", "--task_id"]),
        ({"job_name": "--job-name"}, ["--ps_hosts", "--worker_hosts", "--job-name", "--task_index"]),
        ({"job_name": "-j"}, ["--ps_hosts", "--worker_hosts", "-j", "--task_index"]),
        ({"ps_hosts": ""}, ["--worker_hosts", "--job_name", "--task_index"]),
        ({"ps_hosts": "", "worker_hosts": "", "job_name": "", "task_index": ""}, []),
        ({"task": "job"}, ["--ps_hosts", "--worker_hosts", "--job"]),
        ({**FLAGS, "task": "-t", "ps_hosts": ""}, ["--worker_hosts", "-t"]),
    ],
)
def test_flag_names(flags: dict[str, str] | None, expected: list[str]) -> None:
    words = argv(JobSpec(("t.py",), args=("last",), flags=flags))
    assert [word.partition("=")[0] for word in words[2:-1]] == expected
    assert words[-1] == "last"


OWN = {"data": Role(2), "evaluator": Role(1, args=("--eval",), env={"X": "role", "Y": "role"})}
WITH_OWN = {"data": ["d:1", "d:2"], **CLUSTER}


def test_jobs_of_ones_own_have_a_flag_as_ps_have() -> None:
    words = argv(JobSpec(("t.py",), roles=OWN), WITH_OWN)
    assert "--data_hosts=d:1,d:2" in words
    assert not any("evaluator_hosts" in word for word in words)
    renamed = argv(JobSpec(("t.py",), roles=OWN, flags={**FLAGS, "data_hosts": "feeders"}), WITH_OWN)
    assert "--feeders=d:1,d:2" in renamed
    dropped = argv(JobSpec(("t.py",), roles=OWN, flags={**FLAGS, "data_hosts": ""}), WITH_OWN)
    assert not any("d:1" in word for word in dropped)
    with pytest.raises(UsageError, match="there is no flag 'dat_hosts'") as raised:
        command(JobSpec(("t.py",), roles=OWN, flags={"dat_hosts": "x"}), WITH_OWN)
    assert raised.value.hint == "Did you mean data_hosts?"


def test_one_flag_says_job_and_index() -> None:
    assert "--job=worker:1" in argv(JobSpec(("t.py",), flags={"task": "job"}))


def test_flags_of_two_words_and_none_that_is_empty() -> None:
    words = argv(JobSpec(("t.py",), flag_style="words", args=("last",)), {"worker": ["a:1", "b:2"]})
    assert words[2:] == (
        "--ps_hosts", "", "--worker_hosts", "a:1,b:2", "--job_name", "worker", "--task_index", "1", "last",
    )  # fmt: skip
    without = argv(JobSpec(("t.py",), empty_flags=False), {"worker": ["a:1", "b:2"]})
    assert without[2:] == ("--worker_hosts=a:1,b:2", "--job_name=worker", "--task_index=1")


def test_a_role_with_a_program_of_its_own() -> None:
    data = Role(2, program=("-m", "pkg.server"), args=("--port={port}",))
    job = JobSpec(("t.py",), args=("--epochs",), file_args=("--x",), roles={"data": data})
    task = TaskId("data", 1)
    assert command(job, WITH_OWN).argv(task, HOST) == ("python3", "-m", "pkg.server", "--port=2")
    assert argv(job, WITH_OWN)[-2:] == ("--x", "--epochs")
    taking = dataclasses.replace(job, roles={"data": dataclasses.replace(data, takes_flags=True)})
    assert command(taking, WITH_OWN).argv(task, HOST)[-3:] == (
        "--job_name=data",
        "--task_index=1",
        "--port=2",
    )
    by_shell = dataclasses.replace(job, roles={"data": Role(2, program=("bash", "serve.sh"))})
    assert command(by_shell, WITH_OWN).argv(task, HOST) == ("bash", "serve.sh")


def test_a_task_that_is_given_its_port_by_a_placeholder_may_open_it_as_any_program_does() -> None:
    job = JobSpec(
        ("t.py",),
        env={"A": "{port}"},
        literal=frozenset({"A"}),
        roles={
            "data": Role(2, args=("--at={address}",)),
            "ps": Role(1, env={"P": "{port}"}),
            "evaluator": Role(1),
        },
    )
    made = command(job, WITH_OWN)
    given = {
        job: made.is_given_its_port(TaskId(job, 0), HOST) for job in ("data", "ps", "worker", "evaluator")
    }
    assert given == {"data": True, "ps": True, "worker": False, "evaluator": False}
    assert made.filled(TaskId("ps", 0), Host(name="a", env={"A": "{host}", "B": "{host}"})) == ("B", "P")


def test_the_environment_and_the_arguments_of_a_role() -> None:
    job = JobSpec(("t.py",), args=("own",), env={"X": "job", "Z": "job"}, roles=OWN)
    evaluator = TaskId("evaluator", 0)
    env = command(job).env(evaluator, Host(name="a", env={"Y": "host"}), ())
    assert [env[name] for name in "XYZ"] == ["role", "role", "job"]
    assert command(job).argv(evaluator, HOST)[-4:] == (
        "--job_name=evaluator",
        "--task_index=0",
        "own",
        "--eval",
    )
    assert argv(job)[-1] == "own"
    forbidden = JobSpec(("t.py",), roles={"evaluator": Role(1, env={"TF_CONFIG": ""})})
    with pytest.raises(PlanError, match="--job-env evaluator sets TF_CONFIG"):
        command(forbidden).env(evaluator, HOST, ())


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        ({"task_idx": "i"}, "there is no flag 'task_idx'", "Did you mean task_index?"),
        ({"wibble": "i"}, "there is no flag 'wibble'", "The flags are ps_hosts, worker_hosts"),
        ({"job_name": "a b"}, "'a b' cannot be the name of a flag", "--flag job_name=job-name"),
        ({"job_name": "x=y"}, "'x=y' cannot be the name", "Write it as the program does"),
        ({"job_name": "--"}, "'--' cannot be the name", "Write it as the program does"),
        ({"job_name": "t", "task_index": "--t"}, "job_name already goes by --t", "leave one out"),
    ],
)
def test_flag_names_that_cannot_work(flags: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        command(JobSpec(("t.py",), flags=flags))
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host(name="a"), "python3"),
        (Host(name="a", python="/opt/my env/bin/python"), "/opt/my env/bin/python"),
        (Host(name="a", connection="local"), f"{sys.prefix}/bin/python3"),
        (Host(name="a", connection="local", setup=("module load cuda",)), f"{sys.prefix}/bin/python3"),
        (Host(name="a", connection="local", setup=("source ~/venv/bin/activate",)), "python3"),
        (Host(name="a", connection="local", python="python3.9"), "python3.9"),
        (Host(name="a", connection="local", venv="~/venv"), "python3"),
        (Host(name="a", connection="local", conda="tf"), "python3"),
        (Host(name="a", connection="local", container="img:1"), "python3"),
        (Host(name="a", container="img:1", python="/opt/bin/python"), "/opt/bin/python"),
    ],
)
def test_interpreter(monkeypatch: pytest.MonkeyPatch, host: Host, expected: str) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert interpreter(host, JobSpec(("t.py",))) == expected


def test_the_interpreter_of_requirements_is_the_one_that_comes_first() -> None:
    job = JobSpec(("t.py",), requirements=Requirements("pip", "r.txt", {"r.txt": ""}))
    assert interpreter(Host(name="a", python="/usr/bin/python3.11"), job) == "python3"


def test_endpoint_puts_ipv6_in_brackets() -> None:
    assert endpoint("gpu1.lab", 20000) == "gpu1.lab:20000"
    assert endpoint("fd00::7", 20000) == "[fd00::7]:20000"


def test_environment() -> None:
    env = command(JobSpec(("t.py",), framework="tensorflow")).env(WORKER, HOST, ("GPU-a", "GPU-b"))
    assert json.loads(env.pop("TF_CONFIG")) == {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}
    assert env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "TFLAUNCH_RUN": "trainer-k3f9x2",
        "TFLAUNCH_TASK": "worker/1",
        "TF_GRPC_REUSE_PORT": "true",
        "no_grpc_proxy": "gpu1,gpu2,localhost,127.0.0.1",
    }


def test_a_task_without_gpus_sees_none() -> None:
    assert command(JobSpec(("t.py",))).env(TaskId("ps", 0), HOST, ())["CUDA_VISIBLE_DEVICES"] == ""


def test_no_grpc_proxy_names_ipv6_without_brackets() -> None:
    env = command(JobSpec(("t.py",)), {"worker": ["[fd00::7]:1", "[fd00::7]:2"]}).env(WORKER, HOST, ())
    assert env["no_grpc_proxy"] == "fd00::7,localhost,127.0.0.1"


def test_the_jobs_environment_wins_over_the_hosts_and_ours() -> None:
    host = Host(name="a", env={"X": "host", "Y": "host", "PYTHONUNBUFFERED": "0"})
    env = command(JobSpec(("t.py",), env={"X": "job", "no_grpc_proxy": "mine"})).env(WORKER, host, ())
    assert [env[name] for name in ("X", "Y", "PYTHONUNBUFFERED", "no_grpc_proxy")] == [
        "job",
        "host",
        "0",
        "mine",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CUDA_VISIBLE_DEVICES", "`gpus:`"),
        ("TF_CONFIG", "unset TF_CONFIG"),
        ("TF_GRPC_REUSE_PORT", "held"),
        ("TFLAUNCH_RUN", "tflaunch stop"),
        ("TFLAUNCH_TASK", "tflaunch stop"),
    ],
)
def test_what_the_plan_decided_cannot_be_set(name: str, hint: str) -> None:
    with pytest.raises(PlanError, match=f"--env sets {name}") as raised:
        command(JobSpec(("t.py",), env={name: "0"})).env(WORKER, HOST, ())
    assert hint in raised.value.hint
    with pytest.raises(PlanError, match=f"gpu9: env sets {name}"):
        command(JobSpec(("t.py",))).env(WORKER, Host(name="gpu9", env={name: "0"}), ())


def test_a_cluster_too_large_for_one_argument() -> None:
    def sized(size: int) -> dict[str, list[str]]:
        return {"worker": ["h" * (size - len("--worker_hosts=:1") - 100) + ":1"]}

    command(JobSpec(("t.py",)), sized(ARGUMENT_LIMIT_BYTES))
    with pytest.raises(PlanError, match="of this cluster is 131,072 bytes; Linux takes 131,071 at most"):
        command(JobSpec(("t.py",)), sized(ARGUMENT_LIMIT_BYTES + 101))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_the_limit_is_the_kernels() -> None:
    subprocess.run(["/bin/true", "x" * ARGUMENT_LIMIT_BYTES], check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true", "x" * (ARGUMENT_LIMIT_BYTES + 1)], check=True)


def test_arguments_arrive_byte_for_byte(tmp_path: Path) -> None:
    script = tmp_path / 'it\'s "a" $HOME\nscript.py'
    script.write_text("import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))")
    args = (
        "two words", "", "'single'", '"double"', "line\nbreak", "$HOME", "`id`", "*", "back\\slash", "--",
        "-x", "--ps_hosts=mine", "π", os.fsdecode(b"\xff\xfe"),
    )  # fmt: skip
    job = JobSpec((str(script),), args=args)
    words = command(job).argv(WORKER, Host(name="a", connection="local"))
    env = {**os.environ, **command(job).env(WORKER, HOST, ())}
    seen = subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True).stdout
    assert seen.split(b"\0")[4:] == [os.fsencode(arg) for arg in args]
