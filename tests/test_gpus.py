"""`tflaunch gpus`: what is shown of given facts, and the verb on real sshd with simulated cards."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import getpass
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher import Launcher, until
from tests.nvml import Fleet, build
from tests.sshd import Sshd, SshNetwork, logins
from tflaunch.console.gpus_page import CardsView
from tflaunch.console.pen import ASCII
from tflaunch.inputs.sizes import size
from tflaunch.inputs.times import age
from tflaunch.planning.inventory import Gpu, GpuProcess, HostFacts, Lease, MigDevice, why_busy
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.survey.gpus import (
    Answer,
    Overview,
    Wanted,
    brief_name,
    document,
    look,
    one_line,
    short_command,
    short_name,
    table,
)

GIB = 1 << 30
NOW = 1_800_000_000.0

# ---- what is shown of given facts


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", used: float = 0, **fields: Any) -> Gpu:
    made = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=name,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=int(used * GIB),
        **{"utilization_percent": 0, "temperature_c": 30, "power_w": 70.0, "power_limit_w": 700.0, **fields},
    )
    return dataclasses.replace(made, busy=why_busy(made))


def process(user: str = "alice", pid: int = 4711, gib: float = 10, kind: str = "compute") -> GpuProcess:
    command = "/opt/env/bin/python3 -u /home/alice/train.py --lr 1"
    return GpuProcess(pid, user, command, kind, int(gib * GIB), NOW - 7200)


def facts(host: str, *gpus: Gpu, **fields: Any) -> HostFacts:
    return HostFacts(
        host=host,
        hostname=host,
        boot_id=fields.pop("boot_id", f"boot of {host}"),
        addresses=("10.0.0.1",),
        python="3.11.7",
        cores=64,
        memory_bytes=512 * GIB,
        ports=(),
        gpus=gpus,
        **fields,
    )


def answer(host: str, *gpus: Gpu, **fields: Any) -> Answer:
    driver = {"driver": "550.54.15", "cuda": "12.4"} if gpus else {}
    return Answer(host, facts(host, *gpus, **{"clock": NOW, **driver, **fields}), 0.1)


LOST = gpu(7, "", error="GPU is lost", utilization_percent=None, temperature_c=None, power_w=None)
MIG = gpu(
    2,
    "NVIDIA A100-SXM4-80GB",
    mig_mode=True,
    mig=(
        MigDevice(0, "MIG-a", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB, 0, card=2),
        MigDevice(
            1,
            "MIG-b",
            "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            10 * GIB,
            9 * GIB,
            busy="in use",
            processes=(process(),),
            card=2,
        ),
    ),
)
LEASED = gpu(3, lease=Lease("bob", "trainer-0102", NOW - 90))

FLEET = [
    answer("gpu01", gpu(0), gpu(1, used=70, utilization_percent=97, processes=(process(),)), LEASED, LOST),
    answer("gpu02", gpu(0, "NVIDIA GeForce RTX 4090", used=3, temperature_c=80), gpu(1, "Tesla V100"), MIG),
    answer("cpu01"),
    answer("cpu02"),
    answer("sick", gpu_note="NVML: Driver Not Loaded", driver=""),
    Answer("dead1", error=ConnectError("no route", "ping {host}")),
    Answer("dead2", error=ConnectError("no route", "ping {host}")),
    Answer("slow"),
]


def page(overview: Overview, columns: int = 160, **options: Any) -> str:
    return "\n".join(line.plain for line in CardsView(columns, **options).page(overview))


def test_what_a_page_tells() -> None:
    shown = page(look(FLEET))
    for line in (
        r"^gpu01  1 of 4 free  3 \u00d7 H100 80GB HBM3 · driver 550\.54\.15 · CUDA 12\.4 · load 0\.0/64 · 0 of 512",
        r"^ +0  ○ free  .* 0\.0/80 GiB .* 0% +30° +70/700 W$",
        r"^ +1  ● busy  .* 70\.0/80 GiB .* 97% .* alice  +2h +10\.0G  python3 -u train\.py --lr 1$",
        r"^ +3  ◐ leased .* bob +1m +-  run trainer-0102$",
        r"^ +7  ✗ broken .* GPU is lost$",
        r"^gpu02  2 of 4 free  RTX 4090, V100, A100-SXM4-80GB",
        r"^ +0  ● busy  .* 3\.0 GiB in use by a process that is not visible there$",
        r"^ +2  ◇ MIG  .* 2 instances$",
        r"^ +2\.0  ○ free +MIG 3g\.40gb .* 0\.0/40 GiB",
        r"^ +2\.1  ● busy +MIG 1g\.10gb .* alice",
        r"^cpu\[01-02\]: no NVIDIA driver$",
        r"^! sick  NVML: Driver Not Loaded$",
        r"^✗ dead\[1-2\]  no route$",
        r"^    → ping dead1$",
        r"^waiting for slow$",
        r"^○ 1 free  ● 1 busy  ◐ 1 leased  ✗ 0 broken  of 3  H100 80GB HBM3$",
        r"^○ 3 free  ● 3 busy  ◐ 1 leased  ✗ 1 broken  of 8 on 2 hosts$",
    ):
        assert re.search(line, shown, re.MULTILINE), f"{line}\n{shown}"


@pytest.mark.parametrize("columns", [20, 30, 45, 60, 80, 100, 120, 160, 250])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    view = CardsView(columns)
    overview = look(FLEET)
    for lines in (view.page(overview), view.frame(overview, "title", 100), view.topology(overview)):
        assert max(line.cell_len for line in lines) <= columns


def test_a_narrow_pane_drops_what_matters_least() -> None:
    shown = page(look(FLEET[:1]), 45)
    assert re.search(r"^ *1 ● busy   ━+.*70/80G  97% alice  2h$", shown, re.MULTILINE), shown
    assert "train.py" not in shown
    assert "train.py" in page(look(FLEET[:1]), 80)
    mixed = page(look(FLEET[1:2]), 45)
    assert re.search(r"^ *0 ● busy   RTX 4090  3/80G   0% unseen$", mixed, re.MULTILINE), mixed
    assert re.search(r"^2\.1 ● busy   1g\.10gb   9/10G    - alice  2h$", mixed, re.MULTILINE), mixed


@pytest.mark.parametrize("rows", [3, 4, 6, 10, 15, 20, 30, 60])
def test_a_window_shows_what_fits_and_always_the_total(rows: int) -> None:
    overview = look(FLEET)
    lines = [line.plain for line in CardsView(100).frame(overview, "title", rows)]
    assert len(lines) <= rows
    assert lines[0] == "title"
    assert lines[-1].endswith("of 8 on 2 hosts")
    full = [line.plain for line in CardsView(100).page(overview)]
    if rows > len(full):
        assert lines[1:] == full
    elif rows == 10:
        assert "gpu01  ○●◐✗   1 free  3 \u00d7 H100 80GB HBM3  alice" in lines
    elif rows < 8:
        hidden = re.fullmatch(r"… ([0-9]+) more lines: .*", lines[-2])
        assert hidden
        assert int(hidden[1]) + len(lines) - 3 == 6  # 2 hosts with cards, 4 lines of trouble


def test_without_unicode_everything_has_another_sign() -> None:
    shown = page(look(FLEET), marks=ASCII)
    assert shown.isascii()
    for word in ("o free", "* busy", "+ leased", "x broken", "# MIG", "3 x H100"):
        assert word in shown


def test_what_comes_from_a_host_cannot_act_on_the_terminal() -> None:
    evil = GpuProcess(1, "eve\x1b[2J", "\x1b]0;title\x07run\nme \x9b31m", "compute", None, None)
    shown = page(look([answer("gpu01", gpu(0, "H100\x1b[1m", processes=(evil,)), gpu_note="\x1b[5mnote")]))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "eve" in shown
    assert "run me" in shown


def test_a_card_in_mig_mode_without_instances_is_a_device_that_cannot_be_used() -> None:
    overview = look([answer("gpu01", gpu(0, mig_mode=True), gpu(1))])
    assert (overview.counts["busy"], overview.counts["free"]) == (1, 1)
    assert re.search(r"● busy .* in MIG mode without an instance$", page(overview), re.MULTILINE)
    assert "● busy" in page(overview, 80)
    assert "no MIG instance" in page(overview, 80)


def test_every_use_of_a_card_has_a_line_the_largest_first() -> None:
    several = (process("bob", 1, 5), process("al", 2, 50), process("x", 3, 70, kind="graphics"))
    shown = page(look([answer("gpu01", gpu(0, used=75, processes=several, ecc_errors=2))]))
    told = re.findall(r"(al|bob|x) +2h +([0-9.]+)G", shown)
    assert told == [("al", "50.0"), ("bob", "5.0"), ("x", "70.0")]
    assert "(graphics)" in shown
    assert "! 2 ECC errors" in shown
    one = "\n".join(
        line.plain
        for line in CardsView(160).page(look([answer("g", gpu(0, processes=several))]), processes=False)
    )
    assert "3\u00d7 al" in one


def test_two_names_of_one_machine_are_one() -> None:
    same = [answer("gpu01", gpu(0), boot_id="b"), answer("alias", gpu(0), boot_id="b")]
    other = answer("container", gpu(1), boot_id="b")
    overview = look([*same, other])
    assert [machine.names for machine in overview.machines] == [("gpu01", "alias"), ("container",)]
    assert "gpu01 = alias" in page(overview)
    assert overview.counts["free"] == 2
    lost = look(
        [Answer("a", error=None, facts=facts("a", LOST, boot_id="b")), answer("b", LOST, boot_id="b")]
    )
    assert len(lost.machines) == 2 or lost.machines[0].names == ("a", "b")


def test_a_host_that_was_lost_says_so_in_its_place() -> None:
    lost = dataclasses.replace(FLEET[0], error=ConnectError("the connection broke"), age_s=200.0)
    overview = look([lost, FLEET[1]])
    shown = page(overview).splitlines()
    assert shown[1:3] == ["gpu01", "  ✗ the connection broke  (its GPUs were seen 3m ago)"]
    assert list(overview.unreachable) == ["gpu01"]
    assert one_line(overview) == "gpu02:0,1,2.0,2.1"
    late = page(look([dataclasses.replace(FLEET[0], age_s=42.0)]))
    assert "! 42s old: the host answers slowly" in late


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), "gpu01:0,1,3,7 gpu02:0,1,2.0,2.1"),
        (Wanted(free=True), "gpu01:0 gpu02:1,2.0"),
        (Wanted(model="h100"), "gpu01:0,1,3"),
        (Wanted(model="a100"), "gpu02:2.0,2.1"),
        (Wanted(model="MIG 1G"), "gpu02:2.1"),
        (Wanted(min_free_bytes=78 * GIB), "gpu01:0,3 gpu02:1"),
        (Wanted(free=True, min_free_bytes=40 * GIB), "gpu01:0 gpu02:1,2.0"),
        (Wanted(model="b200"), ""),
    ],
)
def test_filters(wanted: Wanted, expected: str) -> None:
    overview = look(FLEET, wanted)
    assert one_line(overview) == expected
    shown = sum(len(machine.devices) for machine in overview.machines)
    assert overview.hidden == 8 - shown
    if wanted != Wanted():
        assert "no NVIDIA driver" not in page(overview)
        assert f"{overview.hidden} not shown" in page(overview) or "no GPU fits; 8 do not" in page(
            look(FLEET[:5], wanted)
        )


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("host", "a:0,1,2 b:0,1"),
        ("memory", "b:1,0 a:0,2,1"),
        ("utilization", "a:2,0,1 b:0,1"),
        ("temperature", "b:1,0 a:1,0,2"),
    ],
)
def test_sorting(sort: Any, expected: str) -> None:
    a = answer(
        "a",
        gpu(0, used=5, utilization_percent=50, temperature_c=40),
        gpu(1, used=60, utilization_percent=None, temperature_c=70),
        gpu(2, used=20, utilization_percent=2, temperature_c=None),
    )
    b = answer(
        "b",
        gpu(0, used=4, utilization_percent=3, temperature_c=30),
        gpu(1, used=0, utilization_percent=4, temperature_c=90),
    )
    assert one_line(look([a, b], sort=sort)) == expected


def test_as_data() -> None:
    overview = look(FLEET)
    told = json.loads(json.dumps(document(overview, FLEET, NOW)))
    hosts = {host["host"]: host for host in told["hosts"]}
    assert list(hosts) == [each.host for each in FLEET]
    assert [card["state"] for card in hosts["gpu01"]["gpus"]] == ["free", "busy", "leased", "broken"]
    assert hosts["gpu01"]["gpus"][1]["processes"][0]["command"].startswith("/opt/env/bin/python3")
    instances = hosts["gpu02"]["gpus"][2]["mig"]
    assert [(each["label"], each["state"]) for each in instances] == [("2.0", "free"), ("2.1", "busy")]
    assert hosts["dead1"]["error"] == {"message": "no route", "hint": "ping {host}"}
    assert hosts["sick"]["gpu_note"] == "NVML: Driver Not Loaded"
    assert told["summary"]["free"] == 3
    assert told["summary"]["models"]["RTX 4090"] == {
        "free": 0,
        "busy": 1,
        "leased": 0,
        "promised": 0,
        "broken": 0,
    }

    rows = list(csv.DictReader(io.StringIO(table(overview))))
    assert [(row["host"], row["index"], row["state"]) for row in rows][3:7] == [
        ("gpu01", "7", "broken"),
        ("gpu02", "0", "busy"),
        ("gpu02", "1", "free"),
        ("gpu02", "2.0", "free"),
    ]
    assert (rows[1]["users"], rows[1]["pids"], rows[1]["memory_free_bytes"]) == (
        "alice",
        "4711",
        str(10 * GIB),
    )
    assert rows[2]["leased_by"] == "bob"
    assert rows[7]["utilization_percent"] == ""


@pytest.mark.parametrize(
    ("name", "short", "brief"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "RTX 4090"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE-16GB", "V100"),
        ("Quadro RTX 6000", "Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 80GB HBM3 MIG 1g.10gb", "1g.10gb"),
        ("", "", ""),
    ],
)
def test_names_of_cards(name: str, short: str, brief: str) -> None:
    assert (short_name(name), brief_name(name)) == (short, brief)


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("/usr/bin/python3 /home/a/train.py --data /x/y", "python3 train.py --data /x/y"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run t.py"),
        ("./a.out", "a.out"),
        ("/usr/lib/xorg/Xorg :0 -auth /run/x", "Xorg :0 -auth /run/x"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_commands(command: str, short: str) -> None:
    assert short_command(command) == short


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40GiB", 40 * GIB),
        ("40g", 40 * GIB),
        ("1.5 TiB", 1536 * GIB),
        ("40GB", 40 * 10**9),
        ("512MiB", GIB // 2),
    ],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["40", "", "GiB", "-1GiB", "40 bytes", "1e3G", "40GiBB"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UsageError):
        size(text)


def test_ages() -> None:
    told = [age(seconds) for seconds in (-5, 0, 59.9, 60, 3599, 3600, 47 * 3600, 48 * 3600, 9e6)]
    assert told == ["0s", "0s", "59s", "1m", "59m", "1h", "47h", "2d", "104d"]


# ---- on hosts


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated NVML library."""
    return build(tmp_path_factory.mktemp("nvml"))


class Lab:
    """Hosts with simulated cards, a user who looks at them."""

    def __init__(self, library: Path, directory: Path, network: SshNetwork, launcher: Launcher) -> None:
        self.network = network
        self.launcher = launcher
        self.fleets: list[Fleet] = []
        self.leases = directory / "leases"
        self._library = library
        self._directory = directory

    def add(self, *lines: str) -> Sshd:
        """A host with that fleet; without lines one that has no driver."""
        fleet = Fleet(self._library, self._directory / f"fleet{len(self.fleets)}", *lines)
        self.fleets.append(fleet)
        env = {"TFLAUNCH_LEASES": str(self.leases)}
        return self.network.add(env={**fleet.env, **env} if lines else env)

    def words(self, *more: str) -> tuple[str | Path, ...]:
        """`gpus` with the test's hosts and ssh_config."""
        hostfile = self.launcher.hostfile([sshd.name for sshd in self.network.sshds])
        return ("gpus", hostfile, "-F", self.network.config, *more)

    def gpus(self, *more: str, **env: str) -> Any:
        """Run it to its end."""
        verb, *words = self.words(*more)
        return self.launcher.run(str(verb), *words, env=env)


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
    """Eight cards: 0 free, 1 for the test to fill, 5 closed, 7 lost, the others free."""
    cards = (
        f'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-{index} mem=81559 used=4 bus=0000:{16 + index:02x}:00.0'
        + {5: " mode=2", 7: " error=15"}.get(index, "")
        for index in range(8)
    )
    return ("driver 550.54.15", "cuda 12040", *cards, "nvlink 2 3 4", "topo 0 1 10", *more)


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
    assert [card["state"] for card in first] == [
        *("free", "busy", "busy", "leased", "free", "busy", "free", "broken")
    ]
    assert first[2]["links"]["3"] == "NV4"
    assert first[0]["links"]["1"] == "PIX"
    assert data["hosts"][5]["error"]["message"]

    assert line.out == "host1:0,4,6 host2:1.0\n"
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
    slow, frozen = lab.add(*dgx("delay_ms 3000")), lab.add(*dgx())
    frozen.freeze()
    done = lab.gpus("--timeout=4").ran(69)
    frozen.thaw()
    assert "host1  6 of 8 free" in done.out
    assert f"✗ {slow.name}  its GPUs did not answer within 4 s" in done.out
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
    assert lab.launcher.run(*words, "--host", "*2", env=env).ran().out == "host2:0\n"
    assert lab.launcher.run(*words, cwd=Path(hostfile).parent).ran().out == "host1:0 host2:0\n"
    assert logins(lab.network.sshds[0]) == 2
    nothing = lab.launcher.run("gpus").ran(2)
    assert "no hostfile" in nothing.sentences


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--csv"), "two forms"),
        (("--watch", "--csv"), "--watch shows the table, or --json, not --csv"),
        (("--watch", "1", "--topology"), "--watch shows the table"),
        (("--min-free=40",), "write it with its unit: 40GiB"),
        (("--host=nope",), "has no host nope"),
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


class Terminal:
    """`tflaunch` on a terminal of its own; `text` is everything that it has written there."""

    def __init__(self, argv: list[Any], env: dict[str, str], columns: int = 100, rows: int = 30) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, process_group=0
        )
        os.close(theirs)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65536):
                self._parts.append(data)
        except OSError:  # EIO: its other end is closed
            pass
        os.close(self._ours)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(self._parts).decode("utf-8", "replace"))

    def wait_for(self, pattern: str) -> None:
        """Until what came after the last call holds it."""
        until(lambda: re.search(pattern, self.text[self._seen :]), pattern)
        self._seen = len(self.text)

    _seen = 0

    def end(self) -> int:
        code = self.process.wait(60)
        self._reader.join()
        return code


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


def test_watch_keeps_its_connections_and_ends_with_ctrl_c(
    lab: Lab, watching: Callable[..., Terminal]
) -> None:
    first = lab.add("gpu uuid=GPU-a mem=81559 temp=41")
    second = lab.add("gpu uuid=GPU-b mem=81559 temp=51")
    lab.add(*dgx("delay_ms 60000"))  # never answers, and is waited for by nobody
    screen = watching("--watch", "0.3", "--timeout=100")
    screen.wait_for(r"host1  1 of 1 free(.|\n)*41°(.|\n)*51°(.|\n)*waiting for host3(.|\n)*of 2 on 2 hosts")
    for temperature in (42, 43, 44):
        lab.fleets[0].change(f"gpu uuid=GPU-a mem=81559 temp={temperature}")
        screen.wait_for(f"{temperature}°")
    assert (logins(first), logins(second)) == (1, 1)

    second.kill()
    screen.wait_for(r"host2\s+✗ .*its GPUs were seen")
    lab.fleets[0].change("gpu uuid=GPU-a mem=81559 temp=45")
    screen.wait_for("45°")
    lab.fleets[1].change("gpu uuid=GPU-b mem=81559 temp=55")
    second.start()
    screen.wait_for("55°")
    assert (logins(first), logins(second)) == (1, 2)

    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 0
    assert screen.text.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))  # the screen and the cursor as before
    assert "Traceback" not in screen.text


def test_watch_respects_the_height(lab: Lab, watching: Callable[..., Terminal]) -> None:
    lab.add(*dgx())
    screen = watching("--watch", rows=6, columns=80)
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
    screen.wait_for("41°")
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
    # How cards are connected was asked once, and is told every time.
    assert {each["hosts"][0]["gpus"][2]["links"]["3"] for each in documents} == {"NV4"}
    assert logins(sshd) == 1


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
