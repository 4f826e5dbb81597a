"""What YARN says of the slots of one set: whether they are over, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from tflaunch.engines import yarn_words as words
from tflaunch.engines.yarn_commands import Yarn, config, configured
from tflaunch.engines.yarn_manager import AppReport, ContainerEnd, Manager, SharedLook, container_end
from tflaunch.protocol.errors import Gone

# How old an answer may be that wires share, and how long they wait for a newer one: of the cluster, of a node.
FRESH_S, WAIT_S = 2.0, 1.0
NODE_FRESH_S, NODE_WAIT_S = 0.5, 0.3
WHY_S = 1.0  # for YARN to say that an application is over, before a container's end is told
WORDS_S = 4.0  # for it to say anything


class YarnLook:
    """What YARN says of the applications of one set of slots."""

    def __init__(self, slot: Mapping[str, str]) -> None:
        yarn = Yarn(slot["conf"])
        self._applications = slot["applications"].split(",")
        self._manager: Manager | None = None
        self._yarn = yarn
        self._reports = SharedLook(self._ask)
        self._asked_why: dict[str, float] = {}
        self._nodes: dict[str, SharedLook[ContainerEnd | None]] = {}  # by container
        self._ends: dict[str, ContainerEnd] = {}

    def _ask(self) -> Mapping[str, AppReport | None]:
        if self._manager is None:
            self._manager = Manager(self._yarn, config(configured(self._yarn.classpath())))
        return {each: self._manager.report(each) for each in self._applications}

    def gone(self, slot: Mapping[str, str]) -> Gone | None:
        """That a slot is over; None while it is not, and where nobody knows."""
        ended = self._ended(slot)
        reports = self._reports.fresh(FRESH_S, WAIT_S) or {}
        application = slot["application"]
        return words.gone(application, slot["container"], reports.get(application), ended)

    def _ended(self, slot: Mapping[str, str]) -> ContainerEnd | None:
        container = slot["container"]
        if (ended := self._ends.get(container)) is None:
            look = self._nodes.setdefault(
                container, SharedLook(partial(container_end, slot["web"], container))
            )
            ended = look.fresh(NODE_FRESH_S, NODE_WAIT_S)
            if ended is not None:
                self._ends[container] = ended  # the node forgets it soon
        return ended

    def why(self, slot: Mapping[str, str]) -> str | None:
        """Why a slot ends; "" while that is not known, None where the slot holder knows better."""
        application, container = slot["application"], slot["container"]
        since = self._asked_why.setdefault(container, time.monotonic())
        ended = self._ended(slot)
        reports = self._reports.fresh(0.2, WAIT_S)
        if reports is not None and (said := words.end(application, reports.get(application))):
            return said
        if ended is not None and time.monotonic() > since + WHY_S:
            return words.container_words(container, ended)
        if time.monotonic() < since + WORDS_S:
            return ""
        return f"{container} is over" if self.gone(slot) is not None else None
