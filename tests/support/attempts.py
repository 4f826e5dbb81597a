"""Logs and processes of tasks that are started again."""

from __future__ import annotations

from tests.support.launcher import Launcher, Process


def log(launcher: Launcher, task: str, attempt: int = 0) -> str:
    """What that attempt of a task has written so far, on its host."""
    name = f"{task.replace('/', '-')}{f'.{attempt}' if attempt else ''}.log"
    return "".join(path.read_text() for path in launcher.hosts.glob(f"tflaunch-*/*/*/logs/{name}"))


def mine(launcher: Launcher, task: str) -> list[Process]:
    """The processes of a task."""
    return [
        each for each in launcher.leftovers() if each.env.get("TFLAUNCH_TASK") == task and not each.is_agent
    ]
