"""The keywords of `api.run`: they are the options of `tflaunch run`, and mean what these mean."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer

from tflaunch import api
from tflaunch.api.command_shown import command_of, words_of
from tflaunch.api.given_keywords import NOT_HERE, options_of
from tflaunch.cli.options import flatten
from tflaunch.cli.trainer_command import RunCommand
from tflaunch.inputs.options.declared import Group, In
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.protocol.errors import UsageError

ONLY_THERE = {"hosts", "script", "arguments", "show_files", "raw", "quiet", "only", "show_host", *NOT_HERE}
OPTIONS = {each.name: each for each in Group(RunOptions).options}
# Values as a program may write them, where `any_value` has no better one.
VALUES: dict[str, Any] = {
    "module": "pkg.train", "flag": {"task_index": "task_id"}, "flags": False, "ship": ["a b", Path("c")],
    "max_code": "2GiB", "evaluator": True, "ps": 0, "worker_hosts": "gpu[1-2],gpu4", "job": {"data": 2},
    "job_hosts": ["data=storage"], "job_gpus": {"data": "all"}, "job_env": ["data=A=b c"], "job_args": {"data": "-n 8"},
    "job_program": {"data": "server.py"}, "job_end": {"data": "sidecar"}, "job_grace": {"data": "5s"},
    "mig": True, "include": ["gpu1:0,1", "gpu2"], "wait": True, "env": {"A": "", "B": 1}, "grace": 0.5,
    "ps_grace": "2m", "timeout": 5400.25, "stall_timeout": "1d", "lease": 86400.0, "threshold": {"wait_s": 5.5},
    "restart": {"ps": "task"}, "fetch": ["*.csv", "!a.csv"], "connection": "openssh", "warn_before": "10m",
}  # fmt: skip


def any_value(name: str) -> Any:
    """A value of the keyword that is not its default."""
    if name in VALUES:
        return VALUES[name]
    option = OPTIONS[name]
    if option.is_list:
        return [option.kind("x")]
    if issubclass(option.kind, Enum):
        return [each.value for each in option.kind][-1]
    return {bool: True, int: 3, float: 90, str: "x", Path: Path("x")}[option.kind]


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLAUNCH_ETC", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TFLAUNCH_YES", raising=False)


def of_command_line(words: list[str]) -> RunOptions:
    """What the parser makes of the words behind `tflaunch run`."""
    found: list[RunOptions] = []

    def take(options: RunOptions) -> None:
        found.append(options)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("run", cls=RunCommand)(flatten(take))
    app(words, prog_name="run", standalone_mode=False)
    return found[0]


def plain(options: RunOptions) -> dict[str, Any]:
    """The values by the names of their options."""
    return {
        each.name: getattr(group, each.name)
        for group in vars(options).values()
        for each in dataclasses.fields(group)
    }


def test_every_option_of_run_is_a_keyword() -> None:
    assert {name for name, each in OPTIONS.items() if In.API not in each.also_in} == ONLY_THERE
    assert OPTIONS.keys() - ONLY_THERE == api.Keywords.__annotations__.keys()


@pytest.mark.parametrize("name", sorted(api.Keywords.__annotations__))
def test_a_keyword_means_what_its_option_means(name: str) -> None:
    program = "" if name == "module" else "trainer.py"
    call = (program, ["--epochs", 3], {name: any_value(name)})
    options = plain(options_of(*call).options)
    there = plain(of_command_line(words_of("h1,h2", *call)))
    assert there.pop("hosts") == "h1,h2"
    assert options.pop("hosts") is None  # they are given as a Hostfile
    assert options == there
    assert options[name] != OPTIONS[name].default


def test_none_and_false_leave_an_option_alone() -> None:
    defaults = plain(options_of("trainer.py", (), {}).options)
    keywords = dict.fromkeys(api.Keywords.__annotations__) | {"wait": False, "mig": False, "chief": False}
    assert plain(options_of("trainer.py", (), keywords).options) == defaults
    assert plain(options_of("trainer.py", (), {"wait": math.inf}).options)["wait"] == math.inf


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"worker": 2}, "worker=: there is no such option"),
        ({"workers": "many"}, "--workers: 'many' is not a whole number"),
        ({"workers": 1.5}, "--workers: '1.5' is not a whole number"),
        ({"workers": -1}, "--workers: '-1' is less than 0"),
        ({"workers": True}, "--workers: True is not accepted here"),
        ({"workers": [1]}, "--workers: [1] is not accepted here"),
        ({"tensorboard_port": 65536}, "--tensorboard-port: '65536' is more than 65535"),
        ({"chief": "yes"}, "--chief: 'yes' is neither True nor False"),
        ({"place": "wide"}, "--place: 'wide' is not one of 'spread', 'pack'"),
        ({"grace": "soon"}, "--grace: 'soon' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        ({"grace": -1}, "--grace: '-1' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        ({"grace": math.nan}, "--grace: 'nan' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        ({"lease": 1}, "--lease: '1' is less than 5s"),
        (
            {"gpus_per_worker": "some"},
            "--gpus-per-worker: 'some' is not a whole number from 0 to 1024, or all",
        ),
        ({"ps_hosts": ["a", "b"]}, "--ps-hosts: ['a', 'b'] is not accepted here"),
        ({"ship": 7}, "--ship: 'int' object is not iterable"),
        ({"module": "pkg"}, "module='pkg' and trainer.py both say what to run"),
    ],
)
def test_a_wrong_keyword_is_told_with_the_words_of_the_command_line(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        options_of("trainer.py", (), keywords)
    assert caught.value.message == message
    assert caught.value.hint


def test_the_configuration_and_a_job_file_hold_for_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflaunch.api.requests import configured

    (tmp_path / "config.toml").write_text('[run]\ngrace = "3s"\nplace = "pack"\nenv = {A = "1"}\n')
    (tmp_path / "job.yaml").write_text("program: trainer.py\nplace: spread\nenv: {B: '2'}\nrestarts: 4\n")
    configured.configuration.cache_clear()
    try:
        asked = options_of(str(tmp_path / "job.yaml"), (), {"env": {"C": 3}, "restarts": 1})
    finally:
        configured.configuration.cache_clear()
    options = asked.options
    assert (options.end.grace, options.cluster.place.value, options.restarts.restarts) == (3.0, "spread", 1)
    assert options.tasks.env == ("A=1", "B=2", "C=3")
    assert options.what.script == "trainer.py"
    assert asked.job_file is not None
    assert asked.job_file.directory == tmp_path


def test_a_kind_of_gpu_is_asked_for_by_who_writes_it_for_this_run_not_by_a_configuration(
    tmp_path: Path,
) -> None:
    from tflaunch.api.requests import configured

    (tmp_path / "config.toml").write_text('[run]\ngpu_model = "H100"\n')
    (tmp_path / "job.yaml").write_text("program: trainer.py\nmin_gpu_memory: 40GiB\n")

    def selected(program: str, **keywords: Any) -> str:
        return configured.gpus_selected_by(options_of(program, (), keywords).options.gpus)

    configured.configuration.cache_clear()
    try:
        assert selected("trainer.py") == ""
        assert selected("trainer.py", gpu_model="A100") == "--gpu-model A100"
        assert selected("trainer.py", mig=True) == "--mig"
        assert selected("trainer.py", mig="1g.10gb") == "--mig 1g.10gb"
        assert selected(str(tmp_path / "job.yaml")) == "--min-gpu-memory 40GiB"
    finally:
        configured.configuration.cache_clear()


def test_the_command_on_record_has_no_values_of_variables() -> None:
    command = command_of("h1", "trainer.py", ["-x"], {"env": {"A": "secret"}, "job_env": ["data=B=secret"]})
    assert command[:2] == ("tflaunch", "run")
    assert command[-4:] == ("h1", "trainer.py", "--", "-x")
    assert "secret" not in " ".join(command)


def test_yes_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_YES", "1")
    assert options_of("trainer.py", (), {}).options.start.yes
    assert not options_of("trainer.py", (), {"yes": False}).options.start.yes


def test_import_of_the_api_costs_nothing_until_it_is_used() -> None:
    code = (
        "import sys; before = set(sys.modules); from tflaunch import api; assert 'run' in dir(api); "
        "print(*sorted(name for name in set(sys.modules) - before if name[0] in 'cprty')); "
        "api.run; print('typer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, typer = done.stdout.splitlines()
    assert set(loaded.split()) & {"cryptography", "paramiko", "pydantic", "rich", "typer"} == set()
    assert "tflaunch.api" in loaded
    assert "tflaunch.api." not in loaded
    assert typer == "False", "the API needs no command line"


def test_a_type_checker_knows_what_the_api_has(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tflaunch import api\n"
        "run = api.run('hosts.yaml', 'trainer.py', ps=1, env={'A': 'b'})\n"
        "reveal_type(run.wait().status)\n"
        "api.run('hosts.yaml', 'trainer.py', workers='many')\n"
        "api.rnu\n"
    )
    words = ("--no-incremental", "--config-file=", "--follow-imports=silent", "mine.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()[:-1]] == [
        "mine.py:3",
        "mine.py:4",
        "mine.py:5",
    ], done.stdout
