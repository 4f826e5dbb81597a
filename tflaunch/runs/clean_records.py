"""What `tflaunch clean` does with this machine's own records of runs: how much they hold, and their removal."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tflaunch.engines.taken_slots import release
from tflaunch.protocol import removal
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.clean import Kept, RunsPlace
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import check_root, is_locked, reading, state_root, writing
from tflaunch.runs.record_list import list_runs
from tflaunch.runs.run_ids import check_run_id

_ASIDE = ".clean-"  # prefix of the names of records that are being removed
_MAKING_S = 3600.0  # an unlocked, half-made record of this age is a leftover


def recorded_place() -> RunsPlace:
    """What the records of this machine hold; raises RecordError."""
    root = state_root()
    kept, unread = [], []
    for info in list_runs(root):
        size = removal.Size(str(info.path))
        unread += size.unread[:3]
        kept.append(
            Kept(
                run_id=info.run_id,
                bytes=size.bytes,
                idle_s=size.idle_s,
                alive=info.status == "running" or _may_be_alive(info.run_id, root),
                keep="",
                ended=info.status == "ended",
                here=(),
                hosts=info.hosts,
            )
        )
    rest = sum(removal.Size(str(path)).bytes for path in leftovers(root))
    return RunsPlace((), str(root), tuple(kept), 0, rest, tuple(unread))


def _may_be_alive(run_id: str, root: Path) -> bool:
    try:
        return Record(root / run_id, {}).running()
    except RecordError:
        return True


def remove_records(run_ids: Collection[str], dry_run: bool) -> dict[str, Any]:
    """Remove these records of this machine; returns the fields of an agent's `cleaned`.  Raises RecordError.

    With `dry_run` it removes nothing, and returns what it would remove.
    """
    root = state_root()
    check_root(root)
    removed: dict[str, int] = {}
    left: dict[str, str] = {}
    for run_id in run_ids:
        if not (root / run_id).is_dir():
            continue  # another `tflaunch clean` was quicker
        if dry_run:
            removed[run_id] = removal.Size(str(root / run_id)).bytes
        elif (aside := _set_aside_and_give_back(run_id, root)) is None:
            left[run_id] = removal.ALIVE
        else:
            removed[run_id], problems = removal.free(str(aside))
            if problems:
                left[run_id] = "; ".join(problems[:3])
    rest = leftovers(root)
    sizes = [removal.Size(str(path)).bytes if dry_run else removal.free(os.fspath(path))[0] for path in rest]
    none = {"files": 0, "bytes": 0}
    return {"removed": removed, "left": left, "code": none, "environments": none, "rest_bytes": sum(sizes)}


def _set_aside_and_give_back(run_id: str, root: Path) -> Path | None:
    """Set a record aside, and give back what it asked of an engine: nothing else on this machine knows of it."""
    try:
        slots = Record(root / run_id, {}).slots
    except RecordError:  # it is damaged
        slots = None
    aside = set_aside(run_id, root)
    if aside is not None and slots is not None:
        release(*slots, ())
    return aside


def set_aside(run_id: str, root: Path) -> Path | None:
    """Rename a record so that no command lists it any more; None if its launcher is alive.  Raises RecordError."""
    path = root / check_run_id(run_id)
    aside = root / f"{_ASIDE}{run_id}-{secrets.token_hex(4)}"
    with writing(path):
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:  # the record is damaged
            path.rename(aside)
            return aside
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rename(aside)
        except BlockingIOError:
            return None
        finally:
            os.close(lock)
    return aside


def leftovers(root: Path) -> list[Path]:
    """Records that a killed launcher, or a killed `tflaunch clean`, left half made; raises RecordError."""
    if not check_root(root):
        return []
    with reading(root):
        return [
            path for path in root.glob(".*") if path.is_dir() and not path.is_symlink() and _is_left(path)
        ]


def _is_left(path: Path) -> bool:
    old = time.time() - path.lstat().st_mtime > _MAKING_S
    return (old or path.name.startswith(_ASIDE)) and not is_locked(path)
