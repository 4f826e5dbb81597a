"""The errors that a user can see: whatever they quote, nothing in them acts on the terminal of who prints them."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any, cast

import pytest

from tests.support.evil import EVIL, harmless
from tflaunch.hosts import Host
from tflaunch.protocol.errors import (
    Breach,
    ConnectError,
    ConnectErrors,
    DialError,
    HostfileError,
    LaunchError,
    Problem,
    TflaunchError,
    UsageError,
)
from tflaunch.sessions.session import Ended, Session, unexpected
from tflaunch.ssh import failures
from tflaunch.ssh.target import Target

BYTES = EVIL.encode("utf-8", "replace")
TARGET = cast("Target", dataclasses.make_dataclass("Target", ["name", "hostname", "port", "ssh"])(*["x"] * 4))


class Channel:
    """A wire by which EVIL comes instead of an agent."""

    def __init__(self, words: str, *pieces: bytes) -> None:
        self._words, self._pieces = words, pieces

    def listen(self, take: Any) -> None:
        for piece in (*self._pieces, b""):
            take(piece)

    def last_words(self) -> str:
        return self._words

    def __getattr__(self, _: str) -> Any:
        return lambda *_: True


def ended(words: str = "", *pieces: bytes) -> ConnectError:
    """Why a session ends whose host says that."""
    heard: list[Any] = []
    Session(Host("gpu01"), cast("Any", Channel(words, *pieces)), heard.append)
    [end] = [each for each in heard if isinstance(each, Ended)]
    return end.error


@pytest.mark.parametrize(
    "error",
    [
        TflaunchError(EVIL, EVIL),
        UsageError(EVIL, EVIL),
        ConnectError(EVIL, EVIL),
        Breach(EVIL),
        LaunchError({"gpu01": EVIL}, EVIL, {"gpu02": EVIL}),
        DialError({"gpu01": EVIL}, EVIL),
        ConnectErrors({"gpu01": ConnectError(EVIL, EVIL)}, 2, EVIL),
        HostfileError([Problem("hosts.yaml", 1, 1, EVIL)], EVIL),
        failures.not_ssh(TARGET, EVIL),
        failures.session_refused(EVIL, TARGET),
        failures.closed_during(failures.text(OSError(EVIL))),
        failures.key_unknown(EVIL, EVIL, TARGET),
        failures.key_changed(EVIL, f"{EVIL}:1", EVIL, EVIL, TARGET, known_as=EVIL),
        unexpected(ValueError(EVIL)),
        ended(EVIL),
        ended("", BYTES),
        ended(EVIL, BYTES * 100),
        ended(f"the connection broke ({EVIL})"),
        ended(f"exit status 1; it said: {EVIL}tflaunch: no python3 {EVIL}"),
        ended(f"exit status 1; it said: {EVIL} exec python3 -c {EVIL}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_nothing_that_an_error_quotes_acts_on_a_terminal(error: TflaunchError) -> None:
    parts = [error.message, error.hint, str(error), *error.args, "".join(traceback.format_exception(error))]
    if isinstance(error, LaunchError):
        parts += [*error.failures.values(), *error.unconfirmed.values()]
    if isinstance(error, ConnectError):
        parts += [error.hint_for("gpu01"), *error.data_for("gpu01").values()]
    for part in parts:
        harmless(part, rows=False)
