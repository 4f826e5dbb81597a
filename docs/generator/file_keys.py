"""The keys of hostfile, job file and configuration, from the JSON Schemas that `tflaunch schema` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from generator.markdown import code, described, directive, escaped, prose, table
from tflaunch.inputs import config_model, hostfile_model, job_model

_HOSTFILE = """\
# Keys of the hostfile

[The hostfile](../hostfile.md) tells how to write one. `tflaunch schema > hosts.schema.json` prints this page as a JSON
Schema, with which editors complete and check it.

A hostfile of hosts has two keys, one of [slots of an engine](#slots-of-an-engine) has four:
"""
_SETTINGS = """\
## Settings

A host, a group of hosts and `defaults:` take these. The innermost wins; `env` and `labels` merge.
"""
_SLOTS = """\
## Slots of an engine

[Engines](../engines.md) tells what they are. Such a hostfile has these keys:
"""
_SLOT = """\
## Of slots of one size

Every other key is a setting of the engine, for these slots alone.
"""
_JOB_FILE = """\
# Keys of the job file

[A run as a file](../job-file.md) tells how to write one. `tflaunch schema job > job.schema.json` prints this page as a
JSON Schema. Options of the command line win over the file.
"""
_CONFIGURATION = """\
# Keys of the configuration

`/etc/tflaunch/config.toml` is for all users of a machine, `~/.config/tflaunch/config.toml` is yours and wins. The
command line, the environment, a job file and a hostfile win over both.

`tflaunch config` shows each value that counts, with the file and the line that it comes from;
`tflaunch schema config > config.schema.json` prints this page as a JSON Schema.

## For all commands
"""
_TABLES = """\
## For one command

A table with the name of a command has defaults of its options, as they are called there:

```toml
[run]
grace = "30s"
```
"""
_REFERENCES = {
    "Settings": "The [settings](#settings)",
    "HostSettings": "A [host with settings](#only-of-a-host)",
    "GroupSettings": "A [group of hosts](#only-of-a-group)",
    "SlotSettings": "[Slots of one size](#of-slots-of-one-size)",
}


def pages() -> dict[str, str]:
    """Return the pages, by the names of their files."""
    return {
        "hostfile-keys.md": _hostfile(),
        "job-file-keys.md": _job_file(),
        "config-keys.md": _configuration(),
    }


def _hostfile() -> str:
    schema = hostfile_model.json_schema()
    kinds: Mapping[str, Mapping[str, Any]] = schema["$defs"]
    settings = kinds["Settings"]["properties"]
    parts = [
        _HOSTFILE,
        *_keys("hostfile", kinds["Document"]["properties"]),
        _SETTINGS,
        *_keys("hostfile", settings),
    ]
    for name, of in (("HostSettings", "host"), ("GroupSettings", "group")):
        own = {key: value for key, value in kinds[name]["properties"].items() if key not in settings}
        parts += [f"## Only of a {of}\n\n{prose(kinds[name]['description'])}\n", *_keys(of, own)]
    parts += [_SLOTS, *_keys("hostfile of slots", kinds["SlotsDocument"]["properties"])]
    parts += [_SLOT, *_keys("slots", kinds["SlotSettings"]["properties"])]
    shown = {"Document", "Settings", "HostSettings", "GroupSettings", "SlotsDocument", "SlotSettings"}
    if left := kinds.keys() - shown:
        raise LookupError(f"the page of the hostfile has no place for {', '.join(sorted(left))}")
    return "\n".join(parts)


def _configuration() -> str:
    schema = config_model.json_schema()
    properties: Mapping[str, Any] = schema["properties"]
    parts = [_CONFIGURATION]
    parts += _keys("configuration", {key: value for key, value in properties.items() if "$ref" not in value})
    parts.append(_TABLES)
    for name, reference in properties.items():
        if "$ref" in reference:
            options = schema["$defs"][reference["$ref"].rpartition("/")[2]]["properties"]
            rows = [[code(key), described(value.get("description", ""))] for key, value in options.items()]
            parts.append(f"### [{name}]\n\n{table(['key', 'default of'], rows)}")
    return "\n".join(parts)


def _job_file() -> str:
    properties: Mapping[str, Any] = job_model.json_schema()["properties"]
    role = next(
        each["properties"]
        for each in properties["roles"]["properties"]["worker"]["anyOf"]
        if "properties" in each
    )
    parts = [_JOB_FILE, "## The run\n", *_keys("job file", properties)]
    return "\n".join(
        [
            *parts,
            "## A role\n\nWhat each role under `roles:`, and each job under `jobs:`, takes:\n",
            *_keys("role", role),
        ]
    )


def _keys(of: str, properties: Mapping[str, Any]) -> Iterator[str]:
    # As options of a program, so that the search finds each key, and links can lead to it.
    yield f"```{{program}} {of}\n```\n"
    for name, schema in properties.items():
        text = described(schema.get("description", ""))
        if kind := _kind(schema):
            text += f"\n\n{kind}."
        if examples := schema.get("examples"):
            shown = ", ".join(code(_as_yaml(example)) for example in examples)
            text += f"{' ' if kind else chr(10) * 2}For example {shown}."
        yield directive("option", name, text)


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "One of " + ", ".join(code(str(each)) for each in schema["enum"])
    if "const" in schema:
        return code(str(schema["const"]))
    if "oneOf" in schema or "anyOf" in schema:
        kinds = [kind for each in schema.get("oneOf") or schema["anyOf"] if (kind := _kind(each))]
        first, *more = dict.fromkeys(kinds)
        return ", or ".join([first, *(each[0].lower() + each[1:] for each in more)])
    if "$ref" in schema:
        return _REFERENCES[schema["$ref"].rpartition("/")[2]]
    kind = schema.get("type", "")
    if kind == "array":
        inner = _kind(schema.get("items", {}))
        return f"A list; each is {inner[0].lower() + inner[1:]}" if inner else "A list"
    if kind == "integer" and "maximum" in schema:
        return f"A whole number from {schema.get('minimum', 0)} to {schema['maximum']}"
    names = {
        "string": "A text",
        "boolean": "`true` or `false`",
        "integer": "A whole number",
        "number": "A number",
        "object": "A mapping",
    }
    if isinstance(kind, list):
        return "A text or a number"
    return escaped(names.get(kind, "")) if kind not in names else names[kind]
