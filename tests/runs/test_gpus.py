"""`tflaunch gpus` on real sshd with simulated GPUs."""

from __future__ import annotations

import csv
import fcntl
import getpass
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpus import NOW
from tests.support.gpus_lab import Lab, Terminal
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork, logins


@pytest.fixture
def lab(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Lab:
    """A lab without hosts."""
    return Lab(library, tmp_path, network, launcher)


@pytest.fixture
def trainer() -> Iterator[int]:
    """The pid of a process that says it trains."""
    argv = [sys.executable, "-c", "import time; time.sleep(600)", "/home/somebody/train.py", "--lr=1"]
    with subprocess.Popen(argv, start_new_session=True) as process:
        yield process.pid
        process.kill()


def dgx(*more: str) -> tuple[str, ...]:
    """Eight GPUs: 0 free, 1 for the test to fill, 5 closed, 7 lost, the others free."""
    gpus = (
        f'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-{index} mem=81559 used=4 bus=0000:{16 + index:02x}:00.0'
        + {5: " mode=2", 7: " error=15"}.get(index, "")
        for index in range(8)
    )
    return ("driver 550.54.15", "cuda 12040", *gpus, "nvlink 2 3 4", "topo 0 1 10", *more)


MIXED = (
    "driver 535.1",
    'gpu name="NVIDIA GeForce RTX 4090" uuid=GPU-r mem=24564 used=20000',
    'gpu name="NVIDIA A100-SXM4-40GB" uuid=GPU-m mem=40960 cc=8.0 mig=1',
    'mig gpu=1 uuid=MIG-a name="NVIDIA A100-SXM4-40GB MIG 3g.20gb" mem=19968 used=15 cc=8.0 gi=1',
    'mig gpu=1 uuid=MIG-b name="NVIDIA A100-SXM4-40GB MIG 3g.20gb" mem=19968 used=9000 cc=8.0 gi=2',
)


def test_a_fleet_of_every_kind(lab: Lab, trainer: int) -> None:
    lab.add(*dgx(f"proc gpu=1 pid={trainer} mem=60000", "proc gpu=2 pid=4999999 mem=90"))
    lab.add(*MIXED)
    lab.add()
    lab.add()
    lab.add("init_error 18")
    lab.add().close()
    held = lab.leases / "GPU-3"
    held.parent.mkdir()
    held.parent.chmod(0o1777)
    with held.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump({"user": getpass.getuser(), "run": "mnist-1", "since": NOW, "planning": False}, lock)
        lock.flush()
        done = lab.gpus().ran(69)
        data = json.loads(lab.gpus("--json").ran(69).out)
        line = lab.gpus("--free", "--oneline").ran(69)
        alone = lab.gpus("--oneline").ran(69)
        rows = list(csv.DictReader(io.StringIO(lab.gpus("--csv").ran(69).out)))
    for pattern in (
        r"^host1  3 of 8 free  7 \u00d7 H100 80GB HBM3 · driver 550\.54\.15 · CUDA 12\.4",
        rf"^ +1  ● busy  .* {getpass.getuser()} .* 58\.6G  python\S* -c .*train\.py",
        r"^ +2  ● busy  .* \? +- .* pid 4999999$",
        rf"^ +3  ◐ leased .* {getpass.getuser()} .* run mnist-1$",
        r"^ +5  ● busy  .* compute mode is PROHIBITED$",
        r"^ +7  ✗ broken .*[Ll]ost",
        r"^ +1\.0  ○ free +MIG 3g",
        r"^host\[3-4\]: no NVIDIA driver$",
        r"^! host5  NVML: ",
        r"^✗ host6  ",
        r"^○ 4 free  ● 5 busy  ◐ 1 leased  ✗ 1 broken  of 11 on 2 hosts$",
    ):
        assert re.search(pattern, done.out, re.MULTILINE), f"{pattern}\n{done.out}"
    assert "\x1b" not in done.out
    assert done.err == ""

    assert [host["host"] for host in data["hosts"]] == [f"host{number}" for number in range(1, 7)]
    first = data["hosts"][0]["gpus"]
    assert [gpu["state"] for gpu in first] == [
        *("free", "busy", "busy", "leased", "free", "busy", "free", "broken")
    ]
    assert first[2]["links"]["3"] == "NV4"
    assert first[0]["links"]["1"] == "PIX"
    assert data["hosts"][5]["error"]["message"]

    assert line.out == alone.out == "host1:0,4,6 host2:1.0\n", "none that is in use"
    assert "host6" in line.err
    assert len(rows) == 11


def test_topology(lab: Lab) -> None:
    lab.add(*dgx())
    shown = lab.gpus("--topology").ran().out
    rows = {line.split()[0]: line.split()[1:9] for line in shown.splitlines() if re.match(r" +[0-9] ", line)}
    assert rows["2"] == ["SYS", "SYS", "·", "NV4", "SYS", "SYS", "SYS", "-"]
    assert rows["0"][:2] == ["·", "PIX"]
    assert "NODE within one NUMA node" in shown


def test_a_slow_driver_and_a_frozen_host_do_not_hold_up_the_rest(lab: Lab) -> None:
    lab.add(*dgx())
    slow, frozen = lab.add(*dgx("delay_ms 12000")), lab.add(*dgx())
    frozen.freeze()
    done = lab.gpus("--timeout=15").ran(69)
    frozen.thaw()
    assert "host1  6 of 8 free" in done.out
    assert re.search(rf"^! {slow.name}  NVML: nvml\w+ did not return within 5 s", done.out, re.MULTILINE)
    assert re.search(rf"^✗ {frozen.name}  ", done.out, re.MULTILINE)
    # What was left to a sick driver ends with its channel.
    lab.launcher.wait_until_nothing_is_left()


def test_two_names_of_one_host_are_shown_once(lab: Lab) -> None:
    sshd = lab.add("gpu uuid=GPU-a mem=81559")
    hostfile = lab.launcher.hostfile([sshd.name, {"name": "alias", "ssh": "127.0.0.2", "port": sshd.port}])
    lab.network.prepend(f"Host 127.0.0.2\n  IdentityFile {lab.network.key}\n  User {sshd.user}\n")
    lab.network.prepend(
        f"  UserKnownHostsFile {lab.network.known_hosts}\n  HostKeyAlias [127.0.0.2]:{sshd.port}"
    )
    done = lab.launcher.run("gpus", hostfile, "-F", lab.network.config).ran()
    assert "host1 = alias  1 of 1 free" in done.out


def test_the_default_hostfile_and_which_hosts(lab: Lab) -> None:
    lab.add("gpu uuid=GPU-a mem=1024")
    lab.add("gpu uuid=GPU-b mem=1024")
    words = ("gpus", "-F", lab.network.config, "--oneline")
    hostfile = lab.words()[1]
    env = {"TFLAUNCH_HOSTS": str(hostfile)}
    assert lab.launcher.run(*words, env=env).ran().out == "host1:0 host2:0\n"
    for spelling in ("--hosts", "-H", "--host"):
        assert lab.launcher.run(*words, spelling, "*2", env=env).ran().out == "host2:0\n"
    assert lab.launcher.run(*words, cwd=Path(hostfile).parent).ran().out == "host1:0 host2:0\n"
    assert lab.launcher.run(*words, "--hosts", hostfile).ran().out == "host1:0 host2:0\n"
    assert lab.launcher.run(*words, "--hosts", "host2").ran().out == "host2:0\n"
    assert logins(lab.network.sshds[0]) == 3
    models = json.loads((lab.launcher.home / ".cache/tflaunch/gpu-models.json").read_text())
    assert models == ["NVIDIA Stub GPU"]
    nothing = lab.launcher.run("gpus").ran(2)
    assert "no hostfile" in nothing.sentences


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--csv"), "two forms"),
        (("--watch", "--csv"), "--watch shows the table, or --json, not --csv"),
        (("--watch", "1", "--topology"), "--watch shows the table"),
        (("--interval", "1"), "--interval is the time between two looks of --watch"),
        (("--watch", "1", "--interval", "3"), "name two times"),
        (("--min-free=40",), "write it with its unit: --min-free 40GiB"),
        (("--hosts=nope",), "has no host nope"),
        (("--sort=size",), "size"),
        (("--watch=0",), "'0' is less than 0.1s"),
        (("--timeout=soon",), "'soon' is not a time"),
    ],
    ids=" ".join,
)
def test_bad_usage_contacts_nobody(launcher: Launcher, words: tuple[str, ...], said: str) -> None:
    hostfile = launcher.hostfile(["nowhere.invalid"])
    done = launcher.run("gpus", hostfile, *words).ran(2)
    assert said in done.sentences + done.out


@pytest.fixture
def watching(lab: Lab) -> Iterator[Callable[..., Terminal]]:
    """Starts `gpus` on a terminal."""
    started: list[Terminal] = []

    def start(*more: str, **options: Any) -> Terminal:
        verb, *words = lab.words(*more)
        argv = lab.launcher.argv(str(verb), *words)
        started.append(Terminal(argv, lab.launcher.env(), **options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.end()


def given_back(screen: Terminal) -> bool:
    """Whether the screen, the cursor and the line discipline are as before."""
    last = screen.text[-100:]
    return all(order in last for order in ("\x1b[?1049l", "\x1b[?25h", "\x1b[?2004l")) and screen.cooked


def test_watch_keeps_its_connections_and_ends_with_ctrl_c(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    first = lab.add("gpu uuid=GPU-a mem=81559 temp=41")
    second = lab.add("gpu uuid=GPU-b mem=81559 temp=51")
    lab.add(*dgx("delay_ms 60000"))  # never answers, and is waited for by nobody
    screen = watching("--watch", "--interval", "0.3", "--timeout=1000")
    screen.shows(r"^>host1 +1 of 1 free .* 41°")
    screen.shows(r"^ host2 +1 of 1 free .* 51°")
    screen.shows(r"^ host3 +waiting for its answer")
    screen.shows("of 2 on 2 hosts")
    for temperature in (42, 43, 44):
        lab.fleets[0].change(f"gpu uuid=GPU-a mem=81559 temp={temperature}")
        screen.shows(f"^>host1 .*{temperature}°")
    assert (logins(first), logins(second)) == (1, 1)

    second.kill()
    screen.shows(r"^ host2\s+✗ .*its GPUs were seen")
    lab.fleets[0].change("gpu uuid=GPU-a mem=81559 temp=45")
    screen.shows("^>host1 .*45°")
    lab.fleets[1].change("gpu uuid=GPU-b mem=81559 temp=55")
    second.start()
    screen.shows("^ host2 .*55°")
    assert (logins(first), logins(second)) == (1, 2)

    screen.type("\x03")
    assert screen.end() == 0
    assert given_back(screen)
    assert "Traceback" not in screen.text


def test_the_keys_of_the_watch(lab: Lab, watching: Callable[..., Terminal], trainer: int) -> None:
    lab.add('gpu uuid=GPU-a mem=81559 name="NVIDIA H100"')
    lab.add(
        'gpu uuid=GPU-b mem=24564 util=90 used=20000 name="NVIDIA RTX 4090"',
        f"proc gpu=0 pid={trainer} mem=19000",
    )
    screen = watching("--watch", "--interval=0.3", columns=170)
    screen.shows("^>host1 .*H100")
    screen.shows("^ host2 .* 90%.*4090")
    screen.type("/4090")
    screen.shows("^filter: 4090_")
    screen.shows_not("host1")
    screen.type("\r")
    screen.type("\r")
    screen.shows(rf"^0 +{trainer} +{getpass.getuser()} +18\.6 GiB .*train\.py --lr=1")
    screen.type("\x1b")
    screen.shows("^>host2 ")
    screen.type("\x1b")
    screen.shows("^ host1 ")
    screen.type("s")
    screen.shows("by use, least first")
    screen.type("\x1b[A")
    screen.shows("^>host1 ")
    screen.type("?")
    screen.shows("keeps no history of the last hours")
    screen.type("q")
    assert screen.end() == 0
    assert given_back(screen)


def test_a_window_that_is_resized_is_filled(lab: Lab, watching: Callable[..., Terminal]) -> None:
    lab.add(*dgx())
    screen = watching("--watch", "--interval=0.3", columns=130, rows=30)
    screen.shows("^>host1 +6 of 8 free")
    screen.shows("^  7 .* broken")
    for columns, rows in ((60, 6), (80, 24)):
        screen.resize(columns, rows)
        screen.shows("^>host1 ")
        screen.shows("^q quit")
        assert len(screen.lines) == rows
    screen.shows("^  7 .* broken")
    screen.type("q")
    assert screen.end() == 0


def test_ctrl_z_gives_the_terminal_back_and_the_watch_goes_on(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    sshd = lab.add("gpu uuid=GPU-a mem=81559 temp=41")
    screen = watching("--watch", "--interval=0.3")
    screen.shows("41°")
    assert not screen.cooked
    screen.type("\x1a")

    def stopped() -> bool:
        return Path(f"/proc/{screen.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    until(stopped, "Ctrl-Z to stop it")
    until(lambda: given_back(screen), "the terminal as it was before")
    screen.wipe(100, 30)  # the shell has written there
    lab.fleets[0].change("gpu uuid=GPU-a mem=81559 temp=47")
    screen.process.send_signal(signal.SIGCONT)
    screen.shows("^>host1 .*47°")
    screen.shows("^q quit")
    assert not screen.cooked
    assert logins(sshd) == 1
    screen.type("q")
    assert screen.end() == 0


def test_a_watch_ends_by_a_signal_and_gives_the_terminal_back(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    lab.add("gpu uuid=GPU-a mem=81559 temp=41")
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        screen = watching("--watch")
        screen.shows("41°")
        screen.process.send_signal(number)
        assert screen.end() == code
        assert given_back(screen)
    lab.launcher.wait_until_nothing_is_left()


def test_a_refresh_sends_little_over_a_slow_link(lab: Lab, watching: Callable[..., Terminal]) -> None:
    """What an idle host's line takes: the clock; what a busy one takes: its numbers and the last bit of its graphs."""
    for number in range(3):
        lab.add(f"gpu uuid=GPU-{number} mem=81559 temp=41", f"gpu uuid=GPU-{number}b mem=81559 temp=51")
    screen = watching("--watch", "--interval=0.5", columns=130, rows=40)
    screen.shows("of 6 on 3 hosts")
    before, clocks = screen.written, {screen.lines[0][:8]}

    def ticked() -> bool:
        clocks.add(screen.lines[0][:8])
        return len(clocks) > 5

    until(ticked, "the clock to go on")
    # Not one line more than a few digits of the clock and, every fifth time, a bit of 18 graphs.
    assert (screen.written - before) / len(clocks) < 1000
    screen.type("q")
    assert screen.end() == 0


@pytest.mark.parametrize("keys", [True, False], ids=["TERM=dumb", "stdin is no terminal"])
def test_a_plain_terminal_keeps_the_table(lab: Lab, watching: Callable[..., Terminal], keys: bool) -> None:
    lab.add(*dgx())
    term = "dumb" if keys else "xterm-256color"
    screen = watching("--watch", "0.3", keys=keys, term=term, columns=80, rows=14)
    screen.wait_for(r"host1  6 of 8 free(.|\n)*of 8 on 1 host(.|\n)*host1  6 of 8 free")
    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 0
    assert ("\x1b" in screen.text) is not keys


def test_watch_respects_the_height_where_there_are_no_keys(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    lab.add(*dgx())
    screen = watching("--watch", rows=6, columns=80, keys=False)
    screen.wait_for(r"host1  ○○○○○●○✗   6 free(.|\n)*of 8 on 1 host")
    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 0
    frames = screen.text.split("\x1b[H")[1:]
    assert frames
    assert max(frame.count("\n") for frame in frames) < 6


def test_a_watch_that_is_killed_leaves_nothing_on_the_hosts(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    lab.add("gpu uuid=GPU-a mem=81559 temp=41")
    lab.add(*dgx("delay_ms 60000"))
    screen = watching("--watch", "0.3")
    screen.shows("41°")
    screen.process.kill()
    lab.launcher.wait_until_nothing_is_left()


def test_on_a_terminal_all_is_left_to_be_read(lab: Lab, watching: Callable[..., Terminal]) -> None:
    lab.add(*dgx())
    lab.add().close()
    screen = watching(rows=10)
    assert screen.end() == 69
    last = screen.text.rpartition("\x1b[")[2]
    assert "host1  6 of 8 free" in last
    assert "✗ host2" in last


def test_a_dumb_terminal_is_as_wide_as_it_is(lab: Lab) -> None:
    lab.add(*dgx("proc gpu=1 pid=4999999 mem=90"))
    words = lab.launcher.argv("gpus", *lab.words()[1:])
    pages = {}
    for columns in (80, 100, 200):
        screen = Terminal(words, lab.launcher.env(), columns, term="dumb")
        assert screen.end() == 0
        pages[columns] = screen.text
        assert max(map(len, screen.text.splitlines())) <= columns
    assert "pid 4999999" in pages[200]
    assert len(set(pages.values())) == 3


def test_watch_as_data_is_a_document_a_line(lab: Lab) -> None:
    sshd = lab.add(*dgx())
    verb, *words = lab.words("--watch", "0.2", "--json")
    with lab.launcher.start(str(verb), *words) as running:
        running.wait_for('"summary"', 3)
        running.interrupt()
        done = running.done().ran()
    documents = done.events
    assert len(documents) >= 3
    assert {each["summary"]["free"] for each in documents} == {6}
    # How GPUs are connected was asked once, and is told every time.
    assert {each["hosts"][0]["gpus"][2]["links"]["3"] for each in documents} == {"NV4"}
    assert logins(sshd) == 1


def test_watch_as_data_tells_each_refresh_also_while_a_host_is_slow(lab: Lab) -> None:
    lab.add("gpu uuid=GPU-a mem=81559")
    lab.add(*dgx("delay_ms 60000"))
    verb, *words = lab.words("--watch", "--interval=0.2", "--timeout=1000", "--json")
    with lab.launcher.start(str(verb), *words) as running:
        running.wait_for('"summary"', 3)
        running.interrupt()
        done = running.done().ran()
    last = done.events[-1]["hosts"]
    assert last[0]["gpus"][0]["state"] == "free"
    assert last[1]["error"]["message"] == "it has not answered yet"


def test_colour_only_where_it_is_wanted(lab: Lab, watching: Callable[..., Terminal]) -> None:
    lab.add("gpu uuid=GPU-a mem=81559")
    assert "\x1b" not in lab.gpus().ran().out
    argv = lab.launcher.argv("gpus", *lab.words()[1:])
    coloured = Terminal(argv, lab.launcher.env())
    plain = Terminal(argv, lab.launcher.env(NO_COLOR="1"))
    for screen in (coloured, plain):
        assert screen.end() == 0
    assert b"\x1b[38;5;36m" in b"".join(coloured._parts)
    assert b"\x1b[38;" not in b"".join(plain._parts)
