"""What the trials of a sweep use while they run: asked of their hosts as of those of a run, and kept for `report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.lifecycle.tallies import EVERY_S
from tflaunch.protocol.job import TRIAL
from tflaunch.runs.record import Record
from tflaunch.runs.sampling import Sampling, sampling_into
from tflaunch.sweeps.lifecycle import SweepState


class TrialLooks:
    """Asks the hosts where trials run, every EVERY_S."""

    def __init__(self) -> None:
        self.wake_at = 0.0  # when they are asked again
        self._gpus: dict[str, tuple[str, ...]] = {}  # trial -> UUIDs, of its last attempt
        self._sampling: Sampling | None = None

    def keep_in(
        self, record: Record, count: int, state: SweepState, warn: Callable[[str], object]
    ) -> Sampling:
        """Keep what the trials use in that record from now on; `count`: of all trials there may be."""
        places = {f"{TRIAL}/{number}": ("", "", None) for number in range(count)}
        # As the `data` of a run's watchdog has its tasks, but for their GPUs, which change.
        watched = {"places": places, "names": {}, "settings": {"gpus": self._gpus}}
        at_once = len(state.seats) + sum(map(len, state.others.values()))
        self._sampling = sampling_into(record, watched, warn, at_once)
        return self._sampling

    def begins(self, trial: str, gpus: tuple[str, ...]) -> None:
        """An attempt of that trial begins, with these GPUs."""
        self._gpus[trial] = gpus

    def started(self, trial: str, now: float) -> None:
        """It has started."""
        if self._sampling is not None:
            self._sampling.started(trial, now)

    def questions(self, busy: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the hosts where trials run."""
        if now < self.wake_at:
            return []
        self.wake_at = now + EVERY_S
        look = {"gpus_s": Thresholds().gpu_look_s} if any(self._gpus.values()) else {}
        return [(host, "look", look) for host in busy]
