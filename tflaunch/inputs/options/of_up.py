"""All options and arguments of `up`."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tflaunch.inputs.options.declared import NOWHERE, Part, option
from tflaunch.inputs.options.groups import OUTPUT, ConnectionOptions, EndOptions, OutputOptions, WatchOptions
from tflaunch.inputs.options.job_groups import (
    ClusterOptions,
    GpuOptions,
    JobHosts,
    RestartOptions,
    RoleOptions,
    StartOptions,
    TaskOptions,
)


@dataclass(repr=False, eq=False)
class ServerOptions:
    """The options that only `up` has."""

    also_in = NOWHERE

    spec: Path | None = option(
        None, help="Write the cluster spec to this file, as JSON.", rich_help_panel=OUTPUT
    )
    foreground: bool = option(
        False,
        help="Stay, show what the servers print, and stop them at Ctrl-C.",
        rich_help_panel=EndOptions.panel,
    )


@dataclass(repr=False, eq=False)
class UpOptions:
    """All options and arguments of `up`."""

    where: JobHosts
    cluster: Annotated[ClusterOptions, Part(of="up")]
    gpus: Annotated[GpuOptions, Part(of="up")]
    start: Annotated[StartOptions, Part(of="up")]
    tasks: Annotated[TaskOptions, Part(of="up")]
    servers: ServerOptions
    output: Annotated[OutputOptions, Part(of="up")]
    end: Annotated[EndOptions, Part(of="up", default={"startup_timeout": 300.0})]
    watch: Annotated[WatchOptions, Part(of="up")]
    roles: Annotated[RoleOptions, Part(of="up")]
    restarts: Annotated[RestartOptions, Part(of="up", default={"restarts": 3})]
    connection: Annotated[ConnectionOptions, Part(of="up")]
