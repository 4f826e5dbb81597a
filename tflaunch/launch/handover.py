"""A run whose tasks run passes from its launcher to a coordinator on one of its hosts (`tflaunch detach`).

The run is in exactly one hand at each moment.  The launcher first stops to decide: from then on it only keeps what the
hosts report.  All agents open a door for the coordinator (by their answers they have carried out all orders of the
launcher), and a coordinator on trial finds out whether it reaches them all.  Until then nothing has changed: if a step
fails, the launcher takes up what it has kept, and goes on.  One message, `coordinate`, then makes the
coordinator; those before it tell it all that has happened.  Once that is sent the launcher decides nothing any more,
whether it is confirmed or not: if it never arrives, nobody renews the leases, and the agents end the run.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from tflaunch.hosts import fold
from tflaunch.launch.cluster import Cluster
from tflaunch.lifecycle.states import state_data
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, ConnectError, TflaunchError
from tflaunch.protocol.events import Interrupted
from tflaunch.protocol.job import deciding
from tflaunch.protocol.wire import Message
from tflaunch.sessions.linked import Linked

if TYPE_CHECKING:
    from tflaunch.launch.steering import Steering
    from tflaunch.lifecycle.watchdog import Watchdog
    from tflaunch.planning.cluster_plan import ClusterPlan

STEPS_S = 40.0  # for the agents to open their doors and to be reached by the coordinator
MOST_KEPT = 2000  # messages of a host that are kept meanwhile ...
MOST_KEPT_BYTES = 8 << 20  # ... and how large they are together: a host may send what it likes


class KeptReports:
    """What the hosts have reported since the launcher stopped to decide."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self._counts: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def keep(self, host: str, message: Message) -> bool:
        """Keep that message, which is not worth it if it is a mere beat; False: that host has sent too much."""
        if message.type == "beat":
            return True
        size = len(wire.dumps(message.fields)) + len(message.body)
        count, size = self._counts.get(host, 0) + 1, self._bytes.get(host, 0) + size
        if count > MOST_KEPT or size > MOST_KEPT_BYTES:
            return False
        self._counts[host], self._bytes[host] = count, size
        self.messages.append((host, message))
        return True


class Handover(Linked):
    """One attempt to hand a run over; the launcher's own loop stands still meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        steering: Steering,
        plan: ClusterPlan,
        watchdog: Watchdog,
        *,
        lease_s: float,
        since: float,
    ) -> None:
        """`lease_s`: of the run once it is handed over; `since`: when its tasks were released (monotonic)."""
        super().__init__(cluster.sessions, cluster.watcher)
        self._steering = steering
        self._driver = steering.driver
        self._watchdog = watchdog
        self._run_id = cluster.run_id
        self._lease_s = lease_s
        self._since = since
        state = self._driver.state
        gone = state.lost.keys() | state.swept.keys()
        self._addresses = {task.host: task.address for task in plan.tasks if task.host not in gone}
        tasks = [task for task in plan.tasks if task.host not in gone]
        self.coordinator_host = min(tasks, key=lambda task: deciding(task.id)).host if tasks else ""
        self._kept = KeptReports()
        self._breaches: dict[str, Breach] = {}
        self._ports: dict[str, int] = {}
        self._secrets = {host: secrets.token_hex(32) for host in self._addresses}
        self._missing: dict[str, str] | None = None  # hosts that the coordinator on trial does not reach
        self._sent = False  # the message that makes the coordinator
        self._confirmed = False
        self._interrupted: Interrupted | None = None
        self._refused: TflaunchError | None = None
        self.in_doubt = ""  # why it is not known whether the coordinator is there

    def run(self) -> TflaunchError | None:
        """Hand the run over; returns why that was not possible: then the launcher has to go on deciding.

        When it returns None, the run goes on without this launcher, or (`in_doubt`) its agents end it.
        """
        if why := self._unfit():
            return why
        self.link(self._addresses)
        for host, address in self._addresses.items():
            self._sessions.send([host], "entrust", secret=self._secrets[host], address=address, later=True)
        deadline = self.awake_s + STEPS_S
        while not self._sent and self._refused is None:
            if self.awake_s >= deadline:
                self._refused = self._late()
            elif self.links.down:
                host, why_down = next(iter(self.links.down.items()))
                self._refused = ConnectError(
                    f"{host} is out of reach: {why_down}", "try again when it is back"
                )
            else:
                self.turn(deadline)
        if self._refused is not None:
            self._take_up_again()
            return self._refused
        self._await_confirmation()
        return None

    def _unfit(self) -> TflaunchError | None:
        """Why this run cannot be handed over just now."""
        if self._driver.state.phase not in ("running", "restarting") or not self.coordinator_host:
            return TflaunchError("the run is about to end", f"watch it: tflaunch attach {self._run_id}")
        if down := self._driver.links.down:
            return ConnectError(f"{fold(down)} is out of reach just now", "try again when it is back")
        return None

    def _late(self) -> ConnectError:
        if silent := self._addresses.keys() - self._ports.keys():
            return ConnectError(f"{fold(silent)} did not answer within {STEPS_S:g} s", "try again")
        return ConnectError(f"the coordinator on {self.coordinator_host} did not start", "try again")

    def _await_confirmation(self) -> None:
        """Return once the coordinator is there, or after the lease: then either it is there, or the run has ended."""
        deadline = self.awake_s + self._driver.lease_s
        while not self._confirmed and not self._interrupted and self.awake_s < deadline:
            self.turn(deadline)
        if not self._confirmed:
            self.in_doubt = self.links.down.get(self.coordinator_host) or "no answer"

    def _take_up_again(self) -> None:
        """Have the launcher go on deciding, with all that has been reported meanwhile."""
        for host, message in self._kept.messages:
            self._steering.said(host, message)
        now = time.monotonic()
        for host, why in self.links.down.items():
            self._steering.disconnected(host)
            self._steering.links.ended(host, why, now)
        for host, breach in self._breaches.items():
            self._steering.give_up(host, breach)
        if self._interrupted is not None:
            self._steering.interrupted(self._interrupted)

    def _hand_over(self) -> None:
        """Send what makes the coordinator; a repetition does nothing on a host that has got it."""
        self._sent = True
        host = self.coordinator_host
        known = {"run": self._run_id, "drive": self._driver.memory(), "watchdog": self._watchdog.memory()}
        memory = wire.dumps(known).encode("ascii")
        for at in range(0, len(memory), wire.BODY_LIMIT):
            last = at + wire.BODY_LIMIT >= len(memory)
            piece = memory[at : at + wire.BODY_LIMIT]
            self._sessions.send([host], "memory", piece, offset=at, last=last)
        self._coordinate(trial=False)

    def _coordinate(self, *, trial: bool) -> None:
        now = time.monotonic()
        members = {
            host: [address, self._ports[host], self._secrets[host]]
            for host, address in self._addresses.items()
        }
        self._sessions.send(
            [self.coordinator_host],
            "coordinate",
            members=members,
            state=state_data(self._driver.state),
            lease_s=self._lease_s,
            started=time.time() - (now - self._since),
            watchdog=self._watchdog.data(),
            clock=now,
            trial=trial,
        )

    # What happens.

    def said(self, host: str, message: Message) -> None:
        """Go a step further; keep what the launcher must hear of if the handover fails."""
        if message.type == "log":
            self._steering.said(host, message)
        elif message.type == "entrusted":
            self._ports[host] = message["port"]
            if self._ports.keys() == self._addresses.keys() and self._missing is None:
                self._coordinate(trial=True)
        elif message.type == "coordinating" and host == self.coordinator_host and not self._sent:
            self._missing = dict(message["missing"])
            if unreached := self._missing.keys() & self._addresses.keys():
                self._refused = self._cut_off(min(unreached))
            elif self._interrupted is None:
                self._hand_over()
        elif message.type == "handed" and host == self.coordinator_host and self._sent:
            self._confirmed = True
        elif not self._sent and not self._kept.keep(host, message):
            self._refused = self._refused or ConnectError(f"{host} sends too much just now", "try again")

    def _cut_off(self, host: str) -> ConnectError:
        why = (self._missing or {})[host]
        return ConnectError(
            f"the agent of {self.coordinator_host} would coordinate the run, and cannot reach {host} at "
            f"{self._addresses[host]}:{self._ports[host]}: {why}",
            "open that range of ports between the hosts (`ports:` in the hostfile)",
        )

    def give_up(self, host: str, error: ConnectError) -> None:
        """That host cannot do its part, or breaks the protocol."""
        if isinstance(error, Breach):
            self._breaches[host] = error
            self.links.forget(host)
        if not self._sent:
            self._refused = self._refused or ConnectError(f"{host}: {error.message}", error.hint)

    def dead(self, host: str, error: ConnectError) -> None:
        """Never called: `give_up` is overridden."""

    def interrupted(self, signal: Interrupted) -> None:
        """The user ends the run, or leaves."""
        self._interrupted = signal
        if not self._sent:
            self._refused = self._refused or TflaunchError("the user ends it")

    def written(self, host: str, size: int) -> None:
        """Let that host send more of its logs."""
        self._steering.written(host, size)

    def dial(self, host: str) -> None:
        """Connect again to the agent that may have missed the message that makes the coordinator."""
        if host == self.coordinator_host:
            self._steering.dial(host)

    def watch(self, host: str, after: int) -> None:  # noqa: ARG002 - its events are the coordinator's now
        """Send it again."""
        if self._sent and host == self.coordinator_host:
            self._hand_over()

    def unreachable(self, host: str, reason: str) -> None:
        """Say nothing: if the launcher goes on, it says so itself."""

    def back(self, host: str, away_s: float) -> None:
        """Say nothing."""
