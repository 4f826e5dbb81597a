"""What the controller of Slurm says of a job: whether its slots are over, and why."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tflaunch.engines import slurm_words as words
from tflaunch.engines.slurm_commands import JobFacts, Slurm, SlurmFailed
from tflaunch.engines.slurm_place import CODE, code
from tflaunch.protocol.errors import ConnectError, Gone

LOOK_S = 5.0  # the least between two questions to the controller about a job that waits, or runs
WHY_S = 1.0  # between two questions why a slot is taken back
WORDS_S = 4.0  # for Slurm to say so
SOONER_S = 150.0  # than asked for, Slurm may say that the time limit is near


class JobLook:
    """What the controller says of one job: asked once for all wires that want to know at a time."""

    def __init__(self, slot: Mapping[str, str]) -> None:
        self._slurm, self._job = Slurm(slot["conf"]), slot["job"]
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._known = False  # whether the controller has answered
        self._facts: JobFacts | None = None
        self._has_step = True
        self._asked_why: float | None = None  # since when it is asked why a slot ends

    def is_there(self) -> None:
        """The slots have just said so themselves."""
        self._at = time.monotonic()

    def gone(self, slot: Mapping[str, str]) -> Gone | None:
        """That a slot is over; None while it is not, and where nobody knows."""
        with self._lock:
            self._refresh(LOOK_S, slot)
            if not self._known:
                return None
            ours, sweeps = bool(slot["ours"]), bool(slot["sweeps"])
            gone = words.gone(self._facts, self._job, sweeps=sweeps, ours=ours)
            if ours or not (self._is_over_in_order() if gone else not self._has_step):
                return gone
            ended = code(Path(slot["place"]) / CODE)
            if gone is not None and ended is None:
                return gone
            step = f"slurm: the step {self._job}.{slot['step']} is over"
            return Gone(step, words.AGAIN, in_order=True, code=ended)

    def _is_over_in_order(self) -> bool:
        """Whether the job may have ended after its step, and not with it."""
        return self._facts is None or self._facts.get("JobState") in ("COMPLETED", "FAILED")

    def why(self, slot: Mapping[str, str]) -> str | None:
        """Why a slot ends; "" while that is not known, None where the slot holder knows better."""
        with self._lock:
            self._refresh(WHY_S, slot)
            self._asked_why = self._asked_why or time.monotonic()
            if self._known:
                within_s = float(slot["notice"]) + SOONER_S
                if said := self._why_it_ends(datetime.datetime.now(), within_s):
                    return said
            if time.monotonic() < self._asked_why + WORDS_S:
                return ""
            completes = self._facts is not None and self._facts.get("JobState") == "COMPLETING"
            return f"job {self._job} {words.ENDS['CANCELLED']}" if completes else None

    def _why_it_ends(self, now: datetime.datetime, within_s: float) -> str:
        facts = self._facts
        near = words.limit_is_near(facts, self._job, now, within_s) if facts is not None else ""
        return near or words.end(facts, self._job)

    def _refresh(self, age: float, slot: Mapping[str, str]) -> None:
        if time.monotonic() < self._at + age:
            return
        try:
            self._facts = self._slurm.job(self._job)
            runs = self._facts is not None and self._facts.get("JobState") == "RUNNING"
            if not slot["ours"] and runs:
                self._has_step = f"{self._job}.{slot['step']}" in self._slurm.steps(self._job)
            self._known = True
        except (SlurmFailed, ConnectError):
            self._known = False
        self._at = time.monotonic()
