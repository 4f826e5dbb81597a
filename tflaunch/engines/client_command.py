"""An engine's own command-line client: asked for an answer, and what it says where it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")
AT_ONCE = 16


class ClientFailed(Exception):
    """A client has failed, with these words of it."""


def answer(
    words: Sequence[str],
    failed: type[ClientFailed],
    said: Callable[[str], str],
    *,
    name: str,
    text: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float,
) -> str:
    """What it prints.  Raises `failed`, with what `said` finds in its stderr.

    `name` is what it is called in sentences; `text` is its stdin.
    """
    try:
        client = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=env,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for the launcher
        )
    except OSError as error:
        raise failed(f"{name} cannot be started: {error.strerror}") from None
    asked = _ASKED.get()
    with client:
        asked.begin(client)
        try:
            out, err = client.communicate(text, timeout_s)
        except subprocess.TimeoutExpired as late:
            # It may try something again and again, and say so.
            why = said((late.stderr or b"").decode(errors="replace"))
            raise failed(f"{name} has not answered within {timeout_s:g} s{why and f': {why}'}") from None
        finally:
            end(client)
            asked.over(client)
    if client.returncode:
        raise failed(said(err) or f"{name} ended with {client.returncode}")
    return out


def end(client: subprocess.Popen[Any]) -> None:
    """End a client that has a session of its own, and whatever it has started; it is still to be waited for."""
    if client.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)


class _Asked:
    """The clients that are being asked, for one who may want them all to end."""

    def __init__(self) -> None:
        self._clients: set[subprocess.Popen[str]] = set()
        self._closed = False

    def begin(self, client: subprocess.Popen[str]) -> None:
        """Remember it; it is ended at once where all others were."""
        self._clients.add(client)
        if self._closed:  # looked at last: `end_all` may not have seen the client
            end(client)

    def over(self, client: subprocess.Popen[str]) -> None:
        self._clients.discard(client)

    def end_all(self) -> None:
        """End them, and whichever begins later."""
        self._closed = True
        for client in list(self._clients):
            end(client)


# Those of whoever has called `in_parallel`.
_ASKED: ContextVar[_Asked] = ContextVar("asked", default=_Asked())  # noqa: B039 - of all others


def in_parallel(calls: Sequence[Callable[[], Result]], pause: Callable[[float], None]) -> list[Result]:
    """What each of them returns, in their order.  Raises what the first that fails does, or `pause`.

    Clients that are being asked then are ended: one may try for minutes.
    """
    asked = _Asked()
    pool = ThreadPoolExecutor(AT_ONCE, "ask", initializer=_ASKED.set, initargs=(asked,))
    try:
        running = [pool.submit(call) for call in calls]
        while not all(each.done() for each in running):
            pause(0.05)
        return [each.result() for each in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        asked.end_all()
