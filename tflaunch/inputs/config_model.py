"""What the configuration files may say: the pydantic models of their TOML, and the JSON Schema made from them.

A key of a verb's table means what the option of that verb means; those of `run` are the keys of a job file.
tflaunch.inputs.yaml_values says in which form the values arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, PlainValidator, WithJsonSchema, create_model

from tflaunch.inputs.hostfile_model import Settings
from tflaunch.inputs.job_model import JobDocument, Truth, flag, number, one_of, seconds_from, time
from tflaunch.inputs.yaml_values import UNSAID, Untitled, string, text_of, whole

Connection = Literal["ssh", "openssh"]
Sort = Literal["host", "memory", "utilization", "temperature"]
MOST_GPUS = 100_000
BANNER_CHARACTERS = 2000
BANNER_LINES = 20


def _text(value: object) -> str:
    if not (text := text_of(value, "text")):
        raise ValueError("is empty; leave it out")
    return str(text)


def _banner(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    text = str(value).strip("\n")
    if len(text) > BANNER_CHARACTERS or text.count("\n") >= BANNER_LINES:
        raise ValueError(f"is longer than {BANNER_LINES} lines or {BANNER_CHARACTERS:,} characters")
    return text


def _most(value: object) -> int:
    return whole(value, 0, MOST_GPUS)


def _count(value: object) -> int:
    return whole(value, 0, 1_000_000)


def _one_of(choices: Any) -> PlainValidator:
    names = choices.__args__

    def choose(value: object) -> str:
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return str(value)

    return PlainValidator(choose)


# The options that a job file lacks.
_OWN: dict[str, Any] = {
    "accept_new": Annotated[bool, Truth, flag("Accept unknown host keys; changed keys are refused.")],
    "connect_timeout": Annotated[float, seconds_from(1), time("Time limit to connect to a host.")],
    "connection": Annotated[
        Connection,
        _one_of(Connection),
        one_of(Connection, "ssh, or openssh (the system's ssh), where the hostfile does not say."),
    ],
    "ssh_config": Annotated[
        str, PlainValidator(_text), string("Read this file instead of ~/.ssh/config.", "ssh_config")
    ],
    "raw": Annotated[bool, Truth, flag("On a terminal, show also TensorFlow's start-up lines.")],
    "quiet": Annotated[bool, Truth, flag("Do not show what the tasks print.")],
    "show_host": Annotated[bool, Truth, flag("Show the host's name in each line.")],
    "tail": Annotated[int, PlainValidator(_count), number("Only the last lines.", 0, 1_000_000)],
    "retries": Annotated[
        int, PlainValidator(_count), number("Start a failed trial again, so often.", 0, 10_000)
    ],
    "keep_going": Annotated[
        bool, Truth, flag("Go on although the first trials all failed at once in the same way.")
    ],
    "sort": Annotated[Sort, _one_of(Sort), one_of(Sort, "The order of the GPUs.")],
    "timeout": Annotated[float, seconds_from(1), time("Time for one host to answer.")],
    "strict": Annotated[bool, Truth, flag("Warnings count as errors.")],
    "all_threads": Annotated[bool, Truth, flag("Show all threads.")],
}

SSH = ("accept_new", "connect_timeout", "ssh_config")
EVERYWHERE = (*SSH, "connection")  # as keys at the top: for each verb that has the option
_GPUS = ("gpu_model", "min_gpu_memory", "mig", "include", "exclude", "share_gpus", "wait", "require_all")
_TASKS = (
    "env", "env_file", "requirements", "system_site_packages", "container", "container_engine", "mount",
)  # fmt: skip
_CODE = ("ship", "follow_links", "max_code", "sync")
_OUTPUTS = (
    "fetch", "fetch_to", "fetch_max", "keep_mode", "overwrite", "tensorboard", "tensorboard_port",
)  # fmt: skip
# What each table may hold.  Not what makes one run: its program, its tasks and its name; nor what scripts rely on
# (--json), nor an answer to tflaunch's questions (--yes).
TABLES: dict[str, tuple[str, ...]] = {
    "run": (
        *_GPUS, "mix_models", *_TASKS, *_CODE, *_OUTPUTS, "flags", "flag_style", "empty_flags", "framework", "place",
        "done", "grace", "ps_grace", "timeout", "startup_timeout", "stall_timeout", "lease", "detach", "restarts",
        "restart", "restart_window", "restart_on", "spares", "dial_check", "threshold", "stacks", "require_gpu",
        "stop_on_nan", "raw", "quiet", "show_host", *EVERYWHERE,
    ),
    "up": (
        *_GPUS, "mix_models", *_TASKS, "place", "grace", "startup_timeout", "lease", "restarts", "restart_window",
        "dial_check", "threshold", "stacks", "show_host", *EVERYWHERE,
    ),
    "sweep": (*_GPUS, *_TASKS, *_CODE, *_OUTPUTS, "grace", "timeout", "lease", "retries", "keep_going", *EVERYWHERE),
    "attach": ("tail", "raw", "quiet", "show_host", *SSH),
    "logs": ("tail", "show_host", *SSH),
    "fetch": ("keep_mode", "overwrite", *SSH),
    "tensorboard": SSH,
    "detach": SSH,
    "stop": ("grace", *SSH),
    "init": ("timeout", *EVERYWHERE),
    "gpus": ("sort", "timeout", "accept_new", "ssh_config", "connection"),
    "check": (*_TASKS, "timeout", "strict", "accept_new", "ssh_config", "connection"),
    "ps": SSH,
    "status": SSH,
    "stacks": ("all_threads", *SSH),
    "clean": SSH,
}  # fmt: skip
MACHINES_ONLY = "max_gpus_per_user_per_host"  # agents read it, on their own host, in the machine's file


class _Top(BaseModel):
    """The configuration of tflaunch: defaults of hosts and options, limits, a banner."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="tflaunch configuration")

    hosts: Annotated[
        str,
        PlainValidator(_text),
        string(
            "The hostfile where none is named and there is no ./hosts.yaml; relative to this file.",
            "/etc/tflaunch/hosts.yaml",
            "slurm:",
        ),
    ] = UNSAID
    max_gpus_per_user: Annotated[
        int,
        PlainValidator(_most),
        number("GPUs that one user may hold on all hosts of a run together.", 0, MOST_GPUS),
    ] = UNSAID
    max_gpus_per_user_per_host: Annotated[
        int,
        PlainValidator(_most),
        number("GPUs that one user may hold on this host; only in /etc/tflaunch there.", 0, MOST_GPUS),
    ] = UNSAID
    banner: Annotated[
        str,
        PlainValidator(_banner),
        WithJsonSchema({"type": "string", "description": "What each command shows first, on a terminal."}),
    ] = UNSAID


@functools.cache
def _hints(model: type[BaseModel]) -> dict[str, Any]:
    return get_type_hints(model, include_extras=True)


def _hint(table: str, key: str) -> Any:
    own = table not in ("run", "sweep", "up") and key == "timeout"  # elsewhere it ends the run
    of_job = _hints(JobDocument)
    return of_job[key] if key in of_job and not own else _OWN[key]


@functools.cache
def keys_of(table: str) -> tuple[str, ...]:
    """The keys of a verb's table; of "" those at the top that are no tables."""
    return TABLES[table] if table else (*_Top.model_fields, "run_dir", "ports", *EVERYWHERE)


@functools.cache
def _table(name: str) -> type[BaseModel]:
    fields: Any = {key: (_hint(name, key), UNSAID) for key in TABLES[name]}
    config = ConfigDict(extra="forbid", title=f"Defaults of the options of `tflaunch {name}`.")
    return create_model(f"{name.capitalize()}Table", __config__=config, **fields)


def model(tables: Collection[str] = tuple(TABLES)) -> type[BaseModel]:
    """The model of a file that has no other tables than these: a model of all of them takes long to make."""
    of_hosts = _hints(Settings)
    fields: Any = {key: (of_hosts[key], UNSAID) for key in ("run_dir", "ports")}
    fields |= {key: (_OWN[key], UNSAID) for key in EVERYWHERE}
    fields |= {name: (_table(name), UNSAID) for name in TABLES if name in tables}
    return create_model("ConfigDocument", __base__=_Top, **fields)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors."""
    schema = model().model_json_schema(schema_generator=Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
