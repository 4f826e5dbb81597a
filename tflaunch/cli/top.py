"""`tflaunch top`: the tasks and hosts of a run, live, with graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.cli.arguments import LivingRun
from tflaunch.cli.attach import open_view
from tflaunch.cli.reporting import reporting
from tflaunch.inputs.options.groups import ReachOptions
from tflaunch.inputs.options.of_others import TopOptions
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.runs.follow import Follower


def top(
    run: LivingRun = None,
    *,
    again: TopOptions,
    reach: ReachOptions,
) -> None:
    """Watch what the tasks of a run use: processor, network, GPUs, steps, with graphs and keys, on a terminal.

    From any machine that reaches the hosts, as `tflaunch attach`; several users may watch one run.  q quits, and the
    run goes on.  ? shows the keys.  Without RUN: the only run alive.
    """
    from tflaunch.console.screen import reads_keys
    from tflaunch.documents.writer import dumb
    from tflaunch.runs.wanted import WantedLogs

    with reporting("not watching any more; the run goes on: tflaunch top") as show:
        if not reads_keys():
            raise UsageError(
                f"top draws on a terminal, and {'TERM says that this one only prints' if dumb() else 'there is none'}",
                "what the tasks used, as text or JSON: tflaunch report; how they stand: tflaunch status",
            )
        with open_view(run, reach, show, WantedLogs(), json=False) as view:
            if not view.run.alive:
                name = view.run.run_id
                raise UsageError(f"{name} is over", f"what it did: tflaunch report {name}")
            _watch(view, show.reporter, again.interval)


def _watch(view: Follower, reporter: Reporter, every_s: float) -> None:
    """Show the run until the user quits; raises Stopped for SIGTERM."""
    from tflaunch.console.run_top.drawing import TopDrawing
    from tflaunch.console.run_top.view import TopView
    from tflaunch.console.screen import Screen
    from tflaunch.console.watch_app import watch
    from tflaunch.runs.looking import Looking

    looking = Looking(view, reporter, every_s)
    state = TopView()
    watch(state, TopDrawing(state, every_s, Screen().marks), looking.looks(), looking.stop)
