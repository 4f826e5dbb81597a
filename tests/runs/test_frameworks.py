"""PyTorch and JAX programs: whether rank 0 can listen where it is told to."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.frameworks import JAX, TORCH, given
from tests.support.launcher import TELL, Launcher, told
from tests.support.sshd import SshNetwork

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
    launcher.script(TELL, "tell.py")
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
