"""A sweep's request, the seats on which its trials can run, and the request for each trial: pure."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflaunch import in_task
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.request import Request
from tflaunch.planning.binding import UNBOUND, Cores, share_out
from tflaunch.planning.cluster_plan import TaskPlan, on_host
from tflaunch.planning.gpu_choice import choose
from tflaunch.planning.gpu_limits import left_of, too_many, within_hosts
from tflaunch.planning.inventory import GpuOrInstance, Inventory, when_free
from tflaunch.planning.plan import places, usable_gpus
from tflaunch.planning.plan_notes import note_memory
from tflaunch.planning.taking import Share
from tflaunch.planning.task_commands import Command, image
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import TRIAL
from tflaunch.sessions.payload import lean
from tflaunch.sweeps.curves import StopBelow
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.optuna_study import OptunaSearch
from tflaunch.sweeps.results import Metric
from tflaunch.sweeps.trials import Params, Trial, arguments, plain

Place = tuple[Host, tuple[GpuOrInstance, ...]]
# For trials that share a GPU: else TensorFlow takes all of its memory.
SHARING: Mapping[str, str] = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def own_variables(trial: Trial) -> dict[str, str]:
    """The variables by which a program learns its trial."""
    return {"TFLAUNCH_TRIAL": str(trial.number), "TFLAUNCH_PARAMS": json.dumps(plain(trial.params))}


@dataclass(frozen=True)
class SweepRequest:
    """What the user asked for; `run` has the hosts, GPUs and code, and its workers stand for trials."""

    run: Request
    # Makes the trials from a seed; none where a search proposes them.
    trials: Callable[[int], Sequence[Params]]
    metric: Metric | None
    seed: int | None = None  # None: that of the sweep that goes on, or a new one
    drawn: bool = False  # the trials are drawn at random, with the seed
    retries: int = 0  # of each trial
    timeout_s: float = 0.0  # for one attempt of a trial; 0: no limit
    per_gpu: int = 1  # trials at a time
    per_host: int | None = None  # trials at a time, instead of `slots:`
    keep_going: bool = False  # also when the first trials fail at once and alike
    stop_below: StopBelow | None = None  # which trials are stopped for their metric
    search: OptunaSearch | None = None  # what Optuna is asked for
    name: str = ""
    must_exist: bool = False  # --resume: it is an error if there is no such sweep
    preload: tuple[str, ...] = ()  # modules that a process on each host imports, which then forks for trials
    run_best: tuple[str, ...] = ()  # the command that runs one trial, without the trial's arguments


def preloading(modules: Sequence[str]) -> dict[str, Any]:
    """What an agent needs to preload these modules: field `preload` of the message `stage`."""
    text = lean(Path(in_task.__file__).with_name("preloader.py").read_text("utf-8"))
    own = [*own_variables(Trial(0, {})), "CUDA_VISIBLE_DEVICES", "TFLAUNCH_TASK"]
    return {"modules": list(modules), "own": own, "text": text}


@dataclass(frozen=True)
class SeatFinder:
    """Finds the seats that the hosts have for trials."""

    request: SweepRequest

    @property
    def hostfile(self) -> Hostfile:
        """The hostfile; with --trials-per-host, each host has that many slots."""
        hostfile, slots = self.request.run.hostfile, self.request.per_host
        if slots is None:
            return hostfile
        hosts = tuple(dataclasses.replace(host, slots=slots) for host in hostfile.hosts)
        return dataclasses.replace(hostfile, hosts=hosts)

    def seats(self, inventory: Inventory, notes: list[str], held: Sequence[Seat] = ()) -> tuple[Seat, ...]:
        """The seats that are free now, in addition to those that are held; raises PlanError when there are none."""
        return self.shared(self.places(inventory, notes, held))

    def places(self, inventory: Inventory, notes: list[str], held: Sequence[Seat] = ()) -> list[Seat]:
        """As `seats`, but each set of GPUs once, however many trials may share it."""
        request = self.request
        hosts = []
        for host in self.hostfile.hosts:
            mine = [seat for seat in held if seat.host == host.name and not seat.share]
            used = sum(len(seat.gpus) for seat in mine)
            gpus = max(0, host.gpus - used) if isinstance(host.gpus, int) else host.gpus
            slots = None if host.slots is None else max(0, host.slots - len(mine))
            hosts.append(dataclasses.replace(host, gpus=gpus, slots=slots))
        hostfile = dataclasses.replace(self.hostfile, hosts=tuple(hosts))
        chosen = choose(inventory, request.run.gpus, request.run.hostfile)
        own = Counter({seat.host: 0 for seat in held})
        for seat in held:
            own[seat.host] += 0 if seat.share else len(seat.gpus)
        seen = within_hosts(chosen, hostfile, own)
        try:
            found = places(request.run.job, hostfile, seen, notes)
        except PlanError as error:
            raise PlanError(in_words_of_trials(error.message), in_words_of_trials(error.hint)) from None
        if request.per_gpu > 1 and not any(gpus for _, gpus in found):
            raise PlanError(
                f"--trials-per-gpu {request.per_gpu}: the trials use no GPUs",
                "say --trials-per-host, or `slots:` in the hostfile",
            )
        seats = [
            Seat(host.name, tuple(gpu.uuid for gpu in gpus), tuple(gpu.label for gpu in gpus))
            for host, gpus in self._within(found, inventory, own.total())
        ]
        bound = self.bound(seats, inventory)
        note_memory(request.run.job, [seat.host for seat in bound if not seat.cores.numactl], notes)
        return bound

    def bound(self, seats: Sequence[Seat], inventory: Inventory) -> list[Seat]:
        """These seats with the cores that their trials are bound to."""
        job = self.request.run.job
        by_host: dict[str, dict[int, list[GpuOrInstance]]] = defaultdict(dict)
        for number, seat in enumerate(seats):
            there = inventory[seat.host].gpus_or_instances
            by_host[seat.host][number] = [gpu for gpu in there if gpu.uuid in seat.gpus]
        cores: dict[int, Cores] = {}
        for host, mine in by_host.items():
            # More GPUs of the host may become free later: each keeps to its own part of the cores.
            parted = job.bind == "cores" and any(mine.values())
            cores |= share_out("numa" if parted else job.bind, inventory[host], mine, job.memory_policy)
        return [
            dataclasses.replace(seat, cores=cores.get(number, UNBOUND)) for number, seat in enumerate(seats)
        ]

    def _within(self, found: Sequence[Place], inventory: Inventory, own: int) -> Sequence[Place]:
        """The first of these places, as many as the limit of the user's GPUs on all hosts allows.

        The sweep has `own` GPUs already.  Raises PlanError where none is allowed.
        """
        limit = self.request.run.gpu_limit
        if limit is None:
            return found
        left = left_of(limit, inventory) - own
        sums = itertools.accumulate(len(gpus) for _, gpus in found)
        allowed = [place for place, total in zip(found, sums, strict=True) if total <= left]
        if found and not allowed:
            raise too_many(limit, len(found[0][1]), inventory)
        return allowed

    def shared(self, places: Sequence[Seat]) -> tuple[Seat, ...]:
        """The seats that these places make: `per_gpu` on each."""
        return tuple(
            dataclasses.replace(
                place,
                share=share if place.gpus else number,
                cores=place.cores.part(share, self.request.per_gpu),
            )
            for share in range(self.request.per_gpu)
            for number, place in enumerate(places)
        )

    def others(self, inventory: Inventory, seats: Iterable[Seat]) -> dict[str, tuple[str, ...]]:
        """The GPUs that may become free later, by host."""
        held = {uuid for seat in seats for uuid in seat.gpus}
        seen = choose(when_free(inventory), self.request.run.gpus, self.request.run.hostfile)
        usable = usable_gpus(self.request.run.job, self.hostfile, seen)
        others = {host: tuple(each for each in uuids if each not in held) for host, uuids in usable.items()}
        return {host: uuids for host, uuids in others.items() if uuids}

    def shares(self, seats: Sequence[Seat], trials: int) -> list[Share]:
        """What so many trials take of these seats; the GPUs of the other seats are given back."""
        return [Share(seat.host, TRIAL, seat.gpus) for seat in seats[:trials]]


def images(request: SweepRequest, hosts: Iterable[str]) -> dict[str, set[str]]:
    """The container images that trials on these hosts need, by host."""
    there = {host.name: host for host in request.run.hostfile.hosts}
    return {name: {image(there[name], request.run.job)} - {""} for name in hosts}


def in_words_of_trials(text: str) -> str:
    """A sentence of the planner about workers, reworded for trials."""
    return text.replace("--gpus-per-worker", "--gpus-per-trial").replace("worker", "trial")


class TrialRequests:
    """Makes the complete request for a trial on a seat."""

    def __init__(self, run: Request, per_gpu: int) -> None:
        self._run = run
        self._hosts: Mapping[str, Host] = {host.name: host for host in run.hostfile.hosts}
        self._shares = per_gpu > 1

    def __call__(self, trial: Trial, seat: Seat) -> dict[str, Any]:
        host = self._hosts[seat.host]
        job = dataclasses.replace(self._run.job, args=arguments(self._run.job.args, trial))
        command = Command(job, {}, self._run.run_id)
        env = command.env(trial.task, host, seat.gpus, seat.cores.thread_pools)
        for name in ("TF_CONFIG", "TF_GRPC_REUSE_PORT", "no_grpc_proxy"):  # a trial belongs to no cluster
            if name not in {**host.env, **job.env}:
                env.pop(name, None)
        env = {**(SHARING if self._shares else {}), **env, **own_variables(trial)}
        return TaskPlan(
            id=trial.task,
            **on_host(host, job),
            address="",
            port=None,
            gpus=seat.gpus,
            gpu_labels=seat.labels,
            cores=seat.cores,
            argv=command.argv(trial.task, host),
            env=env,
        ).to_wire()
