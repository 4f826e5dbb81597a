"""A run is handed from its launcher to a coordinator on its hosts while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import termios
from pathlib import Path

import pytest

from tests.runs.test_detach import coordinator, events, host_of, second_starts
from tests.support.detached import COUNT, end
from tests.support.launcher import Launcher, Running
from tests.support.patience import until
from tests.support.terminal import CTRL_C, CTRL_Z, Terminal
from tflaunch.agent.host import processes

HANDED = "has handed it over"


def attached(launcher: Launcher, hosts: Path, out: Path, *options: str) -> Running:
    """A run of 1 ps and 2 workers, with its launcher."""
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=6", "--ps-grace=0.2", *options)
    running = launcher.start("run", hosts, launcher.script(COUNT), *words)
    running.wait_for("worker-1 attempt 0 number 5")
    return running


def end_well(launcher: Launcher, out: Path, run: str) -> str:
    """End the workers; what `attach` says of the whole run, which has succeeded."""
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    done = launcher.run("attach", run).ran()
    assert f"{run} succeeded" in done.err
    launcher.wait_until_nothing_is_left()
    return done.sentences


def listens(pid: int) -> bool:
    """Whether that process listens on a TCP port."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        sockets |= {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"}
    return bool(sockets & {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()})


def attempts(launcher: Launcher, task: str) -> list[str]:
    """The names of that task's logs, one for each attempt."""
    return sorted(path.name for path in launcher.hosts.glob(f"tflaunch-*/*/*/logs/{task}*.log"))


@pytest.mark.usefixtures("started_anew")  # of `detach` no other test does
def test_the_launcher_ends_and_the_run_goes_on(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out) as running:
        run = running.run_id
        done = launcher.run("detach", run).ran()
        assert f"{run} goes on without its launcher; watch it: tflaunch attach {run}" in done.sentences
        left = running.done().ran()
    assert f"{run} goes on by itself: 3 tasks" in left.err
    assert f"tflaunch attach {run}" in left.err
    assert "goes on by itself" not in left.out
    first = coordinator(launcher, host_of(launcher, "worker/0"))
    assert "detached: it goes on without a launcher" in launcher.run("status", run).ran().out
    [listed] = json.loads(launcher.run("ps", "--json").ran().out)["runs"]
    assert listed["detached"] is True
    again = launcher.run("detach", run).ran()
    assert "goes on without its launcher already" in again.sentences
    os.kill(first, signal.SIGKILL)  # the next one begins with what the launcher has left
    until(lambda: not processes.read(first), "its end")
    assert coordinator(launcher, host_of(launcher, "worker/0")) != first
    said = end_well(launcher, out, run)
    assert HANDED in said
    assert "cannot be used" not in said
    assert attempts(launcher, "worker-1") == ["worker-1.log"]


def test_restarts_count_on_and_those_that_are_due_come(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out, "--restarts=2") as running:
        run = running.run_id
        end(out, "worker-1", 3)
        running.wait_for("it starts again in 1 s (restart 1 of 2)")
        launcher.run("detach", run).ran()  # while it waits
        running.done().ran()
    until(lambda: len(attempts(launcher, "worker-1")) == 2, "the second attempt")
    end(out, "worker-1", 4)
    until(lambda: len(attempts(launcher, "worker-1")) == 3, "the third attempt")
    end(out, "worker-1", 5)
    launcher.wait_until_nothing_is_left()
    done = launcher.run("attach", run).ran(5)
    assert "(restart 2 of 2)" in done.err
    assert "was started again 2 times (--restarts 2); no more" in done.err


def test_a_cluster_that_is_about_to_start_again_starts_once(launcher: Launcher, out: Path) -> None:
    options = ("--restarts=1", "--restart=cluster", "--grace=0.2")
    with attached(launcher, launcher.local(3), out, *options) as running:
        run = running.run_id
        end(out, "worker-1", 3)
        running.wait_for("all tasks are stopped and start again")
        launcher.run("detach", run).ran()
        running.done().ran()
    until(lambda: len(second_starts(launcher)) == 3, "all three to run again")
    end_well(launcher, out, run)
    assert attempts(launcher, "ps-0") == ["ps-0.1.log", "ps-0.log"]


def test_two_at_once_and_a_stop_right_after(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out) as running:
        run = running.run_id
        with launcher.start("detach", run) as one, launcher.start("detach", run) as other:
            assert (one.end(), other.end()) == (0, 0)
        launcher.run("stop", run).ran()
        running.done().ran()
    launcher.wait_until_nothing_is_left()
    said = launcher.run("attach", run).ran(143).err
    assert "stopped by SIGTERM or `tflaunch stop`" in said
    assert said.count(HANDED) == 1


def test_a_run_that_has_not_started_stays_with_its_launcher(launcher: Launcher, out: Path) -> None:
    gate = out / "gate"
    hosts = launcher.local(2, setup=[f"while [ ! -e {gate} ]; do sleep 0.05; done"])
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=6", "--ps-grace=0.2")
    with launcher.start("run", hosts, launcher.script(COUNT), *words) as running:
        until(lambda: list(launcher.hosts.glob("tflaunch-*/*/*/plan.json")), "tasks that wait at their gates")
        done = launcher.run("detach").ran(69)
        assert "its tasks have not started yet" in done.sentences
        assert "start the run with --detach" in done.sentences
        gate.touch()
        running.wait_for("worker-1 attempt 0 number 5")
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        running.done().ran()


def test_without_one_of_its_hosts_it_stays_with_its_launcher(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out, "--lease=30") as running:
        frozen = launcher.agents(host_of(launcher, "worker/1"))["agent"]
        os.kill(frozen, signal.SIGSTOP)
        try:
            done = launcher.run("detach", running.run_id).ran(69)
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert "was not handed over" in done.sentences
        assert "out of reach" in done.sentences
        running.wait_for("the run stays with this launcher")
        again = launcher.run("detach", running.run_id).ran(69).sentences
        assert "its launcher has just tried, in vain" in again, (
            "a host that asks for ever keeps no launcher busy"
        )
        assert re.search(r"try again in \d+ s", again)
        end(out, "worker-1", 3)  # the launcher decides on
        running.done().ran(3)
    launcher.wait_until_nothing_is_left()


def test_a_launcher_that_dies_in_the_middle_leaves_no_run_without_a_hand(
    launcher: Launcher, out: Path
) -> None:
    with attached(launcher, launcher.local(3), out, "--lease=30") as running:
        run, host = running.run_id, host_of(launcher, "worker/1")
        frozen = launcher.agents(host)["agent"]
        os.kill(frozen, signal.SIGSTOP)  # it does not open its door, so that the launcher waits
        with launcher.start("detach", run) as asking:
            decider = launcher.agents(host_of(launcher, "worker/0"))["agent"]
            until(lambda: listens(decider), "its door for the coordinator")
            running.signal(signal.SIGKILL)
            os.kill(frozen, signal.SIGCONT)
            done = asking.done().ran(69)
    assert "the connection of its launcher to this host is lost" in done.sentences
    launcher.wait_until_nothing_is_left()  # once the lease is over
    assert HANDED not in launcher.run("attach", run).ran(76).sentences


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 1.0])
def test_a_launcher_that_dies_at_any_moment(launcher: Launcher, out: Path, part: float) -> None:
    """Either the run goes on with one coordinator, or it ends; in both cases its journals say so."""
    with attached(launcher, launcher.local(3), out) as running:
        run = running.run_id
        host = host_of(launcher, "worker/0")
        asking = launcher.start("detach", run)
        with contextlib.suppress(AssertionError):
            until(lambda: len(_children(launcher, host)) > 1, "a coordinator, or one on trial", part)
        running.signal(signal.SIGKILL)
        code = asking.end()
        asking.close()
    handed = any(HANDED in str(each.get("text")) for each in events(launcher, host))
    assert handed or code == 69
    if handed:
        coordinator(launcher, host)
        end_well(launcher, out, run)
    else:
        launcher.wait_until_nothing_is_left()


def _children(launcher: Launcher, host: str) -> list[int]:
    agent = launcher.agents(host)["agent"]
    return [each.pid for each in processes.every().values() if each.parent == agent]


def test_a_sweep_is_not_handed_over(launcher: Launcher, out: Path) -> None:
    trainer = launcher.script("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    with launcher.start("sweep", launcher.local(1), trainer, "--grid=lr=1,2") as sweeping:
        until(lambda: list(launcher.hosts.glob("tflaunch-*/*/*/logs/trial-0.log")), "a trial")
        done = launcher.run("detach").ran(2)
        assert "is a sweep: its launcher starts the trials" in done.sentences
        assert "tflaunch sweep --resume" in done.sentences
        sweeping.interrupt()
        sweeping.end()
    launcher.wait_until_nothing_is_left()


def test_what_ends_with_the_launcher_is_told(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out, "--fetch=*.txt") as running:
        run = running.run_id
        launcher.run("detach").ran()
        left = running.done().ran()
    assert f"--fetch fetches nothing now; when the run has ended: tflaunch fetch {run}" in left.sentences
    end_well(launcher, out, run)


def test_over_a_run_that_has_ended(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out) as running:
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        running.done().ran()
        assert "is not alive" in launcher.run("detach", running.run_id).ran(2).sentences


def test_a_key_in_attach_hands_it_over_and_ctrl_z_works(launcher: Launcher, out: Path) -> None:
    """In a shell with job control, as a user has it."""
    with attached(launcher, launcher.local(3), out) as running:
        run = running.run_id
        command = shlex.join(os.fsdecode(word) for word in launcher.argv("attach", run, "--quiet"))
        shell = {**launcher.env(), "PS1": "$ "}
        with Terminal(["bash", "--norc", "-i"], shell, launcher.code) as terminal:
            terminal.type(f"{command}\n")
            terminal.wait_for("d hands the run over to its hosts")
            terminal.wait_for("3 of 3 tasks up output")
            terminal.type(CTRL_Z)
            terminal.wait_for("Stopped")
            terminal.type("echo shell-$((40 + 2))\n")  # with the terminal as it was
            terminal.wait_for("shell-42")
            terminal.type("fg\n")
            until(lambda: _reads_keys(terminal), "the terminal to give keys again")
            _press(terminal, "d", "the run goes on without its launcher; Ctrl-C stops watching")
            left = running.done().ran()
            assert f"{run} goes on by itself" in left.err
            _press(terminal, "d", "it goes on without a launcher already")
            terminal.type(CTRL_C)
            terminal.wait_for("not watching any more")
            terminal.type("echo code-$?\n")
            terminal.wait_for("code-130")
            terminal.type("exit\n")
            terminal.end()
    end_well(launcher, out, run)


def _reads_keys(terminal: Terminal) -> bool:
    """Whether a command of the shell, not the shell itself, reads keys."""
    flags = termios.tcgetattr(terminal._main)[3]
    return os.tcgetpgrp(terminal._main) != terminal.pid and not flags & (termios.ICANON | termios.ECHO)


def _press(terminal: Terminal, key: str, text: str) -> None:
    """Type that key, alone, until the text was shown: what comes together with other text is no key."""

    def shown() -> bool:
        terminal.type(key)
        return any(text in terminal.sentences for _ in range(5) if terminal._read(0.1) or True)

    until(shown, text)
