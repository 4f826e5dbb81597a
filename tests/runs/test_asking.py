"""A question in the middle of a command: who answers it how, and what goes on meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.endless import endless
from tests.support.launcher import Launcher
from tests.support.patience import PATIENCE_S
from tests.support.terminal import CTRL_C, CTRL_D, CTRL_Z, Terminal

# Asks over a local host whose agent would end soon after it last heard of its launcher, and says how it lives after.
ASK = """\
import sys, time
from tflaunch.sessions import asking
from tflaunch.launch.cluster import Cluster
from tflaunch.console.opening import open_reporter
from tflaunch.hosts import Host
from tflaunch.remote import ConnectOptions, Connector
from tflaunch.protocol.job import JobSpec
from tflaunch.sessions.group import Stopped

patience_s, lease_s, *words = sys.argv[1:]
host = Host("here", connection="local", run_dir={run_dir!r})
reporter = open_reporter(json="--json" in words)
to_host = Connector([host], ConnectOptions(timeout_s=60.0), None)
cluster = Cluster("ask-aaaaaa", to_host, reporter, lease_s=float(lease_s), job=JobSpec(()))
with cluster.interrupts():
    cluster.open([host], 0, 60.0)
    asking.PATIENCE_S = float(patience_s)
    try:
        answer = cluster.ask("take all of it?")
    except Stopped:
        answer = "stopped"
    facts, failures = cluster.look([host], 0, {{}})
    reporter.say(f"answer: {{answer}}; hosts: {{[*facts]}} {{failures}}")
    cluster.abandon()
reporter.close()
to_host.close()
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def asking(
    launcher: Launcher, *words: str, patience_s: float = PATIENCE_S, lease_s: float = PATIENCE_S
) -> list[str | bytes | Path]:
    """The command that asks."""
    times = (str(patience_s), str(lease_s))
    return [sys.executable, "-c", ASK.format(run_dir=str(launcher.hosts)), *times, *words]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", "True"), ("Yes\n", "True"), ("\n", "False"), ("n\n", "False"), ("yesterday\n", "False")],
)
def test_only_yes_is_yes(local: Launcher, typed: str, answer: str) -> None:
    with Terminal(asking(local), local.env(), local.code) as terminal:
        terminal.wait_for("take all of it? [y/N]")
        terminal.type(typed)
        assert terminal.end() == 0
        assert (
            f"take all of it? [y/N] {typed.strip()}\nanswer: {answer}; hosts: ['here'] {{}}" in terminal.shown
        )


def test_what_was_typed_before_the_question_answers_nothing(local: Launcher) -> None:
    with Terminal(asking(local), local.env(), local.code) as terminal:
        terminal.type("y\n")
        terminal.wait_for("take all of it? [y/N]")
        terminal.type("n\n")
        assert terminal.end() == 0
        assert "answer: False" in terminal.shown


def test_the_end_of_the_input_is_no(local: Launcher) -> None:
    with Terminal(asking(local), local.env(), local.code) as terminal:
        terminal.wait_for("[y/N]")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "[y/N] \nanswer: False" in terminal.shown


def test_ctrl_c_stops_at_once(local: Launcher) -> None:
    with Terminal(asking(local), local.env(), local.code) as terminal:
        terminal.wait_for("[y/N]")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert "answer: stopped" in terminal.sentences


def test_no_answer_is_no_and_is_said_and_the_agent_has_lived_all_that_time(local: Launcher) -> None:
    with Terminal(asking(local, patience_s=15.0, lease_s=10.0), local.env(), local.code) as terminal:
        assert terminal.end() == 0
        assert (
            "no answer for 15 s, which is taken for a no answer: False; hosts: ['here'] {}"
            in terminal.sentences
        )


def test_after_ctrl_z_and_fg_it_is_asked_again(local: Launcher) -> None:
    words = " ".join(f"'{word}'" for word in asking(local)[-2:])
    script = local.script(ASK.format(run_dir=str(local.hosts)), "ask.py")
    env = local.env(PS1="$ ", TERM="xterm")
    with Terminal(["bash", "--norc", "--noediting", "-i"], env, local.code) as terminal:
        terminal.type(f"{sys.executable} {script} {words}\n")
        terminal.wait_for("[y/N]")
        terminal.type(CTRL_Z)
        terminal.wait_for("Stopped")
        terminal.type("bg\n")  # must not read what is typed at the shell, nor be stopped by it
        terminal.wait_for("[y/N]", 2)
        terminal.type("echo $((6 * 7)); jobs\n")
        terminal.wait_for("42")
        terminal.wait_for("Running")
        terminal.type("fg\n")
        terminal.type("y\n")
        terminal.wait_for("answer: True; hosts: ['here'] {}")
        terminal.type("exit\n")
        terminal.end()


def test_nobody_is_asked_without_a_terminal_or_by_a_program(local: Launcher) -> None:
    done = subprocess.run(
        asking(local), check=True, env=local.env(), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert "answer: None" in done.stderr
    assert "take all" not in done.stderr
    with Terminal(asking(local, "--json"), local.env(), local.code) as terminal:
        assert terminal.end() == 0
        said = [json.loads(line) for line in terminal.shown.splitlines()]
        assert [event["text"] for event in said if event["event"] == "say"] == [
            "answer: None; hosts: ['here'] {}"
        ]


def test_stop_asks_which_until_it_is_one_of_them(local: Launcher) -> None:
    hostfile = local.local(1)
    with endless(local, hostfile), endless(local, hostfile):
        with Terminal(local.argv("stop"), local.env(), local.code) as terminal:
            terminal.wait_for("stop which?")
            terminal.type("3\n")
            terminal.wait_for("stop which, 1 to 2?")
            terminal.type(CTRL_C)
            assert terminal.end() == 130
            assert "stopped; no run was ended" in terminal.shown
            assert "go on ending" not in terminal.shown
        with Terminal(local.argv("stop"), local.env(), local.code) as terminal:
            terminal.wait_for("stop which?")
            terminal.type("2\n")
            assert terminal.end() == 0
        with Terminal(local.argv("stop"), local.env(), local.code) as terminal:  # there is one only
            assert terminal.end() == 0
