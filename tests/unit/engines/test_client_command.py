"""Clients of engines: what they print, why they fail, and that none is left."""

from __future__ import annotations

import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.launcher import alive
from tests.support.patience import PATIENCE_S, until
from tflaunch.engines.client_command import ClientFailed, answer, in_parallel

ask = partial(answer, failed=ClientFailed, said=str.strip, name="client", timeout_s=60.0)


def test_what_a_client_says() -> None:
    assert ask(("cat",), text="in") == "in"
    for script, why in {"echo no >&2; exit 3": "no", "exit 3": "client ended with 3"}.items():
        with pytest.raises(ClientFailed, match=f"^{why}$"):
            ask(("sh", "-c", script))
    with pytest.raises(ClientFailed, match=r"client cannot be started: No such file"):
        ask(("/nowhere/client",))


def test_one_that_tries_again_and_again_has_said_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    communicate = subprocess.Popen.communicate

    def once_told(
        client: subprocess.Popen[str], *words: Any
    ) -> Any:  # a busy machine may not start it in time
        until(told.exists, "its words")
        return communicate(client, *words)

    monkeypatch.setattr(subprocess.Popen, "communicate", once_told)
    with pytest.raises(ClientFailed, match=r"client has not answered within 0\.5 s: no ticket"):
        ask(("sh", "-c", f"echo no ticket >&2; touch {told}; sleep 600"), timeout_s=0.5)


def test_who_is_interrupted_leaves_no_client(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! >{pids}.new; mv {pids}.new {pids}; wait"

    def pause(_seconds: float) -> None:
        if pids.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_parallel([partial(ask, ("sh", "-c", script))], pause)
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "they are gone")


def test_one_that_starts_as_all_are_ended_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started, interrupted = threading.Event(), threading.Event()
    clients: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def late(*words: Any, **options: Any) -> subprocess.Popen[str]:
        clients.append(popen(*words, **options))
        started.set()
        assert interrupted.wait(PATIENCE_S)
        return clients[0]

    def pause(_seconds: float) -> None:
        if started.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", late)
    with pytest.raises(KeyboardInterrupt):
        in_parallel([partial(ask, ("sleep", "600"), timeout_s=2 * PATIENCE_S)], pause)
    interrupted.set()
    until(lambda: not alive(clients[0].pid), "it is gone")
