"""Who has not said how many workers is asked before much is taken: real hosts behind sshd, with simulated GPUs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Gpus
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tests.support.terminal import CTRL_C, Terminal


@pytest.fixture
def gpus(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Gpus:
    """Two hosts with two GPUs each."""
    lab = Gpus(library, tmp_path, network, launcher)
    lab.add(2)
    lab.add(2)
    return lab


def words(gpus: Gpus, *more: str, verb: str = "run") -> tuple[str | Path, ...]:
    """A run that leaves the number of workers out; its tasks end at once."""
    gpus.let_end("it")
    return (verb, gpus.hostfile, gpus.trainer, "--ps=0", f"--env=OUT={gpus.out}", "--env=NAME=it", *more)


def on_terminal(gpus: Gpus, *command: Any, columns: int = 130) -> Terminal:
    launcher = gpus.launcher
    env = launcher.env(TERM="xterm")
    del env["COLUMNS"]
    return Terminal(launcher.argv(*command), env, launcher.code, columns)


def leased(gpus: Gpus) -> int:
    """How many GPUs any run holds, as `tflaunch gpus` sees it."""
    shown = gpus.launcher.run("gpus", gpus.hostfile, "-F", gpus.network.config, "--json").ran().out
    return shown.count('"run"')


QUESTION = "4 workers on 4 of 4 GPUs of 2 hosts: go on? [y/N]"


@pytest.mark.parametrize("columns", [80, 130])
def test_while_it_asks_nothing_is_leased_and_yes_starts_it(gpus: Gpus, columns: int) -> None:
    with on_terminal(gpus, *words(gpus), columns=columns) as terminal:
        terminal.wait_for(QUESTION)
        until(lambda: leased(gpus) == 0, "no lease")
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
        assert terminal.sentences.count("[y/N]") == 1
    assert gpus.order == ["it"] * 4


def test_no_and_ctrl_c_start_nothing_and_leave_nothing(gpus: Gpus) -> None:
    with on_terminal(gpus, *words(gpus)) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("\n")
        assert terminal.end() == 2
        assert (
            "nothing was started → say how many: --workers 4, or agree to what there is: --yes"
            in terminal.sentences
        )
    with on_terminal(gpus, *words(gpus)) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "nothing was started, nothing is left" in terminal.sentences
    assert gpus.order == []
    assert gpus.launcher.records() == []
    gpus.launcher.wait_until_nothing_is_left()


def test_what_is_taken_while_it_asks_is_left_and_what_is_more_is_asked_again(gpus: Gpus) -> None:
    with contextlib.ExitStack() as stack:
        terminal = stack.enter_context(on_terminal(gpus, *words(gpus)))
        terminal.wait_for(QUESTION)
        first = stack.enter_context(gpus.launcher.start(*gpus.words("first", 2, "--include=host1")))
        first.wait_for("has GPU", 2)
        terminal.type("y\n")
        assert terminal.end() == 0
        assert gpus.order == ["first"] * 2 + ["it"] * 2
        gpus.add(1)
        terminal = stack.enter_context(on_terminal(gpus, *words(gpus)))
        terminal.wait_for("3 workers on 3 of 3 GPUs of 2 hosts: go on? [y/N]")
        gpus.let_end("first")
        first.done().ran()
        terminal.type("y\n")
        terminal.wait_for("more is free now: 5 workers on 5 of 5 GPUs of 3 hosts: go on? [y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
        assert gpus.order[4:] == ["it"] * 5


def test_without_a_terminal_it_says_what_to_type(gpus: Gpus) -> None:
    done = gpus.launcher.run(*words(gpus)).ran(2)
    assert (
        "this takes 4 workers on 4 of 4 GPUs of 2 hosts, and tflaunch cannot ask whether it may: stdin and stderr "
        "are no terminal, or --json was given → say how many: --workers 4, or agree to what there is: --yes"
    ) in done.sentences
    assert gpus.order == []
    assert gpus.launcher.records() == []
    [error] = [
        each for each in gpus.launcher.run(*words(gpus, "--json")).ran(2).events if each["event"] == "error"
    ]
    assert error["hint"] == "say how many: --workers 4, or agree to what there is: --yes"
    gpus.launcher.run(*words(gpus, "--yes")).ran()
    gpus.launcher.run(*words(gpus), env={"TFLAUNCH_YES": "1"}).ran()
    gpus.launcher.run(*words(gpus, "--workers=4")).ran()
    gpus.launcher.run(*words(gpus, "--worker-hosts=host1")).ran()
    assert len(gpus.order) == 14


def test_a_dry_run_tells_what_would_be_asked_and_asks_nothing(gpus: Gpus) -> None:
    done = gpus.launcher.run(*words(gpus, "--dry-run")).ran()
    assert f"a run would ask first (--yes answers yes): {QUESTION.removesuffix(' [y/N]')}" in done.sentences
    assert "asked" not in gpus.launcher.run(*words(gpus, "--dry-run", "--yes")).ran().sentences
    assert "asked" not in gpus.launcher.run(*words(gpus, "--dry-run", "--workers=4")).ran().sentences


def test_a_detached_run_is_asked_before_it_detaches(gpus: Gpus) -> None:
    gpus.launcher.run(*words(gpus, "-d")).ran(2)
    with on_terminal(gpus, *words(gpus, "-d")) as terminal:
        terminal.wait_for(QUESTION)
        terminal.type("y\n")
        assert terminal.end() == 0
        assert "goes on by itself" in terminal.sentences
    until(lambda: len(gpus.order) == 4, "all four workers")
    gpus.launcher.wait_until_nothing_is_left()


def test_who_waits_is_asked_before_he_queues_for_the_most_that_it_may_come_to(gpus: Gpus) -> None:
    with gpus.launcher.start(*gpus.words("first", 4)) as first:
        first.wait_for("has GPU", 4)
        done = gpus.launcher.run(*words(gpus, "--wait")).ran(2)
        most = "up to 4 workers on 4 of 4 GPUs of 2 hosts"
        assert most in done.sentences
        assert gpus.tickets == []
        with on_terminal(gpus, *words(gpus, "--wait")) as terminal:
            terminal.wait_for(most)
            terminal.wait_for("[y/N]")
            terminal.type("y\n")
            until(lambda: len(gpus.tickets) == 2, "its place in both queues")
            gpus.let_end("first")
            first.done().ran()
            assert terminal.end() == 0
            assert terminal.sentences.count("[y/N]") == 1
    assert set(gpus.order[4:]) == {"it"}


def test_how_a_host_that_is_left_out_would_be_reached_does_not_matter(gpus: Gpus) -> None:
    gpus.network.prepend("Host odd\n  RevokedHostKeys /nowhere")
    run, _, *rest = words(gpus, "--exclude=odd")
    hosts = gpus.launcher.hostfile(["host1", "odd"], gpus="auto")
    gpus.launcher.run(run, hosts, *rest).ran()


def test_models_are_not_mixed_unasked(gpus: Gpus) -> None:
    gpus.fleets[1].change('gpu uuid=GPU-20 name="NVIDIA V100" mem=16384')
    done = gpus.launcher.run(*words(gpus, "--yes")).ran(65)
    assert re.search(
        r"3 workers would get GPUs of 2 models: 2 x .* \(host1\), 1 x NVIDIA V100 \(host2\)", done.sentences
    )
    assert "--gpu-model" in done.sentences
    assert "say how many workers: --workers N, or mix them: --mix-models" in done.sentences
    gpus.launcher.run(*words(gpus, "--workers=3")).ran(65)
    mixed = gpus.launcher.run(*words(gpus, "--yes", "--mix-models")).ran()
    assert "the workers get GPUs of different models" in mixed.sentences
    gpus.launcher.run(*words(gpus, "--yes", "--gpu-model=V100")).ran()
    assert len(gpus.order) == 4


def test_all_gpus_of_each_host_are_one_worker_s(gpus: Gpus) -> None:
    done = gpus.launcher.run(*words(gpus, "--gpus-per-worker=all", "--workers=2")).ran()
    assert sorted(re.findall(r"has (\S+)", done.out)) == ["GPU-10,GPU-11", "GPU-20,GPU-21"]
    job = gpus.launcher.code / "job.yaml"
    job.write_text("program: trainer.py\nroles: {ps: 0, worker: {gpus: all}}\nmix_models: true\n")
    command = ("run", gpus.hostfile, job, f"--env=OUT={gpus.out}", "--env=NAME=it")
    assert "2 workers on 4 of 4 GPUs of 2 hosts" in gpus.launcher.run(*command).ran(2).sentences
    gpus.launcher.run(*command, "--yes").ran()
    assert len(gpus.order) == 4
    assert (
        "'many' is not a whole number" in gpus.launcher.run(*words(gpus, "--gpus-per-worker=many")).ran(2).err
    )
    job.write_text("program: trainer.py\nroles: {worker: {gpus: many}}\n")
    assert "whole number from 0 to 1024, or all" in gpus.launcher.run(*command).ran(2).sentences


def test_a_sweep_without_gpus_is_told_how_to_leave_hosts_out(launcher: Launcher, network: SshNetwork) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name])
    refused = launcher.run("sweep", hosts, launcher.script("print(1)"), "--grid=x=1,2").ran(2)
    assert "this takes 2 trials at a time on 2 hosts" in refused.sentences
    assert "agree to it: --yes, or leave hosts out: --exclude HOST" in refused.sentences
    assert "GPUs" not in refused.sentences


def test_a_sweep_and_up_ask_likewise(gpus: Gpus) -> None:
    sweep = words(gpus, "--grid=x=1,2,3", verb="sweep")
    sweep = tuple(word for word in sweep if word != "--ps=0")
    refused = gpus.launcher.run(*sweep).ran(2)
    assert "this takes 3 trials at a time on 3 of 4 GPUs of 2 hosts" in refused.sentences
    assert "agree to it: --yes, or leave GPUs out: --exclude HOST[:0,2]" in refused.sentences
    dry = gpus.launcher.run(*sweep, "--dry-run").ran()
    assert (
        "a run would ask first (--yes answers yes): 3 trials at a time on 3 of 4 GPUs of 2 hosts"
        in dry.sentences
    )
    with on_terminal(gpus, *sweep) as terminal:
        terminal.wait_for("3 trials at a time on 3 of 4 GPUs of 2 hosts: go on? [y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
    gpus.launcher.run(*sweep, "--yes").ran()
    assert len(gpus.order) == 6
    one = ("sweep", *sweep[1:-1], "--grid=x=1")
    gpus.launcher.run(*one).ran()  # one trial takes one GPU
    up = gpus.launcher.run("up", gpus.hostfile, "--ps=0").ran(2)
    assert "this takes 4 workers on 4 of 4 GPUs of 2 hosts" in up.sentences


def test_hosts_without_ssh_are_one_machine_and_a_single_host_is_not_asked_for(launcher: Launcher) -> None:
    script = launcher.script("print('here')")
    launcher.run("run", launcher.local(3), script, "--ps=0").ran()
    launcher.run("run", launcher.local(1), script, "--ps=0").ran()
