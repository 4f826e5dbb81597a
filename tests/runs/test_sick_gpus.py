"""Whole commands on hosts whose NVML hangs, crashes or crawls: a sick GPU costs a GPU, a sick driver its GPUs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import PATH, Gpus, uuid
from tests.support.launcher import Launcher
from tests.support.nvml import Fleet
from tests.support.patience import until
from tests.support.sshd import Sshd, SshNetwork
from tests.support.terminal import CTRL_C, Terminal
from tflaunch.agent import processes

HANGS = "did not return within 2 s"
OPENED = "nvmlInit"


class Sick(Gpus):
    """Hosts with the fleets that a test writes; a call of NVML that takes two seconds hangs."""

    def host(self, *sick: str, gpus: int = 2) -> Sshd:
        number = len(self.fleets) + 1
        lines = [f'gpu uuid={uuid(number, gpu)} name="NVIDIA H100" mem=16384' for gpu in range(gpus)]
        self.fleets.append(Fleet(self._library, self._directory / f"fleet{number}", *lines, *sick))
        limits = {"TFLAUNCH_LEASES": str(self.leases), "TFLAUNCH_NVML_CALL_S": "2"}
        return self.network.add(env={**self.fleets[-1].env, **limits}, path=PATH)

    def worsen(self, host: int, *sick: str, gpus: int = 2) -> None:
        """From now on NVML is sick there."""
        self.fleets[host - 1].change(
            *(f'gpu uuid={uuid(host, gpu)} name="NVIDIA H100" mem=16384' for gpu in range(gpus)), *sick
        )


@pytest.fixture
def sick(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Sick:
    return Sick(library, tmp_path, network, launcher)


def gpus(sick: Sick, *more: str, code: int = 0) -> str:
    return sick.launcher.run("gpus", sick.hostfile, "-F", sick.network.config, *more).ran(code).out


@pytest.mark.parametrize(
    ("ill", "said"),
    [
        ("sick nvmlInit hang", f"NVML: nvmlInit {HANGS}"),
        ("sick nvmlInit crash", "NVML: nvmlInit crashed (signal 11)"),
        ("sick * slow=700", "NVML: too slow: "),
    ],
)
def test_a_host_with_a_sick_driver_is_a_host_without_gpus(sick: Sick, ill: str, said: str) -> None:
    sick.host()
    sick.host(ill)
    sick.let_end("run")
    words = sick.words("run", 1, "--job=evaluator=1", "--job-hosts=evaluator=host2", "--connect-timeout=8")
    done = sick.launcher.run(*words).ran()
    told = [line for line in done.sentences.splitlines() if "no GPUs can be seen" in line]
    assert len(re.findall(r"host2: no GPUs can be seen", done.sentences)) == 1, told
    assert said in done.sentences
    assert "no worker runs on host2, which has no GPU to give" in done.sentences
    assert f"has {uuid(1, 0)}" in done.out
    sick.launcher.wait_until_nothing_is_left()


@pytest.mark.parametrize("ill", ["sick nvmlInit hang", "sick nvmlInit crash"])
@pytest.mark.parametrize("how", ["--gpus-per-worker=0", "gpus: 0"])
def test_a_run_without_gpus_asks_no_driver(sick: Sick, ill: str, how: str) -> None:
    sick.host(ill)
    no_gpus = how == "gpus: 0"
    sick.let_end("run")
    _, hostfile, *words = sick.words("run", 1, *([] if no_gpus else [how]))
    if no_gpus:
        hostfile = sick.launcher.hostfile([sshd.name for sshd in sick.network.sshds], gpus=0)
    done = sick.launcher.run("run", hostfile, *words).ran()
    assert "GPU" not in done.sentences.replace("has ", "")
    assert "NVML" not in done.sentences
    if no_gpus:
        checked = sick.launcher.run("check", hostfile, "--no-tensorflow")
        assert "NVML" not in checked.sentences + checked.out
    sick.launcher.wait_until_nothing_is_left()


@pytest.mark.parametrize("ill", ["hang", "crash", "stuck"])
def test_one_sick_gpu_of_several_is_left_out(sick: Sick, ill: str, request: pytest.FixtureRequest) -> None:
    if ill == "stuck":
        ill = f"stuck={request.getfixturevalue('dead')}/x"
    sick.host(f"sick * {ill} gpu=1", gpus=3)
    what = "crashed (signal 11)" if ill == "crash" else HANGS
    out = gpus(sick)
    assert "host1  2 of 3 free" in out
    assert "→ GPU 1: " in out
    assert re.search(rf"^ +1  ✗ broken .*nvmlDeviceGetHandleByIndex {re.escape(what)}", out, re.MULTILINE), (
        out
    )
    sick.let_end("run")
    done = sick.launcher.run(*sick.words("run", 2, "--gpus-per-worker=1")).ran()
    assert f"has {uuid(1, 0)}" in done.out
    assert f"has {uuid(1, 2)}" in done.out
    assert done.sentences.count("host1: GPU 1 is left out: ") == 1
    assert "nothing is left running" in done.sentences
    until(lambda: not list(left(sick)), "all but what waits in the driver to be gone")


def left(sick: Sick) -> Iterator[processes.Process]:
    """What this user's agents have left, but for what waits in a driver."""
    for process in processes.every().values():
        words = processes.command(process.pid)
        if str(sick.network.directory).encode() in b" ".join(words) or b"tflaunch-agent" in words:
            environment = processes.environment(process.pid)
            mine = f"TFLAUNCH_LEASES={sick.leases}".encode() in environment
            if mine and not processes.left_behind(process):
                yield process


def test_check_says_what_to_do(sick: Sick) -> None:
    sick.host("init_error 18")
    sick.host("sick nvmlInit hang")
    sick.host("sick nvmlDeviceGetTemperature crash gpu=1")
    said = sick.launcher.run("check", sick.hostfile, "--no-tensorflow")
    text = " ".join((said.sentences + said.out).split())
    assert "version mismatch" in text.lower() or "mismatch" in text
    assert "reload its kernel modules" in text
    assert f"nvmlInit {HANGS}" in text
    assert "nvidia-smi may hang as well" in text
    assert "GPU 1 is broken: nvmlDeviceGetTemperature crashed" in text
    sick.launcher.wait_until_nothing_is_left()


def test_a_gpu_that_falls_off_the_bus_under_a_run_does_not_keep_it(sick: Sick) -> None:
    """Its end, and `stop`, wait for no driver for longer than they say."""
    sick.host()
    with sick.launcher.start(*sick.words("run", 2, "--gpus-per-worker=1")) as running:
        running.wait_for("has GPU", 2)
        run = running.run_id
        sick.worsen(1, "sick * hang gpu=1")
        sick.launcher.run("stop", run).ran(0)
        done = running.done()
    assert f"GPU 1 could not be checked: nvmlDeviceGetHandleByIndex {HANGS}" in done.sentences
    assert "GPU 0" not in done.sentences.partition("could not be checked")[0].rpartition("finished")[2]
    sick.launcher.wait_until_nothing_is_left()


def test_ctrl_c_while_a_driver_crawls(sick: Sick) -> None:
    """A word while it waits, and nothing left afterwards, however the wait ends."""
    sick.host("sick * slow=1500")
    words = [str(word) for word in sick.words("run", 1, "--connect-timeout=60")]
    for key in (CTRL_C, ""):  # "": the terminal is closed, and the launcher killed
        argv = sick.launcher.argv(words[0], *words[1:])
        with Terminal(argv, sick.launcher.env(), sick.launcher.code, columns=160) as terminal:
            terminal.wait_for("its NVIDIA driver is slow: at GPU 0 of 2 nvmlDevice")
            if key:
                terminal.type(key)
                assert terminal.end() == 130
        sick.launcher.wait_until_nothing_is_left()


def test_a_watch_leaves_a_sick_gpu_alone(sick: Sick) -> None:
    sick.host()
    words = ("gpus", sick.hostfile, "-F", sick.network.config, "--watch", "--interval=0.3", "--json")
    with sick.launcher.start(*words) as watching:
        watching.wait_for('"state": "free"')
        sick.worsen(1, "sick * hang gpu=0")
        watching.wait_for('"state": "broken"', 3)
        watching.signal(signal.SIGINT)
        watching.done()
    sick.launcher.wait_until_nothing_is_left()
