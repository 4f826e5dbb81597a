"""Hosts that are no file: a list, a batch job, and a program in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostfiles import Write, host, problems
from tflaunch.hosts import Hostfile, load
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import HostfileError

INLINE = {
    "a": [host("a")],
    "b:2,a:1": [host("b", slots=2), host("a", slots=1)],
    "gpu[3,1]:2, me@big": [host("gpu3", slots=2), host("gpu1", slots=2), host("big", user="me")],
    "localhost": [host("localhost", connection="local")],
    "localhost:4": [host("localhost", slots=4, connection="local")],
    "me@localhost": [host("localhost", user="me")],
    "ghosts": [host("ghosts")],
    "a:256": [host("a", slots=256)],
}
WITH_PORT = {
    "me@a:2222": ([host("a", user="me", port=2222)], "me@a:2222: the number is read"),
    "ssh://me@a:257": ([host("a", user="me", port=257)], "ssh://me@a:257: the number is read"),
    "a:22,b:4": ([host("a", port=22), host("b", slots=4)], "a:22: the number is read"),
    "localhost:2222": ([host("localhost", port=2222)], "localhost:2222: the number is read"),
    "a:300,b:301,c:302,d:303,e": (
        [*(host(name, port=300 + number) for number, name in enumerate("abcd")), host("e")],
        "a:300, b:301, c:302 and 1 more: the numbers are read",
    ),
}


@pytest.mark.parametrize("source", INLINE)
def test_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(source) == Hostfile("<inline>", tuple(INLINE[source]))


@pytest.mark.parametrize("source", WITH_PORT)
def test_a_number_that_can_only_be_a_port_is_one_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts, begin = WITH_PORT[source]
    found = load(source)
    assert found.hosts == tuple(hosts)
    assert found.notes == (f"{begin} as SSH's port, not as slots",)
    Path("plain").write_text(source.replace(",", "\n"))
    if not source.startswith("ssh:"):
        assert load("plain") == Hostfile("plain", found.hosts, found.notes)


BAD_INLINE = {
    "": [":1:1: '' is empty; write a host name"],
    "a,,b": [":1:3: '' is empty; write a host name"],
    "a, b, a": [":1:7: a is listed twice; first at line 1, column 1"],
    "a:x,b c,gpu[1-99999999]:2": [
        ":1:1: 'x' is not a number of slots (host:4, at most 256) nor SSH's port (host:2222)",
        ":1:5: 'b c' has ' ' in it; a host name is made of letters, digits, '.', '_' and '-'",
        ":1:9: 'gpu[1-99999999]' stands for 99,999,999 hosts; at most 10,000 are allowed in all",
    ],
    "-v@a": [":1:1: '-v' is not a user name; write user@host"],
    "::1": [":1:1: '::1' is an IPv6 address; it needs a name, in a YAML hostfile: - {name: h1, ssh: '::1'}"],
    "a,me@[fe80::2%eth0]:2222": [
        ":1:3: '[fe80::2%eth0]:2222' is an IPv6 address; it needs a name, in a YAML hostfile: "
        "- {name: h1, ssh: 'fe80::2%eth0', user: me, port: 2222}"
    ],
    "a:65536": [":1:1: '65536' is not a number of slots (host:4, at most 256) nor SSH's port (host:2222)"],
    "a:2222,a:2223": [
        ":1:8: a has several ports; in a YAML hostfile each has a name: {name: a, ssh: a, port: 2223}"
    ],
}


@pytest.mark.parametrize("source", BAD_INLINE)
def test_bad_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(source) == [f"<inline>{line}" for line in BAD_INLINE[source]]


def test_a_list_longer_than_any_file_name() -> None:
    names = [f"host{i}" for i in range(5000)]
    assert [host.name for host in load(",".join(names)).hosts] == names


def test_a_file_wins_over_a_list(write: Write) -> None:
    Path(write("- a")).rename("gpu01")
    assert load("gpu01") == Hostfile("gpu01", (host("a"),))


def test_plain_file_says_how_it_was_read(write: Write) -> None:
    with pytest.raises(HostfileError) as caught:
        load(write("just some text"))
    assert caught.value.hint.startswith("It was read as a plain hostfile")


def test_slurm() -> None:
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        hostfile = load("slurm:", connection="ssh", environ={variable: "gpu[01-02,07],login"})
        assert hostfile == Hostfile("slurm", (host("gpu01"), host("gpu02"), host("gpu07"), host("login")))
    assert problems("slurm:", TFLAUNCH_CONNECTION="openssh") == ["slurm: SLURM_JOB_NODELIST is not set"]
    by_slurm = load("slurm:", environ={"SLURM_JOB_NODELIST": "gpu[01-02]"})
    assert by_slurm.wanted == WantedSlots("slurm", ())


def test_pbs(write: Write) -> None:
    hostfile = load("pbs:", environ={"PBS_NODEFILE": write("a.lab\na.lab\nb.lab\n")})
    assert hostfile == Hostfile(
        "pbs",
        (
            host("a.lab", slots=2, slots_by="PBS_NODEFILE"),
            host("b.lab", slots=1, slots_by="PBS_NODEFILE"),
        ),
    )
    assert problems("pbs:") == ["pbs: PBS_NODEFILE is not set"]
    assert problems("pbs:", PBS_NODEFILE="/no/such") == ["/no/such: no such file; PBS_NODEFILE names it"]
    assert problems("pbs:", PBS_NODEFILE=write("")) == ["hosts.yaml: names no host; list at least one"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer.py", ""),
        ("trainer.py", None),
        ("./my/trainer.py", None),
        ("trainer", "#!/usr/bin/env python3\nx = 1\n"),
        ("trainer", "# A trainer.\n\nimport os, sys\n"),
        ("trainer", "from os import path\n"),
    ],
)
def test_a_program_in_the_place_of_the_hosts(write: Write, name: str, text: str | None) -> None:
    if text is not None:
        Path(write(text)).rename(name)
    with pytest.raises(HostfileError) as caught:
        load(name)
    assert str(caught.value) == f"{name}: is a Python file, not the hosts"
    assert caught.value.hint == f"HOSTS comes first: tflaunch run hosts.yaml {name}"


def test_a_host_in_paraguay_is_no_program(write: Write) -> None:
    assert load("gpu01.lab.py:2").hosts == (host("gpu01.lab.py", slots=2),)
    assert load(write("import slots=2\nfrom\n")).hosts == (host("import", slots=2), host("from"))
