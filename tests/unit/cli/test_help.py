"""The help: every example works, every code is told, nothing is wider than the terminal, nothing slow is loaded."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from tests.support import ROOT
from tflaunch import cli
from tflaunch.cli import VERBS, application, exit_codes, guide
from tflaunch.console.help_page import LEAST_COLUMNS, MOST_COLUMNS, columns_of
from tflaunch.protocol import errors

FILES = {
    "trainer.py": "import sys\n",
    "hosts.yaml": "defaults: {connection: local}\nhosts: [gpu01, gpu02]\n",
    "job.yaml": "program: trainer.py\n",
}
# What the help may load beside typer and tflaunch: a millisecond in all.
LIGHT = {
    "__future__",
    "_queue",
    "atexit",
    "fcntl",
    "gc",
    "importlib",
    "math",
    "queue",
    "runpy",
    "select",
    "termios",
}
EXAMPLES = [
    (verb, example.command)
    for verb, each in [
        ("", guide.FIRST_STEPS),
        *((verb, each.examples) for verb, each in guide.GUIDE.items()),
    ]
    for example in each
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the examples name."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `tflaunch WORDS` prints."""
    monkeypatch.setattr(sys, "argv", ["tflaunch", *words])
    assert cli._run() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("verb", "command"), EXAMPLES, ids=[command for _, command in EXAMPLES])
def test_every_example_is_a_command_that_works(here: Path, verb: str, command: str) -> None:
    first, called, *words = shlex.split(command)
    assert first == "tflaunch"
    assert called == verb or not verb
    words = [*itertools.takewhile(lambda word: word not in (">", "|"), words)]  # the rest is the shell's
    if "--resume" in words:  # of a sweep that is on record here
        words += ["hosts.yaml", "trainer.py"]
    parsed = typer.main.get_command(application([called])).commands[called]  # type: ignore[attr-defined]
    context = parsed.make_context(called, words)
    assert context.obj is None  # an error of a job file would be here
    assert context.args == []
    if called in ("run", "sweep"):
        assert context.params["script"] == "trainer.py"


def test_every_verb_has_its_place_in_the_help() -> None:
    for table, where in (
        (guide.GUIDE, "GROUPS of cli/guide.py"),
        (exit_codes.OF_VERB, "OF_VERB of cli/exit_codes.py"),
    ):
        assert table.keys() == VERBS.keys(), f"{where} and VERBS of cli/__init__.py have other verbs"
    assert all(len(each.examples) == 3 for each in guide.GUIDE.values())
    assert len(guide.FIRST_STEPS) == 3


def test_the_readme_has_every_verb() -> None:
    commands = (ROOT / "README.md").read_text("utf-8").partition("## The commands\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(\w+)[` ]", commands))
    assert not VERBS.keys() - told, "README.md lacks their lines among the commands"


def test_every_exit_code_is_told_once() -> None:
    numbers = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    codes = [code for code, _ in exit_codes.EXIT_CODES]
    assert len({*codes}) == len(codes)
    assert numbers | {0, 1, exit_codes.FAILED, exit_codes.SIGNALLED} == {*codes}
    for verb, own in exit_codes.OF_VERB.items():
        assert {code for code, _ in own} <= {*codes}, verb
        assert len({code for code, _ in own}) == len(own), verb


@pytest.mark.parametrize("columns", [60, 80, 130])
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_a_page_of_help_fits_the_terminal_and_begins_with_what_is_needed_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    page = shown(monkeypatch, capsys, *filter(None, [verb, "--help"]))
    lines = page.splitlines()
    assert max(map(len, lines)) <= min(columns, MOST_COLUMNS)
    assert all(line == line.rstrip() for line in lines)
    blocks = page.split("\n\n")
    assert blocks[0].startswith(f"Usage: tflaunch {verb}".rstrip())
    assert blocks[2].startswith("Examples:\n  tflaunch ")
    assert "Exit code: " not in page  # they are data: tflaunch/cli/exit_codes.py
    assert not re.search(r"<|>(?! [\w.]+\.json)|\[\[|\{HOSTS|\\\[|None", page)
    titles = re.findall(r"^(\w[\w ,]*):$", page, re.MULTILINE)
    assert titles[-1] == "Exit codes"
    assert len({*titles}) == len(titles)
    for code, meaning in exit_codes.OF_VERB.get(verb, exit_codes.EXIT_CODES):
        assert f"{code} {meaning}" in " ".join(page.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_in_its_help_with_the_name_of_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    page = shown(monkeypatch, capsys, verb, "-h")
    command = typer.main.get_command(application([verb])).commands[verb]  # type: ignore[attr-defined]
    for param in command.params:
        if param.param_type_name != "option":
            continue
        name = param.opts[0] if param.is_flag else f"{param.opts[0]} {param.metavar}"
        assert re.search(rf"^  (    |-\w, ){re.escape(name)}(,.*|  .*)?$", page, re.MULTILINE), name
        assert param.help


def test_help_is_a_verb_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = shown(monkeypatch, capsys, "help", "logs")
    assert page == shown(monkeypatch, capsys, "logs", "--help")
    assert page == shown(monkeypatch, capsys, "-h", "logs")
    assert shown(monkeypatch, capsys, "help") == shown(monkeypatch, capsys, "--help")
    monkeypatch.setattr(sys, "argv", ["tflaunch", "help", "lgos"])
    with pytest.raises(errors.UsageError, match="did you mean logs"):
        cli._run()


@pytest.mark.parametrize(
    ("environ", "columns"),
    [
        ({"COLUMNS": "72"}, 72),
        ({"COLUMNS": "9"}, LEAST_COLUMNS),
        ({"COLUMNS": "300"}, MOST_COLUMNS),
    ],
)
def test_the_help_is_as_wide_as_the_user_says(environ: dict[str, str], columns: int) -> None:
    assert columns_of(environ) == columns


def test_an_earlier_spelling_works_and_is_not_shown(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = typer.main.get_command(application(["gpus"])).commands["gpus"]  # type: ignore[attr-defined]
    for words in (["--model", "H100", "--host=gpu0*"], ["--gpu-model=H100", "--hosts", "gpu0*"]):
        params = command.make_context("gpus", words).params
        assert (params["gpu_model"], params["only_hosts"]) == ("H100", "gpu0*")
    page = shown(monkeypatch, capsys, "gpus", "--help")
    assert "--gpu-model TEXT" in page
    assert "--model" not in page.replace("--gpu-model", "")
    assert "--host " not in page


def modules_of(*words: str) -> set[str]:
    """What `python WORDS` has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True
    )
    return {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


def test_the_help_loads_little_more_than_typer() -> None:
    found = modules_of("-m", "tflaunch", "--help") - modules_of("-c", "import typer")
    assert {name for name in found if name.startswith("tflaunch")} == {
        "tflaunch",
        "tflaunch.cli",
        "tflaunch.cli.command",
        "tflaunch.cli.exit_codes",
        "tflaunch.cli.guide",
        "tflaunch.cli.plain_values",
        "tflaunch.cli.verb_help",
        "tflaunch.console",
        "tflaunch.console.help_page",
        "tflaunch.documents",
        "tflaunch.documents.writer",
        "tflaunch.inputs",
        "tflaunch.inputs.amounts",
        "tflaunch.protocol",
        "tflaunch.protocol.errors",
        "tflaunch.text",
        "tflaunch.text.safe",
        "tflaunch.text.times",
    }
    others = {name for name in found if name.partition(".")[0] not in ("tflaunch", "typer", "click")}
    assert others <= LIGHT, "each module costs every --help its time"
