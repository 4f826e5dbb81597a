"""What the configuration files mean for this command: defaults of its options and hosts, limits, the banner."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.config import Config, Setting
    from tflaunch.planning.gpu_limits import GpuLimit
    from tflaunch.protocol.job import JobSpec

NOT_FOR = ("schema", "help")  # they help to mend a file that cannot be used
_UNTOLD = ("raw", "quiet", "show_host", "accept_new", "connect_timeout", "ssh_config")  # no part of a plan
# Parameter of a command -> the key that has set it.
_KEYS = {
    "no_sync": "sync",
    "no_dial_check": "dial_check",
    "no_empty_flags": "empty_flags",
    "no_stacks": "stacks",
    "flag": "flags",
}
_listed: dict[str, int] = {}  # parameter that is a list -> how many of its first values are configured
_used: dict[str, Setting] = {}  # parameter of this command -> the setting that is its value


@functools.cache
def configuration() -> Config:
    """The configuration, read once; raises ConfigError."""
    from tflaunch.inputs.config import load

    return load()


def apply(ctx: typer.Context) -> None:
    """Give each option that neither the command line nor the environment has set its configured value.

    Raises ConfigError.
    """
    verb = ctx.info_name or ""
    _used.clear()
    _listed.clear()
    if verb in NOT_FOR:
        return
    counts = configuration().settings()
    for file in configuration().files:
        for table in ("", verb):
            said = {each.key: each for each in file.settings if each.table == table}
            if (defaults := file.defaults.get(table)) is None:
                continue
            for name, value in defaults.options.items():
                if is_default(ctx, name) and not (
                    name == "connection" and os.environ.get("TFLAUNCH_CONNECTION")
                ):
                    default = ctx.params[name]
                    ctx.params[name] = type(default)(value) if isinstance(default, Enum) else value
                    _used[name] = said[_KEYS.get(name, name)]
            for name, values in defaults.lists.items():
                setting = said.get(_KEYS.get(name, name))
                if values and setting in counts and name in ctx.params:
                    ctx.params[name] = [*values, *(ctx.params[name] or ())]
                    _listed[name] = len(values)
                    _used[name] = setting


def is_default(ctx: typer.Context, name: str) -> bool:
    """Whether the command has that option, and neither the command line nor the environment has set it."""
    return name in ctx.params and getattr(ctx.get_parameter_source(name), "name", "") == "DEFAULT"


def insert(ctx: typer.Context, name: str, values: Iterable[Any]) -> None:
    """Put a job file's values of a list behind those of the configuration: of two alike, the later one counts."""
    there = ctx.params.get(name) or ()
    configured = _listed.get(name, 0)
    ctx.params[name] = [*there[:configured], *values, *there[configured:]]


def overruled(name: str) -> None:
    """Note that a job file has set that option, which wins over the configuration."""
    _used.pop(name, None)


def with_choices(job: JobSpec) -> JobSpec:
    """The job, whose plan says which options have their values from the configuration."""
    if not _used:
        return job
    from tflaunch.console.config_page import value_text

    by_file: dict[str, list[str]] = {}
    for setting in {each.name: each for each in _used.values() if each.key not in _UNTOLD}.values():
        by_file.setdefault(setting.file, []).append(
            f"{setting.key} {value_text(setting)} (line {setting.line})"
        )
    told = tuple(f"{file} says: {', '.join(values)}" for file, values in by_file.items())
    return dataclasses.replace(job, choices=(*job.choices, *told)) if told else job


def default_source(cwd: Path) -> tuple[str | None, Setting | None]:
    """(the hostfile where the user names none, the setting that says so if one does); raises UsageError, ConfigError.

    `$TFLAUNCH_HOSTS` and ./hosts.yaml come before the user's configuration, that before the user's hosts.yaml, and the
    machine's configuration last.
    """
    from tflaunch.hosts import find_default

    setting = configuration().get("hosts")
    mine = setting if setting is not None and not setting.of_machine else None
    found = find_default(os.environ, cwd, users=not mine)
    if found is not None or setting is None:
        return found, None
    source = str(setting.value)
    if not source.endswith(":") and "," not in source:
        source = str(Path(setting.file).parent / Path(source).expanduser())
    return source, setting


def with_defaults(hostfile: Hostfile) -> Hostfile:
    """The hosts, with the configured run_dir and ports where the hostfile says nothing."""
    settings = {key: configuration().get(key) for key in ("run_dir", "ports")}
    values = {key: each.value for key, each in settings.items() if each is not None}
    if not values:
        return hostfile
    hosts = tuple(
        dataclasses.replace(
            host, **{key: value for key, value in values.items() if getattr(host, key) is None}
        )
        for host in hostfile.hosts
    )
    return dataclasses.replace(hostfile, hosts=hosts)


def show_banner(params: Mapping[str, Any]) -> None:
    """Show the banner on a terminal, once, before anything else; never where programs read."""
    banner = configuration().get("banner")
    if banner is None or params.get("json") or sys.stderr is None or not sys.stderr.isatty():
        return
    from tflaunch.sessions.log_lines import one_line

    with contextlib.suppress(OSError):
        print("\n".join(map(one_line, str(banner.value).split("\n"))), file=sys.stderr, flush=True)


def gpu_limit() -> GpuLimit | None:
    """How many GPUs this user may hold on all hosts of a run together, or None."""
    setting = configuration().get("max_gpus_per_user")
    if setting is None:
        return None
    from tflaunch.planning.gpu_limits import GpuLimit

    return GpuLimit(setting.value, setting.place)
