"""What is in the documents that tell how fast a run was and what it used: of `report` and of `tune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import TypedDict

# What people read for a status, or the kind of a moment, that would say little to them.
WORDS: Mapping[str, str] = {"interrupted": "stopped", "say": "told", "unknown": "has no known end"}


class VerdictData(TypedDict):
    """What stands out in a run."""

    kind: Literal["failure", "warning", "straggler", "idle GPUs", "slow start"]
    """`failure`, `warning`, `straggler`, `idle GPUs` or `slow start`"""
    text: str
    """a sentence with its numbers"""
    advice: str
    """what to do, or empty"""


class MomentData(TypedDict):
    """Something that happened in a run."""

    at: float
    """when, in epoch seconds"""
    kind: str
    """a step of the start (`connecting`), an event (`warn`, `lost`), or `started`, `printed`, `listens`, `peers`,
    `restarted`, `ended`"""
    text: str
    """what it was"""
    lasted_s: float | None
    """how long it took, in seconds, or null"""


class ReportedTrialData(TypedDict):
    """A trial of a sweep."""

    params: dict[str, Any]
    """its values"""
    metric: float | None
    """the sweep's metric, or null"""
    status: Literal["running", "succeeded", "failed", "stopped"]
    """`running` until it has a result: it may also have been lost with its host; `stopped`: by --stop-below or
    --pruner"""
    why: str
    """why it failed or was stopped, or empty"""


class ReportedTaskData(TypedDict):
    """A task of a run, and what it used."""

    task: str
    """`worker/0`"""
    host: str
    """its host"""
    gpus: list[str]
    """its GPUs, as people see them"""
    means: dict[str, float]
    """column of the samples -> its mean while the task ran; columns without a value are left out"""
    steps_s: float | None
    """steps in a second, by those that its log names, or null"""
    step: float | None
    """the last step that its log named, or null"""
    loss: float | None
    """the last loss that its log named, or null"""
    restarts: int
    """how often it was started again"""
    end: dict[str, Any] | None
    """`code`, `signal`, `seconds`, `stopped`, `attempt`, as in the event `exited`; null: it has not ended, or that is
    not known"""
    trial: ReportedTrialData | None
    """of a sweep: which trial it is, or null"""


class ReportedHostData(TypedDict):
    """A host of a run, and how its programs had to wait."""

    host: str
    """its name"""
    means: dict[str, float]
    """column of the samples' hosts -> its mean while tasks ran"""
    most: dict[str, float]
    """the same for its largest value"""


class SamplesData(TypedDict):
    """What the tasks used, over time, and how programs of their hosts had to wait."""

    began: float
    """when the first bin began, in epoch seconds"""
    every_s: float
    """how long a bin is, in seconds"""
    columns: dict[str, str]
    """name -> what it holds, in the order of the values"""
    tasks: list[str]
    """the tasks, by their numbers in the bins"""
    bins: list[list[Any]]
    """each `[number, [task, value, ...], ...]`; null: not known; those at the end of a row may be missing"""
    host_columns: dict[str, str]
    """the same of hosts"""
    hosts: list[str]
    """the hosts, by their numbers in their bins"""
    host_bins: list[list[Any]]
    """each `[number, [host, value, ...], ...]`; of hosts whose kernel tells it (PSI)"""


class ReportedRunData(TypedDict):
    """A run, as this machine has kept it."""

    run_id: str
    """its id"""
    status: Literal["running", "detached", "succeeded", "failed", "interrupted", "unknown"]
    """`succeeded`, `failed` or `interrupted` once it is over; `running`; `detached`: it goes on, or went on, without
    its launcher; `unknown`: its launcher was killed"""
    exit_code: int | None
    """of tflaunch, or null"""
    began: float
    """when, in epoch seconds"""
    seconds: float | None
    """how long it took, or null"""
    verdicts: list[VerdictData]
    """what stands out, three at most"""
    timeline: list[MomentData]
    """what happened, in order"""
    tasks: list[ReportedTaskData]
    """its tasks, in order"""
    hosts: list[ReportedHostData]
    """those of its hosts of which there are samples"""
    command: list[str]
    """the launcher's command line, without values of variables"""
    directory: str
    """where it was given"""
    programs: dict[str, list[str]]
    """job -> the command line of its first task"""
    code: str | None
    """the digest of the code that was shipped, or null"""
    versions: dict[str, str]
    """`tflaunch`: the version that started it"""
    samples: SamplesData | None
    """what the tasks used, over time, or null"""
    missing: list[str]
    """sentences: what is not in this report, and why"""


class ComparedData(TypedDict):
    """A number of two runs."""

    what: str
    """what it is, with its unit"""
    values: list[float | None]
    """of the first run and of the second; null: not known"""
    ratio: float | None
    """the second by the first, or null"""


class RoundData(TypedDict):
    """A round of a search for the fastest layout."""

    layouts: int
    """how many it tries"""
    steps: int
    """how many steps of each are measured"""


class TryData(TypedDict):
    """A run of a layout."""

    round: int
    """from 1"""
    run_id: str
    """its run; empty where it did not fit"""
    rate: float | None
    """steps in a second, or null"""
    steps: float
    """how many were measured"""
    seconds: float
    """in how long"""
    cut_short: bool
    """whether it was ended early, as it was far behind the others"""


class LayoutData(TypedDict):
    """A layout that was tried."""

    layout: dict[str, Any]
    """what it says of `ps`, `workers`, `ps_hosts`, `worker_hosts`, `place` and `threads`; the rest is as `tflaunch run`
    has it"""
    options: list[str]
    """the same as options of `tflaunch run`"""
    tasks: dict[str, int]
    """job -> how many tasks it had"""
    hosts: int | None
    """on how many hosts they ran, or null"""
    rate: float | None
    """steps in a second, of all workers together, in its last try; null: `why` says why not"""
    low: float | None
    """the same in the slowest quarter of the time, or null"""
    high: float | None
    """in the fastest quarter, or null"""
    predicted: float | None
    """what the other layouts say of its rate, or null"""
    global_steps: bool
    """whether the steps are those of a counter that all tasks share"""
    limits: list[str]
    """what held it up, in the words of the warnings of a run"""
    notes: list[str]
    """what else there is to know of its rate"""
    why: str
    """why there is no rate, or empty"""
    best: bool
    """whether it is the fastest, or no slower than the spread tells"""
    tries: list[TryData]
    """its runs"""


# Each by the name that the documentation has for it.
REPORT_THINGS: Mapping[str, type] = {
    "reported run": ReportedRunData,
    "verdict": VerdictData,
    "moment": MomentData,
    "reported trial": ReportedTrialData,
    "reported task": ReportedTaskData,
    "reported host": ReportedHostData,
    "samples": SamplesData,
    "compared": ComparedData,
    "round": RoundData,
    "layout": LayoutData,
    "try": TryData,
}
