"""What rules may ask about an end, as words to be put into sentences; a fact that is not known is missing.

python, host, task, code, signal, place
peak          the most memory that a process of the task had        memory, memory_left   of the host
memory_limit  of the cgroup                                        near_limit    `peak` is most of what there is
                                   far_from_full   it is little, and the host had most of its memory left
oom, oom_cgroup   how many processes the kernel has killed for want of memory on the host, by the cgroup's limit
shm, shm_left     of /dev/shm                                      shm_full      next to nothing of it is left
open_files    the limit
warned        tflaunch has sent SIGUSR1 to the task (--warn-before)
cpu           the vector instructions of the processor             no_avx, no_avx2, no_avx512   it lacks them
disk_full     which disks are full                                 no_inodes     which have no room for files
read_only     the directory of its log, whose disk takes no more writes
tensorflow, numpy, protobuf, keras, torch, jax, ...   versions that the task's Python has
python_version
differ        the versions of packages that differ between the hosts of the run
gpus_held     who holds GPUs of the run, after it
done          tasks of its job that had ended with 0
given         the task was given cluster flags
at            where the arguments of the program stand in the command
env:NAME      the task's environment has that variable
slow_start    the task ended within its first minute
writes        its last call, as the traceback shows it, writes a file     own_port   its log names the port it was given
starts        its last call starts another program
no_files_left its log tells of too many open files
restores      it failed in a call that reads a checkpoint
argument      the number of the argument that its last call takes by its place
unset         a variable that its last calls ask for, and that it was not given
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tflaunch.diagnosis.rule import names_of
from tflaunch.frameworks.table import PACKAGES
from tflaunch.hosts import fold
from tflaunch.protocol.job import TRIAL
from tflaunch.text.numbers import amount
from tflaunch.text.safe import one_line

_FULL_BYTES = 1 << 20  # a disk with less is full
_SHM_LEFT = 0.02
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_NEAR = 0.7  # of the memory that there is
_FAR = 0.25  # the same, of a task whose want of memory has another reason
_SOON_S = 60.0
_AT = "after --"
_AT_SWEEP = "in --grid, --random or --trials-file, or after --"
_CLUSTER = ("--ps_hosts", "--worker_hosts", "--job_name", "--task_index")


class Meaning(NamedTuple):
    text: str = ""  # one line
    cause: bool = False  # it names a cause, not only what follows from one


class Here(NamedTuple):
    """What the launcher's machine knows of the program."""

    module: Callable[[str], str] = lambda _: (
        ""
    )  # better advice for a module that the task did not find, or ""
    file: Callable[[str], str] = lambda _: ""  # the same for a file


NOWHERE = Here()


@dataclass(frozen=True)
class KnownEnd:
    """An end of a task, as far as it is known to whoever asks."""

    task: str = ""
    host: str = ""
    code: int | None = None
    signal: str = ""  # SIGKILL
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)  # protocol.messages.EXIT_FACTS
    argv: Sequence[str] = ()  # of the task; () where it is not known
    env: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # host -> the facts of an end there
    gpus_held: Sequence[str] = ()
    gpus: int | None = None  # how many it was given
    done: Sequence[str] = ()  # the tasks of its job that had ended with 0
    port: int | None = None  # that it was given


def _python(argv: Sequence[str]) -> str:
    """The Python of a task, in words where a shell has started it."""
    first = argv[0] if argv else ""
    if first.rpartition("/")[2] in _SHELLS:
        return "the Python that the script starts"
    return first or "the interpreter"


def facts_of(end: KnownEnd) -> dict[str, str]:
    """The facts of an end."""
    found = {
        "python": _python(end.argv),
        "host": end.host or "the host",
        "task": end.task or "the task",
        "code": str(end.code),
        "at": _AT_SWEEP if end.task.startswith(f"{TRIAL}/") else _AT,
        "signal": end.signal,
    }
    if end.done:
        found["done"] = names_of(end.done)
    told = end.facts
    _memory(told, found)
    if told.get("warned"):
        found["warned"] = "SIGUSR1"
    if told.get("open_files"):
        found["open_files"] = str(told["open_files"])
    if "cpu" in told:
        found["cpu"] = one_line(", ".join(told["cpu"][:8])[:100]) or "none"
        found.update({f"no_{word}": word for word in ("avx", "avx2") if word not in told["cpu"]})
        found.update({"no_avx512": "avx512f"} if "avx512f" not in told["cpu"] else {})
    _disks(told.get("disks", ()), found)
    if told.get("python"):
        found["python_version"] = one_line(str(told["python"])[:20])
    versions = told.get("packages", {})
    found.update({name: one_line(versions[name][:20]) for name in PACKAGES if name in versions})
    if text := _differing({end.host: told, **end.others}):
        found["differ"] = text
    if told.get("read_only"):
        found["read_only"] = one_line(str(told["read_only"])[:200])
    if end.gpus_held:
        found["gpus_held"] = "; ".join(end.gpus_held[:3])
    if any(word.partition("=")[0].replace("-", "_").strip("_") in _BARE for word in end.argv):
        found["given"] = "given"
    if end.gpus == 0:
        found["no_gpu"] = "no GPU"
    found.update({f"env:{name}": value for name, value in end.env.items()})
    if end.seconds < _SOON_S:
        found["slow_start"] = f"{end.seconds:.0f} s"
    return found


_BARE = frozenset(word.strip("-") for word in _CLUSTER)


def _memory(told: Mapping[str, Any], found: dict[str, str]) -> None:
    peak, limit, total = (int(told.get(name, 0)) for name in ("peak_bytes", "memory_limit", "memory_bytes"))
    for name, number in (("peak", peak), ("memory_limit", limit), ("memory", total)):
        if number:
            found[name] = amount(number)
    if "memory_available_bytes" in told:
        found["memory_left"] = amount(told["memory_available_bytes"])
    there = min([each for each in (limit, total) if each], default=0)
    if there and peak > _NEAR * there:
        found["near_limit"] = amount(there)
    if (
        total
        and there == total
        and 0 < peak < _FAR * there
        and told.get("memory_available_bytes", 0) > there / 2
    ):
        found["far_from_full"] = amount(peak)
    if "oom_kills" in told:
        found["counted"] = str(told["oom_kills"])
    if told.get("oom_kills"):
        found["oom"] = str(told["oom_kills"])
    if told.get("oom_kills_cgroup"):
        found["oom_cgroup"] = str(told["oom_kills_cgroup"])
    if told.get("shm_bytes"):
        found["shm"], found["shm_left"] = amount(told["shm_bytes"]), amount(told.get("shm_free_bytes", 0))
        if told.get("shm_free_bytes", 0) <= max(_FULL_BYTES, _SHM_LEFT * told["shm_bytes"]):
            found["shm_full"] = found["shm"]


def _disks(disks: Iterable[Mapping[str, Any]], found: dict[str, str]) -> None:
    full, no_files = [], []
    for disk in disks:
        if disk["free_bytes"] < _FULL_BYTES:
            full.append(f"the disk of {one_line(disk['path'][:100])} has {amount(disk['free_bytes'])} left")
        elif disk["free_files"] == 0:
            no_files.append(
                f"the disk of {one_line(disk['path'][:100])} has room for no more files (`df -i`)"
            )
    if full:
        found["disk_full"] = ", ".join(full[:3])
    if no_files:
        found["no_inodes"] = ", ".join(no_files[:3])


def _differing(ends: Mapping[str, Mapping[str, Any]]) -> str:
    """`tensorflow is 2.15.1 on gpu01, 2.21.0 on gpu[02-03]`; "" where all are the same."""
    texts = []
    for name in ("python", *PACKAGES):
        hosts: dict[str, list[str]] = {}
        for host, told in ends.items():
            version = told.get("python") if name == "python" else told.get("packages", {}).get(name)
            if name == "python" and version:
                version = ".".join(str(version).split(".")[:2])
            if version:
                hosts.setdefault(one_line(str(version)[:20]), []).append(host)
        if len(hosts) > 1:
            parts = sorted(hosts.items(), key=lambda each: (-len(each[1]), each[0]))
            label = "Python" if name == "python" else name
            texts.append(
                f"{label} is " + ", ".join(f"{version} on {fold(names)}" for version, names in parts[:4])
            )
    return "; ".join(texts[:3])
