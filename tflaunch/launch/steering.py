"""A run whose tasks run: drives its state machine, brings in the last lines and the outputs, shows TensorBoard."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tflaunch.launch.cluster import Cluster
from tflaunch.lifecycle.driver import Driver, Monitor, S
from tflaunch.protocol.errors import ConnectError, Gone, TflaunchError
from tflaunch.protocol.events import Event, Interrupted, TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, outcome_data
from tflaunch.protocol.wire import Message
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.log_feed import LogFeed
from tflaunch.sessions.watcher import Watcher

if TYPE_CHECKING:
    from tflaunch.hosts import Host
    from tflaunch.inputs.patterns import Wish
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.sampling import Sampling
    from tflaunch.runs.tensorboard import TensorBoard

# Of the time that an attempt to hand the run over took, in which the launcher decided nothing.
REST_AFTER_TRIAL = 5
REST_S = 20.0  # for a host whose connection is lost while the last lines come
DRAIN_AFTER_CTRL_C_S = 3.0
HELD_S = 120.0  # the check of lost hosts takes less
NOT_NOW = TflaunchError(
    "its launcher cannot hand it over: it is still starting, or it is a sweep", "try again when it trains"
)


class Steering(Linked):
    """The agents of one run, from the moment in which its tasks are released."""

    def __init__(self, cluster: Cluster, feed: LogFeed) -> None:
        super().__init__(cluster.sessions, cluster.watcher)
        self._run_id = cluster.run_id
        self._hosts = cluster.hosts
        self._lease_s = cluster.lease_s
        self._feed = feed
        self._driver: Driver[Any] | None = None
        self.sampling: Sampling | None = None  # keeps what the tasks use, for `tflaunch report`
        self._tensorboard: TensorBoard | None = None
        self._asked: set[str] = set()  # hosts whose agents pass on that a user wants the run handed over
        # Hands the run over to its agents; returns why not, or None once it has.
        self.hand_over: Callable[[], TflaunchError | None] | None = None
        # (monotonic) any host may ask, again and again: until then it is not tried once more.
        self._rests_until = 0.0
        self.handed_over = False  # the run goes on without this launcher

    def drive(self, state: S, monitor: Monitor, until: Callable[[], bool] = lambda: False) -> S:
        """Feed all events to the state machine and carry out its actions, until the run is over.

        It also returns while the run goes on, once `until()` is true and every host is connected; call it again then.
        And it returns when the run was handed over (`handed_over`): then this launcher decides nothing any more.
        """
        if self._driver is None:
            self._driver = Driver(state, self, self._lease_s, time.monotonic(), monitor=monitor)
            self.links = self._driver.links
        driver: Driver[S] = self._driver
        driver.state = state
        while driver.state.phase != "over":
            if until() and driver.state.phase == "running" and not driver.links.down:
                break
            self.turn()
            if self._asked and self._answer_detach():
                break
        if self.sampling is not None:
            self.sampling.close()
        return driver.state

    def _answer_detach(self) -> bool:
        """Do what `tflaunch detach` asks for; returns whether the run has been handed over."""
        asked, self._asked = self._asked, set()
        why: TflaunchError | None = NOT_NOW
        began = time.monotonic()
        if self.hand_over is not None and began < self._rests_until:
            rest_s = math.ceil(self._rests_until - began)
            why = TflaunchError("its launcher has just tried, in vain", f"try again in {rest_s} s")
        elif self.hand_over is not None:
            why = self.hand_over()
            ended = time.monotonic()
            self._rests_until = ended + REST_AFTER_TRIAL * (ended - began)
        if why is None:
            self.handed_over = True
            return True
        for host in asked:
            self.send(host, "stay", reason=why.message, hint=why.hint)
        return False

    def drain(self, timeout_s: float = 1e9) -> dict[TaskId, int]:
        """Bring in the rest of the logs; returns how many bytes are missing, for each task that has any.

        It ends when every byte is here, when every host that still has some is out of reach (a lost host is dialled
        again for REST_S), when the time is up, or at Ctrl-C.
        """
        _LastLines(self._sessions, self._watcher, self._feed, self).wait(timeout_s)
        return self._feed.missing

    def fetch(self, hosts: Collection[str], wish: Wish) -> Fetched:
        """Fetch the outputs of the tasks on these hosts.  Raises FetchError, Stopped."""
        from tflaunch.runs.fetch import Fetch

        return Fetch(self._run_id, self._sessions, sorted(hosts), self.dial, self._watcher, wish=wish).run()

    def tell_written(self, hosts: Collection[Host]) -> None:
        """Note what the tasks have written on these hosts."""
        from tflaunch.runs.written import tell_written

        tell_written(self._run_id, self._sessions, hosts, self.dial, self._watcher)

    def log_paths(self) -> dict[TaskId, str]:
        """Where each task's newest log lies on its host."""
        return self._feed.paths(self._hosts)

    # What the launcher leaves on the hosts about the run.

    def tell_replanned(self, text: str) -> None:
        """Leave a note on the hosts, for `attach` and `status`: a new plan follows."""
        self._sessions.send(self._sessions.by_host, "said", text=text, replanned=True)

    def hold(self) -> None:
        """Keep the agents, whose tasks have ended, while this thread checks lost hosts and renews no lease."""
        self._sessions.send(self._sessions.by_host, "renew", lease_s=max(self._lease_s, HELD_S))

    def tell_outcome(self, outcome: Outcome) -> None:
        """Leave on the hosts how the run has ended; what they are told first stays."""
        data = outcome_data(dataclasses.replace(outcome, host_logs={}))  # each host knows where its logs are
        self._sessions.post(self._sessions.by_host, "outcome", outcome=data)

    # TensorBoard.

    def show(self, tensorboard: TensorBoard) -> None:
        """Start TensorBoard beside the tasks; it can be reached from this machine while they run."""
        self._tensorboard = tensorboard
        self._start_tensorboard(tensorboard.host)

    def _start_tensorboard(self, host: str) -> None:
        tensorboard = self._tensorboard_of(host)
        if tensorboard is not None and host in self._sessions.by_host:
            self._sessions.send([host], "tensorboard", logdir=tensorboard.logdir)

    def _tensorboard_of(self, host: str) -> TensorBoard | None:
        tensorboard = self._tensorboard
        return tensorboard if tensorboard is not None and tensorboard.host == host else None

    # What happens on the hosts.

    @property
    def driver(self) -> Driver[Any]:
        """The driver of the run's state machine; it exists once `drive` was called."""
        assert self._driver is not None, "driven"  # noqa: S101
        return self._driver

    def said(self, host: str, message: Message) -> None:
        """Act on a message of that host, or close its wire if the message cannot be true."""
        if foreign := self.driver.foreign(host, message):
            self._sessions.report_breach(host, foreign)
            return
        if message.type == "log":
            self._feed.take(host, message)
        elif message.type == "looked" and self.sampling is not None:
            self.sampling.looked(host, message.fields, time.monotonic())
        elif message.type == "detach":
            self._asked.add(host)
        elif message.type == "swept":
            self._feed.swept(host, message["logs"])
        elif (tensorboard := self._tensorboard_of(host)) is not None:
            tensorboard.said(message, self._sessions.by_host[host].send)
        self.driver.said(host, message.type, message.fields, message.body, time.monotonic())

    def dead(self, host: str, error: ConnectError) -> None:
        """Count that host as lost."""
        self.disconnected(host)
        gone = isinstance(error, Gone)
        runs_on = isinstance(error, Gone) and error.may_run_on
        self.driver.dead(host, error.message, time.monotonic(), reclaimed=gone, runs_on=runs_on)

    def disconnected(self, host: str) -> None:
        """Pause TensorBoard, if it runs there, until the host is back."""
        if (tensorboard := self._tensorboard_of(host)) is not None:
            tensorboard.lost()

    def interrupted(self, signal: Interrupted) -> None:
        """End the run as the state machine says."""
        self.driver.feed(signal, time.monotonic())

    def written(self, host: str, size: int) -> None:
        """Let that host send more of its logs."""
        self._feed.written(host, size)

    def attached(self, host: str, now: float) -> None:
        """Repeat the orders that this host has not carried out yet."""
        self.driver.attached(host, now)

    def heard(self, host: str, now: float) -> None:
        """Repeat the orders to a host that was silent."""
        self.driver.heard(host, now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.driver.tick(now)

    def wake_at(self, now: float) -> float:
        """The time by which `tick` must be called."""
        return self.driver.wake_at(now)

    # What Driver and Links call.

    def dial(self, host: str) -> None:
        """Connect again to the agent of the run there, which lives on."""
        self._sessions.attach(self._hosts[host], self._run_id)

    def hang_up(self, host: str) -> None:
        """Close a connection that is silent."""
        self.disconnected(host)
        super().hang_up(host)

    def answers(self, host: str) -> bool:
        """Whether the kernel of that host, which is silent, acknowledges what is sent to it."""
        session = self._sessions.by_host.get(host)
        return session is not None and session.acknowledged

    def watch(self, host: str, after: int) -> None:
        """Ask for the events and logs that were missed."""
        self._feed.watch(host, after)
        self._start_tensorboard(host)

    def send(self, host: str, type: str, **fields: Any) -> None:
        """Send a message."""
        if host in self._sessions.by_host:
            self._sessions.send([host], type, **fields)

    def say(self, text: str, urgent: bool) -> None:
        """Show what the state machine, or the watchdog, says."""
        (self._watcher.say if urgent else self._watcher.note)(text)

    def warn(self, text: str) -> None:
        """Show a sentence about something that needs attention."""
        self._watcher.warn(text)

    def slowed(self, text: str) -> None:
        """Show what makes the run slower than it could be."""
        self._watcher.slowed(text)

    def happened(self, event: Event) -> None:
        """Show what has happened."""
        match event:
            case TaskStarted():
                self._watcher.started(event)
            case TaskExit():
                self._watcher.exited(event)
            case HostLost():
                self._watcher.lost(event)


class _LastLines(Linked):
    """The hosts of a run that is over, until the logs of its tasks are here."""

    def __init__(self, sessions: Sessions, watcher: Watcher, feed: LogFeed, steering: Steering) -> None:
        super().__init__(sessions, watcher)
        self._feed = feed
        self._steering = steering
        self._given_up = False  # by Ctrl-C

    def wait(self, timeout_s: float) -> None:
        """Return when every byte is here, when no more can come, when the time is up, or at Ctrl-C."""
        self.link(self._feed.awaited)
        deadline = self.awake_s + timeout_s
        while not self._feed.end(self._may_come) and not self._given_up and self.awake_s < deadline:
            self.turn(deadline)
        self._feed.end()

    def _may_come(self, host: str) -> bool:
        links = self.links
        return host in links.up or (host in links.down and links.away_s(host, time.monotonic()) < REST_S)

    def said(self, host: str, message: Message) -> None:
        """Take a piece of a log."""
        if foreign := self._steering.driver.foreign(host, message):
            self._sessions.report_breach(host, foreign)
        elif message.type == "log":
            self._feed.take(host, message)

    def dead(self, host: str, error: ConnectError) -> None:
        """Nothing more comes from that host."""

    def written(self, host: str, size: int) -> None:
        """Let that host send more."""
        self._feed.written(host, size)

    def interrupted(self, signal: Interrupted) -> None:  # noqa: ARG002 - whichever it is
        """Wait no longer."""
        self._given_up = True

    def dial(self, host: str) -> None:
        """Connect to that host again."""
        self._steering.dial(host)

    def watch(self, host: str, after: int) -> None:
        """Ask for the rest of its logs."""
        self._feed.watch(host, after)
