"""What the configuration files and a job file mean for a request: defaults of options and hosts, limits."""

from __future__ import annotations

import dataclasses
import functools
import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.config import Config, Setting
    from tflaunch.inputs.job_file import JobFile
    from tflaunch.inputs.options.given import Given
    from tflaunch.inputs.options.job_groups import GpuOptions
    from tflaunch.planning.gpu_limits import GpuLimit
    from tflaunch.protocol.job import JobSpec

# schema and help help to mend a file that cannot be used; rerun calls run, which reads it.
NOT_FOR = ("schema", "help", "rerun")
_UNTOLD = ("raw", "quiet", "show_host", "accept_new", "connect_timeout", "ssh_config")  # no part of a plan


@dataclass
class _State:
    """What the configuration has set for one command, or one call of the API."""

    listed: dict[str, int] = field(
        default_factory=dict
    )  # list -> how many of its first values are configured
    used: dict[str, Setting] = field(default_factory=dict)  # parameter -> the setting that is its value


_STATE: ContextVar[_State] = ContextVar("configured")


@functools.cache
def configuration() -> Config:
    """The configuration, read once; raises ConfigError."""
    from tflaunch.inputs.config import load

    return load()


def apply(verb: str, given: Given) -> None:
    """Give each option of the verb that nobody has set its configured value; raises ConfigError."""
    state = _State()
    _STATE.set(state)
    counts = configuration().settings()
    for file in configuration().files:
        for table in ("", verb):
            said = {each.key: each for each in file.settings if each.table == table}
            if (defaults := file.defaults.get(table)) is None:
                continue
            for name, value in defaults.options.items():
                if given.is_default(name) and not (
                    name == "connection" and os.environ.get("TFLAUNCH_CONNECTION")
                ):
                    given.put(name, value)
                    state.used[name] = said[defaults.keys[name]]
            for name, values in defaults.lists.items():
                setting = said[defaults.keys[name]]
                if values and setting in counts and name in given.values:
                    given.values[name] = [*values, *(given.values[name] or ())]
                    state.listed[name] = len(values)
                    state.used[name] = setting


def take_job_file(file: JobFile, given: Given) -> None:
    """Take from the job file what nobody has said; it wins over the configuration."""
    given.values.update(script=file.program, module=file.module)
    for name, value in file.options.items():
        if given.is_default(name):
            _STATE.get().used.pop(name, None)
            given.put(name, value)
    for name, values in file.lists.items():
        if name == "restart" and file.options.get("restarts") and not given.values["restarts"]:
            continue  # --restarts 0 turns off what the file says
        # Behind the values of the configuration: of two alike, the later one counts.
        there = given.values.get(name) or ()
        configured = _STATE.get().listed.get(name, 0)
        given.values[name] = [*there[:configured], *values, *there[configured:]]


def gpus_selected_by(options: GpuOptions) -> str:
    """The option by which this command asks for a kind of GPU, as it was written; "" for none.

    A configuration is for many commands, some of them without GPUs: what it says asks for none.
    """
    written = {
        "gpu_model": options.gpu_model and f"--gpu-model {options.gpu_model}",
        "min_gpu_memory": options.min_gpu_memory and f"--min-gpu-memory {options.min_gpu_memory}",
        "mig": "" if options.mig is None else f"--mig {options.mig}".rstrip(),
    }
    used = _STATE.get(_State()).used
    return " ".join(text for name, text in written.items() if text and name not in used)


def with_choices(job: JobSpec) -> JobSpec:
    """The job, whose plan says which options have their values from the configuration."""
    used = _STATE.get(_State()).used
    if not used:
        return job
    from tflaunch.inputs.config import value_text

    by_file: dict[str, list[str]] = {}
    for setting in {each.name: each for each in used.values() if each.key not in _UNTOLD}.values():
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


def gpu_limit() -> GpuLimit | None:
    """How many GPUs this user may hold on all hosts of a run together, or None."""
    setting = configuration().get("max_gpus_per_user")
    if setting is None:
        return None
    from tflaunch.planning.gpu_limits import GpuLimit

    return GpuLimit(setting.value, setting.place)
