"""The objects in the documents that `--json` prints (json_documents.py), as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tflaunch.protocol import facts


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
    "label": "as people see it: `3`, or `3.1` for MIG instance 1 of GPU 3",
    "state": "`free`, `busy`, `leased`, `promised` or `broken`; `mig`: see its instances",
    "memory_free_bytes": "its memory that is not in use",
}
# This probe holds no ports.
_OF_HOST = {
    name: says for name, says in facts.meanings(facts.MachineFacts).items() if not name.startswith("ports")
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
            **_OF_HOST,
            "age_s": "how old the answer is, in seconds",
        },
        {"error": "error", "gpus": "[gpu]", "queue": "[waiting run]"},
        sometimes=(*(name for name in _OF_HOST if name != "host"), "age_s"),
    ),
    "gpu": Thing(
        "A GPU. null: the GPU or its driver does not say.",
        {
            **facts.meanings(facts.GpuFacts),
            **_DEVICE,
        },
        {**_ON_DEVICE, "mig": "[instance]"},
    ),
    "instance": Thing(
        "A MIG instance.",
        {**facts.meanings(facts.DeviceFacts), **_DEVICE, "gpu": "the index of its GPU"},
        _ON_DEVICE,
    ),
    "process": Thing(
        "A process on a GPU; empty and null for what a container or another user hides.",
        facts.meanings(facts.ProcessFacts),
    ),
    "lease": Thing("The run that has a GPU.", facts.meanings(facts.LeaseFacts)),
    "waiting run": Thing("A run that waits for GPUs.", facts.meanings(facts.TicketFacts)),
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
