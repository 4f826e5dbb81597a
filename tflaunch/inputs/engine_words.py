"""What stands in place of hosts for the slots of an engine: `slurm:4x8,partition=gpu`, or `engine:` in a hostfile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tflaunch.inputs.documents import PlacedText
from tflaunch.protocol.job import job_name_fault

# The registry: the word of an engine -> the module whose ENGINE it is, loaded only when used.
ENGINES: Mapping[str, str] = {
    "slurm": "tflaunch.engines.slurm_slots",
    "spark": "tflaunch.engines.spark_slots",
    "yarn": "tflaunch.engines.yarn_slots",
    "k8s": "tflaunch.engines.kubernetes_slots",
    "kubernetes": "tflaunch.engines.kubernetes_slots",
}
VARIABLE = "TFLAUNCH_ENGINES"  # WORD=MODULE,...: engines of one's own
BATCH_JOBS = ("slurm:", "pbs:")  # what the batch job has that tflaunch runs in
MOST_SLOTS = 10_000
SIZES = "4 (slots), 4x8 (slots x GPUs of each) or ps=1x0+worker=4x8"
_SIZE = re.compile(r"(?:(?P<role>[A-Za-z_]\w*)=)?(?P<count>[0-9]{1,6})(?:x(?P<gpus>[0-9]{1,4}))?")


class WrongSlots(ValueError):
    """What is wrong with the words for slots; `at` is the wrong one."""

    def __init__(self, at: str, message: str) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class SlotGroup:
    """Slots of one size: `worker=4x8` is 4 slots of 8 GPUs for workers."""

    count: int
    gpus: int = 0  # of each slot
    role: str = ""  # the only tasks that may run there; "": any
    settings: Mapping[str, str] = field(default_factory=dict)  # what of the engine's settings differs here


@dataclass(frozen=True)
class WantedSlots:
    """The slots that the user wants of an engine."""

    engine: str  # its word
    groups: tuple[SlotGroup, ...]  # (): all that is there, as inside a job of the engine
    settings: Mapping[str, str] = field(default_factory=dict)  # values with line and column, if from a file
    place: str = ""  # what a word has before its sizes: spark://h1:7077,h2:7077

    @property
    def count(self) -> int:
        """How many slots are wanted in all."""
        return sum(group.count for group in self.groups)


def engines(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The modules of all engines by their words; those that $TFLAUNCH_ENGINES names, too."""
    own = (each.partition("=") for each in environ.get(VARIABLE, "").split(",") if "=" in each)
    return {**{word.strip(): module.strip() for word, _, module in own}, **ENGINES}


def engine_of(word: str, environ: Mapping[str, str] = os.environ) -> str:
    """The engine whose slots `word` names; "" for any other word.  The engine's word wins over a host of that name."""
    name, colon, _ = word.partition(":")
    return name if colon and name in engines(environ) else ""


def names_hosts(word: str) -> bool:
    """Whether a word that is no file names hosts all the same: those of a batch job, or slots."""
    return word in BATCH_JOBS or bool(engine_of(word))


def wanted(word: str) -> WantedSlots:
    """The slots of `ENGINE:[PLACE,]SIZES[,KEY=VALUE...]`; raises WrongSlots.

    The first part that is a size says how many slots of which sizes; `cpus=8` is a setting, `ps=1x0` is a size.  What
    stands before both is the engine's place.  Values with commas do not fit into a word: a hostfile takes them.
    """
    engine, _, said = word.partition(":")
    groups: tuple[SlotGroup, ...] = ()
    settings: dict[str, str] = {}
    places: list[str] = []
    offset = len(engine) + 1
    for part in _parts(said) if said else ():
        at = PlacedText(part, 1, offset + 1)
        offset += len(part) + 1
        if not part:
            raise WrongSlots(at, "an empty part: there is a comma too many")
        if not groups and (read := _sizes(at)):
            groups = read
            continue
        key, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"[a-z][\w-]*", key):
            if not groups and not settings and (not equals or "/" in key):
                places.append(part)
                continue
            raise WrongSlots(at, f"{part[:60]!r} is neither sizes, {SIZES}, nor KEY=VALUE")
        if key in settings:
            raise WrongSlots(at, f"{key} is given twice")
        settings[key] = PlacedText(value, 1, at.column + len(key) + 1)
    return WantedSlots(engine, groups, settings, ",".join(places))


def _parts(text: str) -> Iterator[str]:
    """What commas separate; those between brackets do not, as in `local-cluster[2,1,1024]`."""
    whole = ""
    for part in text.split(","):
        whole += part
        if whole.count("[") > whole.count("]"):
            whole += ","
            continue
        yield whole
        whole = ""
    if whole:
        yield whole.removesuffix(",")


def _sizes(text: PlacedText) -> tuple[SlotGroup, ...]:
    """The groups of `ps=1x0+worker=4x8`; () for what is no size.  Raises WrongSlots."""
    found = [_SIZE.fullmatch(part) for part in text.split("+")]
    if not all(found) or not text:
        if re.match(r"[0-9]", text) or (text and any(found) and "=" not in text.partition("+")[0]):
            raise WrongSlots(text, f"{text[:60]!r} is not {SIZES}")
        return ()
    groups = [
        SlotGroup(int(each["count"]), int(each["gpus"] or 0), each["role"] or "") for each in found if each
    ]
    if len(groups) == 1 and groups[0].role and "x" not in text:
        return ()  # cpus=8: a setting
    return checked(tuple(groups), text)


def checked(groups: tuple[SlotGroup, ...], at: str) -> tuple[SlotGroup, ...]:
    """These groups; raises WrongSlots for sizes that cannot be."""
    roles = [group.role for group in groups]
    for group in groups:
        if not 1 <= group.count <= MOST_SLOTS:
            raise WrongSlots(at, f"{group.count} slots: want 1 to {MOST_SLOTS:,}")
        if group.gpus > 1024:
            raise WrongSlots(at, f"{group.gpus} GPUs of a slot: want 0 to 1024")
        if group.role and (fault := job_name_fault(group.role)):
            raise WrongSlots(at, f"{group.role!r} {fault}")
        if roles.count(group.role) > 1:
            raise WrongSlots(at, f"{group.role or 'slots without a role'}: sizes are given twice")
    if len(groups) > 1 and "" in roles:
        raise WrongSlots(at, "several sizes need a role each: ps=1x0+worker=4x8")
    return groups
