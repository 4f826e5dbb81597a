"""What `--json` prints where it is one document.

The reference of the documentation and the JSON Schemas are made from these classes, and the tests compare every
document that they see with them.  Events, of which `--json` prints one a line, are in json_events.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from tflaunch.documents.json_reports import ComparedData, LayoutData, ReportedRunData, RoundData
from tflaunch.documents.json_things import (
    CheckedHostData,
    CheckedNetworkData,
    CountsData,
    ErrorData,
    FileData,
    FindingData,
    HostData,
    PlaceData,
    RowData,
    RunData,
    SettingData,
    StackedTaskData,
    ThroughputData,
    UserData,
)


class GpusDocument(TypedDict):
    """The GPUs of all hosts; with `--watch` one document a line, for each refresh."""

    time: float
    """when it was printed, in epoch seconds"""
    hosts: list[HostData]
    """each machine once"""
    summary: CountsData
    """how many GPUs there are, by their state"""


class GpusAllUsersDocument(TypedDict):
    """Who holds which GPUs."""

    time: float
    """when it was printed, in epoch seconds"""
    users: list[UserData]
    """who holds most first; users whom the hosts do not show at the end"""
    unseen: list[str]
    """sentences: what the hosts did not show"""
    unreachable: dict[str, ErrorData]
    """host -> why it did not answer"""


class CheckDocument(TypedDict):
    """What would make a run fail."""

    time: float
    """when it was printed, in epoch seconds"""
    exit_code: int
    """of tflaunch"""
    findings: list[FindingData]
    """what is not as it should be, errors first"""
    hosts: list[CheckedHostData]
    """what each host answered"""
    matrix: list[RowData]
    """facts of all hosts, side by side"""
    dials: dict[str, dict[str, dict[str, Any]]]
    """host -> other host -> what came of its call: `address`, `port`, `result`, `rtt_ms`"""
    bandwidth: dict[str, dict[str, ThroughputData]]
    """with `--bandwidth`: host -> other host -> what it could send"""
    networks: list[CheckedNetworkData]
    """other networks that all hosts are in: the one that a run would take; with `--bandwidth`, all"""
    addresses: dict[str, list[str]]
    """name -> the addresses that it stands for"""
    from_here: dict[str, Any]
    """host -> address -> what came of this machine's call"""


class PsDocument(TypedDict):
    """The runs on the hosts."""

    time: float
    """when it was printed, in epoch seconds"""
    runs: list[RunData]
    """the newest first; with `-a` also those that have ended"""
    others: int
    """how many have ended and are not listed"""
    unreachable: dict[str, ErrorData]
    """host -> why it did not answer"""


class _StatusAlone(TypedDict):
    """What `status` says of a run that `ps` does not."""

    time: float
    """when it was printed, in epoch seconds"""
    held_by: str
    """what keeps it alive, or empty"""
    hint: str
    """what to do about its first failure, or empty"""
    unreachable: dict[str, ErrorData]
    """host -> why it did not answer"""


class StatusDocument(_StatusAlone, RunData):
    """One run: the fields of [a run](#run), and these."""


class StacksDocument(TypedDict):
    """Where the tasks of a run are in their programs."""

    time: float
    """when it was printed, in epoch seconds"""
    run: str
    """the run's id"""
    tasks: list[StackedTaskData]
    """each task that was asked"""
    unreachable: dict[str, ErrorData]
    """host -> why it did not answer"""


class ReportDocument(TypedDict):
    """What one run did, or two."""

    time: float
    """when it was printed, in epoch seconds"""
    runs: list[ReportedRunData]
    """the runs that were named, one or two"""
    compared: list[ComparedData]
    """of two runs: their numbers side by side"""


class TuneDocument(TypedDict):
    """Which layouts were tried, and how fast each is."""

    time: float
    """when it was printed, in epoch seconds"""
    run_id: str
    """the search's name, for `--resume`; of `--dry-run` empty"""
    rounds: list[RoundData]
    """how many layouts each round tries"""
    layouts: list[LayoutData]
    """each layout, the fastest first; those that were not measured at the end"""
    best: list[str]
    """the words of the command that runs the program in the fastest layout; of `--dry-run` none"""


class CleanDocument(TypedDict):
    """What was removed, and what stays."""

    time: float
    """when it was printed, in epoch seconds"""
    dry_run: bool
    """whether it only says what it would remove"""
    places: list[PlaceData]
    """each directory of runs once"""
    stays: dict[str, str]
    """run -> why it stays"""
    unreachable: dict[str, ErrorData]
    """host -> why it did not answer"""


class ConfigDocument(TypedDict):
    """The configuration that counts."""

    files: list[FileData]
    """where tflaunch looks, the machine's file first"""
    settings: list[SettingData]
    """what counts"""
    overridden: list[SettingData]
    """what another file overrides"""


DOCUMENTS: Mapping[str, type] = {
    "gpus": GpusDocument,
    "gpus --all-users": GpusAllUsersDocument,
    "check": CheckDocument,
    "ps": PsDocument,
    "status": StatusDocument,
    "stacks": StacksDocument,
    "report": ReportDocument,
    "tune": TuneDocument,
    "clean": CleanDocument,
    "config": ConfigDocument,
}
