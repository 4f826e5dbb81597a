"""The coordinator decides for a detached run, by the same rules as a launcher: a child process of one host's agent.

It reaches the agents by peer_connections, and learns what happens from their journals.  Its own agent keeps its memory:
when it dies, the next coordinator continues from that.  An agent keeps its tasks only as long as the coordinator renews
its lease: when the coordinator's host is gone, each host ends its part of the run.
"""

import time

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.peer_connections import PeerConnections
from tflaunch.agent.tally_file import TallyFile
from tflaunch.agent.viewer import COORDINATOR
from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.ending import outcome_of
from tflaunch.lifecycle.links import SILENCE_S
from tflaunch.lifecycle.states import state_from
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol import messages, wire
from tflaunch.protocol.fields import Each, a_whole_number, a_word, anything, check, one_of
from tflaunch.protocol.outcome import outcome_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set, Tuple

    from tflaunch.agent.peer_connections import PeerConnection
    from tflaunch.lifecycle.states import State
    from tflaunch.protocol.events import Event

RENEW_S = 5.0
OWN_S = 5.0  # an agent beats every 2.5 s
LOOK_S = 0.2
ALL_THERE_S = 20.0  # how long the first connections to all hosts may take
FAREWELL_S = 5.0


class Coordinator:
    """The transport of one driver: dials, sends and receives, until the run is over."""

    def __init__(self, directory: RunDirectory, plan: "Dict[str, Any]", memory: bytes = b"") -> None:
        """`plan`: members (host -> address, port, secret in hex), lease_s, started (epoch seconds), watchdog (its
        arguments), state (lifecycle.states.state_data); of a run that its launcher has handed over, ahead_s (of the
        launcher's clock); trial (only find out which hosts can be reached).  `memory`: the last one that an earlier
        coordinator, or that launcher, sent."""
        self._directory = directory
        self._members = plan["members"]  # type: Dict[str, List[Any]]
        self._lease_s = plan["lease_s"]  # type: float
        self._started = plan["started"]  # type: float
        self._peers = PeerConnections(directory, self._members, self)
        self._plan = plan
        self._ahead_s = plan.get("ahead_s", 0.0)  # type: float  # the clock of all times here, before this machine's
        self._trial = plan.get("trial", False)
        self._changed = False  # since the agent last got the memory
        self._kept = 0  # addresses in the memory that the agent has
        self._unsaid = ""  # a sentence for the user, kept until the agent can take it
        self._drive, self._watchdog = self._begin()
        zero = self._now() - max(0.0, time.time() - self._started)
        self._tallies = TallyFile(directory, self._watchdog.data(), self._started, zero)
        if memory and not self._trial:
            try:
                self._resume(memory)
            except (ValueError, RecursionError) as error:
                # `_resume` may have applied a part.  Begin anew: the agents' journals say what has happened.
                self._drive, self._watchdog = self._begin()
                self._unsaid = (
                    "the run's coordinator has died, and the next one cannot use its memory (%s): it asks all "
                    "hosts again what happened" % error
                )
        now = self._now()
        self._renew_at = self._own_heard = now
        self._awaited = set(self._members)
        self._all_there_by = now + ALL_THERE_S

    def _now(self) -> float:
        """The time, by the clock of the launcher where that has handed the run over."""
        return time.monotonic() + self._ahead_s

    def _begin(self) -> "Tuple[Driver[State], Watchdog]":
        """The driver in the state at the start of the run, and the watchdog with the run's time limits."""
        now = self._now()
        watchdog = Watchdog(**self._plan["watchdog"])
        watchdog.begin(now - max(0.0, time.time() - self._started))
        state = state_from(self._plan["state"])
        self._places = dict(state.places)  # that the watchdog knows
        return Driver(state, self, self._lease_s, now, up=False, monitor=watchdog), watchdog

    def _follow_moves(self) -> None:
        """Have another watchdog look after the tasks if some are on another host now."""
        places = dict(self._drive.state.places)
        if places == self._places:
            return
        self._places = places
        settings = self._plan["watchdog"]
        where, gpus = dict(settings["places"]), dict(settings["settings"].get("gpus", {}))
        for seat, host in places.items():
            spot = self._plan["moves"][seat][host]
            for task, port in spot["ports"].items():
                listens = where[task][2] is not None
                where[task] = [host, spot["address"], port if listens else None]
            gpus.update(spot["gpus"])
        changed = dict(settings, places=where, settings=dict(settings["settings"], gpus=gpus))
        self._watchdog = Watchdog(**changed)
        self._tallies.follow(changed)
        now = self._now()
        self._watchdog.begin(now, now - max(0.0, time.time() - self._started))
        self._drive.replace_monitor(self._watchdog)

    def _memory(self) -> bytes:
        self._kept = len(self._peers.addresses)
        known = {
            "run": self._directory.run,
            "drive": self._drive.memory(),
            "watchdog": self._watchdog.memory(),
            "addresses": self._peers.addresses,
        }
        return wire.dumps(known).encode("ascii")

    def _resume(self, memory: bytes) -> None:
        """Continue from an earlier coordinator's memory; raises ValueError or RecursionError if it is not usable."""
        known = wire.loads(memory.decode("ascii"))
        addresses = Each(a_word, (a_whole_number, [anything]))
        spec = {"run": one_of(self._directory.run), "drive": anything, "watchdog": anything}
        check(dict(spec, **{"?addresses": addresses}), known)  # a launcher's has none
        self._peers.addresses.update(known.get("addresses", {}))
        self._drive.resume(known["drive"])
        self._follow_moves()
        self._watchdog.resume(known["watchdog"])

    def run(self) -> None:
        """Returns once every host is swept or lost, and the hosts know the outcome."""
        while self._drive.state.phase != "over" and not (self._trial and not self._all_there_by):
            self._turn(self._drive.wake_at(self._now()))
            self._drive.tick(self._now())
            self._follow_moves()
            self._report_readiness()
        if self._trial:
            self._turn(self._now())
            return
        self._tallies.close()
        state = self._drive.state
        # What a lost host had has moved on: by then its agent has ended the tasks there.
        unsure = {host: why for host, why in state.lost.items() if host in state.hosts.values()}
        outcome = outcome_of(
            state, self._directory.run, max(0.0, time.time() - self._started), unverified=unsure
        )
        self._send_outcome(outcome_data(outcome), set(self._members) - state.lost.keys())

    def _send_outcome(self, outcome: "Dict[str, Any]", hosts: "Set[str]") -> None:
        deadline = self._now() + FAREWELL_S
        own = self._directory.host
        while self._now() < deadline:
            for host, peer in list(self._peers.by_host.items()):
                if peer.attached and host in hosts:
                    hosts.discard(host)
                    self._drive.links.forget(host)
                    self.send(host, "outcome", outcome=outcome)
                    if host != own:
                        self.send(host, "bye")
            if not hosts and not any(peer.held or peer.out for peer in self._peers.by_host.values()):
                break
            self._drive.links.tick(self._now())
            self._turn(self._now() + 0.2)
        self.send(own, "bye")  # last: this process ends with its agent
        self._turn(self._now())

    def _turn(self, wake_at: float) -> None:
        now = self._now()
        if now >= self._renew_at:
            hangs = now - self._own_heard > min(SILENCE_S, max(OWN_S, self._lease_s * 3 / 4))
            self._renew_at = now + (LOOK_S if hangs else min(RENEW_S, self._lease_s / 4))
            for host, peer in list(self._peers.by_host.items()):
                # Where its agent hangs this process ends with it, and the leases of the others must be over soon after.
                if peer.attached and not hangs:
                    self.send(host, "renew", lease_s=self._lease_s)
        if self._keep_memory():
            for host in list(self._peers.by_host):
                self._peers.pass_on(host)
        timeout = max(0.0, min(wake_at, self._renew_at) - self._now())
        self._peers.turn(timeout)

    def _keep_memory(self) -> bool:
        """Send the memory to this host's agent if it has changed; returns whether the agent has all of it.

        Until then all orders wait.  Otherwise the next coordinator would see tasks end without knowing that this one
        stopped or restarted them.  Bytes that the socket has taken arrive even if this process is killed.
        """
        host = self._directory.host
        own = self._peers.by_host.get(host)
        if host in self._drive.state.lost:
            return True  # its agent hangs, and starts no other coordinator
        if own is not None and own.attached and len(self._peers.addresses) > self._kept:
            self._changed = not self._trial
        # Not once the run is over: the next coordinator must see the event that ended the run, to report the outcome.
        if self._changed and self._drive.state.phase != "over":
            if own is None or not own.attached:
                return False
            self._changed = False
            memory = self._memory()
            # In pieces: with thousands of ended tasks the memory does not fit into one frame.
            for at in range(0, len(memory), wire.BODY_LIMIT):
                last = at + wire.BODY_LIMIT >= len(memory)
                own.out += wire.encode("memory", memory[at : at + wire.BODY_LIMIT], offset=at, last=last)
        if own is not None:
            self._peers.pass_on(host)
        return own is None or not own.out

    def _report_readiness(self) -> None:
        if self._all_there_by and (not self._awaited or self._now() > self._all_there_by):
            self._all_there_by = 0.0
            down = self._drive.links.down
            missing = {host: down.get(host) or "no connection" for host in self._awaited}
            self.send(self._directory.host, "coordinating", missing=missing)

    # -- what the connections and the driver call

    def dial(self, host: str) -> None:
        """Begin to connect to a host."""
        try:
            self._peers.dial(host)
        except OSError as error:
            self._drive.links.ended(host, str(error), self._now())

    def hang_up(self, host: str) -> None:
        """Close the connection to a host."""
        self._changed |= host == self._directory.host  # a memory on its way may be lost: send it again
        self._peers.hang_up(host)

    def answers(self, host: str) -> bool:
        """False: it dials a silent host again at once, which costs no login."""
        return False

    def lost(self, host: str, reason: str) -> None:
        """The connection has ended, or did not come about."""
        self.hang_up(host)
        self._drive.links.ended(host, reason, self._now())

    def broke(self, host: str, what: str) -> None:
        """It breaks the protocol between agents."""
        self.hang_up(host)
        self._drive.dead(host, "it breaks the protocol between agents: %s" % what, self._now())

    def take(self, host: str, peer: "PeerConnection", data: bytes) -> None:
        """Bytes of a host; raises WireError."""
        for message in peer.decoder.feed(data):
            if self._peers.by_host.get(host) is not peer:
                return
            if host == self._directory.host:
                self._own_heard = self._now()
            foreign = self._drive.foreign(host, messages.check(message, messages.FROM_AGENT))
            if foreign:
                raise wire.WireError(foreign)
            now = self._now()
            if message.type == "hello":
                if peer.attached:  # otherwise the answers to repeated hellos would grow without end
                    raise wire.WireError("it says hello once more")
                peer.attached = True
                self._awaited.discard(host)
                if self._trial:
                    continue
                self.send(host, "renew", lease_s=self._lease_s)
                self._drive.attached(host, now)
                if self._unsaid and host == self._directory.host:
                    self.say(self._unsaid, urgent=False)
                    self._unsaid = ""
            if message.type == "looked":
                self._tallies.looked(host, message.fields, now)
            self._drive.said(host, message.type, message.fields, b"", now)  # without the ends of logs

    def watch(self, host: str, after: int) -> None:
        """Ask a host's agent for its events after that one."""
        self.send(host, "watch", after=after, logs=None, client=COORDINATOR)

    def send(self, host: str, type: str, **fields: "Any") -> None:
        """Send a message if there is a connection; it waits until this host's agent has the memory."""
        self._peers.hold(host, wire.encode(type, **fields))

    def say(self, text: str, urgent: bool) -> None:
        """Write a sentence for the user into this host's journal, so that present and later viewers see it."""
        if self._trial:
            return
        self.send(self._directory.host, "said", text=text)
        note(text)

    def warn(self, text: str) -> None:
        """As above."""
        self.say(text, urgent=False)

    slowed = warn

    def unreachable(self, host: str, reason: str) -> None:
        """As above."""
        self.say("%s is out of reach of %s: %s" % (host, self._directory.host, reason), urgent=False)

    def back(self, host: str, away_s: float) -> None:
        """As above."""
        self.say("%s is back after %.0f s" % (host, away_s), urgent=False)

    def happened(self, event: "Event") -> None:
        """An event has changed the state."""
        self._changed = True
