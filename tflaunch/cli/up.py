"""`tflaunch up`: starts TensorFlow servers that run no program of the user's, and says how clients find them."""

from __future__ import annotations

import json as jsons
from functools import partial
from typing import TYPE_CHECKING

from tflaunch.api.carrying_out import carry_out, show_plan
from tflaunch.api.requests.up import request_of
from tflaunch.cli.command import command_line
from tflaunch.cli.output_file import OutputFile
from tflaunch.cli.reporting import reporting
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.options.of_up import UpOptions
from tflaunch.protocol.errors import RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.documents.reporter import Reporter
    from tflaunch.planning.cluster_plan import ClusterPlan

OPEN = (
    "TensorFlow's servers ask for no password, and listen on every interface of their hosts: everyone who reaches "
    "these ports can use them; keep them on a private network"
)


def up(options: UpOptions) -> None:
    """Start TensorFlow servers on HOSTS, with no program of yours; they run until tflaunch stop.

    Ends when all servers listen, and prints how clients find them: the targets for a session, the flags of the
    classic trainers, and the cluster spec.  A server that dies later starts again at the same address.
    """
    from tflaunch.launch.servers import serve

    output, servers = options.output, options.servers
    with reporting(
        "stopped; nothing is left",
        json=output.json,
        quiet=output.quiet or not servers.foreground,
        show_host=output.show_host,
        one_document=options.start.dry_run,
    ) as show:
        spec = OutputFile(servers.spec, "--spec") if servers.spec is not None else None
        request = request_of(options, show.reporter, command=command_line())
        if options.start.dry_run:
            show.exit_code = show_plan(request, options.connection, show.reporter, way_to_ask())
            return
        if spec is not None:
            _open(spec)
        launch = partial(serve, partial(_announce, spec, show.reporter))
        show.exit_code = carry_out(request, options.connection, show.reporter, launch, ask=way_to_ask())


def _announce(spec: OutputFile | None, reporter: Reporter, plan: ClusterPlan) -> None:
    """Say how clients find the servers, which all listen now."""
    if spec is not None:
        _write(spec, plan.cluster)
    reporter.servers(plan)
    reporter.warn(OPEN)


def _open(spec: OutputFile) -> None:
    """Now, not when all servers run: a pipe may have no reader yet."""
    try:
        spec.open()
    except OSError as error:
        raise UsageError(f"--spec {spec.path}: {error.strerror}", "name another file") from None


def _write(spec: OutputFile, cluster: Mapping[str, Sequence[str]]) -> None:
    """Write the cluster spec, whole or not at all: a client may wait for the file to appear."""
    try:
        spec.write(jsons.dumps(cluster, indent=2) + "\n")
    except OSError as error:
        raise RecordError(
            f"--spec {spec.path}: {error.strerror}; the servers are stopped", "name another file"
        ) from None
