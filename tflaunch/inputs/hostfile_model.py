"""What a hostfile may say: the pydantic models of the YAML form, and the JSON Schema made from them.

tflaunch.inputs.yaml_values says in which form the values arrive.
"""

from __future__ import annotations

import re
import shlex
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

from tflaunch.inputs import engine_words, hostnames
from tflaunch.inputs.documents import PlacedText
from tflaunch.inputs.hostfile_entries import host_name
from tflaunch.inputs.yaml_text import Unacceptable, text_of, whole
from tflaunch.inputs.yaml_values import UNSAID, Untitled, Variables, sendable, string
from tflaunch.protocol.fields import TEXT
from tflaunch.protocol.job import job_name_fault


def _word(value: object, accepted: str) -> str:
    """Text that goes into an SSH command line or a file name: no spaces, no leading dash."""
    text = text_of(value, accepted)
    if not text or text.startswith("-") or re.search(r"\s", text):
        raise ValueError(f"is not {accepted}")
    return text


def _machine(value: object) -> str:
    text = _word(value, "a host name or address")
    if "@" in text:
        raise ValueError("has a user in it; write the user as `user:`")
    if "[" in text:
        hostnames.check(text)
        return text
    hostnames.check_machine(text)
    if not re.fullmatch(r"[\w.:%-]+", text):
        raise ValueError("is not a host name or address")
    if re.fullmatch(r"[^:]+:[0-9]+", text):
        raise ValueError("has a port in it; write the port of sshd as `port:`")
    return text


def _user(value: object) -> str:
    hostnames.check_user(text_of(value, "a user name"))
    text = _word(value, "a user name")
    if re.search(r"[@:/]", text):
        raise ValueError("is not a user name; it has '@', ':' or '/' in it")
    return text


def _jump(value: object) -> str:
    accepted = "`none` or [user@]host[:port], several separated by commas"
    text = _word(value, accepted)
    for hop in text.split(","):
        user, _, place = hop.removeprefix("ssh://").rpartition("@")
        hostnames.check_user(user)
        hostnames.check_machine(place)
    if not all(
        re.fullmatch(r"(ssh://)?([^@\s,/-][^@\s,]*@)?[^@\s,/-][^@\s,/]*", hop) for hop in text.split(",")
    ):
        raise ValueError(f"is not {accepted}")
    return text


def _identity(value: object) -> str:
    text = text_of(value, "the path of a private key")
    if not text or (text.startswith("~") and not text.startswith("~/")):
        raise ValueError("is not the path of a private key: absolute, from ~/, or relative to the hostfile")
    return text


def _directory(value: object) -> str:
    text = text_of(value, "a directory on the host")
    if text != "~" and not text.startswith(("/", "~/")):
        raise ValueError("is relative; write a directory on the host that begins with / or ~/")
    return text


# A word before the interpreter -> the key that does the same; "": the interpreter alone will do.
_BEFORE_PYTHON = {
    **dict.fromkeys(("env", "nice", "exec", "time", "sudo"), ""),
    **dict.fromkeys(("conda", "mamba", "micromamba"), "`conda:` with the environment"),
    **dict.fromkeys(
        ("uv", "poetry", "pipenv", "pixi", "hatch", "pdm"), "`venv:` with the directory of the environment"
    ),
}


def _python(value: object) -> str:
    text = text_of(value, "a Python interpreter").strip()
    if not text or text.startswith("-"):
        raise ValueError("is not a Python interpreter: python3, or a path on the host")
    first, *more = text.split()
    program = first.rpartition("/")[2]
    if more and (instead := _BEFORE_PYTHON.get(program)) is not None:
        own = next((word for word in more if not word.startswith("-") and "=" not in word), "python3")
        named = re.search(r" (?:-n|--name|-p|--prefix)[ =](\S+)", text)
        instead = f"`conda: {named[1]}`" if named and "conda" in instead else instead or f"`python: {own}`"
        raise ValueError(f"is a command, not an interpreter; write {instead}")
    if more and re.fullmatch(r"(python|pypy)[0-9.]*", program):
        why = (
            ": output is never held back"
            if more == ["-u"]
            else f"; for {more[0]} there are variables, as `env:`"
        )
        raise ValueError(f"has arguments, and an interpreter is wanted; write `python: {first}`{why}")
    if "$" in text:
        home = re.sub(r"^\$(HOME|\{HOME\})(?=/)", "~", text)
        instead = (
            f"write `python: {home}`" if "$" not in home else "write the path itself; ~/ is your home there"
        )
        raise ValueError(f"has a $ in it, and no shell expands it; {instead}")
    if text.endswith("/") or program in ("bin", "venv", ".venv", "env"):
        whole = text.rstrip("/")
        program = whole.rpartition("/")[2]
        inside = f"{whole}/python3" if program == "bin" else f"{whole}/bin/python3"
        inside = whole if re.fullmatch(r"(python|pypy)[0-9.]*", program) else inside
        raise ValueError(f"is a directory, and an interpreter is wanted; write `python: {inside}`")
    return text


def _conda(value: object) -> str:
    accepted = "a conda environment: its name, or its directory on the host that begins with / or ~/"
    text = _word(value, accepted)
    if "/" in text and not text.startswith(("/", "~/")):
        raise ValueError(f"is not {accepted}")
    return text


def _image(value: object) -> str:
    return _word(value, "the image of a container")


def mount(text: str) -> str:
    """A directory of the host and where it is in the container; raises ValueError with a phrase for a wrong one."""
    source, *rest = text.split(":")
    target = rest[0] if rest else source
    if (
        not source.startswith(("/", "~/"))
        or not target.startswith(("/", "~/"))
        or rest[1:] not in ([], ["ro"])
    ):
        raise ValueError("is not SOURCE[:TARGET[:ro]], paths that begin with / or ~/")
    return text


def _mounts(value: object) -> tuple[str, ...]:
    found: list[str] = []
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        try:
            found.append(mount(text_of(item, "SOURCE[:TARGET[:ro]]")))
        except ValueError as error:
            if not isinstance(value, list):
                raise
            raise Unacceptable(str(error), index) from None
    return tuple(found)


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
    if not sendable(value):
        raise ValueError("holds a character that no shell takes")
    if len(value) > TEXT:
        most = f"{TEXT:,} are the most; put it into a script on the hosts: `. ~/setup.sh`"
        raise ValueError(f"has {len(value):,} characters; {most}")
    return value.rstrip("\n")


def _label(value: object) -> str:
    accepted = "a label: text without spaces, commas, '=' or any of ! & ^ @ * ? [ ]"
    text = text_of(value, accepted)
    if not re.fullmatch(r"[^\s,=!&^@*?\[\]]+", text):
        raise ValueError(f"is not {accepted}")
    return str(text)


def _gpus(value: object) -> str | int | tuple[int | str, ...]:
    accepted = "`auto`, a count, 0, or a list of indices or UUIDs such as [0, 1] or [GPU-8f3c…]"
    if not isinstance(value, list):
        text = text_of(value, accepted, free=False)
        if text == "auto":
            return "auto"
        if re.fullmatch(r"[0-9]+", text):
            return whole(text, 0, 1024)
        raise ValueError(f"is not {accepted}")
    if not value:
        raise ValueError("names no GPU; write 0 to use none, `auto` to use all")
    gpus: list[int | str] = []
    for index, item in enumerate(value):
        if isinstance(item, str) and re.fullmatch(
            r"(GPU|MIG)-[0-9A-Za-z-]+|(0|[1-9][0-9]{0,3})\.[0-9]", item
        ):
            gpus.append(str(item))
        elif isinstance(item, str) and re.fullmatch(r"0|[1-9][0-9]{0,3}", item):
            gpus.append(int(item))
        else:
            raise Unacceptable(
                "is not the index or UUID of a GPU (3, GPU-…) or MIG instance (3.1, MIG-…)", index
            )
        if gpus.index(gpus[-1]) != index:
            raise Unacceptable("is listed twice", index)
    return tuple(gpus)


def _ports(value: object) -> tuple[int, int]:
    accepted = "a range of ports within 1024-65535, as 20000-20999 or [20000, 20999]"
    if isinstance(value, list):
        ends = value
    else:
        text = text_of(value, accepted, free=False)
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
    accepted = "ssh, openssh or local"
    if (text := text_of(value, accepted, free=False)) not in ("ssh", "openssh", "local"):
        raise ValueError(f"is not {accepted}")
    return str(text)


_NAME_SCHEMA = {
    "type": "string",
    "pattern": r"^[A-Za-z0-9_\[][A-Za-z0-9._\[\],/-]*$",
    "description": "A host name, or a range of names.",
    "examples": ["gpu01", "gpu[01-16].lab", "r[1-4]n[0-14/2]"],
}


def _port(value: object) -> int:
    return whole(value, 1, 65535)


def _slots(value: object) -> int:
    return whole(value, 0, 10_000)


Name = Annotated[str, PlainValidator(host_name), WithJsonSchema(_NAME_SCHEMA)]
LabelText = Annotated[str, PlainValidator(_label), WithJsonSchema({"type": ["string", "number"]})]


class Settings(BaseModel):
    """What can be said of a host, a group or under `defaults`; the innermost wins, env and labels merge."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    ssh: Annotated[
        str,
        PlainValidator(_machine),
        string("What SSH looks up, also in ~/.ssh/config; the name when left out.", "10.0.0.5"),
    ] = UNSAID
    address: Annotated[
        str,
        PlainValidator(_machine),
        string("What TensorFlow peers dial, where it differs from what SSH dials.", "192.168.7.5"),
    ] = UNSAID
    user: Annotated[str, PlainValidator(_user), string("The user to log in as.", "ml")] = UNSAID
    port: Annotated[
        int,
        PlainValidator(_port),
        WithJsonSchema(
            {"type": "integer", "minimum": 1, "maximum": 65535, "description": "The port of sshd."}
        ),
    ] = UNSAID
    identity_file: Annotated[
        str,
        PlainValidator(_identity),
        string("Private key; a relative path is relative to the hostfile.", "~/.ssh/id_ed25519"),
    ] = UNSAID
    proxy_jump: Annotated[
        str,
        PlainValidator(_jump),
        string("Hosts to go through, in OpenSSH's order and form.", "bastion", "me@a:2222,b", "none"),
    ] = UNSAID
    python: Annotated[
        str,
        PlainValidator(_python),
        string("The Python interpreter of the tasks.", "python3", "/opt/tf/bin/python"),
    ] = UNSAID
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
    ] = UNSAID
    conda: Annotated[
        str,
        PlainValidator(_conda),
        string(
            "A conda environment for the tasks, by name or directory; activated after `setup`.",
            "tf",
            "/opt/conda/envs/tf",
        ),
    ] = UNSAID
    venv: Annotated[
        str,
        PlainValidator(_directory),
        string(
            "A virtual environment for the tasks, by its directory; activated after `setup`.",
            "~/venv",
            pattern="^(/|~/|~$)",
        ),
    ] = UNSAID
    container: Annotated[
        str,
        PlainValidator(_image),
        string(
            "The image that tasks run in, with podman or docker.",
            "docker.io/tensorflow/tensorflow:latest-gpu",
        ),
    ] = UNSAID
    mounts: Annotated[
        tuple[str, ...],
        PlainValidator(_mounts),
        WithJsonSchema(
            {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "description": "Directories of the host that the container sees: SOURCE[:TARGET[:ro]].",
                "examples": ["/data", ["/data:/data:ro", "~/models:/models"]],
            }
        ),
    ] = UNSAID
    workdir: Annotated[
        str,
        PlainValidator(_directory),
        string(
            "Directory on the host to run in, instead of shipped code.", "/srv/train", pattern="^(/|~/|~$)"
        ),
    ] = UNSAID
    run_dir: Annotated[
        str,
        PlainValidator(_directory),
        string("Where run directories go, on a local disk of the host.", "/scratch/me", pattern="^(/|~/|~$)"),
    ] = UNSAID
    env: Annotated[
        Variables,
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
                "3.1 is MIG instance 1 of GPU 3.",
                "examples": ["auto", 4, [0, 1], [3.0, 3.1], 0],
            }
        ),
    ] = UNSAID
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
    ] = UNSAID
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
    ] = UNSAID
    labels: Annotated[
        dict[LabelText, LabelText],
        Field(
            description="What patterns such as `rack=b` select by; a group adds `group`.",
            examples=[{"rack": "b"}],
            default_factory=dict,
        ),
    ]
    connection: Annotated[
        Literal["ssh", "openssh", "local"],
        PlainValidator(_connection),
        WithJsonSchema(
            {
                "enum": ["ssh", "openssh", "local"],
                "description": "openssh: by the system's `ssh`, for what only that can do (ControlMaster, "
                "certificates, Kerberos, FIDO keys); local: a process of this machine, without SSH.",
            }
        ),
    ] = UNSAID


class HostSettings(Settings):
    """A host, or a range of hosts with the same settings."""

    name: Name


class GroupSettings(Settings):
    """Hosts that share settings."""

    group: Annotated[str, PlainValidator(_label), string("The name of the group.", "trainers")]
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

    model_config = ConfigDict(extra="forbid", defer_build=True, title="tflaunch hostfile")

    defaults: Annotated[Settings, Field(description="Settings of every host.")] = UNSAID
    hosts: Annotated[list[HostItem], Field(min_length=1, description="The hosts, in order.")]


def _form(value: object) -> str:
    if isinstance(value, list):
        return "<short>"
    return "<slots>" if isinstance(value, dict) and "engine" in value else "<long>"


def _engine(value: object) -> str:
    text = text_of(value, "an engine")
    if text not in (known := engine_words.engines()):
        raise ValueError(f"is no engine that tflaunch knows; it knows {', '.join(known) or 'none yet'}")
    return text


def _role(value: object) -> str:
    text = text_of(value, "the name of a role")
    if fault := job_name_fault(text):
        raise ValueError(fault)
    return text


def _setting(value: object) -> str:
    """One value, or a list of words; either as one text, as a word such as `slurm:4,options=...` has it."""
    if isinstance(value, list) and value:
        words = [text_of(word, "text") for word in value]
        at = value[0]
        return (
            PlacedText(shlex.join(words), at.line, at.column)
            if isinstance(at, PlacedText)
            else shlex.join(words)
        )
    if not (text := text_of(value, "a value")):
        raise ValueError("is empty")
    return text


Setting = Annotated[
    str,
    PlainValidator(_setting),
    WithJsonSchema(
        {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": "string"}}]}
    ),
]


class SlotSettings(BaseModel):
    """Slots of one size; every other key is a setting of the engine, for these slots alone."""

    model_config = ConfigDict(extra="allow", defer_build=True)
    __pydantic_extra__: dict[str, Setting]

    role: Annotated[
        str, PlainValidator(_role), string("The only tasks that may run in these slots.", "ps", "worker")
    ] = UNSAID
    count: Annotated[
        int,
        PlainValidator(lambda value: whole(value, 1, engine_words.MOST_SLOTS)),
        WithJsonSchema({"type": "integer", "minimum": 1, "description": "How many slots."}),
    ]
    gpus: Annotated[
        int,
        PlainValidator(lambda value: whole(value, 0, 1024)),
        WithJsonSchema({"type": "integer", "minimum": 0, "description": "GPUs of each slot."}),
    ] = UNSAID


class SlotsDocument(BaseModel):
    """Slots that an engine gives, in place of hosts."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="slots of an engine")

    engine: Annotated[str, PlainValidator(_engine), string("What gives the slots.", "slurm", "k8s")]
    slots: Annotated[list[SlotSettings], Field(min_length=1, description="How many slots, and how large.")]
    settings: Annotated[
        dict[str, Setting], Field(description="Settings of the engine for all slots.", default_factory=dict)
    ]
    defaults: Annotated[Settings, Field(description="Settings of every slot, as of any host.")] = UNSAID


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the YAML form, for editors: a mapping, a list of hosts in short, or slots of an engine."""
    schema = TypeAdapter(
        Annotated[
            Annotated[Document, Tag("<long>")]
            | Annotated[SlotsDocument, Tag("<slots>")]
            | Annotated[list[HostItem], Field(min_length=1, description="The short form."), Tag("<short>")],
            Discriminator(_form),
        ]
    ).json_schema(schema_generator=Untitled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tflaunch hostfile", **schema}
