"""What bash, zsh and fish complete at Tab: verbs, runs, tasks, hosts and models of GPUs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tests.support.terminal import Terminal

TRAINER = "print(1)"
# Asks as bash does, once for each argument, which is what was typed.
ASK = """\
import contextlib, io, json, os, sys
from tflaunch.cli import main
for typed in sys.argv[1:]:
    words = ["tflaunch", *typed.split(" ")]
    os.environ.update(_TFLAUNCH_COMPLETE="complete_bash", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1))
    sys.argv[:] = ["tflaunch"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    print(json.dumps(said.getvalue().split()))
"""


@pytest.fixture
def command(launcher: Launcher, tmp_path: Path) -> Path:
    """A directory with `tflaunch`, on a machine that knows one run and, by its default hostfile, two hosts."""
    hosts = launcher.local(2)
    launcher.run("run", hosts, launcher.script(TRAINER), "--ps=0", "--workers=2", "--name=mnist").ran()
    models = launcher.home / ".cache/tflaunch/gpu-models.json"
    models.parent.mkdir(parents=True, exist_ok=True)
    models.write_text('["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"]')
    hosts.rename(launcher.code / "hosts.yaml")
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "tflaunch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tflaunch "$@"\n')
    program.chmod(0o755)
    return directory


def env(launcher: Launcher, command: Path) -> dict[str, str]:
    env = launcher.env()
    return {**env, "PATH": f"{command}:{env['PATH']}", "TERM": "xterm"}


def completed(launcher: Launcher, command: Path, shell: str, script: str) -> list[str]:
    done = subprocess.run(
        [shell, "-c", script],
        env=env(launcher, command),
        cwd=launcher.code,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not done.stderr
    return done.stdout.split("\n")[:-1]


def test_what_may_follow(launcher: Launcher, command: Path) -> None:
    [record] = launcher.records()
    expected: dict[tuple[str, ...], list[str]] = {
        ("lo",): ["logs"],
        ("logs", "mn"): [record.name],
        ("logs", "worker/"): ["worker/0", "worker/1"],
        ("logs", record.name, "worker/"): ["worker/0", "worker/1"],
        ("stacks", "work"): ["worker/0", "worker/1"],
        ("status", "worker/"): [],
        ("stacks", record.name, "worker/"): ["worker/0", "worker/1"],
        ("attach", record.name, "--only", "worker/1"): ["worker/1"],
        ("clean", "mn"): [record.name],
        ("run", "--include", "local"): ["local1", "local2"],
        ("gpus", "--hosts", "local2"): ["local2"],
        ("gpus", "--gpu-model", "H"): ["H100"],
        ("run", "--gpu-model", "h"): ["h100"],  # which means the same
        ("sweep", "--gpu-model", "A"): ["A100", "A100-SXM4-80GB"],
        ("help", "st"): ["status", "stacks", "stop"],
        ("--v",): ["--version"],
        ("gpus", "--mo"): [],  # an earlier spelling works, and is not offered
        ("logs", "zz"): [],
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, *(" ".join(words) for words in expected)],
        env=env(launcher, command),
        cwd=launcher.code,
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(expected, map(json.loads, done.stdout.splitlines()), strict=True)) == expected


def test_bash(launcher: Launcher, command: Path) -> None:
    [record] = launcher.records()
    script = """
        eval "$(_TFLAUNCH_COMPLETE=source_bash tflaunch)"
        for words in "logs mn" "logs zz"; do
            COMP_WORDS=(tflaunch $words) COMP_CWORD=2
            _tflaunch_completion tflaunch
            printf '%s\\n' "${COMPREPLY[@]}"
        done
    """
    assert completed(launcher, command, "bash", script) == [record.name, ""]


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish here")
def test_fish(launcher: Launcher, command: Path) -> None:
    [record] = launcher.records()
    script = "_TFLAUNCH_COMPLETE=source_fish tflaunch | source; complete -C 'tflaunch logs mn'"
    [line] = completed(launcher, command, "fish", script)
    assert line.split("\t")[0] == record.name
    assert line.split("\t")[1].startswith("ended")
    script = "_TFLAUNCH_COMPLETE=source_fish tflaunch | source; complete -C 'tflaunch run --gpu-model '"
    assert completed(launcher, command, "fish", script) == [
        "4090\tNVIDIA GeForce RTX 4090",
        "A100\tNVIDIA A100-SXM4-80GB",
        "A100-SXM4-80GB\tNVIDIA A100-SXM4-80GB",
        "H100\tNVIDIA H100 80GB HBM3",
    ]
    script = "_TFLAUNCH_COMPLETE=source_fish tflaunch | source; complete -C 'tflaunch run --work'"
    assert "--workers\tNumber of worker tasks [one per free GPU, or host]" in completed(
        launcher, command, "fish", script
    )


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh(launcher: Launcher, command: Path) -> None:
    [record] = launcher.records()
    with Terminal(["zsh", "-f", "-i"], env(launcher, command), launcher.code) as terminal:
        terminal.type(
            "PS1='> '; autoload -Uz compinit; compinit -u -D; eval \"$(_TFLAUNCH_COMPLETE=source_zsh tflaunch)\"\n"
        )
        terminal.type("echo re''ady\n")
        terminal.wait_for("ready")
        terminal.type("tflaunch status mn\t")
        terminal.wait_for(record.name)
        terminal.type("\x15tflaunch run --gpu-model h\t")
        terminal.wait_for("--gpu-model h100")


# What a host may call its GPU; the shells complete it.  At Tab, zsh evaluates what typer prints.
HOSTILE_MODELS = (
    "NVIDIA H9`touch gone`",
    "NVIDIA H9$(touch gone)",
    r"NVIDIA H9\$(touch gone)",
    r"NVIDIA H9\`touch gone\`",
    "NVIDIA H9';touch gone;'",
    'NVIDIA H9";touch gone;"',
    r"NVIDIA H8 \$(touch gone)",
    "NVIDIA H7$(touch${IFS}gone)",
)


def call_gpus(launcher: Launcher, names: Sequence[str]) -> None:
    models = launcher.home / ".cache/tflaunch/gpu-models.json"
    models.write_text(json.dumps(list(names)))


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
@pytest.mark.parametrize("model", HOSTILE_MODELS)
def test_what_a_host_calls_its_gpu_is_no_command_to_zsh(
    launcher: Launcher, command: Path, model: str
) -> None:
    call_gpus(launcher, [model, "NVIDIA H100 80GB HBM3", "NVIDIA H200"])
    with Terminal(["zsh", "-f", "-i"], env(launcher, command), launcher.code) as terminal:
        terminal.type(
            "PS1='> '; autoload -Uz compinit; compinit -u -D; eval \"$(_TFLAUNCH_COMPLETE=source_zsh tflaunch)\"\n"
        )
        terminal.type("echo re''ady\n")
        terminal.wait_for("ready")
        terminal.type("tflaunch run --gpu-model H\t\t")
        terminal.wait_for("H200")
        terminal.type("\x15echo do''ne\n")
        terminal.wait_for("done")
    assert not (launcher.code / "gone").exists()


def test_what_a_host_calls_its_gpu_comes_to_no_shell_as_a_word(launcher: Launcher, command: Path) -> None:
    call_gpus(launcher, [*HOSTILE_MODELS, "NVIDIA H100 80GB HBM3"])
    script = """
        eval "$(_TFLAUNCH_COMPLETE=source_bash tflaunch)"
        COMP_WORDS=(tflaunch run --gpu-model H) COMP_CWORD=3
        _tflaunch_completion tflaunch
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    words = completed(launcher, command, "bash", script)
    assert "H100" in words
    assert all(word.isalnum() for word in words), words
