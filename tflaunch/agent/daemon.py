"""The agent of a run on this host: one loop over viewers, tasks and clocks; no threads, no blocking writes.

It belongs to its run, not to a channel: launchers and viewers come and go.  When no launcher or coordinator renews its
lease, the agent ends the run on this host.
"""

import os
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.guard import FIRST_LEASE_S, leftovers, removed
from tflaunch.agent.host.journal import NAME, Journal, note
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.requests import Requests
from tflaunch.agent.slot import Slot, holder
from tflaunch.agent.tasks.log_notice import Notice
from tflaunch.agent.tasks.task import DUMP_S
from tflaunch.agent.tasks.team import Team
from tflaunch.agent.viewer import COORDINATOR, Viewer, Viewers
from tflaunch.protocol import machine, wire
from tflaunch.protocol.light_stdlib import signal, socket
from tflaunch.protocol.selector import EVENT_READ, Selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from tflaunch.agent.host.aside import Aside
    from tflaunch.agent.host.guard import Beats
    from tflaunch.agent.net.channel import Channel

LOG_POLL_S = 0.05  # how often to look at the logs where inotify does not work
FULL_S = 10.0  # how long the disk may be full: what fills it may make room, as a program that removes old checkpoints
FAREWELL_S = 5.0  # how long the last messages may take to be sent


class Daemon:
    """One agent, from its first viewer to the end of its run on this host."""

    def __init__(self, directory: RunDirectory, first: "Channel", early: bytes, beats: "Beats") -> None:
        """`first` is the launcher's channel; `early` holds the bytes that were already read from it."""
        self._directory = directory
        self._beats = beats
        self._known = os.path.exists(
            os.path.join(directory.path, NAME)
        )  # the run has had an agent here before
        self._journal = Journal(directory)
        self._selector = Selector()
        self._lease_end = time.monotonic() + FIRST_LEASE_S
        self._end_by = 0.0
        self._full_at = None  # type: Optional[float]  # since when the disk is full
        self._purge = None  # type: Optional[processes.Purge]
        self._swept = False
        self._over = False
        self._leave_at = None  # type: Optional[float]
        self._term = False
        self._removal = None  # type: Optional[Aside]  # of containers
        self._cleared = False  # it has found that none is left

        self._viewers = Viewers(directory, self._selector, self._handle, self._left)
        self._team = Team(directory, self._journal, self._selector, self._viewers.send_to_launcher)
        self._requests = Requests(
            directory,
            self._journal,
            self._selector,
            self._team,
            self._viewers,
            life={"renew": self._renew, "end": self._end, "bye": self._bye},
        )
        self._notice = Notice(directory.logs, self._selector)
        self._wake_at_signals()
        self._reclaimed = False  # the engine takes this slot back
        self._slot = Slot(self._selector, self._taken_back, directory.logs) if holder() else None
        processes.become_subreaper()
        machine.allow_many_descriptors()  # each held port takes a descriptor
        self._team.record()
        launcher = self._viewers.attach(first)
        launcher.launches, launcher.events_sent = True, 0
        self._viewers.take(launcher, early)

    def _wake_at_signals(self) -> None:
        # A signal's arrival wakes the loop through this pair.
        wakeup, self._wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._wakeup.setblocking(False)
        self._selector.register(wakeup, EVENT_READ, lambda: wakeup.recv(4096))
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        # Not SIG_IGN: tasks would inherit it, and a shell cannot trap a signal that was ignored when it started.
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(each, lambda *_: None)

    def _terminated(self, *_: object) -> None:
        self._term = True

    # -- the loop

    def run(self) -> None:
        """Serve the run; returns once it has ended on this host and the last messages are sent."""
        timeout_s = 0.0  # what has come with the loader is answered together with `hello`
        while True:
            self._serve(timeout_s)
            if time.monotonic() >= self._lease_end:
                self._serve(0.0)  # something has taken long, and the lease may have been renewed meanwhile
            self._reap()
            self._beats.beat(time.monotonic(), self._team.lease_s)
            self._tick(time.monotonic())
            self._viewers.pump(self._journal, self._team.logs())
            if self._leave_at is not None and (
                time.monotonic() >= self._leave_at or not self._viewers.waiting
            ):
                break
            timeout_s = self._timeout()
        if self._slot is not None:
            self._tell_slot(self._slot)
        self._requests.close()
        if not removed():
            self._directory.close()

    def _tell_slot(self, slot: Slot) -> None:
        """Tell how the run has ended; nobody may be there who has said so."""
        events = self._journal.events
        told = [event["outcome"]["exit_code"] for event in events if event["type"] == "outcome"]
        if told or self._requests.staging.passing:  # a check has nothing to tell
            slot.ended(told[-1] if told else 0)
        elif any(event["type"] == "expired" and event["asked"] for event in events):
            from tflaunch.protocol.errors import EXIT_STOPPED

            slot.ended(EXIT_STOPPED)

    def _serve(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _timeout(self) -> float:
        hungry = self._viewers.hungry
        rest_s = self._notice.watch(hungry, time.monotonic())
        if self._requests.restless or self._viewers.behind:
            return 0.0
        if self._purge is not None or self._team.restless or self._requests.staging.restless:
            return 0.02
        if rest_s is not None:
            return rest_s
        return LOG_POLL_S if hungry and not self._notice.works else 0.5

    def _reap(self) -> None:
        for pid, status, peak_bytes in processes.reap(self._team.dead):
            if self._removal is not None and self._removal.reaped(pid):
                self._cleared = status == 0
            if not self._team.reaped(pid, status, peak_bytes):
                self._requests.reaped(pid, status)

    def _tick(self, now: float) -> None:
        # The engine's SIGTERM comes to the holder, too, which then says how much time is left.
        if self._term and self._slot is None and not self._team.ending:
            self._expire("the agent was told to end (SIGTERM)")
        if now >= self._lease_end and not self._team.ending:
            who = "coordinator" if self._requests.detached.begun else "launcher"
            self._expire(
                "no %s has renewed the lease for %.12g s: its agent ended the tasks"
                % (who, self._team.lease_s)
            )
        trouble = self._directory.trouble
        if (
            self._journal.has("started")
            and not self._team.ending
            and self._is_full(now)
            and trouble is not None
        ):
            self._expire("%s; its agent ended the tasks: %s" % (trouble.reason, trouble.hint))
        self._team.tick(now)
        if self._team.ending and not self._over:
            self._end_further(now)
        self._requests.tick(now, self._over)
        unattended = not self._viewers.all and not self._requests.detached.awaits_outcome
        if self._over and self._leave_at is None and (unattended or now >= self._lease_end):
            self._leave_at = now + FAREWELL_S
        self._viewers.beat(now)

    # -- messages that keep or end the agent

    def _handle(self, viewer: Viewer, message: wire.Message) -> None:
        if viewer.drives and viewer.client != COORDINATOR:  # whatever it says, it lives
            self._lease_end = max(self._lease_end, time.monotonic() + self._team.lease_s)
        self._requests.handle(viewer, message)

    def _left(self, viewer: Viewer) -> None:
        self._requests.left(viewer)
        staging = self._requests.staging
        spare = staging.reserved and self._requests.detached.begun  # it waits, under the coordinator
        lasting = (self._journal.has("started") or spare) and not staging.passing
        if viewer.launches and not lasting and not self._team.ending:
            # No task was started, or only tasks that must not outlive their launcher.
            self._journal.add("expired", reason="its launcher left before the start", asked=True)
            self._begin_end(0.0)

    def _is_full(self, now: float) -> bool:
        """Whether the disk takes nothing more, for good or for FULL_S."""
        if self._directory.trouble is None:
            self._full_at = None
            return False
        if self._full_at is None:
            self._full_at = now
        return self._directory.lasting or (now - self._full_at >= FULL_S and not self._directory.has_room())

    def _renew(self, viewer: Viewer, message: wire.Message) -> None:
        viewer.drives = True
        lease_s = message["lease_s"]
        self._lease_end = time.monotonic() + lease_s
        self._requests.holdings.take_lease(lease_s)
        if lease_s != self._team.lease_s:
            self._team.lease_s = lease_s
            self._team.record(over=self._over)

    def _end(self, viewer: Viewer, message: wire.Message) -> None:
        launcher = viewer.drives or viewer.launches
        # The launcher decides how the run ends; in a detached run the coordinator does.  When any other viewer asks
        # for the end, that becomes an event, so that launcher or coordinator sees it.
        decides = viewer.client == COORDINATOR if self._requests.detached.begun else launcher
        if not (self._team.ending or decides):
            by = message.fields.get("by", "")
            who = "its launcher" if launcher else "tflaunch stop%s" % (by and " by " + by)
            self._journal.add("expired", reason="%s ends the run" % who, asked=True, by=by)
        if viewer.events_sent is None:
            viewer.events_sent = len(self._journal.events)  # the viewer waits for `swept`
            if self._over:
                viewer.events_sent = next(e["n"] - 1 for e in self._journal.events if e["type"] == "swept")
        if not self._over:
            self._begin_end(message["grace_s"], message.fields.get("stacks", False))

    def _bye(self, viewer: Viewer, message: wire.Message) -> None:
        if self._over and (viewer.drives or viewer.launches):
            self._leave_at = time.monotonic() + FAREWELL_S

    # -- the end

    def _taken_back(self, seconds: float, why: str) -> None:
        """The engine takes this slot back in so many seconds."""
        if self._over:
            return
        self._reclaimed = True
        if not self._team.ending:
            self._journal.add("expired", reason=why, asked=False, ends_in=seconds)
        self._begin_end(max(0.0, seconds - wire.RECLAIM_S))

    def _expire(self, reason: str) -> None:
        self._journal.add("expired", reason=reason, asked=False)
        self._begin_end(wire.LAST_GRACE_S)

    def _begin_end(self, grace_s: float, with_stacks: bool = False) -> None:
        end_by = time.monotonic() + grace_s + 3.0 + (DUMP_S if with_stacks else 0.0)
        self._end_by = end_by if not self._end_by else min(self._end_by, end_by)
        self._team.end(grace_s, with_stacks)
        self._requests.stop()

    def _end_further(self, now: float) -> None:
        if now < self._end_by and (self._team.may_end(now) or self._requests.alive):
            return
        from tflaunch.agent.host import container

        if self._removal is None and self._team.contained:
            from tflaunch.agent.host.aside import Aside

            try:
                self._removal = Aside(lambda: container.remove_all(self._directory))
            except OSError as error:
                # The tasks have filled the process table: try again once they are swept, or leave it to the guard.
                note("containers: %s" % error)
        if self._removal is not None and self._removal.alive and now < self._end_by + container.REMOVAL_S:
            return  # do not kill the engine's processes while they clear up
        gpus = self._requests.holdings.gpus
        if self._purge is None:
            me = os.getpid()
            keep = [me, os.getppid(), self._requests.detached.coordinator]
            driver = self._requests.holdings.driver
            self._purge = processes.Purge(lambda: leftovers(self._directory, me, [*keep, *driver.pids]))
        if not self._swept:
            if not self._purge.step():
                return
            self._reap()
            self._swept = True
            if self._team.ran and not self._reclaimed:  # else there is no time to see its GPUs free
                gpus.begin([*self._purge.met, *self._team.ran])
        used = gpus.result()
        if used is None:
            return
        self._over = True
        self._directory.reserve.free()
        self._requests.holdings.release()
        if self._slot is not None:
            self._slot.over()
        self._team.record(over=True)
        logs = self._team.logs().values()
        self._journal.add(
            "swept",
            killed=self._purge.killed,
            survivors=[
                *(processes.describe(process) for process in self._purge.survivors),
                *([] if self._cleared or not self._team.contained else container.left(self._directory)),
            ],
            gpus=used,
            logs={each.task: [each.attempt, each.size(each.attempt)] for each in logs},
        )
        self._purge = None
        if self._requests.staging.passing or not (self._journal.has("started") or self._known):
            # A check, a dry run, or a launch that failed: there is nothing to keep, and it is removed before the
            # launcher hears that all is swept.
            for each in logs:
                each.hold()
            self._directory.remove()
        if self._requests.detached.awaits_outcome:
            return
        if not self._team.tasks or not any(viewer.follows or viewer.drives for viewer in self._viewers.all):
            self._leave_at = now + FAREWELL_S  # no viewer is there to read the logs to their end
