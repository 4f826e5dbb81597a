"""Connections that sshd drops before its banner, as it does when too many come at once: they are tried again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.deadline import Deadline

RETRY_FIRST_S = 0.1
RETRY_CAP_S = 2.0

# sshd says this instead of its banner while too many connections have not logged in yet.
DROPPED = (b"MaxStartups", b"Not allowed at this time")

_T = TypeVar("_T")


class Dropped(Exception):
    """sshd closed the connection before its banner; it may take the next one."""


def patiently(attempt: Callable[[], _T], deadline: Deadline) -> _T:
    """The result of `attempt`, which is repeated until the deadline while it raises Dropped; raises ConnectError."""
    tries = 0
    while not deadline.passed:
        with contextlib.suppress(Dropped):
            return attempt()
        # Full jitter: clients that were dropped together must not come back together.
        longest = min(RETRY_CAP_S, RETRY_FIRST_S * 2**tries, deadline.left())
        time.sleep(random.uniform(0, longest))  # noqa: S311
        tries += 1
    raise ConnectError(
        f"sshd dropped the connection before its banner, {tries} times in {deadline}",
        "too many log in at once (raise MaxStartups there, or --connect-timeout), or it bars this address",
    )
