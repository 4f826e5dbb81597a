"""What the plan says to programs that learn their place by words of their own: small ones, of shapes that are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.unit.code.test_cluster_calls import JAX, READS, TORCH, fit
from tflaunch.code.job_fitting import fitted
from tflaunch.code.program import find_program
from tflaunch.protocol.job import FLAGS, PS, WORKER, JobSpec, Role

TWO = {WORKER: Role(2)}
SERVER = "import tensorflow as tf\ntf.distribute.Server(cluster, job_name=job, task_index=index).join()\n"
BY_FLAGS = """
import argparse, jax
parser = argparse.ArgumentParser()
parser.add_argument("--num_processes", type=int, required=True)
parser.add_argument("--process-id", type=int, required=True)
parser.add_argument("--coordinator_address", required=True)
args = parser.parse_args()
jax.distributed.initialize(args.coordinator_address, args.num_processes, args.process_id)
"""
BY_VARIABLES = """
import os, jax
def main(argv):
    rank = int(os.getenv("PROCESS_ID"))
    size = int(os.environ["NUM_PROCESSES"])
    host, port = os.getenv("COORDINATOR_ADDRESS"), os.environ.get("COORDINATOR_PORT")
    jax.distributed.initialize(f"{host}:{port}", size, rank)
app.run(main)
"""
SPAWNS = """
import os, torch.multiprocessing as mp, torch.distributed
def main():
    os.environ["MASTER_ADDR"] = "{address}"
    mp.spawn(train, nprocs=2)
if __name__ == "__main__":
    main()
"""
PLACED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("jobname")
parser.add_argument("index", type=int)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
"""


def notes(tmp_path: Path, text: str, **job: Any) -> str:
    return "\n".join(fit(tmp_path, text, **job).notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            READS + "import sys\nindex = int(sys.argv[1])\n",
            "takes sys.argv[1], and there are none: add them after --, or to each task its own: "
            "--job-args 'ps={job} {index}' --job-args 'worker={job} {index}'",
        ),
        (READS + "import sys\nindex = sys.argv[1] if len(sys.argv) > 1 else 0\n", ""),
        (READS + "import sys\nindex = sys.argv[1] if many else 0\n", ""),
        (READS + "import sys\ntry:\n    index = sys.argv[1]\nexcept IndexError:\n    index = 0\n", ""),
        (READS + "import sys\ndef of_hand():\n    return sys.argv[1]\n", ""),
        (
            READS + PLACED,
            "wants the arguments jobname, index, and there are none: add them after --, or to each task its own: "
            "--job-args 'ps={job} {index}' --job-args 'worker={job} {index}'",
        ),
        (
            READS
            + PLACED.replace('"index",', '"index", nargs="?",').replace('"jobname"', '"files", nargs="*"'),
            "",
        ),
        (READS + PLACED + "parser.add_subparsers()\n", ""),
    ],
)
def test_arguments_by_their_place(tmp_path: Path, text: str, said: str) -> None:
    found = notes(tmp_path / "1", text)
    assert said in found
    assert bool(said) == bool(found)
    assert notes(tmp_path / "2", text, args=("0",)) == ""
    assert notes(tmp_path / "3", text, roles={WORKER: Role(2, args=("{index}",))}) == ""


def test_who_takes_arguments_by_their_place_alone_gets_no_flags(tmp_path: Path) -> None:
    job = fit(tmp_path, SERVER + "import sys\nindex = int(sys.argv[2])\n")
    assert job.flags is None
    assert "trainer.py:4 takes sys.argv[2], its arguments by their place" in job.choices[0]


def test_flags_for_the_rank(tmp_path: Path) -> None:
    own = (
        "--job-args 'worker=--num_processes={world_size} --process-id={rank} "
        "--coordinator_address={chief_host}:{chief_port}'"
    )
    assert notes(tmp_path / "1", BY_FLAGS, roles=TWO).endswith(
        f"takes the rank from a flag, --process-id: add {own}"
    )
    given = {WORKER: Role(2, args=("--process-id={rank}",))}
    assert notes(tmp_path / "2", BY_FLAGS, roles=given) == ""
    # A rank of its own kind, or one that it also reads from where tflaunch writes it.
    lora = TORCH + "import argparse\nargparse.ArgumentParser().add_argument('--rank', type=int, default=8)\n"
    assert notes(tmp_path / "3", lora, roles=TWO) == ""
    both = (
        TORCH
        + BY_FLAGS.replace("jax", "sys").replace("required=True", "default=0")
        + "\nos.environ['RANK']\n"
    )
    assert notes(tmp_path / "4", both, roles=TWO) == ""


@pytest.mark.parametrize(("default", "told"), [("-1", True), ("0", False)])
def test_the_flag_of_torch_distributed_launch(tmp_path: Path, default: str, told: bool) -> None:
    text = (
        TORCH
        + f"import argparse\nargparse.ArgumentParser().add_argument('--local_rank', default={default})\n"
    )
    assert ("add -- --local_rank=0" in notes(tmp_path / "1", text, roles=TWO)) == told
    assert notes(tmp_path / "2", text, roles=TWO, args=("--local_rank=0",)) == ""


def test_variables_of_other_launchers(tmp_path: Path) -> None:
    said = (
        "trainer.py:4 reads PROCESS_ID, NUM_PROCESSES, COORDINATOR_ADDRESS, COORDINATOR_PORT, which no task gets: add "
        "--env 'PROCESS_ID={rank}' --env 'NUM_PROCESSES={world_size}' --env 'COORDINATOR_ADDRESS={chief_host}' "
        "--env 'COORDINATOR_PORT={chief_port}'"
    )
    assert notes(tmp_path / "1", BY_VARIABLES) == said
    env = dict.fromkeys(("PROCESS_ID", "NUM_PROCESSES"), "1")
    assert notes(tmp_path / "2", BY_VARIABLES, env=env) == ""
    slurm = TORCH + "import os\nhosts, rank = os.environ['SLURM_JOB_NODELIST'], os.environ['SLURM_PROCID']\n"
    assert notes(tmp_path / "3", slurm).endswith(
        "add --env 'SLURM_PROCID={rank}'; the hosts of this run are in TF_CONFIG"
    )
    for number, line in enumerate(
        ("if 'SLURM_NTASKS' in os.environ: pass", "os.environ.get('SLURM_JOB_ID', '')")
    ):
        assert notes(tmp_path / f"4{number}", slurm.replace("import os", f"import os\n{line}")) == ""


def test_addresses_in_the_text(tmp_path: Path) -> None:
    listed = "hosts = ['10.0.0.1:2222', '10.0.0.2:2222']\n" + SERVER
    assert notes(tmp_path / "1", listed).startswith(
        "trainer.py:1 has the address 10.0.0.1:2222 in its text, and"
    )
    asking = "import argparse\nargparse.ArgumentParser().add_argument('--worker_hosts', default='a:2222')\n"
    assert notes(tmp_path / "2", asking + SERVER) == ""
    assert notes(tmp_path / "3", READS + listed) == ""  # TF_CONFIG tells it
    assert notes(tmp_path / "4", "tracker = 'mlflow:5000'\nimport tensorflow as tf\n") == ""
    fixed = SERVER.replace("=job", "='worker'").replace("=index", "=1")
    assert "trainer.py:2 starts the server of worker/1 in every task" in notes(tmp_path / "5", fixed)
    assert notes(tmp_path / "6", fixed + fixed) == ""  # a cluster in one process
    client = "import tensorflow.compat.v1 as tf\ntf.Session('grpc://tf0:2222')\n"
    assert "trainer.py:2 calls a server at grpc://tf0:2222, which this run does not start" in notes(
        tmp_path / "7", client
    )


def test_addresses_of_rank_0_in_the_text(tmp_path: Path) -> None:
    jax = JAX.replace("initialize()", "initialize('10.0.0.1:1234', num_processes=2, process_id=me)")
    assert notes(tmp_path / "1", jax).endswith(
        "at 10.0.0.1:1234; where rank 0 of this run is, says JAX_COORDINATOR_ADDRESS"
    )
    torch = TORCH.replace('"gloo"', '"gloo", init_method="tcp://10.0.0.1:29500"')
    assert notes(tmp_path / "2", torch).endswith(
        "where rank 0 of this run is, says MASTER_ADDR and MASTER_PORT"
    )
    assert notes(tmp_path / "3", TORCH.replace('"gloo"', '"gloo", init_method="env://"')) == ""


def test_processes_that_meet_on_their_own_host(tmp_path: Path) -> None:
    alone = fit(tmp_path / "1", SPAWNS.format(address="localhost"))
    assert (alone.role(WORKER).count, alone.notes) == (1, ())
    elsewhere = notes(tmp_path / "2", SPAWNS.format(address="10.0.0.1"))
    assert elsewhere.endswith("has its processes meet at 10.0.0.1: that must be an address of their host")


def test_who_defines_no_flag_for_addresses_gets_none(tmp_path: Path) -> None:
    names = ("string('task_type', '', '')", "integer('task_index', 0, '')")
    define = "from absl import flags\n" + "".join(f"flags.DEFINE_{name}\n" for name in names)
    job = fit(tmp_path / "1", define + SERVER)
    assert {name: flag for name, flag in (job.flags or {}).items() if flag} == {
        "job_name": "task_type",
        "task_index": "task_index",
    }
    assert "the program gets --task_type and --task_index alone" in job.choices[0]
    with_hosts = define + "flags.DEFINE_list('worker_hosts', '', '')\n" + SERVER
    assert (fit(tmp_path / "2", with_hosts).flags or {})["worker_hosts"] == "worker_hosts"
    unread = "import secret_sauce\n" + define + SERVER  # it may define the others
    assert fit(tmp_path / "3", unread).flags == FLAGS


def test_contrib_learn_is_told_by_tf_config(tmp_path: Path) -> None:
    job = fit(tmp_path, "import tensorflow as tf\nconfig = tf.contrib.learn.RunConfig()\n")
    assert (job.flags, job.role(PS).count, job.role(WORKER).count) == (None, None, None)
    assert "uses tf.contrib.learn.RunConfig" in job.choices[0]


def test_a_script_that_hands_no_arguments_on(tmp_path: Path) -> None:
    def of(text: str, **job: Any) -> JobSpec:
        (tmp_path / "run.sh").write_text(text)
        program = find_program("run.sh", False, tmp_path)
        return fitted(JobSpec(program.argv, **job), program)

    keeps = of("# $@ is not handed on\nexport TF_CONFIG='{}'\npython train.py\n")
    assert keeps.flags is None
    assert 'run.sh hands no arguments on (no "$@" is in it)' in keeps.choices[0]
    assert "run.sh:2 sets TF_CONFIG itself" in keeps.notes[0]
    assert 'write "$@" after the program in it' in of("python train.py\n", args=("--epochs", "3")).notes[0]
    for text in ('python train.py "$@"\n', "python train.py $1\n", ". ./settings\npython train.py\n"):
        assert (of(text).flags, of(text).notes) == (FLAGS, ())


@pytest.mark.parametrize(
    ("args", "text", "told"),
    [
        (
            "--epochs 3 --workers 2 --dry-run",
            "--epochs",
            "--workers 2 --dry-run stand behind --, so t.py gets them; ",
        ),
        ("--gpus-per-worker=2", "--epochs", "--gpus-per-worker=2 stands behind --, so t.py gets it; "),
        ("--workers 2", "--workers", ""),
        ("--workers 2 --dry-run", "--workers", ""),  # it has options of such names
        ("--dry-run", "--dry_run", ""),
        ("--epochs 3 worker", "--lr", ""),
        ("--workers 2", "$@", ""),  # a shell's: what it starts may know them
    ],
)
def test_options_of_tflaunch_behind_the_dashes_are_told(
    tmp_path: Path, args: str, text: str, told: str
) -> None:
    name = "t.sh" if text == "$@" else "t.py"
    shell, python = (
        f'exec prog "{text}"\n',
        f"import argparse\nargparse.ArgumentParser().add_argument('{text}')\n",
    )
    (tmp_path / name).write_text(shell if name == "t.sh" else python)
    program = find_program(name, False, tmp_path)
    notes = fitted(JobSpec(program.argv, args=tuple(args.split())), program).notes
    assert [note.startswith(told) for note in notes] == [True] * bool(told)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_our_own_examples_are_told_nothing(path: Path) -> None:
    program = find_program(path.name, False, path.parent)
    assert fitted(JobSpec(program.argv), program).notes == ()
