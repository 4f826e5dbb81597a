"""The objects in the documents that `--json` prints (json_documents.py)."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from typing_extensions import NotRequired, TypedDict

from tflaunch.documents.json_reports import REPORT_THINGS
from tflaunch.protocol import facts


class ErrorData(TypedDict):
    """Why a host could not be used."""

    message: str
    """a sentence"""
    hint: str
    """what to do, or empty"""


def _of_facts(
    name: str,
    says: str,
    of: type,
    more: Mapping[str, tuple[Any, str]] = {},
    *,
    typed: Mapping[str, Any] = {},
    sometimes: bool = False,
    without: Collection[str] = (),
) -> Any:
    """Make the class of an object that holds these facts (tflaunch.protocol.facts), and `more` fields before them.

    more: field -> its type, and what it says.  typed: the types of facts that hold other objects.
    sometimes: the facts may be missing.
    """
    hints = {field: hint for field, (hint, _) in more.items()}
    texts = {field: text for field, (_, text) in more.items()}
    known = get_type_hints(of, localns=vars(typing))
    for field, meaning in facts.meanings(of).items():
        if field in texts or field in without:
            continue
        hint = typed.get(field, known[field])
        if get_origin(hint) is tuple:  # an array
            hint = list[get_args(hint)[0]]  # type: ignore[misc]
        hints[field] = NotRequired[hint] if sometimes else hint
        texts[field] = meaning
    make: Any = TypedDict
    made = make(name, hints)
    made.__doc__, made.__module__, made.texts = says, __name__, texts
    return made


if TYPE_CHECKING:
    HostData: TypeAlias = dict[str, Any]
    NicData: TypeAlias = dict[str, Any]
    NodeData: TypeAlias = dict[str, Any]
    GpuData: TypeAlias = dict[str, Any]
    InstanceData: TypeAlias = dict[str, Any]
    ProcessData: TypeAlias = dict[str, Any]
    LeaseData: TypeAlias = dict[str, Any]
    WaitingRunData: TypeAlias = dict[str, Any]
else:
    ProcessData = _of_facts(
        "ProcessData",
        "A process on a GPU; empty and null for what a container or another user hides.",
        facts.ProcessFacts,
    )
    LeaseData = _of_facts("LeaseData", "The run that has a GPU.", facts.LeaseFacts)
    WaitingRunData = _of_facts("WaitingRunData", "A run that waits for GPUs.", facts.TicketFacts)
    _STATES = Literal["free", "busy", "leased", "promised", "broken", "mig"]
    _DEVICE = {
        "label": (str, "as people see it: `3`, or `3.1` for MIG instance 1 of GPU 3"),
        "state": (_STATES, "`free`, `busy`, `leased`, `promised` or `broken`; `mig`: see its instances"),
        "memory_free_bytes": (int, "its memory that is not in use"),
    }
    _ON_DEVICE = {
        "processes": list[ProcessData],
        "lease": LeaseData | None,
        "promised": LeaseData | None,
    }
    InstanceData = _of_facts(
        "InstanceData",
        "A MIG instance.",
        facts.DeviceFacts,
        {"gpu": (int, "the index of its GPU"), **_DEVICE},
        typed=_ON_DEVICE,
    )
    GpuData = _of_facts(
        "GpuData",
        "A GPU. null: the GPU or its driver does not say.",
        facts.GpuFacts,
        _DEVICE,
        typed={**_ON_DEVICE, "mig": list[InstanceData], "links": dict[str, str]},
    )
    NicData = _of_facts(
        "NicData",
        "A network interface, or an RDMA device.",
        facts.NicFacts,
        typed={"gpus": dict[str, str]},
    )
    NodeData = _of_facts("NodeData", "A NUMA node of a host.", facts.NodeFacts)
    HostData = _of_facts(
        "HostData",
        "A host, in the order of the hostfile. A host with an `error` has only the first three fields.",
        facts.MachineFacts,
        {
            "host": (str, "its name in the hostfile"),
            "names": (list[str], "all names of that machine in the hostfile; it is listed once"),
            "error": (ErrorData | None, "why it did not answer, or null"),
            "age_s": (NotRequired[float], "how old the answer is, in seconds"),
        },
        typed={
            "gpus": list[GpuData],
            "queue": list[WaitingRunData],
            "nodes": list[NodeData],
            "nics": list[NicData],
        },
        sometimes=True,
        without=("ports", "ports_taken"),  # this probe holds no ports
    )


class CountsData(TypedDict):
    """GPUs by their state."""

    free: int
    """how many GPUs, or MIG instances of GPUs that have some, nobody uses"""
    busy: int
    """how many GPUs, or MIG instances of GPUs that have some, processes use that are no run's"""
    leased: int
    """how many GPUs, or MIG instances of GPUs that have some, runs have"""
    promised: int
    """how many GPUs, or MIG instances of GPUs that have some, are kept for a run that waits"""
    broken: int
    """how many GPUs, or MIG instances of GPUs that have some, cannot be used"""
    models: NotRequired[dict[str, CountsData]]
    """model -> the same for GPUs of that model"""


class UserData(TypedDict):
    """A user who holds GPUs."""

    user: str
    """the account; empty: not shown by the host"""
    gpus: int
    """how many GPUs and MIG instances"""
    hosts: list[str]
    """the hosts that they are on"""
    holds: list[HoldData]
    """each GPU that a run or a process of the user holds"""


class HoldData(TypedDict):
    """One GPU or MIG instance, held by one run or one process."""

    user: str
    """who holds it"""
    host: str
    """its host"""
    gpu: str
    """its label"""
    uuid: str
    """NVML's UUID"""
    run: str
    """the run's id; empty: a process that is no run's"""
    pid: int
    """of the process; of a run 0"""
    command: str
    """of the process, without its arguments"""
    since: float | None
    """since when, in epoch seconds by the host's clock, or null"""
    age_s: float | None
    """for how many seconds, or null"""
    memory_bytes: int | None
    """how much of its memory is in use, or null"""


class RunData(TypedDict):
    """A run."""

    run_id: str
    """its id"""
    state: str
    """`starting`, `running`; `succeeded`, `failed`, `stopped`, `ended`; `lost` (it did not end in order),
    `unknown`
    """
    alive: bool
    """whether something of it is known to live"""
    running: int
    """how many of its tasks run"""
    detached: bool
    """whether it goes on without a launcher"""
    user: str
    """whose account on the hosts it has"""
    launcher: str
    """who started it where: `ada@laptop`"""
    command: list[str]
    """the command that started it, in words, without values that may be secret"""
    planned: float
    """when its plan was made, in epoch seconds; 0: not known"""
    started: float | None
    """when, in epoch seconds, or null"""
    ended: float | None
    """when, in epoch seconds, or null"""
    tasks: list[TaskData]
    """its tasks"""
    hosts: list[PartData]
    """the part of each host"""
    first_failure: str | None
    """the task that failed first, or null"""
    outcome: dict[str, Any]
    """how it ended, as its launcher or coordinator has written it: `status`, `exit_code` and more; empty while
    it is alive
    """
    left_out: dict[str, str]
    """host -> why the run goes without it"""
    holds: dict[str, Any] | None
    """what the watchdog says of it now: `age_s`, `sentences`, `blind` (what it cannot see); or null"""
    lease_s: float
    """how long its hosts go on without hearing of its launcher or coordinator, in seconds"""
    stopped_by: str
    """who has asked for its end, if that is not its user"""
    moved: str
    """a sentence, if the task that writes checkpoints is on another host than before"""


class TaskData(TypedDict):
    """A task of a run."""

    task: str
    """`worker/0`"""
    host: str
    """its host"""
    state: str
    """`waiting`, `staged` (ready to start), `running`, `exited`, `lost` (nobody saw its end) or `unknown`"""
    attempts: int
    """how often it was started"""
    pid: int | None
    """of its process, or null"""
    since: float | None
    """since when it is staged or runs, in epoch seconds, or null"""
    code: int | None
    """its exit code, or null"""
    signal: int | None
    """the number of the signal that ended it, or null"""
    signal_name: str
    """its name, or empty"""
    exit_code: int | None
    """as a shell gives it; null: it has not exited"""
    failed: bool
    """whether it exited by itself, and not with 0"""
    stopped: bool
    """whether tflaunch ended it"""
    seconds: float | None
    """how long it ran, or null"""
    ended: float | None
    """when, in epoch seconds, or null"""
    port: int | None
    """in the cluster, or null"""
    gpus: list[str]
    """the UUIDs of its GPUs"""
    gpu_labels: list[str]
    """the same as people see them"""
    cpus: str
    """the CPUs that it is bound to: `0-7,64-71`, or empty"""
    log: str
    """the path of its log on its host"""
    log_bytes: int
    """how long its logs are, those of all attempts together"""
    output: float | None
    """when it last wrote something, in epoch seconds, or null"""
    tail: str
    """`status`: the end of the log of a task that failed; else empty"""
    progress: ProgressData | None
    """how far it is, or null"""
    facts: dict[str, Any]
    """what its host noticed of its end, such as `oom_kills`"""
    before: list[dict[str, Any]]
    """how earlier attempts ended: `attempt`, `code`, `signal_name`, `seconds`, `ended`"""


class ProgressData(TypedDict):
    """How far a task that runs is, as its log tells."""

    at: str
    """`step 402/1000`, `epoch 3/10`"""
    share: float
    """of all, from 0 to 1"""
    left_s: float | None
    """how long it takes yet, if the log tells that"""


class PartData(TypedDict):
    """A host's part of a run."""

    host: str
    """its name"""
    state: str
    """`alive`, `ended` (in order), `lost`, `strays` (the agent is dead, processes of the run live); `elsewhere`,
    `unreachable`, `unasked`, `gone`: not known
    """
    directory: str
    """of the run, on the host"""
    agent: int
    """the pid of its agent; 0: none"""
    strays: list[str]
    """processes of the run that live without an agent"""
    asked: str
    """the host that answered: mostly the same"""
    restarted: float | None
    """when the machine rebooted, which ended its part, in epoch seconds, or null"""
    why: str
    """what ended its part, if that was not the end of the run: its lease, its guard; else empty"""


class StackedTaskData(TypedDict):
    """A task, with its processes."""

    task: str
    """`worker/0`"""
    host: str
    """its host"""
    processes: list[StackedProcessData]
    """its own process first, then those that it started"""


class StackedProcessData(TypedDict):
    """A process of a task."""

    pid: int
    """on its host"""
    name: str
    """the kernel's name for it"""
    threads: list[ThreadData]
    """its threads, as the kernel sees them"""
    stacks: list[StackData] | None
    """the Python stacks of its threads, or null"""
    why_none: str
    """why there are no stacks, or none of the first thread; or empty"""
    age_s: float
    """how old the stacks are, in seconds"""


class ThreadData(TypedDict):
    """A thread."""

    tid: int
    """the kernel's number"""
    name: str
    """its name"""
    state: str
    """the kernel's letter: `R`, `S`, `D` and so on"""
    waits_in: str
    """the kernel's function that it waits in, or empty"""
    cpu_s: float
    """the CPU time that it has used, in seconds"""


class StackData(TypedDict):
    """A Python stack."""

    main: bool
    """whether it is the main thread's"""
    threads: int
    """how many threads have it"""
    frames: list[FrameData]
    """the innermost last"""


class FrameData(TypedDict):
    """A call on a stack."""

    file: str
    """its source"""
    line: int
    """in the source"""
    function: str
    """its name"""
    own: bool
    """whether it is the program's, not a library's"""


class FindingData(TypedDict):
    """Something that is not as it should be."""

    level: Literal["error", "warning", "note"]
    """`error`, `warning` or `note`"""
    topic: str
    """for scripts: `connection`, `setup`, `tensorflow`, `gpus`, `ports`, `exposed` and so on"""
    hosts: list[str]
    """where"""
    what: str
    """a sentence"""
    fix: str
    """what to do, or empty"""
    lines: list[str]
    """what the task printed on the first of these hosts, or how the hosts differ"""


class CheckedHostData(TypedDict):
    """A host that was checked."""

    host: str
    """its name"""
    level: Literal["error", "warning", "note"] | None
    """the worst of its findings: `error`, `warning` or `note`; null: there is none"""
    error: ErrorData | None
    """why it did not answer, or null"""
    versions: dict[str, str]
    """name -> version, of what should be the same on all hosts"""
    clock: ClockData | None
    """how far its clock is ahead of this machine's, or null"""
    interface: str | None
    """the network interface that other hosts reach it by, or null"""
    interfaces: NotRequired[list[dict[str, Any]]]
    """each with `name`, `addresses`, `mtu`, `mbit_s`, `networks`"""
    infiniband: NotRequired[list[str]]
    """the names of its InfiniBand adapters"""
    disks: NotRequired[list[dict[str, Any]]]
    """each with `path`, `free_bytes`, `free_files`"""
    logout: NotRequired[dict[str, Any]]
    """whether logging out kills what was started: `kills`, `session`, `user`, `linger`"""
    ports: NotRequired[int]
    """how many ports it found free"""
    agent_python: NotRequired[str]
    """the version of the Python that answered"""
    cuda: NotRequired[str]
    """the newest CUDA that the driver supports, or empty"""
    gpus: NotRequired[list[dict[str, Any]]]
    """each with `label`, `name`, `busy` (why a run must not take it, or empty)"""
    task: NotRequired[CheckedTaskData | None]
    """how the task of the check ended"""


class ClockData(TypedDict):
    """A clock, beside this machine's."""

    ahead_s: float
    """how many seconds it is ahead"""
    within_s: float
    """how wrong that may be, in seconds"""


class CheckedTaskData(TypedDict):
    """The task of a check."""

    code: int | None
    """its exit code, or null"""
    signal: str
    """the name of the signal that ended it, or empty"""
    seconds: float
    """how long it ran"""
    late: bool
    """whether it was ended because it took too long"""
    report: dict[str, Any] | None
    """what it said: `python`, `executable`, `limits`, `proxies`, `versions`, `error`, `tensorflow` (`seconds`,
    `build`, `gpus`); or null
    """
    lines: list[str]
    """the last lines that it printed"""


class RowData(TypedDict):
    """One fact, on each host that reported it."""

    name: str
    """such as `TensorFlow`"""
    common: str
    """the value on more than half of the hosts, or empty"""
    odd: dict[str, list[str]]
    """each other value -> its hosts"""
    values: dict[str, str]
    """host -> value"""


class ThroughputData(TypedDict):
    """What one host could send to another one."""

    bits_per_s: float | None
    """what arrived, or null"""
    rtt_ms: float
    """the shortest round trip meanwhile, in milliseconds"""
    lost: int
    """packets that were sent again"""
    failed: list[str] | None
    """why nothing arrived: `[kind, sentence]`, or null"""


class CheckedNetworkData(TypedDict):
    """A network that all checked hosts are in, beside that of their addresses."""

    network: str
    """`10.2.0.0/16`"""
    interfaces: dict[str, str]
    """host -> its interface there"""
    mbit_s: int | None
    """what the slowest of them says, or null"""
    dials: dict[str, dict[str, dict[str, Any]]]
    """host -> other host -> what came of its call there: `address`, `port`, `result`, `rtt_ms`"""
    bandwidth: dict[str, dict[str, ThroughputData]]
    """with `--bandwidth`: host -> other host -> what it could send there"""


class PlaceData(TypedDict):
    """A directory of runs."""

    hosts: list[str]
    """those that share it; none: this machine's records"""
    directory: str
    """its path"""
    removed: dict[str, int]
    """run -> bytes that were freed"""
    failed: dict[str, str]
    """run -> why it could not be removed"""
    code: dict[str, int]
    """shipped code that was removed: `files`, `bytes`"""
    environments: dict[str, int]
    """environments of `--requirements` that were removed: `files`, `bytes`"""
    rest_bytes: int
    """freed: what an earlier `clean` that was interrupted left"""
    freed_bytes: int
    """all that was freed"""
    stay: dict[str, int]
    """what stays: `runs`, `bytes`"""
    unread: list[str]
    """what could not be measured, and why"""
    too_large_bytes: int
    """how much more there is than `--max-size` allows"""


class FileData(TypedDict):
    """A file of the configuration."""

    path: str
    """its path"""
    there: bool
    """whether there is such a file"""


class SettingData(TypedDict):
    """A value of the configuration."""

    key: str
    """`run.grace`, `banner`"""
    value: Any
    """as the file has it"""
    file: str
    """the file that says so"""
    line: int
    """and the line"""


# Each by the name that the documentation has for it.
THINGS: Mapping[str, type] = {
    "error": ErrorData,
    "host": HostData,
    "node": NodeData,
    "nic": NicData,
    "gpu": GpuData,
    "instance": InstanceData,
    "process": ProcessData,
    "lease": LeaseData,
    "waiting run": WaitingRunData,
    "counts": CountsData,
    "user": UserData,
    "hold": HoldData,
    "run": RunData,
    "task": TaskData,
    "progress": ProgressData,
    "part": PartData,
    "stacked task": StackedTaskData,
    "stacked process": StackedProcessData,
    "thread": ThreadData,
    "stack": StackData,
    "frame": FrameData,
    "finding": FindingData,
    "checked host": CheckedHostData,
    "clock": ClockData,
    "checked task": CheckedTaskData,
    "row": RowData,
    "throughput": ThroughputData,
    "checked network": CheckedNetworkData,
    "place": PlaceData,
    "file": FileData,
    "setting": SettingData,
    **REPORT_THINGS,
}
