"""The first command: the default hostfile, which word is what, and what was meant by a command that is none."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.docs import known
from tflaunch import cli
from tflaunch.api.requests.roles import roles_of
from tflaunch.api.requests.which_hosts import hosts_of_run, load_hosts
from tflaunch.cli import VERBS, application
from tflaunch.cli.mistakes import INSTEAD, unknown_verb
from tflaunch.cli.trainer_words import Line
from tflaunch.hosts import load
from tflaunch.inputs.kinds import kind_of
from tflaunch.inputs.options.job_groups import ClusterOptions, RoleOptions
from tflaunch.protocol.errors import HostfileError, UsageError
from tflaunch.protocol.job import Role, near_role
from tflaunch.sweeps import trials

FILES = {
    "trainer.py": "import sys\n",
    "other.py": "import sys\n",
    "start": "#!/bin/sh\nexec true\n",
    "hosts.yaml": "# ours\ndefaults: {connection: local}\nhosts: [a, b]\n",
    "list.yaml": "- gpu01\n- gpu02\n",
    "flow.txt": "{defaults: {connection: local}, hosts: [a]}\n",
    "plain": "gpu01 slots=4\ngpu02:2\n",
    "start.sh": "true\n",
    "untyped": "echo with no first line\n",
    "job.yaml": "program: trainer.py\nroles: {ps: 0, worker: 1}\n",
    "run.txt": "# a job\nmodule: pkg.trainer\n",
    "notes": "what I did\non Monday: nothing\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with files of every kind, in which the commands are given."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], UsageError]:
    """The error of `tflaunch WORDS`, before anything is done."""

    def error_of(words: str) -> UsageError:
        monkeypatch.setattr(sys, "argv", ["tflaunch", *shlex.split(words)])
        with pytest.raises(UsageError) as caught:
            cli._run()
        assert caught.value.exit_code == 2
        for command in advised(caught.value):
            assert known.refusal(command) == "", f"the advice for `tflaunch {words}` is refused, too"
        return caught.value

    return error_of


def advised(error: UsageError) -> list[list[str]]:
    """The words after `tflaunch` of each command in an error's hint."""
    lines = re.sub(r"^if .*?: (?=tflaunch )", "", error.hint or "", flags=re.MULTILINE).splitlines()
    commands = [re.split(r" {2,}| where |; ", line)[0] for line in lines if line.startswith("tflaunch ")]
    return [
        shlex.split(each)[1:] for each in commands if "[" not in each.split("'")[0] and "lists" not in each
    ]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("trainer.py", "program"),
        ("start", "program"),
        ("missing.py", "program"),
        ("hosts.yaml", "hosts"),
        ("list.yaml", "hosts"),
        ("flow.txt", "hosts"),
        ("plain", "hosts"),
        ("slurm:", "hosts"),
        ("gpu01,gpu02", "hosts"),
        ("gpu[01-04]", "hosts"),
        ("gpu[01-04]:2,ada@big", "hosts"),
        ("gpu01:4", "hosts"),
        ("job.yaml", "job"),
        ("run.txt", "job"),
        ("notes", ""),
        ("gpu01", ""),
        ("10", ""),
        ("lr=0.1", ""),
        ("data/train", ""),
        (".", ""),
    ],
)
def test_a_file_is_known_by_its_content_and_another_word_by_its_form(
    here: Path, word: str, kind: str
) -> None:
    assert kind_of(word) == kind


def test_where_everything_is_executable_a_hostfile_is_no_program(here: Path) -> None:
    for name in ("hosts.yaml", "plain", "job.yaml", "notes"):
        (here / name).chmod(0o755)
    assert [kind_of(name) for name in ("hosts.yaml", "plain", "job.yaml", "notes")] == [
        "hosts",
        "",
        "job",
        "program",
    ]


def test_what_comes_through_a_pipe_is_left_for_whom_it_is_for(tmp_path: Path) -> None:
    fifo = tmp_path / "hosts.yaml"
    os.mkfifo(fifo)
    assert kind_of(str(fifo)) == ""  # and nobody waits for a writer


@pytest.mark.parametrize(
    ("words", "fact", "corrected"),
    [
        (
            "run trainer.py hosts.yaml --workers 2 -- --epochs 3",
            "trainer.py and hosts.yaml are swapped",
            "tflaunch run hosts.yaml trainer.py --workers 2 -- --epochs 3",
        ),
        (
            "run job.yaml gpu01,gpu02",
            "job.yaml and gpu01,gpu02 are swapped",
            "tflaunch run gpu01,gpu02 job.yaml",
        ),
        (
            "run trainer.py 'gpu[01-04]' -e 'A=b c'",
            "are swapped",
            "tflaunch run 'gpu[01-04]' trainer.py -e A=...",  # it is no terminal: it may be kept
        ),
        (
            "run hosts.yaml trainer.py --env LR=0.1 --epochs 3",
            "--epochs 3: ",
            "tflaunch run hosts.yaml trainer.py --env LR=... -- --epochs 3\n... stands for a value that is not shown",
        ),
        (
            "run hosts.yaml trainer.py --env FOO=1 BAR=2 BAZ=3 --ps 1 -- -x",
            "BAR=... BAZ=...: no --env before them",
            "tflaunch run hosts.yaml trainer.py --env FOO=... --env BAR=... --env BAZ=... --ps 1 -- -x",
        ),
        (
            "run hosts.yaml trainer.py --hosts hosts.yaml",
            "has no option --hosts",
            "tflaunch run hosts.yaml trainer.py",
        ),
        ("run hosts.yaml trainer.py --hosts=a,b -- 3", "", "tflaunch run a,b trainer.py -- 3"),
        (
            "run hosts.yaml 'trainer.py --epochs 3' --ps 1 -- -x",
            "trainer.py --epochs 3: the program and its arguments are in one word",
            "tflaunch run hosts.yaml trainer.py --ps 1 -- --epochs 3 -x",
        ),
        (
            "run hosts.yaml trainer.py --ps 2 --chief 1 --workers 2 -- 3",
            "--chief 1: --chief takes no number",
            "tflaunch run hosts.yaml trainer.py --ps 2 --chief --workers 2 -- 3",
        ),
        ("run trainer.py --chief 0", "takes no number", "tflaunch run trainer.py --job chief=0"),
        (
            "run hosts.yaml trainer.py 10 --epochs 3",
            "10 --epochs 3: tflaunch run has no such option or argument; what is for trainer.py goes after --",
            "tflaunch run hosts.yaml trainer.py -- 10 --epochs 3",
        ),
        (
            "run trainer.py --lr=0.1 10 --workers 2 -- more",
            "--lr=0.1 10: ",
            "tflaunch run trainer.py --workers 2 -- --lr=0.1 10 more",
        ),
        (
            "run --epochs 3 trainer.py --workers 2",
            "--epochs 3: tflaunch run has no such option",
            "tflaunch run trainer.py --workers 2 -- --epochs 3",
        ),
        (
            "run hosts.yaml --epochs 3 --lr=0.1 trainer.py",
            "--epochs 3 --lr=0.1: ",
            "tflaunch run hosts.yaml trainer.py -- --epochs 3 --lr=0.1",
        ),
        (
            "run --verbose hosts.yaml trainer.py",
            "--verbose: ",
            "tflaunch run hosts.yaml trainer.py -- --verbose",
        ),
        ("run --verbose gpu01,gpu02 trainer.py", "", "tflaunch run gpu01,gpu02 trainer.py -- --verbose"),
        ("run trainer.py other.py", "other.py: ", "tflaunch run trainer.py -- other.py"),
        ("run -m pkg.mod hosts.yaml a", "a: ", "tflaunch run hosts.yaml -m pkg.mod -- a"),
        ("run -m pkg.mod 10 --bogus", "10 --bogus: ", "tflaunch run -m pkg.mod -- 10 --bogus"),
        ("run hosts.yaml", "hosts.yaml says where; nothing to run", "tflaunch run hosts.yaml trainer.py"),
        (
            "run hosts.yaml --ps 1 -- trainer.py 3",
            "nothing to run before --",
            "tflaunch run hosts.yaml trainer.py --ps 1 -- 3",
        ),
        ("run hosts.yaml plain", "plain is a hostfile, not a program", "tflaunch run hosts.yaml trainer.py"),
        (
            "run job.yaml trainer.py",
            "job.yaml is a job file, which names its program",
            "tflaunch run job.yaml",
        ),
        ("run gpu01", "gpu01: there is no such program here", "tflaunch run gpu01 trainer.py"),
        ("run no-such.yaml", "no-such.yaml: there is no such program here", "tflaunch run trainer.py"),
        (
            "sweep hosts.yaml trainer.py --grid lr=0.1, 0.2, 1e-3 --dry-run",
            "0.2, 1e-3: the values of --grid stand in one word, with commas between them",
            "tflaunch sweep hosts.yaml trainer.py --grid lr=0.1,0.2,1e-3 --dry-run",
        ),
        (
            "sweep hosts.yaml trainer.py --grid lr 0.1,0.2 --dry-run",
            "lr 0.1,0.2: the name and its values stand in one word, with = between them",
            "tflaunch sweep hosts.yaml trainer.py --grid lr=0.1,0.2 --dry-run",
        ),
        (
            "sweep hosts.yaml trainer.py --random lr 0.1..1:log --trials 3",
            "lr 0.1..1:log: the name and its values stand in one word",
            "tflaunch sweep hosts.yaml trainer.py --random lr=0.1..1:log --trials 3",
        ),
        (
            "sweep hosts.yaml trainer.py --grid lr=0.1 0.2 layers=1 2",
            "layers=1: no --grid before it",
            "tflaunch sweep hosts.yaml trainer.py --grid lr=0.1,0.2 --grid layers=1,2",
        ),
        (
            "sweep hosts.yaml trainer.py --random lr=0.1..1 layers=1..6 --trials 3",
            "layers=1..6: no --random before it",
            "tflaunch sweep hosts.yaml trainer.py --random lr=0.1..1 --random layers=1..6 --trials 3",
        ),
        (
            "sweep trainer.py --grid lr=1,2 layers=1,2 opt=a,b -- -v",
            "layers=1,2 opt=a,b: no --grid before it",
            "tflaunch sweep trainer.py --grid lr=1,2 --grid layers=1,2 --grid opt=a,b -- -v",
        ),
        (
            "sweep trainer.py hosts.yaml --grid x=1",
            "are swapped",
            "tflaunch sweep hosts.yaml trainer.py --grid x=1",
        ),
        (
            "run --hosts hosts.yaml trainer.py --ps 1 -- 3",
            "has no option --hosts: HOSTS stand by themselves",
            "tflaunch run hosts.yaml trainer.py --ps 1 -- 3",
        ),
        ("run trainer.py -H a,b", "has no option -H", "tflaunch run a,b trainer.py"),
        ("sweep --hostfile=h trainer.py --grid x=1", "", "tflaunch sweep h trainer.py --grid x=1"),
        ("run hosts.yaml trainer.py --worker=2", "has no option --worker", "did you mean --workers?"),
        ("run hosts.yaml trainer.py --gpus 2", "has no option --gpus", "did you mean --gpus-per-worker?"),
        (
            "run hosts.yaml trainer.py --worker=2",
            "",
            "if it is the trainer's own, it goes after --: tflaunch run hosts.yaml trainer.py -- --worker=2",
        ),
    ],
)
def test_what_is_no_command_is_told_with_the_corrected_one(
    here: Path, refused: Callable[[str], UsageError], words: str, fact: str, corrected: str
) -> None:
    error = refused(words)
    assert fact in error.message
    assert corrected in error.hint.splitlines() or corrected in error.hint


@pytest.mark.parametrize(
    ("words", "hosts", "script", "options", "own"),
    [
        # What starts a program elsewhere is just taken.
        ("run plain python trainer.py", "plain", "trainer.py", {}, []),
        ("run plain python3 -u trainer.py -- 3", "plain", "trainer.py", {}, ["3"]),
        ("run python trainer.py", None, "trainer.py", {}, []),
        ("run plain bash start.sh --ps 0", "plain", "start.sh", {"ps": 0}, []),
        ("run plain sh untyped", "plain", "untyped", {}, []),
        ("run plain python -m pkg.mod", "plain", None, {"module": "pkg.mod"}, []),
        ("sweep plain python trainer.py --grid lr=1,2", "plain", "trainer.py", {}, []),
        # All else is told with the corrected command.
        ("run plain python trainer.py --lr 1", "plain", "trainer.py", {}, ["--lr", "1"]),
        ("run plain -- python trainer.py", "plain", "trainer.py", {}, []),
        ("run h001 h002 trainer.py", "h001,h002", "trainer.py", {}, []),
        ("run h001 h002:2 me@h003 trainer.py 5", "h001,h002:2,me@h003", "trainer.py", {}, ["5"]),
        ("run -np 2 -H a,b python trainer.py", "a,b", "trainer.py", {"workers": 2, "ps": 0}, []),
        ("run --host a,b -n 4 trainer.py", "a,b", "trainer.py", {"workers": 4, "ps": 0}, []),
        ("run plain -np 3 --ps 1 trainer.py", "plain", "trainer.py", {"workers": 3, "ps": 1}, []),
        ("run plain -x HOME trainer.py", "plain", "trainer.py", {"env": ["HOME"]}, []),
        ("run plain --nproc_per_node 2 trainer.py", "plain", "trainer.py", {"workers": 4, "ps": 0}, []),
        ("run plain --nproc_per_node=gpu trainer.py", "plain", "trainer.py", {"workers": None}, []),
        ("run plain --nproc_per_node=² trainer.py", "plain", "trainer.py", {"workers": None}, []),
        (
            "run plain torchrun --nnodes=2 --node_rank 0 --master_addr=x trainer.py --lr 1",
            "plain",
            "trainer.py",
            {},
            ["--lr", "1"],
        ),
        ("run --mca btl ^openib --map-by node -mca a b -H a,b trainer.py", "a,b", "trainer.py", {}, []),
        ("run plain gpu01 trainer.py", "plain", "trainer.py", {"include": ["gpu01"]}, []),
        ("run plain python3.11 trainer.py", "plain", "trainer.py", {}, []),
        ("run -machinefile plain -n 2 python -m pkg.mod", "plain", None, {"module": "pkg.mod"}, []),
        ("mpirun -np 2 -H a,b python trainer.py", "a,b", "trainer.py", {"workers": 2}, []),
        # Behind the program they are the program's own.
        ("run plain trainer.py -n 4", "plain", "trainer.py", {"workers": None}, ["-n", "4"]),
        ("check h001 h002 --json", "h001,h002", None, {}, []),
        ("gpus h001 h002", "h001,h002", None, {}, []),
        ("gpus plain h002", "plain", None, {"only_hosts": "h002"}, []),
        ("up plain gpu01", "plain", None, {"include": ["gpu01"]}, []),
        ("check -H a,b", "a,b", None, {}, []),
        ("up --hostfile=plain --ps 1", "plain", None, {"ps": 1}, []),
    ],
)
@pytest.mark.usefixtures("here")
def test_words_of_other_launchers_lead_to_the_same_run_here(
    words: str,
    hosts: str | None,
    script: str | None,
    options: dict[str, Any],
    own: list[str],
) -> None:
    """The command is taken, or refused with one that is taken, and means the same."""
    try:
        ctx = known.parsed(shlex.split(words))
    except UsageError as error:
        [command] = advised(error)
        ctx = known.parsed(command)
    found = ctx.params
    assert (found["hosts"], found.get("script"), found.get("arguments", [])) == (hosts, script, own)
    for name, value in options.items():
        assert found[name] == value


@pytest.mark.parametrize(
    ("run", "fact", "hint"),
    [
        ("hosts.yaml", "hosts.yaml is a hostfile, not a run", "--hosts hosts.yaml says where to look"),
        ("trainer.py", "trainer.py is a program, not a run", "tflaunch run trainer.py starts one"),
        ("job.yaml", "job.yaml is a job file, not a run", "tflaunch run job.yaml starts one"),
    ],
)
def test_a_file_in_place_of_a_run_is_told_before_any_host_is_contacted(
    here: Path, monkeypatch: pytest.MonkeyPatch, run: str, fact: str, hint: str
) -> None:
    monkeypatch.setenv("TFLAUNCH_STATE", str(here / "state"))
    with pytest.raises(UsageError) as caught:
        hosts_of_run(run, None)
    assert caught.value.message == fact
    assert hint in caught.value.hint


def test_an_empty_word_is_not_the_default_hostfile(here: Path) -> None:
    with pytest.raises(UsageError, match="HOSTS is empty"):
        load_hosts("")
    assert load_hosts(None).source == str(here / "hosts.yaml")


def test_a_word_behind_the_program_that_may_be_a_host_is_told_both_ways(
    here: Path, refused: Callable[[str], UsageError]
) -> None:
    assert refused("run trainer.py gpu01").hint.splitlines() == [
        "tflaunch run gpu01 trainer.py   if gpu01 is a host",
        "tflaunch run trainer.py -- gpu01   if it is an argument of trainer.py",
    ]


@pytest.mark.parametrize(
    ("args", "options", "own"),
    [
        (["h", "t.py", "-dq", "x"], ["-dq"], ["x"]),
        (["h", "t.py", "-eA=1", "-n4"], ["-eA=1"], ["-n4"]),
        (["h", "--wait", "t.py", "2"], ["--wait"], ["2"]),
        (["h", "--wait", "2h", "t.py"], ["--wait", "2h"], []),
        (["h", "t.py", "--mig", "1g.10gb", "-5"], ["--mig", "1g.10gb"], ["-5"]),
        (["h", "t.py", "-e"], ["-e"], []),
        (["h", "t.py", "-", "--", "--ps"], [], ["-"]),
    ],
)
def test_options_are_told_from_words_as_the_parser_does(
    args: Sequence[str], options: Sequence[str], own: Sequence[str]
) -> None:
    run = typer.main.get_command(application(["run"])).commands["run"]  # type: ignore[attr-defined]
    line = Line.read(run.params, run.optional_values, args)
    assert (line.options, line.own(2)) == (list(options), list(own))


# --- verbs


def test_every_verb_that_other_tools_have_leads_to_one_that_there_is() -> None:
    assert {verb.split()[0] for verb in INSTEAD.values() if not verb.startswith("--")} <= VERBS.keys()
    assert not INSTEAD.keys() & VERBS.keys()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("list -a", "tflaunch ps -a"),
        ("kill trainer-k3f9x2", "tflaunch stop trainer-k3f9x2"),
        ("nodes", "tflaunch gpus"),
        ("submit hosts.yaml trainer.py", "tflaunch run hosts.yaml trainer.py"),
        ("Log x", "tflaunch logs x"),
        ("stats", "tflaunch status"),
        ("chekc", "tflaunch check"),
        ("trainer.py -- 3", "tflaunch run trainer.py -- 3"),
        ("hosts.yaml trainer.py", "tflaunch run hosts.yaml trainer.py"),
        ("version", "tflaunch --version"),
        ("frobnicate", "tflaunch --help"),
        ("resume lrs", "tflaunch sweep --resume lrs"),
        ("continue", "tflaunch sweep --resume NAME"),
        ("restart trainer-k3f9x2", "tflaunch rerun trainer-k3f9x2"),
        ("trace trainer-k3f9x2", "tflaunch profile trainer-k3f9x2"),
        ("monitor", "tflaunch top"),
        ("nope", "tflaunch --help"),
        ("pause x", "tflaunch --help"),
        # What ends a run, or removes it, is never a guess.
        ("stpo x", "tflaunch --help"),
        ("claen x", "tflaunch --help"),
        ("removee x", "tflaunch --help"),
        ("killl x", "tflaunch --help"),
    ],
)
def test_a_verb_that_there_is_not_leads_to_the_right_one(words: str, meant: str) -> None:
    word, *rest = words.split()
    assert unknown_verb(word, rest, list(VERBS)).hint.startswith(meant)


# --- names of roles


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("workers", "worker"),
        ("woker", "worker"),
        ("Worker", "worker"),
        ("evalutor", "evaluator"),
        ("eval", "evaluator"),
        ("cheif", "chief"),
        ("masters", "master"),
        ("pss", "ps"),
        ("parameter_server", "ps"),
        ("worker", ""),
        ("data", ""),
        ("reader", ""),
        ("loader", ""),
        ("replay_buffer", ""),
        ("p", ""),
    ],
)
def test_a_role_that_is_misspelt_is_known(name: str, role: str) -> None:
    assert near_role(name) == role


@pytest.mark.parametrize(
    ("options", "fact", "hint"),
    [
        ({"job": ["woker=2"]}, "'woker' is no role; did you mean --job worker=2?", "`jobs:` of a job file"),
        ({"job_hosts": ["cheif=a"]}, "did you mean --job-hosts chief=a?", ""),
        ({"job_env": ["evalutor=TOKEN=s3cret"]}, "did you mean --job-env evaluator=TOKEN?", ""),
        ({"job": ["data=2"], "job_gpus": ["dta=1"]}, "there are no dta tasks", "did you mean data? else"),
    ],
)
def test_a_misspelt_job_on_the_command_line_never_runs(options: dict[str, Any], fact: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        roles_of({}, ClusterOptions(), RoleOptions(**options))
    assert fact in caught.value.message
    assert hint in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_a_job_of_the_users_own_may_be_called_nearly_as_a_role_where_the_job_file_says_so() -> None:
    roles = roles_of({"workers": Role(2)}, ClusterOptions(), RoleOptions(job_hosts=("workers=a",)))
    assert roles["workers"] == Role(2, "a")


# --- the hostfile


def test_what_is_wrong_in_the_hostfile_alone_is_told_of_all_hosts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "defaults: {env: {TF_CONFIG: x}}\n"
        "hosts:\n"
        "  - {name: a, env: {CUDA_VISIBLE_DEVICES: 0}}\n"
        "  - group: g\n"
        "    env: {TFLAUNCH_RUN: x, FINE: 1}\n"
        f"    hosts: [{{name: b, env: {{TFLAUNCH_TASK: x, LONG: {'x' * 140_000}}}}}]\n"
    )
    with pytest.raises(HostfileError) as caught:
        load(str(path))
    told = [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]
    assert [each.split(" ")[0] for each in told] == ["1:18:", "3:21:", "5:11:", "6:29:", "6:53:"]
    assert "'CUDA_VISIBLE_DEVICES' is what tflaunch sets for every task. Choose GPUs with `gpus:`" in told[1]
    assert "is 140,000 bytes long; Linux takes 131,071 with its name" in told[4]


# --- as a whole


@pytest.mark.parametrize(
    ("words", "fact", "hint"),
    [
        (
            "run h t.py --workers=many",
            "--workers: 'many' is not a whole number",
            "--workers N: Number of worker tasks [one",
        ),
        ("run h t.py --workers", "--workers has no value", "--workers N: Number of worker tasks"),
        (
            "run h t.py --place=wide",
            "--place: 'wide' is not one of 'spread', 'pack'",
            "--place spread|pack: Spread the tasks",
        ),
        ("gpus a b c", "b c: several hosts are one word, with commas between them", "tflaunch gpus a,b,c"),
        ("gpus a .b", "tflaunch gpus has no place for: .b", "tflaunch gpus [HOSTS] [OPTIONS]"),
        (
            "sweep hosts.yaml trainer.py --grid lr=1 --threshold=wait_s=9",
            "tflaunch sweep has no option --threshold",
            "Trials are not watched",
        ),
        (
            "sweep hosts.yaml trainer.py --grid lr=1 --require-gpu",
            "tflaunch sweep has no option --require-gpu",
            "Trials are not watched",
        ),
        ("status --fo", "tflaunch status has no option --fo", "tflaunch status --help lists"),
        (
            "stop --host=a",
            "tflaunch stop has no option --host: hosts are for --hosts",
            "tflaunch stop --hosts a",
        ),
        (
            "up hosts.yaml trainer.py",
            "tflaunch up takes no program: trainer.py",
            "tflaunch run hosts.yaml trainer.py",
        ),
        ("help lgos", "tflaunch has no command 'lgos'; did you mean logs?", "tflaunch logs --help"),
        (
            "--workers 4 run hosts.yaml trainer.py",
            "--workers stands before run; options of a command stand behind it",
            "tflaunch run --workers 4 hosts.yaml trainer.py",
        ),
        (
            "--json gpus",
            "--json stands before gpus; options of a command stand behind it",
            "tflaunch gpus --json",
        ),
        (
            "--verbose run hosts.yaml trainer.py",
            "tflaunch run has no option --verbose",
            "tflaunch run --help lists all options",
        ),
        ("--jsn gpus", "tflaunch gpus has no option --jsn", "did you mean --json?"),
        ("--hosts h run trainer.py", "tflaunch run has no option --hosts", "tflaunch run h trainer.py"),
        (
            "status --hosts hosts.yaml one two",
            "tflaunch status has no place for: two",
            "tflaunch status [RUN] [OPTIONS]",
        ),
        ("-V", "tflaunch has no option -V", "did you mean --version?"),
        ("run --hlep", "tflaunch run has no option --hlep", "did you mean --help?"),
        ("--versoin", "tflaunch has no option --versoin", "did you mean --version?"),
        ("lits", "tflaunch has no command 'lits'; did you mean ps?", "tflaunch ps"),
    ],
)
def test_what_the_parser_refuses_is_told_in_our_own_words(
    refused: Callable[[str], UsageError], words: str, fact: str, hint: str
) -> None:
    error = refused(words)
    assert error.message == fact
    assert error.hint.startswith(hint)


def test_the_help_shows_what_may_be_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, usage in (
        (["run", "a", "b", "c", "d", "--help"], "run [HOSTS] TRAINER.py [OPTIONS] [-- ARGS...]"),
        (["up", "--help"], "up [HOSTS] [OPTIONS]"),
        (["sweep", "-h"], "sweep [HOSTS] TRAINER.py [OPTIONS] [-- ARGS...]"),
    ):
        monkeypatch.setattr(sys, "argv", ["tflaunch", *words])
        assert cli._run() == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"tflaunch {usage}" in told
        assert "./hosts.yaml" in told


def test_two_parameters_in_one_word_are_told_apart() -> None:
    for spec, corrected in (
        ("lr=0.1,0.2,layers=2,3", "--grid lr=0.1,0.2 --grid layers=2,3"),
        ("lr=0.1 layers=2", "--grid lr=0.1 --grid layers=2"),
    ):
        with pytest.raises(UsageError) as caught:
            trials.grid([spec])
        assert caught.value.hint.startswith(corrected)
    assert trials.grid(["f=a=1,b=2"]) == [{"f": "a=1"}, {"f": "b=2"}]
