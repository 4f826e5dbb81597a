"""The applications of one set of slots: they are submitted, and their slot holders waited for.

YARN knows no all or none: the slots are counted here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tflaunch.engines import yarn_words as words
from tflaunch.engines.client_command import in_parallel
from tflaunch.engines.engine import ForWhom, Handle
from tflaunch.engines.holder_text import yarn_settings, yarn_text
from tflaunch.engines.yarn_applications import PROGRAM, SETTINGS, TAG, Submission, YarnSize, client_words
from tflaunch.engines.yarn_board import YarnBoard, read_log
from tflaunch.engines.yarn_cluster import YarnCluster
from tflaunch.engines.yarn_commands import YarnFailed, private_directory, write_overlay
from tflaunch.engines.yarn_hosts import application_of, by_node, door_of, hosts_of, named
from tflaunch.engines.yarn_manager import AppReport, SharedLook
from tflaunch.hosts import Host
from tflaunch.inputs.amounts import seconds
from tflaunch.protocol.errors import ConnectError, TflaunchError
from tflaunch.text.numbers import counted

READ_S = 0.1  # between two looks at what holders have said
LOOK_S = 1.0  # the least between two questions to YARN about what waits
LOGS_S = 8.0  # after the first container may run, and between two looks at the logs
PARTIAL_S = 60.0  # for the other slots to come, once one is there
STARTED_S = 180.0  # for the slot holders to listen, once YARN has started all
FIRST_S = 300.0  # for a slot holder to be called first
DOOR_S = 5.0  # for a door to answer
GRACE_S = 5.0  # for tasks to save: they have sessions of their own, which YARN does not know


class PartialSet(Exception):
    """A part of the slots is there, and YARN has no room for the others."""


@dataclass
class AskedSet:
    """The applications that were submitted for one set of slots, once."""

    cluster: YarnCluster
    sizes: Sequence[YarnSize]
    settings: Mapping[str, str]
    name: str
    about: ForWhom
    secret: Mapping[str, str]
    applications: dict[int, str] = field(default_factory=dict)  # by the number of their size

    def anew(self) -> AskedSet:
        """The same, before anything is submitted."""
        return AskedSet(self.cluster, self.sizes, self.settings, self.name, self.about, self.secret)

    @property
    def count(self) -> int:
        """How many slots are wanted."""
        return sum(each.count for each in self.sizes)

    @property
    def handle(self) -> Handle:
        return {
            "set": self.name,
            "conf": self.cluster.yarn.conf,
            "applications": ",".join(self.applications.values()),
            "sizes": str(len(self.sizes)),
        }

    def submit(self, board: YarnBoard) -> None:
        """Submit them all.  Raises TflaunchError, and whatever `pause` does."""
        stopped = threading.Event()
        tags = (TAG, *([self.about.run_id] if self.about.run_id else []))
        of = Submission(self.name, tags, self.cluster.jar, self.settings)
        self.about.waits(0, self.count, "the applications are being submitted")
        with private_directory() as made:
            place = Path(made)
            write_overlay(place / "conf", self.cluster.conf)

            def submit(number: int, size: YarnSize) -> None:
                files = place / str(number)
                files.mkdir(mode=0o700)
                _write(files / PROGRAM, yarn_text())
                _write(files / SETTINGS, self._settings(size, board))
                argv = client_words(size, of, files)
                self.applications[number] = self.cluster.yarn.submit(
                    argv, place / "conf", partial(_unless, stopped)
                )

            try:
                in_parallel([partial(submit, *each) for each in enumerate(self.sizes)], self.about.pause)
            except YarnFailed as failed:
                raise words.refused(failed) from None
            finally:
                stopped.set()
                self.about.note(self.handle)

    def _settings(self, size: YarnSize, board: YarnBoard) -> str:
        idle = seconds(self.settings["idle"]) if "idle" in self.settings else 20.0
        return yarn_settings(
            {
                **self.secret,
                "door": True,
                "grace_s": GRACE_S,
                "first_s": FIRST_S,
                "idle_s": idle,
                # It is in the place of a container that YARN has lost: how the run ends there nobody can know by it.
                "unused": words.TAKEN_BACK,
                "gpus": f"count:{size.gpus}" if size.gpus else "none",  # YARN names none
                "place": self.settings.get("dir", ""),
            },
            board={
                "addresses": board.addresses,
                "port": board.port,
                "certificate": board.certificate,
                "token": board.token,
            },
            run=self.about.run_id,
            roles=size.roles,
            gpus=size.gpus,
            image=size.image,
            chosen=bool({"python", "archive"} & self.settings.keys()),
        )

    def hosts(self, board: YarnBoard) -> tuple[Host, ...]:
        """The slots, once all are there.  Raises TflaunchError, PartialSet, and whatever `pause` does."""
        while True:
            told = self._told(board)
            made = [
                hosts_of(self.handle, each, self.applications[number], self._said(size))
                for number, size in enumerate(self.sizes)
                if (each := told[self.applications[number]])
            ]
            hosts = named([host for part in made for host in part])
            dead = self._unreached(hosts)
            if not dead:
                return hosts
            for container in dead:
                board.drop(container)

    def _said(self, size: YarnSize) -> dict[str, Any]:
        chosen = bool({"python", "archive"} & self.settings.keys())
        return {"roles": size.roles, "gpus": size.gpus, "chosen": chosen, "secret": self.secret}

    def _unreached(self, hosts: Sequence[Host]) -> list[str]:
        """The containers that are over meanwhile.  Raises ConnectError for one that runs and cannot be dialled."""

        def look(host: Host) -> ConnectError | None:
            try:
                door_of(host.slot).look(DOOR_S)
            except ConnectError as error:
                return error
            return None

        found = in_parallel([partial(look, host) for host in hosts], self.about.pause)
        dead = []
        for host, error in zip(hosts, found, strict=True):
            if error is None:
                continue
            report = self._report().get(host.slot["application"])
            if words.gone(host.slot["application"], host.slot["container"], report) is None:
                raise ConnectError(
                    f"yarn: the slot on {host.slot['node']} cannot be dialled from here: {error.message}",
                    "nodes must let this machine in at their unprivileged ports, as spark's driver must be let in",
                )
            dead.append(host.slot["container"])
        return dead

    def _report(self) -> Mapping[str, AppReport | None]:
        return {each: self.cluster.manager.report(each) for each in self.applications.values()}

    def _told(self, board: YarnBoard) -> dict[str, list[Mapping[str, Any]]]:
        """What the slot holders have said, all of them, by application."""
        reports, logs = SharedLook(self._report), SharedLook(self._logs)
        nodes = SharedLook(self.cluster.manager.nodes)
        wanted = {self.applications[number]: size.count for number, size in enumerate(self.sizes)}
        waited = Waited()
        while True:
            found: dict[str, list[Mapping[str, Any]]] = {each: [] for each in wanted}
            for told in board.told():
                if (application := application_of(told["where"]["container"])) in found:
                    found[application].append(told)
            if all(len(found[each]) >= count for each, count in wanted.items()):
                order = {each: sorted(found[each], key=by_node) for each in wanted}
                return {each: order[each][: wanted[each]] for each in wanted}
            given = sum(min(len(found[each]), count) for each, count in wanted.items())
            reported = reports.fresh(LOOK_S, 0.0) or {}
            for number, application in self.applications.items():
                report = reported.get(application, _UNKNOWN)
                if report is None or report.is_over:
                    raise self._ended(application, report, self.sizes[number])
            why = words.waits(reported, nodes.fresh(5.0, 0.0) or ()) if reported else reports.error
            self.about.waits(given, self.count, why or "YARN has the applications")
            if waited.for_logs(reported):
                board.add(logs.fresh(LOGS_S, 0.0) or ())
            waited.look(given, reported, why)
            self.about.pause(READ_S)

    def _logs(self) -> list[dict[str, Any]]:
        texts = [self.cluster.yarn.logs(each, "stdout") for each in self.applications.values()]
        return [told for text in texts for told in read_log(text)]

    def _ended(self, application: str, report: AppReport | None, size: YarnSize) -> TflaunchError:
        log = ""
        if report is not None and report.state != "KILLED":
            for file in ("stderr", "AppMaster.stderr"):
                with contextlib.suppress(YarnFailed, ConnectError):
                    log = log or _last_words(self.cluster.yarn.logs(application, file))
        return words.not_there(application, report, log, size)


class Waited:
    """How long what has been so."""

    def __init__(self) -> None:
        self._runs: float | None = None  # since when all applications do
        self._partial: float | None = None  # since when some of the slots are there, and others wait for room
        self._starting: float | None = None  # since when YARN has started all

    def for_logs(self, reports: Mapping[str, AppReport | None]) -> bool:
        """Whether it is time to look into the logs."""
        runs = any(report is not None and report.state == "RUNNING" for report in reports.values())
        self._runs = (self._runs or time.monotonic()) if runs else None
        return self._runs is not None and time.monotonic() > self._runs + LOGS_S

    def look(self, given: int, reports: Mapping[str, AppReport | None], why: str) -> None:
        """Raise PartialSet where there is no room for all, ConnectError where slot holders do not start."""
        now = time.monotonic()
        known = [report for report in reports.values() if report is not None]
        waits = any(report.state != "RUNNING" or report.pending or report.pending is None for report in known)
        self._partial = (self._partial or now) if waits and given else None
        if self._partial is not None and now > self._partial + PARTIAL_S:
            raise PartialSet(f"there is room for {counted(given, 'slot')} alone; the others wait: {why}")
        self._starting = (self._starting or now) if known and not waits else None
        if self._starting is not None and now > self._starting + STARTED_S:
            raise ConnectError(
                f"yarn: slot holders have not started within {STARTED_S:g} s",
                "python=PATH names a Python, 3.8 or newer, of the nodes; what it said: yarn logs -log_files stderr",
            )


_UNKNOWN = AppReport("")


def _unless(stopped: threading.Event, seconds: float) -> None:
    if stopped.wait(seconds):
        raise YarnFailed("it is wanted no more")


def _last_words(log: str) -> str:
    """The last lines of containers that say why, in what `yarn logs` prints."""
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if "ERROR" in line or "Exception" in line] or [
        line
        for line in lines
        if line.startswith(("/bin/", "bash:", "slot:", "Traceback", "tar:")) or "not found" in line
    ]
    return words.shortened(said[-1]) if said else ""


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, "utf-8")
