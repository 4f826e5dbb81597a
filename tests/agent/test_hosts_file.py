"""What is read in /etc/hosts is what the C library finds there, or is left to that: both read the same files here."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.dialling import Loop
from tests.support.patience import until
from tflaunch.agent.host import foreign
from tflaunch.agent.net import hosts_file
from tflaunch.agent.net.name_lookup import NameLookup
from tflaunch.planning.dials import names_digests

PLAIN = "hosts: files dns\n"
ODD_LINES = [
    "10.0.0.1 one",
    "10.0.0.1\tone.cluster one  # as written by hand, two",
    "10.0.0.2 two Two",
    "10.0.0.3 Two\r",
    "\v10.0.0.3 three\f",
    "10.0.0.4 four one",
    "fd00::4 four",
    "fd00:0:0::5 five",
    "FE80::6 six",
    "fe80::7%lo seven",
    "::1 localhost eight",
    "::ffff:10.0.0.9 nine",
    "0:0:0:0:0:ffff:10.0.0.9 ten",
    "127.0.1.1 eleven",
    "0.0.0.0 twelve",
    "10.1 one",
    "010.0.0.1 one",
    "10.0.0.1.1 one",
    "nonsense one",
    "10.0.0.13",
    "#10.0.0.1 one",
    "10.0.0.14 fourteen#one",
    "10.0.0.15 f\u00fcnfzehn one_",
    "",
]
NAMES = [
    *(
        "one",
        "two",
        "Two",
        "TWO",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "localhost",
        "eight",
        "nine",
        "ten",
    ),
    *("eleven", "twelve", "one.cluster", "fourteen", "one_", "nowhere", "three\x0c", "f\u00fcnfzehn"),
]
ORDERS = [
    PLAIN,
    "hosts:\tfiles\n",
    "# hosts: dns\npasswd: files\nhosts: files dns # mdns\n",
    "hosts: files [SUCCESS=return] dns\n",
    "hosts: files [SUCCESS=continue] dns\n",
    "hosts:files\n",
    "hosts: dns files\n",
    "hosts: dns\n",
    "hosts:\n",
    "passwd: files\n",
    "hosts: files\nhosts: dns\n",
    "",
]
# In a mount namespace of its own: what is found for each of the files, by both.
COMPARED = """\
import json, sys
from tflaunch.agent.net import hosts_file
from tflaunch.protocol.dialling import addresses_of
cases, names = json.load(sys.stdin)
for hosts, order in cases:
    open("/etc/nsswitch.conf", "w").write(order)
    open("/etc/hosts", "w", encoding="utf-8", newline="").write(hosts)
    listed = hosts_file.listed(names)
    found = {name: addresses_of(name, 0) for name in listed}
    found = {name: each if isinstance(each, str) else [(f, w[0]) for f, w in each] for name, each in found.items()}
    print(json.dumps([listed, found]))
"""


def compared(
    directory: Path, cases: list[tuple[str, str]]
) -> list[tuple[dict[str, object], dict[str, object]]]:
    """For each (hosts, nsswitch.conf): what `listed` has, and what getaddrinfo finds for those names."""
    if os.getuid():
        pytest.skip("other files in /etc take root")
    mounts = ""
    for name in ("hosts", "nsswitch.conf", "resolv.conf"):
        (directory / name).write_text("")
        mounts += f"mount --bind {directory / name} /etc/{name} && "
    inside = ["unshare", "-m", "-n", "sh", "-c", f'{mounts}exec "$@"', "sh", sys.executable, "-c", COMPARED]
    said = subprocess.run(
        inside, input=json.dumps([cases, NAMES]), capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [tuple(json.loads(line)) for line in said.stdout.splitlines()]


def test_no_file_is_read_in_another_way_than_the_c_library_reads_it(tmp_path: Path) -> None:
    texts = ["\n".join(pair) for pair in itertools.product(ODD_LINES, ODD_LINES)]
    pairs = compared(tmp_path, [(text, PLAIN) for text in [*ODD_LINES, *texts]])
    assert [listed for listed, _ in pairs] == [found for _, found in pairs]
    assert {name for listed, _ in pairs for name in listed} >= {
        *("one", "Two", "four", "six", "eleven", "one_")
    }
    assert pairs[0][0] == {"one": [[2, "10.0.0.1"]]}


def test_it_decides_only_where_files_are_asked_first_and_alone(tmp_path: Path) -> None:
    pairs = compared(tmp_path, [("10.0.0.1 one\n", order) for order in ORDERS])
    assert [bool(listed) for listed, _ in pairs] == [True] * 3 + [False] * 9
    assert [listed for listed, _ in pairs] == [found for _, found in pairs]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for /etc."""
    monkeypatch.setattr(hosts_file, "HOSTS", str(tmp_path / "hosts"))
    monkeypatch.setattr(hosts_file, "SWITCH", str(tmp_path / "nsswitch.conf"))
    monkeypatch.setattr(hosts_file, "CACHE", str(tmp_path / "socket"))
    (tmp_path / "nsswitch.conf").write_text(PLAIN)
    (tmp_path / "hosts").write_text("".join(f"10.0.{n >> 8}.{n & 255} node{n}\n" for n in range(1, 1001)))
    return tmp_path


def test_a_cache_of_names_or_a_long_file_is_left_to_the_c_library(files: Path) -> None:
    assert hosts_file.listed(["node7"]) == {"node7": [(2, "10.0.0.7")]}
    (files / "socket").touch()
    assert hosts_file.listed(["node7"]) == {}
    (files / "socket").unlink()
    (files / "hosts").write_text("10.0.0.7 node7\n" + "#" * hosts_file.MOST_BYTES)
    assert hosts_file.listed(["node7"]) == {}
    for name in ("hosts", "nsswitch.conf"):
        (files / name).unlink()
        assert hosts_file.listed(["node7"]) == {}


def test_names_in_the_file_take_no_process_and_are_compared_as_those_that_a_child_finds(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = []
    child = foreign.child

    def counted(work: object) -> object:
        began.append(work)
        return child(work)  # type: ignore[arg-type]

    monkeypatch.setattr(foreign, "child", counted)
    loop = Loop()
    every = [f"node{number}" for number in range(1, 1001)]
    known = {name: [f"10.0.{n >> 8}.{n & 255}"] for n, name in enumerate(every, 1)}

    def looked_up(names: list[str], compared: list[str]) -> tuple[object, str]:
        lookup = NameLookup(loop.selector, names, 20.0, compared)
        answers: list[object] = []

        def done() -> bool:
            loop.turn()
            answers.append(lookup.step(0.0))
            return answers[-1] is not None

        until(done, "the names")
        return answers[-1], lookup.digest

    found, digest = looked_up(["node2", "node3"], every[1:])
    assert found == {"node2": [(2, "10.0.0.2")], "node3": [(2, "10.0.0.3")]}
    assert digest == names_digests(known, ["node1"])["node1"]
    assert began == []
    found, digest = looked_up(["node2", "no.invalid"], [*every[1:], "no.invalid"])
    assert isinstance(found, dict)
    assert found["node2"] == [(2, "10.0.0.2")]
    assert isinstance(found["no.invalid"], str)
    assert digest == names_digests({**known, "no.invalid": []}, ["node1"])["node1"]
    assert len(began) == 1
