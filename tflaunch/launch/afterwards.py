"""After the tasks: outputs are fetched, lost hosts are checked, and nothing is left on any host."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tflaunch.hosts import fold
from tflaunch.launch.cluster import Cluster
from tflaunch.launch.request import Connections, Request
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.launch.steering import Steering
from tflaunch.lifecycle.ending import NOT_AWAITED
from tflaunch.protocol.errors import FetchError, RecordError
from tflaunch.protocol.outcome import GpuLeft, Outcome
from tflaunch.sessions.group import Stopped

VERIFY_TIMEOUT_S = 10.0  # to connect to a lost host again


class Swept(Protocol):
    """How a run has ended on its hosts."""

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def gpus(self) -> Mapping[str, tuple[GpuLeft, ...]]: ...
    @property
    def lost(self) -> Mapping[str, str]: ...


class FinishedRun(Protocol):
    """A run whose outputs may be fetched."""

    @property
    def hosts(self) -> Mapping[Any, str]: ...
    @property
    def lost(self) -> Mapping[str, str]: ...
    @property
    def interrupts(self) -> Sequence[int]: ...


def final_outcome(outcome: Outcome, *, recorded: bool, fetched: bool) -> Outcome:
    """The outcome with the launcher's exit code, which also says what went wrong on this machine alone."""
    code = RecordError.exit_code if not recorded else FetchError.exit_code if not fetched else 0
    return dataclasses.replace(outcome, exit_code=outcome.exit_code or code)


def fetch_outputs(request: Request, steering: Steering, state: FinishedRun, watcher: RunWatcher) -> bool:
    """Fetch the outputs, however the run has ended, and show them; returns whether all wanted ones are here."""
    if request.fetch is None:
        return True
    later = f"tflaunch fetch {request.run_id}"
    if len(state.interrupts) > 1:  # the user is in a hurry
        watcher.say(f"nothing is fetched; later: {later}")
        return False
    hosts = set(state.hosts.values()) - set(state.lost)
    if not hosts:
        watcher.warn(f"nothing is fetched, as no host is left; when they are back: {later}")
        return False
    try:
        told = steering.fetch(hosts, request.fetch)
    except Stopped:
        watcher.say(f"not all is fetched; the rest: {later}")
        return False
    except FetchError as error:
        watcher.warn(f"{error.message}; {error.hint}. Then: {later}")
        return False
    watcher.fetched(told)
    if state.lost:
        watcher.warn(f"what is on {fold(state.lost)} is not fetched; when it is back: {later}")
    return told.complete and not state.lost


def tell_written(request: Request, steering: Steering, state: FinishedRun) -> None:
    """After a run that has succeeded, note what its tasks have written, where nothing was to be fetched."""
    if request.fetch is None:
        used = set(state.hosts.values()) - set(state.lost)
        steering.tell_written([host for host in request.hostfile.hosts if host.name in used])


def not_confirmed(unconfirmed: Mapping[str, str]) -> list[str]:
    """A sentence for each reason why hosts have not confirmed that nothing is left there; `unconfirmed`: host -> it."""
    hosts: dict[str, list[str]] = {}
    for host, reason in unconfirmed.items():
        hosts.setdefault(reason, []).append(host)
    return [
        f"{fold(names)}: could not check that nothing is left: {reason}; the lease ends what is there"
        for reason, names in hosts.items()
    ]


@contextlib.contextmanager
def nothing_left(cluster: Cluster, watcher: RunWatcher) -> Iterator[None]:
    """If the body raises, end the run on every host, and warn the user of each host that does not confirm it."""
    try:
        yield
    except BaseException as error:
        unconfirmed = cluster.abandon()
        for text in not_confirmed(unconfirmed):
            watcher.warn(text)
        if isinstance(error, Stopped):
            error.unconfirmed = unconfirmed
        raise


def verify(
    request: Request, state: Swept, connections: Connections, watcher: RunWatcher
) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]], Mapping[str, tuple[GpuLeft, ...]], int | None]:
    """Check that nothing of the run is left: connect again to the lost hosts, and end the run there.

    Returns (host -> why it could not be checked, host -> processes that are still alive, host -> GPUs that are not
    free, the signal by which the user cut this check short, or None).
    """
    survivors = {host: left for host, left in state.swept.items() if left}
    gpus = dict(state.gpus)
    lost = [host for host in request.hostfile.hosts if host.name in state.lost]
    if not lost:
        return {}, survivors, gpus, None
    from tflaunch.runs.run_states import restarted_text
    from tflaunch.runs.visits import Visits

    visits = Visits(connections, watcher)
    signal: int | None = None
    after = f"{request.lease_s:.12g} s after it last heard of this launcher"
    lease = f"; its agent ends the run there by itself {after}"
    with_slot = f"; its agent ends the run there with the slot holder, or {after}"
    with visits.interrupts():
        try:
            failures = visits.open(lost, VERIFY_TIMEOUT_S, "checking")
            finished, more = visits.finish(request.run_id, 0.0, "")
            failures.update(more)
            survivors.update({host: end.survivors for host, end in finished.items() if end.survivors})
            gpus.update({host: end.gpus for host, end in finished.items()})
            # Where the engine has killed all that was in a slot that is over, it counts as swept.
            left = {host: gone for host, gone in visits.gone.items() if not gone.swept}
            unverified = {host: error.message + lease for host, error in failures.items()}
            unverified |= {host: gone.message + with_slot for host, gone in left.items()}
            unsure = {host: end.doubt for host, end in finished.items() if end.unsure}
            for host, end in finished.items():
                if end.restarted:
                    watcher.note(restarted_text(host, end.restarted))
        except Stopped as stopped:
            signal = stopped.interrupted.signal
            unverified, unsure = {host.name: NOT_AWAITED + lease for host in lost}, {}
        finally:
            visits.close()
    return {**unverified, **unsure}, survivors, gpus, signal
