"""`tflaunch up`: starts TensorFlow servers that run no program of the user's, and says how clients find them."""

from __future__ import annotations

import json as jsons
import os
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.api.requests.up import request_of
from tflaunch.cli.command import command_line
from tflaunch.cli.reporting import reporting
from tflaunch.cli.verb_connections import connected
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
    from tflaunch.launch.launch import dry
    from tflaunch.launch.servers import serve

    output, servers = options.output, options.servers
    with reporting(
        "stopped; nothing is left",
        json=output.json,
        quiet=output.quiet or not servers.foreground,
        show_host=output.show_host,
        one_document=options.start.dry_run,
    ) as show:
        if servers.spec is not None:
            _check_writable(servers.spec)
        request = request_of(options, show.reporter, command=command_line())
        with connected(request.hostfile.hosts, options.connection, show.reporter) as connector:
            if options.start.dry_run:
                show.exit_code = dry(request, connector, show.reporter)
            else:
                announce = partial(_announce, servers.spec, show.reporter)
                show.exit_code = serve(request, announce, connector, show.reporter)


def _announce(spec: Path | None, reporter: Reporter, plan: ClusterPlan) -> None:
    """Say how clients find the servers, which all listen now."""
    if spec is not None:
        _write(spec, plan.cluster)
    reporter.servers(plan)
    reporter.warn(OPEN)


def _check_writable(spec: Path) -> None:
    """Raise UsageError now, not when all servers run, if the file cannot be written."""
    if spec.is_dir() or not spec.parent.is_dir():
        what = "a directory" if spec.is_dir() else f"there is no directory {spec.parent}"
        raise UsageError(f"--spec {spec}: {what}", "name a file to be written")
    if not os.access(spec.parent, os.W_OK):
        raise UsageError(f"--spec {spec}: {spec.parent} is not writable", "name another file")


def _write(spec: Path, cluster: Mapping[str, Sequence[str]]) -> None:
    """Write the cluster spec, whole or not at all: a client may wait for the file to appear."""
    partial = spec.with_name(f".{spec.name}.{secrets.token_hex(8)}")
    made = False
    try:
        # Others may write to that directory: never into what is there.
        with partial.open("x") as file:
            made = True
            file.write(jsons.dumps(cluster, indent=2) + "\n")
        partial.replace(spec)
    except OSError as error:
        if made:
            partial.unlink(missing_ok=True)
        raise RecordError(
            f"--spec {spec}: {error.strerror}; the servers are stopped", "name another file"
        ) from None
