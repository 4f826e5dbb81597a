"""An engine's own command-line client: asked for an answer, and what it says where it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=env,
            cwd=cwd,
            check=False,
            timeout=timeout_s,
            start_new_session=True,  # Ctrl-C is for the launcher
        )
    except subprocess.TimeoutExpired:
        raise failed(f"{name} has not answered within {timeout_s:g} s") from None
    except OSError as error:
        raise failed(f"{name} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise failed(said(done.stderr) or f"{name} ended with {done.returncode}")
    return done.stdout


def in_parallel(calls: Sequence[Callable[[], Result]], pause: Callable[[float], None]) -> list[Result]:
    """What each of them returns, in their order.  Raises what the first that fails does, or `pause`."""
    pool = ThreadPoolExecutor(AT_ONCE, "ask")
    try:
        running = [pool.submit(call) for call in calls]
        while not all(each.done() for each in running):
            pause(0.05)
        return [each.result() for each in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
