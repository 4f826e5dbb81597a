"""The job file: every problem at once, with its position; what it says reaches the run, and options win over it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from tflaunch.inputs.job_file import load
from tflaunch.inputs.job_model import RoleSettings, json_schema, model
from tflaunch.inputs.options.declared import Group
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.protocol.errors import EXIT_USAGE, JobFileError
from tflaunch.protocol.job import Role

EXAMPLE = ROOT / "examples" / "job.yaml"


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is wrong with a job file of that text, each without the name of the file."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobFileError) as raised:
        load(str(path))
    assert raised.value.exit_code == EXIT_USAGE
    return [str(problem).removeprefix(f"{path}:").strip() for problem in raised.value.problems]


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = """\
program: trainer.py
ags: 3
env: {TF_CONFIG: x, 1X: 2}
roles:
  ps: two
  worker: {count: 2, gpu: 1, end: maybe}
  my-data: 1
  chief: 2
  evaluator:
timeout: soon
share_gpus: "yes"
flags: {task_idx: a}
workers: 3
hosts: [a]
args: [yes]
"""
    found = problems(tmp_path, text)
    assert [each.split(" ")[0] for each in found] == [
        "2:1:", "3:7:", "3:21:", "5:7:", "6:22:", "6:35:", "7:3:", "8:10:", "9:3:", "10:10:", "11:13:", "12:19:",
        "13:1:", "14:1:", "15:8:",
    ]  # fmt: skip
    assert "did you mean 'args'?" in found[0]
    assert "TF_CONFIG" in found[1]
    assert found[3] == "5:7: ps: 'two' is not a whole number from 0 to 10000"
    assert found[4] == "6:22: unknown key 'gpu'; did you mean 'gpus'?"
    assert found[7] == "8:10: chief: a cluster has one chief, not 2"
    assert found[12] == "13:1: unknown key 'workers'; put it under `roles:`"
    assert "that is a hostfile's" in found[13]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; it names at least `program:`"),
        ("- a\n", "1:1: a list is not a job file: want a mapping with `program:` or `module:`"),
        ("roles: {ps: 1}\n", "1:1: the file has neither `program:` nor `module:`"),
        ("program: a.py\nmodule: b\n", "2:1: there is a `program:` already; leave one of them out"),
        ("module: b.py/c\n", "1:9: module: 'b.py/c' is not a module: package.trainer, without .py"),
        ("program: [\n", "2:1: not YAML"),
        ('program: a.py\nargs: "\'"\n', '2:7: args: "\'" cannot be split into words'),
        (
            "program: a.py\nargs: [--a, '--p={prot}']\n",
            "2:13: args: '--p={prot}' has {prot}, which is no placeholder; did you mean {port}? for {prot} itself, "
            "write {{prot}}",
        ),
        ("program: a.py\nenv: {A: '{INDEX}'}\n", "2:10: A: '{INDEX}' has {INDEX}, which is no placeholder"),
        ("program: a.py\nroles: {ps: {args: -p {x}}}\n", "2:"),
        (
            "program: a.py\njobs:\n  data:\n    program: b.py\n    module: c\n",
            "5:5: there is a `program:` already; leave one of them out",
        ),
        ("program: a.py\nflag_style: word\n", "2:13: flag_style: 'word' is none of equals, words"),
        ("program: a.py\nlease: 2s\n", "2:8: lease: '2s' is less than 5 s"),
        ("program: a.py\njobs: {data: {grace: -1}}\n", "2:22: grace: '-1' is not a time"),
        (
            "program: a.py\nroles: {workers: 4}\n",
            "2:9: 'workers' is no role; did you mean 'worker'? A job of your own goes under `jobs:`",
        ),
        ("program: a.py\nroles: {evalutor: 1}\n", "2:9: 'evalutor' is no role; did you mean 'evaluator'?"),
        ("program: a.py\nroles: {PS: 1}\n", "2:9: 'PS' is no role; did you mean 'ps'?"),
        (
            "program: a.py\nroles: {data: 2}\n",
            "2:9: 'data' is none of TensorFlow's roles (ps, worker, chief, master, evaluator); a job of your own",
        ),
        ("program: a.py\njobs: {worker: 2}\n", "2:8: 'worker' is one of TensorFlow's roles; put it under"),
        (
            "program: a.py\ntensorboard_port: http\n",
            "2:19: tensorboard_port: 'http' is not a whole number from 0",
        ),
        ("program: a.py\nflags: 3\n", "2:8: flags: '3' is not true, false"),
        ("program: a.py\nmin_gpu_memory: lots\n", "2:17: min_gpu_memory: 'lots' is not an amount of memory"),
        ("program: a.py\nroles: [ps]\n", "2:8: roles: a list is not a mapping of keys to values"),
        (
            "program: a.py\nprogram: b.py\n",
            "2:1: the key 'program' is given twice; first at line 1, column 1",
        ),
    ],
)
def test_one_problem(tmp_path: Path, text: str, message: str) -> None:
    [found] = problems(tmp_path, text)
    assert found.startswith(message)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(JobFileError, match=why):
            load(str(path))


def test_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        """
        module: pkg.trainer
        code_dir: src
        ship: key.pem
        follow_links: true
        env_file: [.env, ../more.env]
        args: --epochs 3 'two words'
        env: {A: 1, B: ""}
        flags: {task_index: task_id, data_hosts: ""}
        roles:
          ps: 2
          worker: {hosts: "gpu*", gpus: 2}
          evaluator: {grace: 2m}
        jobs:
          data: {count: 3, env: {A: 2}, args: [-n, 8], end: sidecar, restart: task}
          workers: 1
        restarts: 3
        restart: cluster
        restart_window: 90
        timeout: 2h
        ps_grace: 1m
        tensorboard: logs
        tensorboard_port: 6006
        wait: true
        mig: no
        sync: false
        dial_check: yes
        threshold: [wait_s=120]
        stacks: no
        include: gpu01
        """
    )
    file = load(str(path))
    assert (file.directory, file.program, file.module) == (tmp_path, None, "pkg.trainer")
    assert file.args == ("--epochs", "3", "two words")
    assert file.roles == {
        "ps": Role(2),
        "worker": Role(None, "gpu*", 2),
        "evaluator": Role(1, grace_s=120.0),
        "data": Role(3, env={"A": "2"}, args=("-n", "8"), end="sidecar"),
        "workers": Role(1),  # of the user's own, who says so
    }
    assert file.options == {
        "code_dir": tmp_path / "src",
        "follow_links": True,
        "restarts": 3,
        "restart_window": 90.0,
        "timeout": 7200.0,
        "ps_grace": 60.0,
        "tensorboard": "logs",
        "tensorboard_port": 6006,
        "wait": math.inf,
        "no_sync": True,
        "dial_check": "auto",
        "no_stacks": True,
        "include": ("gpu01",),
    }
    assert file.lists == {
        "env": ("A=1", "B="),
        "env_file": (tmp_path / ".env", tmp_path / "../more.env"),
        "ship": ("key.pem",),
        "flag": ("task_index=task_id", "data_hosts="),
        "restart": ("cluster", "data=task"),
        "threshold": ("wait_s=120",),
    }


@pytest.mark.parametrize(
    ("said", "value"), [("true", "auto"), ("no", "none"), ("all", "all"), ("auto", "auto")]
)
def test_how_the_network_is_tested(tmp_path: Path, said: str, value: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"program: a.py\ndial_check: {said}\n")
    assert load(str(path)).options == {"dial_check": value}


@pytest.mark.parametrize(("said", "flags"), [("true", True), ("false", False), ("{task_index: t}", None)])
def test_flags_are_wanted_or_not_or_renamed(tmp_path: Path, said: str, flags: bool | None) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"program: a.py\nflags: {said}\n")
    file = load(str(path))
    assert file.options.get("flags") is flags
    assert file.lists["flag"] == (() if flags is not None else ("task_index=t",))


def test_programs_of_roles_and_placeholders_of_any_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "program: a.py\nargs: ['--feed={data_hosts}']\nenv: {A: '{rank}', B: '{\"a\": {\"b\": 1}}'}\n"
        "flags: {task: job}\nflag_style: words\nempty_flags: false\n"
        "jobs:\n  data: {program: server.py, args: '--port={port}'}\n  more: {module: pkg.server}\n"
    )
    file = load(str(path))
    assert file.args == ("--feed={data_hosts}",)
    assert file.lists["env"] == ("A={rank}", 'B={"a": {"b": 1}}')
    assert file.lists["flag"] == ("task=job",)
    assert file.options == {"flag_style": "words", "no_empty_flags": True}
    assert file.roles["data"] == Role(1, args=("--port={port}",), program=("server.py",))
    assert file.roles["more"].program == ("-m", "pkg.server")


def test_every_option_of_run_can_be_said_in_it() -> None:
    of_roles = {"ps", "workers", "chief", "evaluator", "ps_hosts", "worker_hosts", "gpus_per_worker"}
    options = Group(RunOptions).options
    of_roles |= {each.name for each in options if each.name == "job" or each.name.startswith("job_")}
    of_this_terminal = {
        "hosts", "script", "arguments", "json", "quiet", "only", "raw", "show_host", "dry_run", "yes", "accept_new",
        "connect_timeout", "connection", "ssh_config", "show_files",
    }  # fmt: skip
    said = {each.key for each in options if each.name not in of_roles | of_this_terminal}
    assert said == model().model_fields.keys() - {"program", "args", "roles", "jobs"}
    negated = {each.name: each.key for each in options if each.is_negated}
    assert negated == {
        "no_sync": "sync",
        "no_dial_check": "dial_check",
        "no_empty_flags": "empty_flags",
        "no_stacks": "stacks",
    }


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert schema["properties"].keys() == model().model_fields.keys()
    role = schema["properties"]["jobs"]["additionalProperties"]["anyOf"][1]
    assert schema["properties"]["roles"]["properties"]["worker"]["anyOf"][1] == role
    assert role["properties"].keys() == RoleSettings.model_fields.keys()
    for name, described in {**schema["properties"], **role["properties"]}.items():
        assert described["description"], name
    assert "$ref" not in json.dumps(schema)


def test_the_example_is_one() -> None:
    file = load(str(EXAMPLE))
    assert file.roles["evaluator"].grace_s == 90.0


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 99), st.text(max_size=8), st.just("2h"), st.floats()
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
keys = st.one_of(st.sampled_from([*model().model_fields]), st.text(max_size=8))
role_keys = st.one_of(st.sampled_from([*RoleSettings.model_fields]), st.text(max_size=8))
roles = st.dictionaries(
    st.one_of(st.sampled_from(["ps", "worker", "chief", "data"]), st.text(max_size=5)),
    st.one_of(values, st.dictionaries(role_keys, values, max_size=3)),
    max_size=3,
)


@settings(max_examples=60)
@given(st.dictionaries(keys, values, max_size=4), roles)
def test_whatever_stands_in_it_is_read_or_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], roles: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-job.yaml"
    path.write_text(yaml.safe_dump({"program": "a.py", **document, "roles": roles}, allow_unicode=False))
    try:
        file = load(str(path))
    except JobFileError as error:
        assert error.problems
        assert all(problem.line and problem.message for problem in error.problems)
        return
    assert all(role.count is None or role.count >= 0 for role in file.roles.values())


def test_a_yaml_file_that_is_no_job_file_says_where_it_belongs(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 0.1\nlayers: [1, 2]\n")
    with pytest.raises(JobFileError) as raised:
        load(str(path))
    [problem] = raised.value.problems
    assert "this is no job file: it has none of a job's keys" in problem.message
    assert "what is for the program itself comes after --" in raised.value.hint
