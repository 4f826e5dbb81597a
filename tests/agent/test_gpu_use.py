"""How a run uses its GPUs, as its agent sees it: by a child process above a simulated NVML library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Channel, Host, shell
from tests.support.driver import PROBE, ask
from tests.support.lab import PATH
from tests.support.nvml import Fleet
from tests.support.patience import until
from tflaunch.agent.gpus.gpu_driver import HEARS
from tflaunch.agent.gpus.use import fabric_bytes
from tflaunch.agent.host import processes
from tflaunch.agent.host.foreign import ASKS_NVML
from tflaunch.protocol import messages

SPINS = "gpu uuid=GPU-a mem=81920 used=60000 util=100 power=93000 limit=700000"


def started(host: Host, fleet: Fleet, uuid: str = "GPU-a", **task: Any) -> tuple[Channel, int]:
    """A task with that GPU; its pid."""
    host.env.update(fleet.env, PATH=PATH)
    channel = host.start()
    facts = channel.ask("probe", lease=True, ports=None, count=1, answer="facts")
    assert [gpu["uuid"] for gpu in facts["gpus"]]
    request = shell("exec sleep 600", env={"CUDA_VISIBLE_DEVICES": uuid}, gpus=[uuid], **task)
    stage = {"tasks": [request], "code": None, "ports": [], "gpus": [uuid], "door": False, "attempt": 0}
    channel.ask("stage", **stage, answer="staged")
    channel.send("watch", after=0, logs={}, window=1 << 20, client="test")
    channel.send("release")
    return channel, channel.wait("started")["pid"]


def looked(channel: Channel, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first look of which `wanted` is true; it has the types that the protocol promises."""
    last: dict[str, Any] = {}

    def found() -> bool:
        message = channel.ask("look", gpus_s=0.1, answer="looked")
        messages.check(message, messages.FROM_AGENT)
        last.update(message.fields)
        return wanted(last)

    until(found, "that look")
    return last


def test_use_power_and_processes(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", "gpu uuid=GPU-a mem=81920")
    channel, pid = started(host, fleet)
    assert looked(channel, lambda seen: "gpus" in seen)["gpus"]["GPU-a"]["pids"] == []
    fleet.change(SPINS, f"proc gpu=0 pid={pid} mem=59000")
    seen = looked(channel, lambda seen: bool(seen["gpus"]["GPU-a"]["pids"]))
    assert seen["gpus"]["GPU-a"] == {
        **{"use": 100, "power_w": 93.0, "limit_w": 700.0, "pids": [pid], "error": ""},
        **{"memory_bytes": 60000 << 20, "slowed_by": [], "heat_ms": None},
        **{"energy_j": None, "lanes": [16, 16], "pcie": [4, 4], "nvlinks": None, "gpm": None},
    }
    assert seen["gpus_age_s"] < 60
    assert seen["tasks"]["worker/0"]["masks"] == []
    fleet.change(SPINS)  # a container hides whose memory it is
    assert (
        looked(channel, lambda seen: seen["gpus"]["GPU-a"]["pids"] != [pid])["gpus"]["GPU-a"]["pids"] is None
    )


def test_a_look_that_does_not_ask_for_gpus_leaves_nvml_alone(
    host: Host, library: Path, tmp_path: Path
) -> None:
    channel, _ = started(host, Fleet(library, tmp_path / "fleet", SPINS))
    assert channel.ask("look", answer="looked").fields.keys() == {"tasks", "machine"}


def test_what_holds_its_clocks_down(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", f"{SPINS} reasons=0x24 heat_ms=1500 energy=7654321 lanes=8")
    channel, _ = started(host, fleet)
    seen = looked(channel, lambda seen: "gpus" in seen)["gpus"]["GPU-a"]
    assert (seen["slowed_by"], seen["heat_ms"]) == (["power_cap", "sw_thermal"], 1500)
    assert (seen["energy_j"], seen["lanes"]) == (7654, [8, 16])


LOADS = {"ask": "loads", "devices": [("GPU-a", "0"), ("GPU-b", "1")]}
XIDS = {"ask": "xids", "devices": []}


def pair(*keys: str) -> list[str]:
    """Two GPUs with four NVLinks between them; to each what these keys say."""
    each = [*keys, "", ""]
    return [
        *(f"gpu uuid=GPU-{name} mem=81920 {more}" for name, more in zip("ab", each, strict=False)),
        "nvlink 0 1 4",
    ]


def test_links_that_are_narrower_than_they_could_be(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair("links_down=1 slow_link=13281 gen=1"))
    older = pair("fields=0 links_down=1")
    first, second = ask(fleet, (None, LOADS), (older, LOADS))
    assert [each["pcie"] for each in first.found.values()] == [[1, 4], [4, 4]]
    mine, others = (each["nvlinks"] for each in first.found.values())
    assert mine[:5] == [13281, 26562, 26562, 0, 0]
    assert others[:5] == [26562, 26562, 26562, 26562, 0]
    assert second.found[0]["nvlinks"][:5] == [1, 1, 1, 0, 0], "they are up, and do not tell their speed"


def test_gpm_of_the_time_between_two_questions(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair("sm=63 tensor=21 dram=40"))
    taken = pair("sm=63 tensor=21 dram=40 gpm_error=19")
    asked = ask(fleet, (None, LOADS), (None, LOADS), (taken, LOADS), (pair("sm=63 tensor=21 dram=40"), LOADS))
    # Whoever takes it from us keeps it.
    assert [each.found[0]["gpm"] for each in asked] == [None, [63.0, 21.0, 40.0], None, None]
    assert all(each.found[1]["gpm"] is None for each in asked), "it is no Hopper"


def test_xids_since_the_last_question(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair(), "xid 0 31")
    told = [*pair(), "xid 0 31", "xid 1 79", "xid 0 43"]
    questions = [(None, LOADS), (told, XIDS), (None, XIDS), ([*told, "xid 1 45"], LOADS)]
    assert [each.xids for each in ask(fleet, *questions)] == [
        *([], [["GPU-b", 1, 79], ["GPU-a", 0, 43]], []),
        [["GPU-b", 1, 45]],
    ]


def test_the_xid_of_a_card_that_is_lost(library: Path, tmp_path: Path) -> None:
    """What is wrong with it has another process ask, which hears of later Xids alone."""
    fleet = Fleet(library, tmp_path / "fleet", *pair())
    lost = [*pair("error=15"), "xid 0 79"]
    first, told, *later = ask(
        fleet, (None, LOADS), (lost, LOADS), *[(None, each) for each in (PROBE, XIDS, LOADS, PROBE)]
    )
    assert told.xids == [["GPU-a", 0, 79]]
    assert [each["error"] for each in told.found.values()] == ["NVML: GPU is lost", ""]
    assert told.pids != first.pids
    assert later[0].pids != told.pids, "another kind of question is answered with it for the first time"
    assert all(each.pids == later[0].pids for each in later), "it is nothing new"


@pytest.mark.parametrize(
    ("hangs", "xids"), [("nvmlDeviceGetMemoryInfo hang gpu=0", [["GPU-a", 0, 79]]), (f"{HEARS} hang", [])]
)
def test_a_call_that_hangs_after_an_xid(
    library: Path, tmp_path: Path, hangs: str, xids: list[list[Any]]
) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair())
    sick = [*pair(), "xid 0 79", f"sick {hangs}"]
    _, told = ask(fleet, (None, LOADS), (sick, LOADS), call_s=0.3)
    assert (told.xids, told.problem) == (xids, "")
    assert [*told.found] == ([1] if xids else [0, 1])


def test_xids_of_the_gpu_of_a_mig_instance(library: Path, tmp_path: Path) -> None:
    instances = {"a": "gi=1", "b": "gi=2", "c": "gi=2 ci=1"}
    parts = [
        "gpu uuid=GPU-m mem=40960 cc=8.0 mig=1",
        *(f"mig gpu=0 uuid=MIG-{name} mem=9000 cc=8.0 {more}" for name, more in instances.items()),
    ]
    fleet = Fleet(library, tmp_path / "fleet", *parts)
    loads = {"ask": "loads", "devices": [("MIG-a", "0.0"), ("MIG-c", "0.2")]}
    xids = ["xid 0 31 3 0", "xid 0 43 2 0", "xid 0 13 2 1", "xid 0 62 2", "xid 0 94"]
    _, told = ask(fleet, (None, loads), ([*parts, *xids], loads))
    assert told.xids == [["MIG-c", 0, 13], ["MIG-c", 0, 62], ["MIG-a", 0, 94], ["MIG-c", 0, 94]]


def test_calls_of_nvml_for_each_gpu(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair(*["sm=63"] * 2))
    asked = ask(fleet, *[(None, LOADS)] * 3)
    first, second, third = (each.calls for each in asked)
    assert second - first == third - second == 2 * 14 + 2, "14 for each, and two for the Xids of all"


def test_the_end_of_a_task_whose_gpu_has_told_of_an_xid(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", SPINS)
    channel, pid = started(host, fleet)

    def look() -> dict[str, Any]:
        message = channel.ask("look", gpus_s=25.0, answer="looked")
        messages.check(message, messages.FROM_AGENT)
        return message.fields

    until(lambda: "gpus" in look(), "the first answer of NVML")
    fleet.change(SPINS, "xid 0 79")
    os.kill(pid, signal.SIGABRT)
    assert channel.wait("exit")["facts"]["xids"] == [[0, 79]]
    assert [each[:3] for each in look()["xids"]] == [["GPU-a", 0, 79]]


def test_a_sweep_that_gets_another_gpu(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", *pair())
    channel, pid = started(host, fleet)
    looked(channel, lambda seen: "gpus" in seen)
    channel.ask("probe", lease=["GPU-b"], ports=None, count=0, answer="facts")
    channel.send("keep", gpus=["GPU-a", "GPU-b"])
    fleet.change(*pair(), "xid 0 31")
    os.kill(pid, signal.SIGABRT)
    assert channel.wait("exit")["facts"]["xids"] == [[0, 31]], "NVML was open all the time"
    looked(channel, lambda seen: seen["gpus"].keys() == {"GPU-a", "GPU-b"})
    channel.send("keep", gpus=[])
    until(lambda: "gpus" not in channel.ask("look", gpus_s=0.1, answer="looked").fields, "GPUs given back")


ENDS = """
import sys, time
from tflaunch.agent.gpus.freed import RunGpus
from tflaunch.agent.gpus import use as module
from tflaunch.agent.gpus.gpu_driver import GpuDriver
module.LEAST_S = 0.0
driver = GpuDriver()
gpus = RunGpus("run", driver)
gpus.seen([{"uuid": "GPU-a", "index": 0, "memory_used_bytes": 0}])
gpus.keep(["GPU-a"])
use = module.GpuUse(driver, gpus)
use.look(25.0, True)
while driver.busy:
    time.sleep(0.01)
    driver.tick(time.monotonic())
with open(sys.argv[1], "a") as fleet:
    print("xid 0 31", *sys.argv[2:], sep="\\n", file=fleet)
use.look(1e-9, True)
tick, ticks = driver.tick, []
driver.tick = lambda now: ticks.append(now) or tick(now)
for _ in range(8):
    print(use.xids_of(["GPU-a"], 0.0), bool(ticks))
    ticks.clear()
driver.stop()
"""


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        ((), ["[[0, 31]] True"] * 8),
        (("sick nvmlDevice hang",), ["[[0, 31]] True", *["[[0, 31]] False"] * 7]),
    ],
)
def test_all_tasks_of_a_host_end_together(
    library: Path, tmp_path: Path, lines: tuple[str, ...], ends: list[str]
) -> None:
    """The first one alone waits for a driver that does not answer."""
    fleet = Fleet(library, tmp_path / "fleet", SPINS)
    told = subprocess.run(
        [sys.executable, "-c", ENDS, fleet.path, *lines],
        env={**os.environ, "PYTHONPATH": str(ROOT), **fleet.env},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.splitlines() == ends


def test_a_variable_that_setup_overwrites(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", SPINS)
    channel, pid = started(host, fleet, setup=["export CUDA_VISIBLE_DEVICES=-1"])
    seen = looked(channel, lambda seen: bool(seen["tasks"]["worker/0"]["masks"]))
    assert seen["tasks"]["worker/0"]["masks"] == [[pid, "-1"]]


def test_a_sick_driver_does_not_stop_the_agent(host: Host, library: Path, tmp_path: Path) -> None:
    fleet = Fleet(library, tmp_path / "fleet", SPINS)
    channel, pid = started(host, fleet)
    looked(channel, lambda seen: "gpus" in seen)
    fleet.change(SPINS, "delay_ms 600000")
    process = processes.read(pid)
    assert process is not None

    def children() -> list[processes.Process]:
        return [
            each for each in processes.every().values() if each.parent == process.parent and each.pid != pid
        ]

    looked(channel, lambda _: bool(children()))
    for _ in range(20):  # it answers, and asks NVML no second time
        channel.ask("look", gpus_s=0.1, answer="looked")
    assert len(children()) == 1  # one process asks NVML, from the first look to the end
    assert channel.ask("end", grace_s=1.0, answer="swept")["survivors"] == []
    channel.leave()
    until(lambda: not children(), "the child of the agent to be gone")


def test_agent_and_guard_are_killed_while_nvml_is_asked(host: Host, library: Path, tmp_path: Path) -> None:
    """Nobody is left who could end the process that asks, and nobody takes its answer."""
    fleet = Fleet(library, tmp_path / "fleet", SPINS)
    channel, pid = started(host, fleet)
    process = processes.read(pid)
    assert process is not None
    fleet.change(SPINS, "sick * hang")

    def asking() -> list[processes.Process]:
        return [
            each
            for each in processes.every().values()
            if each.name == ASKS_NVML and each.parent == process.parent
        ]

    channel.ask("look", gpus_s=0.1, answer="looked")
    (child,) = until(asking, "the process that asks")
    for each in (host.guard(process.parent), process.parent):
        os.kill(each, signal.SIGKILL)
    until(lambda: processes.read(child.pid) is None, "its end")
    logs = list(host.run_dir.glob("**/agent.log"))
    assert logs
    assert not any("Traceback" in log.read_text() for log in logs)


def test_a_lost_gpu_and_a_mig_instance(library: Path, tmp_path: Path) -> None:
    fleet = Fleet(
        library,
        tmp_path / "fleet",
        "gpu uuid=GPU-m mem=40960 cc=8.0 mig=1 util=50 power=100000 limit=400000",
        "mig gpu=0 uuid=MIG-a mem=19968 used=15 cc=8.0 gi=1",
        "gpu uuid=GPU-lost error=15",
    )
    devices = [("MIG-a", "0.0"), ("GPU-lost", "1"), ("GPU-none", "2")]
    (asked,) = ask(fleet, (None, {"ask": "loads", "devices": devices}))
    told = asked.found
    nothing = {
        **{"slowed_by": [], "nvlinks": None, "gpm": None},
        **dict.fromkeys(("use", "power_w", "limit_w", "heat_ms", "energy_j", "lanes", "pcie")),
    }
    assert told[0] == {**nothing, "memory_bytes": 15 << 20, "pids": [], "error": ""}
    assert (told[1]["error"], told[2]["error"]) == ("NVML: GPU is lost", "NVML: Not Found")


def test_fabrics(tmp_path: Path) -> None:
    assert fabric_bytes(str(tmp_path / "none")) is None
    assert fabric_bytes(str(tmp_path)) is None
    for device, sent, received in (("mlx5_0", 100, 7), ("mlx5_1", 1, 1), ("sick", 2**64 - 1, 1)):
        counters = tmp_path / device / "ports/1/counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{sent}\n")
        (counters / "port_rcv_data").write_text(f"{received}\n")
    (tmp_path / "mlx5_1/ports/2").mkdir()
    assert fabric_bytes(str(tmp_path)) == [404, 32]
