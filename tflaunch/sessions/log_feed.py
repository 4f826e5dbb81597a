"""The logs of a run on their way here: how far each has come, what is missing, how much the hosts may send."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tflaunch.protocol import wire
from tflaunch.protocol.job import TaskId, log_name
from tflaunch.sessions.group import ASLEEP_S, Sessions, Written
from tflaunch.sessions.watcher import Watcher
from tflaunch.text.times import clock_time

WINDOW_BYTES = 32 * 1024 * 1024  # log bytes under way from all hosts together ...
WINDOW_RANGE = (64 * 1024, 2 * 1024 * 1024)  # ... and from one host: the least, the most
STALL_S = 60.0  # a host that has log to send, and sends other messages only, is given up after so long

Record = Callable[
    [TaskId, int, int, bytes], None
]  # task, attempt, offset, data: the launcher's copy of a log


class Copies(Protocol):
    """The launcher's copies of the logs: `tflaunch.runs.record.Record`."""

    def path(self, task: TaskId, attempt: int = 0) -> Path: ...
    def skip_to(self, task: TaskId, offset: int, attempt: int = 0) -> None: ...


@dataclass
class _Log:
    """How far a task's log has come; `total` is known once its host is swept."""

    host: str
    attempt: int = 0
    received: int = 0
    # False: only a part of the log was asked for, and its host will say where that begins.
    placed: bool = True
    cut: tuple[int, int] = (0, 0)  # attempt, and the offset up to which the task truncated it last
    total: tuple[int, int] | None = None  # attempt, bytes
    end_shown: bool = False

    @property
    def missing(self) -> int:
        if self.total is None or (self.attempt, self.received) >= self.total:
            return 0
        return max(1, self.total[1] - (self.received if self.attempt == self.total[0] else 0))


class LogFeed:
    """Takes in the logs of all tasks, and lets the hosts send more as they are shown."""

    def __init__(
        self,
        sessions: Sessions,
        hosts: int,
        watcher: Watcher,
        record: Record | None = None,
        copies: Copies | None = None,
    ) -> None:
        """`record` gets each piece of a log and writes it into `copies`."""
        smallest, largest = WINDOW_RANGE
        self.window = min(largest, max(smallest, WINDOW_BYTES // max(1, hosts)))
        self.client = secrets.token_hex(8)  # by this an agent recognizes this launcher after a reconnect
        self._sessions = sessions
        self._watcher = watcher
        self._record = record
        self._copies = copies
        self._logs: dict[str, dict[TaskId, _Log]] = {}  # by host: a task may start again on another one
        self._owed: dict[str, int] = {}  # host -> bytes that were shown and not credited yet
        self._looked_at = 0.0  # when `stalls` was called last (monotonic)
        # host -> when a piece came last, or the host was asked for more (monotonic)
        self._moved: dict[str, float] = {}

    def expect(self, tasks: Mapping[TaskId, str], attempt: int) -> None:
        """Expect the logs of these tasks (with their hosts) from that attempt on; earlier attempts are here already."""
        self._logs.clear()
        for task, host in tasks.items():
            self._logs.setdefault(host, {})[task] = _Log(host, attempt)

    def continue_from(self, before: LogFeed, hosts: Mapping[TaskId, str]) -> None:
        """Start where an earlier feed stopped; `hosts` says where the tasks run now."""
        for task, log in before._in_order():
            host = hosts.get(task, log.host)
            self._logs.setdefault(host, {})[task] = _Log(host, log.attempt, log.received)

    def watch(self, host: str, after: int, *, posted: bool = False, **more: Any) -> None:
        """Ask a host for the events after `after`, and for its logs from where they stopped.

        posted: with the next message to it (Sessions.post).
        """
        logs = {str(task): [log.attempt, log.received] for task, log in self._logs.get(host, {}).items()}
        self._owed[host] = 0
        self._moved[host] = time.monotonic()
        send = self._sessions.post if posted else self._sessions.send
        send([host], "watch", after=after, logs=logs, window=self.window, client=self.client, **more)

    def take(self, host: str, message: wire.Message) -> None:
        """Take in a piece of a log, and show it."""
        task, attempt, offset = TaskId.parse(message["task"]), message["attempt"], message["offset"]
        log = self._log(task, host)
        if not log.placed:
            log.attempt, log.received, log.placed = attempt, offset, True
        cut_at = message.fields.get("cut")
        ahead = offset - (log.received if attempt == log.attempt else 0)
        if attempt < log.attempt or ahead < 0 or (ahead and not cut_at):
            self._sessions.report_breach(
                host,
                f"the log of {task} was to go on at byte {log.received} of attempt {log.attempt}, "
                f"not at byte {offset} of attempt {attempt}",
            )
            return
        self._moved[host] = time.monotonic()
        if cut_at and log.cut != (attempt, offset):
            self._warn_of_truncation(task, log, attempt, offset, cut_at)
        if self._record is not None:
            self._record(task, attempt, offset, message.body)
        log.attempt, log.received = attempt, offset + len(message.body)
        self._watcher.log(task, host, offset, message.body, partial(self._shown, host), attempt=attempt)
        self._maybe_end(task, log)

    def _warn_of_truncation(self, task: TaskId, log: _Log, attempt: int, offset: int, cut_at: float) -> None:
        log.cut = (attempt, offset)
        missed = offset - (log.received if attempt == log.attempt else 0)
        if self._copies is None:
            where = "is there no more"
        else:
            self._copies.skip_to(task, offset, attempt)
            gone = f" but for {missed:,} bytes, which were gone before they were read" if missed > 0 else ""
            where = f"is in {self._copies.path(task, attempt)}{gone}"
        at = clock_time(cut_at)
        self._watcher.warn(
            f"{task} on {log.host} truncated its own log at {at}: what it wrote before {where}"
        )

    def swept(self, host: str, totals: Mapping[str, tuple[int, int]]) -> None:
        """Take in how long the logs of a host have become: task -> (attempt, bytes)."""
        for name, total in totals.items():
            task = TaskId.parse(name)
            log = self._log(task, host)
            log.total = (total[0], total[1])
            self._maybe_end(task, log)

    def _shown(self, host: str, size: int) -> None:
        """Count what was shown of a host's logs; called by the thread that shows them.

        Credit goes out in portions, one message for many lines.  A `watch` in just that moment grants the host a
        portion too much, which does no harm.
        """
        owed = self._owed.get(host, 0) + size
        if owed >= self.window // 4:
            self._sessions.put(Written(host, owed))
            owed = 0
        self._owed[host] = owed

    def written(self, host: str, size: int) -> None:
        """Let that host send `size` more bytes of log."""
        if host in self._sessions.by_host:
            self._moved[host] = time.monotonic()
            self._sessions.send([host], "credit", bytes=size)

    def stalls(self, host: str) -> bool:
        """Whether a host that may send more log has sent none for STALL_S.  Call it often."""
        now = time.monotonic()
        if now - self._looked_at > ASLEEP_S:  # the first call, or this process was stopped: count from now on
            self._moved = dict.fromkeys(self._moved, now)
        self._looked_at = now
        session = self._sessions.by_host.get(host)
        may_send = (
            session is not None and session.log_credit > 0
        )  # without credit it waits for the terminal here
        return may_send and now - self._moved.get(host, now) > STALL_S

    def end(self, hears: Callable[[str], bool] = lambda _: False) -> bool:
        """Whether no more log comes; if so, show each task's last line.  `hears(host)`: more may come."""
        awaited = (log.host for _, log in self._all() if log.missing)
        if any(hears(host) and not self.stalls(host) for host in awaited):
            return False
        for task, log in self._all():
            self._end(task, log)
        return True

    @property
    def awaited(self) -> set[str]:
        """The hosts whose logs are not all here."""
        return {log.host for _, log in self._all() if log.missing}

    @property
    def missing(self) -> dict[TaskId, int]:
        """How many bytes of its log are missing, for each task that has any."""
        return {task: log.missing for task, log in self._all() if log.missing}

    def paths(self, hosts: Collection[str]) -> dict[TaskId, str]:
        """Where each task's newest log lies on its host."""
        return {
            task: f"{self._sessions.by_host[log.host].directory}/logs/{log_name(task, log.attempt)}"
            for task, log in self._in_order()
            if log.host in self._sessions.by_host and log.host in hosts
        }

    def _log(self, task: TaskId, host: str) -> _Log:
        logs = self._logs.setdefault(host, {})
        if task not in logs:
            logs[task] = _Log(host, placed=self._record is not None)
        return logs[task]

    def _all(self) -> Iterator[tuple[TaskId, _Log]]:
        for logs in self._logs.values():
            yield from logs.items()

    def _in_order(self) -> list[tuple[TaskId, _Log]]:
        """All of them, those of later attempts last."""
        return sorted(self._all(), key=lambda item: item[1].attempt)

    def _maybe_end(self, task: TaskId, log: _Log) -> None:
        if log.total is not None and not log.missing:
            self._end(task, log)

    def _end(self, task: TaskId, log: _Log) -> None:
        if not log.end_shown:
            log.end_shown = True
            self._watcher.log_end(task)
