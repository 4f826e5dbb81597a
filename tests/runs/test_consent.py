"""Who has not said how many workers is asked before much is taken: real hosts behind sshd, with simulated cards."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Cards
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tests.support.terminal import CTRL_C, Terminal


@pytest.fixture
def cards(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Cards:
    """Two hosts with two cards each."""
    lab = Cards(library, tmp_path, network, launcher)
    lab.add(2)
    lab.add(2)
    return lab


def words(cards: Cards, *more: str, verb: str = "run") -> tuple[str | Path, ...]:
    """A run that leaves the number of workers out; its tasks end at once."""
    cards.let_end("it")
    return (verb, cards.hostfile, cards.trainer, "--ps=0", f"--env=OUT={cards.out}", "--env=NAME=it", *more)


def on_terminal(cards: Cards, *command: Any, columns: int = 130) -> Terminal:
    launcher = cards.launcher
    env = launcher.env(TERM="xterm")
    del env["COLUMNS"]
    return Terminal(launcher.argv(*command), env, launcher.code, columns)


def leased(cards: Cards) -> int:
    """How many cards any run holds, as `tflaunch gpus` sees it."""
    shown = cards.launcher.run("gpus", cards.hostfile, "-F", cards.network.config, "--json").ran().out
    return shown.count('"run"')


QUESTION = "4 workers on 4 of 4 cards of 2 hosts: go on? [y/N]"


@pytest.mark.parametrize("columns", [80, 130])
def test_while_it_asks_nothing_is_leased_and_yes_starts_it(cards: Cards, columns: int) -> None:
    with on_terminal(cards, *words(cards), columns=columns) as terminal:
        terminal.wait_for(QUESTION)
        until(lambda: leased(cards) == 0, "no lease")
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
        assert terminal.sentences.count("[y/N]") == 1
    assert cards.order == ["it"] * 4


def test_no_and_ctrl_c_start_nothing_and_leave_nothing(cards: Cards) -> None:
    with on_terminal(cards, *words(cards)) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("\n")
        assert terminal.end() == 2
        assert (
            "nothing was started → say how many: --workers 4, or agree to what there is: --yes"
            in terminal.sentences
        )
    with on_terminal(cards, *words(cards)) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "nothing was started, nothing is left" in terminal.sentences
    assert cards.order == []
    assert cards.launcher.records() == []
    cards.launcher.wait_until_nothing_is_left()


def test_what_is_taken_while_it_asks_is_left_and_what_is_more_is_asked_again(cards: Cards) -> None:
    with contextlib.ExitStack() as stack:
        terminal = stack.enter_context(on_terminal(cards, *words(cards)))
        terminal.wait_for(QUESTION)
        first = stack.enter_context(cards.launcher.start(*cards.words("first", 2, "--include=host1")))
        first.wait_for("has GPU", 2)
        terminal.type("y\n")
        assert terminal.end() == 0
        assert cards.order == ["first"] * 2 + ["it"] * 2
        cards.add(1)
        terminal = stack.enter_context(on_terminal(cards, *words(cards)))
        terminal.wait_for("3 workers on 3 of 3 cards of 2 hosts: go on? [y/N]")
        cards.let_end("first")
        first.done().ran()
        terminal.type("y\n")
        terminal.wait_for("more is free now: 5 workers on 5 of 5 cards of 3 hosts: go on? [y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
        assert cards.order[4:] == ["it"] * 5


def test_without_a_terminal_it_says_what_to_type(cards: Cards) -> None:
    done = cards.launcher.run(*words(cards)).ran(2)
    assert (
        "this takes 4 workers on 4 of 4 cards of 2 hosts, and tflaunch cannot ask whether it may: stdin and stderr "
        "are no terminal, or --json was given → say how many: --workers 4, or agree to what there is: --yes"
    ) in done.sentences
    assert cards.order == []
    assert cards.launcher.records() == []
    [error] = [
        each for each in cards.launcher.run(*words(cards, "--json")).ran(2).events if each["event"] == "error"
    ]
    assert error["hint"] == "say how many: --workers 4, or agree to what there is: --yes"
    cards.launcher.run(*words(cards, "--yes")).ran()
    cards.launcher.run(*words(cards), env={"TFLAUNCH_YES": "1"}).ran()
    cards.launcher.run(*words(cards, "--workers=4")).ran()
    cards.launcher.run(*words(cards, "--worker-hosts=host1")).ran()
    assert len(cards.order) == 14


def test_a_dry_run_tells_what_would_be_asked_and_asks_nothing(cards: Cards) -> None:
    done = cards.launcher.run(*words(cards, "--dry-run")).ran()
    assert f"this would be asked first (--yes agrees): {QUESTION.removesuffix(' [y/N]')}" in done.sentences
    assert "asked" not in cards.launcher.run(*words(cards, "--dry-run", "--yes")).ran().sentences
    assert "asked" not in cards.launcher.run(*words(cards, "--dry-run", "--workers=4")).ran().sentences


def test_a_detached_run_is_asked_before_it_detaches(cards: Cards) -> None:
    cards.launcher.run(*words(cards, "-d")).ran(2)
    with on_terminal(cards, *words(cards, "-d")) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("y\n")
        assert terminal.end() == 0
        assert "goes on by itself" in terminal.sentences
    until(lambda: len(cards.order) == 4, "all four workers")
    cards.launcher.wait_until_nothing_is_left()


def test_who_waits_is_asked_before_he_queues_for_the_most_that_it_may_come_to(cards: Cards) -> None:
    with cards.launcher.start(*cards.words("first", 4)) as first:
        first.wait_for("has GPU", 4)
        done = cards.launcher.run(*words(cards, "--wait")).ran(2)
        most = "up to 4 workers on 4 of 4 cards of 2 hosts"
        assert most in done.sentences
        assert cards.tickets == []
        with on_terminal(cards, *words(cards, "--wait")) as terminal:
            terminal.wait_for(most)
            terminal.wait_for("[y/N]")
            terminal.type("y\n")
            until(lambda: len(cards.tickets) == 2, "its place in both queues")
            cards.let_end("first")
            first.done().ran()
            assert terminal.end() == 0
            assert terminal.sentences.count("[y/N]") == 1
    assert set(cards.order[4:]) == {"it"}


def test_how_a_host_that_is_left_out_would_be_reached_does_not_matter(cards: Cards) -> None:
    cards.network.prepend("Host odd\n  RevokedHostKeys /nowhere")
    run, _, *rest = words(cards, "--exclude=odd")
    hosts = cards.launcher.hostfile(["host1", "odd"], gpus="auto")
    cards.launcher.run(run, hosts, *rest).ran()


def test_models_are_not_mixed_unasked(cards: Cards) -> None:
    cards.fleets[1].change('gpu uuid=GPU-20 name="NVIDIA V100" mem=16384')
    done = cards.launcher.run(*words(cards, "--yes")).ran(65)
    assert re.search(
        r"3 workers would get GPUs of 2 models: 2 x .* \(host1\), 1 x NVIDIA V100 \(host2\)", done.sentences
    )
    assert "--gpu-model" in done.sentences
    assert "say how many workers: --workers N, or mix them: --mix-models" in done.sentences
    cards.launcher.run(*words(cards, "--workers=3")).ran(65)
    mixed = cards.launcher.run(*words(cards, "--yes", "--mix-models")).ran()
    assert "workers get different cards" in mixed.sentences
    cards.launcher.run(*words(cards, "--yes", "--gpu-model=V100")).ran()
    assert len(cards.order) == 4


def test_all_cards_of_each_host_are_one_worker_s(cards: Cards) -> None:
    done = cards.launcher.run(*words(cards, "--gpus-per-worker=all", "--workers=2")).ran()
    assert sorted(re.findall(r"has (\S+)", done.out)) == ["GPU-10,GPU-11", "GPU-20,GPU-21"]
    job = cards.launcher.code / "job.yaml"
    job.write_text("program: trainer.py\nroles: {ps: 0, worker: {gpus: all}}\nmix_models: true\n")
    command = ("run", cards.hostfile, job, f"--env=OUT={cards.out}", "--env=NAME=it")
    assert "2 workers on 4 of 4 cards of 2 hosts" in cards.launcher.run(*command).ran(2).sentences
    cards.launcher.run(*command, "--yes").ran()
    assert len(cards.order) == 4
    assert (
        "'many' is not a whole number"
        in cards.launcher.run(*words(cards, "--gpus-per-worker=many")).ran(2).err
    )
    job.write_text("program: trainer.py\nroles: {worker: {gpus: many}}\n")
    assert "whole number from 0 to 1024, or all" in cards.launcher.run(*command).ran(2).sentences


def test_a_sweep_and_up_ask_likewise(cards: Cards) -> None:
    sweep = words(cards, "--grid=x=1,2,3", verb="sweep")
    sweep = tuple(word for word in sweep if word != "--ps=0")
    refused = cards.launcher.run(*sweep).ran(2)
    assert "this takes 3 trials at a time on 3 of 4 cards of 2 hosts" in refused.sentences
    assert "agree to it: --yes, or leave cards out: --exclude HOST[:0,2]" in refused.sentences
    dry = cards.launcher.run(*sweep, "--dry-run").ran()
    assert (
        "would be asked first (--yes agrees): 3 trials at a time on 3 of 4 cards of 2 hosts" in dry.sentences
    )
    with on_terminal(cards, *sweep) as terminal:
        terminal.wait_for("3 trials at a time on 3 of 4 cards of 2 hosts: go on? [y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
    cards.launcher.run(*sweep, "--yes").ran()
    assert len(cards.order) == 6
    one = ("sweep", *sweep[1:-1], "--grid=x=1")
    cards.launcher.run(*one).ran()  # one trial takes one card
    up = cards.launcher.run("up", cards.hostfile, "--ps=0").ran(2)
    assert "this takes 4 workers on 4 of 4 cards of 2 hosts" in up.sentences


def test_hosts_without_ssh_are_one_machine_and_a_single_host_is_not_asked_for(launcher: Launcher) -> None:
    script = launcher.script("print('here')")
    launcher.run("run", launcher.local(3), script, "--ps=0").ran()
    launcher.run("run", launcher.local(1), script, "--ps=0").ran()
