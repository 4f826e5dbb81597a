"""What a job file may say: the pydantic models of its YAML, and the JSON Schema made from them.

Most of its keys are options (tflaunch.inputs.options.in_files); here are those that are not.
tflaunch.inputs.yaml_values says in which form the values arrive.
"""

from __future__ import annotations

import functools
import shlex
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)

from tflaunch.inputs.options.file_values import (
    LIST,
    TIMES,
    Schema,
    choice,
    fields_of,
    module_name,
    text,
    time,
)
from tflaunch.inputs.options.in_files import of_job_file
from tflaunch.inputs.yaml_text import Unacceptable, text_of, whole
from tflaunch.inputs.yaml_values import (
    UNSAID,
    Untitled,
    Variables,
    check_placeholders,
    sendable,
    string,
)
from tflaunch.protocol.job import (
    ROLES,
    GpuCount,
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


def _count(value: object) -> int:
    return whole(value, 0, 10_000)


def _gpus(value: object) -> GpuCount:
    if value == "all":
        return "all"
    try:
        return whole(value, 0, 1024)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _whole_role(value: object) -> object:
    """`ps: 2` is `ps: {count: 2}`."""
    return {"count": value} if isinstance(value, str) else value


_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 10_000}
_GPUS: Schema = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1024}, {"const": "all"}]}


def _said(schema: Schema, meaning: str, *examples: object) -> WithJsonSchema:
    more = {"examples": [*examples]} if examples else {}
    return WithJsonSchema({**schema, "description": meaning, **more})


RoleName = Annotated[str, PlainValidator(_role_name), WithJsonSchema({"type": "string"})]
JobName = Annotated[str, PlainValidator(_job_name), WithJsonSchema({"type": "string"})]


class RoleSettings(BaseModel):
    """The tasks of one job name; a number alone is their count."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    count: Annotated[int, PlainValidator(_count), _said(_COUNT, "How many tasks.")] = UNSAID
    hosts: Annotated[
        str, PlainValidator(text), string("Where they may run: names, ranges, globs, labels.", "gpu[01-02]")
    ] = UNSAID
    gpus: Annotated[
        Any, PlainValidator(_gpus), _said(_GPUS, "GPUs of each task; all: those of its host.", 1, "all")
    ] = UNSAID
    env: Annotated[
        Variables, Field(description="In their environment, over `env` of the job.", default_factory=dict)
    ]
    program: Annotated[
        str,
        PlainValidator(text),
        string("What they run instead of the job's program; relative to this file.", "server.py"),
    ] = UNSAID
    module: Annotated[
        str, PlainValidator(module_name), string("The module, instead of a script.", "package.server")
    ] = UNSAID
    args: Annotated[
        tuple[str, ...],
        PlainValidator(_words),
        _said(LIST, "Behind the arguments of the job.", ["--shards", 8], "--port={port}"),
    ] = UNSAID
    end: Annotated[
        RoleEnd,
        PlainValidator(choice(get_args(RoleEnd))),
        _said(
            {"enum": [*get_args(RoleEnd)]},
            "decides: their success is the run's (worker, chief); stopped: when the work is done (others); "
            "sidecar: so, and their failure ends nothing.",
        ),
    ] = UNSAID
    grace: Annotated[
        float,
        PlainValidator(time()),
        _said(TIMES, "To end by themselves when the work is done (ps 3 s, evaluator 60 s)."),
    ] = UNSAID
    restart: Annotated[
        RestartPolicy,
        PlainValidator(choice(get_args(RestartPolicy))),
        _said({"enum": [*get_args(RestartPolicy)]}, "What starts again when one fails, with `restarts`."),
    ] = UNSAID


class JobDocument(BaseModel):
    """One run, for `tflaunch run hosts.yaml job.yaml`; options on the command line win over it."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="tflaunch job file")

    program: Annotated[
        str, PlainValidator(text), string("The script; relative to this file.", "trainer.py")
    ] = UNSAID
    args: Annotated[
        tuple[str, ...], PlainValidator(_words), _said(LIST, "Its arguments.", ["--epochs", 3], "--epochs 3")
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


@functools.cache
def model() -> type[JobDocument]:
    """The model of a job file, with the keys that are options."""
    return create_model("JobDocument", __base__=JobDocument, **fields_of(of_job_file()))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors."""
    schema = model().model_json_schema(schema_generator=Untitled)
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
