"""Runs that any machine has started: list them, end them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.api.connecting import SILENT, visiting
from tflaunch.api.hostfiles import Hosts, load_known
from tflaunch.api.requests.which_hosts import hosts_of_all, hosts_of_run
from tflaunch.inputs.options.groups import SshOptions
from tflaunch.protocol.errors import ConnectErrors, StopError, UsageError
from tflaunch.sessions.interrupts import INTERRUPTER, Interrupter

if TYPE_CHECKING:
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.runs.listing import Listing
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Finished


@contextlib.contextmanager
def signals_alone() -> Iterator[None]:
    """Inside, leave the signals of this program alone; Ctrl-C raises KeyboardInterrupt in it, as ever."""
    token = INTERRUPTER.set(Interrupter())
    try:
        yield
    finally:
        INTERRUPTER.reset(token)


def runs(
    hosts: Hosts = None,
    *,
    everything: bool = False,
    timeout_s: float = 15.0,
    ssh_config: str | PathLike[str] | None = None,
) -> Listing:
    """List your runs that are alive on the hosts, whichever machine started them, as `tflaunch ps` does.

    hosts: None: those of the default hostfile and of this machine's records.  everything: also runs that have ended.
    timeout_s: for one host to connect.  `runs` of the result has the newest first, `failures` the hosts that could not
    be asked, with why.  Raises TflaunchError.
    """
    from tflaunch.runs.record_list import list_runs

    hostfile, known_config = (
        hosts_of_all(None, "ps", everything=everything) if hosts is None else (load_known(hosts), None)
    )
    with (
        signals_alone(),
        visiting(
            hostfile.hosts, ssh_options(timeout_s, ssh_config), SILENT, known_config=known_config
        ) as visits,
    ):
        visits.open(hostfile.hosts, timeout_s)
        return visits.runs(everything=everything, records=list_runs())


def stop(
    run: str,
    hosts: Hosts = None,
    *,
    grace_s: float = 10.0,
    timeout_s: float = 30.0,
    ssh_config: str | PathLike[str] | None = None,
) -> Mapping[str, Finished]:
    """End a run on all its hosts, also when its launcher or its agents are dead, as `tflaunch stop` does.

    run: its id, its name, or its first letters.  hosts: None: those in this machine's record of the run.
    grace_s: between SIGTERM and SIGKILL.  timeout_s: for one host to connect.  Returns what was found on each host.
    Raises StopError if something of it is alive on a host, ConnectErrors if a host could not be asked, UsageError for
    a run that nobody knows.
    """
    from tflaunch.runs.record import note_stopped
    from tflaunch.runs.run_ids import check_run_id

    check_run_id(run)
    known_config: Path | None = None
    hostfile: Hostfile
    if hosts is None:
        run, hostfile, known_config = hosts_of_run(run, None)
    else:
        hostfile = load_known(hosts)
    if give_back(run, waiting=True):
        note_stopped(run)
        return {}
    with (
        signals_alone(),
        visiting(
            hostfile.hosts, ssh_options(timeout_s, ssh_config), SILENT, known_config=known_config
        ) as visits,
    ):
        unreachable = visits.open(hostfile.hosts, timeout_s)
        if unreachable and len(unreachable) == len(hostfile.hosts):
            give_back(run)
            raise ConnectErrors(unreachable, len(hostfile.hosts))
        listed = visits.runs()
        run = meant(run, listed.runs)
        finished, failures = visits.finish(run, grace_s)
    failures = {**listed.failures, **failures}
    if not failures and not any(end.known for end in finished.values()):
        refuse_unknown(run, listed.runs)
    if left := {host: end.survivors for host, end in finished.items() if not end.clean}:
        raise StopError(f"{run}: something of it is still alive on {', '.join(left)}: {left}")
    if failures:
        raise ConnectErrors(failures, len(hostfile.hosts))
    give_back(run, [host for host in hostfile.hosts if host.name in finished and finished[host.name].known])
    note_stopped(run)
    return finished


def give_back(run: str, hosts: Sequence[Host] = (), *, waiting: bool = False) -> bool:
    """Give the slots of a run back, or its request for them; returns whether it did.

    Those on record here, else those of `hosts` that are slots, where the run has ended.  waiting: only if the run waits
    for its slots; it ends by that: its launcher, if it lives, hears it from the engine.  Raises RecordError.
    """
    from tflaunch.engines.taken_slots import let_end, release
    from tflaunch.runs.record import Record, hostfile_from

    try:
        record = Record.open(run)
        if record.run_id != run or record.slots is None:
            return False
    except UsageError:
        let_end(hosts)
        return False
    engine, handle = record.slots
    hosts = hostfile_from(record).hosts
    if waiting and hosts:
        return False
    if waiting:
        record.note_given_up()
    release(engine, handle, hosts)
    return True


def meant(run: str, alive: Sequence[RunState]) -> str:
    """Return the id of the run alive that begins so, or what was given; raises UsageError if several do."""
    matches = [each.run_id for each in alive if each.run_id.startswith(run)]
    if len(matches) > 1 and run not in matches:
        raise UsageError(f"{run} matches {len(matches)} runs: {', '.join(matches)}", "write more of the id")
    return matches[0] if len(matches) == 1 else run


def refuse_unknown(run: str, alive: Sequence[RunState]) -> None:
    """Raise UsageError for a run that neither the hosts nor the records here know: it may be a typo."""
    from tflaunch.runs.record import Record
    from tflaunch.runs.record_list import list_runs

    try:
        if Record.open(run).run_id == run:
            return
    except UsageError:
        pass
    ended = [info.run_id for info in list_runs() if info.run_id.startswith(run)]
    if ended:  # several, else it would have been opened
        told = ", ".join(ended[:4]) + (f" and {len(ended) - 4} more" if len(ended) > 4 else "")
        raise UsageError(
            f"no run {run} is alive; {len(ended)} of that name have ended: {told}",
            f"one of them is looked for by its id: tflaunch stop {ended[0]}",
        )
    names = ", ".join(each.run_id for each in alive)
    hint = f"alive: {names}" if names else "no run is alive there"
    if os.getuid() == 0:
        hint += "; another user's: --user NAME"
    raise UsageError(f"these hosts know no run {run}", hint)


def ssh_options(timeout_s: float, ssh_config: str | PathLike[str] | None) -> SshOptions:
    """Return how to connect."""
    config = Path(fspath(ssh_config)) if ssh_config is not None else None
    return SshOptions(connect_timeout=timeout_s, ssh_config=config)
