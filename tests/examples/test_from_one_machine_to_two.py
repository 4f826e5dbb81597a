"""The programs of docs/trainers.md for a student with `model.fit`: real training, on two hosts."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile

import pytest

from tests.docs.pages import files
from tests.support import ROOT
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork

PROGRAMS = files(ROOT / "docs/trainers.md")
KERAS_2 = pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not here")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param("fit.py", ("--env=TF_USE_LEGACY_KERAS=1",), marks=KERAS_2),
        pytest.param("loop.py", ()),
    ],
)
def test_the_program_of_the_page_trains_in_step_on_two_hosts(
    program: str, words: tuple[str, ...], network: SshNetwork, launcher: Launcher
) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name], python=sys.executable)
    script = launcher.script(PROGRAMS[program], name=program)
    into = launcher.directory / "fetched"
    fetch = ("--fetch=worker-*.keras", f"--fetch-to={into}")
    with launcher.start("run", hosts, script, "--workers=2", *fetch, *words) as running:
        done = running.done(300).ran()
    losses = {
        worker: [float(loss) for loss in re.findall(rf"{worker} │ .*\bloss: ([\d.]+)", done.out)]
        for worker in ("worker/0", "worker/1")
    }
    assert losses["worker/0"] == losses["worker/1"], done.out
    assert len(losses["worker/0"]) == 5
    assert losses["worker/0"][-1] < 0.1 * losses["worker/0"][0]
    first, second = (
        zipfile.ZipFile(into / f"worker-{number}.keras").read("model.weights.h5") for number in range(2)
    )
    assert first == second
