"""What `tflaunch init` writes, of given facts."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tflaunch.cli.init import _write
from tflaunch.cli.output_file import OutputFile
from tflaunch.hosts import Host, find_default, load
from tflaunch.protocol.errors import RecordError
from tflaunch.ssh.config_lines import host_names
from tflaunch.survey.hostfile_text import HostEntry, hostfile_text


def test_what_is_found_stands_above_each_host_and_who_is_away_is_a_comment(tmp_path: Path) -> None:
    found = [
        HostEntry(
            Host("gpu01"),
            gpus=("H100 80GB HBM3",) * 4,
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
        HostEntry(Host("a"), gpus=(f"GPU{odd}",), python=odd, note=odd),
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
            _write(OutputFile(path, "-o"), f"# {force}\nhosts: [a]\n", force)
            assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask
            assert find_default({"HOME": str(tmp_path)}, here) == str(path)
    finally:
        os.umask(before)
    with pytest.raises(RecordError, match="File exists"):
        _write(OutputFile(path, "-o"), "another", force=False)  # somebody else was there first
    assert path.read_text() == "# True\nhosts: [a]\n"
    assert [each.name for each in here.iterdir()] == ["hosts.yaml"]
