"""Runs of other programs, followed by this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING

from tflaunch.api.connecting import SILENT
from tflaunch.api.event_feed import EventReporter, Events
from tflaunch.api.following import Where, follow_to_the_end, open_run_or_kept, tell_end, where_is
from tflaunch.api.hostfiles import Hosts
from tflaunch.api.known_runs import ssh_options
from tflaunch.api.known_runs import stop as stop_run
from tflaunch.api.watched import WatchedRun
from tflaunch.protocol.errors import StopError, TflaunchError
from tflaunch.runs.wanted import WantedLogs
from tflaunch.sessions.group import Stopped

if TYPE_CHECKING:
    from tflaunch.api.following import View
    from tflaunch.documents.reporter import Reporter
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.runs.fetch_result import Fetched


class NotFollowed(TflaunchError):
    """`close` came before the run was over; the run goes on."""

    exit_code = 0


def attach(
    run: str | None = None,
    hosts: Hosts = None,
    *,
    timeout_s: float = 30.0,
    ssh_config: str | PathLike[str] | None = None,
) -> Attached:
    """Follow a run that any program or command has started, as `tflaunch attach` does, and return at once.

    run: its id, its name, or its first letters; None: the only run alive, else the newest.
    hosts: None: those in this machine's record of the run.  timeout_s: for one host to connect.
    Raises TflaunchError for a run that is unknown here; what comes later, `wait` raises.
    """
    return Attached(where_is(run, hosts), ssh_options(timeout_s, ssh_config))


class Attached(WatchedRun):
    """A run that another program or command has started, followed in a thread.  `id`: "" until its hosts have said it.

    To iterate over it gives its events, from its beginning up to `report`: `started`, `log`, `exited` and so on.  As a
    context it stops following at the end of the block; the run goes on.
    """

    def __init__(self, where: Where, ssh: SshOptions) -> None:
        self.id = where.run or ""
        self._where, self._ssh = where, ssh
        events = Events()
        super().__init__(events, EventReporter(events))
        self._thread.start()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Follow it no longer; the run goes on."""
        self._interrupter.interrupt()
        self._events.discard()
        self._over.wait()

    def fetch(
        self, *patterns: str, to: str | PathLike[str] | None = None, overwrite: bool = False
    ) -> Fetched:
        """Copy what the tasks have written here, as `api.fetch` does."""
        from tflaunch.api.fetching import fetch_from

        where = self._where._replace(run=self.id or None)
        return fetch_from(where, self._ssh, patterns, to, overwrite=overwrite)

    def stop(self, *, grace_s: float = 10.0) -> None:
        """End the run, as `api.stop` does; `wait` says how it ended."""
        while not (self.id or self._over.wait(0.05)):  # which run it is, its hosts are being asked
            pass
        if not self.id:
            self.wait()  # raises what is wrong
        config = self._ssh.ssh_config or self._where.known_config
        timeout_s = self._ssh.connect_timeout
        stop_run(self.id, self._where.hostfile, grace_s=grace_s, timeout_s=timeout_s, ssh_config=config)

    def _drive(self, reporter: Reporter) -> int:
        @contextlib.contextmanager
        def opened(before: View | None) -> Iterator[View]:
            where = self._where if before is None else self._where._replace(run=self.id)
            with open_run_or_kept(
                where, self._ssh, reporter, SILENT, WantedLogs(), before=before, wait=True
            ) as view:
                self.id = view.run.run_id
                yield view

        try:
            return tell_end(*follow_to_the_end(opened), reporter)
        except Stopped:
            raise NotFollowed(f"{self.id} is not followed any more; it goes on") from None

    def _without_outcome(self) -> TflaunchError:
        return StopError(
            f"no record says how {self.id} ended: its launcher or coordinator is gone",
            f"tflaunch stop {self.id} ends what is left of it",
        )
