"""The effects of a run, in order: open, ship, stage, release, drive, drain, close; and visits, for stop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.code import shipping
from tflaunch.gpu_probe import MODULE
from tflaunch.hosts import Host, fold
from tflaunch.lifecycle.driver import Drive, Overseer, S
from tflaunch.lifecycle.links import Links
from tflaunch.lifecycle.states import State, state_data
from tflaunch.lifecycle.watchdog import DIAL_S, Oversight
from tflaunch.planning import dial_check
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.environments import to_prepare
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, ConnectError, ConnectErrors, DialError, LaunchError
from tflaunch.protocol.events import Event, Interrupted, TaskStarted
from tflaunch.protocol.job import JobSpec, TaskId, deciding
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, outcome_data
from tflaunch.sessions import payload
from tflaunch.sessions.group import Item, Sessions, Stopped, Written, interruption
from tflaunch.sessions.log_feed import Copies, LogFeed, LogWatcher, Record
from tflaunch.sessions.session import Damaged, Ended, Said
from tflaunch.sessions.wires import Opener

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.inputs.patterns import Wish
    from tflaunch.runs.fetch import Fetched
    from tflaunch.runs.tensorboard import Board

PROBE_S = 30.0
REST_S = 20.0  # for a host whose connection is lost while the last lines come
ENTRUST_S = 40.0  # for the agents to find each other


class Watcher(LogWatcher, Protocol):
    """Who is shown what happens: `tflaunch.console.reporter`."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None: ...
    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def started(self, started: TaskStarted) -> None: ...
    def exited(self, exit: TaskExit) -> None: ...
    def unreachable(self, host: str, reason: str) -> None: ...
    def back(self, host: str, away_s: float) -> None: ...
    def lost(self, lost: HostLost) -> None: ...
    def shipped(self, bundle: Bundle, shipped: shipping.Shipped) -> None: ...
    @property
    def can_ask(self) -> bool: ...
    def ask(self, question: str) -> None: ...
    def asked(self, typed: bool) -> None: ...


class Cluster:
    """The agents of one run."""

    def __init__(self, run_id: str, opener: Opener, watcher: Watcher, lease_s: float) -> None:
        self._run_id = run_id
        self._watcher = watcher
        self._sessions = Sessions(opener, watcher.phase, lease_s)
        self._lease_s = lease_s
        self._hosts: dict[str, Host] = {}
        self._drive: Drive[Any] | None = None
        self._feed: LogFeed | None = None
        self._shipped: tuple[Bundle, float] | None = None  # and how long that may take
        self._board: Board | None = None
        self._lost: dict[str, ConnectError] = {}  # hosts that were connected before, and may not be now
        self._never: set[str] = set()  # hosts that never were
        self.interrupts = self._sessions.interrupts

    # -- before the tasks run

    def open(
        self,
        hosts: Collection[Host],
        ports_wanted: int,
        connect_s: float,
        lease: bool = True,
        unanswered: Callable[[Host], ConnectError | None] | None = None,
    ) -> tuple[Inventory, Mapping[str, ConnectError]]:
        """Connect to every host, boot its agent and learn its facts: one round trip after the handshake.

        With `lease`, every card that nobody has is leased in the same step, until `keep_cards` or `let_go`.
        With `unanswered` (see Connector), hosts that are not there fail alone, and early: returned with the facts of
        the others is why each of them is not.
        Raises ConnectErrors with every host that failed, after all are closed, unless all of them are such hosts and
        others are up; Stopped.
        """
        there = {host.name: host for host in hosts}
        self._hosts |= there
        self._sessions.connect(
            hosts,
            "start",
            self._run_id,
            lambda host: wire.encode("probe", ports=host.ports, count=ports_wanted, lease=lease),
        )
        names = [host.name for host in hosts]
        patience_s = self._sessions.patience_s(len(names), connect_s)
        by_name = (lambda name: unanswered(there[name])) if unanswered else None
        facts, failures = self._sessions.gather("facts", names, patience_s, "connecting", by_name)
        absent = {name: error for name, error in failures.items() if unanswered and error.absent}
        if len(absent) == len(failures):
            more, silent = self._send_modules(facts)
            facts.update(more)
            failures |= silent
        self._never |= absent.keys()
        if not self.connected or len(absent) < len(failures):
            self.abandon()
            raise ConnectErrors(failures, len(names))
        return {
            name: HostFacts.from_wire(name, facts[name].fields) for name in names if name in facts
        }, absent

    def _send_modules(
        self, facts: Mapping[str, wire.Message]
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """Send what the probe lacks on some hosts; returns their facts, told again, and why some told none."""
        lacking = [name for name, said in facts.items() if said["lacks"]]
        if lacking:
            self._sessions.send(lacking, "module", payload.packed_module(), name=MODULE)
        return self._sessions.gather("facts", lacking, PROBE_S, "probing" if lacking else "")

    # -- while it waits for cards

    def queue(self, host: str, since: float, wants: int, gpus: Collection[str], planning: bool) -> None:
        """Take a place in the queue of that host for these cards."""
        self._sessions.send([host], "queue", since=since, wants=wants, gpus=list(gpus), planning=planning)

    def let_go(self) -> None:
        """Give all leases back, to look again later; a place in the queue is kept."""
        self._sessions.send(self._sessions.by_host, "let_go")

    def keep_cards(self, plan: ClusterPlan) -> None:
        """The cards of this plan are the run's; give up all others, and the places in the queue."""
        for name in self._sessions.by_host:
            gpus = [uuid for task in plan.tasks if task.host == name for uuid in task.gpus]
            self._sessions.send([name], "keep", gpus=gpus)

    def look(
        self, hosts: Collection[Host], ports_wanted: int, lease: Mapping[str, Collection[str]]
    ) -> tuple[dict[str, HostFacts], dict[str, ConnectError]]:
        """What these hosts have now, those cards leased in the same step, and why some did not tell. Raises Stopped.

        A host that did not tell is let go of; what it may still say counts no more.
        """
        for host in hosts:
            self._sessions.send(
                [host.name],
                "probe",
                ports=host.ports,
                count=ports_wanted,
                lease=list(lease.get(host.name, ())),
            )
        facts, failures = self._sessions.gather("facts", [host.name for host in hosts], PROBE_S)
        more, silent = self._send_modules(facts)
        failures |= silent
        for name in failures:
            self._sessions.by_host[name].cut(time.monotonic())
        facts |= more
        told = [host.name for host in hosts if host.name not in failures]
        for name in told:
            self._lost.pop(name, None)
            self._never.discard(name)
        return {name: HostFacts.from_wire(name, facts[name].fields) for name in told}, failures

    def pause(self, wait_s: float) -> None:
        """Let time pass, leases renewed; raises Stopped."""
        deadline = time.monotonic() + wait_s
        while (item := self._sessions.next(deadline)) is not None:
            if interrupted := interruption(item):
                raise Stopped(interrupted)

    def ask(self, question: str) -> bool | None:
        """Whether the user agrees (` [y/N]` is added); None: nobody can be asked. Raises Stopped.

        Connections and leases live on meanwhile; whoever waits for cards calls `let_go` first.  No answer for 60 s
        is no.
        """
        from tflaunch.sessions.asking import agreed

        return agreed(self._sessions, self._watcher, question)

    @property
    def connected(self) -> Collection[str]:
        """The hosts that can be spoken to."""
        return self._sessions.by_host.keys() - self._sessions.ended.keys()

    @property
    def ended(self) -> Mapping[str, ConnectError]:
        """The hosts that cannot be spoken to any more, each with why."""
        return self._sessions.ended

    def reopen(self, host: Host) -> None:
        """Begin to connect anew to a host that has ended: `connected` or `ended` will have it again."""
        if host.name not in self._never:
            self._lost[host.name] = self._sessions.ended[host.name]
        if session := self._sessions.by_host.pop(host.name, None):
            session.close()
        self._sessions.connect([host], "start", self._run_id, lambda _: b"")

    def forget(self, host: str) -> None:
        """Go on without a host that is lost."""
        if session := self._sessions.by_host.pop(host, None):
            session.close()
        self._sessions.forget(host)

    # -- the tasks are made ready

    def keep(self, hosts: Collection[str]) -> None:
        """Let go of the hosts that the plan has no task for."""
        for name in set(self._sessions.by_host) - set(hosts):
            self._sessions.send([name], "end", grace_s=0.0)
            self._sessions.drop(name)

    def ship(self, bundle: Bundle, hosts: Collection[str], timeout_s: float) -> None:
        """Bring the code to those hosts that do not have this very content yet.

        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
        """
        self._shipped = bundle, timeout_s
        shipped, failures = shipping.ship(self._sessions, bundle, hosts, timeout_s)
        self._refuse(failures)
        self._watcher.shipped(bundle, shipped)

    def prepare(self, images: Mapping[str, set[str]], job: JobSpec, timeout_s: float) -> None:
        """Have what the tasks run in on each of those hosts: its images, the environment of the requirements.

        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
        """
        hosts = [name for name, found in images.items() if found or job.requirements]
        for name in hosts:
            self._sessions.send([name], "prepare", **to_prepare(self._hosts[name], job, images[name]))
        phase = "installing" if job.requirements else "pulling"
        _, failures = self._sessions.gather("prepared", hosts, timeout_s, phase if hosts else "")
        self._refuse(failures)

    def stage(
        self,
        plan: ClusterPlan,
        digest: str | None,
        timeout_s: float,
        *,
        about: Mapping[str, object],
        attempt: int = 0,
        detached: bool = False,
        dial_key: str = "",
        program: Mapping[str, str] | None = None,
    ) -> None:
        """Make every task ready, so that all can start in the same moment; `entrust` may follow if `detached`.

        `about` is what every host keeps of the whole run (tflaunch.runs.states).  With `dial_key`, the ports
        of the tasks answer `dial_all` from now until the release.  `program`, of the code, is one that every
        interpreter of the tasks is to be able to read (Bundle.to_read).
        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
        """
        tasks_of: dict[str, list[dict[str, object]]] = {}
        ports_of: dict[str, list[int]] = {}
        gpus_of: dict[str, list[str]] = {}
        for task in plan.tasks:
            tasks_of.setdefault(task.host, []).append(task.to_wire())
            ports_of.setdefault(task.host, []).extend([] if task.port is None else [task.port])
            gpus_of.setdefault(task.host, []).extend(task.gpus)
        wanted = {
            name: {
                "tasks": tasks,
                "attempt": attempt,
                "code": digest if any(task["cwd"] is None for task in tasks) else None,
                "ports": ports_of[name],
                "gpus": gpus_of[name],
                "door": detached,
                "about": about,
                "dial_key": dial_key,
                **({"program": program} if program else {}),
            }
            for name, tasks in tasks_of.items()
        }
        self._stage(wanted, timeout_s)

    def stage_none(
        self,
        gpus: Mapping[str, Collection[str]],
        code: Mapping[str, str | None],
        timeout_s: float,
        about: Mapping[str, object],
    ) -> None:
        """Make the hosts ready for tasks that are added later (Order `add`), with these cards and this code.

        Raises LaunchError, after nothing of the run is left anywhere; Stopped.
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
            }
            for name, uuids in gpus.items()
        }
        self._stage(wanted, timeout_s)

    def _stage(self, wanted: Mapping[str, Mapping[str, Any]], timeout_s: float) -> None:
        """Send each host its `stage`; where the code that it keeps is damaged that is shipped again, then `stage`."""
        while wanted:
            for name, fields in wanted.items():
                self._sessions.send([name], "stage", **fields)
            _, failures = self._sessions.gather("staged", wanted, timeout_s, "staging")
            damaged = {name: error for name, error in failures.items() if isinstance(error, Damaged)}
            self._refuse({name: error for name, error in failures.items() if name not in damaged})
            for reason in sorted({error.message for error in damaged.values()}):
                hosts = [name for name, error in damaged.items() if error.message == reason]
                self._watcher.warn(f"{fold(hosts)}: {reason}; it is sent again")
            if damaged and self._shipped is not None:
                bundle, ship_s = self._shipped
                self.ship(bundle, damaged, ship_s)
            wanted = {name: wanted[name] for name in damaged}

    def dial_all(self, plan: ClusterPlan, key: str) -> dict[str, list[str]]:
        """Have all hosts call, at once, every port that their tasks will call (see tflaunch.planning.dial_check).

        Returns the addresses that names stand for.  Raises DialError with what is blocked, after nothing of
        the run is left anywhere; LaunchError; Stopped.
        """
        wanted = dial_check.targets(plan)
        for name, tasks in wanted.items():
            targets = dial_check.to_wire(tasks)
            self._sessions.send([name], "dial", key=key, targets=targets, patience_s=DIAL_S)
        timeout_s = dial_check.limit_s(max(map(len, wanted.values()), default=0))
        said, failures = self._sessions.gather("dialled", wanted, timeout_s, "dialling")
        for name, message in said.items():
            if len(message["results"]) != len(wanted[name]):
                what = f"{len(wanted[name])} calls were asked for, {len(message['results'])} results came"
                failures[name] = Breach(what)
        self._refuse(failures)
        reasons, steps = dial_check.blocked(wanted, {name: said[name]["results"] for name in wanted})
        if reasons:
            raise DialError(reasons, "; ".join(steps), self.abandon())
        return {address: found for each in said.values() for address, found in each["addresses"].items()}

    def entrust(self, plan: ClusterPlan, state: State, oversight: Oversight) -> str:
        """Have the agents go on without a launcher; returns the host whose agent decides from now on.

        That is the chief's, else worker/0's.  Raises LaunchError, after nothing of the run is left; Stopped.
        """
        addresses = {task.host: task.address for task in plan.tasks}
        # One for each: who breaks into one host cannot speak as the coordinator to the others.
        keys = {name: secrets.token_hex(32) for name in addresses}
        for name, address in addresses.items():
            self._sessions.send([name], "entrust", secret=keys[name], address=address)
        replies, failures = self._sessions.gather("entrusted", addresses, ENTRUST_S)
        self._refuse(failures)
        if wide := [name for name, said in replies.items() if said["wide"]]:
            self._watcher.note(
                f"{fold(wide)}: the address of the cluster is none of the host's own (NAT?), so its agent listens for "
                "the one that decides on all addresses"
            )
        first = min(plan.tasks, key=lambda task: deciding(task.id))
        self._sessions.send(
            [first.host],
            "coordinate",
            members={name: [at, replies[name]["port"], keys[name]] for name, at in addresses.items()},
            state=state_data(state),
            lease_s=self._lease_s,
            started=time.time(),
            oversight=oversight.data(),
        )
        answers, failures = self._sessions.gather("coordinating", [first.host], ENTRUST_S, "entrusting")
        self._refuse(failures)
        missing = answers[first.host]["missing"]
        if unknown := missing.keys() - addresses.keys():
            self._refuse(
                {first.host: Breach(f"it says that it cannot reach {min(unknown)}, which is not of this run")}
            )
        self._refuse(
            {
                name: ConnectError(
                    f"the agent of {first.host}, which is to decide for the detached run, cannot reach this host "
                    f"at {addresses[name]}:{replies[name]['port']}: {why}",
                    "open that range of ports between the hosts (`ports:` in the hostfile), or stay attached",
                )
                for name, why in missing.items()
            }
        )
        return first.host

    def _refuse(self, failures: Mapping[str, ConnectError]) -> None:
        if failures:
            unconfirmed = {host: why for host, why in self.abandon().items() if host not in failures}
            reasons = {name: error.message for name, error in failures.items()}
            hints = sorted({error.hint for error in failures.values() if error.hint})
            raise LaunchError(reasons, "; ".join(hints), unconfirmed)

    def abandon(self, timeout_s: float = 10.0) -> dict[str, str]:
        """End everything on every host now; returns the hosts that did not confirm it, each with why."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "end", grace_s=0.0)
        try:
            _, failures = self._sessions.gather("swept", names, timeout_s)
        except Stopped:
            failures = {name: ConnectError("tflaunch was told not to wait") for name in names}
        self.close()
        return {name: error.message for name, error in {**self._lost, **failures}.items()}

    def close(self) -> None:
        """Take leave of every agent."""
        self._sessions.close()

    # -- while they run

    def release(
        self,
        tasks: Mapping[TaskId, str],
        attempt: int,
        record: Record,
        copies: Copies,
    ) -> None:
        """Open every gate: all tasks start now, and their logs come into `record`, which keeps them in `copies`."""
        hosts = len(self._sessions.by_host)
        self._feed = LogFeed(self._sessions, hosts, self._watcher, record, copies)
        self._feed.expect(tasks, attempt)
        for host in self._sessions.by_host:
            self._feed.watch(host, 0)
        self._sessions.send(self._sessions.by_host, "release")

    def send_off(self) -> None:
        """Open every gate and leave, once all hosts have confirmed it.  Raises LaunchError, Stopped."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "release")
        _, failures = self._sessions.gather("started", names, ENTRUST_S)
        self._refuse(failures)
        self.close()

    def drive(self, state: S, oversight: Overseer, until: Callable[[], bool] = lambda: False) -> S:
        """Feed everything that happens to the state machine and do what it says, until the run is over.

        Or `until` that is true, the run goes on well and every host can be spoken to: then it may be driven on.
        """
        if self._drive is None:
            self._drive = Drive(state, self, self._lease_s, time.monotonic(), oversight=oversight)
        drive: Drive[S] = self._drive
        drive.state = state
        while drive.state.phase != "over":
            if until() and drive.state.phase == "running" and not drive.links.down:
                break
            self._take(drive, self._sessions.next(drive.wake_at(time.monotonic())))
            drive.tick(time.monotonic())
        return drive.state

    def _take(self, drive: Drive[S], item: Item | None) -> None:
        now = time.monotonic()
        match item:
            case Interrupted():
                drive.feed(item, now)
            case Ended(host, Breach() as error):
                self._lose_board(host)
                drive.dead(host, error.message, now)
            case Ended(host, error):
                self._lose_board(host)
                drive.links.ended(host, error.message, now)
            case Written(host, size):
                self._logs.written(host, size)
            case Said(host, message) if message.type == "hello" and host not in drive.links.up:
                if message["run"]:  # the first hello is the visit's, before it leads to the run
                    drive.attached(host, now)
            case Said(host, message) if message.type == "failed":
                drive.dead(host, message["reason"], now)
            case Said(host, message) if foreign := drive.foreign(host, message):
                self._sessions.accuse(host, foreign)
            case Said(host, message):
                if message.type == "log":
                    self._logs.take(host, message)
                elif message.type == "swept":
                    self._logs.swept(host, message["logs"])
                elif self._board is not None and self._board.host == host:
                    self._board.said(message, self._sessions.by_host[host].send)
                drive.said(host, message.type, message.fields, message.body, now)

    @property
    def _logs(self) -> LogFeed:
        assert self._feed is not None, "released"  # noqa: S101
        return self._feed

    # What the drive wants done, and shown.

    def dial(self, host: str) -> None:
        """Go in again; the agent lives on."""
        self._sessions.attach(self._hosts[host], self._run_id)

    def hang_up(self, host: str) -> None:
        """Let go of a wire."""
        self._lose_board(host)
        self._sessions.hang_up(host)

    def watch(self, host: str, after: int) -> None:
        """Ask for what was missed."""
        self._logs.watch(host, after)
        self._ask_for_board(host)

    def send(self, host: str, type: str, **fields: Any) -> None:
        """Send a message."""
        if host in self._sessions.by_host:
            self._sessions.send([host], type, **fields)

    def unreachable(self, host: str, reason: str) -> None:
        """Show that a host is out of reach."""
        self._watcher.unreachable(host, reason)

    def back(self, host: str, away_s: float) -> None:
        """Show that it is back."""
        self._watcher.back(host, away_s)

    def say(self, text: str, urgent: bool) -> None:
        """Tell the user."""
        (self._watcher.say if urgent else self._watcher.note)(text)

    def warn(self, text: str) -> None:
        """Tell the user what should be looked at."""
        self._watcher.warn(text)

    def happened(self, event: Event) -> None:
        """Show what has happened."""
        match event:
            case TaskStarted():
                self._watcher.started(event)
            case TaskExit():
                self._watcher.exited(event)
            case HostLost():
                self._watcher.lost(event)

    def drain(self, timeout_s: float = 1e9) -> dict[TaskId, int]:
        """Bring in what is left of the logs; returns the missing bytes of each task that has any.

        A host whose connection is lost meanwhile is gone back to, for REST_S.  It ends when every byte is here, no
        host that has some can be reached, the time is up or Ctrl-C comes.
        """
        deadline = time.monotonic() + timeout_s
        links = Links(self._logs.awaited, self, time.monotonic())
        for host in links.up:
            if isinstance(error := self._sessions.ended.get(host), Breach):
                links.forget(host)
            elif error or host not in self._sessions.by_host:
                links.ended(host, "its connection is lost", time.monotonic())

        def may_come(host: str) -> bool:
            return host in links.up or (host in links.down and links.away_s(host, time.monotonic()) < REST_S)

        while not self._logs.end(may_come):
            item = self._sessions.next(min(deadline, links.wake_at(time.monotonic())))
            now = time.monotonic()
            if now >= deadline:
                break
            match item:
                case Interrupted():
                    break
                case Written(host, size):
                    self._logs.written(host, size)
                case Ended(host, Breach()):
                    links.forget(host)
                case Ended(host, error):
                    links.ended(host, error.message, now)
                case Said(host, message) if self._drive and (foreign := self._drive.foreign(host, message)):
                    self._sessions.accuse(host, foreign)
                case Said(host, message):
                    links.heard(host, now)
                    if message.type == "log":
                        self._logs.take(host, message)
                    elif message.type == "failed":
                        links.forget(host)
                    elif message.type == "hello" and message["run"] and host not in links.up:
                        links.attached(host, now)
            links.tick(now)
        self._logs.end()
        return self._logs.missing

    def show(self, board: Board) -> None:
        """Have TensorBoard started beside the tasks, and reached from here while they run."""
        self._board = board
        self._ask_for_board(board.host)

    def _ask_for_board(self, host: str) -> None:
        if self._board is not None and self._board.host == host and host in self._sessions.by_host:
            self._sessions.send([host], "board", logdir=self._board.logdir)

    def _lose_board(self, host: str) -> None:
        if self._board is not None and self._board.host == host:
            self._board.lost()

    def fetch(self, hosts: Collection[str], wish: Wish) -> Fetched:
        """Bring the outputs of the tasks on these hosts here. Raises FetchError, Stopped."""
        from tflaunch.runs.fetch import Fetch

        return Fetch(self._run_id, self._sessions, sorted(hosts), self.dial, self._watcher, wish=wish).run()

    def tell_replanned(self, lost: Collection[str]) -> None:
        """Tell those who watch, and who ask later, that the run goes on by another plan, without these hosts."""
        text = f"{', '.join(lost)} is lost: the run is planned anew without it"
        self._sessions.send(self._sessions.by_host, "said", text=text, replanned=True)

    def tell_outcome(self, outcome: Outcome) -> None:
        """Leave on the hosts how the run has ended."""
        self._sessions.send(self._sessions.by_host, "outcome", outcome=outcome_data(outcome))

    def log_paths(self) -> dict[TaskId, str]:
        """Where each task's newest log lies on its host."""
        return self._logs.paths(self._hosts)
