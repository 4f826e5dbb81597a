"""Short-lived agents that look after any run, from outside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tflaunch import wire
from tflaunch.errors import ConnectError
from tflaunch.hosts import Host
from tflaunch.session import Opener, Sessions

FINISH_MARGIN_S = 60.0  # beyond the grace: what a visit may take


class Phases(Protocol):
    """Who is shown what is waited for."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None: ...


@dataclass(frozen=True)
class Finished:
    """What ending a run met on one host; `survivors` should be empty."""

    known: bool  # there is a directory of it, or something of it was alive
    found: bool  # something of it was alive
    killed: tuple[str, ...]
    survivors: tuple[str, ...]
    unsure: bool = False  # agent and guard were both killed: what hid well would not be found


@dataclass(frozen=True)
class LiveRun:
    """A run that something is alive of: its tasks and where they are, as far as agents tell."""

    run_id: str
    hosts: tuple[str, ...]
    tasks: tuple[str, ...]
    started: float | None  # epoch seconds


class Visits:
    """Short-lived agents that look after any run: they need no record of it and no agent that lives."""

    def __init__(self, opener: Opener, watcher: Phases) -> None:
        self._sessions = self.sessions = Sessions(opener, watcher.phase)
        self.interrupts = self._sessions.interrupts

    def open(
        self, hosts: Collection[Host], connect_s: float, phase: str = "connecting"
    ) -> dict[str, ConnectError]:
        """Connect to all; returns the hosts that could not be reached. Raises Stopped."""
        self._sessions.connect(hosts, "visit", "", lambda _: b"")
        names = [host.name for host in hosts]
        patience_s = self._sessions.patience_s(len(names), connect_s)
        _, failures = self._sessions.gather("hello", names, patience_s, phase)
        for name in failures.keys() & self._sessions.by_host.keys():
            self._sessions.drop(name)
        return failures

    def runs(self, timeout_s: float) -> tuple[list[LiveRun], dict[str, ConnectError]]:
        """Every run of this user that is alive on these hosts, and the hosts that did not answer."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "list")
        replies, failures = self._sessions.gather("runs", names, timeout_s)
        found: dict[str, LiveRun] = {}
        for name in names:
            for entry in replies[name]["runs"] if name in replies else ():
                before = found.get(entry["run"], LiveRun(entry["run"], (), (), None))
                found[entry["run"]] = LiveRun(
                    entry["run"],
                    tuple(dict.fromkeys((*before.hosts, entry["host"]))),
                    tuple(dict.fromkeys((*before.tasks, *(task["task"] for task in entry["tasks"])))),
                    min(filter(None, (before.started, entry["started"])), default=None),
                )
        return sorted(found.values(), key=lambda run: run.started or 0.0), failures

    def finish(
        self, run_id: str, grace_s: float, phase: str = "stopping"
    ) -> tuple[dict[str, Finished], dict[str, ConnectError]]:
        """End that run on every connected host, whatever is left of it, and check. Raises Stopped."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "finish", run=run_id, grace_s=grace_s)
        replies, failures = self._sessions.gather("finished", names, grace_s + FINISH_MARGIN_S, phase)
        return {
            name: Finished(
                said["known"],
                said["found"],
                tuple(said["killed"]),
                tuple(said["survivors"]),
                said["unsure"],
            )
            for name, said in replies.items()
        }, failures

    def usage(self, timeout_s: float) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """What each host keeps of all runs of this user, and the hosts that did not answer. Raises Stopped."""
        names = list(self._sessions.by_host)
        self._sessions.send(names, "measure")
        return self._sessions.gather("usage", names, timeout_s, "measuring")

    def clean(
        self, runs: Mapping[str, Collection[str]], code_older_s: float | None, dry_run: bool, timeout_s: float
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        """Remove those runs on each of these hosts, but none that is alive there. Raises Stopped."""
        for name, ids in runs.items():
            self._sessions.send([name], "clean", runs=list(ids), code_older_s=code_older_s, dry_run=dry_run)
        return self._sessions.gather("cleaned", list(runs), timeout_s, "" if dry_run else "cleaning")

    def close(self) -> None:
        """Take leave of all."""
        self._sessions.close()
