"""From the request to a plan on the hosts that are there: roll call, consent, GPUs that are held."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tflaunch.hosts import Host, fold
from tflaunch.launch.acquisition import Acquisition, Planner
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.consent import Consent
from tflaunch.launch.request import Connections, Request
from tflaunch.launch.roll_call import RollCall, as_counted
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_limits import left_of, too_many, within_hosts
from tflaunch.planning.plan import ports_wanted, usable_gpus
from tflaunch.planning.required_gpus import check_required
from tflaunch.planning.spare_moves import Moves, coordinating, moves
from tflaunch.planning.usable_hosts import moved, usable_hosts
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import CHIEF, MASTER, WORKER
from tflaunch.text.numbers import agreeing, counted


def hosts_at_first(request: Request) -> tuple[Host, ...]:
    """The hosts of the first plan; raises UsageError when the options leave none."""
    return usable_hosts(request.job, request.hostfile, request.gpus, request.spares)


def plan_on(
    request: Request,
    hosts: Sequence[Host],
    cluster: Cluster,
    connections: Connections,
    watcher: RunWatcher,
    *,
    lease: bool,
    before: ClusterPlan | None = None,
    lost: Mapping[str, str] | None = None,
) -> ClusterPlan:
    """Connect to these hosts and plan the run on what they have now; with `lease`, the GPUs of the plan are held.

    `before` is the plan that was in use until the hosts `lost` were lost.  The new plan never has more tasks than
    that; only if it has fewer is the user asked again.  Raises TflaunchError, Stopped.
    """
    job, hostfile, gpus = request.job, request.hostfile, request.gpus
    ports = ports_wanted(job, hostfile, hosts) + request.detach
    roll = RollCall(
        cluster, connections, watcher, hostfile, request.connect_s, ports, lease, request.require_all
    )
    spares = () if before else spares_of(request, hosts)
    roll.call(hosts, spares)
    if job.done == "chief" and not (job.count(CHIEF) or job.count(MASTER)):
        watcher.note("this run has no chief: by --done chief, it ends when worker/0 ends")
    addresses = {host.name: connections.dial_address(host) for host in (*hosts, *spares)}

    planner = Planner(job, hostfile, gpus, addresses, request.run_id, request.gpu_limit)
    consent = consent_for(request, connections)
    waits, agreed = request.wait_s is not None, request.yes
    if before is not None:
        as_before = dataclasses.replace(planner, job=as_counted(job, before))
        consent.needed = False
        planner = roll.settle_again(as_before, job, lost or {}, consent, waits=waits, agreed=agreed)
        agreed = True
    roll.settle(planner, consent, spares=spares, waits=waits, agreed=agreed)
    absent = {name: error.message for name, error in roll.absent.items()}
    if not lease:
        plan = planner.plan(roll.inventory)
        consent.note_question(planner.shares(plan), roll.inventory, watcher)
    else:
        taking = Acquisition(
            planner,
            cluster,
            watcher,
            ports_wanted=ports,
            wait_s=request.wait_s,
            absent=roll.absent,
            consent=consent,
        )
        plan = taking.plan(roll.inventory)
        absent = {name: why for name, why in absent.items() if name not in cluster.connected}
    if request.watch.get("require_gpu"):
        check_required(plan, roll.inventory)
    told = moved(job, hostfile, gpus, absent=absent, plan=plan, before=before)
    return dataclasses.replace(
        plan,
        notes=(*plan.notes, *([told] if told else [])),
        left_out={**(lost or {}), **absent},
        moved=told,
    )


def hold_spares(
    request: Request, plan: ClusterPlan, cluster: Cluster, connections: Connections, watcher: RunWatcher
) -> Moves:
    """Connect to the spares of a detached run, and plan what each of them could take over.

    Their free GPUs are leased.  Raises TflaunchError, Stopped.
    """
    job, hostfile = request.job, request.hostfile
    used = {task.host for task in plan.tasks}
    spares = [host for host in spares_of(request, hosts_at_first(request)) if host.name not in used]
    new = [host for host in spares if host.name not in cluster.connected]
    if new:
        ports = ports_wanted(job, hostfile, hosts_at_first(request)) + 1
        _, absent = cluster.open(new, ports, request.connect_s, unanswered=connections.unanswered)
        for name, error in absent.items():
            watcher.warn(f"{name} of --spares cannot be reached: {error.message}")
    there = [host for host in spares if host.name in cluster.connected and host.name in cluster.inventory]
    ssh = {
        host.name: connections.dial_address(host) for host in hostfile.hosts if host.name in cluster.inventory
    }
    planner = Planner(job, hostfile, request.gpus, ssh, request.run_id)
    seen = within_hosts(planner.seen({host.name: cluster.inventory[host.name] for host in there}), hostfile)
    try:
        usable = usable_gpus(job, hostfile, seen) if there else {}
    except PlanError:  # none of them is for the tasks that take GPUs
        usable = {}
    free = {
        name: [gpu for gpu in seen[name].gpus_or_instances if gpu.uuid in uuids]
        for name, uuids in usable.items()
    }
    found = moves(job, plan, hostfile, there, inventory=cluster.inventory, ssh=ssh, free=free)
    decides = coordinating(plan)
    if used == {decides}:
        raise PlanError(
            f"--spares {request.spares}: all tasks are on {decides}, which coordinates the detached run: no spare can "
            "take its place",
            "leave --spares out, or leave --detach out",
        )
    if not found.spares:
        raise PlanError(
            f"--spares {request.spares}: none of these hosts can take the place of a host of the run",
            "they must be up and have as many free GPUs of the same model; or leave --spares out",
        )
    for seat, others in found.reserve.items():
        if not others and seat != decides:
            watcher.warn(f"no spare can take the place of {seat}: if that is lost, the run ends")
    watcher.note(
        f"{decides} decides for the run, so no spare can take its place: if it is lost, the run ends"
    )
    leased = sum(len(found.gpus_on(spare)) for spare in found.spares)
    taken = sum(len(task.gpus) for task in plan.tasks) + leased
    if leased and request.gpu_limit and taken > left_of(request.gpu_limit, cluster.inventory):
        raise too_many(request.gpu_limit, taken, cluster.inventory, leased)
    gpus = f", with {counted(leased, 'GPU')} leased for it" if leased else ""
    watcher.note(f"{fold(found.spares)} {agreeing(len(found.spares), 'waits', 'wait')} for a lost host{gpus}")
    return found


def consent_for(request: Request, connections: Connections) -> Consent:
    """The consent before any question.

    No question is needed if the user or the batch scheduler gave the number of workers, or the user gave --yes.
    """
    hosts = {host.name: host for host in request.hostfile.hosts}
    counted = request.job.role(WORKER).count is not None or all(host.slots_by for host in hosts.values())
    needed = not (counted or request.yes)
    # Looked up as late as possible: each look-up may run `ssh -G`, and may fail for a host that is left out.
    user_on = functools.cache(lambda name: connections.user(hosts[name]))
    return Consent(request.hostfile, request.run_id, user_on, needed)


def spares_of(request: Request, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts that take the place of a host that is lost or absent."""
    usable = usable_hosts(request.job, request.hostfile, request.gpus)
    there = {host.name for host in hosts}
    return tuple(host for host in usable if host.name not in there)
