"""What the hosts answered to `tflaunch check`, side by side.  Pure."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tflaunch.hosts import Host
from tflaunch.in_task import check_task
from tflaunch.planning.inventory import GpuOrInstance, HostFacts
from tflaunch.planning.networks import Network
from tflaunch.planning.ways import Odd
from tflaunch.protocol.errors import ConnectError, TflaunchError
from tflaunch.survey.check_bandwidth import Throughput
from tflaunch.text.safe import printable

LINES = 6  # of what a task has printed


def is_open(result: Any) -> bool:
    """Whether the result of a call is a time (the call reached the right agent), not a failure."""
    return isinstance(result, (int, float))


@dataclass(frozen=True)
class Clock:
    """How far the clock of a host is ahead of the clock of this machine.

    `within_s`, half the time that the answer took, is how wrong `ahead_s` may be.
    """

    ahead_s: float
    within_s: float


@dataclass(frozen=True)
class TaskAnswer:
    """How the task of a check ended: with a report (tflaunch.in_task.check_task), or without one."""

    report: Mapping[str, Any] | None
    code: int | None
    signal_name: str
    seconds: float
    late: bool = False  # it did not end in time, so its agent ended it
    lines: tuple[str, ...] = ()  # the last lines that it printed

    @classmethod
    def from_log(
        cls, tail: bytes, code: int | None, signal_name: str, seconds: float, late: bool
    ) -> TaskAnswer:
        """Read what the end of the task's log says; `seconds` is how long the task ran."""
        text = tail.decode("utf-8", "replace")
        before, found, data = text.rpartition("\n" + check_task.MARK)
        try:
            report = json.loads(data.partition("\n")[0]) if found else None
        except (ValueError, RecursionError):
            report = None
        if not _is_report(report):
            report = None  # no report: any program may write such a line into the log
        lines = [printable(each) for each in (before if report else text).splitlines() if each.strip()]
        start = -LINES
        for number, line in enumerate(lines):
            # Below that line Python names the innermost call first; the reason may stand above it.
            if line.startswith("Fatal Python error"):
                start = max(0, number - 2)
        return cls(report, code, signal_name, seconds, late, tuple(lines[start:][:LINES]))


def _is_report(data: Any) -> bool:
    """Whether `data` has the shape of what tflaunch.in_task.check_task writes."""

    def texts(values: Any) -> bool:
        return all(isinstance(each, str) for each in values)

    if not (isinstance(data, dict) and texts(data.get(name) for name in ("python", "executable", "error"))):
        return False
    tensorflow = data.get("tensorflow", {"seconds": 0.0, "build": {}, "gpus": None})
    mappings = (data.get("versions"), data.get("limits"), tensorflow)
    if not (all(isinstance(each, dict) for each in mappings) and isinstance(data.get("proxies"), list)):
        return False
    build, seconds = tensorflow.get("build"), tensorflow.get("seconds")
    return (
        texts([*data["versions"].values(), *data["proxies"]])
        and all(each is None or isinstance(each, int) for each in data["limits"].values())
        and isinstance(build, dict)
        and texts(build.values())
        and isinstance(seconds, (int, float))
        and math.isfinite(seconds)
        and isinstance(tensorflow.get("gpus"), (int, type(None)))
    )


@dataclass
class HostAnswer:
    """All that a check learnt from one host; None and empty: the host did not answer that question."""

    host: Host
    error: ConnectError | None = None  # why the host cannot be reached, or runs no agent
    facts: HostFacts | None = None
    host_key: str = ""  # "": the way to the host does not show it
    clock: Clock | None = None
    system: Mapping[str, Any] = field(default_factory=dict)  # the answer of tflaunch.agent.host_check
    # Where the task's packages come from, if not from the host: a requirements file, an image.
    source: str = ""
    ports: tuple[int, ...] = ()  # those that the check calls
    address_error: TflaunchError | None = None
    refused: TflaunchError | None = None  # why the agent could not make the task ready
    visible_gpus: tuple[GpuOrInstance, ...] = ()  # the GPUs that the task could see
    task: TaskAnswer | None = None
    lost: ConnectError | None = None  # why the agent stopped answering
    unswept: str = ""  # why a process of the check may still be alive on the host

    @property
    def ready(self) -> bool:
        """Whether the task of this host can start."""
        return self.refused is None and self.lost is None

    @property
    def report(self) -> Mapping[str, Any]:
        """What the task of this host reported; {} without a report."""
        return (self.task.report if self.task else None) or {}

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions that should be the same on all hosts, each by the name that people know."""
        return {name: value for name, value in self._versions() if value}

    def _versions(self) -> Iterator[tuple[str, str]]:
        installed, tensorflow = self.report.get("versions", {}), self.report.get("tensorflow", {})
        build = tensorflow.get("build", {})
        yield "Python", self.report.get("python", "")
        for name in ("TensorFlow", "Keras", "protobuf", "NumPy"):
            yield name, installed.get(name.lower(), "")
        yield "built for CUDA", build.get("cuda_version", "")
        yield "built for cuDNN", build.get("cudnn_version", "")
        yield "NVIDIA driver", self.facts.driver if self.facts else ""


@dataclass(frozen=True)
class MatrixRow:
    """One line of the matrix: one fact, such as a version, on each host that reported it."""

    name: str
    values: Mapping[str, str]
    matters: bool = True  # a difference deserves a warning

    @property
    def common(self) -> str:
        """The value on more than half of the hosts; "" if there is none."""
        value, count = Counter(self.values.values()).most_common(1)[0]
        return value if 2 * count > len(self.values) else ""

    @property
    def odd(self) -> dict[str, list[str]]:
        """The other values, each with its hosts; without a common value that is all of them."""
        found: dict[str, list[str]] = {}
        for host, value in self.values.items():
            if value != self.common:
                found.setdefault(value, []).append(host)
        return found


@dataclass(frozen=True)
class NetworkAnswer:
    """A network that all hosts are in, beside that of their addresses: the calls over it, and what can be sent."""

    network: Network
    dials: Mapping[str, Mapping[str, Mapping[str, Any]]]
    bandwidth: Mapping[str, Mapping[str, Throughput]] = field(default_factory=dict)

    @property
    def blocked(self) -> list[tuple[str, str, Any]]:
        """(source, target, the result) of each call that failed."""
        return [
            (source, to, way["result"])
            for source, row in self.dials.items()
            for to, way in row.items()
            if not is_open(way["result"])
        ]


@dataclass
class CallAnswers:
    """What came of the calls of a check, as CheckAnswers has it."""

    dials: dict[str, dict[str, Any]] = field(default_factory=dict)
    resolved: dict[str, list[str]] = field(default_factory=dict)
    outside: dict[str, dict[str, Any]] = field(default_factory=dict)
    odd: tuple[Odd, ...] = ()
    bandwidth: dict[str, dict[str, Throughput]] = field(default_factory=dict)
    networks: tuple[NetworkAnswer, ...] = ()


@dataclass(frozen=True)
class CheckAnswers:
    """What all hosts answered.

    `dials` is {from: {to: {address, port, result, rtt_ms}}}: what came of each host's call to each host, and the
    shortest round trip that the kernel has seen.  `resolved` is {name: [addresses]}.  `outside` is what came of this
    machine's calls to the same ports: {host: {address: {port, result}}}.  `odd` are the ways between hosts that are
    much longer than the others, or lose packets.  `bandwidth` is {from: {to: what can be sent there}}, if it was
    measured.
    """

    hosts: tuple[HostAnswer, ...]
    dials: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    resolved: Mapping[str, list[str]] = field(default_factory=dict)
    outside: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    odd: tuple[Odd, ...] = ()
    bandwidth: Mapping[str, Mapping[str, Throughput]] = field(default_factory=dict)
    networks: tuple[NetworkAnswer, ...] = ()  # others that all hosts are in, the fastest first
    timeout_s: float = 0.0  # for the import of TensorFlow
    run_id: str = ""

    @functools.cached_property
    def interfaces(self) -> Mapping[str, Mapping[str, Any]]:
        """For each host, its network interface with the address at which other hosts call its tasks, if it has one."""
        dialled = {to: way["address"] for ways in self.dials.values() for to, way in ways.items()}
        found: dict[str, Mapping[str, Any]] = {}
        for each in self.hosts:
            if (address := dialled.get(each.host.name)) is not None:
                own = set(self.resolved.get(address, [address]))
                for face in each.system.get("interfaces", ()):
                    if own & set(face["addresses"]):
                        found[each.host.name] = face
        return found

    @property
    def asked(self) -> list[HostAnswer]:
        """The hosts that could be asked: those with facts."""
        return [each for each in self.hosts if each.facts is not None]

    @functools.cached_property
    def matrix(self) -> list[MatrixRow]:
        """Versions, limits and the MTU of the network, a row each; rows that no host fills are left out."""
        columns: dict[str, dict[str, str]] = defaultdict(dict)
        for each in self.asked:
            for name, value in each.versions.items():
                columns[name][each.host.name] = value
            for name, value in _limits(each.report.get("limits", {})):
                columns[name][each.host.name] = value
            if mtu := self.interfaces.get(each.host.name, {}).get("mtu"):
                columns["MTU"][each.host.name] = str(mtu)
        minor = ("built for CUDA", "built for cuDNN", "NVIDIA driver")
        order = ["Python", "TensorFlow", "Keras", "protobuf", "NumPy", *minor, "MTU", *_LIMITS.values()]
        matters = {*order[:5], "MTU"}
        return [MatrixRow(name, columns[name], name in matters) for name in order if name in columns]


_LIMITS = {"nofile": "open files", "nproc": "processes", "memlock": "locked memory", "core": "core file"}


def _limits(limits: Mapping[str, int | None]) -> Iterable[tuple[str, str]]:
    for name, words in _LIMITS.items():
        if name in limits:
            value = limits[name]
            if value is None:
                yield words, "unlimited"
            elif name in ("memlock", "core"):
                yield words, f"{value // 1024:,} KiB" if value else "none"
            else:
                yield words, f"{value:,}"
