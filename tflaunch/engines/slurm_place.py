"""The directory of a set of slots on Slurm, which the nodes see, too: the program, and what slot holders have said."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tflaunch.protocol import ancestry
from tflaunch.protocol.errors import UsageError

PROGRAM, TOLD, LOG = "holder.py", "told", "log"
CODE = "code"  # how a step that this user's job holds has ended


def own_place(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's sets of slots lie, each in a directory; the nodes see it, too.  Raises UsageError."""
    if "dir" in settings:
        place = Path(settings["dir"]).expanduser().absolute()
    else:
        state = environ.get("XDG_STATE_HOME", "")
        place = (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "tflaunch/slurm"
    if (weak := ancestry.weak_place(str(place))) is not None and not Path.home().is_relative_to(weak[0]):
        raise UsageError(
            f"slurm: others may write to {weak[0]}, and could put a program of theirs in the place of ours",
            "dir=DIRECTORY names one of your own, which the nodes see, too",
        )
    return place


def lines(path: Path) -> list[dict[str, Any]]:
    """What slot holders have said there, in the order of their places."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
    except OSError:
        return []
    found = []
    for line in lines:
        if line.endswith("\n") and line.startswith("{"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                found.append({**said, "where": json.loads(said["slot"])})
    return sorted(found, key=lambda each: (each["where"]["group"], each["where"]["task"]))


def code(path: Path) -> int | None:
    """The exit status that is written there; None where none is."""
    try:
        said = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(said) if said.isdigit() else None


def write(path: Path, text: str) -> None:
    """For this user alone, whole or not at all."""
    new = path.with_name(f".{path.name}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    new.rename(path)


def log(place: Path) -> list[str] | None:
    """What srun and the slot holders have written; None where no node could write there."""
    try:
        return (place / LOG).read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
