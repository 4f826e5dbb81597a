"""`tflaunch check` on the hosts: all that a run does, with a program that only reports what it finds.

The check starts the agent of a run on each host.  The agent holds ports and starts one task, with the shell lines, the
interpreter and the environment of any other task.  A host that fails in one step still does the others.  The run of
the check ends with the command, however the command ends, and its directories on the hosts are removed.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from tflaunch.hosts import Host, Hostfile
from tflaunch.in_task import check_task
from tflaunch.lifecycle.ending import NOT_AWAITED
from tflaunch.planning.addresses import peer_addresses
from tflaunch.planning.cluster_plan import TaskPlan, on_host
from tflaunch.planning.environments import PREPARE_TIMEOUT_S, to_prepare
from tflaunch.planning.gpu_supply import free_gpus
from tflaunch.planning.inventory import GpuOrInstance, HostFacts, MigInstance
from tflaunch.planning.networks import faster, shared
from tflaunch.planning.plan import ports_wanted
from tflaunch.planning.task_commands import Command, endpoint, image
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError, PlanError
from tflaunch.protocol.job import JobSpec, TaskId
from tflaunch.sessions.absent_hosts import AbsentHosts
from tflaunch.sessions.group import NVML_LEAST_S, NVML_SHARE, Sessions, Stopped
from tflaunch.sessions.wires import Opener
from tflaunch.survey.check_answers import (
    CallAnswers,
    CheckAnswers,
    Clock,
    HostAnswer,
    NetworkAnswer,
    TaskAnswer,
)
from tflaunch.survey.check_calls import Calling, Calls, CallsFromHere, some_ports, targets_from_here
from tflaunch.survey.check_replies import LATE, Replies
from tflaunch.survey.known_models import remember_models

CLOCK_ROUNDS = 3  # the quickest answer is the most exact
CLOCK_S = 5.0
SWEEP_S = 15.0
STACKS_S = 12.0  # for a task that hangs: to write where it hangs, and to end
LEASE_S = 30.0


class CheckConnections(Opener, Protocol):
    """What a check needs of `tflaunch.remote.Connector`."""

    def dial_address(self, host: Host) -> str: ...
    def host_key(self, host: Host) -> str: ...
    def unanswered(self, host: Host) -> ConnectError | None: ...


class Extent(NamedTuple):
    """What a check asks beside the facts of each host."""

    tensorflow: bool = True  # the tasks import TensorFlow
    calls: bool = True  # the hosts call each other
    bandwidth: bool = False  # they also measure what they can send to each other,
    all_pairs: bool = False  # all of them, however many hosts there are


class CheckRun:
    """One check of the hosts of a hostfile.

    `phase` shows the user what the launcher waits for.  `timeout_s` is what each step may take on a host, `connect_s`
    what a connection may take.  `job` says what the tasks run in: requirements, containers, variables.
    """

    def __init__(
        self,
        hostfile: Hostfile,
        connections: CheckConnections,
        phase: Callable[..., None],
        *,
        timeout_s: float,
        connect_s: float,
        job: JobSpec,
        extent: Extent,
    ) -> None:
        text = Path(check_task.__file__).read_text("utf-8")
        self._extent = extent
        self._job = replace(
            job, program=("-c", text), args=("tensorflow",) if extent.tensorflow else (), flags=None
        )
        self._hostfile = hostfile
        self._connections = connections
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._phase = phase
        self._run_id = f"check-{secrets.token_hex(4)}"
        self._key = secrets.token_hex(32)  # with it a called agent proves that it belongs to this check
        self._sessions = Sessions(connections, phase, LEASE_S)
        self._answers = {host.name: HostAnswer(host) for host in hostfile.hosts}
        self._replies = Replies(self._sessions, self._answers, phase, connect_s)
        self.interrupts = self._sessions.interrupts

    def run(self) -> CheckAnswers:
        """Ask all hosts everything; returns what they answered.  Raises Stopped, once the agents have orders to end."""
        try:
            self._connect()
            self._read_clocks()
            self._prepare()
            addresses = self._stage()
            calls = self._call(addresses) if self._extent.calls else CallAnswers()
            self._run_tasks()
        except Stopped as stopped:
            stopped.unconfirmed = self._end()
            raise
        except BaseException:
            self._sessions.close()  # then the agents end by themselves
            raise
        for name, why in self._end().items():
            self._answers[name].unswept = why
        hosts = tuple(self._answers.values())
        return CheckAnswers(hosts, **vars(calls), timeout_s=self._timeout_s, run_id=self._run_id)

    # The steps, in their order.

    def _connect(self) -> None:
        count = ports_wanted(JobSpec(()), self._hostfile)
        hosts = self._hostfile.hosts
        self._sessions.connect(
            hosts,
            "start",
            self._run_id,
            lambda host: wire.encode(
                "probe",
                ports=host.ports,
                count=count,
                lease=False,
                ask_gpus=host.gpus not in (0, ()),
                within_s=max(NVML_LEAST_S, NVML_SHARE * self._connect_s),
            ),
        )
        names = {host.name for host in hosts}
        patience_s = self._sessions.patience_s(len(hosts), self._connect_s)
        there = {host.name: host for host in hosts}
        absent = AbsentHosts(lambda name: self._connections.unanswered(there[name]))
        self._replies.wait("facts", names, patience_s, "connecting", absent=absent)
        for name in names:
            if said := self._replies.get(name, "facts"):
                self._answers[name].facts = HostFacts.from_wire(name, said.fields)
                self._answers[name].host_key = self._connections.host_key(there[name])
            else:
                self._answers[name].error = self._replies.why_not(name)
                self._sessions.hang_up(name)
                self._sessions.ignore(name)
        found = (each.facts for each in self._answers.values())
        remember_models(gpu.name for facts in found if facts is not None for gpu in facts.gpus)

    def _read_clocks(self) -> None:
        for _ in range(CLOCK_ROUNDS):
            names = self._connected()
            self._replies.forget("clock", names)
            for name in names:
                self._sessions.send([name], "clock", sent=time.time())
            self._replies.wait("clock", names, CLOCK_S, hear=self._hear_clock)

    def _hear_clock(self, name: str, message: wire.Message) -> None:
        sent, now = message["sent"], time.time()
        clock = Clock(message["time"] - (sent + now) / 2, (now - sent) / 2)
        best = self._answers[name].clock
        if best is None or clock.within_s < best.within_s:
            self._answers[name].clock = clock

    def _prepare(self) -> None:
        """Have the agents make what the tasks run in, as for a run, however long that takes."""
        names = set()
        for answer in self._answers.values():
            host, needed = answer.host, self._job.requirements
            if answer.facts is not None and (needed or image(host, self._job)):
                answer.source = needed.name if needed else f"the image {image(host, self._job)}"
                names.add(host.name)
                images = filter(None, [image(host, self._job)])
                self._sessions.send([host.name], "prepare", **to_prepare(host, self._job, images))
        phase = "installing" if self._job.requirements else "pulling"
        self._replies.wait("prepared", names, PREPARE_TIMEOUT_S, phase)
        for name in names:
            if self._replies.get(name, "prepared") is None:
                if self._replies.is_lost(name):
                    self._answers[name].lost = self._replies.why_not(name)
                else:
                    self._answers[name].refused = self._replies.why_not(name)
        self._replies.forget_failures()

    def _stage(self) -> dict[str, str]:
        """Have the agents make their tasks ready; returns the address at which each host is called."""
        answers = [each for each in self._answers.values() if each.facts is not None]
        facts = {each.host.name: each.facts for each in answers if each.facts is not None}
        addresses = self._addresses(facts)
        for each in answers:
            each.ports = some_ports(facts[each.host.name].ports)
        cluster = {
            "worker": [endpoint(addresses[each.host.name], each.ports[0]) for each in answers if each.ports]
        }
        command = Command(self._job, cluster, self._run_id)
        for number, each in enumerate(answers):
            host = each.host
            self._sessions.send([host.name], "check", directories=[host.workdir] if host.workdir else [])
            tasks = []
            try:
                task = self._task(TaskId("worker", number), each, facts[host.name], command)
                if each.ready:
                    tasks = [task.to_wire()]
            except PlanError as error:
                each.refused = error
            self._sessions.send(
                [host.name],
                "stage",
                tasks=tasks,
                attempt=0,
                code=None,
                ports=list(each.ports),
                gpus=[],
                door=False,
                about={"command": ["tflaunch", "check"]},
                dial_key=self._key,
                passing=True,
            )
        self._replies.wait("checked", facts, self._connect_s)
        for each in answers:
            if said := self._replies.get(each.host.name, "checked"):
                each.system = said.fields
        self._replies.wait("staged", facts, self._timeout_s, "setting up")
        for each in answers:
            if self._replies.get(each.host.name, "staged") is None and each.refused is None:
                self._note_unstaged(each)
        return {name: address for name, address in addresses.items() if self._answers[name].ports}

    def _addresses(self, facts: Mapping[str, HostFacts]) -> dict[str, str]:
        """The address at which each host is called, as a plan has it; where no plan can be made, the likeliest."""
        hosts = [self._answers[name].host for name in facts]
        ssh = {host.name: self._connections.dial_address(host) for host in hosts}
        try:
            return peer_addresses(hosts, facts, ssh, [])
        except PlanError as error:
            for host in hosts:
                self._answers[host.name].address_error = error
            return {host.name: host.address or ssh[host.name] or "127.0.0.1" for host in hosts}

    def _task(self, id: TaskId, answer: HostAnswer, facts: HostFacts, command: Command) -> TaskPlan:
        """The task of one host, which sees the free GPUs there; raises PlanError."""
        host = answer.host
        answer.visible_gpus = _visible(free_gpus(host, facts))
        gpus = tuple(gpu.uuid for gpu in answer.visible_gpus)
        return TaskPlan(
            id=id,
            **on_host(host, self._job),
            address="",
            port=None,
            gpus=gpus,
            gpu_labels=(),
            argv=command.argv(id, host),
            env=command.env(id, host, gpus),
        )

    def _note_unstaged(self, answer: HostAnswer) -> None:
        """Note why the task of a host is not ready."""
        name = answer.host.name
        why = self._replies.why_not(name)
        if self._replies.is_lost(name):
            answer.lost = why
        elif why is LATE:
            answer.refused = ConnectError(
                f"its `setup:` and login profile did not end within {self._timeout_s:g} s",
                "see what they wait for; --timeout TIME waits longer",
            )
        else:
            answer.refused = why

    def _call(self, addresses: Mapping[str, str]) -> CallAnswers:
        """Have every host call every host, and call all their addresses from here."""
        ports = {name: answer.ports for name, answer in self._answers.items()}
        names = [name for name in self._connected() if self._answers[name].lost is None]
        calls = Calls(addresses, {name: ports[name] for name in names})
        facts = [each.facts for each in self._answers.values() if each.facts is not None]
        from_here = CallsFromHere(self._key, targets_from_here(facts, addresses, ports))
        calling = Calling(self._sessions, self._replies, self._answers, self._key, self._phase)
        found = calling.call(calls)
        found.outside = from_here.results()
        if self._extent.bandwidth:
            found.bandwidth = calling.measure(calls, found.dials, self._extent.all_pairs)
        found.networks = tuple(self._over_others(calling, found, {name: ports[name] for name in found.dials}))
        return found

    def _over_others(
        self, calling: Calling, found: CallAnswers, ports: Mapping[str, Sequence[int]]
    ) -> Iterator[NetworkAnswer]:
        """The same over the network that a run would choose; with --bandwidth, over all that the hosts share."""
        inventory = {name: facts for name in ports if (facts := self._answers[name].facts) is not None}
        dialled = {to: way["address"] for row in found.dials.values() for to, way in row.items()}
        dialled = {name: found.resolved.get(dialled[name], [dialled[name]])[0] for name in inventory}
        if len(inventory) < 2:
            return
        if self._extent.bandwidth:
            now = set(dialled.values())
            others = [each for each in shared(inventory) if now.isdisjoint(each.addresses.values())]
        else:
            others = [network for _, network in [faster(dialled, inventory) or (0, None)] if network]
        for each in others:
            calls = Calls(each.addresses, ports)
            dials = calling.call(calls).dials
            measured = calling.measure(calls, dials, self._extent.all_pairs) if self._extent.bandwidth else {}
            yield NetworkAnswer(each, dials, measured)

    def _run_tasks(self) -> None:
        """Let the tasks run to their end; those that do not end in time write where they hang, and are ended."""
        names = {name for name in self._connected() if self._answers[name].ready}
        self._replies.forget_failures()
        self._sessions.send(names, "release")
        phase = "importing TensorFlow" if self._job.args else "trying Python"
        self._replies.wait("exit", names, self._timeout_s, phase)
        late = {name for name in names if self._replies.get(name, "exit") is None}
        stuck = late & set(self._connected())
        self._sessions.send(stuck, "end", grace_s=STACKS_S / 2, stacks=True)
        self._replies.wait("exit", stuck, STACKS_S)
        for name in names:
            said = self._replies.get(name, "exit")
            if said is None:
                self._answers[name].lost = self._replies.why_not(name)
            else:
                self._answers[name].task = TaskAnswer.from_log(
                    said.body, said["code"], said["signal_name"], said["seconds"], name in late
                )

    def _end(self) -> dict[str, str]:
        """End the check on all hosts; returns the hosts where something of it may still live, each with why."""
        names = list(self._sessions.by_host)
        self._replies.forget_failures()
        self._sessions.send(names, "end", grace_s=0.0)
        left = dict.fromkeys(names, NOT_AWAITED)
        with contextlib.suppress(Stopped):  # without the launcher the agents end by themselves
            self._replies.wait("swept", names, SWEEP_S)
            left = {name: self._replies.why_not(name).message for name in names}
        for name in names:
            if swept := self._replies.get(name, "swept"):
                left[name] = ", ".join(swept["survivors"])
        self._sessions.close()
        return {name: why for name, why in left.items() if why}

    def _connected(self) -> list[str]:
        """The hosts to which there is a connection, in the order of the hostfile."""
        return [name for name in self._answers if name in self._sessions.by_host]


def _visible(gpus: Sequence[GpuOrInstance]) -> tuple[GpuOrInstance, ...]:
    """What CUDA lets one process see: all whole GPUs, or else one MIG instance."""
    return tuple(gpu for gpu in gpus if not isinstance(gpu, MigInstance)) or tuple(gpus[:1])
