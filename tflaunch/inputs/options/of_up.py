"""All options and arguments of `up`."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tflaunch.inputs.options.declared import Part, option
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

    spec: Path | None = option(
        None, metavar="FILE", help="Write the cluster spec to this file, as JSON.", rich_help_panel=OUTPUT
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
    cluster: Annotated[ClusterOptions, Part(without=("evaluator",))]
    gpus: GpuOptions
    start: StartOptions
    tasks: TaskOptions
    servers: ServerOptions
    output: Annotated[OutputOptions, Part(without=("only", "raw"))]
    end: Annotated[EndOptions, Part("grace", "startup_timeout", "lease", default={"startup_timeout": 300.0})]
    watch: Annotated[WatchOptions, Part("threshold", "no_stacks")]
    roles: Annotated[RoleOptions, Part("job", "job_hosts", "job_gpus", "job_env")]
    restarts: Annotated[RestartOptions, Part("restarts", "restart_window", default={"restarts": 3})]
    connection: ConnectionOptions
