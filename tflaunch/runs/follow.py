"""Following a run from any machine: its hosts send its events and logs; nothing here steers it.

Several commands may follow one run at once.  When the connection to a host is lost, the follower connects again and
gets what it missed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tflaunch.hosts import Host, Hostfile
from tflaunch.lifecycle.driver import understand
from tflaunch.lifecycle.links import Links
from tflaunch.protocol.errors import Breach, ConnectError, Gone
from tflaunch.protocol.events import AgentGaveUp, TaskStarted
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.messages import tasks_of
from tflaunch.protocol.outcome import HostLost, Outcome, Reclaimed, TaskExit
from tflaunch.protocol.wire import Message
from tflaunch.runs.heard import Heard
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
# ... and for the others: what has answered by then is shown, the rest is named and may come later.
MORE_S = 5.0
# To wait, at most, for the last lines of a host out of reach, once it is known how the run ends.
GONE_S = 60.0
REST_S = 15.0  # to wait for a host out of reach while logs are printed
OUTCOME_S = 10.0  # for the deciding agent to say how the run ended, once every host has ended its part


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
        self._seen = Heard(run, self._there, watcher)
        self._wanted = wanted
        self._feed = LogFeed(sessions, len(self._hosts), watcher)
        if before is not None:
            self._feed.continue_from(before._feed, self._seen.places)
        self._awaited: list[str] = []  # hosts whose agent had not answered when all others had
        self.hellos: dict[str, Message] = {}  # what the agents of hosts said as they accepted the follower
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
        self.hellos = replies
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
                told = (
                    self._seen.outcome_is_known(len(self._hosts), links.up)
                    or self.awake_s > alone_at + OUTCOME_S
                )
                away_s = {host: links.away_s(host, time.monotonic()) for host in left}
                if told and min(away_s.values()) > self._patience_s:
                    for host in left:
                        why = f"not heard of for {duration(away_s[host])} ({links.down[host]})"
                        links.forget(host)
                        self._do_without(host, why)
            elif not left and self._feed.end(self._may_come):
                over_at = over_at or self.awake_s + (0.0 if self._seen.decider_is_gone else OUTCOME_S)
                late = item is None and self.awake_s > over_at  # take messages that are already here first
                if self._seen.outcome_is_known(len(self._hosts), links.up) or not links.up or late:
                    break
        outcome = self._seen.outcome()
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

    def typed(self, key: str) -> None:
        """`d`: have the launcher of the run hand it over."""
        if key != "d":
            return
        if self.run.detached or self._handed:
            self._watcher.note("it goes on without a launcher already; Ctrl-C stops watching")
            return
        asked = next((name for name, there in self._there.items() if there == self._seen.decider), "")
        if asked not in self.links.up:
            self._watcher.warn(f"{self._seen.decider} is out of reach: the run is not handed over now")
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
        if not self._seen.owns(host, tasks_of(message)):
            if message.type == "swept" and self._seen.left_behind(host):
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
            for left in self._seen.move(host, fields.get("moved", ())):
                self.links.forget(left)  # it is lost, and not waited for
        elif type == "expired":
            self._seen.expired |= not fields["asked"]
            self._seen.stopped |= fields["asked"]
            if "ends_in" in fields and not fields["asked"] and self._seen.reclaimed is None:
                self._seen.reclaimed = Reclaimed(fields["reason"], self._there[host])
        if not self._events:
            return
        if type == "said":
            for text in self._seen.note(host, fields["text"]):
                self._watcher.note(text)
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
