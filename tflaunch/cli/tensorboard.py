"""`tflaunch tensorboard`: TensorBoard for a run, on the host of its chief, at a port of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tflaunch.cli.attach import Hosts, Reach, Run, open_view
from tflaunch.cli.options import AcceptNew, ConnectTimeout, Json, SshConfig, reporting
from tflaunch.protocol.errors import LaunchError

Port = Annotated[
    int,
    typer.Option(min=0, max=65535, metavar="PORT", help="The port of this machine [any]", show_default=False),
]


def tensorboard(
    run: Run = None,
    logdir: Annotated[
        str,
        typer.Argument(
            metavar="[LOGDIR]", help="On that host, from the tasks' working directory [that directory]"
        ),
    ] = ".",
    *,
    port: Port = 0,
    hosts: Hosts = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Show a run, alive or ended, in TensorBoard, until Ctrl-C.

    TensorBoard runs on the host of the run's chief, else of worker/0, with the python of the tasks.  The browser
    reaches it at a port of this machine, through the SSH connection; when that is lost, it is made anew.

    Exit code: 130 after Ctrl-C; 2 which run?, or the port is taken; 69 no connection; 70 TensorBoard does not start.
    """
    from tflaunch.runs.follow import Wanted
    from tflaunch.runs.tensorboard import show_tensorboard
    from tflaunch.runs.tunnel import Tunnel

    with reporting("TensorBoard is stopped", json=json) as show:
        tunnel = Tunnel(port)
        try:
            reach = Reach(hosts, accept_new, connect_timeout, ssh_config)
            with open_view(run, reach, show, Wanted(), json) as view:
                show_tensorboard(view, logdir, tunnel, show.reporter)
        finally:
            tunnel.close()
        show.exit_code = LaunchError.exit_code
