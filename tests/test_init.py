"""`tflaunch init`: a hostfile of what is found, which loads, counts as the default one, and runs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.launcher import TELL, Launcher, told, until
from tests.sshd import SshNetwork
from tflaunch.cli.init import _write
from tflaunch.hosts import Host, find_default, load
from tflaunch.protocol.errors import RecordError
from tflaunch.ssh.config_lines import host_names
from tflaunch.survey.hostfile_text import HostEntry, hostfile_text

# ---- what is written, of given facts


def test_what_is_found_stands_above_each_host_and_who_is_away_is_a_comment(tmp_path: Path) -> None:
    found = [
        HostEntry(
            Host("gpu01"),
            cards=("H100 80GB HBM3",) * 4,
            cores=64,
            memory="512 GiB",
            python="3.11.7",
            tensorflow="2.16.1",
        ),
        HostEntry(Host("big", user="ada", slots=2), cores=16, memory="64 GiB", python="3.8.10"),
        HostEntry(Host("no"), cores=1, memory="1 GiB", note="its python3 does not work: not found"),
        HostEntry(Host("gpu02", user="ada"), why_not="cannot be reached: no route to host"),
    ]
    text = hostfile_text(found, "2026-11-22")
    assert text.partition("\nhosts:\n")[2] == (
        "  # 4 x H100 80GB HBM3, 64 cores, 512 GiB; Python 3.11.7, TensorFlow 2.16.1\n"
        "  - gpu01\n"
        "  # no GPU, 16 cores, 64 GiB; Python 3.8.10, no TensorFlow\n"
        "  - name: big\n"
        "    user: ada\n"
        "    slots: 2\n"
        "  # no GPU, 1 cores, 1 GiB; no Python that starts, no TensorFlow; its python3 does not work: not found\n"
        "  - 'no'\n"
        "  # cannot be reached: no route to host\n"
        "  # - name: gpu02\n"
        "  #   user: ada\n"
    )
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    assert [(host.name, host.user, host.slots) for host in load(str(path)).hosts] == [
        ("gpu01", None, None),
        ("big", "ada", 2),
        ("no", None, None),
    ]
    path.write_text(re.sub(r"(?m)^  # (- name: gpu02|  user)", r"  \1", text))  # it is back: uncommented
    assert load(str(path)).hosts[-1] == Host("gpu02", ssh_host="gpu02", user="ada")


@pytest.mark.parametrize(
    "odd", ["\n  - evil", "\r- evil", "\u2028- evil", "\x85- evil", "\x1b[2J", "\ud800", "x" * 9999]
)
def test_no_host_writes_into_the_hostfile_by_what_it_calls_itself(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "hosts.yaml"
    for found in (
        HostEntry(Host("a"), cards=(f"GPU{odd}",), python=odd, note=odd),
        HostEntry(Host("b"), why_not=odd),
    ):
        path.write_text(hostfile_text([HostEntry(Host("first")), found], "2026-11-22"))
        names = [host.name for host in load(str(path)).hosts]
        assert names == ["first"] + ["a"] * (not found.why_not)
        assert all(line.isprintable() and len(line) < 200 for line in path.read_text().split("\n"))


def test_the_hosts_of_an_ssh_config_are_those_that_it_spells_out(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host far\n  User ada\n")
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/more\n"
        'Host gpu01 gpu02.lab "gpu03"\n  User ada\n'
        "Host gpu* !gpu09 ? *\n  Port 22\n"
        "Match host gpu04\n  Port 23\n"
        "HOST=gpu05\n"
        "Host gpu01\n"
    )
    assert host_names(config) == ["far", "gpu01", "gpu02.lab", "gpu03", "gpu05"]
    assert host_names(tmp_path / "none") == []


@pytest.mark.parametrize("umask", [0o002, 0o000, 0o077])
def test_the_file_counts_as_the_default_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    here = tmp_path / "project"
    here.mkdir(mode=0o755)
    path = here / "hosts.yaml"
    before = os.umask(umask)
    try:
        for force in (False, True):
            _write(path, f"# {force}\nhosts: [a]\n", force)
            assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask
            assert find_default({"HOME": str(tmp_path)}, here) == str(path)
    finally:
        os.umask(before)
    with pytest.raises(RecordError, match="File exists"):
        _write(path, "another", force=False)  # somebody else was there first
    assert path.read_text() == "# True\nhosts: [a]\n"
    assert [each.name for each in here.iterdir()] == ["hosts.yaml"]


# ---- the verb, over SSH


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
        (["a", "-o", "."], ". is a directory"),
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
