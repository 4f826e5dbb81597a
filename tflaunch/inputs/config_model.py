"""What the configuration files may say: the pydantic models of their TOML, and the JSON Schema made from them.

A key of a verb's table is an option of that verb (tflaunch.inputs.options.in_files).
tflaunch.inputs.yaml_values says in which form the values arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PlainValidator, WithJsonSchema, create_model

from tflaunch.inputs.hostfile_model import Settings
from tflaunch.inputs.options.file_values import fields_of, text
from tflaunch.inputs.options.in_files import OF_VERB, of_table
from tflaunch.inputs.yaml_text import whole
from tflaunch.inputs.yaml_values import UNSAID, Untitled, string

MOST_GPUS = 100_000
BANNER_CHARACTERS = 2000
BANNER_LINES = 20


def _banner(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    text = str(value).strip("\n")
    if len(text) > BANNER_CHARACTERS or text.count("\n") >= BANNER_LINES:
        raise ValueError(f"is longer than {BANNER_LINES} lines or {BANNER_CHARACTERS:,} characters")
    return text


def _limit(meaning: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MOST_GPUS, "description": meaning})


def _most(value: object) -> int:
    return whole(value, 0, MOST_GPUS)


MACHINES_ONLY = "max_gpus_per_user_per_host"  # agents read it, on their own host, in the machine's file


class _Top(BaseModel):
    """The configuration of tflaunch: defaults of hosts and options, limits, a banner."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="tflaunch configuration")

    hosts: Annotated[
        str,
        PlainValidator(text),
        string(
            "The hostfile where none is named and there is no ./hosts.yaml; relative to this file.",
            "/etc/tflaunch/hosts.yaml",
            "slurm:",
        ),
    ] = UNSAID
    max_gpus_per_user: Annotated[
        int,
        PlainValidator(_most),
        _limit("GPUs that one user may hold on all hosts of a run together."),
    ] = UNSAID
    max_gpus_per_user_per_host: Annotated[
        int,
        PlainValidator(_most),
        _limit("GPUs that one user may hold on this host; only in /etc/tflaunch there."),
    ] = UNSAID
    banner: Annotated[
        str,
        PlainValidator(_banner),
        WithJsonSchema({"type": "string", "description": "What each command shows first, on a terminal."}),
    ] = UNSAID


@functools.cache
def keys_of(table: str) -> tuple[str, ...]:
    """The keys of a verb's table; of "" those at the top that are no tables."""
    own = () if table else (*_Top.model_fields, "run_dir", "ports")
    return (*own, *dict.fromkeys(option.key for option in of_table(table)))


def model(tables: Collection[str] = tuple(OF_VERB)) -> type[BaseModel]:
    """The model of a file that has no other tables than these: a model of all of them takes long to make."""
    of_hosts = get_type_hints(Settings, include_extras=True)
    fields = {key: (of_hosts[key], UNSAID) for key in ("run_dir", "ports")} | fields_of(of_table(""))
    fields |= {name: (_table(name), UNSAID) for name in OF_VERB if name in tables}
    return create_model("ConfigDocument", __base__=_Top, **fields)


@functools.cache
def _table(name: str) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", title=f"Defaults of the options of `tflaunch {name}`.")
    return create_model(f"{name.capitalize()}Table", __config__=config, **fields_of(of_table(name)))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors."""
    schema = model().model_json_schema(schema_generator=Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
