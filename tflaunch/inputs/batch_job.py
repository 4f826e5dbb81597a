"""What the Slurm or PBS job around this process gives to each of its hosts; read from the environment alone.

With Slurm, the values of a step win over those of its job, except in the step of `salloc`'s shell, which has only one
node and one task of the whole job.  As with `mpirun`, a host takes as many workers as the job has tasks there.

    tasks   SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE; else SLURM_JOB_CPUS_PER_NODE divided by
            SLURM_CPUS_PER_TASK, which is also the upper limit
    GPUs    on this node SLURM_STEP_GPUS, SLURM_JOB_GPUS (which ones), else SLURM_GPUS_ON_NODE (how many); on the
            others SLURM_GPUS_PER_NODE (how many), else what SLURM_GPUS leaves, else as many as here: Slurm names to a
            process only the GPUs of its own node.  Where none of these is set, no limit is known, and tflaunch may
            take any GPU
    tasks   PBS_NODEFILE names a host once for each; PBS_NUM_PPN where it names it once
    GPUs    PBS_GPUFILE (which ones), else PBS_NGPUS (how many on each host)
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tflaunch.inputs.hostnames import expand

_INTERACTIVE_STEP = "4294967290"  # SLURM_STEP_ID of the shell of salloc
MOST = 10_000


@dataclass(frozen=True)
class Allotted:
    """What the job gives on one host; None: that is not known."""

    slots: int | None = None
    gpus: int | tuple[int, ...] | None = None
    slots_by: str = ""  # the variable that says so, and its value
    gpus_by: str = ""


def slurm_nodes(environ: Mapping[str, str]) -> str | None:
    """The nodes of the step, else of the job, as Slurm writes them."""
    if _in_step(environ):
        return environ["SLURM_STEP_NODELIST"]
    return environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")


def slurm(environ: Mapping[str, str], hosts: Sequence[str]) -> list[Allotted]:
    """What the job gives on each of `hosts`; raises ValueError for what cannot be read, or is about other nodes."""
    tasks, tasks_by = _first(
        environ, *(["SLURM_STEP_TASKS_PER_NODE"] if _in_step(environ) else []), "SLURM_TASKS_PER_NODE"
    )
    cpus, cpus_by = _first(environ, "SLURM_JOB_CPUS_PER_NODE")
    nodes = hosts
    if cpus and _in_step(environ):  # `cpus` is of all nodes of the job, not of the step
        nodes = expand(environ.get("SLURM_JOB_NODELIST", "") or ",".join(hosts))
    per_task = (
        int(environ["SLURM_CPUS_PER_TASK"]) if environ.get("SLURM_CPUS_PER_TASK", "").isdecimal() else 1
    )
    most = dict(zip(nodes, _per_node(cpus, cpus_by, len(nodes)), strict=False)) if cpus else {}
    given = []
    for host, count in zip(
        hosts, _per_node(tasks, tasks_by, len(hosts)) if tasks else [None] * len(hosts), strict=True
    ):
        fit = max(1, most[host] // max(1, per_task)) if host in most else None
        if count is not None and (fit is None or count <= fit):
            given.append(Allotted(slots=count, slots_by=f"{tasks_by}={tasks}"))
        elif fit is not None:
            given.append(Allotted(slots=fit, slots_by=f"{cpus_by}={cpus}"))
        else:
            given.append(Allotted())
    return _with_gpus(given, environ, hosts)


def _with_gpus(given: Sequence[Allotted], environ: Mapping[str, str], hosts: Sequence[str]) -> list[Allotted]:
    if environ.get("CUDA_VISIBLE_DEVICES") == "NoDevFiles":  # Slurm's word for a job without GPUs
        return [replace(each, gpus=0, gpus_by="CUDA_VISIBLE_DEVICES=NoDevFiles") for each in given]
    step = ["SLURM_STEP_GPUS"] if _in_step(environ) or "SLURM_STEP_GPUS" in environ else []
    named, named_by = _first(environ, *step, "SLURM_JOB_GPUS")
    here = this_node(environ, hosts)
    indices = _indices(named)
    count_here = len(indices) if indices else _gpu_count(environ.get("SLURM_GPUS_ON_NODE", ""))
    others, others_by = None, ""
    if (each := _gpu_count(environ.get("SLURM_GPUS_PER_NODE", ""))) is not None:
        others, others_by = each, f"SLURM_GPUS_PER_NODE={environ['SLURM_GPUS_PER_NODE']}"
    elif count_here is not None and here is not None:
        others, others_by = count_here, "as many as Slurm gave on this node"
        total = _gpu_count(environ.get("SLURM_GPUS", ""))
        if total is not None:
            left = max(0, total - count_here)
            others = left if len(hosts) == 2 else min(count_here, left)
            others_by = f"SLURM_GPUS={environ['SLURM_GPUS']}"
    found = []
    for host, each_given in zip(hosts, given, strict=True):
        gpus: int | tuple[int, ...] | None = others
        by = others_by
        if host == here and indices:
            gpus, by = indices, f"{named_by}={named}"
        elif host == here and count_here is not None:
            gpus, by = count_here, f"SLURM_GPUS_ON_NODE={environ.get('SLURM_GPUS_ON_NODE', '')}"
        found.append(replace(each_given, gpus=gpus, gpus_by=by) if gpus is not None else each_given)
    return found


def pbs(
    environ: Mapping[str, str], slots: Mapping[str, int | None], gpu_file: str | None
) -> dict[str, Allotted]:
    """What the job gives on each host of `slots`, its counts in PBS_NODEFILE; `gpu_file` is the text of PBS_GPUFILE."""
    ppn = _gpu_count(environ.get("PBS_NUM_PPN", ""))
    each = _gpu_count(environ.get("PBS_NGPUS", ""))
    by_host: dict[str, list[int]] = {}
    for line in (gpu_file or "").split():
        if found := re.fullmatch(r"(\S+)-gpu/?([0-9]{1,4})", line):
            by_host.setdefault(_short(found[1]), []).append(int(found[2]))
    given = {}
    for host, count in slots.items():
        by_ppn = ppn is not None and count == 1
        gpus: int | tuple[int, ...] | None = each
        by = f"PBS_NGPUS={each}" if each is not None else ""
        if gpu_file is not None:
            gpus, by = tuple(sorted(by_host.get(_short(host), ()))) or 0, "PBS_GPUFILE"
        given[host] = Allotted(
            ppn if by_ppn else count, gpus, f"PBS_NUM_PPN={ppn}" if by_ppn else "PBS_NODEFILE", by
        )
    return given


def this_node(environ: Mapping[str, str], hosts: Sequence[str]) -> str | None:
    """The host that this process runs on, if it is one of them: a shell of salloc may run elsewhere."""
    name = _short(environ.get("SLURMD_NODENAME") or socket.gethostname())
    return next((host for host in hosts if _short(host) == name), None)


def _in_step(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_STEP_NODELIST")) and environ.get("SLURM_STEP_ID") != _INTERACTIVE_STEP


def _first(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    """(value, name) of the first that is set."""
    return next(((environ[name], name) for name in names if environ.get(name)), ("", ""))


def _per_node(text: str, name: str, nodes: int) -> list[int]:
    """`2(x3),1` for four nodes."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,6})(?:\(x([0-9]{1,6})\))?\s*", part)
        if found is None or int(found[2] or 1) > MOST:
            raise ValueError(f"{name}: {text!r} is not a count for each node, as 2(x3),1")
        counts += [min(MOST, int(found[1]))] * int(found[2] or 1)
    if len(counts) != nodes:
        raise ValueError(f"{name}: {text!r} counts {len(counts)} nodes, and the list of nodes has {nodes}")
    return counts


def _indices(text: str) -> tuple[int, ...]:
    """`0,2-3`; () for what is no list of indices."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)
        if ends is None:
            return ()
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(sorted(set(found)))


def _gpu_count(text: str) -> int | None:
    """`4`, `a100:4` or `a100:2,v100:1`; None for what is no count."""
    counts = [part.rpartition(":")[2].strip() for part in text.split(",")]
    return sum(map(int, counts)) if all(re.fullmatch(r"[0-9]{1,6}", count) for count in counts) else None


def _short(name: str) -> str:
    return name.partition(".")[0].lower()
