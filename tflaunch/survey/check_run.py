"""`tflaunch check` on the hosts: what a run does until its tasks have ended, with a program that only tells.

Each host gets the agent of a run, which holds ports and starts one task as any other, by the same shell lines and
interpreter, in the same environment.  A host that fails in one thing is asked the others all the same.  Nothing is
kept: the run ends with this command, whatever ends that, and takes its directory with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from tflaunch.gpu_probe import MODULE
from tflaunch.hosts import Host, Hostfile, fold
from tflaunch.in_task import check_task
from tflaunch.lifecycle.watchdog import DIAL_S
from tflaunch.planning.addresses import peer_addresses
from tflaunch.planning.cluster_plan import TaskPlan
from tflaunch.planning.command import Command, endpoint, image
from tflaunch.planning.dial_check import limit_s
from tflaunch.planning.environments import PREPARE_TIMEOUT_S, setup, to_prepare
from tflaunch.planning.gpu_supply import free_cards
from tflaunch.planning.inventory import Device, HostFacts, MigDevice
from tflaunch.planning.plan import ports_wanted
from tflaunch.protocol import wire
from tflaunch.protocol.dialling import Dialling
from tflaunch.protocol.errors import Breach, ConnectError, PlanError
from tflaunch.protocol.job import JobSpec, TaskId
from tflaunch.protocol.machine import this_machine
from tflaunch.sessions import payload
from tflaunch.sessions.group import AWAITED_SHOWN, Sessions, Silence, Stopped, interruption
from tflaunch.sessions.session import Said
from tflaunch.sessions.wires import Opener
from tflaunch.survey.check_answers import Checked, Clock, Tried, Visited, is_open

CLOCK_ROUNDS = 3  # the quickest answer says most
CLOCK_S = 5.0
SWEEP_S = 15.0
STACKS_S = 12.0  # for a task that is stuck to write where, and to end
LEASE_S = 30.0
FROM_HERE_S = 2.0  # for a call of this machine: where it is not let in, mostly nobody answers
SILENT_S = 10.0  # an agent says something every few seconds
_LATE = ConnectError("its agent did not answer in time", "is the host overloaded? try again")
_SILENT = ConnectError(
    f"it has said nothing for {SILENT_S:g} s", "is it frozen, or the network gone? ssh {host} true"
)


class Connections(Opener, Protocol):
    """`tflaunch.remote.Connector`, as far as it is needed here."""

    def dial_address(self, host: Host) -> str: ...
    def unanswered(self, host: Host) -> ConnectError | None: ...


class Checkup:
    """One check of these hosts; `timeout_s` is what each step of it may take a host.

    `job` says what its tasks run in: requirements, containers, variables.  `calls`: the hosts call each other.
    """

    def __init__(
        self,
        hostfile: Hostfile,
        connections: Connections,
        phase: Callable[[str, int, int, str], None],
        *,
        timeout_s: float,
        connect_s: float,
        job: JobSpec,
        tensorflow: bool = True,
        calls: bool = True,
    ) -> None:
        text = Path(check_task.__file__).read_text("utf-8")
        self._calls = calls
        self._job = replace(job, program=("-c", text), args=("tensorflow",) if tensorflow else (), flags=None)
        self._hostfile = hostfile
        self._connections = connections
        self._phase = phase
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._run_id = f"check-{secrets.token_hex(4)}"
        self._sessions = Sessions(connections, phase, LEASE_S)
        self._visited = {host.name: Visited(host) for host in hostfile.hosts}
        self._said: dict[tuple[str, str], wire.Message] = {}  # (host, type of message) -> the last one
        self._failed: dict[str, ConnectError] = {}  # host -> what the last request came to
        self.interrupts = self._sessions.interrupts

    def run(self) -> Checked:
        """Ask all hosts everything; returns what they have told. Raises Stopped, after the hosts were told to end."""
        try:
            self._connect()
            self._read_clocks()
            self._prepare()
            addresses = self._stage()
            dials, resolved, outside = self._dial(addresses) if self._calls else ({}, {}, {})
            self._try()
        except Stopped as stopped:
            stopped.unconfirmed = self._end()
            raise
        except BaseException:
            self._sessions.close()  # then the agents end by themselves
            raise
        for name, why in self._end().items():
            self._visited[name].unswept = why
        hosts = tuple(self._visited.values())
        return Checked(hosts, dials, resolved, outside, timeout_s=self._timeout_s, run_id=self._run_id)

    # -- one step after the other

    def _connect(self) -> None:
        count = ports_wanted(JobSpec(()), self._hostfile)
        hosts = self._hostfile.hosts
        self._sessions.connect(
            hosts,
            "start",
            self._run_id,
            lambda host: wire.encode("probe", ports=host.ports, count=count, lease=False),
        )
        names = {host.name for host in hosts}
        patience_s = self._sessions.patience_s(len(hosts), self._connect_s)
        there = {host.name: host for host in hosts}
        silence = Silence(lambda name: self._connections.unanswered(there[name]))
        self._await("facts", names, patience_s, "connecting", silence=silence)
        lacking = [name for name in names if (said := self._said.get((name, "facts"))) and said["lacks"]]
        for name in lacking:
            del self._said[name, "facts"]
            self._sessions.send([name], "module", payload.packed_module(), name=MODULE)
        self._await("facts", lacking, self._connect_s, "probing")
        for name in names:
            if said := self._said.get((name, "facts")):
                self._visited[name].facts = HostFacts.from_wire(name, said.fields)
            else:
                self._visited[name].error = self._why_not(name)
                self._sessions.hang_up(name)
                self._sessions.forget(name)

    def _read_clocks(self) -> None:
        for _ in range(CLOCK_ROUNDS):
            self._said = {key: said for key, said in self._said.items() if key[1] != "clock"}
            for name in self._there():
                self._sessions.send([name], "clock", sent=time.time())
            self._await("clock", self._there(), CLOCK_S, "", hear=self._hear_clock)

    def _hear_clock(self, name: str, message: wire.Message) -> None:
        sent, now = message["sent"], time.time()
        clock = Clock(message["time"] - (sent + now) / 2, (now - sent) / 2)
        best = self._visited[name].clock
        if best is None or clock.within_s < best.within_s:
            self._visited[name].clock = clock

    def _prepare(self) -> None:
        """Have what the tasks run in, as a run does, however long that takes."""
        names = set()
        for visited in self._visited.values():
            host, needed = visited.host, self._job.requirements
            if visited.facts is not None and (needed or image(host, self._job)):
                visited.source = needed.name if needed else f"the image {image(host, self._job)}"
                names.add(host.name)
                images = filter(None, [image(host, self._job)])
                self._sessions.send([host.name], "prepare", **to_prepare(host, self._job, images))
        self._await(
            "prepared", names, PREPARE_TIMEOUT_S, "installing" if self._job.requirements else "pulling"
        )
        for name in names:
            if (name, "prepared") not in self._said:
                why = self._why_not(name)
                if why is _SILENT or name in self._sessions.ended:
                    self._visited[name].lost = why
                else:
                    self._visited[name].refused = why
        self._failed.clear()

    def _stage(self) -> dict[str, str]:
        """Make the task of each host ready; returns the address that the tasks of each host are dialled at."""
        there = [each.host for each in self._visited.values() if each.facts is not None]
        inventory = {each.host.name: each.facts for each in self._visited.values() if each.facts is not None}
        ssh = {host.name: self._connections.dial_address(host) for host in there}
        self._key = secrets.token_hex(32)
        addresses = {host.name: host.address or ssh[host.name] or "127.0.0.1" for host in there}
        trouble: PlanError | None = None
        try:
            addresses = peer_addresses(there, inventory, ssh, [])
        except PlanError as error:
            trouble = error
        for host in there:
            self._visited[host.name].address_error = trouble
            self._visited[host.name].ports = _some_ports(inventory[host.name].ports)
        dialled = [host for host in there if self._visited[host.name].ports]
        cluster = {
            "worker": [endpoint(addresses[host.name], self._visited[host.name].ports[0]) for host in dialled]
        }
        for number, host in enumerate(there):
            visited = self._visited[host.name]
            self._sessions.send([host.name], "check", directories=[host.workdir] if host.workdir else [])
            tasks = []
            try:
                command = Command(self._job, cluster, self._run_id)
                task = TaskId("worker", number)
                visited.cards = _shown(free_cards(host, inventory[host.name]))
                gpus = tuple(card.uuid for card in visited.cards)
                request = TaskPlan(
                    id=task,
                    host=host.name,
                    address="",
                    port=None,
                    gpus=gpus,
                    gpu_labels=(),
                    argv=command.argv(task, host),
                    env=command.env(task, host, gpus),
                    setup=setup(host),
                    cwd=host.workdir,
                    container=image(host, self._job),
                    mounts=(*host.mounts, *self._job.mounts),
                )
                if visited.ready:
                    tasks = [request.to_wire()]
            except PlanError as error:
                visited.refused = error
            self._sessions.send(
                [host.name],
                "stage",
                tasks=tasks,
                attempt=0,
                code=None,
                ports=list(visited.ports),
                gpus=[],
                door=False,
                about={"command": ["tflaunch", "check"]},
                dial_key=self._key,
                passing=True,
            )
        names = {host.name for host in there}
        self._await("checked", names, self._connect_s, "")
        for name in names:
            if said := self._said.get((name, "checked")):
                self._visited[name].system = said.fields
        self._await("staged", names, self._timeout_s, "setting up")
        for name in names:
            visited = self._visited[name]
            if (name, "staged") not in self._said and visited.refused is None:
                why = self._why_not(name)
                if why is _SILENT or name in self._sessions.ended:
                    visited.lost = why
                elif why is not _LATE:
                    visited.refused = why
                else:
                    what = f"its `setup:` and login profile did not end within {self._timeout_s:g} s"
                    visited.refused = ConnectError(
                        what, "see what they wait for; --timeout TIME waits longer"
                    )
        return {name: addresses[name] for name in addresses if self._visited[name].ports}

    def _dial(
        self, addresses: Mapping[str, str]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]], dict[str, dict[str, Any]]]:
        """Every host calls every host, and so does this machine at all addresses that the hosts have."""
        names = [name for name in self._there() if self._visited[name].lost is None]
        targets: list[list[Any]] = [
            [addresses[name], port, name] for name in names for port in self._visited[name].ports
        ]
        self._failed.clear()
        for number, name in enumerate(names):
            turn = number * len(targets) // len(names)  # not all begin with the same one
            wanted = targets[turn:] + targets[:turn]
            self._sessions.send([name], "dial", key=self._key, targets=wanted, patience_s=DIAL_S, load=True)
        from_here = _FromHere(self._key, self._outside(addresses))
        self._await("dialled", names, limit_s(len(targets)), "dialling")
        dials: dict[str, dict[str, Any]] = {}
        resolved: dict[str, list[str]] = {}
        for number, name in enumerate(names):
            said = self._said.get((name, "dialled"))
            if said is None:
                self._visited[name].lost = self._why_not(name)
                continue
            if len(said["results"]) != len(targets):
                self._visited[name].lost = Breach(f"{len(targets)} calls, {len(said['results'])} results")
                continue
            resolved |= said["addresses"]
            turn = number * len(targets) // len(names)
            found: dict[str, Any] = {}
            for (_, port, to), result in zip(targets[turn:] + targets[:turn], said["results"], strict=True):
                # One way is as good as the worse of its ports.
                if to not in found or (is_open(found[to]["result"]) and not is_open(result)):
                    found[to] = {"address": addresses[to], "port": port, "result": result}
            dials[name] = {to: found[to] for to in addresses if to in found}
        return dials, resolved, from_here.results()

    def _outside(self, addresses: Mapping[str, str]) -> list[list[Any]]:
        """What this machine may dial as a stand-in for outside: nothing, if it is one of the hosts itself."""
        told = [each.facts for each in self._visited.values() if each.facts is not None]
        if any([facts.hostname, facts.boot_id] == this_machine() for facts in told):
            return []
        return [
            [address, self._visited[facts.host].ports[0], facts.host]
            for facts in told
            if facts.host in addresses
            for address in dict.fromkeys([addresses[facts.host], *facts.addresses])
            if _is_literal(address)
        ]

    def _try(self) -> None:
        """Let the tasks run to their end."""
        names = {name for name in self._there() if self._visited[name].ready}
        self._failed.clear()
        self._sessions.send(names, "release")
        phase = "importing TensorFlow" if self._job.args else "trying Python"
        self._await("exit", names, self._timeout_s, phase)
        late = {name for name in names if (name, "exit") not in self._said}
        stuck = late & set(self._there())
        self._sessions.send(stuck, "end", grace_s=STACKS_S / 2, stacks=True)
        self._await("exit", stuck, STACKS_S, "")
        for name in names:
            said = self._said.get((name, "exit"))
            if said is None:
                self._visited[name].lost = self._why_not(name)
            else:
                self._visited[name].tried = Tried.from_log(
                    said.body, said["code"], said["signal_name"], said["seconds"], name in late
                )

    def _end(self) -> dict[str, str]:
        """End it everywhere; returns the hosts that have not confirmed that nothing is left, each with why."""
        names = list(self._sessions.by_host)
        self._failed.clear()
        self._sessions.send(names, "end", grace_s=0.0)
        left = dict.fromkeys(names, "tflaunch was told not to wait")
        with contextlib.suppress(Stopped):  # its agent ends by itself when this one has left
            self._await("swept", names, SWEEP_S, "")
            left = {name: self._why_not(name).message for name in names}
        for name in names:
            if swept := self._said.get((name, "swept")):
                left[name] = ", ".join(swept["survivors"])
        self._sessions.close()
        return {name: why for name, why in left.items() if why}

    # -- messages

    def _there(self) -> list[str]:
        """The hosts that can be spoken to, in the order of the hostfile."""
        return [name for name in self._visited if name in self._sessions.by_host]

    def _why_not(self, name: str) -> ConnectError:
        """Why a host has not said what was awaited."""
        return self._failed.get(name) or self._sessions.ended.get(name) or self._too_late(name)

    def _too_late(self, name: str) -> ConnectError:
        session = self._sessions.by_host.get(name)
        if session is None:
            return ConnectError(f"no connection within {self._connect_s:g} s")
        return _LATE if self._visited[name].facts is not None else session.silent

    def _await(
        self,
        type: str,
        hosts: Collection[str],
        timeout_s: float,
        phase: str,
        *,
        hear: Callable[[str, wire.Message], None] | None = None,
        silence: Silence | None = None,
    ) -> None:
        """Until each of the hosts has said that, or cannot any more, or the time is up. Raises Stopped."""
        deadline = time.monotonic() - self._sessions.slept_s + timeout_s
        while missing := set(hosts) - self._settled(type):
            if phase:
                self._phase(phase, len(hosts) - len(missing), len(hosts), _few(missing))
            now, until = time.monotonic(), deadline + self._sessions.slept_s
            if now >= until:
                break
            if silence and (silent := silence.over(missing)) and self._sessions.by_host:
                self._sessions.give_up(silent)
                continue
            match self._sessions.next(min(until, now + 1.0)):
                case Said(name, message) if message.type == "failed":
                    self._failed[name] = ConnectError(message["reason"], message.fields.get("hint", ""))
                case Said(name, message) if message.type == "expired" and not message["asked"]:
                    self._failed[name] = ConnectError(message["reason"])
                case Said(_, message) if message.type == "expired" and type == "swept":
                    pass  # somebody else wants the same
                case item if interrupted := interruption(item):
                    raise Stopped(interrupted)
                case Said(name, message):
                    self._said[name, message.type] = message
                    if hear is not None and message.type == type:
                        hear(name, message)
        if phase and (answered := sum((name, type) in self._said for name in hosts)):
            self._phase(phase, answered, answered, "")  # the page tells of the others

    def _settled(self, type: str) -> set[str]:
        """The hosts that have said that, or cannot any more."""
        for name, at in self._sessions.heard.items():
            if self._visited[name].facts is not None and time.monotonic() - at > SILENT_S:
                self._failed.setdefault(name, _SILENT)
        answered = {name for name, said in self._said if said == type}
        return answered | self._failed.keys() | self._sessions.ended.keys()


class _FromHere:
    """Calls from this machine, made while the hosts call each other."""

    def __init__(self, key: str, targets: list[list[Any]]) -> None:
        self._targets = targets
        self._selector = selectors.DefaultSelector()
        self._dialling = Dialling(self._selector, key, targets, FROM_HERE_S)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._selector:
            while not self._dialling.step(time.monotonic()):
                for key, _ in self._selector.select(0.2):
                    key.data()

    def results(self) -> dict[str, dict[str, Any]]:
        """For each host, what came of each of its addresses."""
        self._thread.join()
        found: dict[str, dict[str, Any]] = {}
        for (address, port, host), result in zip(self._targets, self._dialling.results, strict=True):
            found.setdefault(host, {})[address] = {"port": port, "result": result}
        return found


def _few(names: Collection[str]) -> str:
    return fold(sorted(names)) if len(names) <= AWAITED_SHOWN else ""


def _some_ports(held: Sequence[int]) -> tuple[int, ...]:
    """The ports to dial: both ends of the range, for a firewall may be open for a part of it only."""
    return tuple(dict.fromkeys([*held[:1], *held[-1:]]))


def _shown(cards: Sequence[Device]) -> tuple[Device, ...]:
    """What CUDA lets one process see: whole cards, or one MIG instance."""
    return tuple(card for card in cards if not isinstance(card, MigDevice)) or tuple(cards[:1])


def _is_literal(address: str) -> bool:
    try:
        return not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
