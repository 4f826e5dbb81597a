"""Values in YAML documents as users write them, checked in words of their own; shared by hostfiles and job files.

Values arrive as they are written in the file: a string for every scalar, a bool for any boolean of YAML 1.1,
None for a null.  A validator's ValueError is a phrase that follows the quoted value: `port: '0'` is not ...
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from tflaunch.inputs import placeholders
from tflaunch.inputs.variables import ARGUMENT_LIMIT_BYTES, DECIDED
from tflaunch.inputs.yaml_text import text_of


def _env_name(value: object) -> str:
    text = text_of(value, "a variable")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("is not the name of a variable: letters, digits and '_', not a digit first")
    if text in DECIDED:
        raise ValueError(f"is what tflaunch sets for every task. {DECIDED[text]}")
    return str(text)


def _env_value(value: object) -> str:
    if not isinstance(value, str):
        text_of(value, 'its value ("" for an empty one)')
    if not sendable(str(value)):
        raise ValueError("holds a character that no environment takes")
    if (size := len(str(value).encode())) > LONGEST_VALUE:
        raise ValueError(f"is {size:,} bytes long; Linux takes {ARGUMENT_LIMIT_BYTES:,} with its name")
    check_placeholders(str(value))
    return str(value)


def check_placeholders(text: str) -> None:
    """Raise ValueError for a placeholder that there is not."""
    if found := placeholders.unknown(text):
        name, instead = found
        raise ValueError(f"has {{{name}}}, which is no placeholder; {instead}")


def sendable(text: str) -> bool:
    return "\0" not in text and not re.search("[\ud800-\udfff]", text)


def string(description: str, *examples: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": description, "examples": list(examples), **more})


class Untitled(GenerateJsonSchema):
    """Leaves out titles that would only repeat the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


LONGEST_VALUE = ARGUMENT_LIMIT_BYTES - 256  # bytes; the rest is for the name
EnvName = Annotated[str, PlainValidator(_env_name), WithJsonSchema({"type": "string"})]
EnvValue = Annotated[str, PlainValidator(_env_value), WithJsonSchema({"type": ["string", "number"]})]
Variables = dict[EnvName, EnvValue]

# Optional without null: an empty value is an error, and the JSON Schema shows no default.
UNSAID: Any = Field(default_factory=lambda: None)
