"""What `--json` prints one a line: each event with its fields.

The reference of the documentation and the JSON Schemas are made from these classes, and the tests compare every event
that they see with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Union

from typing_extensions import NotRequired, TypedDict


class _Told(TypedDict):
    time: float
    """when it was told, in epoch seconds"""


class PlannedTask(TypedDict):
    """A task of a plan."""

    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    address: str
    """where other tasks reach it"""
    port: int | None
    """in the cluster; null: not part of it"""
    gpus: list[str]
    """the UUIDs of its GPUs"""
    gpu_labels: list[str]
    """the same as people see them"""
    cpus: str
    """the CPUs that it is bound to: `0-7,64-71`; empty: it may use all"""
    numactl: str
    """the option of numactl that it is started with, as `--membind=0`; empty: it is started without"""
    argv: list[str]
    """its command line"""
    env: dict[str, str]
    """the variables that it gets"""
    setup: list[str]
    """the shell lines before it"""
    cwd: str | None
    """where it runs; null: where the shipped code is"""
    container: str
    """the image, or empty"""
    mounts: list[str]
    """what the container sees of the host"""


class TaskEnd(TypedDict):
    """How a task has ended."""

    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    code: int | None
    """its exit code, or null"""
    signal: str | None
    """the name of the signal that ended it, or null"""
    seconds: float
    """how long it ran"""
    stopped: bool
    """whether tflaunch ended it"""
    attempt: int
    """0, and more after restarts"""


class FailedHosts(TypedDict):
    """Hosts that failed of one cause."""

    hosts: list[str]
    """their names"""
    folded: str
    """the same as one text: `gpu[03-04]`"""
    cause: str
    """a sentence"""
    hint: str
    """what to do, or empty"""
    lines: list[str]
    """for each host what differs; mostly none"""


class PlanEvent(_Told):
    """What the run will do: all of `--dry-run`."""

    event: Literal["plan"]
    run_id: str
    """the run's id"""
    cluster: dict[str, list[str]]
    """job name -> the addresses of its tasks, in order"""
    notes: list[str]
    """sentences that the user should know"""
    choices: list[str]
    """what the program's text has decided, and why"""
    left_out: dict[str, str]
    """hosts that could not be reached, or were lost -> why; the run does without them"""
    tasks: list[PlannedTask]
    """for each task: `task`, `host`, `address`, `port` (null: not part of the cluster), `gpus` (UUIDs),
    `gpu_labels` (the same as people see them: `3`, or `3.1` for MIG instance 1 of GPU 3), `cpus`, `numactl`,
    `argv`, `env`, `setup`, `cwd` (null: where the shipped code is), `container` (image or empty), `mounts`
    """


class CodeEvent(_Told):
    """What is shipped, and what stays on this machine."""

    event: Literal["code"]
    directory: str
    """the code directory"""
    program: str
    """the file of the program in it"""
    digest: str
    """the first 40 digits of a SHA-256 of what is shipped"""
    files: int
    """how many files are shipped"""
    bytes: int
    """how large they are"""
    modules_only: str
    """what the directory is, if only the program and the modules that it imports are shipped; else empty"""
    ignored: int
    """how many files ignore files have left out"""
    caches: int
    """how many caches were left out"""
    secrets: list[dict[str, str]]
    """what was left out because it looks like a secret: `path`, `why` of each"""
    fetched: list[str]
    """paths that were left out because `fetch` has brought them"""
    links: dict[str, str]
    """path -> where to, of links that are shipped as links"""
    skipped: list[str]
    """paths that are neither files, directories nor links"""
    shipped: NotRequired[list[dict[str, Any]]]
    """with `--show-files`: each file with `path`, `kind` (file, executable, link, directory), `bytes` or null,
    `goal` (of a link) or null
    """
    left: NotRequired[list[dict[str, str]]]
    """with `--show-files`: each file that stays, with `path`, `kind`, `why`"""


class ShippedEvent(_Told):
    """The code is on all hosts."""

    event: Literal["shipped"]
    directory: str
    """as in code"""
    digest: str
    """as in code"""
    files: int
    """as in code"""
    bytes: int
    """as in code"""
    sent: dict[str, list[int]]
    """host -> `[files, bytes]` that it lacked"""


class PhaseEvent(_Told):
    """A step of the start goes on; one event for each change of `done`."""

    event: Literal["phase"]
    name: str
    """the step"""
    done: int
    """how much of it is done"""
    total: int
    """of how much"""
    note: str
    """what the step waits for, or what is missing"""
    bytes: NotRequired[int]
    """bytes moved so far, where the step moves files"""
    total_bytes: NotRequired[int]
    """of how many"""


class WaitingEvent(_Told):
    """The run waits for GPUs; one event for each change."""

    event: Literal["waiting"]
    place: int
    """in the queue: 1 is the next to be served"""
    behind: list[str]
    """the runs before it"""
    free: int
    """how many GPUs that it could take are free"""
    needed: int
    """how many it needs"""
    held: list[list[str]]
    """`[GPUs, why]` of those in use"""
    lost: list[str]
    """hosts that cannot be asked"""
    why: str
    """where as many are free as it needs: why it cannot take them"""


class NoteEvent(_Told):
    """Something happened."""

    event: Literal["note"]
    text: str
    """a sentence"""


class SayEvent(_Told):
    """What tflaunch does now because the user wants it."""

    event: Literal["say"]
    text: str
    """a sentence"""


class WarnEvent(_Told):
    """Something that the user should look at."""

    event: Literal["warn"]
    text: str
    """a sentence"""


class StartedEvent(_Told):
    """A task runs."""

    event: Literal["started"]
    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    pid: int
    """its process there"""
    attempt: int
    """0, and more after restarts"""


class LogEvent(_Told):
    """A line that a task has written."""

    event: Literal["log"]
    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    line: str
    r"""without its end; bytes that are not UTF-8 appear as `\xff`, control sequences stay"""
    partial: NotRequired[bool]
    """true while the line is being rewritten (a progress bar)"""


class GapEvent(_Told):
    """Part of a log cannot be shown."""

    event: Literal["gap"]
    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    bytes: int
    """how much is missing"""


class LogEndEvent(_Told):
    """Nothing more comes from the task."""

    event: Literal["log_end"]
    task: str
    """the task: `worker/0`"""


class ExitedEvent(_Told):
    """A task has ended."""

    event: Literal["exited"]
    task: str
    """the task: `worker/0`"""
    host: str
    """the host"""
    code: int | None
    """its exit code, or null"""
    signal: str | None
    """the name of the signal that ended it, or null"""
    seconds: float
    """how long it ran"""
    stopped: bool
    """whether tflaunch ended it"""
    attempt: int
    """0, and more after restarts"""
    missing: int
    """bytes of its output that come later; 0: all of it came before"""


class UnreachableEvent(_Told):
    """The launcher does not reach a host; its tasks run on, and their output comes later."""

    event: Literal["unreachable"]
    host: str
    """the host"""
    reason: str
    """why"""


class BackEvent(_Told):
    """The launcher reaches the host again."""

    event: Literal["back"]
    host: str
    """the host"""
    seconds: float
    """after so long"""


class LostEvent(_Told):
    """The launcher has given the host up."""

    event: Literal["lost"]
    host: str
    """the host"""
    reason: str
    """why"""


class FailuresEvent(_Told):
    """Hosts could not be used, or could not start their tasks."""

    event: Literal["failures"]
    exit_code: int
    """of tflaunch"""
    exit_code_of: Literal["tflaunch"]
    """`tflaunch`"""
    message: str
    """a sentence"""
    hint: str
    """what to do"""
    rows: list[FailedHosts]
    """for each cause: `hosts`, `folded` (the same as one text: `gpu[03-04]`), `cause`, `hint`, `lines` (for each
    host what differs: the fingerprint of an unknown host key; mostly none)
    """
    unconfirmed: dict[str, str]
    """host -> why something may still run there"""


class ErrorEvent(_Told):
    """What was asked for cannot be done."""

    event: Literal["error"]
    kind: str
    """the class of the error"""
    message: str
    """a sentence"""
    hint: str
    """what to do"""
    exit_code: int
    """of tflaunch"""
    exit_code_of: Literal["tflaunch"]
    """`tflaunch`"""
    problems: list[dict[str, Any]]
    """of a file: `where`, `line`, `column`, `message` of each"""


class ReportEvent(_Told):
    """How the run ended: the last event of a run."""

    event: Literal["report"]
    run_id: str
    """the run's id"""
    status: Literal["succeeded", "failed", "interrupted"]
    """`succeeded`, `failed` or `interrupted`"""
    exit_code: int
    """of tflaunch"""
    exit_code_of: str
    """the task that failed first and ended with it, else `tflaunch`"""
    seconds: float
    """how long the run took"""
    exits: list[TaskEnd]
    """each task's end, as in exited"""
    first_failure: dict[str, Any] | None
    """null; a task: as in exited, with `tail` (its last lines) and `error` (the line of its log that says why,
    or empty); a host: as in lost; a time limit: `reason`, `tasks`, `states`, `stacks` (task -> lines);
    `--require-gpu` or `--stop-on-nan`: `reason`, `tasks`, `states` (empty), `exit_code`; a slot that its engine
    has taken back: `reason`, `host`, `exit_code` 75, `tasks` and `states` (empty)
    """
    unverified: dict[str, str]
    """host -> why tflaunch could not check that nothing is left"""
    survivors: dict[str, list[str]]
    """host -> processes that are still alive"""
    gpus: dict[str, list[dict[str, Any]]]
    """host -> `text` and `own` (the run itself is on it) of each GPU that is not free again"""
    record: str
    """the directory of the run on this machine"""
    host_logs: dict[str, str]
    """task -> the path of its log on its host"""
    restarts: int
    """how often tasks, or the cluster, started again"""
    hint: str
    """what to do next"""


class ServersEvent(_Told):
    """Of `tflaunch up`: all servers listen."""

    event: Literal["servers"]
    run_id: str
    """the run's id"""
    cluster: dict[str, list[str]]
    """job name -> addresses"""
    targets: dict[str, str]
    """task -> `grpc://` and its address"""
    flags: Any
    """the flags of the classic trainers"""


class DetachedEvent(_Told):
    """The run goes on without the launcher, from the start or from now on."""

    event: Literal["detached"]
    run_id: str
    """the run's id"""
    tasks: int
    """how many there are"""
    host: str
    """the host that decides now; \"\" where the launcher goes on without its terminal"""


class StoppedEvent(_Told):
    """Of `tflaunch stop`: what it found."""

    event: Literal["stopped"]
    run_id: str
    """the run's id"""
    hosts: dict[str, dict[str, Any]]
    """host -> `known` (it had the run), `found` (something was alive), `killed`, `survivors`, `unsure`
    (a process that hides would not be found) and `unsure_why`, `gpus` (not free again), `restarted` (when the host
    rebooted during the run, in epoch seconds; 0: never)
    """


class TensorboardEvent(_Told):
    """TensorBoard listens."""

    event: Literal["tensorboard"]
    run_id: str
    """the run's id"""
    url: str
    """on this machine"""
    host: str
    """the host"""
    logdir: str
    """what it shows"""


class FetchedEvent(_Told):
    """Outputs have come."""

    event: Literal["fetched"]
    run_id: str
    """the run's id"""
    directory: str
    """where they are"""
    files: int
    """how many came"""
    bytes: int
    """how much came"""
    same: int
    """files that were here already"""
    complete: bool
    """whether all that was asked for is here"""
    apart: list[str]
    """names whose files lie in a directory for each host"""
    kept: list[str]
    """files here that differ from those of the run, and stay"""
    failed: dict[str, str]
    """HOST:PATH -> why it did not come"""
    left: dict[str, str]
    """HOST:PATH -> why there is no file to bring"""
    hidden: list[str]
    """names with a dot at the beginning, which no pattern names"""
    unmatched: list[str]
    """patterns that no file matches"""
    there: list[str]
    """names in the working directories, if no file matches"""
    unreached: dict[str, str]
    """host -> why not everything came from it"""


class NothingEvent(_Told):
    """Of a dry run: nothing is left to do."""

    event: Literal["nothing"]


# What `tflaunch run --json` prints, and the runs of tflaunch.api give.
Event = Union[  # noqa: UP007  pydantic and mypy take either
    PlanEvent,
    CodeEvent,
    ShippedEvent,
    PhaseEvent,
    WaitingEvent,
    NoteEvent,
    SayEvent,
    WarnEvent,
    StartedEvent,
    LogEvent,
    GapEvent,
    LogEndEvent,
    ExitedEvent,
    UnreachableEvent,
    BackEvent,
    LostEvent,
    FailuresEvent,
    ErrorEvent,
    ReportEvent,
    ServersEvent,
    DetachedEvent,
    StoppedEvent,
    TensorboardEvent,
    FetchedEvent,
    NothingEvent,
]


class PlanOfSweepEvent(_Told):
    """All of `--dry-run`."""

    event: Literal["plan"]
    run_id: str
    """empty: a new sweep"""
    total: int
    """how many trials there are"""
    left: int
    """how many are to run"""
    seats: list[dict[str, Any]]
    """`host` and `gpus` of each"""
    others: dict[str, Any]
    """host -> GPUs in use"""
    seed: int | None
    """that draws the same trials again; null: none are drawn"""
    trials: list[dict[str, Any]]
    """`task`, `params`, `args` of each"""


class SweepEvent(_Told):
    """The hosts are ready."""

    event: Literal["sweep"]
    run_id: str
    """the run's id"""
    total: int
    """how many trials there are"""
    left: int
    """how many are to run"""
    seats: int
    """how many run at a time"""
    metric: str | None
    """its name, or null"""
    maximize: bool
    """whether more is better"""


class TrialEvent(_Told):
    """A trial has started."""

    event: Literal["trial"]
    task: str
    """`trial/7`"""
    host: str
    """the host"""
    gpus: list[str]
    """their labels"""
    attempt: int
    """0, and more after retries"""
    params: dict[str, Any]
    """its values"""


class ResultEvent(_Told):
    """A trial has ended, and will not be tried again: a line of `results.jsonl`."""

    event: Literal["result"]
    trial: int
    """its number"""
    params: dict[str, Any]
    """its values"""
    metric: float | None
    """the last value, or null"""
    status: Literal["succeeded", "failed", "stopped"]
    """`succeeded`, `failed` or `stopped` (by `--stop-below`)"""
    exit_code: int
    """of the trial"""
    signal: str | None
    """the name of the signal that ended it, or null"""
    host: str
    """the host"""
    gpus: list[str]
    """their labels"""
    seconds: float
    """how long it ran"""
    attempts: int
    """how often it was tried"""
    ended: float
    """when, in epoch seconds"""
    log: str
    """the path of its log on this machine"""
    why: str
    """why it failed, or `--stop-below` has stopped it"""


class SummaryEvent(_Told):
    """What the sweep has found."""

    event: Literal["summary"]
    run_id: str
    """the run's id"""
    total: int
    """how many trials there are"""
    succeeded: int
    """how many"""
    failed: int
    """how many"""
    stopped: int
    """how many"""
    best: dict[str, Any] | None
    """a result, or null"""
    run_best: list[str]
    """the command that runs the best one again"""
    resume: str
    """the command that goes on with the sweep, or empty"""
    results: str
    """the path of the file with the results"""


EVENTS: Mapping[str, type] = {
    "plan": PlanEvent,
    "code": CodeEvent,
    "shipped": ShippedEvent,
    "phase": PhaseEvent,
    "waiting": WaitingEvent,
    "note": NoteEvent,
    "say": SayEvent,
    "warn": WarnEvent,
    "started": StartedEvent,
    "log": LogEvent,
    "gap": GapEvent,
    "log_end": LogEndEvent,
    "exited": ExitedEvent,
    "unreachable": UnreachableEvent,
    "back": BackEvent,
    "lost": LostEvent,
    "failures": FailuresEvent,
    "error": ErrorEvent,
    "report": ReportEvent,
    "servers": ServersEvent,
    "detached": DetachedEvent,
    "stopped": StoppedEvent,
    "tensorboard": TensorboardEvent,
    "fetched": FetchedEvent,
    "nothing": NothingEvent,
}
# Those of a sweep: `plan` is another one there, and it has no `log`.
SWEEP_EVENTS: Mapping[str, type] = {
    **{name: event for name, event in EVENTS.items() if name != "log"},
    "plan": PlanOfSweepEvent,
    "sweep": SweepEvent,
    "trial": TrialEvent,
    "result": ResultEvent,
    "summary": SummaryEvent,
}
# Those that are shown even while others wait for the output of a task that has ended.
AT_ONCE = frozenset(("phase", "waiting", "say", "warn", "log_end", "unreachable", "back", "lost"))


class DryRun(TypedDict):
    """What `--dry-run --json` has besides the fields of `plan`, of `error` or `failures`, or of `nothing`."""

    notes: list[str]
    """sentences"""
    warnings: list[str]
    """sentences"""
    code: CodeEvent | None
    """as the event `code`, or null"""
