"""Runs that a program starts, watches and ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, cast

from tflaunch.api.carrying_out import carry_out, show_plan
from tflaunch.api.connecting import SILENT, visiting
from tflaunch.api.event_feed import EventReporter, Events
from tflaunch.api.following import Where
from tflaunch.api.hostfiles import Hosts, load_hosts
from tflaunch.api.known_runs import signals_alone
from tflaunch.api.watched import WatchedRun
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import EXIT_STOPPED, EXIT_UNCLEAN, ConnectErrors, TflaunchError, UsageError
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.fetch_result import Fetched
from tflaunch.sessions.group import Stopped

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tflaunch.api.keywords import Keywords
    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.launch.request import Request
    from tflaunch.runs.visits import Visits

EXIT_S = 20.0  # for a run to end when this program ends before it


class StoppedEarly(TflaunchError):
    """`stop` came before the tasks were started; nothing is left."""

    exit_code = EXIT_STOPPED


class HandedOver(TflaunchError):
    """`tflaunch detach` took the run from this program; it goes on without it."""

    exit_code = 0


def make_plan(
    hosts: Hosts, program: str | PathLike[str], *, args: Sequence[str] = (), **keywords: Unpack[Keywords]
) -> ClusterPlan:
    """Connect to the hosts and plan the run, as `--dry-run` does; start nothing, leave nothing.

    `tasks` of the plan has each task with host, port, GPUs, argv and environment; `to_json` gives all of it as data.
    Raises TflaunchError.
    """
    prepared = Prepared(hosts, program, args, keywords, dry_run=True)
    prepared.events.discard()
    try:
        with signals_alone():
            show_plan(prepared.request, prepared.ssh, prepared.reporter)
    finally:
        prepared.reporter.close()
    return prepared.reporter.plans[-1]


def run(
    hosts: Hosts, program: str | PathLike[str], *, args: Sequence[str] = (), **keywords: Unpack[Keywords]
) -> Run:
    """Start a program on the hosts, as `tflaunch run` does, and return at once; a thread of this program drives it.

    program: a Python file, another executable, or a job file; with `module=`, leave it "".  args: its own arguments.
    A run ends with the program that has started it, at the latest when its lease has run out.
    Raises TflaunchError for what is wrong with the options, the hostfile or the code; what comes later, `wait` raises.
    """
    return Run(Prepared(hosts, program, args, keywords))


class Run(WatchedRun):
    """A run that goes on in a thread.  As a context it is stopped at the end of the block, if it still runs.

    To iterate over it gives its events as they come, the dicts that `tflaunch run --json` prints, up to `report`.
    Nobody has to: at most 10,000 events are kept; if nobody reads them, the hosts wait with the rest of the logs, and
    `wait` drops what is not read.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.id = prepared.request.run_id
        super().__init__(prepared.events, prepared.reporter)
        self._prepared = prepared
        self._pid = os.getpid()
        atexit.register(self._end_with_program)
        self._thread.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over.is_set():
            self.stop()
            with contextlib.suppress(StoppedEarly, HandedOver):
                self.wait()

    def stop(self, *, kill: bool = False) -> None:
        """Ask it to end, as Ctrl-C does: tasks get SIGTERM and `grace`; with `kill`, they are killed at once."""
        for _ in range(2 if kill else 1):
            self._interrupter.interrupt(signal.SIGTERM)

    def detach(self) -> None:
        """Hand the run over to its hosts, as `tflaunch detach` does: it goes on without this program.

        Waits until its tasks run, and returns when the run goes on without this program; `wait` raises HandedOver then.
        Events that nobody has read are lost.  Raises what kept the tasks from starting, UsageError for a run that is
        over, ConnectError when it was not handed over.
        """
        from tflaunch.runs.detaching import detach_run
        from tflaunch.runs.run_states import pick_run

        self._events.discard()
        while not (self._prepared.reporter.all_started or self._over.wait(0.05)):
            pass
        if self._over.is_set():
            if self._error is not None:
                raise self._error
            raise UsageError(f"{self.id} is over", f"how it ended: tflaunch status {self.id}")
        hosts = self._prepared.hostfile.hosts
        with signals_alone(), self._prepared.visiting() as visits:
            failures = visits.open(hosts, self._prepared.request.connect_s)
            if failures and len(failures) == len(hosts):
                raise ConnectErrors(failures, len(hosts))
            found = visits.runs(everything=True, only=self.id)
            detach_run(pick_run(self.id, found.runs), visits.sessions)
        self._over.wait()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Wait until it is over, and nothing of it is left; return how it ended.  Events that nobody has read are lost.

        Raises what kept the tasks from starting: a TflaunchError; StoppedEarly after `stop`.  Raises HandedOver when
        `detach`, or `tflaunch detach`, took the run from this program; raises TimeoutError.
        """
        return super().wait(timeout_s)

    def log(self, task: str) -> str:
        """What a task, `worker/0`, has printed so far, in all of its attempts; the first one comes first.

        Raises UsageError for a task that the run does not have.
        """
        from tflaunch.protocol.job import TaskId
        from tflaunch.runs.record import Record

        try:
            name = TaskId.parse(task)
        except ValueError as error:
            raise UsageError(str(error)) from None
        plans = self._prepared.reporter.plans
        tasks = [each.id for each in plans[-1].tasks] if plans else []
        if name not in tasks:
            has = ", ".join(map(str, tasks)) or "none yet: its plan is being made"
            raise UsageError(f"{task}: the run has no such task", f"it has {has}")
        text = b"".join(path.read_bytes() for path in Record.open(self.id).logs.of(name))
        return text.decode("utf-8", "backslashreplace")

    def fetch(
        self, *patterns: str, to: str | PathLike[str] | None = None, overwrite: bool = False
    ) -> Fetched:
        """Copy what the tasks have written here, as `tflaunch fetch` does; they may still run.

        to: this directory; None: ./RUN.  `complete` of the result says whether everything is here.
        Raises TflaunchError.
        """
        from tflaunch.api.fetching import fetch_from

        where = Where(self.id, self._prepared.hostfile, None)
        return fetch_from(where, self._prepared.ssh, patterns, to, overwrite=overwrite)

    def _drive(self, reporter: Reporter) -> int:
        from tflaunch.launch.launch import launch
        from tflaunch.launch.on_end import OnEnd

        request, on_end, code = self._prepared.request, OnEnd(self._prepared.on_end), 1
        reporter = on_end.begin(request.run_id, request.command, reporter)
        try:
            code = carry_out(request, self._prepared.ssh, reporter, launch)
            return code
        except TflaunchError as error:
            on_end.heard(error)
            code = error.exit_code
            raise
        except Stopped as stopped:
            code = EXIT_UNCLEAN if stopped.unconfirmed else EXIT_STOPPED
            left = ", ".join(stopped.unconfirmed)
            hint = f"tflaunch stop {self.id} looks again on {left}" if left else ""
            raise StoppedEarly(f"{self.id} was stopped before its tasks were started", hint) from None
        finally:
            on_end.call(code)
            atexit.unregister(self._end_with_program)

    def _without_outcome(self) -> TflaunchError:
        return HandedOver(
            f"{self.id} goes on without this program: it was handed over to its hosts",
            f"watch it: tflaunch attach {self.id}; end it: tflaunch stop {self.id}",
        )

    def _end_with_program(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the program: the run is not its own, and the thread is not there
        self.stop()
        self._events.discard()
        self._over.wait(EXIT_S)


class Prepared:
    """A request that is ready to be carried out, and who hears of it."""

    request: Request

    def __init__(
        self,
        hosts: Hosts,
        program: str | PathLike[str],
        args: Collection[str],
        keywords: Keywords,
        *,
        dry_run: bool = False,
    ) -> None:
        from tflaunch.api.command_shown import command_of
        from tflaunch.api.given_keywords import options_of
        from tflaunch.api.requests.run import request_of

        hostfile = load_hosts(hosts, connection=keywords.get("connection", ""))
        words = fspath(program), args, cast("Mapping[str, Any]", keywords)
        self.events = Events()
        self.reporter = EventReporter(self.events)
        try:
            options, job_file = options_of(*words)
            options.start.dry_run = dry_run
            self.ssh: SshOptions = options.connection
            self.on_end = options.end.on_end
            command = command_of(hostfile.source, *words)
            self.request = request_of(options, job_file, self.reporter, command=command, hostfile=hostfile)
        except BaseException:
            self.events.discard()
            self.reporter.close()
            raise

    @property
    def hostfile(self) -> Hostfile:
        """Its hosts; once the run has begun, the slots that an engine has given."""
        if self.request.hostfile.wanted is None:
            return self.request.hostfile
        from tflaunch.runs.record import Record, hostfile_from

        return hostfile_from(Record.open(self.request.run_id))

    def visiting(self) -> AbstractContextManager[Visits]:
        """Visit its hosts; nothing is asked: a key that needs a passphrase must be in an ssh-agent."""
        return visiting(self.hostfile.hosts, self.ssh, SILENT)
