"""What `--json` prints, as data: each event with its fields.

The writers (tflaunch.documents.json_lines, tflaunch.console.sweep) look up here how an event is written, the reference
of the documentation is made from this table, and the tests compare every event that they see with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One kind of event: `fields` maps each field to what it holds; those of `sometimes` may be missing."""

    says: str
    fields: Mapping[str, str]
    sometimes: tuple[str, ...] = ()
    at_once: bool = False  # shown even while others wait for the output of a task that has ended


_TASK = "the task: `worker/0`"
_HOST = "the host"
_RUN = "the run's id"

EVENTS: Mapping[str, Event] = {
    "plan": Event(
        "What the run will do: all of `--dry-run`.",
        {
            "run_id": _RUN,
            "cluster": "job name -> the addresses of its tasks, in order",
            "notes": "sentences that the user should know",
            "choices": "what the program's text has decided, and why",
            "left_out": "hosts that could not be reached, or were lost -> why; the run does without them",
            "tasks": "for each task: `task`, `host`, `address`, `port` (null: not part of the cluster), `gpus` "
            "(UUIDs), `gpu_labels` (the same as people see them: `3`, or `3.1` for MIG instance 1 of GPU 3), "
            "`argv`, `env`, `setup`, `cwd` (null: where the shipped code is), `container` (image or empty), `mounts`",
        },
    ),
    "code": Event(
        "What is shipped, and what stays on this machine.",
        {
            "directory": "the code directory",
            "program": "the file of the program in it",
            "digest": "SHA-256 of what is shipped",
            "files": "how many files are shipped",
            "bytes": "how large they are",
            "modules_only": "what the directory is, if only the program and the modules that it imports are shipped; "
            "else empty",
            "ignored": "how many files ignore files have left out",
            "caches": "how many caches were left out",
            "secrets": "what was left out because it looks like a secret: `path`, `why` of each",
            "fetched": "paths that were left out because `fetch` has brought them",
            "links": "path -> where to, of links that are shipped as links",
            "skipped": "paths that are neither files, directories nor links",
            "shipped": "with `--show-files`: each file with `path`, `kind` (file, executable, link, directory), "
            "`bytes` or null, `goal` (of a link) or null",
            "left": "with `--show-files`: each file that stays, with `path`, `kind`, `why`",
        },
        sometimes=("shipped", "left"),
    ),
    "shipped": Event(
        "The code is on all hosts.",
        {
            "directory": "as in code",
            "digest": "as in code",
            "files": "as in code",
            "bytes": "as in code",
            "sent": "host -> `[files, bytes]` that it lacked",
        },
    ),
    "phase": Event(
        "A step of the start goes on; one event for each change of `done`.",
        {
            "name": "the step",
            "done": "how much of it is done",
            "total": "of how much",
            "note": "what the step waits for, or what is missing",
            "bytes": "bytes moved so far, where the step moves files",
            "total_bytes": "of how many",
        },
        sometimes=("bytes", "total_bytes"),
        at_once=True,
    ),
    "waiting": Event(
        "The run waits for GPUs; one event for each change.",
        {
            "place": "in the queue: 1 is the next to be served",
            "behind": "the runs before it",
            "free": "how many GPUs that it could take are free",
            "needed": "how many it needs",
            "held": "`[GPUs, why]` of those in use",
            "lost": "hosts that cannot be asked",
            "why": "where as many are free as it needs: why it cannot take them",
        },
        at_once=True,
    ),
    "note": Event("Something happened.", {"text": "a sentence"}),
    "say": Event("What tflaunch does now because the user wants it.", {"text": "a sentence"}, at_once=True),
    "warn": Event("Something that the user should look at.", {"text": "a sentence"}, at_once=True),
    "started": Event(
        "A task runs.",
        {"task": _TASK, "host": _HOST, "pid": "its process there", "attempt": "0, and more after restarts"},
    ),
    "log": Event(
        "A line that a task has written.",
        {
            "task": _TASK,
            "host": _HOST,
            "line": "without its end; bytes that are not UTF-8 appear as `\\xff`, control sequences stay",
            "partial": "true while the line is being rewritten (a progress bar)",
        },
        sometimes=("partial",),
    ),
    "gap": Event(
        "Part of a log cannot be shown.", {"task": _TASK, "host": _HOST, "bytes": "how much is missing"}
    ),
    "log_end": Event("Nothing more comes from the task.", {"task": _TASK}, at_once=True),
    "exited": Event(
        "A task has ended.",
        {
            "task": _TASK,
            "host": _HOST,
            "code": "its exit code, or null",
            "signal": "the name of the signal that ended it, or null",
            "seconds": "how long it ran",
            "stopped": "whether tflaunch ended it",
            "attempt": "0, and more after restarts",
            "missing": "bytes of its output that come later; 0: all of it came before",
        },
    ),
    "unreachable": Event(
        "The launcher does not reach a host; its tasks run on, and their output comes later.",
        {"host": _HOST, "reason": "why"},
        at_once=True,
    ),
    "back": Event(
        "The launcher reaches the host again.", {"host": _HOST, "seconds": "after so long"}, at_once=True
    ),
    "lost": Event("The launcher has given the host up.", {"host": _HOST, "reason": "why"}, at_once=True),
    "failures": Event(
        "Hosts could not be used, or could not start their tasks.",
        {
            "exit_code": "of tflaunch",
            "exit_code_of": "`tflaunch`",
            "message": "a sentence",
            "hint": "what to do",
            "rows": "for each cause: `hosts`, `folded` (the same as one text: `gpu[03-04]`), `cause`, `hint`, `lines` "
            "(for each host what differs: the fingerprint of an unknown host key; mostly none)",
            "unconfirmed": "host -> why something may still run there",
        },
    ),
    "error": Event(
        "What was asked for cannot be done.",
        {
            "kind": "the class of the error",
            "message": "a sentence",
            "hint": "what to do",
            "exit_code": "of tflaunch",
            "exit_code_of": "`tflaunch`",
            "problems": "of a file: `where`, `line`, `column`, `message` of each",
        },
    ),
    "report": Event(
        "How the run ended: the last event of a run.",
        {
            "run_id": _RUN,
            "status": "`succeeded`, `failed` or `interrupted`",
            "exit_code": "of tflaunch",
            "exit_code_of": "the task that failed first and ended with it, else `tflaunch`",
            "seconds": "how long the run took",
            "exits": "each task's end, as in exited",
            "first_failure": "null; a task: as in exited, with `tail` (its last lines) and `error` (the line of its "
            "log that says why, or empty); a host: as in lost; a time limit: `reason`, `tasks`, `states`, `stacks` "
            "(task -> lines); `--require-gpu` or `--stop-on-nan`: `reason`, `tasks`, `states` (empty), `exit_code`",
            "unverified": "host -> why tflaunch could not check that nothing is left",
            "survivors": "host -> processes that are still alive",
            "gpus": "host -> `text` and `own` (the run itself is on it) of each GPU that is not free again",
            "record": "the directory of the run on this machine",
            "host_logs": "task -> the path of its log on its host",
            "restarts": "how often tasks, or the cluster, started again",
            "hint": "what to do next",
        },
    ),
    "servers": Event(
        "Of `tflaunch up`: all servers listen.",
        {
            "run_id": _RUN,
            "cluster": "job name -> addresses",
            "targets": "task -> `grpc://` and its address",
            "flags": "the flags of the classic trainers",
        },
    ),
    "detached": Event(
        "The run goes on without the launcher, from the start or from now on.",
        {"run_id": _RUN, "tasks": "how many there are", "host": "the host that decides now"},
    ),
    "stopped": Event(
        "Of `tflaunch stop`: what it found.",
        {
            "run_id": _RUN,
            "hosts": "host -> `known` (it had the run), `found` (something was alive), `killed`, `survivors`, `unsure` "
            "(processes of others could not be read), `gpus` (not free again), `restarted` (when the host rebooted "
            "during the run, in epoch seconds; 0: never)",
        },
    ),
    "tensorboard": Event(
        "TensorBoard listens.",
        {"run_id": _RUN, "url": "on this machine", "host": _HOST, "logdir": "what it shows"},
    ),
    "fetched": Event(
        "Outputs have come.",
        {
            "run_id": _RUN,
            "directory": "where they are",
            "files": "how many came",
            "bytes": "how much came",
            "same": "files that were here already",
            "complete": "whether all that was asked for is here",
            "apart": "names whose files lie in a directory for each host",
            "kept": "files here that differ from those of the run, and stay",
            "failed": "HOST:PATH -> why it did not come",
            "left": "HOST:PATH -> why there is no file to bring",
            "hidden": "names with a dot at the beginning, which no pattern names",
            "unmatched": "patterns that no file matches",
            "there": "names in the working directories, if no file matches",
            "unreached": "host -> why not everything came from it",
        },
    ),
    "nothing": Event("Of a dry run: nothing is left to do.", {}),
}

# What `--dry-run --json` prints is one object: the fields of `plan`, of `error` or `failures` where there is no plan,
# or of `nothing`; with these fields besides.
DOCUMENT: Mapping[str, str] = {
    "notes": "sentences",
    "warnings": "sentences",
    "code": "as the event `code`, or null",
}

# Those of a sweep: `plan` is another one there, and it has no `log`.
SWEEP_EVENTS: Mapping[str, Event] = {
    **{name: event for name, event in EVENTS.items() if name != "log"},
    "sweep": Event(
        "The hosts are ready.",
        {
            "run_id": _RUN,
            "total": "how many trials there are",
            "left": "how many are to run",
            "seats": "how many run at a time",
            "metric": "its name, or null",
            "maximize": "whether more is better",
        },
    ),
    "plan": Event(
        "All of `--dry-run`.",
        {
            "run_id": "empty: a new sweep",
            "total": "how many trials there are",
            "left": "how many are to run",
            "seats": "`host` and `gpus` of each",
            "others": "host -> GPUs in use",
            "seed": "that draws the same trials again; null: none are drawn",
            "trials": "`task`, `params`, `args` of each",
        },
    ),
    "trial": Event(
        "A trial has started.",
        {
            "task": "`trial/7`",
            "host": _HOST,
            "gpus": "their labels",
            "attempt": "0, and more after retries",
            "params": "its values",
        },
    ),
    "result": Event(
        "A trial has ended, and will not be tried again: a line of `results.jsonl`.",
        {
            "trial": "its number",
            "params": "its values",
            "metric": "the last value, or null",
            "status": "`succeeded`, `failed` or `stopped` (by `--stop-below`)",
            "exit_code": "of the trial",
            "signal": "the name of the signal that ended it, or null",
            "host": _HOST,
            "gpus": "their labels",
            "seconds": "how long it ran",
            "attempts": "how often it was tried",
            "ended": "when, in epoch seconds",
            "log": "the path of its log on this machine",
            "why": "why it failed, or `--stop-below` has stopped it",
        },
    ),
    "summary": Event(
        "What the sweep has found.",
        {
            "run_id": _RUN,
            "total": "how many trials there are",
            "succeeded": "how many",
            "failed": "how many",
            "stopped": "how many",
            "best": "a result, or null",
            "run_best": "the command that runs the best one again",
            "resume": "the command that goes on with the sweep, or empty",
            "results": "the path of the file with the results",
        },
    ),
}


def disagreement(event: Mapping[str, Any]) -> str:
    """Return how an event differs from the tables; "" if it agrees with one of them."""
    name = event["event"]
    declared = [table[name] for table in (EVENTS, SWEEP_EVENTS) if name in table]
    faults = [fault for each in declared if (fault := _fault(event, each))]
    if not declared:
        return f"{name}: no such event is declared"
    return f"{name}: {faults[0]}" if len(faults) == len(declared) else ""


def _fault(event: Mapping[str, Any], declared: Event) -> str:
    has = event.keys() - {"event", "time"}
    if "warnings" in has:  # of a dry run
        has -= DOCUMENT.keys() - declared.fields.keys()
    if unknown := has - declared.fields.keys():
        return f"undeclared fields: {', '.join(sorted(unknown))}"
    if missing := declared.fields.keys() - has - {*declared.sometimes}:
        return f"missing fields: {', '.join(sorted(missing))}"
    return ""
