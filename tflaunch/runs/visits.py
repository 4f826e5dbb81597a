"""Visits: short-lived agents on the hosts, which list runs, end them, and remove what they left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tflaunch.hosts import Host
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError, ConnectErrors, Gone
from tflaunch.protocol.events import Interrupted
from tflaunch.protocol.outcome import GpuLeft, gpus_left
from tflaunch.runs.listing import Listing, listing
from tflaunch.runs.record_list import RunInfo
from tflaunch.sessions.group import Sessions, Stopped
from tflaunch.sessions.watcher import ProgressWatcher
from tflaunch.sessions.wires import Opener

LIST_S = 30.0  # for a host to list its runs
FINISH_MARGIN_S = 60.0  # what a visit may take, beyond the grace, to end a run


@dataclass(frozen=True)
class Finished:
    """What a visit found on one host when it ended a run there; `survivors` should be empty."""

    known: bool  # the host had a directory of the run, or a process of it was alive
    found: bool  # a process of the run was alive
    killed: tuple[str, ...]
    survivors: tuple[str, ...]
    unsure: bool = False  # a process that left its parent and its environment would not be found
    gpus: tuple[GpuLeft, ...] = ()  # GPUs of the run that are not free again
    restarted: float = 0.0  # when the host rebooted during the run, by its clock (epoch seconds); 0: never
    unsure_why: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing of the run is left on the host."""
        return not (self.survivors or any(gpu.own for gpu in self.gpus))

    @property
    def doubt(self) -> str:
        """What cannot be known of this host, as a sentence; "" for nothing."""
        unfound = "a process that left its parent and its environment would not be found"
        return f"{self.unsure_why}: {unfound}" if self.unsure else ""


class Visits:
    """One visit to each of several hosts.  It needs no record of a run, and no living agent of it."""

    def __init__(self, opener: Opener, watcher: ProgressWatcher, as_user: str = "") -> None:
        """`as_user`: visit the runs of that user, for which the log-in must be root's."""
        self._sessions = self.sessions = Sessions(opener, watcher.phase)
        self._sessions.as_user = as_user
        self._unreachable: dict[str, ConnectError] = {}
        self.gone: dict[str, Gone] = {}  # slots of which their engine says that they are over
        self._phase = watcher.phase
        self.interrupts = self._sessions.interrupts

    def open(
        self,
        hosts: Collection[Host],
        connect_s: float,
        phase: str = "connecting",
        unanswered: Callable[[Host], ConnectError | None] | None = None,
    ) -> dict[str, ConnectError]:
        """Connect to all of `hosts`; returns those that could not be reached, each with why.

        Slots that are over are no failures: they are in `gone`, and the records of their runs get their end.

        `unanswered` (see Connector) says which hosts accept no TCP connection: `open` does not wait for them.
        Raises Stopped.
        """
        if not hosts:
            return {}
        self._sessions.connect(hosts, "visit", "", lambda _: b"")
        names = [host.name for host in hosts]
        patience_s = self._sessions.patience_s(len(names), connect_s)
        there = {host.name: host for host in hosts}
        by_name = (lambda name: unanswered(there[name])) if unanswered else None
        _, failures = self._sessions.gather("hello", names, patience_s, phase, by_name)
        for name in failures.keys() & self._sessions.by_host.keys():
            self._sessions.leave(name)
        if gone := {name: error for name, error in failures.items() if isinstance(error, Gone)}:
            from tflaunch.runs.gone import note_gone

            self.gone |= gone
            failures = {name: error for name, error in failures.items() if name not in gone}
            note_gone(gone, hosts)
            self._phase(phase, len(names) - len(failures), len(names))
        self._unreachable = dict(failures)
        return failures

    def runs(
        self,
        *,
        everything: bool = False,
        only: str = "",
        tail_bytes: int = 0,
        running_tails: bool = False,
        records: Iterable[RunInfo] = (),
        tidy: bool = False,
    ) -> Listing:
        """The runs of this user that are alive on these hosts; with `everything` all their runs.  Raises Stopped.

        `only`: those whose id begins so.  `tail_bytes`: how much of the log of each failed task to bring.
        `running_tails`: the last lines of tasks that run, too, which may tell how far they are.
        `tidy`: first end what runs have left whose agent and guard were killed.
        """
        names = list(self._sessions.by_host)
        self._sessions.send(
            names,
            "list",
            all=everything,
            run=only,
            tail_bytes=tail_bytes,
            running_tails=running_tails,
            tidy=tidy,
        )
        arrived: dict[str, float] = {}
        replies, failures = self._sessions.gather("runs", names, LIST_S, arrived=arrived)
        failures = {**self._unreachable, **failures}
        return listing(replies, failures, arrived, records, everything=everything)

    def wait(self, seconds: float) -> None:
        """Let time pass. Raises Stopped."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            item = self._sessions.next(deadline)
            if isinstance(item, Interrupted):
                raise Stopped(item)

    def finish(
        self, run_id: str, grace_s: float, phase: str = "stopping", by: str = ""
    ) -> tuple[dict[str, Finished], dict[str, ConnectError]]:
        """End all that is left of that run on every connected host, and check that nothing lives.

        `by` is who asks for it, if that is not the run's user.  Returns what was found on each host, and the hosts that
        did not answer.  Raises Stopped.
        """
        names = list(self._sessions.by_host)
        self._sessions.send(names, "finish", run=run_id, grace_s=grace_s, by=by)
        replies, failures = self._sessions.gather("finished", names, grace_s + FINISH_MARGIN_S, phase)
        return {
            name: Finished(
                said["known"],
                said["found"],
                tuple(said["killed"]),
                tuple(said["survivors"]),
                said["unsure"],
                gpus_left(said["gpus"]),
                said.fields.get("restarted", 0.0),
                said.fields.get("unsure_why", ""),
            )
            for name, said in replies.items()
        }, failures

    def usage(
        self, timeout_s: float, *, tidy: bool = False
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """What each host keeps of all runs of this user, and the hosts that did not answer. Raises Stopped.

        `tidy`: as for `runs`.
        """
        names = list(self._sessions.by_host)
        self._sessions.send(names, "measure", tidy=tidy)
        return self._sessions.gather("usage", names, timeout_s, "measuring")

    def samples(self, run_id: str, most: int) -> bytes:
        """What a coordinator of that run has kept of its tasks' use, of the host that has most of it; b"" for nothing.

        `most`: bytes that are taken from a host.  Raises ConnectErrors where a host may have it that did not answer,
        Stopped.
        """
        found = dict.fromkeys(self._sessions.by_host, b"")
        asked, failures = list(found), {**self._unreachable, **self.gone}
        while asked:
            for name in asked:
                self._sessions.send([name], "samples", run=run_id, offset=len(found[name]))
            replies, failed = self._sessions.gather("samples", asked, LIST_S)
            failures |= failed
            for name, said in replies.items():
                found[name] += said.body
            # A host sends as much as fits into a message, until the end.
            whole = [name for name, said in replies.items() if len(said.body) == wire.BODY_LIMIT]
            asked = [name for name in whole if len(found[name]) < most]
        longest = max(found.values(), key=len, default=b"")
        if failures and not longest:
            raise ConnectErrors(failures, len(failures.keys() | found.keys()))
        return longest

    def clean(
        self, runs: Mapping[str, Collection[str]], code_older_s: float | None, dry_run: bool, timeout_s: float
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """Remove `runs` (host -> ids), and code unused for `code_older_s`; never a run that is alive.

        Returns what each host removed, and the hosts that did not answer.  Raises Stopped.
        """
        for name, ids in runs.items():
            self._sessions.send([name], "clean", runs=list(ids), code_older_s=code_older_s, dry_run=dry_run)
        return self._sessions.gather("cleaned", list(runs), timeout_s, "" if dry_run else "cleaning")

    def close(self) -> None:
        """End all visits."""
        self._sessions.close()
