"""Where the tasks of a detached run may move when a host is lost: to which spares, and by which requests; pure.

No launcher is there to plan anew, so that every request is made beforehand.  All tasks of a host (a seat) move together
to one spare; the others stay where they are, and start again to learn the new addresses.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tflaunch.hosts import Host, Hostfile, match
from tflaunch.inputs.variables import DECIDED
from tflaunch.planning.addresses import interfaces, peer_addresses
from tflaunch.planning.binding import UNBOUND, share_out
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan, on_host
from tflaunch.planning.gpu_choice import take_nearest
from tflaunch.planning.inventory import GpuOrInstance, Inventory
from tflaunch.planning.networks import members
from tflaunch.planning.plan import host_variables
from tflaunch.planning.task_commands import Command, endpoint
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import JobSpec, TaskId, deciding
from tflaunch.protocol.moves import fill, values

LIMIT_BYTES = 12_000_000  # of the requests that one agent holds: a message is at most 16 MiB


@dataclass(frozen=True)
class Moves:
    """Where each seat may be, and the requests for that; empty where nothing can move."""

    marks: Mapping[str, str] = field(default_factory=dict)  # see tflaunch.protocol.moves
    # seat -> host -> {address, ports: task -> port, gpus: task -> UUIDs}; its own host first, then spares
    seats: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    requests: Mapping[str, Mapping[str, list[dict[str, Any]]]] = field(default_factory=dict)  # host -> seat

    @property
    def spares(self) -> list[str]:
        """The hosts that wait."""
        return list(dict.fromkeys(host for spots in self.seats.values() for host in [*spots][1:]))

    def gpus_on(self, spare: str) -> set[str]:
        """The GPUs that a spare may give to tasks."""
        spots = [spots[spare] for spots in self.seats.values() if spare in spots]
        return {uuid for spot in spots for uuids in spot["gpus"].values() for uuid in uuids}

    def ports_on(self, spare: str) -> set[int]:
        """The ports that a spare may give to tasks."""
        spots = [spots[spare] for spots in self.seats.values() if spare in spots]
        return {port for spot in spots for port in spot["ports"].values() if port is not None}

    @property
    def reserve(self) -> dict[str, tuple[str, ...]]:
        """The spares that each seat may move to, in order."""
        return {seat: tuple([*spots][1:]) for seat, spots in self.seats.items()}

    def address_of(self, spare: str) -> str:
        """What the other tasks dial to reach that spare."""
        return next(str(spots[spare]["address"]) for spots in self.seats.values() if spare in spots)

    def ships_to(self, spare: str) -> bool:
        """Whether a task on that spare would run in the shipped code."""
        return any(request["cwd"] is None for mine in self.requests[spare].values() for request in mine)

    def images_on(self, spare: str) -> set[str]:
        """The images of the containers there."""
        mine = [request for requests in self.requests[spare].values() for request in requests]
        return {request["container"]["image"] for request in mine if request["container"]}

    def to_wire(self, host: str, *, stacks: bool) -> dict[str, Any]:
        """What the agent of that host must know; see message `stage` for `stacks`."""
        requests = {
            seat: [each if stacks else {**each, "stacks": False} for each in mine]
            for seat, mine in self.requests.get(host, {}).items()
        }
        return {"marks": self.marks, "seats": self.seats, "requests": requests}


def moves(
    job: JobSpec,
    plan: ClusterPlan,
    hostfile: Hostfile,
    spares: Sequence[Host],
    *,
    inventory: Inventory,
    ssh: Mapping[str, str],
    free: Mapping[str, Sequence[GpuOrInstance]],
) -> Moves:
    """Where the tasks of each host may move.

    `ssh` maps a host to what SSH dials, `free` each spare to its GPUs that the run may take.  A spare takes over a host
    if its roles may be there, and it has the ports, and as many GPUs of the same model; none takes over the host of the
    coordinator, without which nobody decides.  Raises PlanError.
    """
    fixed = coordinating(plan)
    hosts = {host.name: host for host in hostfile.hosts}
    own = {task.host: task.address for task in plan.tasks}
    dialled = peer_addresses([hosts[name] for name in own] + [*spares], inventory, ssh, [])
    if plan.network:
        met = members(plan.network, {name: inventory[name] for name in dialled})
        dialled |= {name: address for name, (address, _) in met.items()}
    dialled |= own
    by_seat: dict[str, list[TaskPlan]] = {}
    for task in plan.tasks:
        by_seat.setdefault(task.host, []).append(task)
    seats: dict[str, dict[str, dict[str, Any]]] = {}
    placed: dict[tuple[str, str], list[TaskPlan]] = {}
    for seat, tasks in by_seat.items():
        placed[seat, seat] = tasks
        for spare in spares if seat != fixed else ():
            same_family = (":" in dialled[spare.name]) == (":" in own[seat])
            there = (
                _moved(
                    job, hostfile, tasks, spare, address=dialled[spare.name], inventory=inventory, free=free
                )
                if same_family
                else None
            )
            if there is not None:
                placed[seat, spare.name] = there
        seats[seat] = {
            host: {
                "address": dialled[host],
                "ports": {str(task.id): task.port for task in there},
                "gpus": {str(task.id): list(task.gpus) for task in there if task.gpus},
            }
            for (of, host), there in placed.items()
            if of == seat
        }
    marks = _marks(plan)
    requests = _Requests(
        job, plan, hosts, marks, dialled=dialled, inventory=inventory, spares=[spare.name for spare in spares]
    )
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (seat, host), there in placed.items():
        found.setdefault(host, {})[seat] = [requests.of(task, seat) for task in there]
    _prove(plan, found, values(marks, seats, {}))
    return Moves(marks, seats, found)


def coordinating(plan: ClusterPlan) -> str:
    """The host that coordinates the run once it is detached."""
    return min(plan.tasks, key=lambda task: deciding(task.id)).host


def _moved(
    job: JobSpec,
    hostfile: Hostfile,
    tasks: Sequence[TaskPlan],
    spare: Host,
    *,
    address: str,
    inventory: Inventory,
    free: Mapping[str, Sequence[GpuOrInstance]],
) -> list[TaskPlan] | None:
    """These tasks on that spare; None where they do not fit there."""
    models = {gpu.uuid: gpu.name for facts in inventory.values() for gpu in facts.gpus_or_instances}
    ports = sorted(inventory[spare.name].ports)
    left = list(free.get(spare.name, ()))
    found = []
    taken: dict[TaskId, Sequence[GpuOrInstance]] = {}
    for task in tasks:
        pattern = job.role(task.id.job).hosts
        if pattern is not None and spare.name not in {host.name for host in match(pattern, hostfile)}:
            return None
        wanted = {models.get(uuid) for uuid in task.gpus}
        like = left if job.mix_models else [gpu for gpu in left if gpu.name in wanted]
        mine, _ = take_nearest(like, len(task.gpus))
        if len(mine) < len(task.gpus) or (task.port is not None and not ports):
            return None
        left = [gpu for gpu in left if gpu not in mine]
        taken[task.id] = mine
        found.append(
            dataclasses.replace(
                task,
                **on_host(spare, job),
                address=address,
                port=None if task.port is None else ports.pop(0),
                gpus=tuple(gpu.uuid for gpu in mine),
                gpu_labels=tuple(gpu.label for gpu in mine),
            )
        )
    cores = share_out(job.bind, inventory[spare.name], taken, job.memory_policy)
    return [dataclasses.replace(task, cores=cores.get(task.id, UNBOUND)) for task in found]


def _marks(plan: ClusterPlan) -> dict[str, str]:
    """A mark for each seat and each task with a port; none of them stands in any request."""
    nonce = secrets.token_hex(6)
    marks: dict[str, str] = {}
    for task in plan.tasks:
        colon = ":" if ":" in task.address else ""  # so that it is put in brackets like the address
        marks.setdefault(task.host, f"tfl{nonce}{colon}a{len(marks)}z")
    ports = [str(task.id) for task in plan.tasks if task.port is not None]
    return {**marks, **{task: f"tfl{nonce}p{number}z" for number, task in enumerate(ports)}}


class _Requests:
    """Makes the requests with marks."""

    def __init__(
        self,
        job: JobSpec,
        plan: ClusterPlan,
        hosts: Mapping[str, Host],
        marks: Mapping[str, str],
        *,
        dialled: Mapping[str, str],
        inventory: Inventory,
        spares: Sequence[str],
    ) -> None:
        self._job, self._plan, self._hosts, self._marks = job, plan, hosts, marks
        self._inventory = inventory
        self._cluster: dict[str, list[str]] = {}
        for task in plan.tasks:
            if task.port is not None:
                mark: Any = marks[str(task.id)]  # in place of a number
                self._cluster.setdefault(task.id.job, []).append(endpoint(marks[task.host], mark))
        known = {name: facts for name, facts in inventory.items() if name not in spares}
        here = {name: address for name, address in dialled.items() if name not in spares}
        self._interfaces = {**interfaces(dialled, inventory), **interfaces(here, known)}

    def of(self, task: TaskPlan, seat: str) -> dict[str, Any]:
        """The request for that task, of that seat, on its host."""
        host = self._hosts[task.host]
        names = {host.name: self._marks[seat]}
        command = Command(self._job, self._cluster, self._plan.run_id, self._interfaces, names)
        request = task.to_wire()
        more = host_variables(
            self._inventory[task.host], task.cores, self._interfaces.get(task.host, "") if task.gpus else ""
        )
        env = command.env(task.id, host, task.gpus, more, self._inventory[task.host].set_there)
        decided = [name for name in DECIDED if name in env]
        return {**request, "argv": list(command.argv(task.id, host)), "env": env, "decided": decided}


def _prove(
    plan: ClusterPlan,
    found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    standing: Mapping[str, str],
) -> None:
    """Raise PlanError unless the requests with their marks filled in are those of the plan, and not too large."""
    for task in plan.tasks:
        [request] = [each for each in found[task.host][task.host] if each["id"] == str(task.id)]
        filled, wanted = fill(request, standing), task.to_wire()
        for each in (filled, wanted):  # names there one address once or twice: that means the same
            each["env"] = {name: text for name, text in each["env"].items() if name != "no_grpc_proxy"}
        if filled != wanted:
            raise PlanError(
                f"{task.id} cannot move to a spare: its request would differ in more than addresses",
                "leave --spares or --detach out",
            )
    sizes = [sum(len(repr(each)) for each in requests.values()) for requests in found.values()]
    if max(sizes, default=0) > LIMIT_BYTES:
        raise PlanError(
            f"the requests for spares take {max(sizes):,} bytes, {LIMIT_BYTES:,} at most",
            "name fewer --spares, or leave --detach out",
        )
