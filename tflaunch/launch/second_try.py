"""A start whose connections break while it prepares the hosts is tried once more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from tflaunch.hosts import fold
from tflaunch.launch.request import Connections, Request
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.protocol.errors import ConnectErrors, LaunchError
from tflaunch.sessions.absent_hosts import TCP_S

_T = TypeVar("_T")


def at_most_twice(
    start: Callable[[], _T], request: Request, connections: Connections, watcher: RunWatcher
) -> _T:
    """Return what `start` returns; where it fails because connections broke, it is called once more.

    `start` leaves nothing on the hosts that it still reaches when it fails.  Raises TflaunchError, Stopped.
    """
    try:
        return start()
    except (ConnectErrors, LaunchError) as error:
        if not error.again:
            raise
        watcher.warn(f"{_why(error)}; the run is prepared once more")
        met = [host for host, why in error.failures.items() if isinstance(why, str) or not why.absent]
        _end_on(met, request, connections, watcher)
    return start()


def _end_on(names: Collection[str], request: Request, connections: Connections, watcher: RunWatcher) -> None:
    """End the agents of these hosts, which may not know yet that their connections broke.  Raises Stopped."""
    from tflaunch.runs.visits import Visits

    visits = Visits(connections, watcher)
    visits.sessions.insists_s = TCP_S
    with visits.interrupts():
        try:
            hosts = [host for host in request.hostfile.hosts if host.name in names]
            visits.open(hosts, request.connect_s, "connecting")
            visits.finish(request.run_id, 0.0, "")  # what is left where this fails, the next try says
        finally:
            visits.close()


def _why(error: ConnectErrors | LaunchError) -> str:
    reasons: dict[str, list[str]] = {}
    for host, reason in error.failures.items():
        text = reason if isinstance(reason, str) else reason.message
        reasons.setdefault(text, []).append(host)
    return "; ".join(f"{fold(hosts)}: {text}" for text, hosts in reasons.items())
