"""A sweep in the queue for cards: it begins when its turn has come, with what there is for it then."""

from __future__ import annotations

from dataclasses import dataclass

from tflaunch.launch.acquisition import Acquisition, Planner, Reporter
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.consent import Consent
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.inventory import Inventory
from tflaunch.planning.taking import Share
from tflaunch.protocol.job import WORKER, TaskId
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.slots import Room


@dataclass(frozen=True, kw_only=True)
class _Planner(Planner):
    """Its tasks only say which cards are wanted: no trial is bound to any of them."""

    room: Room
    trials: int

    def shares(self, plan: ClusterPlan) -> list[Share]:
        places = [Seat(task.host, task.gpus, task.gpu_labels) for task in plan.tasks]
        return self.room.shares(self.room.shared(places), self.trials)

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
            for number, place in enumerate(self.room.places(inventory, []))
        )
        return ClusterPlan(self.run_id, tuple(tasks))


def seats_in_turn(
    room: Room,
    trials: int,
    cluster: Cluster,
    inventory: Inventory,
    reporter: Reporter,
    *,
    wait_s: float,
    consent: Consent,
) -> tuple[Seat, ...]:
    """The seats whose cards the sweep holds once its turn has come; `inventory` is the first look.

    Raises PlanError when `wait_s` is over, or there never will be any; UsageError when the user does not agree;
    Stopped.
    """
    run = room.request.run
    planner = _Planner(run.job, room.hostfile, run.gpus, {}, run.run_id, room=room, trials=trials)
    taking = Acquisition(planner, cluster, reporter, ports_wanted=0, wait_s=wait_s, consent=consent)
    plan = taking.plan(inventory)
    return room.shared([Seat(task.host, task.gpus, task.gpu_labels) for task in plan.tasks])
