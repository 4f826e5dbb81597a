"""Which of the hosts that are dialled are absent: no TCP connection to them comes about."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from tflaunch.protocol.errors import ConnectError

# A host whose network has not answered for so long, while others are up, is absent: SYNs were sent after 0, 1 and 3 s,
# and a kernel answers them however slow its host is.
TCP_S = 5.0
TCP_LOOK_S = 0.5


class AbsentHosts:
    """Measures how long each host has been without a TCP connection."""

    def __init__(self, unanswered: Callable[[str], ConnectError | None] | None) -> None:
        """`unanswered` says why there is no TCP connection to a host; without it, no host counts as absent."""
        self._unanswered = unanswered
        self._seconds: dict[str, float] = {}
        self._looked = time.monotonic()

    @property
    def look_at(self) -> float:
        """When to look again (monotonic)."""
        return math.inf if self._unanswered is None else self._looked + TCP_LOOK_S

    def given_up(self, missing: Collection[str]) -> dict[str, ConnectError]:
        """Why each of these hosts counts as absent; empty as long as one of them does not, and between two looks."""
        now = time.monotonic()
        if self._unanswered is None or now < self.look_at:
            return {}
        # At most two looks: this process may have been stopped since the last one.
        passed, self._looked = min(now - self._looked, 2 * TCP_LOOK_S), now
        errors = {name: self._unanswered(name) for name in missing}
        self._seconds = {
            name: self._seconds.get(name, 0.0) + passed for name, error in errors.items() if error
        }
        if any(self._seconds.get(name, 0.0) < TCP_S for name in missing):
            return {}
        return {
            name: ConnectError(f"{error.message} for {TCP_S:g} s", error.hint, absent=True)
            for name, error in errors.items()
            if error
        }
