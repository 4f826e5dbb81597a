"""The plan of a run as data: every task with all that its agent needs, and the cluster that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tflaunch.hosts import Host
from tflaunch.inputs.variables import DECIDED
from tflaunch.planning.binding import UNBOUND, Cores
from tflaunch.planning.environments import setup
from tflaunch.planning.task_commands import endpoint, image
from tflaunch.protocol.job import JobSpec, TaskId

if TYPE_CHECKING:
    from tflaunch.planning.inventory import GpuOrInstance

MASK = "***"  # shown instead of a secret value


@dataclass(frozen=True)
class Placed:
    """A task that has its host and its GPUs."""

    id: TaskId
    host: str
    gpus: tuple[GpuOrInstance, ...] = ()


@dataclass(frozen=True)
class TaskPlan:
    """Everything that an agent needs to start one task; nothing is decided later."""

    id: TaskId
    host: str  # the name in the hostfile
    address: str  # what its peers dial
    port: int | None  # None: it is not part of the cluster, such as an evaluator
    gpus: tuple[str, ...]  # UUIDs of GPUs or of one MIG instance; (): the task sees no GPU
    gpu_labels: tuple[str, ...]  # the same as people see them: "3", or "3.1" for MIG instance 1 of GPU 3
    argv: tuple[str, ...]
    env: Mapping[str, str]  # on top of what the host gives
    setup: tuple[str, ...]
    cwd: str | None  # None: the fresh directory that the shipped code is copied to
    cores: Cores = UNBOUND
    container: str = ""  # the image that it runs in, with `setup`
    mounts: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()  # variables whose placeholders were filled in
    yielding: tuple[str, ...] = ()  # variables that the profile of a login shell may set otherwise
    masked: tuple[str, ...] = ()  # variables whose values are shown as ***
    listens: bool = True  # on its port, if it has one; of PyTorch and JAX only rank 0 does
    # It may open its port with SO_REUSEADDR alone, as PyTorch's store and most servers do.
    shares_port: bool = False
    rendezvous: tuple[str, ...] = ()  # callers whom the agent answers at the task's port, in the task's place

    @property
    def cpus(self) -> str:
        """The CPUs that it is bound to: `0-7,64-71`; "": it may use all."""
        return self.cores.cpus

    @property
    def numactl(self) -> str:
        """The option of numactl that it is started with: `--membind=0`; "": it is started without."""
        return self.cores.numactl

    @property
    def endpoint(self) -> str | None:
        """What its peers dial, as TensorFlow writes it; None: no task dials it."""
        return None if self.port is None else endpoint(self.address, self.port)

    def to_json(self) -> dict[str, Any]:
        """The task as data that another program could start, but for values that are masked."""
        return {
            "task": str(self.id),
            "host": self.host,
            "address": self.address,
            "port": self.port,
            "gpus": list(self.gpus),
            "gpu_labels": list(self.gpu_labels),
            "cpus": self.cpus,
            "numactl": self.numactl,
            "argv": list(self.argv),
            "env": {name: MASK if name in self.masked else value for name, value in self.env.items()},
            "setup": list(self.setup),
            "cwd": self.cwd,
            "container": self.container,
            "mounts": list(self.mounts),
        }

    def to_wire(self) -> dict[str, Any]:
        """The request for its agent."""
        request = {
            "id": str(self.id),
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "setup": list(self.setup),
            "decided": [name for name in DECIDED if name in self.env],
            "port": self.port if self.listens else None,
            "gpus": list(self.gpus),
            "gpu_labels": list(self.gpu_labels),
            "container": self.container and {"image": self.container, "mounts": list(self.mounts)},
        }
        if self.cpus:
            request["cpus"] = self.cpus
        if self.numactl:
            request["numactl"] = self.numactl
        if (self.setup or self.container) and (names := [name for name in self.yielding if name in self.env]):
            request["yielding"] = names
        if self.rendezvous:
            request["rendezvous"] = list(self.rendezvous)
        return {**request, "shares_port": True} if self.shares_port else request


def on_host(host: Host, job: JobSpec) -> dict[str, Any]:
    """The fields of a TaskPlan that every task of that job has on that host, whoever plans it."""
    return {
        "host": host.name,
        "setup": setup(host),
        "cwd": host.workdir,
        "container": image(host, job),
        "mounts": (*host.mounts, *job.mounts),
    }


class Standing(str):
    """A note that is as true of the next run on these hosts, and asks for nothing."""

    __slots__ = ()


@dataclass(frozen=True)
class ClusterPlan:
    """All tasks of a run; `notes` are things the user should know (a mixed plan, ignored proxies)."""

    run_id: str
    tasks: tuple[TaskPlan, ...]  # by job name; each job in the order of its indices
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # what the text of the program has decided, and why
    left_out: Mapping[str, str] = field(default_factory=dict)  # hosts that it does without -> why
    network: str = ""  # that the tasks dial each other over: a CIDR, or the user's word; "": what SSH dials
    # The note about it, if the task that writes checkpoints is on another host than the checkpoints.
    moved: str = ""

    @property
    def cluster(self) -> dict[str, list[str]]:
        """TensorFlow's cluster spec: job name to `address:port`, in task order."""
        cluster: dict[str, list[str]] = {}
        for task in self.tasks:
            if dialled := task.endpoint:
                cluster.setdefault(task.id.job, []).append(dialled)
        return cluster

    @property
    def images(self) -> dict[str, set[str]]:
        """The images of the containers on each host."""
        images: dict[str, set[str]] = {}
        for task in self.tasks:
            images.setdefault(task.host, set()).update([task.container] if task.container else [])
        return images

    @property
    def targets(self) -> dict[str, str]:
        """For each task, the target of a TensorFlow session: `grpc://address:port`."""
        return {str(task.id): f"grpc://{task.endpoint}" for task in self.tasks if task.endpoint}

    @property
    def flags(self) -> list[str]:
        """The cluster as the flags that the classic trainers take."""
        return [f"--{job}_hosts={','.join(addresses)}" for job, addresses in self.cluster.items()]

    def to_json(self) -> dict[str, Any]:
        """The whole plan as data: what it holds is what runs."""
        return {
            "run_id": self.run_id,
            "cluster": self.cluster,
            "tasks": [task.to_json() for task in self.tasks],
            "notes": list(self.notes),
            "choices": list(self.choices),
            "left_out": dict(self.left_out),
        }
