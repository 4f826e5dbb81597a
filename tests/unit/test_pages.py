"""Everything that the pages tell a reader to type is known to tflaunch: no verb and no option of yesterday."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import tomllib
import yaml

from tests.docs import known, shapes
from tests.docs.pages import Block, Command, Span, also, blocks, calls, commands, documents, files, spans
from tests.support import ROOT
from tflaunch.cli import VERBS
from tflaunch.hosts import load
from tflaunch.inputs import job_file
from tflaunch.inputs.engine_words import VARIABLE
from tflaunch.protocol.errors import TflaunchError

PAGES = [*documents(), *also()]
COMMANDS = [command for page in PAGES for command in commands(page) if command.calls]
SPANS = [span for page in PAGES for span in spans(page)]
BLOCKS = [block for page in PAGES for block in blocks(page)]

# Options that the pages speak of, and that are not tflaunch's.  An option with `_` is a trainer's: see below.
OTHERS = {
    "--cpu-bind",  # srun
    "--map-by",  # mpirun
    "--collector",  # .textfile.directory, of Prometheus's node exporter
    "--rdma",  # TensorFlowOnSpark
    # trainers
    "--lr", "--layers", "--epochs", "--steps", "--port", "--peers", "--shards", "--job", "--logdir", "--task",
    "--task-index", "--worker", "--replicas", "--demo", "--model", "--inputs", "--outputs", "--address", "--dispatcher",
    # pip, uv, venv
    "--no-index", "--find-links", "--system-site-packages",
    # pytest, the scripts of this project
    "--ignore", "--lf",
    # launchers that the pages compare with
    "--nnodes", "--nproc-per-node", "--bind-to", "--gloo", "--rank",
}  # fmt: skip
# Inline code that begins with one of these is a command of that program.
PROGRAMS = {
    *(
        "srun",
        "sbatch",
        "horovodrun",
        "mpirun",
        "torchrun",
        "deepspeed",
        "dstack",
        "sky",
        "spark-submit",
        "kubectl",
        "java",
        "for",
        "ssh",
        "rsync",
        "pip",
        "uv",
        "pipx",
    ),
    *("podman", "docker", "conda", "pytest", "python", "python3", "nvidia-ctk", "ssh-add", "git"),
}


def ids(item: Command | Span | Block) -> str:
    return f"{item.page}: {getattr(item, 'text', '').splitlines()[0][:60]}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's directory."""
    directory = known.fresh(tmp_path / "proj")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(tmp_path))
    return directory


def test_the_pages_have_commands() -> None:
    """Were they not found, nothing below could fail."""
    assert len({command.text for command in COMMANDS}) > 40
    assert {words[0] for command in COMMANDS for words in command.calls} > {
        "run",
        "ps",
        "stop",
        "gpus",
        "sweep",
    }
    assert len([span for span in SPANS if span.text.startswith("--")]) > 60


@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_tflaunch_knows_the_command(command: Command, here: Path) -> None:
    for name, text in files(ROOT / command.page).items():
        if not name.startswith(("~", "/", "hosts.yaml")):
            (here / name).write_text(text)
    for words in map(known.filled_in, command.calls):
        known.files_for(words, here)
        assert known.refusal(words) == "", f"{command.where}: {command.text}"


@pytest.mark.parametrize("span", [each for each in SPANS if each.text.startswith("tflaunch ")], ids=ids)
def test_tflaunch_knows_what_is_said_in_passing(span: Span) -> None:
    """`tflaunch VERB --option` in a sentence may leave words out, but its verb and options are there."""
    for words in calls(span.text.replace("…", "").replace("...", "")):
        own = known.filled_in(words[: words.index("--")] if "--" in words else words)
        named = [word for word in own if not word.startswith("-")]
        verb = named[0] if named else ""
        assert not verb or verb in VERBS, f"{span.where}: {span.text}"
        for word in own:
            if word.startswith("--"):
                assert word.partition("=")[0] in known.options_of(verb), f"{span.where}: {span.text}"


def test_every_option_that_a_page_names_is_one() -> None:
    wrong = []
    for span in SPANS:
        if span.text.split()[0].rpartition("/")[2] in PROGRAMS:
            continue
        for option in re.findall(r"(?<![\w=:/'\"-])--[a-z][\w-]*", span.text.partition(" -- ")[0]):
            if option not in known.all_options() and option not in OTHERS and "_" not in option:
                wrong.append(f"{span.where}: {option} in `{span.text}`")
    assert not wrong, (
        "tflaunch has no such option; if it is another program's, it belongs into OTHERS:\n"
        + "\n".join(wrong)
    )
    assert not [option for option in known.all_options() if "_" in option]


def _yaml(block: Block, here: Path) -> None:
    document = yaml.safe_load(block.text)
    keys = set(document) if isinstance(document, dict) else set()
    if keys & {"program", "module"}:
        (here / "job.yaml").write_text(block.text)
        assert job_file.load(str(here / "job.yaml"))
    elif keys and keys <= {"hosts", "defaults"}:
        (here / "hosts.yaml").write_text(block.text if "hosts" in keys else f"{block.text}\nhosts: [gpu01]\n")
        assert load(str(here / "hosts.yaml")).hosts
    elif "engine" in keys:
        (here / "slots.yaml").write_text(block.text)
        with mock.patch.dict(os.environ, {VARIABLE: f"{document['engine']}=of.its.own"}):
            assert load(str(here / "slots.yaml")).wanted


def _python(block: Block, here: Path) -> None:
    ast.parse(block.text)


READ: dict[str, Callable[[Block, Path], object]] = {
    "yaml": _yaml,
    "yml": _yaml,
    "python": _python,
    "py": _python,
    "json": lambda block, _: json.loads(block.text),
    "toml": lambda block, _: tomllib.loads(block.text),
}


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language in READ], ids=ids)
def test_what_a_page_has_a_reader_copy_is_well_formed(block: Block, here: Path) -> None:
    """Hostfiles and job files are read by tflaunch itself."""
    try:
        READ[block.language](block, here)
    except (TflaunchError, SyntaxError, ValueError, yaml.YAMLError) as error:
        pytest.fail(f"{block.where}: {error}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tflaunch ps -q | xargs tflaunch stop --all", [["ps", "-q"]]),
        ("RUN=$(tflaunch run --detach a.py)", [["run", "--detach", "a.py"]]),
        ("A=1 tflaunch run a.py > out 2>&1 &", [["run", "a.py"]]),
        ("tflaunch logs --grep 'a|b' # not this: tflaunch", [["logs", "--grep", "a|b"]]),
        ("for n in 1 2; do tflaunch run a.py -- $n; done", [["run", "a.py", "--", "$n"]]),
        ("cd x && .venv/bin/tflaunch --version", [["--version"]]),
        ("echo tflaunch run", []),
        ("tflaunch run a.py \\\n    --ps 2", [["run", "a.py", "--ps", "2"]]),
    ],
)
def test_the_calls_in_a_line_of_shell(text: str, found: list[list[str]]) -> None:
    assert calls(text) == found


def test_a_verb_or_an_option_that_is_not_there_is_noticed(here: Path) -> None:
    known.files_for(["hosts.yaml", "trainer.py"], here)
    assert known.refusal(["run", "hosts.yaml", "trainer.py", "--ps", "2", "--", "--anything"]) == ""
    assert "--workres" in known.refusal(["run", "hosts.yaml", "trainer.py", "--workres", "2"])
    assert "no command 'lunch'" in known.refusal(["lunch", "hosts.yaml"])
    assert "'x'" in known.refusal(["run", "hosts.yaml", "trainer.py", "--ps", "x"])
    assert known.refusal(["--versoin"]) == "--versoin"


def test_commands_and_output_are_told_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text, and\n\n    $ tflaunch ps --json\n    {}\n    more\n\n    $ tflaunch stop\n\n"
        "1. a list\n\n   ```sh\n   tflaunch run a.py \\\n       --ps 1\n   ```\n\n```yaml\nhosts: [a]\n```\n\n"
        "    worker/0 │ hello\n\nand `--ps`, `a\nb`.\n"
    )
    first, second, third = commands(page, tmp_path)
    assert (first.text, first.prints, first.line) == ("tflaunch ps --json", ("{}", "more", ""), 3)
    assert (second.text, second.prints) == ("tflaunch stop", ())
    assert third.calls == [["run", "a.py", "--ps", "1"]]
    assert [block.text for block in blocks(page, tmp_path) if block.language == "yaml"] == ["hosts: [a]\n"]
    assert [span.text for span in spans(page, tmp_path)] == ["--ps", "a b"]


def test_pages_name_this_project_only() -> None:
    """The pages that are read here are those of the project."""
    assert all(page.is_relative_to(ROOT) for page in PAGES)


@pytest.mark.parametrize(
    ("shown", "real", "alike"),
    [
        ("✓ shipped 14 files, 96 KiB of ~/proj", "✓ shipped 2 files, 1.2 MiB of ~/work/a", True),
        ("✓ shipped 14 files, 96 KiB of ~/proj", "✓ sent 2 files, 1.2 MiB of ~/work/a", False),
        ("run trainer-k3f9x2", "run bert-9zz123", True),
        ("  2 ps       on storage", "  1 ps  on gpu03", True),
        ("! gpu03 cannot be reached (…): going on", "! host9 cannot be reached (no route): going on", True),
        ("! gpu03 cannot be reached", "! gpu03 can be reached", False),
        ("worker/0 │ loss 0.5", "worker/13 │ loss 0.25", True),
        ("one\n  sentence over\n  lines", "one sentence over lines", True),
        ("b\na", "a\nb", False),
    ],
)
def test_output_is_compared_in_its_shape(shown: str, real: str, alike: bool) -> None:
    assert (shapes.missing(shown.split("\n"), real) == "") is alike
