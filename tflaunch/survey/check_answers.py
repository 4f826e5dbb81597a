"""What hosts have told to `tflaunch check`, side by side; pure."""

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
from tflaunch.planning.inventory import Device, HostFacts
from tflaunch.protocol.errors import ConnectError, TflaunchError
from tflaunch.sessions.log_lines import printable

LINES = 6  # of what a program has printed


def is_open(result: Any) -> bool:
    """Whether that came of a connect that reached whom it meant."""
    return isinstance(result, (int, float))


@dataclass(frozen=True)
class Clock:
    """How far the clock of a host is ahead of this machine's, give or take half the time that the answer took."""

    ahead_s: float
    within_s: float


@dataclass(frozen=True)
class Tried:
    """How the task of a check has ended: with a report (tflaunch.in_task.check_task), or without one."""

    report: Mapping[str, Any] | None
    code: int | None
    signal_name: str
    seconds: float
    late: bool = False  # it had to be ended
    lines: tuple[str, ...] = ()  # the last that it has printed

    @classmethod
    def from_log(cls, tail: bytes, code: int | None, signal_name: str, seconds: float, late: bool) -> Tried:
        """Read the end of its log."""
        text = tail.decode("utf-8", "replace")
        before, found, told = text.rpartition("\n" + check_task.MARK)
        try:
            report = json.loads(told.partition("\n")[0]) if found else None
        except (ValueError, RecursionError):
            report = None
        if not _is_report(report):
            report = None  # whoever can write into the log can write such a line
        lines = [printable(each) for each in (before if report else text).splitlines() if each.strip()]
        start = -LINES
        for number, line in enumerate(lines):
            if line.startswith(
                "Fatal Python error"
            ):  # what it is in comes first there, why may stand above it
                start = max(0, number - 2)
        return cls(report, code, signal_name, seconds, late, tuple(lines[start:][:LINES]))


def _is_report(told: Any) -> bool:
    """Whether that is what tflaunch.in_task.check_task tells."""

    def texts(values: Any) -> bool:
        return all(isinstance(each, str) for each in values)

    if not (isinstance(told, dict) and texts(told.get(name) for name in ("python", "executable", "error"))):
        return False
    tensorflow = told.get("tensorflow", {"seconds": 0.0, "build": {}, "gpus": None})
    mappings = (told.get("versions"), told.get("limits"), tensorflow)
    if not (all(isinstance(each, dict) for each in mappings) and isinstance(told.get("proxies"), list)):
        return False
    build, seconds = tensorflow.get("build"), tensorflow.get("seconds")
    return (
        texts([*told["versions"].values(), *told["proxies"]])
        and all(each is None or isinstance(each, int) for each in told["limits"].values())
        and isinstance(build, dict)
        and texts(build.values())
        and isinstance(seconds, (int, float))
        and math.isfinite(seconds)
        and isinstance(tensorflow.get("gpus"), (int, type(None)))
    )


@dataclass
class Visited:
    """All that a check has learnt of one host; None and empty: not told."""

    host: Host
    error: ConnectError | None = None  # it cannot be reached, or has no agent
    facts: HostFacts | None = None
    clock: Clock | None = None
    system: Mapping[str, Any] = field(default_factory=dict)  # tflaunch.agent.host_check
    source: str = ""  # what its task's packages come from, if not from the host: requirements, an image
    ports: tuple[int, ...] = ()  # those that were dialled
    address_error: TflaunchError | None = None
    refused: TflaunchError | None = None  # its task could not be made ready
    cards: tuple[Device, ...] = ()  # that its task was shown
    tried: Tried | None = None
    lost: ConnectError | None = None  # it stopped answering
    unswept: str = ""  # why it is not known that nothing of the check is left there

    @property
    def ready(self) -> bool:
        """Whether its task can start."""
        return self.refused is None and self.lost is None

    @property
    def report(self) -> Mapping[str, Any]:
        """What its task has told."""
        return (self.tried.report if self.tried else None) or {}

    @property
    def versions(self) -> Mapping[str, str]:
        """What is to be the same on all hosts, by the name that people know it by."""
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
class Row:
    """One line of the matrix: what it is on each host that tells, and what on most of them ("": on no majority)."""

    name: str
    values: Mapping[str, str]
    matters: bool = True  # a difference is worth a warning

    @property
    def common(self) -> str:
        """What more than half of the hosts have."""
        value, count = Counter(self.values.values()).most_common(1)[0]
        return value if 2 * count > len(self.values) else ""

    @property
    def odd(self) -> dict[str, list[str]]:
        """The other values, each with its hosts; without a majority that is all of them."""
        found: dict[str, list[str]] = {}
        for host, value in self.values.items():
            if value != self.common:
                found.setdefault(value, []).append(host)
        return found


@dataclass(frozen=True)
class Checked:
    """What all hosts have told.

    `dials` has {from: {to: {address, port, result}}}, `resolved` what names stand for, `outside` what this machine
    found when it called the same ports: {host: {address: {port, result}}}.
    """

    hosts: tuple[Visited, ...]
    dials: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    resolved: Mapping[str, list[str]] = field(default_factory=dict)
    outside: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    timeout_s: float = 0.0  # of the import
    run_id: str = ""

    @functools.cached_property
    def interfaces(self) -> Mapping[str, Mapping[str, Any]]:
        """For each host the network interface that its tasks are dialled at, if it is one of its own."""
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
    def told(self) -> list[Visited]:
        """The hosts that could be asked."""
        return [each for each in self.hosts if each.facts is not None]

    @functools.cached_property
    def matrix(self) -> list[Row]:
        """Versions, limits and the network's MTU on all hosts that tell; rows that nobody fills are left out."""
        columns: dict[str, dict[str, str]] = defaultdict(dict)
        for each in self.told:
            for name, value in each.versions.items():
                columns[name][each.host.name] = value
            for name, value in _limits(each.report.get("limits", {})):
                columns[name][each.host.name] = value
            if mtu := self.interfaces.get(each.host.name, {}).get("mtu"):
                columns["MTU"][each.host.name] = str(mtu)
        minor = ("built for CUDA", "built for cuDNN", "NVIDIA driver")
        order = ["Python", "TensorFlow", "Keras", "protobuf", "NumPy", *minor, "MTU", *_LIMITS.values()]
        matters = {*order[:5], "MTU"}
        return [Row(name, columns[name], name in matters) for name in order if name in columns]


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
