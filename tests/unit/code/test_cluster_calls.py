"""Whether a program takes the cluster flags and has ps, by its text: small versions of the trainers that are met."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.code import grow
from tests.support.planned import facts, plan, some_gpus
from tflaunch.code.imports import modules
from tflaunch.code.job_fitting import fitted
from tflaunch.code.program import find_program
from tflaunch.code.program_reading import faults
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol.job import CHIEF, FLAGS, PS, WORKER, JobSpec, Role

EXAMPLES = ROOT / "examples"

ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
"""

MIRRORED = """
import json, os, sys
import numpy as np
import tensorflow as tf
import mnist_setup

def parse(argv):
    import argparse
    parser = argparse.ArgumentParser(description="trains on many machines, 30 fps and 10 steps")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--per-worker-batch", "-b", type=int)
    return parser.parse_args(argv)

def _is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)

def write_filepath(path, task_type, task_id):
    return path if _is_chief(task_type, task_id) else path + "/workertemp_" + str(task_id)

def main(argv):
    args = parse(argv)
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    task_index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = mnist_setup.build()
    model.fit(mnist_setup.data(workers), epochs=args.epochs)
    resolver = strategy.cluster_resolver
    model.save(write_filepath("/tmp/keras-model", resolver.task_type, resolver.task_id))
    if len(sys.argv) > 3:
        print(task_index)

if __name__ == "__main__":
    main(sys.argv[1:])
"""
SETUP = "import tensorflow as tf\ndef build():\n    return tf.keras.Sequential()\n"

COORDINATOR = (
    ARGPARSE
    + """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, start=True)
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
"""
)

ESTIMATOR = (
    ARGPARSE
    + """
import tensorflow as tf
estimator = tf.estimator.DNNClassifier([], config=tf.estimator.RunConfig(save_summary_steps=10))
tf.estimator.train_and_evaluate(estimator, None, None)
"""
)

CLASSIC = """
import tensorflow as tf
flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "hosts")
flags.DEFINE_string("worker_hosts", "", "hosts")
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "index")
FLAGS = flags.FLAGS
def main(_):
    tf.train.Server(tf.train.ClusterSpec({}), job_name=FLAGS.job_name, task_index=FLAGS.task_index)
if __name__ == "__main__":
    tf.app.run()
"""

ABSL = """
import os
from absl import app, flags
import tensorflow as tf
flags.DEFINE_integer("epochs", 3, "how many")
FLAGS = flags.FLAGS
def main(argv):
    del argv
    print(os.environ.get("TF_CONFIG"))
app.run(main)
"""

PLAIN = "import tensorflow as tf\nmodel = tf.keras.Sequential()\nmodel.fit(None)\n"

TORCH = (
    ARGPARSE
    + """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(None)
"""
)
JAX = ARGPARSE + "import jax\njax.distributed.initialize()\n"

READS = 'import json, os\nwho = json.loads(os.environ["TF_CONFIG"])\n'


def fit(
    tmp_path: Path,
    files: str | dict[str, str],
    *,
    target: str = "trainer.py",
    module: bool = False,
    code_dir: Path | None = None,
    **job: Any,
) -> JobSpec:
    """What becomes of a job whose program is `target` of these files."""
    how = {name: job.pop(name, False) for name in ("anyway", "done_said", "counted")}
    made = {"trainer.py": files} if isinstance(files, str) else files
    home = grow(tmp_path / "code", {name: textwrap.dedent(text) for name, text in made.items()})
    program = find_program(target, module, home, code_dir)
    return fitted(JobSpec(program.argv, **job), program, **how)


def chosen(job: JobSpec) -> tuple[bool, bool]:
    """(whether flags are passed, whether there are ps unasked)."""
    return job.flags is not None, job.role(PS).count is None


# name -> files, whether flags are passed, whether there are ps unasked
TRAINERS: dict[str, tuple[str | dict[str, str], bool, bool]] = {
    "Keras on many machines, with argparse and a module": (
        {"trainer.py": MIRRORED, "mnist_setup.py": SETUP},
        False,
        False,
    ),
    "the older name of its strategy": (
        "import tensorflow as tf\ns = tf.distribute.experimental.CollectiveAllReduceStrategy()\n",
        False,
        False,
    ),
    "ParameterServerStrategy with a coordinator": (COORDINATOR, False, True),
    "tf.estimator": (ESTIMATOR, False, True),
    "tf.estimator by its parts": (
        "from tensorflow.estimator import train_and_evaluate\ntrain_and_evaluate()\n",
        False,
        True,
    ),
    "MirroredStrategy, for one machine": (
        ARGPARSE + "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n",
        False,
        False,
    ),
    "absl without them": (ABSL, False, True),
    "click": (
        READS + "import click\n@click.command()\n@click.option('--epochs')\ndef main(epochs): ...\n",
        False,
        True,
    ),
    "fire": (READS + "import fire\ndef main(epochs=3): ...\nfire.Fire(main)\n", False, True),
    "getopt": (READS + "import getopt, sys\ngetopt.getopt(sys.argv[1:], 'e:', ['epochs='])\n", False, True),
    "one word of sys.argv": (READS + "import sys\nepochs = int(sys.argv[1])\n", False, True),
    "no arguments at all": (READS, False, True),
    "TF_CONFIG in a module of a package, by relative imports": (
        {
            "trainer.py": ARGPARSE + "from lib.run import main\nmain()\n",
            "lib/__init__.py": "",
            "lib/run.py": "from .deep import who\nfrom . import other\ndef main(): ...\n",
            "lib/other.py": "",
            "lib/deep/__init__.py": "from .config import *\n",
            "lib/deep/config.py": READS,
        },
        False,
        True,
    ),
    "PyTorch": (TORCH, False, False),
    "PyTorch with a package that is not read here": (TORCH + "import somebodys_models\n", False, False),
    "JAX": (JAX, False, False),
    "a launcher's variables": (READS + "rank = os.environ['RANK']\n", False, False),
    # as they are for the classic trainers
    "tf.app.flags": (CLASSIC, True, True),
    "argparse with dashes": (
        READS + ARGPARSE.replace('"--epochs"', '"--ps-hosts"') + "import tensorflow\n",
        True,
        True,
    ),
    "TF_CONFIG made of flags": (
        MIRRORED.replace('"--epochs"', '"--worker_hosts"').replace("import mnist_setup", ""),
        True,
        False,
    ),
    "flags in a module with another name, imported with a star": (
        {
            "trainer.py": READS + "from settings import *\nprint(FLAGS)\n",
            "settings.py": "from absl import flags\nflags.DEFINE_list('ps_hosts', [], '')\nFLAGS = flags.FLAGS\n",
        },
        True,
        True,
    ),
    "flags in a package's package": (
        {
            "trainer.py": READS + "from lib.run import main\n",
            "lib/__init__.py": "",
            "lib/run.py": "from .deep import flags\n",
            "lib/deep/__init__.py": "",
            "lib/deep/flags.py": "import argparse\nargparse.ArgumentParser().add_argument('--task_index')\n",
        },
        True,
        True,
    ),
    "an attribute of what a parser has made": (
        READS + "def main(args):\n    print(args.task_index)\n",
        True,
        True,
    ),
    "flags named by f-strings": (
        READS + ARGPARSE + "for job in ('a', 'b'):\n    parser.add_argument(f'--{job}_hosts')\n",
        True,
        True,
    ),
    "flags named in a loop": (
        READS + "from absl import flags\nfor name in dir():\n    flags.DEFINE_string(name, '', '')\n",
        True,
        True,
    ),
    "flags made of the fields of a class": (
        READS
        + ARGPARSE
        + "class Config:\n    epochs = 3\nfor name in vars(Config):\n    parser.add_argument('--' + name)\n",
        True,
        True,
    ),
    "options of a configuration, taken from sys.argv": (
        READS + "import sys\nconfig = dict(word.lstrip('-').split('=') for word in sys.argv[1:])\n",
        True,
        True,
    ),
    "a configuration that is run": (READS + "exec(open('configurator.py').read())\n", True, True),
    "a configuration that is loaded by its path": (
        READS + "import importlib.util\nspec = importlib.util.spec_from_file_location('c', 'conf/c.py')\n",
        True,
        True,
    ),
    "sys by another name": (READS + "import sys as system\nrest = system.argv[1:]\n", True, True),
    "the command of another program": (
        READS + "import subprocess, sys\nsubprocess.run(['python', 'real.py', *sys.orig_argv[2:]])\n",
        True,
        True,
    ),
    "add_argument by another name": (
        READS + ARGPARSE + "add = parser.add_argument\nfor name in open('names'):\n    add('--' + name)\n",
        True,
        True,
    ),
    "absl's DEFINE of whatever kind": (
        READS + "from absl import flags\ngetattr(flags, 'DEFINE_string')(name, '', '')\n",
        True,
        True,
    ),
    "fire with options of any name": (
        READS + "import fire\ndef main(**options): ...\nfire.Fire(main)\n",
        True,
        True,
    ),
    "fire with them": (READS + "import fire\ndef main(task_index=0): ...\nfire.Fire(main)\n", True, True),
    "fields of a class": (READS + "import typer\nclass Config:\n    task_index: int = 0\n", True, True),
    "parse_known_args": (READS + ARGPARSE.replace("parse_args", "parse_known_args"), True, True),
    "tf.app.run, which takes whatever there is": (
        READS + "import tensorflow as tf\ntf.compat.v1.app.run()\n",
        True,
        True,
    ),
    "tf.app.run by another name": (
        READS + "from tensorflow.python.platform import app\napp.run()\n",
        True,
        True,
    ),
    "click that lets all pass": (
        READS
        + "import click\n@click.command(context_settings={'ignore_unknown_options': True})\ndef main(): ...\n",
        True,
        True,
    ),
    "a package that is not here": (READS + "from official.utils.flags import core\n", True, True),
    "hydra": (READS + "import hydra\n@hydra.main()\ndef main(config): ...\n", True, True),
    "gin": (READS + "import gin\n", True, True),
    "docopt": (READS + '"""Usage: trainer [--ps_hosts=X]"""\n', True, True),
    "a module whose name is made up": (
        READS + "import importlib, sys\nimportlib.import_module(f'models.{who}')\n",
        True,
        True,
    ),
    "Python 2": (READS + "print 'hello'\n", True, True),
    "a module in C": ({"trainer.py": READS + "import fast\n", "fast.so": "ELF"}, True, True),
    "Keras as it comes": (PLAIN, False, False),
    "no TensorFlow": ("print('hello')\n", True, True),
    "a choice of strategies": (
        MIRRORED.replace("import mnist_setup", "")
        + "\ndef other():\n    return tf.distribute.ParameterServerStrategy(None)\n",
        False,
        True,
    ),
    "MultiWorkerMirroredStrategy that looks whether it is a ps": (
        MIRRORED.replace("import mnist_setup", "") + "\nif 'ps' == who:\n    pass\n",
        False,
        True,
    ),
    # Its parser would end it at the first flag; its strategy, at the first ps.
    "MultiWorkerMirroredStrategy, argparse, and a package that is not here": (
        MIRRORED.replace("import mnist_setup", "import mnist_setup, secret_sauce"),
        False,
        False,
    ),
    "MultiWorkerMirroredStrategy and a package that is not here": (
        "import retrying\nimport tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n",
        True,
        False,
    ),
    "tf.estimator with argparse, started by tf.app.run": (ESTIMATOR + "tf.app.run(main)\n", False, True),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_trainers(tmp_path: Path, name: str) -> None:
    files, flags, ps = TRAINERS[name]
    assert chosen(fit(tmp_path, files)) == (flags, ps)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("async_ps.py", (True, True)),
        ("sync_replicas.py", (True, True)),
        ("batch_inference.py", (False, True)),
        ("in_graph.py", (False, True)),
        ("model_parallel.py", (False, True)),
        ("sharded_input.py", (False, True)),
        ("parameter_server_strategy.py", (False, True)),
        ("multi_worker_mirrored.py", (False, False)),
        ("on_hdfs.py", (False, False)),
        ("evaluator.py", (False, False)),
        ("hyperparameters.py", (False, False)),
        ("torch_ddp.py", (False, False)),
        ("jax_data_parallel.py", (False, False)),
    ],
)
def test_our_own_examples(name: str, expected: tuple[bool, bool]) -> None:
    program = find_program(name, False, EXAMPLES)
    assert chosen(fitted(JobSpec(program.argv), program)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.distributed as dist\ndist.init_process_group()\n", "torch"),
        ("import os\nrank = os.environ['RANK']\n", "torch"),
        ("import os, ours\nrank = os.environ['RANK']\n", "auto"),
        ("import ours, torch.distributed\nrank = os.environ['RANK']\n", "torch"),
        ("import jax\njax.distributed.initialize()\n", "jax"),
        ("from jax.distributed import initialize\ninitialize()\n", "jax"),
        ("from torch.distributed import get_rank\nprint(get_rank())\n", "torch"),
        ("from torch.distributed.elastic import multiprocessing\n", "torch"),
        ("from . import distributed\nfrom .distributed import initialize\n", "auto"),
        ("import jax, torch.distributed\njax.distributed.initialize()\n", "auto"),
        ("import os, torch.distributed\nprint(os.environ['TF_CONFIG'])\n", "auto"),
        ("import torch.distributed\nimport tensorflow as tf\ntf.distribute.Server({})\n", "auto"),
        ("import torch\n", "auto"),
    ],
)
def test_who_starts_a_program_is_found_in_its_text(tmp_path: Path, text: str, expected: str) -> None:
    assert fit(tmp_path, text).framework == expected
    assert fit(tmp_path, text, framework="tensorflow").framework == "tensorflow"


def test_the_plan_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    job = fit(tmp_path, {"trainer.py": MIRRORED, "mnist_setup.py": SETUP})
    planned = plan(job, facts("g1"), facts("g2"))
    assert [str(task.id) for task in planned.tasks] == ["worker/0", "worker/1"]
    assert planned.tasks[0].argv == ("python3", "trainer.py")
    line = next(n for n, text in enumerate(MIRRORED.split("\n"), 1) if "Strategy()" in text)
    uses = f"trainer.py:{line} uses MultiWorkerMirroredStrategy"
    assert planned.to_json()["choices"] == [
        f"the program gets no cluster flags: {uses}, and none is in its text; to pass them, add --flags",
        f"no ps is started: {uses}, which needs none; to start one, add --ps 1",
    ]


def test_the_plan_says_where_nccl_could_move_the_gradients(tmp_path: Path) -> None:
    both = facts("g1", some_gpus("g1", 1)), facts("g2", some_gpus("g2", 1))
    program = "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy({})\n"
    asks = "tf.distribute.experimental.CommunicationImplementation"

    def notes(name: str, argument: str, *hosts: HostFacts, more: str = "") -> list[str]:
        job = fit(tmp_path / name, program.format(argument) + more)
        return [note for note in plan(job, *hosts).notes if "trainer.py" in note]

    [unasked] = notes("auto", "", *both)
    assert unasked.startswith(
        "trainer.py:2 uses MultiWorkerMirroredStrategy, which moves gradients by gRPC unless"
    )
    assert f"implementation={asks}.NCCL" in unasked
    [lacking] = notes("nccl", asks + ".NCCL", facts("c1"), facts("c2"))
    assert lacking == (
        "trainer.py:2 uses NCCL, and worker/0, worker/1 have no GPUs: there CommunicationImplementation.RING is needed"
    )
    assert notes("nccl", asks + ".NCCL", *both) == []
    assert notes("ring", asks + ".RING", *both) == []
    assert notes("bare", "", facts("c1"), facts("c2")) == []
    assert notes("alone", "", both[0]) == []
    assert notes("doubt", "", *both, more="import official.vision\n") == []


def test_in_doubt_the_plan_says_why_nothing_is_left_out(tmp_path: Path) -> None:
    assert fit(tmp_path / "1", READS + "\nimport official.vision\n").choices == (
        "the program gets the cluster flags and TF_CONFIG: trainer.py:2 reads TF_CONFIG, but trainer.py:4 imports "
        "official.vision, which is not read here; if it takes no flags, add --no-flags",
    )
    both = "import tensorflow as tf\na = tf.distribute.MultiWorkerMirroredStrategy\nif ps: ...\n"
    assert fit(tmp_path / "2", both).choices[1:] == (
        "ps are started: trainer.py:3 has ps, though trainer.py:2 uses MultiWorkerMirroredStrategy; "
        "if it needs none, add --ps 0",
    )
    assert fit(tmp_path / "3", CLASSIC).choices == ()


def test_who_says_what_is_wanted_is_obeyed(tmp_path: Path) -> None:
    files = {"trainer.py": MIRRORED, "mnist_setup.py": SETUP}
    assert chosen(fit(tmp_path, files, anyway=True)) == (True, False)
    for said in (Role(2), Role(hosts="g1"), Role(0)):
        job = fit(tmp_path, files, roles={PS: said, WORKER: Role()})
        assert job.role(PS) == said
        assert len(job.choices) == 1
    assert chosen(fit(tmp_path, files, roles={PS: Role(), WORKER: Role(2)})) == (False, False)
    none = fit(tmp_path, files, flags=None, roles={PS: Role(0)})
    assert (none.flags, none.choices) == (None, ())


def test_flags_by_other_names_are_known_too(tmp_path: Path) -> None:
    text = READS + ARGPARSE.replace("--epochs", "--my-rank")
    assert chosen(fit(tmp_path, text, flags={"task_index": "my_rank"}))[0]
    assert not chosen(fit(tmp_path, text))[0]
    own = READS + ARGPARSE.replace("--epochs", "--feeders")
    assert chosen(fit(tmp_path, own, flags={"feeder_hosts": "feeders"}, roles={"feeder": Role(1)}))[0]


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        (PLAIN, "trainer.py reads neither the cluster flags nor TF_CONFIG"),
        (
            PLAIN + "tf.distribute.MirroredStrategy()\n",
            "trainer.py reads neither the cluster flags nor TF_CONFIG, and trainer.py:4 uses MirroredStrategy, "
            "for the GPUs of one machine",
        ),
        ("import torch\n", "trainer.py reads neither the cluster flags nor TF_CONFIG"),
        (TORCH, ""),
        (JAX, ""),
        ("import horovod.tensorflow as hvd\nimport tensorflow\nhvd.init()\n", ""),
        (PLAIN + "import os\nrank = os.environ['SLURM_PROCID']\n", ""),
        (PLAIN + "tf.train.ClusterSpec({})\n", ""),
        (PLAIN + "import ours_elsewhere\n", ""),
        (PLAIN + READS, ""),
        (CLASSIC, ""),
        ("print('nothing is trained')\n", ""),
    ],
)
def test_who_knows_nothing_of_others_trains_alone(tmp_path: Path, text: str, alone: str) -> None:
    job = fit(tmp_path, text, roles={WORKER: Role(2)})
    assert job.alone == alone
    several = plan(job, facts("g1"), facts("g2")).notes[len(job.notes) :]
    words = "--workers 1 --ps 0" + (" --gpus-per-worker all" if "MirroredStrategy" in alone else "")
    words += "" if job.flags is None else " --no-flags"
    told = f"each of 2 workers, and each ps, trains alone: {alone}; to start only one, add {words}"
    assert several == ((told,) if alone else ())
    one = fit(tmp_path, text, roles={WORKER: Role(1)})
    assert plan(one, facts("g1")).notes == one.notes


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "import torch\nmodel = torch.nn.Linear(1, 1)\n",
        PLAIN + ARGPARSE,
        "import numpy as np\nprint(np.ones(3))\n",
        "from sklearn.linear_model import SGDClassifier\nSGDClassifier().fit(None, None)\n",
        # As in the examples of Flax and of Opacus.
        "from absl import app\nfrom clu import platform\nimport jax\nfrom ml_collections import config_flags\n"
        "import orbax.checkpoint\nconfig_flags.DEFINE_config_file('config')\napp.run(print)\n",
        ARGPARSE + "import torch\nfrom opacus import PrivacyEngine\nfrom torchvision import datasets\n",
    ],
)
def test_who_knows_nothing_of_others_is_one_task_unless_the_user_says_how_many(
    tmp_path: Path, text: str
) -> None:
    gpus = [facts(name, some_gpus(name, 4)) for name in ("g1", "g2")]
    for said in ({}, {"roles": {WORKER: Role(gpus=1, hosts="g2")}}, {"env": {"OUT": "/data/{run}"}}):
        job = fit(tmp_path, text, **said)
        planned = plan(job, *gpus)
        assert [(str(task.id), len(task.gpus)) for task in planned.tasks] == [("worker/0", 1)]
        assert planned.tasks[0].argv[1:] == ("trainer.py",)
        assert planned.choices == (
            "one task: trainer.py reads neither cluster flags nor TF_CONFIG, and uses no strategy; "
            "--workers N starts N that know nothing of each other",
        )
    for asked in (
        {"roles": {WORKER: Role(2)}},
        {"roles": {PS: Role(1)}},
        {"roles": {"data": Role(1)}},
        {"framework": "torch"},
        {"anyway": True},
        {"counted": True},
        # What tells the tasks apart.
        {"roles": {WORKER: Role(args=("--shard={index}",))}},
        {"roles": {WORKER: Role(env={"SHARD": "{rank}"})}},
        {"file_args": ("--peers={worker_hosts}",)},
        {"env": {"SHARDS": "{world_size}"}},
    ):
        assert not any(choice.startswith("one task") for choice in fit(tmp_path, text, **asked).choices)
    for more in (READS, "import ours_elsewhere\n"):
        assert fit(tmp_path, text + more).role(WORKER).count is None


def test_a_strategy_of_one_machine_is_one_task_with_all_gpus_of_a_host(tmp_path: Path) -> None:
    text = "import tensorflow as tf\ns = tf.distribute.{}()\n"
    gpus = [facts(name, some_gpus(name, 4)) for name in ("g1", "g2")]
    mirrored = fit(tmp_path / "1", text.format("MirroredStrategy"))
    assert plan(mirrored, *gpus).choices == (
        "one task, with all free GPUs of its host: trainer.py:2 uses MirroredStrategy, for the GPUs of one machine; "
        "--workers N starts N that know nothing of each other",
    )
    two = {"roles": {WORKER: Role(gpus=2)}}
    for job, expected in (
        (mirrored, 4),
        (fit(tmp_path / "2", text.format("MirroredStrategy"), **two), 2),
        (fit(tmp_path / "3", text.format("OneDeviceStrategy")), 1),
    ):
        [task] = plan(job, *gpus).tasks
        assert len(task.gpus) == expected
    assert [str(task.id) for task in plan(mirrored, facts("g1"), facts("g2")).tasks] == [
        "worker/0"
    ]  # on CPUs, too


IN_PROCESS = """
import os, portpicker
import tensorflow as tf
cluster = tf.train.ClusterSpec({"worker": ["localhost:1"], "ps": ["localhost:2"]})
for job in ("worker", "ps"):
    tf.distribute.Server(cluster, job_name=job, task_index=0)
os.environ["GRPC_FAIL_FAST"] = "use_caller"
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
"""


def test_a_program_that_starts_its_whole_cluster_itself_is_one_task(tmp_path: Path) -> None:
    why = "trainer.py:8 uses SimpleClusterResolver, with all servers in one process"
    job = fit(tmp_path / "1", IN_PROCESS)
    assert [str(task.id) for task in plan(job, facts("g1"), facts("g2")).tasks] == ["worker/0"]
    assert job.choices == (f"one task: {why}; --workers N starts N that know nothing of each other",)
    assert fit(tmp_path / "2", IN_PROCESS, roles={WORKER: Role(2)}).alone == why
    for n, told in enumerate(("rank = os.environ['MY_RANK']", "import hidden_one", ARGPARSE, READS)):
        assert not fit(tmp_path / f"told-{n}", IN_PROCESS + told + "\n").alone


def test_a_program_that_spawns_the_processes_of_one_machine_is_one_task_with_all_its_gpus(
    tmp_path: Path,
) -> None:
    spawns = "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=torch.cuda.device_count())\n"
    text = TORCH + "import os\ndef setup(rank):\n    os.environ['MASTER_ADDR'] = 'localhost'\n" + spawns
    job = fit(tmp_path / "1", text)
    [task] = plan(job, facts("g1", some_gpus("g1", 4)), facts("g2", some_gpus("g2", 4))).tasks
    assert (len(task.gpus), job.framework) == (4, "torch")
    [choice] = job.choices
    assert (
        "starts its processes itself (mp.spawn), and trainer.py:13 sets MASTER_ADDR itself; --workers N"
        in choice
    )
    for other in (TORCH + spawns, text.replace("'localhost'", "find_it()")):
        assert fit(tmp_path / str(len(other)), other).role(WORKER).count is None


# ---- a coordinator


def chief_of(job: JobSpec) -> tuple[int | None, Any, str]:
    return job.role(CHIEF).count, job.role(CHIEF).gpus, job.done


def test_a_program_with_a_coordinator_gets_a_chief_that_ends_the_run(tmp_path: Path) -> None:
    two = {PS: Role(2), WORKER: Role(2)}
    job = fit(tmp_path / "1", COORDINATOR, roles=two)
    assert chief_of(job) == (1, 0, "chief")
    line = next(
        n for n, text in enumerate(COORDINATOR.split("\n"), 1) if " = tf.distribute.Parameter" in text
    )
    uses = f"trainer.py:{line} uses ParameterServerStrategy, and one task, the chief, must give the others their work"
    assert job.choices[-2:] == (
        f"a chief is started, without GPUs: {uses}; to start none, add --job chief=0",
        "the run ends when the chief is done; to wait for the workers, too, add --done workers",
    )
    planned = plan(job, facts("g1"), facts("g2"))
    assert {"chief/0", "ps/1", "worker/1"} <= {str(task.id) for task in planned.tasks}
    assert chief_of(fit(tmp_path / "2", COORDINATOR, roles=two, done_said=True)) == (1, 0, "workers")
    mine = {**two, CHIEF: Role(1)}
    assert chief_of(fit(tmp_path / "3", COORDINATOR, roles=mine)) == (1, None, "chief")
    assert chief_of(fit(tmp_path / "4", COORDINATOR)) == (1, 0, "chief")
    keras = COORDINATOR.replace("coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)", "")
    assert chief_of(fit(tmp_path / "5", keras, roles=two)) == (1, 0, "chief")


def test_an_estimator_gets_a_chief_that_trains(tmp_path: Path) -> None:
    job = fit(tmp_path / "1", ESTIMATOR)
    gpus = [facts(name, some_gpus(name, 2)) for name in ("g1", "g2")]
    planned = plan(job, *gpus)
    assert {str(task.id): len(task.gpus) for task in planned.tasks if task.id.job != PS} == {
        "chief/0": 1,
        "worker/0": 1,
        "worker/1": 1,
        "worker/2": 1,
    }
    line = next(n for n, text in enumerate(ESTIMATOR.split("\n"), 1) if ".train_and_evaluate" in text)
    assert planned.choices[-1] == (
        f"a chief is started, which trains as a worker does: trainer.py:{line} uses "
        "tf.estimator.train_and_evaluate, which refuses a cluster without one; to start none, add --job chief=0"
    )
    assert job.done == "workers"
    for n, said in enumerate(({CHIEF: Role(0)}, {"master": Role(1)})):
        assert not fit(tmp_path / f"said-{n}", ESTIMATOR, roles=said).count(CHIEF)


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (COORDINATOR, {PS: Role(0)}),
        (COORDINATOR, {CHIEF: Role(0)}),
        (COORDINATOR, {"coordinator": Role(1)}),
        (COORDINATOR.replace("--epochs", "--ps_hosts"), {PS: Role(1)}),
        (COORDINATOR.replace("TFConfigClusterResolver", "SimpleClusterResolver"), {PS: Role(1)}),
        (COORDINATOR + "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n", {}),
        (
            "import tensorflow as tf\ns = tf.compat.v1.distribute.experimental.ParameterServerStrategy(None)\n"
            "print('TF_CONFIG')\n",
            {PS: Role(1)},
        ),
        (ESTIMATOR + "s = tf.distribute.experimental.ParameterServerStrategy()\n", {PS: Role(1)}),
    ],
)
def test_no_chief_is_added_where_the_program_may_do_without(
    tmp_path: Path, text: str, roles: dict[str, Role]
) -> None:
    job = fit(tmp_path, text, roles=roles)
    assert not job.role(CHIEF).count
    assert job.done == "workers"


# ---- flags by other names


def defining(*names: str) -> str:
    lines = "".join(f"parser.add_argument({name!r})\n" for name in names)
    return ARGPARSE.replace('parser.add_argument("--epochs", type=int, default=3)\n', lines)


SHORT = {"ps_hosts": "ps", "worker_hosts": "workers", "job_name": "job", "task_index": "task_id"}
ABSL_SHORT = """
from absl import app, flags
flags.DEFINE_list("ps", [], "hosts")
flags.DEFINE_list("workers", [], "hosts")
flags.DEFINE_string("job", "", "ps or worker")
flags.DEFINE_integer("task_id", 0, "index")
"""
CLICK_SHORT = """
import click
@click.command()
@click.option("--ps", default="")
@click.option("--workers", default="")
@click.option("--job", type=click.Choice(["ps", "worker"]))
@click.option("--task_id", type=int)
def main(ps, workers, job, task_id): ...
"""


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            defining("--ps_hosts", "--worker_hosts", "--job_name", "--task_id"),
            {"task_index": "task_id"},
        ),
        (
            defining("--ps_host", "--worker_host", "--job", "--replica_id"),
            {
                "ps_hosts": "ps_host",
                "worker_hosts": "worker_host",
                "job_name": "job",
                "task_index": "replica_id",
            },
        ),
        (
            defining("--ps-hosts", "--worker-hosts", "--job-name", "--task-index"),
            {
                "ps_hosts": "ps-hosts",
                "worker_hosts": "worker-hosts",
                "job_name": "job-name",
                "task_index": "task-index",
            },
        ),
        (CLASSIC.replace("task_index", "worker_index"), {"task_index": "worker_index"}),
        (defining("--ps", "--workers", "--job", "--task_id"), SHORT),
        (ABSL_SHORT, SHORT),
        (CLICK_SHORT, SHORT),
        (defining("--ps", "--job", "--task_id").replace("'--ps'", "'--ps', action='store_true'"), {}),
        (defining("--ps", "--job").replace("'--ps'", "'--ps', nargs='+'"), {}),
        (CLASSIC, {}),
        (defining("--ps_hosts", "--worker_hosts", "--job_name", "--task_index", "--task"), {}),
        (defining("--task", "--job"), {}),  # of a task of another kind
        (defining("--worker_hosts", "--model"), {}),
    ],
)
def test_flags_have_the_names_that_the_program_defines(
    tmp_path: Path, text: str, changed: dict[str, str]
) -> None:
    job = fit(tmp_path, text)
    assert job.flags == {**FLAGS, **changed}
    told = " ".join(each for each in job.choices if "flags have the names" in each)
    assert all(f"--{theirs} in place of --{ours} (trainer.py:" in told for ours, theirs in changed.items())


@pytest.mark.parametrize("how", ["type=int", "default=2"])
def test_a_program_that_wants_numbers_of_tasks_is_told_how_to_get_them(tmp_path: Path, how: str) -> None:
    text = defining("--ps", "--workers", "--job", "--task_id")
    for name in ("--ps", "--workers"):
        text = text.replace(f"{name!r}", f"{name!r}, {how}")
    job = fit(tmp_path, text)
    assert job.flags == FLAGS
    who = "--job={job} --task_id={index}"
    assert job.choices == (
        "trainer.py:4 defines --ps and --workers as numbers, and the flags of tflaunch are lists of addresses; for "
        f"this program, add --no-flags --job-args 'ps={who}' --job-args 'worker={who}' -- --ps=N --workers=N",
    )


def test_names_that_the_user_gives_win(tmp_path: Path) -> None:
    text = defining("--ps_host", "--worker_hosts", "--job_name", "--task_id")
    mine = {**FLAGS, "task_index": "mine"}
    assert fit(tmp_path / "1", text, flags=mine).flags == {**mine, "ps_hosts": "ps_host"}
    both = {**FLAGS, "task": "job"}
    assert fit(tmp_path / "2", text, flags=both).flags == {**both, "ps_hosts": "ps_host"}


NOT_SEEN = (
    "so the program does not see the {0} that tflaunch gives each task; to use that one, take the line out"
)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "import os\nos.environ['TF_CONFIG'] = '{}'\n",
            "trainer.py:2 sets TF_CONFIG itself, " + NOT_SEEN.format("TF_CONFIG"),
        ),
        (
            "import os\nos.environ['TF_CONFIG'] = '{}'\n" + COORDINATOR,
            "sets TF_CONFIG itself, " + NOT_SEEN.format("TF_CONFIG"),
        ),
        (COORDINATOR + "import os\nos.environ['TF_CONFIG'] = '{}'\n", ""),  # too late
        (
            "import os\ndef f(index):\n    os.environ['TF_CONFIG'] = '{}'\nif __name__ == '__main__':\n    f(1)\n",
            "trainer.py:3 sets TF_CONFIG itself, " + NOT_SEEN.format("TF_CONFIG"),
        ),
        (
            "import os\ndef f():\n    if 'TF_CONFIG' in os.environ:\n        return\n"
            "    os.environ['TF_CONFIG'] = ''\nf()\n",
            "",
        ),
        *(
            (f"import os\n{line}\n", "trainer.py:2 sets TF_CONFIG itself, " + NOT_SEEN.format("TF_CONFIG"))
            for line in (
                "os.environ.update(TF_CONFIG='{}')",
                "os.environ.update({'A': '1', 'TF_CONFIG': '{}'})",
                "os.environ.update(dict(TF_CONFIG='{}'))",
                "os.environ |= {'TF_CONFIG': '{}'}",
                "os.putenv('TF_CONFIG', '{}')",
            )
        ),
        ("import os\nos.environ.setdefault('TF_CONFIG', '{}')\n", ""),
        ("import os\nif not os.environ.get('TF_CONFIG'):\n    os.environ['TF_CONFIG'] = '{}'\n", ""),
        (TORCH + "import os\ndef setup():\n    os.environ['RANK'] = '0'\n", ""),  # perhaps for one process
        (
            TORCH + "import os\nif __name__ == '__main__':\n    os.environ['MASTER_ADDR'] = 'localhost'\n",
            "sets MASTER_ADDR itself, " + NOT_SEEN.format("MASTER_ADDR"),
        ),
        (TORCH + "import os\nif 'RANK' not in os.environ:\n    os.environ['RANK'] = '0'\n", ""),
        (TORCH + "import os\nos.environ['RANK'] = who\n", ""),
        (
            TORCH.replace('"gloo"', '"gloo", rank=0, world_size=1'),
            "passes rank=0 in every task; each has its own in RANK",
        ),
        (TORCH.replace('"gloo"', '"gloo", rank=who, world_size=1'), ""),
        (
            JAX.replace("initialize()", "initialize('h:1', num_processes=2, process_id=0)"),
            "passes process_id=0 in every task; each has its own in JAX_PROCESS_ID",
        ),
        (JAX, ""),
    ],
)
def test_what_the_program_says_itself_in_place_of_tflaunch_is_told(
    tmp_path: Path, text: str, note: str
) -> None:
    notes = fit(tmp_path, text).notes
    assert (len(notes), "".join(notes)[-len(note) or 99 :]) == (bool(note), note)
    alone = fit(tmp_path, text, roles={WORKER: Role(1)}).notes  # a place among one is no other
    assert alone == (notes if "TF_CONFIG" in note else ())


@pytest.mark.parametrize(
    ("files", "target", "module", "said"),
    [
        (
            {"trainer.py": PLAIN, "random.py": ""},
            "trainer.py",
            False,
            "random.py has the name of a module of Python's",
        ),
        (
            {"queue.py": PLAIN},
            "queue.py",
            False,
            "queue.py has the name of a module of Python's own, and hides it",
        ),
        (
            {"src/t.py": PLAIN, "src/queue.py": "", "src/logging/__init__.py": ""},
            "src/t.py",
            False,
            "logging/__init__.py, queue.py have names of modules of Python's own, and hide them from all that the",
        ),
        # Those are not found first, or by no framework.
        ({"src/t.py": PLAIN, "random.py": ""}, "src/t.py", False, ""),
        ({"src/t.py": PLAIN, "src/__init__.py": "", "src/random.py": ""}, "src.t", True, ""),
        ({"trainer.py": PLAIN, "logging/a.log": "", "test.py": "", "os.py": ""}, "trainer.py", False, ""),
        ({"trainer.py": "print(1)\n", "random.py": ""}, "trainer.py", False, ""),
    ],
)
def test_a_file_that_hides_a_module_of_python(
    tmp_path: Path, files: dict[str, str], target: str, module: bool, said: str
) -> None:
    notes = [
        each for each in fit(tmp_path, files, target=target, module=module).notes if "Python's own" in each
    ]
    assert [said in each for each in notes] == [True] * bool(said)


def test_of_a_huge_program_only_a_part_is_read_and_nothing_is_left_out(tmp_path: Path) -> None:
    much = "# " + "much " * 250_000 + "\n"
    files = {
        "trainer.py": READS + "import data, more, never\n",
        "data.py": much,
        "more.py": much,
        "never.py": "(",
    }
    job = fit(tmp_path, files)
    assert job.flags is not None
    assert "but trainer.py is more than is read here; if it takes no flags" in job.choices[0]


def test_a_module_that_is_all_numbers_is_not_parsed(tmp_path: Path) -> None:
    numbers = "import hidden\nX = [" + "1, " * 1_000_000 + "]\n"
    grow(tmp_path, {"trainer.py": "import data\n", "data.py": numbers, "hidden.py": ""})
    found = {module.path: module.tree for module in modules(tmp_path, "trainer.py")}
    assert found.keys() == {"trainer.py", "data.py", "hidden.py"}
    assert found["data.py"] is None


def test_modules_are_looked_for_where_the_program_finds_them(tmp_path: Path) -> None:
    files = {
        "train/trainer.py": READS + "import beside\n",
        "train/beside.py": "import above\n",
        "above.py": "name = 'ps_hosts'\n",
        "pkg/__init__.py": "",
        "pkg/main.py": "from . import who\n",
        "pkg/who.py": READS,
    }
    home = tmp_path / "code"
    assert chosen(fit(tmp_path, files, target="train/trainer.py", code_dir=home))[0]
    assert chosen(fit(tmp_path, files, target="train/trainer.py"))[0]  # `above` is not found: in doubt
    assert not chosen(fit(tmp_path, files, target="pkg.main", module=True))[0]


def test_what_the_python_here_cannot_read_is_told_with_its_place(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "trainer.py": "import old, odd, fine\nfrom os import *\n",
            "old.py": "x = 1\nprint 'hello'\n",
            "odd.py": "\n\nreturn 3\n",
            "fine.py": "",
            "never.py": "(",
        },
    )
    told = list(faults(find_program("trainer.py", False, tmp_path)))
    assert [line.partition(" ")[0] for line in told] == ["old.py:2:", "odd.py:3:"]
    assert "here cannot read it: 'return' outside function" in told[1]


HOROVOD = "import horovod.tensorflow as hvd\nimport tensorflow as tf\nhvd.init()\n"


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        (HOROVOD, "horovod"),
        ("import horovod.torch as hvd\nimport torch\n", "horovod"),
        (HOROVOD + "import os\nattempt = os.environ['TFLAUNCH_ATTEMPT']\n", "horovod"),
        (HOROVOD + "import os\nos.environ['HOROVOD_FUSION_THRESHOLD'] = '0'\n", "horovod"),
        (CLASSIC + HOROVOD, "auto"),  # as tf_cnn_benchmarks, which can do either
        (PLAIN, "auto"),
    ],
)
def test_who_imports_horovod_is_started_by_its_words(tmp_path: Path, text: str, framework: str) -> None:
    job = fit(tmp_path, text)
    assert job.framework == framework
    if framework == "horovod":
        assert (job.flags, job.role("ps").count) == (None, 0)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("model.compile(optimizer='sgd', loss='mse')", True),
        ("model.compile('sgd', 'mse')", True),
        ("self.model.compile(make_optimizer())", True),
        ("build().compile('sgd')", True),
        ("re.compile('x', re.DOTALL)", False),
        ("torch.compile(model)", False),
        ("lowered.compile()", False),
    ],
)
def test_a_compile_of_keras_is_known_by_what_it_is_called_on(tmp_path: Path, call: str, told: bool) -> None:
    strategy = "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n"
    job = fit(tmp_path, f"{strategy}{call}\nmodel.fit(x)\n")
    assert job.keras_fit.startswith("fit under MultiWorkerMirroredStrategy (trainer.py:4)") == told


def test_horovods_keras_is_told_of_keras_3(tmp_path: Path) -> None:
    text = "import tensorflow as tf\nimport horovod.tensorflow.keras as hvd\nhvd.init()\n"
    assert fit(tmp_path, text).keras_fit.startswith(
        "Variable.ref, which horovod.tensorflow.keras calls (trainer.py:2); give the hosts TensorFlow 2.15 or older"
    )
    assert fit(tmp_path, text + "import tf_keras\n").keras_fit == ""
    assert fit(tmp_path, HOROVOD).keras_fit == ""
