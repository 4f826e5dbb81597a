"""Carry out the request of a run or a sweep on hosts of its own, or on slots that an engine gives for it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tflaunch.api.connecting import SlotsFor, connected, reaching
from tflaunch.protocol.errors import TflaunchError
from tflaunch.protocol.events import Interrupted

if TYPE_CHECKING:
    from tflaunch.documents.json_sweep import SweepReporter
    from tflaunch.documents.reporter import Reporter
    from tflaunch.inputs.engine_words import WantedSlots
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.launch.request import OnSlots, Request
    from tflaunch.remote import Connector
    from tflaunch.runs.record import Record
    from tflaunch.sweeps.seats import SweepRequest


class Launch(Protocol):
    """What starts a run: tflaunch.launch.launch.launch, or tflaunch.launch.servers.serve."""

    def __call__(
        self, request: Request, connections: Connector, watcher: Reporter, on: OnSlots | None = None
    ) -> int: ...


class _Asked:
    """What happens once an engine has the request for slots: it is on record, and the terminal is left, once."""

    def __init__(
        self,
        record: Record,
        wanted: WantedSlots,
        reporter: Reporter | SweepReporter,
        leave: Callable[[Path], None] | None,
    ) -> None:
        self.leave = leave  # None: it stays, or has left
        self._record = record
        self._wanted = wanted
        self._reporter = reporter

    def keep(self, handle: Mapping[str, str]) -> None:
        """Write down how the engine finds the request; raises RecordError."""
        self._record.note_slots(self._wanted.engine, handle)
        leave, self.leave = self.leave, None
        if leave is not None:
            self._reporter.leaves(
                self._record.run_id, self._wanted.count, partial(leave, self._record.launcher_log)
            )


def show_plan(
    request: Request, ssh: SshOptions, reporter: Reporter, ask: Callable[[str], str] | None = None
) -> int:
    """Show the plan; start nothing, leave nothing.  Returns the exit code; raises TflaunchError, Stopped."""
    from tflaunch.launch.launch import dry

    with reaching(request.hostfile, ssh, reporter, ask=ask) as there:
        return dry(dataclasses.replace(request, hostfile=there.hostfile), there.connector, reporter)


def carry_out(
    request: Request,
    ssh: SshOptions,
    reporter: Reporter,
    launch: Launch,
    *,
    ask: Callable[[str], str] | None = None,
    leave: Callable[[Path], None] | None = None,
) -> int:
    """Connect to the hosts of the run and `launch` it; returns the exit code.  Raises TflaunchError, Stopped.

    Where an engine gives slots, the run is on record before they are asked for, so that every command finds it.
    leave: leaves the terminal, for a file, as soon as the engine has the request.
    What the run tells is kept in its record.
    """
    from tflaunch.documents.kept_events import KeptEvents

    with contextlib.closing(KeptEvents()) as kept:
        request = dataclasses.replace(request, on_record=kept.begin)
        return _carry_out(request, ssh, kept.beside(reporter), launch, ask=ask, leave=leave)


def _carry_out(
    request: Request,
    ssh: SshOptions,
    reporter: Reporter,
    launch: Launch,
    *,
    ask: Callable[[str], str] | None = None,
    leave: Callable[[Path], None] | None = None,
) -> int:
    hostfile = request.hostfile
    if hostfile.wanted is None:
        with connected(hostfile.hosts, ssh, reporter, ask=ask) as connector:
            return launch(request, connector, reporter)
    from tflaunch.launch.request import OnSlots
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.record import Record
    from tflaunch.sessions.group import Stopped

    record = Record.create(
        request.run_id,
        plan=ClusterPlan(request.run_id, ()),
        hostfile=dataclasses.replace(hostfile, hosts=()),
        command=request.command,
        ssh_config=request.ssh_config,
        detached=request.detach,
        code=request.bundle.digest if request.bundle is not None else None,
    )
    asked = _Asked(record, hostfile.wanted, reporter, leave)
    about = SlotsFor(request.run_id, request.limits_s.get("timeout_s"), asked.keep)
    try:
        with reaching(hostfile, ssh, reporter, about) as there:
            assert there.slots is not None  # noqa: S101 - the hostfile wants some
            again = there.slots.take
            on_slots = dataclasses.replace(request, hostfile=there.hostfile, take_again=again)
            on = OnSlots(there.slots, record)
            return launch(on_slots, there.connector, reporter, on)
    except BaseException as error:
        if record.given_up and not record.begun and isinstance(error, TflaunchError):
            record.discard()
            raise Stopped(Interrupted(signal.SIGTERM)) from None
        if record.begun or getattr(error, "may_go_on", False):
            record.close()
        elif record.launcher_log.exists() and isinstance(error, TflaunchError):
            record.fail(error)
        else:
            record.discard()
        raise


def carry_out_sweep(
    request: SweepRequest,
    ssh: SshOptions,
    reporter: SweepReporter,
    *,
    ask: Callable[[str], str] | None = None,
    leave: Callable[[Path], None] | None = None,
) -> int:
    """Connect to the hosts of the sweep and run it; returns the exit code.  Raises TflaunchError, Stopped.

    Where an engine gives slots, the sweep is on record before they are asked for.  leave: as of
    tflaunch.sweeps.whole_sweep.sweep.
    """
    from tflaunch.sweeps.resume import record_of, waiting_on_record
    from tflaunch.sweeps.whole_sweep import leave_slots, sweep

    run = request.run
    if run.hostfile.wanted is None:
        with connected(run.hostfile.hosts, ssh, reporter, ask=ask) as connector:
            return sweep(request, connector, reporter, leave)
    record = record_of(request)
    leave_slots(request, record, lambda hosts: connected(hosts, ssh, reporter, ask=ask), reporter)
    asked = _Asked(record, run.hostfile.wanted, reporter, leave)
    about = SlotsFor(record.run_id, keep=asked.keep)
    with contextlib.ExitStack() as stack:
        with waiting_on_record(record, run):
            there = stack.enter_context(reaching(run.hostfile, ssh, reporter, about))
        on_slots = dataclasses.replace(request, run=dataclasses.replace(run, hostfile=there.hostfile))
        return sweep(on_slots, there.connector, reporter, asked.leave, record)
