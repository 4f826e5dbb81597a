"""Options of the verbs that start no tasks, of which a configuration may set some."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from tflaunch.inputs.options.declared import NOWHERE, In, Part, option
from tflaunch.inputs.options.groups import OUTPUT, ConnectionOptions, EndOptions, OutputOptions
from tflaunch.inputs.options.values import TimeParser

LinesOptions = Annotated[OutputOptions, Part("show_host", "json")]
GraceOptions = Annotated[EndOptions, Part("grace")]
QuickOptions = Annotated[ConnectionOptions, Part(without=("connect_timeout",))]


@dataclass(repr=False, eq=False)
class AnswerOptions:
    """How long a host may take."""

    also_in = In.CONFIG

    timeout: float = option(15.0, parser=TimeParser(1), help="Time for one host to connect and answer.")


InitAnswerOptions = Annotated[
    AnswerOptions, Part(default={"timeout": 60.0}, help={"timeout": "Time for each host to say what it has."})
]


class SortChoice(str, Enum):
    """Values of --sort."""

    host = "host"
    memory = "memory"
    utilization = "utilization"
    temperature = "temperature"


@dataclass(repr=False, eq=False)
class ListOptions:
    """Which GPUs to show, and in which order."""

    panel = "Which GPUs"
    also_in = NOWHERE

    free: bool = option(False, help="Only GPUs that nobody uses.")
    gpu_model: str = option(
        "", metavar="TEXT", help="Only GPUs with this in their name: H100.", complete="gpu_models"
    )
    min_free: str = option("", metavar="SIZE", help="Only GPUs with at least this much free memory: 40GiB")
    only_hosts: str = option(
        "",
        "--hosts",
        "-H",
        metavar="PATTERN",
        help="Only these hosts: names, ranges, globs, label=value; without HOSTS: or those of a hostfile.",
        complete="hosts",
    )
    sort: SortChoice = option(
        SortChoice.host,
        help="Most free memory, least utilization or highest temperature first.",
        also_in=In.CONFIG,
    )


@dataclass(repr=False, eq=False)
class CheckOptions:
    """What to check, and how strictly."""

    also_in = NOWHERE

    tensorflow: bool = option(
        True, "--tensorflow/--no-tensorflow", help="Import TensorFlow on every host, as a task would."
    )
    timeout: float = option(
        120.0,
        parser=TimeParser(1),
        help="Time for a host's `setup:`, and again for the import.",
        also_in=In.CONFIG,
    )
    strict: bool = option(False, help="Warnings count as errors.", also_in=In.CONFIG)
    bandwidth: bool = option(
        False,
        help="Measure what each host can send to each other one, pair by pair; with more than 16 hosts, a sample.",
    )
    all_pairs: bool = option(False, "--all", help="With --bandwidth: measure all pairs, however many.")


@dataclass(repr=False, eq=False)
class TopOptions:
    """How often to look."""

    also_in = In.CONFIG

    interval: float = option(5.0, parser=TimeParser(1), help="Time between two looks at the tasks.")


@dataclass(repr=False, eq=False)
class ProfileOptions:
    """How long a trace is taken."""

    also_in = In.CONFIG

    seconds: float = option(2.0, parser=TimeParser(1), help="How long to take the trace.")


@dataclass(repr=False, eq=False)
class StacksOptions:
    """How much to show of each task."""

    panel = OUTPUT
    also_in = In.CONFIG

    all_threads: bool = option(False, "--all-threads", "-a", help="Show every thread in full.")
