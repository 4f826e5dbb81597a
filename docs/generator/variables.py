"""The page of the variables that a task finds in its environment.

Their names come from the code: tasks and a trial are planned as for a run, and every variable that one of them gets
must have its sentence here, and every sentence its variable.
"""

from __future__ import annotations

from generator.markdown import table
from tflaunch.agent.host import processes
from tflaunch.frameworks.table import ALL, AUTO
from tflaunch.hosts import Host
from tflaunch.inputs.variables import DECIDED
from tflaunch.planning.binding import Cores
from tflaunch.planning.inventory import HostFacts, Nic
from tflaunch.planning.networks import nccl_variables
from tflaunch.planning.task_commands import Command
from tflaunch.protocol.job import JobSpec, TaskId
from tflaunch.sweeps.seats import SHARING, own_variables
from tflaunch.sweeps.trials import Trial

_ABOUT = """\
# Variables that a task finds

Beside these, a task has the environment that its host gives to a log-in over SSH, with what `setup:`, `conda:`, `venv:`
and `env:` of the hostfile, `--env` and `--env-file` add to it. Nothing of your own environment reaches it unless you
name it: `--env NAME`.
"""
_OF_A_CLUSTER = {
    "TF_CONFIG": "the cluster spec, and which task this is, as JSON: what TensorFlow's strategies read",
    "CUDA_VISIBLE_DEVICES": "the task's GPUs, as UUIDs; empty for a task without GPUs",
    "CUDA_DEVICE_ORDER": "`PCI_BUS_ID`",
    "TF_GRPC_REUSE_PORT": "`true`: TensorFlow's server joins the port that is held for the task",
    "TFLAUNCH_RUN": "the run's id",
    "TFLAUNCH_TASK": "`worker/3`",
    "TFLAUNCH_HOST": "the name of the host, as the run calls it",
    "TFLAUNCH_ATTEMPT": "0, and one more each time the task starts again",
    "PYTHONUNBUFFERED": "`1`: a task that is killed loses no lines",
    "PYTHONFAULTHANDLER": "`1`: a Python that crashes, or is ended because it hangs, writes its stacks into the log",
    "no_grpc_proxy": "the hosts of the cluster: gRPC uses no proxy between tasks",
    "PYTHONPATH": "begins with a directory of the run, by which `tflaunch stacks` asks Python for its stacks",
}
_OF_BOUND = {
    "OMP_NUM_THREADS": "how many cores it has, or its part of a quota",
    "TF_NUM_INTRAOP_THREADS": "how many CPUs those cores have: with hyperthreads, two each; or its part of a quota",
    "TF_NUM_INTEROP_THREADS": "as `TF_NUM_INTRAOP_THREADS`",
}
_OF_NCCL = {
    "NCCL_SOCKET_IFNAME": "the interface by which the other hosts reach this one, where that is certain: `=ib0`",
    "NCCL_IB_HCA": "its RDMA devices that are like that interface's, where it has others, too: `=mlx5_0,mlx5_1`",
}
_OF_RANKS = {
    "MASTER_ADDR": "the address of rank 0",
    "MASTER_PORT": "the port of rank 0",
    "RANK": "the number of this task: the chief is 0, then come the workers, then jobs of your own that decide the end",
    "WORLD_SIZE": "how many tasks have a rank",
    "LOCAL_RANK": "`0`: a task is a node with one process",
    "LOCAL_WORLD_SIZE": "`1`",
    "GROUP_RANK": "as `RANK`",
    "GROUP_WORLD_SIZE": "as `WORLD_SIZE`",
    "ROLE_RANK": "the index of the task in its job",
    "ROLE_WORLD_SIZE": "how many tasks that job has",
    "GLOO_SOCKET_IFNAME": "the interface by which the other hosts reach this one, where that is certain",
    "JAX_COORDINATOR_ADDRESS": "the address and port of rank 0",
    "JAX_NUM_PROCESSES": "as `WORLD_SIZE`",
    "JAX_PROCESS_ID": "as `RANK`",
}
# Of the frameworks whose tasks meet at a rendezvous: only programs that need it have them.
_OF_THOSE_THAT_MEET = {
    "horovod": {
        "HOROVOD_RANK": "the number of this task: as `RANK`, but the tasks of a host follow each other",
        "HOROVOD_SIZE": "as `WORLD_SIZE`",
        "HOROVOD_LOCAL_RANK": "`0`: a task is a host with one process",
        "HOROVOD_LOCAL_SIZE": "`1`",
        "HOROVOD_CROSS_RANK": "as `HOROVOD_RANK`",
        "HOROVOD_CROSS_SIZE": "as `HOROVOD_SIZE`",
        "HOROVOD_HOSTNAME": "a label of this task's own",
        "HOROVOD_CONTROLLER": "`gloo`",
        "HOROVOD_CPU_OPERATIONS": "`gloo`",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "the address of rank 0, whose agent serves the rendezvous",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "the port of rank 0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "`600`: for the meeting, and for each answer of a peer",
        "HOROVOD_GLOO_IFACE": "as `GLOO_SOCKET_IFNAME`",
    }
}
_OF_A_TRIAL = {
    "TFLAUNCH_TRIAL": "the number of the trial",
    "TFLAUNCH_PARAMS": "its values, as JSON",
    "TF_FORCE_GPU_ALLOW_GROWTH": "`true`, where several trials share a GPU (`--trials-per-gpu`)",
}
# A host with two kinds of RDMA devices.
_TWO_KINDS = HostFacts(
    "gpu01",
    "gpu01",
    "",
    (),
    "3.12",
    64,
    0,
    (),
    nics=(
        Nic("ib0", ("10.2.0.1/16",), 400_000, "mlx5_0", "InfiniBand"),
        Nic("eth1", ("10.3.0.1/16",), 100_000, "mlx5_1", "Ethernet"),
    ),
)


def page() -> str:
    """Return the page; raises LookupError where it and the code differ."""
    task = TaskId("worker", 0)
    cluster = {"worker": ["gpu01:20000"]}

    def found(framework: str) -> set[str]:
        job = JobSpec(("t.py",), framework=framework)
        names = Command(job, cluster, "t-k3f9x2", {"gpu01": "eth0"}).env(task, Host(name="gpu01"), ())
        return {*names, *processes.MARKS, "PYTHONPATH"}

    _compare({**_OF_A_CLUSTER, **_OF_RANKS}, found(AUTO))
    meeting = [each for each in ALL if each.rendezvous]
    for each in meeting:
        _compare({**_OF_A_CLUSTER, **_OF_THOSE_THAT_MEET.get(each.name, {})}, found(each.name))
    _compare(_OF_BOUND, {*Cores(((0,),)).thread_pools})
    _compare(_OF_NCCL, {*nccl_variables(_TWO_KINDS, "ib0")})
    _compare(_OF_A_TRIAL, {*SHARING, *own_variables(Trial(0, {}))})
    *first, last = (each.title for each in ALL if each.by_rank and not each.rendezvous)
    parts = [
        _ABOUT,
        _section("Of every task", _OF_A_CLUSTER),
        "You cannot set "
        + ", ".join(f"`{name}`" for name in sorted(DECIDED))
        + " yourself; what you set of the others wins.\n",
        _section("Of a task that is bound to cores", _OF_BOUND),
        "[The cores beside its GPUs](../gpus.md#the-cores-beside-its-gpus) says which tasks are. Those that the host "
        "itself sets stay.\n",
        _section("Of a task with GPUs, in a run over several hosts", _OF_NCCL),
        "[NCCL and gloo](../network.md#nccl-and-gloo) says more.\n",
        _section(f"For {', '.join(first)} and {last}", _OF_RANKS),
        "Tasks of TensorFlow have them, too, unless you say `--framework tensorflow`. A ps or an evaluator has none.\n",
        *(
            _section(f"For {each.title}", _OF_THOSE_THAT_MEET[each.name])
            + f"\nOnly programs that import {each.title} have them, or those of `--framework {each.name}`.\n"
            for each in meeting
        ),
        _section("Of a trial", _OF_A_TRIAL),
        "A trial belongs to no cluster: it has no `TF_CONFIG`, `TF_GRPC_REUSE_PORT` and `no_grpc_proxy`, and none of "
        "the ranks.\n",
    ]
    return "\n".join(parts)


def _compare(told: dict[str, str], found: set[str]) -> None:
    if differing := told.keys() ^ found:
        raise LookupError(
            "docs/generator/variables.py must say what each variable of a task holds, and of no other one; it differs "
            f"from the code by {', '.join(sorted(differing))}"
        )


def _section(title: str, variables: dict[str, str]) -> str:
    return f"## {title}\n\n" + table(
        ["variable", "holds"], [[f"`{name}`", says] for name, says in variables.items()]
    )
