"""All agents of a command: one queue for what they say, their leases, and which hosts are dialled and awaited."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from tflaunch.hosts import Host, fold
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, ConnectError, Gone
from tflaunch.protocol.events import Interrupted
from tflaunch.sessions.absent_hosts import AbsentHosts
from tflaunch.sessions.dialler import CONNECT_THREADS, Boot, Connected, dial
from tflaunch.sessions.early_answers import EarlyAnswers
from tflaunch.sessions.interrupts import interrupts
from tflaunch.sessions.limits import refuse_too_many
from tflaunch.sessions.probe import probed
from tflaunch.sessions.session import Damaged, Ended, Said, Session
from tflaunch.sessions.wires import Opener

_T = TypeVar("_T")

# Python's switch interval: each thread that waits for the interpreter wakes once in this time to ask for it.  With
# 256 threads, Python's default of 5 ms costs a tenth of the CPU.  A thread that computes may keep the others waiting
# for as long as this.
SWITCH_S = 0.05
RENEW_S = 5.0
RETRY_S = (1.0, 60.0)  # pause before a lost host is dialled again: the first, the longest
LAST_WORDS = ("swept", "finished")  # after these messages an agent may end
FAREWELL_S = 1.0  # for the last messages to all hosts together
ASLEEP_S = 6.0  # `next` looks into the queue every RENEW_S: after a longer gap this process was stopped
MOVED_S = 0.2  # how often the watcher is told how many bytes have moved
AWAITED_SHOWN = 3  # at most so many hosts are named while the launcher waits for them
ENDING_S = 1.0  # after the deadline of a dial, for what it says of its end
HUNG_LOOK_S = 1.0  # how often to look which agents hang
NVML_SHARE = 2 / 3  # of the time that a host may take to connect: what its NVIDIA driver may take to answer
NVML_LEAST_S = 5.0


class Written(NamedTuple):
    """That many log bytes of a host have been shown: the host may send more."""

    host: str
    size: int


class Answered(NamedTuple):
    """The user has typed a line."""

    words: str | None  # None: the input is at its end
    question: object  # the one that is answered
    again: bool = False  # nothing was typed: this process was stopped, and the question may be off the screen


class Typed(NamedTuple):
    """The user has typed that key."""

    key: str


Item = Said | Ended | Connected | Written | Interrupted | Answered | Typed


class Stopped(Exception):
    """Ctrl-C, SIGTERM or `tflaunch stop` before the tasks were started."""

    def __init__(self, interrupted: Interrupted) -> None:
        super().__init__()
        self.interrupted = interrupted
        self.unconfirmed: Mapping[str, str] = {}  # host -> why it is not known that nothing is left there


def interruption(item: Item | None) -> Interrupted | None:
    """The user's request to end the command, if `item` is one: Ctrl-C, SIGTERM, or `tflaunch stop` elsewhere."""
    match item:
        case Interrupted():
            return item
        case Said(_, message) if message.type == "expired" and message["asked"]:
            return Interrupted(signal.SIGTERM)
    return None


def _failure(message: wire.Message) -> ConnectError:
    fields = message.fields
    kind = Damaged if fields.get("again") else Gone if "ends_in" in fields else ConnectError
    return kind(fields["reason"], fields.get("hint", ""))


class Sessions:
    """All agents of one command, driven by one thread (the caller's) from one queue."""

    def __init__(self, opener: Opener, phase: Callable[..., None], lease_s: float | None = None) -> None:
        """`phase` shows how far a step has come, as Watcher.phase does; with `lease_s`, leases last so long."""
        self.by_host: dict[str, Session] = {}
        self.as_user = ""  # act for this user, on hosts where the log-in is root's
        self.silence_s = math.inf  # an agent that is waited for, and says nothing for so long, hangs
        # A host that refuses the connection is dialled again for so long: its sshd may be starting.
        self.insists_s = 0.0
        self.heard: dict[str, float] = {}  # host -> when it connected, or last said anything (monotonic)
        self.ended: dict[str, ConnectError] = {}  # host -> why its wire has ended
        self._opener = opener
        self._phase = phase
        self._lease_s = lease_s
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.put: Callable[[Item], None] = self._queue.put
        self._hung_at = 0.0  # when to look next which agents hang
        self._next_renewal = 0.0
        self._ignored: set[str] = set()
        self.early = EarlyAnswers()
        self.slept_s = 0.0  # how long this process was stopped in all (Ctrl-Z, a closed lid)
        self._turn = time.monotonic()  # when this thread last looked into the queue

    @property
    def awake_s(self) -> float:
        """A monotonic clock that stands still while this process is stopped."""
        return time.monotonic() - self.slept_s

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Inside, Ctrl-C and SIGTERM come through the queue; outside, they do what they did before."""
        with interrupts(self._queue.put):
            yield

    def connect(self, hosts: Iterable[Host], verb: str, run: str, first: Callable[[Host], bytes]) -> None:
        """Begin to connect to `hosts`; `first(host)` is sent right behind the loader.

        The queue gets Connected or Ended for each of them.  Raises UsageError if this process may not open so many.
        """
        hosts = list(hosts)
        refuse_too_many(len(hosts) + len(self.by_host))
        sys.setswitchinterval(SWITCH_S)
        for host in hosts:
            self.ended.pop(host.name, None)
            self._ignored.discard(host.name)
        dial(hosts, Boot(verb, run, self.as_user, first), self._opener, self.put, self.insists_s)

    @staticmethod
    def patience_s(hosts: int, connect_s: float) -> float:
        """How long that many hosts may take when each may take `connect_s` to connect, to boot and to answer."""
        return connect_s * -(-hosts // CONNECT_THREADS) + ENDING_S

    def send(self, hosts: Iterable[str], type: str, body: bytes = b"", **fields: Any) -> None:
        """Send the same message to each of `hosts`, encoded once."""
        frame = wire.encode(type, body, **fields)
        for host in hosts:
            self.by_host[host].send_frame(frame, type, fields)

    def post(self, hosts: Iterable[str], type: str, **fields: Any) -> None:
        """Send the same message to each of `hosts` with the next one that goes there.

        While `next` is called, that is a renewal at the latest.
        """
        frame = wire.encode(type, **fields)
        for host in hosts:
            self.by_host[host].post_frame(frame, type, fields)

    def gather(
        self,
        wanted: str,
        hosts: Collection[str],
        timeout_s: float,
        phase: str = "",
        unanswered: Callable[[str], ConnectError | None] | None = None,
        *,
        moved: Callable[[], tuple[int, int]] | None = None,
        also: Collection[str] = (),
        arrived: dict[str, float] | None = None,
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """Wait for one message of type `wanted` from each of `hosts`; returns them, and why the other hosts sent none.

        `unanswered` says why there is no TCP connection to a host.  With it, such hosts are given up after TCP_S,
        once all other hosts have answered and any host is up.  `moved` says how many bytes of how many have gone to the
        hosts.  `arrived` gets the time (epoch seconds) at which each host has answered.  An agent that is silent for
        `silence_s` is given up before the time is up.  When one of the hosts `also`, of which no message is wanted, is
        lost or hangs, the others are not waited for.  Raises Stopped.
        """
        absent = AbsentHosts(unanswered)
        begun = self.awake_s
        line = ""
        replies: dict[str, wire.Message] = {}
        failures = {name: self.ended[name] for name in hosts if name in self.ended}
        missing = set(hosts) - failures.keys()
        deadline = self.awake_s + timeout_s
        while missing:
            if phase:
                named, so_far = _named(missing), moved() if moved else None
                self._phase(phase, len(replies), len(hosts), named, moved=so_far, line=line)
            if (gone := absent.given_up(missing)) and self.by_host:
                failures |= gone
                self.stop_waiting(gone)
                break
            if hung := self._give_up_hung(missing, also, begun):
                failures |= hung
                missing = missing - hung.keys() if hung.keys().isdisjoint(also) else set()
                continue
            look_at = min(absent.look_at, time.monotonic() + (MOVED_S if moved else HUNG_LOOK_S))
            match self.next(min(deadline + self.slept_s, look_at)):
                case None if self.awake_s < deadline:
                    continue
                case None:
                    failures.update(self._give_up(missing, timeout_s))
                    missing.clear()
                case Said(name, message) if name in missing and message.type == wanted:
                    replies[name] = message
                    missing.remove(name)
                    if arrived is not None:
                        arrived[name] = time.time()
                case Said(name, message) if name in missing and message.type == "preparing":
                    line = f"{name}: {message['line']}"
                case Said(_, message) if message.type == "expired" and wanted in LAST_WORDS:
                    continue  # the wanted message follows
                case item if interrupted := interruption(item):
                    raise Stopped(interrupted)
                case Said(name, message) if name in missing and message.type in ("failed", "expired"):
                    failures[name] = _failure(message)
                    # Of slots, mostly all are taken back: what the others are at has no use any more.
                    missing = set() if isinstance(failures[name], Gone) else missing - {name}
                case Ended(name, error) if name in (*hosts, *also) and name not in failures:
                    if wanted in LAST_WORDS and name in replies:
                        continue
                    replies.pop(name, None)
                    missing = missing - {name} if name in hosts else set()
                    failures[name] = error
        if phase:
            self._phase(phase, len(replies), len(hosts), fold(failures) if failures else "")
        # In the order of the hosts, not in that of their answers: what is told of several names them alike each time.
        return _ordered(replies, hosts), _ordered(failures, (*hosts, *also))

    def _give_up_hung(
        self, missing: Collection[str], also: Collection[str], begun: float
    ) -> dict[str, ConnectError]:
        """Give up those of these hosts whose agents hang; they are waited for since `begun` (of `awake_s`).

        It looks only every HUNG_LOOK_S, not at each message: each look is at all hosts.
        """
        now = time.monotonic()
        if now < self._hung_at:
            return {}
        self._hung_at = now + HUNG_LOOK_S
        since = now - self.silence_s
        hung = [
            name
            for name in {*missing, *also}
            if name in self.by_host and max(self.heard.get(name, 0.0), begun + self.slept_s) <= since
        ]
        return self._give_up(hung, self.silence_s)

    def _give_up(self, names: Collection[str], seconds: float) -> dict[str, ConnectError]:
        """Why these hosts, which have not answered for so long, are given up; with `silence_s` they are hung up on."""
        failures = {}
        for name in names:
            session = self.by_host.get(name)
            failures[name] = (
                session.silent(seconds) if session else ConnectError(f"no connection within {seconds:g} s")
            )
        if self.silence_s < math.inf:
            for name in failures:
                self.hang_up(name)
            self.stop_waiting(failures)
        return failures

    def next(self, deadline: float) -> Item | None:
        """Wait for the next thing that happens; None at `deadline` (monotonic).

        Meanwhile leases are renewed, and visits get signs of life.
        """
        while True:
            now = self._wake()
            if now >= self._next_renewal:
                self._next_renewal = now + (
                    RENEW_S if self._lease_s is None else min(RENEW_S, self._lease_s / 4)
                )
                for session in self.by_host.values():
                    self._renew(session)
            try:
                item = self._queue.get(timeout=max(0.0, min(deadline, self._next_renewal) - now))
            except queue.Empty:
                if self._wake() >= deadline:
                    return None
                continue
            self._wake()
            match item:
                case Connected(host, channel) if host.name in self._ignored or self._lives(host.name):
                    # Not wanted any more, or dialled twice, and the other connection was quicker.
                    channel.close()
                    continue
                case Connected(host, channel):
                    self.by_host[host.name] = Session(host, channel, self._queue.put)
                    self.ended.pop(host.name, None)
                    self.heard[host.name] = time.monotonic()
                case Said(name, _, number) | Ended(name, _, number) if not self._current(name, number):
                    continue
                case Said(name, message):
                    self.by_host[name].read += 1
                    self.heard[name] = time.monotonic()
                    if message.type == "hello":  # earlier, the visit that leads to the agent might get it
                        self._renew(self.by_host[name], Session.post)
                    answer = probed(self.by_host[name], message)
                    if answer is None or self.early.keep(name, message):
                        continue
                    item = item._replace(message=answer)
                case Ended(name, error):
                    self.ended[name] = error
                    if name in self.by_host:
                        self.by_host[name].close_now()
            return item

    def pause(self, seconds: float) -> None:
        """Let time pass; leases are renewed.  Raises Stopped."""
        deadline = time.monotonic() + seconds
        while (item := self.next(deadline)) is not None:
            if interrupted := interruption(item):
                raise Stopped(interrupted)

    def _renew(self, session: Session, send: Callable[..., None] = Session.send) -> None:
        if self._lease_s is not None:
            send(session, "renew", lease_s=self._lease_s)
        else:  # only a sign of life, which visits and agents of every version take
            send(session, "credit", bytes=0)

    def _current(self, host: str, number: int) -> bool:
        """Whether wire `number` is the one in use, not one that was closed before."""
        if host in self._ignored:
            return False
        if not number:
            return not self._lives(host)
        session = self.by_host.get(host)
        return session is not None and session.number == number

    def _lives(self, host: str) -> bool:
        session = self.by_host.get(host)
        return session is not None and not session.ended

    def _wake(self) -> float:
        """The time (monotonic); if this process was stopped meanwhile, no host counts as silent for that time."""
        now = time.monotonic()
        if (gap := now - self._turn) > ASLEEP_S:
            self.heard = {host: at + gap for host, at in self.heard.items()}
            self.slept_s += gap
        self._turn = now
        return now

    def attach(self, host: Host, run: str, name: str = "") -> None:
        """Begin to connect to the agent of a run that goes on there; `name` is what the run calls that host.

        The queue gets Connected or Ended.
        """
        self.connect([host], "visit", "", lambda host: wire.encode("attach", run=run, host=name or host.name))

    def report_breach(self, host: str, what: str) -> None:
        """Close the wire to a host whose message is well-formed and cannot be true; the queue gets a Breach."""
        if (session := self.by_host.get(host)) is not None and not session.ended:
            session.close_now()
            self._queue.put(Ended(host, Breach(what), session.number))

    def hang_up(self, host: str) -> None:
        """Close a wire at once, without a word to the agent, which may live on."""
        session = self.by_host.pop(host, None)
        if session is not None:
            session.close_now()

    def ignore(self, host: str) -> None:
        """Ignore what still comes from that host, and close the connection to it if it comes about."""
        self._ignored.add(host)

    def stop_waiting(self, errors: Mapping[str, ConnectError]) -> None:
        """Give up connecting to these hosts; the errors say why."""
        for host, error in errors.items():
            self.ended[host] = error
            self.ignore(host)

    def leave(self, host: str) -> Session:
        """Say bye to that agent and close its wire once that is sent."""
        session = self.by_host.pop(host)
        self.ignore(host)
        session.send("bye")
        session.close()
        return session

    def close(self) -> None:
        """Say bye to all agents, and close all wires within FAREWELL_S."""
        sessions = [self.leave(host) for host in list(self.by_host)]
        deadline = time.monotonic() + FAREWELL_S
        for session in sessions:
            session.close_by(deadline)


def _ordered(found: Mapping[str, _T], names: Iterable[str]) -> dict[str, _T]:
    return {name: found[name] for name in names if name in found}


def _named(hosts: Collection[str]) -> str:
    """These hosts, for the user, if they are few."""
    return fold(hosts) if len(hosts) <= AWAITED_SHOWN else ""
