"""`tflaunch tensorboard`: shows a run in TensorBoard, which runs on a host, at a port of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tflaunch.api.requests.which_hosts import run_and_words
from tflaunch.cli.arguments import Run
from tflaunch.cli.attach import open_view
from tflaunch.cli.reporting import reporting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OutputOptions, ReachOptions
from tflaunch.protocol.errors import LaunchError

Port = Annotated[
    int,
    typer.Option(
        min=0, max=65535, metavar="PORT", help="TensorBoard's port on this machine [any]", show_default=False
    ),
]


def tensorboard(
    run: Run = None,
    logdir: Annotated[
        str,
        typer.Argument(
            metavar="LOGDIR", help="A directory on that host, from the tasks' working directory [that one]"
        ),
    ] = ".",
    *,
    port: Port = 0,
    output: Annotated[OutputOptions, Part("json")],
    reach: ReachOptions,
) -> None:
    """Show a run, alive or ended, in TensorBoard, until Ctrl-C.

    TensorBoard runs on the host of the run's chief, else of worker/0, with the tasks' Python.  The browser reaches it
    at a port of this machine, through the SSH connection; tflaunch connects again if that is lost.
    """
    from tflaunch.runs.tensorboard import show_tensorboard
    from tflaunch.runs.tunnel import BrowserTunnel
    from tflaunch.runs.wanted import WantedLogs

    run, words = run_and_words(run, [])
    logdir = words[0] if words else logdir
    with reporting("TensorBoard is stopped", json=output.json) as show:
        tunnel = BrowserTunnel(port)
        try:
            with open_view(run, reach, show, WantedLogs(), output.json) as view:
                show_tensorboard(view, logdir, tunnel, show.reporter)
        finally:
            tunnel.close()
        show.exit_code = LaunchError.exit_code
