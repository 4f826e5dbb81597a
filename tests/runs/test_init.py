"""`tflaunch init` over SSH: a hostfile of what is found, which loads, counts as the default one, and runs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
from pathlib import Path
from typing import Any

from tests.support.launcher import TELL, Launcher, told
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tflaunch.hosts import load


def init(launcher: Launcher, network: SshNetwork, *words: str | Path, **more: Any) -> Any:
    return launcher.run("init", "-F", network.config, *words, **more)


def test_what_it_writes_is_found_and_runs(network: SshNetwork, launcher: Launcher, tmp_path: Path) -> None:
    first, second, dead = (network.add() for _ in range(3))
    dead.kill()
    block = second.config(network.key, network.known_hosts)
    network.prepend(block.replace(f"Host {second.name}", "Host alias"))
    done = init(launcher, network, "host[1-3]", "alias").ran(69)
    assert f"{dead.name} port {dead.port} refuses the connection" in done.sentences
    assert "alias is the same machine as host2, and is a comment in hosts.yaml" in done.sentences
    assert "hosts.yaml is written: 2 hosts, 0 GPUs" in done.sentences
    next_to_type = f"tflaunch check -F {network.config}, then tflaunch run -F {network.config} trainer.py"
    assert f"next: {next_to_type}" in done.sentences
    written = launcher.code / "hosts.yaml"
    assert [host.name for host in load(str(written)).hosts] == [first.name, second.name]
    text = written.read_text()
    assert re.search(r"(?m)^  # no GPU, \d+ cores, .+; Python 3\.\d+\.\d+, .*TensorFlow.*\n  - host1$", text)
    assert re.search(r"(?m)^  # cannot be reached: port \d+ refuses .*\n  # - host3$", text)
    assert "  # is the same machine as host2\n  # - alias\n" in text
    assert not list(first.home.iterdir()) or [each.name for each in first.home.iterdir()] == [".bashrc"]

    again = init(launcher, network, "host1").ran(2)
    assert "hosts.yaml is there already" in again.sentences
    assert "--force overwrites it" in again.sentences
    assert written.read_text() == text

    out = tmp_path / "out"
    out.mkdir()
    script = launcher.script(TELL)
    done = launcher.run("run", script, "--workers=2", "--ps=0", f"--env=OUT={out}").ran()
    assert f"hosts: {written} (none was named): 2 hosts" in done.sentences
    assert {each.host for each in told(out).values()} == {first.name, second.name}


def test_where_no_host_can_be_reached_nothing_is_written(network: SshNetwork, launcher: Launcher) -> None:
    network.add().kill()
    done = init(launcher, network, "host1").ran(69)
    assert "hosts.yaml is not written: it would have no host" in done.sentences
    assert "the only host could not be used" in done.sentences
    assert not (launcher.code / "hosts.yaml").exists()


def test_it_prints_what_it_would_write(network: SshNetwork, launcher: Launcher) -> None:
    network.add()
    done = init(launcher, network, "host*", "-o", "-").ran()
    path = launcher.directory / "printed.yaml"
    path.write_text(done.out)
    assert [host.name for host in load(str(path)).hosts] == ["host1"]
    assert not (launcher.code / "hosts.yaml").exists()


def test_without_names_or_a_terminal_it_says_what_to_type(network: SshNetwork, launcher: Launcher) -> None:
    network.add()
    network.add()
    network.prepend("Host *.lab\n  User ada\n")
    done = init(launcher, network).ran(2)
    assert f"no host is named; {network.config} names 2 hosts: host[1-2]" in done.sentences
    assert "tflaunch init 'host[1-2]'" in done.sentences
    for words, said in (
        (["slurm:"], "inside a job: tflaunch run slurm: trainer.py"),
        (["./machines"], "./machines is a file, and no host"),
        (["gpu*"], "'gpu*' selects no host of"),
        (["a", "-o", "no/hosts.yaml"], "there is no directory no"),
        (["a", "-o", "."], "-o .: a directory"),
        (["a;b"], "has ';' in it"),
    ):
        assert said in init(launcher, network, *words).ran(2).sentences
    assert "~/.ssh/config names none" in launcher.run("init").ran(2).sentences


def test_on_a_terminal_it_asks_which(network: SshNetwork, launcher: Launcher) -> None:
    for _ in range(3):
        network.add()
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        launcher.argv("init", "-F", network.config),
        cwd=launcher.code,
        env=launcher.env(TERM="xterm"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        shown = bytearray()

        def says(text: str) -> bool:
            if select.select([leader], [], [], 0.05)[0]:
                shown.extend(os.read(leader, 4096))
            return text in " ".join(shown.decode().split())

        until(lambda: says("Enter: all"), "the question")
        assert "names 3 hosts: host[1-3]" in shown.decode()
        os.write(leader, b"gpu1\n")
        until(lambda: says("has no host gpu1"), "the answer is refused")
        os.write(leader, b"host*,!host2\n")
        with contextlib.suppress(OSError):  # it has ended
            while True:
                shown.extend(os.read(leader, 4096))
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert [host.name for host in load(str(launcher.code / "hosts.yaml")).hosts] == ["host1", "host3"]


def test_an_unknown_host_key_is_told_as_elsewhere(network: SshNetwork, launcher: Launcher) -> None:
    network.add()
    network.known_hosts.write_text("")
    done = init(launcher, network, "host1").ran(69)
    assert "--accept-new" in done.sentences
    init(launcher, network, "host1", "--accept-new").ran()
