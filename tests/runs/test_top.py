"""`tflaunch top` on a real terminal, over real SSH: a run is watched from a machine that did not start it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpus_lab import Terminal
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork

# Steps of which the log tells; worker/1 ends when the test says so.
TRAINER = """
    import os, pathlib, time
    step = 0
    while not (os.environ["TFLAUNCH_TASK"] == "worker/1" and pathlib.Path(os.environ["END"]).exists()):
        step += 1
        print(f"step {step} loss {1 / step:.4f}", flush=True)
        time.sleep(0.05)
"""


@pytest.fixture
def watching(launcher: Launcher) -> Iterator[Callable[..., Terminal]]:
    """Starts `top` on a terminal."""
    started: list[Terminal] = []

    def start(*words: Any, env: dict[str, str], columns: int) -> Terminal:
        started.append(Terminal(launcher.argv("top", *words), launcher.env(**env), columns=columns))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.end()


def test_a_detached_run_is_watched_from_elsewhere_and_goes_on(
    launcher: Launcher, network: SshNetwork, watching: Callable[..., Terminal], tmp_path: Path
) -> None:
    first, second = network.add(), network.add()
    hosts = launcher.hostfile([first.name, second.name])
    words = ("--ps=0", "--workers=2", f"--env=END={tmp_path / 'end'}", "--detach", "--name=mnist")
    launcher.run("run", hosts, launcher.script(TRAINER), *words).ran()
    stranger = {"TFLAUNCH_STATE": str(launcher.directory / "elsewhere")}
    screen = watching("mnist", "--hosts", hosts, "--interval=1", env=stranger, columns=80)
    screen.shows(r"mnist-\w+ +● 2/2 tasks run")
    screen.shows(r"^>worker/0 +host1 .*[▁-█]{2} +\d\.\d\d .* \d+ +[\d.]+$")
    screen.shows(r"^ worker/1 +host2 .* \d+ +[\d.]+$")
    screen.type("\t")
    screen.shows(r"^ host2 .* worker/1$")
    screen.type("\t\r")
    screen.shows(r"^worker/0 on host1 +running +step \d+ .* steps/s +loss 0\.")

    second.kill()
    screen.type("\x1b")
    screen.shows(r"^ worker/1 +host2 +unreachable")
    screen.shows(r"^! host2 is out of reach: ")
    second.start()
    screen.shows(r"^ worker/1 +host2 .* \d+ +[\d.]+$")
    (tmp_path / "end").touch()
    screen.shows(r"^ worker/1 +host2 +exit code 0")

    screen.type("q")
    assert screen.end() == 0
    assert screen.cooked
    assert "1/2" in launcher.run("ps").ran().out, "the run goes on"
    launcher.run("stop").ran()
    assert "mnist-" in launcher.run("ps", "-a").ran().out
    over = watching("mnist", env={}, columns=80)
    over.shows(r"mnist-\w+ is over")
    assert over.end() == 2


def test_it_wants_a_terminal(launcher: Launcher) -> None:
    done = launcher.run("top").ran(2)
    assert "top draws on a terminal, and there is none" in done.sentences
    assert "tflaunch status" in done.sentences


def test_it_draws_nothing_on_a_dumb_terminal(launcher: Launcher) -> None:
    screen = Terminal(launcher.argv("top"), launcher.env(), term="dumb")
    assert screen.end() == 2
    assert "TERM says that this one only prints" in screen.text
    assert "\x1b" not in screen.text
