"""The job that holds slots on Slurm: one for all, heterogeneous where their sizes differ; and the step inside a job."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tflaunch.engines.engine import EngineKey
from tflaunch.engines.slurm_place import LOG, TOLD
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.engine_words import SlotGroup, WantedSlots
from tflaunch.protocol.errors import UsageError

NOTICE_S = 60.0
KEPT = "slots.json"  # what leads to slots that are there
ALONE = ("-I", "-S")  # Python loads nothing of what is installed there: that may be on a slow disk, or print
LATER_S = 10.0  # of the notice is for the signal to come
KEYS = (
    EngineKey("partition", "The partition.", example="gpu"),
    EngineKey("account", "The account that is charged.", example="lab"),
    EngineKey("qos", "The quality of service.", example="long"),
    EngineKey("time", "The time limit; without it, the partition's.", "time", "2h"),
    EngineKey("cpus", "CPUs of each slot.", "count", "8"),
    EngineKey("memory", "Memory of each slot (sbatch --mem).", example="64G"),
    EngineKey("gpu", "The type of the GPUs.", example="a100"),
    EngineKey("constraint", "What the nodes must have (sbatch --constraint).", example="ib"),
    EngineKey("notice", "Time to save before the time limit (1m).", "time", "2m"),
    EngineKey("idle", "Time until a slot in which nothing runs ends by itself (20s).", "time", "1m"),
    EngineKey(
        "python",
        "The Python of slot holder and agent, 3.8 or newer (python3).",
        example="/opt/python/bin/python3",
    ),
    EngineKey("dir", "A directory of yours that the nodes see, too.", example="/scratch/me/tflaunch"),
    EngineKey("options", "Options of sbatch, as they are.", "words", "--constraint=ib --exclusive"),
)
_SAYS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "cpus": "--cpus-per-task",
    "memory": "--mem",
    "constraint": "--constraint",
}
_OURS = ("--array", "--wrap", "--ntasks", "--nodes", "--wait", "--parsable", "--test-only", "--requeue")
_OURS_SHORT = ("-a", "-n", "-N", "-W")


def sbatch_words(wanted: WantedSlots, name: str, place: Path) -> list[str]:
    """The words for sbatch, which reads the script from its stdin.  Raises UsageError."""
    words = ["sbatch", "--parsable"]
    for number, group in enumerate(wanted.groups):
        words += [*([":"] if number else []), *_of_group(group, wanted.settings, name, place)]
    return words


def _of_group(group: SlotGroup, settings: Mapping[str, str], name: str, place: Path) -> list[str]:
    said = {**settings, **group.settings}
    notice = seconds(said["notice"]) if "notice" in said else NOTICE_S
    words = [
        f"--job-name={name}",
        f"--output={place}/{LOG}",
        "--chdir=/",
        "--no-requeue",
    ]
    words += [f"--nodes={group.count}", "--ntasks-per-node=1", f"--signal=URG@{math.ceil(notice + LATER_S)}"]
    words += [f"{option}={said[key]}" for key, option in _SAYS.items() if key in said]
    if "time" in said:
        words.append(f"--time={max(1, math.ceil(seconds(said['time']) / 60))}")
    if group.gpus:
        kind = f"{said['gpu']}:" if "gpu" in said else ""
        words.append(f"--gres=gpu:{kind}{group.gpus}")
    return [*words, *options(said)]


def options(said: Mapping[str, str]) -> list[str]:
    """The user's own options for sbatch.  Raises UsageError for those that would make it no job of slots."""
    try:
        words = shlex.split(said.get("options", ""))
    except ValueError as error:
        raise UsageError(f"slurm: options: {error}") from None
    for word in words:
        if word == ":" or word.partition("=")[0] in _OURS or word[:2] in _OURS_SHORT:
            raise UsageError(
                f"slurm: options: {word} is for tflaunch to say", "the sizes say how many slots there are"
            )
    return words


def script(wanted: WantedSlots, program: Path) -> str:
    """The job's script: it has no secret in it, for Slurm keeps it where others may read it."""
    place, kept, told = (shlex.quote(str(program.parent / name)) for name in ("", KEPT, TOLD))
    python = shlex.join([wanted.settings.get("python", "python3"), *ALONE])
    each = "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
    if len(wanted.groups) == 1:
        command = f"{each} {python} - 0 < {shlex.quote(str(program))}"
    else:
        # The stdin of srun reaches the last part of such a job alone.
        read = shlex.quote(f'exec {python} - "$1" < "$0"')
        parts = [
            f"--het-group={number} --ntasks-per-node=1 sh -c {read} {shlex.quote(str(program))} {number}"
            for number in range(len(wanted.groups))
        ]
        command = "srun --kill-on-bad-exit=0 --wait=0 " + " : ".join(parts)
    return f"""\
#!/bin/sh
# Slots of tflaunch: one step holds all of them.
unset SLURM_EXPORT_ENV SLURM_CPUS_PER_TASK
export SLURM_CPU_BIND=none
{{ {command}; echo "code $?"; }} | while read -r line; do
    case $line in
    "code "*)
        # What leads to slots goes with them; what says why there were none is for the launcher to read.
        [ ! -e {kept} ] || rm -rf {place}
        exit "${{line#code }}" ;;
    # A file server shows others what is written when the file is closed, or half a minute later.
    *) printf '%s\\n' "$line" >>{told} ;;
    esac
done
"""


def step_words(job: str, nodes: Sequence[str], name: str, python: str) -> list[str]:
    """The words for srun that hold slots on these nodes of a job; it reads the holders' program from its stdin."""
    where = [
        f"--jobid={job}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
    ]
    # What this process runs in may be a step with all of the job's resources.
    how = ["--overlap", "--kill-on-bad-exit=0", "--wait=0", f"--job-name={name}"]
    return ["srun", *where, *how, python, *ALONE, "-", "0"]
