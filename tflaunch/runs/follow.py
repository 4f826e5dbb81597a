"""Following a run from any machine: its hosts send its events and logs; nothing here steers it.

Several commands may follow one run at once.  When the connection to a host is lost, the follower connects again and
gets what it missed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tflaunch.hosts import Host, Hostfile
from tflaunch.lifecycle.driver import understand
from tflaunch.lifecycle.links import Links
from tflaunch.protocol.errors import Breach, ConnectError, Gone
from tflaunch.protocol.events import AgentGaveUp, TaskStarted
from tflaunch.protocol.job import TRIAL, TaskId, deciding
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, Outcome, Reclaimed, TaskExit, outcome_from
from tflaunch.protocol.wire import Message
from tflaunch.runs.run_states import RunState
from tflaunch.runs.wanted import WantedLogs
from tflaunch.runs.written import tell_written
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.log_feed import STALL_S, LogFeed
from tflaunch.sessions.session import Silent
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.times import duration

ANSWER_S = 30.0  # for the first agent to accept the follower ...
MORE_S = (
    5.0  # ... and for the others: what has answered by then is shown, the rest is named and may come later
)
GONE_S = (
    60.0  # to wait, at most, for the last lines of a host out of reach, once it is known how the run ends
)
REST_S = 15.0  # to wait for a host out of reach while logs are printed
NOTES = 200  # at most so many notes of one host are shown
OUTCOME_S = 10.0  # for the deciding agent to say how the run ended, once every host has ended its part


@dataclass
class _Seen:
    """What the hosts have said of the run so far."""

    tasks: set[TaskId] = field(default_factory=set)
    exits: dict[TaskId, TaskExit] = field(default_factory=dict)
    over: dict[str, str] = field(
        default_factory=dict
    )  # host -> why nothing more happens there; "": it is swept
    replanned: bool = False  # a host was lost, and the launcher makes another plan
    expired: bool = (
        False  # an agent ended its part because its lease ran out: no launcher or coordinator was heard of
    )
    reclaimed: Reclaimed | None = None  # the engine takes a slot back, or has
    stopped: bool = False  # somebody ends the run, by `tflaunch stop` for example
    gone: set[str] = field(default_factory=set)  # hosts where the agent of the run is gone
    logs_through: set[str] = field(default_factory=set)  # hosts that have sent all their logs
    outcomes: dict[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # host -> how it says that the run ended
    notes: dict[str, set[str]] = field(default_factory=dict)  # host -> texts that were shown
    strange: set[str] = field(default_factory=set)  # hosts that sent messages about tasks of other hosts


class Follower(Linked):
    """Follows one run, over visits to its hosts that are open already."""

    def __init__(
        self,
        run: RunState,
        sessions: Sessions,
        hostfile: Hostfile,
        watcher: Watcher,
        wanted: WantedLogs,
        *,
        before: Follower | None = None,
    ) -> None:
        """`before` followed the run by an earlier plan; the logs go on where it stopped."""
        super().__init__(sessions, watcher)
        self.run = run
        self.sessions = sessions
        # host that is asked -> host whose directory it has: two hostfiles may name one host differently
        self._there = {share.asked: share.host for share in run.shares if share.asked}
        self._hosts = {host.name: host for host in hostfile.hosts if host.name in self._there}
        self._wanted = wanted
        self._feed = LogFeed(sessions, len(self._hosts), watcher)
        if before is not None:
            self._feed.continue_from(before._feed, {TaskId.parse(task.task): task.host for task in run.tasks})
        self._seen = _Seen()
        self._places = {TaskId.parse(task.task): task.host for task in run.tasks}
        self._at_first = frozenset(self._places.values())  # the hosts that have tasks
        self._awaited: list[str] = []  # hosts whose agent had not answered when all others had
        self._events = False
        self._joined = False  # a terminal shows how the run stands
        self._handed = False  # by its launcher, as the user of this command wanted it
        self.troubles: list[str] = []  # what the caller found on the hosts that are lost
        self.missed: dict[
            str, ConnectError
        ] = {}  # hosts of the run that were not followed, as the caller found
        self.unreached: dict[str, ConnectError] = {}  # hosts whose logs were not printed to their end

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts that accepted the follower."""
        return list(self._hosts)

    def host(self, name: str) -> Host:
        """The host of that name."""
        return self._hosts[name]

    @property
    def unknown(self) -> list[TaskId]:
        """The tasks whose logs are wanted and that the run does not have."""
        return [task for task in self._wanted.tasks if task not in self._seen.tasks]

    @property
    def lost(self) -> list[str]:
        """The hosts that answered that their agent of the run is gone; empty if only logs are shown."""
        return [host for host in self._hosts if self._events and host in self._seen.gone]

    @property
    def replanned(self) -> bool:
        """Whether the run goes on by another plan than the one that was followed."""
        return self._seen.replanned

    def attach(self) -> dict[str, ConnectError]:
        """Attach, through the visits, to the run's agents; returns the hosts that cannot be followed.  Raises Stopped.

        An agent that hangs, or is slow, keeps nobody from seeing the others: it may answer later.
        """
        names = list(self._hosts)
        for name in names:
            self._sessions.send([name], "attach", run=self.run.run_id, host=self._there[name])
        replies, failures = self._sessions.gather("hello", names, MORE_S)
        if not replies:
            silent = [name for name, error in failures.items() if isinstance(error, Silent)]
            replies, more = self._sessions.gather("hello", silent, ANSWER_S - MORE_S)
            failures = {name: error for name, error in {**failures, **more}.items() if name not in replies}
        if replies:
            self._awaited = [name for name, error in failures.items() if isinstance(error, Silent)]
        cut = self._sessions.ended.keys() if replies else ()  # these are dialled again
        failures = {name: error for name, error in failures.items() if name not in {*self._awaited, *cut}}
        for name in failures:
            del self._hosts[name]
            if name in self._sessions.by_host:
                self._sessions.leave(name)
        return failures

    def follow(self, events: bool = True) -> Outcome | None:
        """Show all that happens until the run is over; returns how it ended, if that is known.

        Without `events` only the logs are shown.  Raises Stopped.
        """
        self._events = events
        links = self._begin()
        over_at = alone_at = 0.0
        while True:
            item = self.turn()
            left = self._hosts.keys() - self._seen.over.keys()
            if left and left <= links.down.keys():
                # Only hosts out of reach are left, and they may never come back.
                alone_at = alone_at or self.awake_s
                told = self._outcome_is_known(links.up) or self.awake_s > alone_at + OUTCOME_S
                away_s = {host: links.away_s(host, time.monotonic()) for host in left}
                if told and min(away_s.values()) > self._patience_s:
                    for host in left:
                        why = f"not heard of for {duration(away_s[host])} ({links.down[host]})"
                        links.forget(host)
                        self._do_without(host, why)
            elif not left and self._feed.end(self._may_come):
                over_at = over_at or self.awake_s + (0.0 if self._decider_is_gone else OUTCOME_S)
                late = item is None and self.awake_s > over_at  # take messages that are already here first
                if self._outcome_is_known(links.up) or not links.up or late:
                    break
        outcome = self._outcome()
        if events and outcome is not None and outcome.status == "succeeded":
            tell_written(self.run.run_id, self._sessions, self._hosts.values(), self.dial, self._watcher)
        return outcome

    @property
    def exits(self) -> Mapping[TaskId, TaskExit]:
        """The last exit of each task that has ended."""
        return self._seen.exits

    @property
    def _patience_s(self) -> float:
        """How long to wait for hosts out of reach once all others have ended their part: by then they have, too."""
        if self._seen.expired:
            return 0.0  # no launcher or coordinator is there any more that could bring them back
        decided = self._seen.outcomes or self._seen.stopped  # a lease may be days
        return min(GONE_S, self.run.lease_s) if decided else self.run.lease_s

    def _do_without(self, host: str, why: str) -> None:
        """Wait for that host no more; it is lost, unless those who know how the run ended have heard its end."""
        there = self._there[host]
        outcomes = self._seen.outcomes.values()
        if self._events and outcomes and not any(there in each["unverified"] for each in outcomes):
            self._seen.over[host] = why
            self._watcher.warn(
                f"{host} is out of reach of this machine ({why}); the run has ended there, too. Its last lines, once "
                f"it is back: tflaunch logs {self.run.run_id}"
            )
        else:
            self._end(host, why)

    def _outcome(self) -> Outcome | None:
        """How the run ended, as its hosts say; where they differ, the worst that any of them says."""
        outcomes, reclaimed = self._seen.outcomes, self._seen.reclaimed
        if not outcomes and reclaimed is not None and not self._seen.replanned:
            # Who decides for the run was in a slot that is gone.
            seconds = max(0.0, time.time() - self.run.started) if self.run.started else 0.0
            return Outcome(
                self.run.run_id, "failed", reclaimed.exit_code, seconds, self._seen.exits, reclaimed
            )
        if not outcomes:
            return None
        worst = max(outcomes.values(), key=lambda each: (each["exit_code"] != 0, each["exit_code"]))
        if differing := sorted(
            host for host in outcomes if outcomes[host]["exit_code"] != worst["exit_code"]
        ):
            others = ", ".join(f"{host} says {outcomes[host]['exit_code']}" for host in differing)
            self._watcher.warn(
                f"the hosts differ about how the run ended: {worst['exit_code']}, but {others}"
            )
        return outcome_from(self.run.run_id, worst, self._seen.exits)

    def _outcome_is_known(self, up: Collection[str]) -> bool:
        """Whether most hosts, or all connected ones, have said how the run ended: each of them gets the outcome."""
        outcomes = self._seen.outcomes
        return 2 * len(outcomes) > len(self._hosts) or (bool(outcomes) and outcomes.keys() >= set(up))

    @property
    def _decider(self) -> str:
        """The host whose agent decides for a detached run, as `Starter.entrust` chooses it."""
        chosen = min(self._places, key=deciding, default=None)
        return self._places[chosen] if chosen is not None else ""

    @property
    def _decider_is_gone(self) -> bool:
        """Whether nobody is left who could say how a detached run has ended."""
        gone = {self._there[host] for host in self._seen.gone}
        return self.run.detached and self._decider in gone

    def _owns(self, host: str, tasks: Iterable[str]) -> bool:
        """Whether the plan lets that host have those tasks; any host may have trials, and any task after a new plan."""
        there = self._there[host]
        for task in map(TaskId.parse, tasks):
            place = self._places.get(task, there)
            if place != there and task.job != TRIAL and not self._seen.replanned:
                if host not in self._seen.strange and not self._left_behind(host):
                    self._seen.strange.add(host)
                    self._watcher.warn(f"{host} speaks of {task}, which is on {place}: not shown")
                return False
        return True

    def _left_behind(self, host: str) -> bool:
        """Whether no task is on that host: all that it may tell of them is from before they moved."""
        return self._there[host] not in self._places.values()

    def typed(self, key: str) -> None:
        """`d`: have the launcher of the run hand it over."""
        if key != "d":
            return
        if self.run.detached or self._handed:
            self._watcher.note("it goes on without a launcher already; Ctrl-C stops watching")
            return
        asked = next((name for name, there in self._there.items() if there == self._decider), "")
        if asked not in self.links.up:
            self._watcher.warn(f"{self._decider} is out of reach: the run is not handed over now")
            return
        self._sessions.send([asked], "detach")
        self._watcher.note("its launcher is asked to hand the run over")

    def _answered(self, reason: str, hint: str) -> None:
        """The run was handed over, or (`reason`) not."""
        if reason:
            self._watcher.warn(f"the run was not handed over: {reason}" + (f" ({hint})" if hint else ""))
        elif not self._handed:
            self._handed = True
            self._watcher.say("the run goes on without its launcher; Ctrl-C stops watching")

    def print_logs(self) -> None:
        """Show what the tasks have printed until now.  Raises Stopped."""
        links = self._begin()
        while not self._hosts.keys() <= self._seen.logs_through:
            self.turn()
            now = time.monotonic()
            for host, why in links.down.items():
                if links.away_s(host, now) > REST_S:
                    self._do_without_logs(host, why)
                    links.forget(host)
            for host in self._hosts.keys() - self._seen.logs_through - links.down.keys():
                if host not in links.up:
                    self._do_without_logs(host, "it closed the connection before")
                elif self._feed.stalls(host):
                    self._do_without_logs(host, f"it sent nothing of them for {STALL_S:g} s")
        self._feed.end()

    def _do_without_logs(self, host: str, why: str) -> None:
        self.unreached[host] = ConnectError(f"the rest of its logs did not come: {why}", "try again")
        self._seen.logs_through.add(host)

    def _begin(self) -> Links:
        self.link(self._hosts)
        for host in self._awaited:
            self.links.awaited(host, f"its agent has not answered within {MORE_S:g} s", time.monotonic())
        for host in self.links.up:
            self.watch(host, 0)
        return self.links

    def _may_come(self, host: str) -> bool:
        return host in self.links.up

    def written(self, host: str, size: int) -> None:
        """Let that host send more: its bytes have been shown."""
        self._feed.written(host, size)

    def disconnected(self, host: str) -> None:
        """Do not dial a host again if it has ended its part."""
        if self._seen.over.get(host) is not None:
            self.links.forget(host)

    def dead(self, host: str, error: ConnectError) -> None:
        """Show that nothing more comes from that host."""
        if isinstance(error, Breach):
            self.unreached[host] = error
        elif isinstance(error, Gone):
            self._seen.reclaimed = self._seen.reclaimed or Reclaimed(error.message, self._there[host])
        self._seen.logs_through.add(host)
        self._end(host, error.message)

    def said(self, host: str, message: Message) -> None:
        """Show what a host says, if it is about its own tasks."""
        if not self._owns(host, tasks_of(message)):
            if message.type == "swept" and self._left_behind(host):
                self._seen.over[host] = "its tasks have moved"
                self._seen.logs_through.add(host)
            return
        if message.type == "log":
            self._feed.take(host, message)
        elif message.type == "handed":
            self._answered(message["reason"], message["hint"])
        elif message.type == "through":
            self._seen.logs_through.add(host)
            self._join()
        elif "n" in message.fields and self.links.takes(host, message["n"]):
            self._happened(host, message.type, message.fields, message.body)

    def _join(self) -> None:
        """Have a terminal show how the run stands, once it has the logs so far."""
        tasks = self.run.tasks
        # Of a sweep nobody knows here how many trials are still to come.
        trials = any(TaskId.parse(task.task).job == TRIAL for task in tasks)
        if self._joined or trials or not (self._events and self.run.alive and self.run.started):
            return
        if self._seen.logs_through >= set(self.links.up):
            self._joined = True
            now, output = time.time(), max((task.output or 0.0 for task in tasks), default=0.0)
            self._watcher.joined(
                len(tasks), max(0.0, now - self.run.started), now - output if output else None
            )

    def _happened(self, host: str, type: str, fields: Mapping[str, Any], body: bytes) -> None:
        if type == "swept":
            self._feed.swept(host, fields["logs"])
            self._seen.over[host] = ""
        elif type == "outcome":
            self._seen.outcomes[host] = fields["outcome"]
        elif type == "started":
            self._seen.tasks.add(TaskId.parse(fields["task"]))
        elif type == "gone":
            self._seen.over[host] = fields["reason"]
            self._seen.gone.add(host)
        elif type == "said":
            self._seen.replanned |= fields.get("replanned", False)
            self._move(host, fields.get("moved", ()))
        elif type == "expired":
            self._seen.expired |= not fields["asked"]
            self._seen.stopped |= fields["asked"]
            if "ends_in" in fields and not fields["asked"] and self._seen.reclaimed is None:
                self._seen.reclaimed = Reclaimed(fields["reason"], self._there[host])
        if not self._events:
            return
        if type == "said":
            self._note(host, fields["text"])
        event = understand(host, type, fields, body)
        if isinstance(event, TaskStarted):
            self._watcher.started(event)
        elif isinstance(event, TaskExit):
            self._seen.exits[event.task] = event
            self._watcher.exited(event)
        elif isinstance(event, AgentGaveUp):
            self._watcher.note(f"{host}: {event.reason}")
        elif isinstance(event, HostLost):
            self._end(host, event.reason)

    def _move(self, host: str, tasks: Iterable[str]) -> None:
        """A host has taken over these tasks; only one that has no tasks of its own can."""
        there = self._there[host]
        if not tasks or there in self._at_first:
            return
        left = {self._places.get(task, there) for task in map(TaskId.parse, tasks)} - {there}
        self._places.update(dict.fromkeys(map(TaskId.parse, tasks), there))
        for asked, name in self._there.items():
            if name in left and name not in self._places.values():  # it is lost, and not waited for
                self._seen.over[asked] = "its tasks have moved"
                self._seen.logs_through.add(asked)
                self.links.forget(asked)

    def _note(self, host: str, text: str) -> None:
        """Show a note, at most NOTES of each host; before a note of a host other than `_decider`, name it."""
        notes = self._seen.notes.setdefault(host, set())
        if text not in notes and len(notes) < NOTES:
            notes.add(text)
            self._watcher.note(text if self._there[host] == self._decider else f"{host}: {text}")

    def _end(self, host: str, reason: str) -> None:
        self._seen.over[host] = reason
        if self._events:
            self._watcher.lost(HostLost(host, reason))

    # What Links calls.

    def dial(self, host: str) -> None:
        """Connect to that host again."""
        self._sessions.attach(self._hosts[host], self.run.run_id, self._there[host])

    def watch(self, host: str, after: int) -> None:
        """Ask for the events after number `after`, and for the logs that are wanted."""
        self._feed.watch(host, after, **self._wanted.fields())
