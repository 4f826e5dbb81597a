"""The objects in the documents that `--json` prints (json_documents.py), as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Thing(NamedTuple):
    """A JSON object: `fields` maps each field to what it holds; those of `sometimes` may be missing.

    holds: the fields that have things in them, by their names in THINGS: `[task]` is a list of tasks, `{error}` an
    object with errors as values, `{{call}}` one with such objects as values, `task` one task or null.
    """

    says: str
    fields: Mapping[str, str]
    holds: Mapping[str, str] = {}
    sometimes: tuple[str, ...] = ()


_SINCE = "since when, in epoch seconds by the host's clock"
_COUNT = "how many GPUs, or MIG instances of GPUs that have some, "

_DEVICE: Mapping[str, str] = {
    "index": "of a GPU: NVML's; of a MIG instance: its number within its GPU",
    "label": "as people see it: `3`, or `3.1` for MIG instance 1 of GPU 3",
    "uuid": "NVML's UUID",
    "name": "NVML's name of the model",
    "state": "`free`, `busy`, `leased`, `promised` or `broken`; `mig`: see its instances",
    "busy": "why a run must not take it, or empty",
    "memory_total_bytes": "its memory",
    "memory_used_bytes": "what of it is in use, without what the driver reserves for itself",
    "memory_free_bytes": "the rest",
    "processes": "the processes on it",
    "lease": "the run that has it, or null",
    "lease_error": "why it cannot be leased, or empty",
    "promised": "the run that it is promised to, and that waits for it, or null",
}
_ON_DEVICE = {"processes": "[process]", "lease": "lease", "promised": "lease"}

THINGS: Mapping[str, Thing] = {
    "error": Thing(
        "Why a host could not be used.", {"message": "a sentence", "hint": "what to do, or empty"}
    ),
    # of gpus
    "host": Thing(
        "A host, in the order of the hostfile. A host with an `error` has only the first three fields.",
        {
            "host": "its name in the hostfile",
            "names": "all names of that machine in the hostfile; it is listed once",
            "error": "why it did not answer, or null",
            "hostname": "its own name for itself",
            "boot_id": "the kernel's: the same for all names of one machine",
            "addresses": "its IP addresses",
            "python": "the version of the Python that answered",
            "cores": "its CPU cores",
            "load": "its load average of the last minute",
            "memory_bytes": "its memory",
            "memory_available_bytes": "what programs can still get of it",
            "disk_free_bytes": "free in the directory of the runs",
            "clock": "its clock, in epoch seconds",
            "driver": "the version of the NVIDIA driver, or empty",
            "cuda": "the newest CUDA that the driver supports, or empty",
            "gpu_note": "why no GPU could be listed, or empty",
            "gpus": "its GPUs",
            "queue": "the runs that wait for its GPUs, the next one first",
            "queue_error": "why the queue cannot be read, or empty",
            "gpus_held": "how many of its GPUs your runs have",
            "gpu_limit": "how many GPUs of the host one user may hold, or null",
            "proxies": "the variables of proxies that are set there",
            "interfaces": "the names of its network interfaces",
            "age_s": "how old the answer is, in seconds",
        },
        {"error": "error", "gpus": "[gpu]", "queue": "[waiting run]"},
        sometimes=(
            "hostname",
            "boot_id",
            "addresses",
            "python",
            "cores",
            "load",
            "memory_bytes",
            "memory_available_bytes",
            "disk_free_bytes",
            "clock",
            "driver",
            "cuda",
            "gpu_note",
            "gpus",
            "queue",
            "queue_error",
            "gpus_held",
            "gpu_limit",
            "proxies",
            "interfaces",
            "age_s",
        ),
    ),
    "gpu": Thing(
        "A GPU. null: the GPU or its driver does not say.",
        {
            **_DEVICE,
            "error": "what NVML says of a GPU that is lost or broken, or empty",
            "utilization_percent": "how much of the last second kernels ran",
            "temperature_c": "in °C",
            "power_w": "in watts",
            "power_limit_w": "in watts",
            "ecc_errors": "uncorrected ones since the driver was loaded",
            "slowed_by": "`power_cap`, `hw_slowdown`, `sw_thermal`, `hw_thermal`, `power_brake`",
            "compute_mode": "`default`, `exclusive_process`, `exclusive_thread` or `prohibited`",
            "persistence": "whether persistence mode is on",
            "pci_bus_id": "its PCI bus id",
            "numa_node": "its NUMA node",
            "mig_mode": "whether MIG is on",
            "mig": "its MIG instances",
            "links": "index of another GPU -> how they are connected: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`",
        },
        {**_ON_DEVICE, "mig": "[instance]"},
    ),
    "instance": Thing("A MIG instance.", {**_DEVICE, "gpu": "the index of its GPU"}, _ON_DEVICE),
    "process": Thing(
        "A process on a GPU; empty and null for what a container or another user hides.",
        {
            "pid": "on its host",
            "user": "who runs it",
            "command": "its command line",
            "kind": "`compute`, or `graphics`: a desktop",
            "memory_bytes": "of the GPU",
            "started": "when, in epoch seconds by the host's clock",
        },
    ),
    "lease": Thing(
        "The run that has a GPU.",
        {
            "user": "whose it is",
            "run": "the run's id",
            "since": _SINCE,
            "planning": "whether it has the GPU only until its plan is made",
            "pid": "of a process that has locked the GPU and is no run of tflaunch; else 0",
        },
    ),
    "waiting run": Thing(
        "A run that waits for GPUs.",
        {
            "user": "whose it is",
            "run": "the run's id",
            "since": _SINCE,
            "planning": "whether its plan is being made",
            "pid": "0",
            "wants": "how many GPUs, on all its hosts together",
            "uuids": "those of this host that it could use",
        },
    ),
    "counts": Thing(
        "GPUs by their state.",
        {
            "free": f"{_COUNT}nobody uses",
            "busy": f"{_COUNT}processes use that are no run's",
            "leased": f"{_COUNT}runs have",
            "promised": f"{_COUNT}are kept for a run that waits",
            "broken": f"{_COUNT}cannot be used",
            "models": "model -> the same for GPUs of that model",
        },
        {"models": "{counts}"},
        sometimes=("models",),
    ),
    "user": Thing(
        "A user who holds GPUs.",
        {
            "user": "the account; empty: not shown by the host",
            "gpus": "how many GPUs and MIG instances",
            "hosts": "the hosts that they are on",
            "holds": "each GPU that a run or a process of the user holds",
        },
        {"holds": "[hold]"},
    ),
    "hold": Thing(
        "One GPU or MIG instance, held by one run or one process.",
        {
            "user": "who holds it",
            "host": "its host",
            "gpu": "its label",
            "uuid": "NVML's UUID",
            "run": "the run's id; empty: a process that is no run's",
            "pid": "of the process; of a run 0",
            "command": "of the process, without its arguments",
            "since": f"{_SINCE}, or null",
            "age_s": "for how many seconds, or null",
            "memory_bytes": "how much of its memory is in use, or null",
        },
    ),
    # of ps and status
    "run": Thing(
        "A run.",
        {
            "run_id": "its id",
            "state": "`starting`, `running`; `succeeded`, `failed`, `stopped`, `ended`; `lost` (it did not end in "
            "order), `unknown`",
            "alive": "whether something of it is known to live",
            "running": "how many of its tasks run",
            "detached": "whether it goes on without a launcher",
            "user": "whose account on the hosts it has",
            "launcher": "who started it where: `ada@laptop`",
            "command": "the command that started it, in words, without values that may be secret",
            "planned": "when its plan was made, in epoch seconds; 0: not known",
            "started": "when, in epoch seconds, or null",
            "ended": "when, in epoch seconds, or null",
            "tasks": "its tasks",
            "hosts": "the part of each host",
            "first_failure": "the task that failed first, or null",
            "outcome": "how it ended, as its launcher or coordinator has written it: `status`, `exit_code` and more; "
            "empty while it is alive",
            "left_out": "host -> why the run goes without it",
            "holds": "what the watchdog says of it now: `age_s`, `sentences`, `blind` (what it cannot see); or null",
            "lease_s": "how long its hosts go on without hearing of its launcher or coordinator, in seconds",
            "stopped_by": "who has asked for its end, if that is not its user",
            "moved": "a sentence, if the task that writes checkpoints is on another host than before",
        },
        {"tasks": "[task]", "hosts": "[part]"},
    ),
    "task": Thing(
        "A task of a run.",
        {
            "task": "`worker/0`",
            "host": "its host",
            "state": "`waiting`, `staged` (ready to start), `running`, `exited`, `lost` (nobody saw its end) or "
            "`unknown`",
            "attempts": "how often it was started",
            "pid": "of its process, or null",
            "since": "since when it is staged or runs, in epoch seconds, or null",
            "code": "its exit code, or null",
            "signal": "the number of the signal that ended it, or null",
            "signal_name": "its name, or empty",
            "exit_code": "as a shell gives it; null: it has not exited",
            "failed": "whether it exited by itself, and not with 0",
            "stopped": "whether tflaunch ended it",
            "seconds": "how long it ran, or null",
            "ended": "when, in epoch seconds, or null",
            "port": "in the cluster, or null",
            "gpus": "the UUIDs of its GPUs",
            "gpu_labels": "the same as people see them",
            "log": "the path of its log on its host",
            "log_bytes": "how long its logs are, those of all attempts together",
            "output": "when it last wrote something, in epoch seconds, or null",
            "tail": "`status`: the end of the log of a task that failed; else empty",
            "facts": "what its host noticed of its end, such as `oom_kills`",
            "before": "how earlier attempts ended: `attempt`, `code`, `signal_name`, `seconds`, `ended`",
        },
    ),
    "part": Thing(
        "A host's part of a run.",
        {
            "host": "its name",
            "state": "`alive`, `ended` (in order), `lost`, `strays` (the agent is dead, processes of the run live); "
            "`elsewhere`, `unreachable`, `unasked`, `gone`: not known",
            "directory": "of the run, on the host",
            "agent": "the pid of its agent; 0: none",
            "strays": "processes of the run that live without an agent",
            "asked": "the host that answered: mostly the same",
            "restarted": "when the machine rebooted, which ended its part, in epoch seconds, or null",
            "why": "what ended its part, if that was not the end of the run: its lease, its guard; else empty",
        },
    ),
    # of stacks
    "stacked task": Thing(
        "A task, with its processes.",
        {
            "task": "`worker/0`",
            "host": "its host",
            "processes": "its own process first, then those that it started",
        },
        {"processes": "[stacked process]"},
    ),
    "stacked process": Thing(
        "A process of a task.",
        {
            "pid": "on its host",
            "name": "the kernel's name for it",
            "threads": "its threads, as the kernel sees them",
            "stacks": "the Python stacks of its threads, or null",
            "why_none": "why there are no stacks, or none of the first thread; or empty",
            "age_s": "how old the stacks are, in seconds",
        },
        {"threads": "[thread]", "stacks": "[stack]"},
    ),
    "thread": Thing(
        "A thread.",
        {
            "tid": "the kernel's number",
            "name": "its name",
            "state": "the kernel's letter: `R`, `S`, `D` and so on",
            "waits_in": "the kernel's function that it waits in, or empty",
            "cpu_s": "the CPU time that it has used, in seconds",
        },
    ),
    "stack": Thing(
        "A Python stack.",
        {
            "main": "whether it is the main thread's",
            "threads": "how many threads have it",
            "frames": "the innermost last",
        },
        {"frames": "[frame]"},
    ),
    "frame": Thing(
        "A call on a stack.",
        {
            "file": "its source",
            "line": "in the source",
            "function": "its name",
            "own": "whether it is the program's, not a library's",
        },
    ),
    # of check
    "finding": Thing(
        "Something that is not as it should be.",
        {
            "level": "`error`, `warning` or `note`",
            "topic": "for scripts: `connection`, `setup`, `tensorflow`, `gpus`, `ports`, `exposed` and so on",
            "hosts": "where",
            "what": "a sentence",
            "fix": "what to do, or empty",
            "lines": "what the task printed on the first of these hosts, or how the hosts differ",
        },
    ),
    "checked host": Thing(
        "A host that was checked.",
        {
            "host": "its name",
            "level": "the worst of its findings: `error`, `warning` or `note`; null: there is none",
            "error": "why it did not answer, or null",
            "versions": "name -> version, of what should be the same on all hosts",
            "clock": "how far its clock is ahead of this machine's, or null",
            "interface": "the network interface that other hosts reach it by, or null",
            "interfaces": "each with `name`, `addresses`, `mtu`, `mbit_s`, `networks`",
            "infiniband": "the names of its InfiniBand adapters",
            "disks": "each with `path`, `free_bytes`, `free_files`",
            "logout": "whether logging out kills what was started: `kills`, `session`, `user`, `linger`",
            "ports": "how many ports it found free",
            "agent_python": "the version of the Python that answered",
            "cuda": "the newest CUDA that the driver supports, or empty",
            "gpus": "each with `label`, `name`, `busy` (why a run must not take it, or empty)",
            "task": "how the task of the check ended",
        },
        {"error": "error", "clock": "clock", "task": "checked task"},
        sometimes=(
            "interfaces",
            "infiniband",
            "disks",
            "logout",
            "ports",
            "agent_python",
            "cuda",
            "gpus",
            "task",
        ),
    ),
    "clock": Thing(
        "A clock, beside this machine's.",
        {"ahead_s": "how many seconds it is ahead", "within_s": "how wrong that may be, in seconds"},
    ),
    "checked task": Thing(
        "The task of a check.",
        {
            "code": "its exit code, or null",
            "signal": "the name of the signal that ended it, or empty",
            "seconds": "how long it ran",
            "late": "whether it was ended because it took too long",
            "report": "what it said: `python`, `executable`, `limits`, `proxies`, `versions`, `error`, `tensorflow` "
            "(`seconds`, `build`, `gpus`); or null",
            "lines": "the last lines that it printed",
        },
    ),
    "row": Thing(
        "One fact, on each host that reported it.",
        {
            "name": "such as `TensorFlow`",
            "common": "the value on more than half of the hosts, or empty",
            "odd": "each other value -> its hosts",
            "values": "host -> value",
        },
    ),
    "throughput": Thing(
        "What one host could send to another one.",
        {
            "bits_per_s": "what arrived, or null",
            "rtt_ms": "the shortest round trip meanwhile, in milliseconds",
            "lost": "packets that were sent again",
            "failed": "why nothing arrived: `[kind, sentence]`, or null",
        },
    ),
    # of clean
    "place": Thing(
        "A directory of runs.",
        {
            "hosts": "those that share it; none: this machine's records",
            "directory": "its path",
            "removed": "run -> bytes that were freed",
            "failed": "run -> why it could not be removed",
            "code": "shipped code that was removed: `files`, `bytes`",
            "environments": "environments of `--requirements` that were removed: `files`, `bytes`",
            "rest_bytes": "freed: what an earlier `clean` that was interrupted left",
            "freed_bytes": "all that was freed",
            "stay": "what stays: `runs`, `bytes`",
            "unread": "what could not be measured, and why",
            "too_large_bytes": "how much more there is than `--max-size` allows",
        },
    ),
    # of config
    "file": Thing(
        "A file of the configuration.", {"path": "its path", "there": "whether there is such a file"}
    ),
    "setting": Thing(
        "A value of the configuration.",
        {
            "key": "`run.grace`, `banner`",
            "value": "as the file has it",
            "file": "the file that says so",
            "line": "and the line",
        },
    ),
}
