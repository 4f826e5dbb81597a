"""What a job file may say: the pydantic models of its YAML, and the JSON Schema made from them.

tflaunch.inputs.yaml_values says in which form the values arrive.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from tflaunch.frameworks.table import CHOICES as FRAMEWORKS
from tflaunch.inputs.patterns import Pattern
from tflaunch.inputs.sizes import size
from tflaunch.inputs.times import TIME, seconds
from tflaunch.inputs.yaml_values import (
    UNSAID,
    Unacceptable,
    Untitled,
    Variables,
    check_placeholders,
    sendable,
    string,
    text_of,
    whole,
)
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import (
    FLAGS,
    ROLES,
    TASK_FLAG,
    Done,
    FlagStyle,
    GpuCount,
    Place,
    RestartOn,
    RestartPolicy,
    RoleEnd,
    job_name_fault,
    near_role,
)


def _role_name(value: object) -> str:
    text = text_of(value, "a role")
    if text in ROLES:
        return str(text)
    if near := near_role(text):
        raise ValueError(f"is no role; did you mean {near!r}? A job of your own goes under `jobs:`")
    if fault := job_name_fault(text):
        raise ValueError(f"is none of TensorFlow's roles ({', '.join(ROLES)}), and {fault}")
    raise ValueError(
        f"is none of TensorFlow's roles ({', '.join(ROLES)}); a job of your own goes under `jobs:`"
    )


def _job_name(value: object) -> str:
    text = text_of(value, "a job name")
    if fault := job_name_fault(text):
        raise ValueError(fault)
    if text in ROLES:
        raise ValueError("is one of TensorFlow's roles; put it under `roles:`")
    return str(text)


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        text = text_of(value, "arguments, as a list or as a shell takes them")
        check_placeholders(text)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise ValueError(f"cannot be split into words ({error}); write a list") from None
    for index, item in enumerate(value):
        if not isinstance(item, str) or not sendable(item):
            raise Unacceptable(
                'is not text that a program can be given; put it in quotes, "" for nothing', index
            )
        try:
            check_placeholders(item)
        except ValueError as error:
            raise Unacceptable(str(error), index) from None
    return tuple(map(str, value))


def _texts(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("names nothing; leave it out")
    for index, item in enumerate(items):
        try:
            text_of(item, "text")
        except ValueError as error:
            raise (Unacceptable(str(error), index) if isinstance(value, list) else error) from None
    return tuple(map(str, items))


def _text(value: object) -> str:
    if not (text := text_of(value, "text")):
        raise ValueError("is empty; leave it out")
    return str(text)


def _module(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"\w+(\.\w+)*", text):
        raise ValueError("is not a module: package.trainer, without .py")
    return text


def names_in(choices: Any) -> tuple[str, ...]:
    """The names of a Literal, or of a tuple of names."""
    return choices if isinstance(choices, tuple) else get_args(choices)


def _choice(choices: Any) -> Callable[[object], str]:
    names = names_in(choices)

    def choose(value: object) -> str:
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return str(value)

    return choose


def _count(value: object) -> int:
    return whole(value, 0, 10_000)


def _port(value: object) -> int:
    return whole(value, 0, 65535)


def _gpus(value: object) -> GpuCount:
    if value == "all":
        return "all"
    try:
        return whole(value, 0, 1024)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _seconds(value: object) -> float:
    return seconds(text_of(value, f"a time: {TIME}", free=False))


def _lease(value: object) -> float:
    if (lease_s := _seconds(value)) < 5:
        raise ValueError("is less than 5 s")
    return lease_s


def _memory(value: object) -> str:
    text = text_of(value, "an amount of memory: 40GiB", free=False)
    try:
        size(text)
    except UsageError:
        raise ValueError("is not an amount of memory; write it with its unit: 40GiB") from None
    return str(text)


def _size(value: object) -> str:
    text = text_of(value, "an amount of data: 20GiB", free=False)
    try:
        size(text)
    except UsageError:
        raise ValueError("is not an amount of data; write it with its unit: 20GiB") from None
    return str(text)


def _patterns(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    for index, text in enumerate(texts):
        try:
            Pattern.parse(text)
        except ValueError as error:
            raise (Unacceptable(str(error), index) if isinstance(value, list) else error) from None
    return texts


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _wait(value: object) -> float | None:
    if isinstance(value, bool):
        return math.inf if value else None
    return _seconds(value)


def _mig(value: object) -> str | None:
    if isinstance(value, bool):
        return "" if value else None
    text = text_of(value, "true, or a profile: 1g.10gb")
    if not re.fullmatch(r"\d+[cg](\..*)?", text):
        raise ValueError("is not true or a profile: 1g.10gb")
    return str(text)


def _flags(value: object) -> dict[str, str] | None:
    if value is False:
        return None
    if value is True:
        return {}
    if not isinstance(value, dict):
        raise ValueError("is not true, false (no flags at all), or a mapping such as task_index: task_id")
    for name, other in value.items():
        if name not in (*FLAGS, TASK_FLAG) and not (name.endswith("_hosts") and not job_name_fault(name)):
            raise Unacceptable(
                f"renames a flag that is none of {', '.join(FLAGS)}, {TASK_FLAG}, JOB_hosts", name
            )
        if not isinstance(other, str):
            raise Unacceptable('is not the name of a flag; write "" to pass none', name)
    return {name: str(other) for name, other in value.items()}


def _whole_role(value: object) -> object:
    """`ps: 2` is `ps: {count: 2}`."""
    return {"count": value} if isinstance(value, str) else value


def number(description: str, low: int, high: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": low, "maximum": high, "description": description})


def _gpu_count(description: str) -> WithJsonSchema:
    kinds = [{"type": "integer", "minimum": 0, "maximum": 1024}, {"const": "all"}]
    return WithJsonSchema({"anyOf": kinds, "description": description, "examples": [1, "all"]})


def time(description: str) -> WithJsonSchema:
    kinds = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^[0-9.]+ *[smhdw]?$"}]
    return WithJsonSchema({"anyOf": kinds, "description": description, "examples": [90, "15m", "12h"]})


def one_of(choices: Any, description: str) -> WithJsonSchema:
    return WithJsonSchema({"enum": list(names_in(choices)), "description": description})


def _list(description: str, *examples: object) -> WithJsonSchema:
    kinds = [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]
    return WithJsonSchema({"anyOf": kinds, "description": description, "examples": list(examples)})


def _or_text(description: str, *examples: object) -> WithJsonSchema:
    kinds = [{"type": "boolean"}, {"type": ["string", "number"]}]
    return WithJsonSchema({"anyOf": kinds, "description": description, "examples": list(examples)})


def flag(description: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "boolean", "description": description})


def seconds_from(least_s: float) -> PlainValidator:
    """A time of at least so long."""

    def read(value: object) -> float:
        if (time_s := _seconds(value)) < least_s:
            raise ValueError(f"is less than {least_s:g} s")
        return time_s

    return PlainValidator(read)


Truth = PlainValidator(_truth)
Seconds = PlainValidator(_seconds)
RoleName = Annotated[str, PlainValidator(_role_name), WithJsonSchema({"type": "string"})]
JobName = Annotated[str, PlainValidator(_job_name), WithJsonSchema({"type": "string"})]


class RoleSettings(BaseModel):
    """The tasks of one job name; a number alone is their count."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    count: Annotated[int, PlainValidator(_count), number("How many tasks.", 0, 10_000)] = UNSAID
    hosts: Annotated[
        str, PlainValidator(_text), string("Where they may run: names, ranges, globs, labels.", "gpu[01-02]")
    ] = UNSAID
    gpus: Annotated[Any, PlainValidator(_gpus), _gpu_count("GPUs of each task; all: those of its host.")] = (
        UNSAID
    )
    env: Annotated[
        Variables, Field(description="In their environment, over `env` of the job.", default_factory=dict)
    ]
    program: Annotated[
        str,
        PlainValidator(_text),
        string("What they run instead of the job's program; relative to this file.", "server.py"),
    ] = UNSAID
    module: Annotated[
        str, PlainValidator(_module), string("The module, instead of a script.", "package.server")
    ] = UNSAID
    args: Annotated[
        tuple[str, ...],
        PlainValidator(_words),
        _list("Behind the arguments of the job.", ["--shards", 8], "--port={port}"),
    ] = UNSAID
    end: Annotated[
        RoleEnd,
        PlainValidator(_choice(RoleEnd)),
        one_of(
            RoleEnd,
            "decides: their success is the run's (worker, chief); stopped: when the work is done (others); "
            "sidecar: so, and their failure ends nothing.",
        ),
    ] = UNSAID
    grace: Annotated[
        float, Seconds, time("To end by themselves when the work is done (ps 3 s, evaluator 60 s).")
    ] = UNSAID
    restart: Annotated[
        RestartPolicy,
        PlainValidator(_choice(RestartPolicy)),
        one_of(RestartPolicy, "What starts again when one fails, with `restarts`."),
    ] = UNSAID


class JobDocument(BaseModel):
    """One run, for `tflaunch run hosts.yaml job.yaml`; options on the command line win over it."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="tflaunch job file")

    program: Annotated[
        str, PlainValidator(_text), string("The script; relative to this file.", "trainer.py")
    ] = UNSAID
    module: Annotated[
        str, PlainValidator(_module), string("The module, instead of a script.", "package.trainer")
    ] = UNSAID
    args: Annotated[
        tuple[str, ...],
        PlainValidator(_words),
        _list("Its arguments.", ["--epochs", 3], "--epochs 3"),
    ] = UNSAID
    name: Annotated[
        str,
        PlainValidator(_text),
        string("The run's id begins with it, instead of the program's name.", "mnist"),
    ] = UNSAID
    code_dir: Annotated[
        str, PlainValidator(_text), string("Ship this directory; relative to this file.", ".")
    ] = UNSAID
    ship: Annotated[
        tuple[str, ...],
        PlainValidator(_texts),
        _list(
            "Files of the code that are shipped although they are ignored or look like secrets.",
            ["data/key.pem"],
        ),
    ] = UNSAID
    follow_links: Annotated[
        bool, Truth, flag("Ship what links lead to outside the directory, not the links.")
    ] = UNSAID
    max_code: Annotated[str, PlainValidator(_size), string("Ship no more than that.", "500MiB")] = UNSAID
    sync: Annotated[bool, Truth, flag("false: ship nothing, the code is on the hosts.")] = UNSAID
    flags: Annotated[
        dict[str, str] | None,
        PlainValidator(_flags),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "boolean"},
                    {"type": "object", "additionalProperties": {"type": "string"}},
                ],
                "description": "Cluster flags under other names, or under their own: true; false: TF_CONFIG alone "
                "tells who a task is.",
                "examples": [{"task_index": "task_id"}, {"task": "job"}, False],
            }
        ),
    ] = UNSAID
    flag_style: Annotated[
        FlagStyle,
        PlainValidator(_choice(FlagStyle)),
        one_of(FlagStyle, "Cluster flags as --task_index=0, or as two words: --task_index 0."),
    ] = UNSAID
    empty_flags: Annotated[bool, Truth, flag("false: no --ps_hosts= where the cluster has no ps.")] = UNSAID
    framework: Annotated[
        str,
        PlainValidator(_choice(FRAMEWORKS)),
        one_of(
            FRAMEWORKS,
            "By whose words it starts. torch, jax: no ps and no cluster flags unless asked for; auto: TensorFlow's, "
            "and the variables of both besides.",
        ),
    ] = UNSAID
    env: Annotated[Variables, Field(description="Environment of all tasks.", default_factory=dict)]
    env_file: Annotated[
        tuple[str, ...],
        PlainValidator(_texts),
        _list("Files of variables for all tasks, which no record shows; relative to this file.", ".env"),
    ] = UNSAID
    requirements: Annotated[
        str,
        PlainValidator(_text),
        string("Each host installs these packages, once; relative to this file.", "requirements.txt"),
    ] = UNSAID
    system_site_packages: Annotated[bool, Truth, flag("On top of what the hosts' Python has.")] = UNSAID
    container: Annotated[
        str, PlainValidator(_text), string("The image that the tasks run in.", "tensorflow/tensorflow:latest")
    ] = UNSAID
    container_engine: Annotated[
        str, PlainValidator(_text), string("podman, docker or a path, for the containers.", "podman")
    ] = UNSAID
    mount: Annotated[
        tuple[str, ...],
        PlainValidator(_texts),
        _list("Directories of the hosts for the containers: SOURCE[:TARGET[:ro]].", ["/data:/data:ro"]),
    ] = UNSAID

    roles: Annotated[
        dict[RoleName, Annotated[RoleSettings, BeforeValidator(_whole_role)]],
        Field(
            description="The tasks in TensorFlow's roles: ps, worker, chief, master, evaluator.",
            examples=[{"ps": 1, "worker": {"count": 4, "gpus": 1}, "evaluator": 1}],
            default_factory=dict,
        ),
    ]
    jobs: Annotated[
        dict[JobName, Annotated[RoleSettings, BeforeValidator(_whole_role)]],
        Field(
            description="The tasks of jobs of your own, under any other name.",
            examples=[{"data": {"count": 2, "args": ["--shards", 8]}}],
            default_factory=dict,
        ),
    ]
    place: Annotated[
        Place, PlainValidator(_choice(Place)), one_of(Place, "Over all hosts, or on as few as can be.")
    ] = UNSAID

    gpu_model: Annotated[str, PlainValidator(_text), string("Only GPUs with this in their name.", "H100")] = (
        UNSAID
    )
    min_gpu_memory: Annotated[str, PlainValidator(_memory), string("Only GPUs with that much.", "40GiB")] = (
        UNSAID
    )
    mig: Annotated[
        str | None, PlainValidator(_mig), _or_text("MIG instances (of that profile).", True, "1g.10gb")
    ] = UNSAID
    include: Annotated[tuple[str, ...], PlainValidator(_texts), _list("Only these GPUs.", ["gpu01:0,2"])] = (
        UNSAID
    )
    exclude: Annotated[tuple[str, ...], PlainValidator(_texts), _list("Not these GPUs.", ["gpu01:3"])] = (
        UNSAID
    )
    mix_models: Annotated[bool, Truth, flag("Workers may get GPUs of several models.")] = UNSAID
    share_gpus: Annotated[bool, Truth, flag("Also GPUs that others compute on.")] = UNSAID
    require_all: Annotated[
        bool,
        Truth,
        flag("Start nothing while a host cannot be reached, also where it would fit on the others."),
    ] = UNSAID
    wait: Annotated[
        float | None, PlainValidator(_wait), _or_text("Queue for GPUs in use, so long.", True, "2h")
    ] = UNSAID

    done: Annotated[Done, PlainValidator(_choice(Done)), one_of(Done, "Whose success ends the run.")] = UNSAID
    grace: Annotated[float, Seconds, time("From the request to end to the kill.")] = UNSAID
    ps_grace: Annotated[
        float,
        Seconds,
        time("For ps, and jobs of your own, to end by themselves when the work is done."),
    ] = UNSAID
    timeout: Annotated[float, Seconds, time("End the run after so long.")] = UNSAID
    startup_timeout: Annotated[
        float, Seconds, time("End it when a task has not opened its port by then.")
    ] = UNSAID
    stall_timeout: Annotated[
        float, Seconds, time("End it when no task has written anything for so long.")
    ] = UNSAID
    lease: Annotated[
        float,
        PlainValidator(_lease),
        time("Each host ends the run when it has not heard from the launcher or coordinator for so long."),
    ] = UNSAID
    detach: Annotated[bool, Truth, flag("Start it and leave.")] = UNSAID

    fetch: Annotated[
        tuple[str, ...],
        PlainValidator(_patterns),
        _list("Bring these outputs at the end.", ["checkpoints/**"]),
    ] = UNSAID
    fetch_to: Annotated[str, PlainValidator(_text), string("Where to; relative to this file.", "outputs")] = (
        UNSAID
    )
    fetch_max: Annotated[str, PlainValidator(_size), string("Bring nothing if it is more.", "20GiB")] = UNSAID
    keep_mode: Annotated[bool, Truth, flag("What is executable there is so here.")] = UNSAID
    overwrite: Annotated[bool, Truth, flag("Also over files here that have other content.")] = UNSAID
    tensorboard: Annotated[
        str, PlainValidator(_text), string("Show this log directory of the chief's host.", "logs")
    ] = UNSAID
    tensorboard_port: Annotated[
        int, PlainValidator(_port), number("The port of this machine for it; 0: any.", 0, 65535)
    ] = UNSAID

    restarts: Annotated[
        int, PlainValidator(_count), number("Start what fails again, so often.", 0, 10_000)
    ] = UNSAID
    restart: Annotated[
        RestartPolicy, PlainValidator(_choice(RestartPolicy)), one_of(RestartPolicy, "What starts again.")
    ] = UNSAID
    restart_window: Annotated[float, Seconds, time("The time in which `restarts` counts.")] = UNSAID
    restart_on: Annotated[
        RestartOn, PlainValidator(_choice(RestartOn)), one_of(RestartOn, "Which failures are answered so.")
    ] = UNSAID
    spares: Annotated[
        str, PlainValidator(_text), string("Hosts that are kept for when another one is lost.", "gpu09")
    ] = UNSAID
    dial_check: Annotated[bool, Truth, flag("false: start even if hosts cannot reach each other.")] = UNSAID
    threshold: Annotated[
        tuple[str, ...],
        PlainValidator(_texts),
        _list("From when on a hang is told: NAME=VALUE.", ["wait_s=120"]),
    ] = UNSAID
    stacks: Annotated[
        bool, Truth, flag("false: never have a task print its Python stacks while it runs.")
    ] = UNSAID
    require_gpu: Annotated[bool, Truth, flag("End the run if a task that has GPUs does not use them.")] = (
        UNSAID
    )
    stop_on_nan: Annotated[bool, Truth, flag("End the run if the loss stays NaN.")] = UNSAID


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors."""
    schema = JobDocument.model_json_schema(schema_generator=Untitled)
    number = {"type": "integer", "minimum": 0}
    role = schema["$defs"].pop("RoleSettings")
    tasks, known = {"anyOf": [number, role]}, list(ROLES)
    own = {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,62}$", "not": {"enum": known}}
    for key in ("roles", "jobs"):
        schema["properties"][key].pop("propertyNames", None)
    schema["properties"]["roles"] |= {
        "properties": dict.fromkeys(known, tasks),
        "additionalProperties": False,
    }
    schema["properties"]["jobs"] |= {"propertyNames": own, "additionalProperties": tasks}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": {}}
