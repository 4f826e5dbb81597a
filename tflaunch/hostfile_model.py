"""What a hostfile may say: the pydantic models of the YAML form, and the JSON Schema made from them.

Values arrive as they are written in the file: a string for every scalar, True for any boolean of YAML 1.1,
None for a null.  A validator's ValueError is a phrase that follows the quoted value: `port: '0'` is not ...
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema

from tflaunch import hostnames


def _text(value: object, accepted: str, *, free: bool = True) -> str:
    """One line of text as written; `free` when a quoted "yes" would do."""
    if isinstance(value, bool) and free:
        raise ValueError("is a boolean to YAML, and text is wanted; put it in quotes")
    if value is None:
        raise ValueError(f"has no value; write {accepted}, or leave it out")
    if not isinstance(value, str):
        raise ValueError(f"is not {accepted}")
    if value != "" and not value.isprintable():
        raise ValueError("holds a line break or a control character")
    return value


def _word(value: object, accepted: str) -> str:
    """Text that goes into an SSH command line or a file name: no spaces, no leading dash."""
    text = _text(value, accepted)
    if not text or text.startswith("-") or re.search(r"\s", text):
        raise ValueError(f"is not {accepted}")
    return text


def _whole(value: object, low: int, high: int) -> int:
    accepted = f"a whole number from {low} to {high}"
    text = _text(value, accepted, free=False)
    if re.fullmatch(r"0[0-9]+", text):
        raise ValueError(f"begins with 0, which YAML reads as octal; write {accepted} without it")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ValueError(f"is not {accepted}")
    return int(text)


def _name(value: object) -> str:
    text = _text(value, "a host name")
    if re.fullmatch(r"[^@]+@[^@]+", text):
        user, _, host = text.partition("@")
        raise ValueError(f"has a user in it; write `name: {host}` and `user: {user}`")
    if re.fullmatch(r"[^:]+:[0-9]+", text):
        host, _, number = text.partition(":")
        raise ValueError(
            f"has a number in it; write `name: {host}` and `port: {number}` or `slots: {number}`"
        )
    if text.count(":") > 1:
        raise ValueError("looks like an IPv6 address; give it a `name:` of letters and write it as `ssh:`")
    hostnames.check(text)
    return text


def _machine(value: object) -> str:
    text = _word(value, "a host name or address")
    if "@" in text:
        raise ValueError("has a user in it; write the user as `user:`")
    if "[" in text:
        hostnames.check(text)
    elif not re.fullmatch(r"[\w.:%-]+", text):
        raise ValueError("is not a host name or address")
    elif re.fullmatch(r"[^:]+:[0-9]+", text):
        raise ValueError("has a port in it; write the port of sshd as `port:`")
    return text


def _user(value: object) -> str:
    text = _word(value, "a user name")
    if re.search(r"[@:/]", text):
        raise ValueError("is not a user name; it has '@', ':' or '/' in it")
    return text


def _jump(value: object) -> str:
    accepted = "`none` or [user@]host[:port], several separated by commas"
    text = _word(value, accepted)
    if not all(
        re.fullmatch(r"(ssh://)?([^@\s,/-][^@\s,]*@)?[^@\s,/-][^@\s,/]*", hop) for hop in text.split(",")
    ):
        raise ValueError(f"is not {accepted}")
    return text


def _identity(value: object) -> str:
    text = _text(value, "the path of a private key")
    if not text or (text.startswith("~") and not text.startswith("~/")):
        raise ValueError("is not the path of a private key: absolute, from ~/, or relative to the hostfile")
    return text


def _directory(value: object) -> str:
    text = _text(value, "a directory on the host")
    if text != "~" and not text.startswith(("/", "~/")):
        raise ValueError("is relative; write a directory on the host that begins with / or ~/")
    return text


def _python(value: object) -> str:
    text = _text(value, "a Python interpreter")
    if not text or text.startswith("-"):
        raise ValueError("is not a Python interpreter: python3, or a path on the host")
    return text


def _setup(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (_line(value),)
    lines: list[str] = []
    for index, item in enumerate(value):
        try:
            lines.append(_line(item))
        except ValueError as error:
            raise Unacceptable(str(error), index) from None
    return tuple(lines)


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not a line of shell text; put it in quotes")
    if not _sendable(value):
        raise ValueError("holds a character that no shell takes")
    return value.rstrip("\n")


def _env_name(value: object) -> str:
    text = _text(value, "a variable")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError("is not the name of a variable: letters, digits and '_', not a digit first")
    return str(text)


def _env_value(value: object) -> str:
    if not isinstance(value, str):
        _text(value, 'its value ("" for an empty one)')
    if not _sendable(str(value)):
        raise ValueError("holds a character that no environment takes")
    return str(value)


def _sendable(text: str) -> bool:
    return "\0" not in text and not re.search("[\ud800-\udfff]", text)


def _label(value: object) -> str:
    accepted = "a label: text without spaces, commas, '=' or any of ! & ^ @ * ? [ ]"
    text = _text(value, accepted)
    if not re.fullmatch(r"[^\s,=!&^@*?\[\]]+", text):
        raise ValueError(f"is not {accepted}")
    return str(text)


def _gpus(value: object) -> str | int | tuple[int | str, ...]:
    accepted = "`auto`, a count, 0, or a list of indices or UUIDs such as [0, 1] or [GPU-8f3c…]"
    if not isinstance(value, list):
        text = _text(value, accepted, free=False)
        if text == "auto":
            return "auto"
        if re.fullmatch(r"[0-9]+", text):
            return _whole(text, 0, 1024)
        raise ValueError(f"is not {accepted}")
    if not value:
        raise ValueError("names no GPU; write 0 to use none, `auto` to use all")
    cards: list[int | str] = []
    for index, item in enumerate(value):
        if isinstance(item, str) and re.fullmatch(
            r"(GPU|MIG)-[0-9A-Za-z-]+|(0|[1-9][0-9]{0,3})\.[0-9]", item
        ):
            cards.append(str(item))
        elif isinstance(item, str) and re.fullmatch(r"0|[1-9][0-9]{0,3}", item):
            cards.append(int(item))
        else:
            raise Unacceptable(
                "is not the index or UUID of a card (3, GPU-…) or MIG instance (3.1, MIG-…)", index
            )
        if cards.index(cards[-1]) != index:
            raise Unacceptable("is listed twice", index)
    return tuple(cards)


def _ports(value: object) -> tuple[int, int]:
    accepted = "a range of ports within 1024-65535, as 20000-20999 or [20000, 20999]"
    if isinstance(value, list):
        ends = value
    else:
        text = _text(value, accepted, free=False)
        if re.fullmatch(r"[0-9]+:[0-9]+", text):
            raise ValueError(f"is a number in base 60 to YAML; write {text.replace(':', '-')}")
        ends = re.split(r"\s*-\s*", text)
    numbers = [end for end in ends if isinstance(end, str) and re.fullmatch(r"[1-9][0-9]{0,8}", end)]
    if len(ends) != 2 or len(numbers) != 2:
        raise ValueError(f"is not {accepted}")
    first, last = int(numbers[0]), int(numbers[1])
    if first > last:
        raise ValueError(f"is reversed; write {last}-{first}")
    if first < 1024 or last > 65535:
        raise ValueError(f"is not {accepted}")
    return first, last


def _connection(value: object) -> str:
    if (text := _text(value, "ssh or local", free=False)) not in ("ssh", "local"):
        raise ValueError("is not ssh or local")
    return str(text)


class Unacceptable(ValueError):
    """A phrase about one item of the list that is the value."""

    def __init__(self, phrase: str, index: int) -> None:
        super().__init__(phrase)
        self.index = index


_NAME_SCHEMA = {
    "type": "string",
    "pattern": r"^[A-Za-z0-9_\[][A-Za-z0-9._\[\],/-]*$",
    "description": "A host name, or a range of names.",
    "examples": ["gpu01", "gpu[01-16].lab", "r[1-4]n[0-14/2]"],
}


def _string(description: str, *examples: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": description, "examples": list(examples), **more})


def _port(value: object) -> int:
    return _whole(value, 1, 65535)


def _slots(value: object) -> int:
    return _whole(value, 0, 10_000)


Name = Annotated[str, PlainValidator(_name), WithJsonSchema(_NAME_SCHEMA)]
LabelText = Annotated[str, PlainValidator(_label), WithJsonSchema({"type": ["string", "number"]})]
EnvName = Annotated[str, PlainValidator(_env_name), WithJsonSchema({"type": "string"})]
EnvValue = Annotated[str, PlainValidator(_env_value), WithJsonSchema({"type": ["string", "number"]})]

# Optional without null: an empty value is an error, and the JSON Schema shows no default.
_UNSAID: Any = Field(default_factory=lambda: None)


class Settings(BaseModel):
    """What can be said of a host, a group or under `defaults`; the innermost wins, env and labels merge."""

    model_config = ConfigDict(extra="forbid")

    ssh: Annotated[
        str,
        PlainValidator(_machine),
        _string("What SSH looks up, also in ~/.ssh/config; the name when left out.", "10.0.0.5"),
    ] = _UNSAID
    address: Annotated[
        str,
        PlainValidator(_machine),
        _string("What TensorFlow peers dial, where it differs from what SSH dials.", "192.168.7.5"),
    ] = _UNSAID
    user: Annotated[str, PlainValidator(_user), _string("The user to log in as.", "ml")] = _UNSAID
    port: Annotated[
        int,
        PlainValidator(_port),
        WithJsonSchema(
            {"type": "integer", "minimum": 1, "maximum": 65535, "description": "The port of sshd."}
        ),
    ] = _UNSAID
    identity_file: Annotated[
        str,
        PlainValidator(_identity),
        _string("Private key; a relative path is relative to the hostfile.", "~/.ssh/id_ed25519"),
    ] = _UNSAID
    proxy_jump: Annotated[
        str,
        PlainValidator(_jump),
        _string("Hosts to go through, in OpenSSH's order and form.", "bastion", "me@a:2222,b", "none"),
    ] = _UNSAID
    python: Annotated[
        str,
        PlainValidator(_python),
        _string("The Python interpreter of the tasks.", "python3", "/opt/tf/bin/python"),
    ] = _UNSAID
    setup: Annotated[
        tuple[str, ...],
        PlainValidator(_setup),
        WithJsonSchema(
            {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "description": "Shell lines to run before a task, in the task's own shell.",
                "examples": ["module load cuda", ["source ~/venv/bin/activate"]],
            }
        ),
    ] = _UNSAID
    workdir: Annotated[
        str,
        PlainValidator(_directory),
        _string(
            "Directory on the host to run in, instead of shipped code.", "/srv/train", pattern="^(/|~/|~$)"
        ),
    ] = _UNSAID
    run_dir: Annotated[
        str,
        PlainValidator(_directory),
        _string(
            "Where run directories go, on a local disk of the host.", "/scratch/me", pattern="^(/|~/|~$)"
        ),
    ] = _UNSAID
    env: Annotated[
        dict[EnvName, EnvValue],
        Field(
            description="Environment variables of the tasks.",
            examples=[{"OMP_NUM_THREADS": "8"}],
            default_factory=dict,
        ),
    ]
    gpus: Annotated[
        Literal["auto"] | int | tuple[int | str, ...],
        PlainValidator(_gpus),
        WithJsonSchema(
            {
                "anyOf": [
                    {"const": "auto"},
                    {"type": "integer", "minimum": 0, "maximum": 1024},
                    {
                        "type": "array",
                        "minItems": 1,
                        "uniqueItems": True,
                        "items": {
                            "anyOf": [
                                {"type": "number", "minimum": 0},
                                {"type": "string", "pattern": "^(GPU-|MIG-|[0-9]+\\.[0-9]$)"},
                            ]
                        },
                    },
                ],
                "description": "The GPUs that tasks may have: auto (all), a count, indices or UUIDs, or 0; "
                "3.1 is MIG instance 1 of card 3.",
                "examples": ["auto", 4, [0, 1], [3.0, 3.1], 0],
            }
        ),
    ] = _UNSAID
    slots: Annotated[
        int,
        PlainValidator(_slots),
        WithJsonSchema(
            {
                "type": "integer",
                "minimum": 0,
                "maximum": 10000,
                "description": "Most workers that may run here.",
            }
        ),
    ] = _UNSAID
    ports: Annotated[
        tuple[int, int],
        PlainValidator(_ports),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "pattern": "^[0-9]{4,5} *- *[0-9]{4,5}$"},
                    {
                        "type": "array",
                        "minItems": 2,
                        "maxItems": 2,
                        "items": {"type": "integer", "minimum": 1024, "maximum": 65535},
                    },
                ],
                "description": "First and last port that tasks may listen on.",
                "examples": ["20000-20999", [20000, 20999]],
            }
        ),
    ] = _UNSAID
    labels: Annotated[
        dict[LabelText, LabelText],
        Field(
            description="What patterns such as `rack=b` select by; a group adds `group`.",
            examples=[{"rack": "b"}],
            default_factory=dict,
        ),
    ]
    connection: Annotated[
        Literal["ssh", "local"],
        PlainValidator(_connection),
        WithJsonSchema(
            {"enum": ["ssh", "local"], "description": "local: a process of this machine, without SSH."}
        ),
    ] = _UNSAID


class HostSettings(Settings):
    """A host, or a range of hosts with the same settings."""

    name: Name


class GroupSettings(Settings):
    """Hosts that share settings."""

    group: Annotated[str, PlainValidator(_label), _string("The name of the group.", "trainers")]
    hosts: Annotated[list[HostItem], Field(min_length=1, description="The hosts of the group.")]


def _kind(item: object) -> str | None:
    if isinstance(item, dict):
        return "<group>" if "group" in item or "hosts" in item else "<host>"
    return None if isinstance(item, list) else "<name>"


# The tags turn up in pydantic's locations; no key of a hostfile should look like them.
HostItem = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[HostSettings, Tag("<host>")]
    | Annotated[GroupSettings, Tag("<group>")],
    Discriminator(_kind),
]


class Document(BaseModel):
    """The hosts of a cluster, for `tflaunch`."""

    model_config = ConfigDict(extra="forbid", title="tflaunch hostfile")

    defaults: Annotated[Settings, Field(description="Settings of every host.")] = _UNSAID
    hosts: Annotated[list[HostItem], Field(min_length=1, description="The hosts, in order.")]


GroupSettings.model_rebuild()


class _Untitled(GenerateJsonSchema):
    """Without a title for each key that only repeats the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the YAML form, for editors; a mapping or, in the short form, a list of hosts."""
    schema = TypeAdapter(
        Annotated[
            Annotated[Document, Tag("<long>")]
            | Annotated[list[HostItem], Field(min_length=1, description="The short form."), Tag("<short>")],
            Discriminator(lambda value: "<short>" if isinstance(value, list) else "<long>"),
        ]
    ).json_schema(schema_generator=_Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tflaunch hostfile", **schema}
