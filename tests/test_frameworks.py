"""PyTorch and JAX programs: what their tasks are told, whether rank 0 can listen where it is told to, real training."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tflaunch.agent.net.ports import HeldPorts

from tests.bed import Bed, FarLauncher
from tests.launcher import Launcher, processes, told
from tests.sshd import SshNetwork
from tests.test_agent import bind
from tests.test_plan import asked, facts, plan
from tflaunch.hosts import Host
from tflaunch.planning.addresses import interfaces
from tflaunch.planning.command import Command
from tflaunch.planning.frameworks import ranks, roles_for, started_by
from tflaunch.protocol.job import Framework, JobSpec, Role, TaskId

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
HOST = Host(name="gpu01")
CLUSTER = {
    "chief": ["c:1"],
    "data": ["d:1", "d:2"],
    "feed": ["f:1"],
    "ps": ["p:1"],
    "worker": ["w:1", "w:2"],
}
TORCH = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
}
JAX = {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}


def needs(package: str) -> pytest.MarkDecorator:
    there = list(ROOT.glob(f".venv-frameworks/lib/python*/site-packages/{package}/__init__.py"))
    return pytest.mark.skipif(
        not there, reason=f"{package} is not in .venv-frameworks, which scripts/test makes"
    )


def env_of(job: JobSpec, task: TaskId, cluster: Mapping[str, list[str]] = CLUSTER) -> dict[str, str]:
    return Command(job, cluster, "trainer-k3f9x2").env(task, HOST, ())


def given(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in TORCH | JAX | {"GLOO_SOCKET_IFNAME"}}


# --- what they are told ----------------------------------------------------------------------------------


def test_who_decides_the_end_has_a_rank_and_the_chief_is_the_first() -> None:
    ends = {"data": Role(2, end="decides"), "feed": Role(1), "ps": Role(1, end="decides")}
    job = JobSpec(("t.py",), roles={**ends, "evaluator": Role(1, end="decides")})
    assert [str(task) for task in ranks(job, {**CLUSTER, "evaluator": ["e:1"]})] == [
        "chief/0",
        "worker/0",
        "worker/1",
        "data/0",
        "data/1",
    ]
    stopped = JobSpec(("t.py",), roles={"worker": Role(2, end="stopped")})
    assert [str(task) for task in ranks(stopped, CLUSTER)] == ["chief/0"]


def test_a_task_is_a_node_with_one_process() -> None:
    env = env_of(JobSpec(("t.py",), framework="torch"), TaskId("worker", 1))
    assert given(env) == {
        "MASTER_ADDR": "c",
        "MASTER_PORT": "1",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "2",
    }


def test_jax_is_told_its_coordinator_and_its_process() -> None:
    env = env_of(JobSpec(("t.py",), framework="jax"), TaskId("chief", 0))
    assert given(env) == {
        "JAX_COORDINATOR_ADDRESS": "c:1",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "0",
    }


@pytest.mark.parametrize(
    ("framework", "names"), [("auto", TORCH | JAX), ("tensorflow", set()), ("torch", TORCH), ("jax", JAX)]
)
def test_what_each_framework_is_told(framework: Framework, names: set[str]) -> None:
    job = JobSpec(("t.py",), framework=framework)
    assert set(given(env_of(job, TaskId("worker", 0)))) == names
    for task in (TaskId("ps", 0), TaskId("data", 0), TaskId("evaluator", 0)):
        assert given(env_of(job, task)) == {}


def test_an_ipv6_address_is_written_as_each_of_them_reads_it() -> None:
    env = env_of(JobSpec(("t.py",)), TaskId("worker", 0), {"worker": ["[fd00::7]:2000", "[fd00::8]:2000"]})
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("fd00::7", "2000")
    assert env["JAX_COORDINATOR_ADDRESS"] == "[fd00::7]:2000"


def test_what_the_user_sets_wins() -> None:
    job = JobSpec(
        ("t.py",), env={"RANK": "7", "JAX_PROCESS_ID": "8"}, roles={"worker": Role(env={"WORLD_SIZE": "9"})}
    )
    command = Command(job, CLUSTER, "r", {"gpu01": "eth0"})
    host = Host(name="gpu01", env={"MASTER_PORT": "29500", "RANK": "1", "GLOO_SOCKET_IFNAME": "ib0"})
    env = command.env(TaskId("worker", 1), host, ())
    assert {name: env[name] for name in ("RANK", "JAX_PROCESS_ID", "WORLD_SIZE", "MASTER_PORT")} == {
        "RANK": "7",
        "JAX_PROCESS_ID": "8",
        "WORLD_SIZE": "9",
        "MASTER_PORT": "29500",
    }
    assert env["GLOO_SOCKET_IFNAME"] == "ib0"
    assert command.env(TaskId("worker", 1), HOST, ())["GLOO_SOCKET_IFNAME"] == "eth0"


def test_there_is_no_ps_unless_somebody_asks_for_one() -> None:
    assert roles_for("torch", {"worker": Role(2)})["ps"].count == 0
    assert roles_for("jax", {"ps": Role(hosts="a")})["ps"] == Role(0, hosts="a")
    assert roles_for("torch", {"ps": Role(2)})["ps"].count == 2
    assert "ps" not in roles_for("auto", {"worker": Role(2)})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"torch.distributed", "tensorflow", "argparse"}, "torch"),
        ({"LOCAL_RANK"}, "torch"),
        ({"jax.distributed", "tensorflow"}, "jax"),
        ({"jax.distributed", "RANK"}, "auto"),
        ({"torch", "jax"}, "auto"),
        (set(), "auto"),
    ],
)
def test_who_starts_a_program_with_these_words(words: set[str], expected: str) -> None:
    assert started_by(words) == expected


@pytest.mark.parametrize(
    ("dialled", "addresses", "expected"),
    [
        ("10.0.0.1", {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}, "eth0"),  # what is dialled is its own
        ("gpu1", {"eth0": "10.0.0.1", "docker0": "172.17.0.1"}, "eth0"),  # every machine has the bridge
        ("gpu1", {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}, None),  # either
        ("192.0.2.9", {"eth0": "10.0.0.1"}, "eth0"),  # behind a router
        ("127.0.0.1", {"eth0": "10.0.0.1"}, None),
        ("gpu1", {}, None),
    ],
)
def test_the_interface_that_gloo_listens_on(
    dialled: str, addresses: Mapping[str, str], expected: str | None
) -> None:
    def host(name: str, faces: Mapping[str, str]) -> Any:
        return facts(name, addresses=tuple(faces.values()), interfaces=tuple(faces))

    inventory = {
        "gpu1": host("gpu1", addresses),
        "gpu2": host("gpu2", {"eth0": "10.0.0.2", "docker0": "172.17.0.1"}),
    }
    assert interfaces({"gpu1": dialled, "gpu2": "10.0.0.2"}, inventory).get("gpu1") == expected


@pytest.mark.parametrize("framework", ["auto", "tensorflow", "jax", "torch"])
def test_only_rank_0_of_pytorch_and_jax_listens_and_only_pytorch_shares_its_port(
    framework: Framework,
) -> None:
    job = asked(ps=1, workers=2, chief=True, framework=framework)
    wire = {str(task.id): task.to_wire() for task in plan(job, facts("a"), facts("b")).tasks}
    own = framework in ("jax", "torch")
    assert {name: request["port"] is not None for name, request in wire.items()} == {
        "chief/0": True,
        "ps/0": not own,
        "worker/0": not own,
        "worker/1": not own,
    }
    sharing = [name for name, request in wire.items() if request.get("shares_port")]
    assert sharing == (["chief/0"] if framework == "torch" else [])
    ports = [task.port for task in plan(job, facts("a"), facts("b")).tasks]
    assert None not in ports  # the hosts call each other there before the start, as its own threads will


# --- the port that rank 0 listens on -----------------------------------------------------------------------


def test_a_port_that_is_shared_can_be_had_by_who_says_so_and_by_nobody_else() -> None:
    held = HeldPorts()
    [port] = held.hold(1, None, os.getpid())
    try:
        assert bind(port, socket.SO_REUSEADDR) == errno.EADDRINUSE
        held.share(port)
        for family in (socket.AF_INET, socket.AF_INET6):
            assert bind(port, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEADDR, family=family) == 0
        assert bind(port, socket.SO_REUSEPORT) == 0  # JAX, and TensorFlow
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("", port))
            store.listen()
            assert bind(port, socket.SO_REUSEADDR) == errno.EADDRINUSE  # from now on it has it alone
            with socket.create_connection(("127.0.0.1", port)) as caller:
                accepted, _ = store.accept()
                with accepted:
                    caller.sendall(b"!")
                    assert accepted.recv(1) == b"!"
        held.share(port + 1)  # not held: nothing
        assert held.held == [port]
    finally:
        held.keep([])


# As PyTorch's store does, libuv's and the older one.
MEETS = """\
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    store = socket.socket(socket.AF_INET6)
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("::", where[1]))
    store.listen()
    others = [store.accept()[0] for _ in range(world - 1)]
    print("met", sorted(each.recv(1)[0] for each in others), flush=True)
    for each in others:
        each.sendall(b"!")
        each.close()  # so that the port has connections in TIME_WAIT when it starts again
else:
    while True:
        try:
            store = socket.create_connection(where)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    store.sendall(bytes([rank]))
    assert store.recv(1) == b"!"
if os.environ["TFLAUNCH_ATTEMPT"] == "0" and rank == world - 1:
    sys.exit(3)
print("rank", rank, "of", world, "without a word of flags:", sys.argv[1:], flush=True)
"""


def test_ranks_meet_at_the_first_ones_port_and_again_after_a_failure(
    network: SshNetwork, launcher: Launcher
) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name], ports="21100-21199")
    words = ("--framework=torch", "--workers=3", "--restarts=1", "--startup-timeout=60")
    done = launcher.run("run", hosts, launcher.script(MEETS), *words, "--", "mine").ran()
    assert "ps" not in done.err.partition("training")[0]
    assert done.out.count("met [1, 2]") == 2  # with its cluster, since there is no ps
    assert {line.partition("│ ")[2] for line in done.out.splitlines() if "rank" in line} >= {
        f"rank {rank} of 3 without a word of flags: ['mine']" for rank in range(3)
    }


def test_a_program_that_says_nothing_of_its_framework_gets_all_variables_and_keeps_its_flags(
    launcher: Launcher, tmp_path: Path
) -> None:
    out = tmp_path / "told"
    out.mkdir()
    script = launcher.script("from tell import *\n")
    launcher.script(
        (ROOT / "tests" / "launcher.py").read_text().split('TELL = """\\\n')[1].split('"""')[0], "tell.py"
    )
    words = ("run", launcher.local(2), script, "--ps=1", "--workers=2", f"--env=OUT={out}", "--env=RANK=5")
    launcher.run(*words).ran()
    tasks = told(out)
    assert {tasks[name].env["WORLD_SIZE"] for name in ("worker/0", "worker/1")} == {"2"}
    assert {tasks[name].env["RANK"] for name in ("worker/0", "worker/1")} == {"5"}
    assert tasks["worker/1"].env["JAX_PROCESS_ID"] == "1"
    assert any(word.startswith(b"--ps_hosts=") for word in tasks["worker/0"].argv)
    assert "WORLD_SIZE" not in tasks["ps/0"].env


def test_a_trial_of_a_sweep_is_alone(launcher: Launcher, tmp_path: Path) -> None:
    script = launcher.script(
        f"import json, os\njson.dump(dict(os.environ), open({str(tmp_path / 'env')!r}, 'w'))\n"
    )
    launcher.run("sweep", launcher.local(1), script, "--grid=x=1").ran()
    assert given(json.loads((tmp_path / "env").read_text())) == {}


def test_a_job_file_names_the_framework(launcher: Launcher) -> None:
    launcher.script("print('up')\n")
    job = launcher.code / "job.yaml"
    job.write_text("program: trainer.py\nframework: jax\nroles: {worker: 2}\n")
    done = launcher.run("run", launcher.local(2), job, "--dry-run", "--json").ran()
    [planned] = [event for event in done.events if event["event"] == "plan"]
    assert [task["task"] for task in planned["tasks"]] == ["worker/0", "worker/1"]
    assert all(task["env"].keys() >= JAX and not TORCH & task["env"].keys() for task in planned["tasks"])
    assert not any("_hosts" in word for task in planned["tasks"] for word in task["argv"])
    job.write_text("program: trainer.py\nframework: pytorch\n")
    wrong = launcher.run("run", launcher.local(2), job).ran(2)
    assert "job.yaml:2:12" in wrong.sentences
    assert "auto, tensorflow, jax, torch" in wrong.sentences


# --- the real ones ----------------------------------------------------------------------------------------


def losses(output: str) -> set[tuple[float, float]]:
    """(first, final) loss of each worker."""
    found = re.findall(r"final loss (\S+) \(first (\S+)\)", output)
    return {(float(first), float(final)) for final, first in found}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("example", "framework", "steps"),  # enough for the kill to come in time
    [
        pytest.param("torch_ddp.py", "torch", 2000, marks=needs("torch")),
        pytest.param("jax_data_parallel.py", "jax", 4000, marks=needs("jax")),
    ],
)
def test_the_example_trains_on_two_hosts_and_goes_on_from_its_checkpoint(
    example: str, framework: str, steps: int, network: SshNetwork, launcher: Launcher
) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name], python=str(PYTHON))
    words = (
        f"--framework={framework}",
        "--workers=2",
        "--restarts=1",
        "--grace=1",
        "--env=OMP_NUM_THREADS=1",
    )
    more = ("--", f"--steps={steps}", "--checkpoint_steps=100")
    with launcher.start("run", hosts, EXAMPLES / example, *words, *more) as running:
        running.wait_for("step 200 ")
        for process in processes():
            mine = process.env.get("TFLAUNCH_RUN") == running.run_id
            if mine and process.env.get("TFLAUNCH_TASK") == "worker/1" and not process.is_agent:
                process.kill()
        done = running.done(200).ran()
    assert re.search(r"resumes at step \d+00 from", done.out)
    [(_, final)] = losses(done.out)  # the same on both
    assert final < 0.02  # the noise alone is 0.01


@needs("torch")
def test_gloo_finds_the_others_where_a_hosts_own_name_leads_to_loopback(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    for host in (one, two):
        host.learn_names(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n")  # as Debian installs it
    entries = [{"name": host.name, "address": host.address} for host in (one, two)]
    hosts = far.hostfile(entries, python=str(PYTHON), ports="22000-22009")
    done = far.run(
        "run", hosts, EXAMPLES / "torch_ddp.py", "--framework=torch", "--workers=2", "--", "--steps=300"
    ).ran()
    [(first, final)] = losses(done.out)
    assert final < 0.1 * first
