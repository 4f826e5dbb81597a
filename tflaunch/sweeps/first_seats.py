"""The seats that a sweep begins with: those that are free now, or those that it gets in its turn in the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tflaunch.hosts import fold
from tflaunch.launch import acquisition
from tflaunch.launch.acquisition import Acquisition
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.consent import Consent
from tflaunch.launch.roll_call import RollCall
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.inventory import Inventory, when_free
from tflaunch.planning.taking import Share
from tflaunch.protocol.errors import ConnectErrors, PlanError
from tflaunch.protocol.job import WORKER, TaskId
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.seats import SeatFinder, in_words_of_trials


class Seating(NamedTuple):
    """The seats that trials can have now, and the GPUs in use that may become free, by host."""

    seats: tuple[Seat, ...]
    others: Mapping[str, tuple[str, ...]]


class FirstSeats:
    """Finds the seats for so many trials, asks the user for consent where it is needed, and holds the GPUs."""

    def __init__(
        self, finder: SeatFinder, roll: RollCall, cluster: Cluster, watcher: RunWatcher, trials: int
    ) -> None:
        self._finder = finder
        self._roll = roll
        self._cluster = cluster
        self._watcher = watcher
        self._trials = trials

    def free(self) -> Seating:
        """The seats that are free now; none where all GPUs are in use.

        Raises PlanError where no trial can ever run, ConnectErrors where hosts that do not answer may be the cause.
        """
        finder, roll = self._finder, self._roll
        notes, inventory = list[str](), roll.inventory
        try:
            try:
                seats = finder.seats(inventory, notes)
            except PlanError:
                finder.seats(when_free(inventory), notes)
                seats = ()
            others = finder.others(inventory, seats)
            if not (seats or others):
                raise PlanError("no GPU of these hosts can be taken", "tflaunch gpus shows who uses them")
        except PlanError as error:
            if roll.absent:
                raise roll.refusal(
                    f"without {fold(roll.absent)}: {error.message}. {error.hint}".rstrip()
                ) from None
            raise
        for note in notes:
            self._watcher.note(in_words_of_trials(note))
        return Seating(seats, others)

    def most(self, seating: Seating) -> list[Share]:
        """The most that the trials may take: also GPUs that are in use now, if the free seats are too few."""
        seats = seating.seats
        if self._trials > len(seats) and seating.others:
            seats = self._finder.seats(when_free(self._roll.inventory), [])
        return self._finder.shares(seats, self._trials)

    def agreed(self, consent: Consent) -> Seating:
        """As `free`, once the user has agreed to what the trials may take; raises UsageError, Stopped."""
        seating = self.free()
        self._roll.warn_of_absent()
        while (wanted := consent.lacking(self.most(seating), self._roll.inventory)) is not None:
            self._cluster.give_back()
            later = self._trials > len(seating.seats) and bool(seating.others)
            consent.ask(self._cluster, wanted, *(("up to ", " as they become free") if later else ()))
            # While the user was asked, no agent held the GPUs: other runs may have taken some.
            hosts = [host for host in self._finder.hostfile.hosts if host.name in self._roll.inventory]
            found, failures = self._cluster.look(hosts, 0, self._finder.others(self._roll.inventory, ()))
            if failures:
                raise ConnectErrors(failures, len(hosts))
            self._roll.inventory = found
            seating = self.free()
        return seating

    def in_turn(self, consent: Consent, wait_s: float) -> Seating:
        """As `agreed`, but the sweep waits in the queue for its turn, `wait_s` at most; raises PlanError after that."""
        self.free()  # raises PlanError for what can never run
        self._roll.warn_of_absent()
        finder, inventory, run = self._finder, self._roll.inventory, self._finder.request.run
        planner = _Planner(
            run.job, finder.hostfile, run.gpus, {}, run.run_id, finder=finder, trials=self._trials
        )
        taking = Acquisition(
            planner, self._cluster, self._watcher, ports_wanted=0, wait_s=wait_s, consent=consent
        )
        plan = taking.plan(inventory)
        places = [Seat(task.host, task.gpus, task.gpu_labels) for task in plan.tasks]
        seats = finder.shared(finder.bound(places, self._cluster.inventory))
        return Seating(
            seats, finder.others({host: inventory[host] for host in self._cluster.connected}, seats)
        )


@dataclass(frozen=True, kw_only=True)
class _Planner(acquisition.Planner):
    """Plans tasks only to say which GPUs the sweep wants: its trials are placed later, by its state machine."""

    finder: SeatFinder
    trials: int

    def shares(self, plan: ClusterPlan) -> list[Share]:
        places = [Seat(task.host, task.gpus, task.gpu_labels) for task in plan.tasks]
        return self.finder.shares(self.finder.shared(places), self.trials)

    def _plan(self, inventory: Inventory) -> ClusterPlan:
        tasks = (
            TaskPlan(
                TaskId(WORKER, number),
                host=place.host,
                address="",
                port=None,
                gpus=place.gpus,
                gpu_labels=place.labels,
                argv=(),
                env={},
                setup=(),
                cwd=None,
            )
            for number, place in enumerate(self.finder.places(inventory, []))
        )
        return ClusterPlan(self.run_id, tuple(tasks))
