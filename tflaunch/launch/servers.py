"""`tflaunch up`: TensorFlow servers that run no program; the launcher announces them once all listen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tflaunch.launch.launch import LaunchedRun, Started, make_ready, to_its_end
from tflaunch.launch.request import Connections, Request
from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.launch.starting import Starter
from tflaunch.lifecycle.states import Restarts
from tflaunch.planning.cluster_plan import ClusterPlan

Announce = Callable[[ClusterPlan], None]


def serve(request: Request, announce: Announce, connections: Connections, watcher: RunWatcher) -> int:
    """Start the servers and call `announce` once all of them listen; returns the exit code.

    Then, with `request.detach`, the run is detached; otherwise the launcher stays until its end.
    Until all listen, no server is started again, and the first failure ends the run.
    Raises TflaunchError or Stopped when they could not start; then nothing of them is left.
    """
    return to_its_end(request, _Servers(request, announce, connections, watcher), watcher)


class _Servers(LaunchedRun):
    """A run of servers."""

    def __init__(
        self, request: Request, announce: Announce, connections: Connections, watcher: RunWatcher
    ) -> None:
        super().__init__(request, connections, watcher)
        self._announce = announce

    def start(self, starter: Starter, plan: ClusterPlan, attempt: int) -> Started | None:
        """Start the servers, and announce them once all of them listen; None: the run was detached."""
        watchdog = make_ready(self.request, starter, plan, attempt, serves=True)
        started = self._until_all_listen(self.release(starter, plan, watchdog, attempt))
        if started.state.phase != "running":
            return started
        state = dataclasses.replace(started.state, restarts=self.request.restarts)
        coordinator_host = starter.entrust(plan, state, watchdog) if self.request.detach else ""
        self._announce(plan)
        if self.request.detach:
            self.leave(plan, coordinator_host)
            return None
        return dataclasses.replace(started, state=state)

    def _until_all_listen(self, started: Started) -> Started:
        """Drive the run until every server listens on its port, or the run is over."""
        watchdog, total = started.watchdog, len(started.state.hosts)

        def all_listen() -> bool:
            self.watcher.phase("starting", watchdog.ready, total)
            return watchdog.ready == total

        watchdog.awaited = True
        without_restarts = dataclasses.replace(started.state, restarts=Restarts())
        state = started.steering.drive(without_restarts, watchdog, all_listen)
        watchdog.awaited = False
        return dataclasses.replace(started, state=state)
