"""The applications that hold slots on YARN: one for each size, with Hadoop's own distributed shell as their master."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tflaunch.engines.engine import EngineKey
from tflaunch.engines.yarn_commands import plain_word
from tflaunch.engines.yarn_manager import GPU, YarnNode
from tflaunch.inputs.amounts import size
from tflaunch.inputs.engine_words import SlotGroup, WantedSlots
from tflaunch.protocol.errors import ConnectError, PlanError, UsageError
from tflaunch.text.numbers import counted

PROGRAM, SETTINGS = "slot.py", "slot.json"  # as nodes see them, in the directory of a container
UNPACKED = "environment"  # where an archive goes, there
MEMORY, MASTER_MEMORY = "4g", "512m"
TAG = "tflaunch"
FOR_EVER_MS = 2**31 - 1  # a time limit of the client alone, which is ended long before
KEYS = (
    EngineKey("queue", "The queue.", example="ml"),
    EngineKey("memory", f"Memory of each slot ({MEMORY}).", example="8g"),
    EngineKey("cpus", "Virtual cores of each slot (1).", "count", "4"),
    EngineKey("label", "The label that its nodes must have.", example="big"),
    EngineKey(
        "wait",
        "How long to ask again where there is room for some of the slots alone (0).",
        "time",
        "2h",
    ),
    EngineKey(
        "python", "The Python of the slot holder, 3.8 or newer (python3).", example="/usr/bin/python3.9"
    ),
    EngineKey(
        "archive",
        "A tar archive with an environment, as conda-pack and venv-pack make it: the Python of slots and tasks.",
        example="env.tar.gz",
    ),
    EngineKey("image", "The image of a node's Docker, where YARN lets you use it.", example="library/tf:1"),
    EngineKey(
        "dir", "A directory of the nodes for what runs write; without it, TMPDIR, or /tmp.", example="/data/1"
    ),
    EngineKey("idle", "Time until a slot in which nothing runs ends by itself (20s).", "time", "1m"),
    EngineKey("master-memory", f"Memory of each application master ({MASTER_MEMORY}).", example="1g"),
    EngineKey("jar", "Hadoop's distributed shell, where it is not on the class path.", example="ds.jar"),
)
# Of a size; the others are the same for all slots.
_OF_SIZE = ("queue", "memory", "cpus", "label", "image")


@dataclass(frozen=True)
class YarnSize:
    """The slots of one size: one application."""

    roles: tuple[tuple[str, int], ...]  # and how many slots each has
    gpus: int
    memory_mb: int
    cpus: int
    queue: str
    label: str
    image: str

    @property
    def count(self) -> int:
        """How many slots it has."""
        return sum(count for _, count in self.roles)

    def amounts(self) -> tuple[tuple[str, int], ...]:
        """What a slot has, by YARN's names."""
        return ("memory", self.memory_mb), (GPU, self.gpus), ("vCores", self.cpus)

    def words(self) -> str:
        """The size, as YARN writes it."""
        gpus = f", {GPU}:{self.gpus}" if self.gpus else ""
        return f"<memory:{self.memory_mb}, vCores:{self.cpus}{gpus}>"

    def resources(self) -> str:
        """The size, as the distributed shell wants it."""
        gpus = f",{GPU}={self.gpus}" if self.gpus else ""
        return f"memory-mb={self.memory_mb},vcores={self.cpus}{gpus}"


def sizes(wanted: WantedSlots) -> list[YarnSize]:
    """The distinct sizes that are wanted, in their order.  Raises UsageError."""
    if not wanted.groups:
        raise UsageError("yarn: how many slots? none are named", "write how many there shall be: yarn:4x1")
    found: list[YarnSize] = []
    for group in wanted.groups:
        made = _size(group, wanted.settings)
        for index, each in enumerate(found):
            if _without_roles(each) == _without_roles(made):
                found[index] = _joined(each, made)
                break
        else:
            found.append(made)
    return found


def _size(group: SlotGroup, settings: Mapping[str, str]) -> YarnSize:
    for key in group.settings:
        if key not in _OF_SIZE:
            raise UsageError(f"yarn: {key} is the same for all slots", "write it below settings:")
    said = {**settings, **group.settings}
    return YarnSize(
        roles=((group.role, group.count),),
        gpus=group.gpus,
        memory_mb=_megabytes(said.get("memory", MEMORY), "memory"),
        cpus=int(said.get("cpus", "1")),
        queue=plain_word(said["queue"], "queue") if "queue" in said else "",
        label=plain_word(said["label"], "label") if "label" in said else "",
        image=plain_word(said["image"], "image") if "image" in said else "",
    )


def _without_roles(made: YarnSize) -> tuple[object, ...]:
    return (made.gpus, made.memory_mb, made.cpus, made.queue, made.label, made.image)


def _joined(one: YarnSize, other: YarnSize) -> YarnSize:
    return YarnSize((*one.roles, *other.roles), *_without_roles(one))  # type: ignore[arg-type]


def _megabytes(text: str, key: str) -> int:
    try:
        return max(1, math.ceil(size(text) / 2**20))
    except UsageError as error:
        raise UsageError(f"yarn: {key}: {error.message}", error.hint) from None


@dataclass(frozen=True)
class Submission:
    """What is the same for all applications of a set of slots."""

    name: str
    tags: tuple[str, ...]
    jar: str
    settings: Mapping[str, str]


def client_words(made: YarnSize, of: Submission, place: Path) -> list[str]:
    """The words for `yarn` that submit the application of one size; what nodes read lies in `place`.

    Raises UsageError.
    """
    settings = of.settings
    files = [str(place / PROGRAM), str(place / SETTINGS)]
    if archive := settings.get("archive", ""):
        files.append(str(archive_path(archive)))
    words = ["jar", of.jar, "-jar", of.jar, "-appname", of.name, "-shell_command", command(settings)]
    words += ["-localize_files", ",".join(files), "-num_containers", str(made.count)]
    words += ["-container_resources", made.resources()]
    words += [
        "-master_memory",
        str(_megabytes(settings.get("master-memory", MASTER_MEMORY), "master-memory")),
    ]
    words += ["-timeout", str(FOR_EVER_MS), "-application_tags", ",".join(of.tags)]
    # Else the end of a master would be the end of all its containers.
    words.append("-keep_containers_across_application_attempts")
    words += ["-queue", made.queue] if made.queue else []
    words += ["-node_label_expression", made.label] if made.label else []
    if made.image:
        words += ["-shell_env", "YARN_CONTAINER_RUNTIME_TYPE=docker"]
        words += ["-shell_env", f"YARN_CONTAINER_RUNTIME_DOCKER_IMAGE={made.image}"]
    return words


def command(settings: Mapping[str, str]) -> str:
    """What a container runs: plain words, for YARN's script has them between double quotes."""
    if archive := settings.get("archive", ""):
        name = archive_path(archive).name
        python = f"./{UNPACKED}/bin/python3"
        return f"mkdir {UNPACKED} && tar -xf {name} -C {UNPACKED} && exec {python} {PROGRAM}"
    return f"exec {plain_word(settings.get('python', 'python3'), 'python')} {PROGRAM}"


def archive_path(text: str) -> Path:
    """The user's archive.  Raises UsageError."""
    if "://" in text:
        raise UsageError(
            f"yarn: archive: {text} is no file of this machine, and YARN's client takes no others",
            f"hdfs dfs -get {text}",
        )
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"yarn: archive: there is no file {text}", "conda-pack -o env.tar.gz makes one")
    plain_word(path.name, "archive")
    if "," in str(path):
        raise UsageError(f"yarn: archive: {text} has a comma in it", "give it another name")
    return path


def jar_path(text: str) -> str:
    """The user's own distributed shell.  Raises ConnectError."""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ConnectError(f"yarn: jar: there is no file {text}", "jar=PATH names Hadoop's distributed shell")
    return str(path)


def check_limits(made: Sequence[YarnSize], largest: Callable[[str], Mapping[str, int]]) -> None:
    """Raise PlanError for a size that YARN gives to no container: its master would say nothing, and ask for less.

    `largest` tells what a container of a queue may have at most.
    """
    for each in made:
        most = largest(each.queue)
        for what, wanted in each.amounts():
            if wanted > most.get(what, wanted):
                of = f"the queue {each.queue}" if each.queue else "this cluster"
                raise PlanError(
                    f"yarn: a slot of {each.words()} is more than {of} gives a container: "
                    f"{what}:{most[what]} at most",
                    f"ask for less; an administrator sets {_LIMITS[what]}",
                )


# What sets how much a container may have at most.
_LIMITS = {
    "memory": "yarn.scheduler.maximum-allocation-mb",
    "vCores": "yarn.scheduler.maximum-allocation-vcores",
    GPU: f"yarn.resource-types.{GPU}.maximum-allocation",
}


def check_nodes(made: Sequence[YarnSize], nodes: Sequence[YarnNode]) -> None:
    """Raise PlanError for a size that no node has: YARN itself would say nothing, and wait."""
    for each in made:
        # Nodes with a label are for those alone that ask for it.
        fit = [node for node in nodes if (each.label in node.labels if each.label else True)]
        if not fit:
            known = sorted({label for node in nodes for label in node.labels})
            there = f"labels there are: {', '.join(known)}" if known else "no node has a label"
            hint = "yarn node -list -showDetails"
            raise PlanError(f"yarn: no node that runs has the label {each.label}; {there}", hint)
        for what, wanted in each.amounts():
            most = max(node.has.get(what, 0) for node in fit)
            if wanted > most:
                of = f" with the label {each.label}" if each.label else ""
                raise PlanError(
                    f"yarn: a slot of {each.words()} fits into no node{of}: "
                    f"of {counted(len(fit), 'node')} the largest has {what}:{most}",
                    "ask for less, or see what nodes have: yarn node -list -showDetails",
                )
