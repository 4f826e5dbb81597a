"""From a plan to tasks that run: code, environments, staging, dial check; then the release, or a run that detaches."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch.code import shipping
from tflaunch.hosts import fold
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.network_check import NetworkCheck
from tflaunch.launch.steering import Steering
from tflaunch.lifecycle.states import State, state_data
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import to_prepare
from tflaunch.planning.spare_moves import Moves
from tflaunch.protocol.errors import Breach, ConnectError
from tflaunch.protocol.job import JobSpec, TaskId, deciding
from tflaunch.protocol.wire import Message
from tflaunch.sessions.log_feed import Copies, LogFeed, Record
from tflaunch.sessions.session import Damaged
from tflaunch.text.safe import printable

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle

SHIP_TIMEOUT_S = 900.0
STAGE_TIMEOUT_S = 300.0  # conda on a network file system takes its time
ENTRUST_S = 40.0  # for the agents to reach each other


class Code(NamedTuple):
    """What the hosts are told of the code that their tasks run."""

    digest: str | None = None  # of what was shipped
    # A job, "" for all others -> its file of the code that its interpreter must be able to read (Bundle.reading).
    programs: Mapping[str, Mapping[str, str] | None] | None = None
    keras_fit: str = ""  # what it calls and Keras 3 lacks (JobSpec)


class Starter:
    """Takes the agents of a run, whose GPUs are held, step by step to running tasks.

    A step that fails raises LaunchError, after the run has ended on every host; Ctrl-C raises Stopped.
    """

    def __init__(self, cluster: Cluster, moves: Moves | None = None) -> None:
        """`moves`: where the tasks of a detached run may move."""
        self.moves = moves or Moves()
        self._cluster = cluster
        self._sessions = cluster.sessions
        self._watcher = cluster.watcher
        self._refuse = cluster.refuse
        self._shipped: tuple[Bundle, float] | None = None  # the code that was shipped, and its time limit

    def end_elsewhere(self, hosts: Collection[str]) -> None:
        """End the agents of all hosts but these: the plan has no task for them."""
        for name in set(self._sessions.by_host) - set(hosts):
            self._sessions.send([name], "end", grace_s=0.0)
            self._sessions.leave(name)

    def ship(self, bundle: Bundle, hosts: Collection[str], timeout_s: float) -> None:
        """Bring the code to those of `hosts` that do not keep it already.  Raises LaunchError, Stopped."""
        self._shipped = bundle, timeout_s
        shipped, failures = shipping.ship(self._sessions, bundle, hosts, timeout_s)
        self._refuse(failures)
        self._watcher.shipped(bundle, shipped)

    def prepare(self, images: Mapping[str, set[str]], job: JobSpec, timeout_s: float) -> None:
        """Have each host prepare what its tasks run in: its images, the environment with the requirements.

        Raises LaunchError, Stopped.
        """
        hosts = [name for name, found in images.items() if found or job.requirements]
        for name in hosts:
            self._sessions.send([name], "prepare", **to_prepare(self._cluster.hosts[name], job, images[name]))
        phase = "installing" if job.requirements else "pulling"
        _, failures = self._sessions.gather("prepared", hosts, timeout_s, phase if hosts else "")
        self._refuse(failures)

    def stage(
        self,
        plan: ClusterPlan,
        code: Code,
        timeout_s: float,
        *,
        about: Mapping[str, object],
        attempt: int = 0,
        detached: bool = False,
        dial_key: str = "",
        stacks: bool = True,
    ) -> None:
        """Make every task ready, so that all can start in the same moment; `entrust` may follow only if `detached`.

        `about` is what every host keeps of the whole run (tflaunch.runs.listing).  With `dial_key`, the ports of the
        tasks answer `dial` from now until the release.  Without `stacks`, nothing is prepared by which the tasks
        tell their stacks while they run.  Warns of hosts that have Keras 3, if the code calls what that lacks.
        Raises LaunchError, Stopped.
        """
        tasks_of: dict[str, list[dict[str, object]]] = {}
        ports_of: dict[str, list[int]] = {}
        gpus_of: dict[str, list[str]] = {}
        for task in plan.tasks:
            request = task.to_wire() if stacks else {**task.to_wire(), "stacks": False}
            tasks_of.setdefault(task.host, []).append(request)
            ports_of.setdefault(task.host, []).extend([] if task.port is None else [task.port])
            gpus_of.setdefault(task.host, []).extend(task.gpus)
        wanted: dict[str, dict[str, Any]] = {
            name: {
                "tasks": tasks,
                "attempt": attempt,
                "code": code.digest if any(task["cwd"] is None for task in tasks) else None,
                "ports": ports_of[name],
                "gpus": gpus_of[name],
                "door": detached,
                "about": about,
                "dial_key": dial_key,
                **({"programs": code.programs} if code.programs else {}),
                **({"keras": True} if code.keras_fit else {}),
            }
            for name, tasks in tasks_of.items()
        }
        for spare in self.moves.spares:
            wanted[spare] = {
                "tasks": [],
                "attempt": attempt,
                "code": code.digest if self.moves.ships_to(spare) else None,
                "ports": sorted(self.moves.ports_on(spare)),
                "gpus": sorted(self.moves.gpus_on(spare)),
                "door": True,
                "about": about,
                "dial_key": "",
            }
        for name in wanted.keys() & self.moves.requests.keys():
            wanted[name]["moves"] = self.moves.to_wire(name, stacks=stacks)
        self._warn_of_keras(code.keras_fit, self._stage(wanted, timeout_s))

    def stage_none(
        self,
        gpus: Mapping[str, Collection[str]],
        code: Mapping[str, str | None],
        timeout_s: float,
        about: Mapping[str, object],
        preload: Mapping[str, object] | None = None,
    ) -> None:
        """Make the hosts ready for tasks that are added later (message `add`), with these GPUs and this code.

        `preload`: that field of the message `stage`.
        Raises LaunchError, Stopped.
        """
        wanted = {
            name: {
                "tasks": [],
                "attempt": 0,
                "code": code[name],
                "ports": [],
                "gpus": list(uuids),
                "door": False,
                "about": about,
                "dial_key": "",
                **({"preload": preload} if preload else {}),
            }
            for name, uuids in gpus.items()
        }
        self._stage(wanted, timeout_s)

    def _warn_of_keras(self, keras_fit: str, said: Mapping[str, Message]) -> None:
        hosts: dict[str, list[str]] = {}
        for name, message in said.items():
            if version := message.fields.get("keras"):
                hosts.setdefault(printable(version), []).append(name)
        for version, names in hosts.items():
            self._watcher.warn(f"{fold(names)}: Keras {version} has no {keras_fit}")

    def _stage(self, wanted: Mapping[str, Mapping[str, Any]], timeout_s: float) -> dict[str, Message]:
        """Send each host its `stage`; where the code that it keeps is damaged, ship it again, once, then `stage`."""
        staged: dict[str, Message] = {}
        repaired = set[str]()
        while wanted:
            for name, fields in wanted.items():
                self._sessions.send([name], "stage", **fields)
            said, failures = self._sessions.gather("staged", wanted, timeout_s, "staging")
            staged |= said
            damaged = {
                name: error
                for name, error in failures.items()
                if isinstance(error, Damaged) and self._shipped is not None and name not in repaired
            }
            self._refuse({name: error for name, error in failures.items() if name not in damaged})
            for reason in sorted({error.message for error in damaged.values()}):
                hosts = [name for name, error in damaged.items() if error.message == reason]
                self._watcher.warn(f"{fold(hosts)}: {reason}; it is sent again")
            if damaged and self._shipped is not None:
                bundle, ship_s = self._shipped
                self.ship(bundle, damaged, ship_s)
            repaired |= damaged.keys()
            wanted = {name: wanted[name] for name in damaged}
        return staged

    def dial(self, plan: ClusterPlan, key: str, *, whole: bool) -> dict[str, list[str]]:
        """Have the hosts dial each other (tflaunch.launch.network_check); `key` was given to `stage`.

        Returns the addresses that names resolve to.  Raises DialError, LaunchError, Stopped.
        """
        return NetworkCheck(self._cluster, plan, key).run(whole=whole)

    def entrust(self, plan: ClusterPlan, state: State, watchdog: Watchdog) -> str:
        """Have the agents go on without a launcher; returns the host of the coordinator, which decides from now on.

        The coordinator runs on the host of the chief, or else of worker/0.  Raises LaunchError, Stopped.
        """
        addresses = {task.host: task.address for task in plan.tasks}
        addresses |= {spare: self.moves.address_of(spare) for spare in self.moves.spares}
        self._cluster.committed = True
        # A key for each host: an attacker who reads one host's key cannot pose as the coordinator to the others.
        keys = {name: secrets.token_hex(32) for name in addresses}
        for name, address in addresses.items():
            self._sessions.send([name], "entrust", secret=keys[name], address=address)
        replies, failures = self._sessions.gather("entrusted", addresses, ENTRUST_S)
        self._refuse(failures)
        if wide := [name for name, said in replies.items() if said["wide"]]:
            self._watcher.note(
                f"{fold(wide)}: the other hosts reach it by an address that it does not have itself (NAT?), so its "
                "agent listens for the coordinator on all addresses that it has"
            )
        moves: dict[str, Any] = {"moves": self.moves.seats} if self.moves.seats else {}
        first = min(plan.tasks, key=lambda task: deciding(task.id))
        self._sessions.send(
            [first.host],
            "coordinate",
            members={name: [at, replies[name]["port"], keys[name]] for name, at in addresses.items()},
            state=state_data(state),
            lease_s=self._cluster.lease_s,
            started=time.time(),
            watchdog=watchdog.data(),
            **moves,
        )
        others = addresses.keys() - {first.host}
        answers, failures = self._sessions.gather(
            "coordinating", [first.host], ENTRUST_S, "entrusting", also=others
        )
        self._refuse(failures)
        missing = answers[first.host]["missing"]
        if unknown := missing.keys() - addresses.keys():
            self._refuse(
                {first.host: Breach(f"it says that it cannot reach {min(unknown)}, which is not of this run")}
            )
        self._refuse(
            {
                name: ConnectError(
                    f"the agent of {first.host}, the coordinator of the detached run, cannot reach this host "
                    f"at {addresses[name]}:{replies[name]['port']}: {why}",
                    "open that range of ports between the hosts (`ports:` in the hostfile), or stay attached",
                )
                for name, why in missing.items()
            }
        )
        return first.host

    def release(self, tasks: Mapping[TaskId, str], attempt: int, record: Record, copies: Copies) -> Steering:
        """Start all tasks now; `record` gets each piece of their logs and writes it into `copies`."""
        feed = LogFeed(self._sessions, len(self._sessions.by_host), self._watcher, record, copies)
        self._cluster.committed = True
        feed.expect(tasks, attempt)
        for host in self._sessions.by_host:
            feed.watch(host, 0, posted=True)
        self._sessions.send(self._sessions.by_host, "release")
        return Steering(self._cluster, feed)

    def send_off(self, hosts: Collection[str]) -> None:
        """Start all tasks now, and leave once their `hosts` have confirmed it.  Raises LaunchError, Stopped."""
        self._sessions.send(self._sessions.by_host, "release")
        _, failures = self._sessions.gather("started", hosts, ENTRUST_S)
        self._refuse(failures)
        self._cluster.close()
