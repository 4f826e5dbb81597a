"""How many GPUs a user may hold: on one host, where its agents keep to it, and on all hosts of a run together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lab import HOLD, PATH, uuid
from tests.support.launcher import Launcher
from tests.support.nvml import Fleet
from tests.support.patience import until
from tests.support.sshd import SshNetwork

AddHost = Callable[..., None]


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """The directory of a machine's configuration."""
    path = tmp_path / "etc"
    path.mkdir()
    return path


@pytest.fixture
def add(library: Path, tmp_path: Path, network: SshNetwork, etc: Path) -> AddHost:
    """Adds a host with so many GPUs; `limited`: it has the file of `etc`."""

    def add(gpus: int, *, limited: bool = False) -> None:
        number = len(network.sshds) + 1
        lines = [f"gpu uuid={uuid(number, gpu)} mem=16384" for gpu in range(gpus)]
        fleet = Fleet(library, tmp_path / f"fleet{number}", *lines)
        env = {**fleet.env, "TFLAUNCH_LEASES": str(tmp_path / "leases")}
        network.add(env={**env, "TFLAUNCH_ETC": str(etc)} if limited else env, path=PATH)

    return add


class Runs:
    """Runs that hold their GPUs until they are told to end."""

    def __init__(self, launcher: Launcher, network: SshNetwork, out: Path) -> None:
        out.mkdir()
        self.launcher, self.out = launcher, out
        self._hosts = launcher.hostfile([sshd.name for sshd in network.sshds], gpus="auto")
        self._trainer = launcher.script(HOLD)

    def words(self, name: str, *more: str) -> tuple[str | Path, ...]:
        env = (f"--env=OUT={self.out}", f"--env=NAME={name}")
        return ("run", self._hosts, self._trainer, "--ps=0", "--yes", *env, *more)

    def end(self, name: str) -> None:
        (self.out / f"go-{name}").touch()

    @property
    def begun(self) -> list[str]:
        path = self.out / "order"
        return path.read_text().split() if path.exists() else []


def test_a_host_gives_a_user_no_more_than_its_file_says(
    add: AddHost, etc: Path, launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    (etc / "config.toml").write_text(
        "max_gpus_per_user_per_host = 2\nbanner = '''\n[x'''\n[run]\ngrace = 1\n"
    )
    add(4, limited=True)
    runs = Runs(launcher, network, tmp_path / "out")
    all_of_it = launcher.run(*runs.words("all", "--dry-run")).ran()
    assert all_of_it.out.count("worker/1") >= 1
    assert "worker/2" not in all_of_it.out, "without a number of workers, as many as may be"
    never = launcher.run(*runs.words("three", "--workers=3")).ran(65)
    assert "a user may hold 2 GPUs of this host" in never.sentences
    assert "--wait" not in never.sentences, "it would wait for ever"

    with launcher.start(*runs.words("first", "--workers=1")) as first:
        until(lambda: runs.begun == ["first"], "the first run")
        refused = launcher.run(*runs.words("two", "--workers=2")).ran(65)
        assert (
            "need 2 GPUs (2 workers x 1), 1 is free: host1 1 of 4 (1 busy: leased to" in refused.sentences
        ), refused.sentences
        assert "a user may hold 2 GPUs of this host, and your other runs hold 1" in refused.sentences
        assert "Or queue for the GPUs: --wait" in refused.sentences
        with launcher.start(*runs.words("queued", "--workers=2", "--wait")) as queued:
            queued.wait_for("your limit on host1 is 2 GPUs, your other runs hold 1")
            runs.end("first")
            first.done().ran()
            until(lambda: runs.begun[1:] == ["queued"] * 2, "its turn")
            runs.end("queued")
            queued.done().ran()


def test_a_file_that_says_nothing_clear_refuses_gpus(
    add: AddHost, etc: Path, launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    add(1, limited=True)
    runs = Runs(launcher, network, tmp_path / "out")
    file = etc / "config.toml"
    for text, mode, said in (
        (
            "max_gpus_per_user_per_host = 0x10\n",
            0o644,
            f"{file}:1: max_gpus_per_user_per_host is no whole number",
        ),
        ("max_gpus_per_user_per_host = 1\n", 0o666, f"{file} is not root's alone"),
    ):
        file.write_text(text)
        file.chmod(mode)
        refused = launcher.run(*runs.words("one", "--workers=1"))
        assert refused.code in (65, 69), refused.err
        assert said in refused.sentences


def test_the_launcher_counts_the_users_gpus_on_all_hosts(
    add: AddHost, etc: Path, launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    (etc / "config.toml").write_text("max_gpus_per_user = 3\n")
    add(2)
    add(2)
    here = {"TFLAUNCH_ETC": str(etc)}
    runs = Runs(launcher, network, tmp_path / "out")
    fills = launcher.run(*runs.words("all", "--dry-run"), env=here).ran()
    assert "3 workers: a user may hold 3 GPUs" in fills.out + fills.err
    assert len(set(re.findall(r"worker/\d", fills.out))) == 3
    four = launcher.run(*runs.words("four", "--workers=4"), env=here).ran(65)
    place = f"{etc}/config.toml:1"
    assert f"this run takes 4 GPUs; a user may hold 3 (max_gpus_per_user, {place})" in four.sentences
    assert "Ask for 3 at most." in four.sentences
    with launcher.start(*runs.words("first", "--workers=2"), env=here) as first:
        until(lambda: runs.begun == ["first"] * 2, "the first run")
        refused = launcher.run(*runs.words("two", "--workers=2"), env=here).ran(65)
        assert "a user may hold 3, and your other runs hold 2 (host1 1, host2 1)" in refused.sentences
        assert "Ask for 1 at most. Or queue for the GPUs: --wait" in refused.sentences
        one = launcher.run(*runs.words("one", "--workers=1", "--dry-run"), env=here)
        one.ran()
        runs.end("first")
        first.done().ran()


def test_gpus_that_wait_on_spares_count(
    add: AddHost, etc: Path, launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    file = etc / "config.toml"
    for _ in range(3):
        add(1, limited=True)
    runs = Runs(launcher, network, tmp_path / "out")
    words = runs.words("first", "--workers=2", "--detach", "--spares=host3", "--restarts=1")
    file.write_text("max_gpus_per_user = 2\n")
    here = {"TFLAUNCH_ETC": str(etc)}
    refused = launcher.run(*words, env=here).ran(65)
    assert "this run takes 3 GPUs, 1 of them on spares; a user may hold 2" in refused.sentences
    launcher.wait_until_nothing_is_left()
    file.write_text("max_gpus_per_user = 3\n")
    launcher.run(*words, env=here).ran()
    until(lambda: runs.begun == ["first"] * 2, "the run")
    runs.end("first")
    launcher.wait_until_nothing_is_left()


def test_a_sweep_keeps_to_both_limits(
    add: AddHost, etc: Path, launcher: Launcher, network: SshNetwork, tmp_path: Path
) -> None:
    """Six trials on two hosts of three GPUs: two of each host, three in all."""
    (etc / "config.toml").write_text("max_gpus_per_user_per_host = 2\n")
    add(3, limited=True)
    add(3, limited=True)
    hosts = launcher.hostfile([sshd.name for sshd in network.sshds], gpus="auto")
    used = "import os, sys; print('on', os.environ['CUDA_VISIBLE_DEVICES'])"
    words = ("sweep", hosts, launcher.script(used), "--grid", "x=1,2,3,4,5,6", "--yes", "--json")

    def seats(**env: str) -> list[str]:
        done = launcher.run(*words, "--dry-run", env=env).ran()
        (plan,) = [event for event in done.events if event["event"] == "plan"]
        return sorted(f"{seat['host']}:{','.join(seat['gpus'])}" for seat in plan["seats"])

    assert seats() == ["host1:0", "host1:1", "host2:0", "host2:1"]
    own = tmp_path / "launchers"
    own.mkdir()
    (own / "config.toml").write_text("max_gpus_per_user = 3\n")
    here = {"TFLAUNCH_ETC": str(own)}
    assert len(seats(**here)) == 3
    done = launcher.run(*words, env=here).ran()
    used_gpus = {event["gpus"][0] + event["host"] for event in done.events if event["event"] == "trial"}
    assert used_gpus
    assert len(used_gpus) <= 3
    (own / "config.toml").write_text("max_gpus_per_user = 0\n")
    refused = launcher.run(*words, env=here).ran(65)
    assert "this run takes 1 GPU; a user may hold 0" in refused.out
