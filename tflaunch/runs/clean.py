"""Which runs `tflaunch clean` removes, and where: from what every place keeps; pure but for this machine's records.

A *place* is a directory that runs leave something in: of a host (two names of it are one place), or this machine's
records.  A run that something holds stays in all places; by age and number it goes from all, by size from one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tflaunch.agent.files import garbage
from tflaunch.hosts import fold
from tflaunch.protocol import removal
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.wire import Message
from tflaunch.runs.record import Record, list_runs, set_aside, state_root, unfinished

HERE = "this machine"  # its records of runs


@dataclass(frozen=True)
class Kept:
    """What one place keeps of one run."""

    run_id: str
    bytes: int
    idle_s: float  # for how long nothing of it was written
    alive: bool
    keep: str  # why it must stay there, or ""
    ended: bool  # in order: it is known that nothing of it was left on any host
    here: tuple[str, ...]  # the hosts whose part this is
    hosts: tuple[str, ...]  # all hosts of the run, as far as it is known


@dataclass(frozen=True)
class Place:
    """What one directory of runs holds; `names` are the hosts that lead to it, of this machine's records none."""

    names: tuple[str, ...]
    directory: str
    runs: tuple[Kept, ...]
    code_bytes: int = 0
    rest_bytes: int = 0  # what is left of an interrupted clean
    unread: tuple[str, ...] = ()  # what could not be measured, and why
    environment_bytes: int = 0  # virtual environments

    @property
    def title(self) -> str:
        """What people call it."""
        return named(self.names or (HERE,))

    @property
    def bytes(self) -> int:
        """All of it."""
        return (
            sum(kept.bytes for kept in self.runs) + self.code_bytes + self.rest_bytes + self.environment_bytes
        )


def named(names: Sequence[str]) -> str:
    """Hosts, folded, and then this machine."""
    hosts = [name for name in names if name != HERE]
    return ", ".join(filter(None, (fold(hosts), HERE if len(hosts) < len(names) else "")))


def titles(known: Sequence[Place]) -> str:
    """What people call these places."""
    return named([name for place in known for name in place.names or (HERE,)])


@dataclass(frozen=True)
class Criteria:
    """Which runs are to go: those named; else those unused for `older_s`, and the oldest beyond `max_bytes`.

    The newest `keep_last` stay in any case; when nothing else is said, all others go.
    """

    older_s: float | None = None
    keep_last: int = 0
    max_bytes: int | None = None  # in each place
    runs: tuple[str, ...] = ()

    @property
    def code_older_s(self) -> float | None:
        """For how long code that no run is left of must have been unused to go too; None: it stays."""
        return None if self.runs else self.older_s or 0.0


@dataclass(frozen=True)
class Selection:
    """Which runs go from each place (by its number); and those that would, were there not why they stay."""

    goes: Mapping[int, tuple[str, ...]]
    stays: Mapping[str, str]
    too_large: Mapping[int, int] = field(default_factory=dict)  # bytes that stay beyond what a place may hold


def places(usages: Mapping[str, Message]) -> list[Place]:
    """What the hosts have told; two names of one directory on one machine become one."""
    found: dict[object, Place] = {}
    for name, said in usages.items():
        key = (*said["machine"], said["place"]) if said["place"] else name
        names = (*found[key].names, name) if key in found else (name,)
        kept = [
            Kept(
                run_id=str(entry["run"]),
                bytes=int(entry["bytes"]),
                idle_s=float(entry["idle_s"]),
                alive=bool(entry["alive"]),
                keep=str(entry["keep"]),
                ended=bool(entry["ended"]),
                here=tuple(entry["here"]),
                hosts=tuple(entry["hosts"]),
            )
            for entry in said["runs"]
        ]
        unread = tuple(each for entry in said["runs"] for each in entry["unread"])
        found[key] = Place(
            names,
            said["directory"],
            tuple(kept),
            said["code_bytes"],
            said["rest_bytes"],
            unread,
            said["environment_bytes"],
        )
    return list(found.values())


def recorded_place(root: Path | None = None) -> Place:
    """What this machine's records hold; raises RecordError."""
    root = root or state_root()
    kept, unread = [], []
    for info in list_runs(root):
        size = removal.Size(str(info.path))
        unread += size.unread[:3]
        kept.append(
            Kept(
                run_id=info.run_id,
                bytes=size.bytes,
                idle_s=size.idle_s,
                alive=info.status == "running" or _locked(info.run_id, root),
                keep="",
                ended=info.status == "ended",
                here=(),
                hosts=info.hosts,
            )
        )
    rest = sum(removal.Size(str(path)).bytes for path in unfinished(root))
    return Place((), str(root), tuple(kept), 0, rest, tuple(unread))


def _locked(run_id: str, root: Path) -> bool:
    try:
        return Record(root / run_id, {}).running()
    except RecordError:
        return True  # not known: as good as alive


def full_names(named: Collection[str], known: Sequence[Place]) -> tuple[str, ...]:
    """The runs that are meant by ids or their beginnings; raises UsageError for what fits none or several."""
    runs = sorted({kept.run_id for place in known for kept in place.runs})
    found = []
    for name in named:
        fitting = [name] if name in runs else [run for run in runs if run.startswith(name)]
        if not fitting:
            raise UsageError(
                f"no run {name} is kept here or on these hosts", "look at those that are: tflaunch ps -a"
            )
        if len(fitting) > 1:
            raise UsageError(
                f"{name} fits {len(fitting)} runs: {', '.join(fitting[:8])}", "write more of the id"
            )
        found += fitting
    return tuple(dict.fromkeys(found))


def select(known: Sequence[Place], criteria: Criteria) -> Selection:
    """Which runs go from each place, by the criteria, and never one that may be alive."""
    parts: dict[str, list[tuple[int, Kept]]] = {}
    for number, place in enumerate(known):
        for kept in place.runs:
            parts.setdefault(kept.run_id, []).append((number, kept))
    idle_s = {run: min(kept.idle_s for _, kept in shares) for run, shares in parts.items()}
    newest_first = sorted(parts, key=lambda run: (idle_s[run], run))
    held = _held(known, parts)
    for run in newest_first[: criteria.keep_last]:
        held.setdefault(run, f"it is one of the newest {criteria.keep_last}")

    def due(run: str) -> bool:
        if criteria.runs:
            return run in criteria.runs
        if criteria.older_s is not None:
            return idle_s[run] >= criteria.older_s
        return criteria.max_bytes is None and criteria.keep_last > 0

    goes: dict[int, list[str]] = {number: [] for number in range(len(known))}
    stays: dict[str, str] = {}
    for run in filter(due, newest_first):
        for number, kept in parts[run]:
            if why := held.get(run) or kept.keep:
                stays[run] = (
                    why if run in held or not known[number].names else f"{known[number].title}: {why}"
                )
            else:
                goes[number].append(run)
    too_large = {}
    for number, place in enumerate(known):
        left = place.bytes - sum(kept.bytes for kept in place.runs if kept.run_id in goes[number])
        for kept in sorted(place.runs, key=lambda kept: -idle_s[kept.run_id]):
            if criteria.max_bytes is None or left <= criteria.max_bytes:
                break
            if kept.run_id not in goes[number]:
                if why := held.get(kept.run_id) or kept.keep:
                    stays.setdefault(kept.run_id, why)
                else:
                    goes[number].append(kept.run_id)
                    left -= kept.bytes
        if criteria.max_bytes is not None and left > criteria.max_bytes:
            too_large[number] = left - criteria.max_bytes
    return Selection({number: tuple(runs) for number, runs in goes.items() if runs}, stays, too_large)


def _held(known: Sequence[Place], parts: Mapping[str, list[tuple[int, Kept]]]) -> dict[str, str]:
    """The runs that are alive, or may be on a host that has not told, each with a sentence about it."""
    held = {}
    for run, shares in parts.items():
        alive = [known[number] for number, kept in shares if kept.alive]
        told = {host for _, kept in shares for host in kept.here}
        told.update(name for place in known for name in place.names)
        silent = {host for _, kept in shares for host in kept.hosts} - told
        if alive:
            held[run] = f"it is alive on {titles(alive)}"
        elif silent and not any(kept.ended for _, kept in shares):
            held[run] = f"it may be alive on {fold(sorted(silent))}, not asked"
    return held


def remove_records(run_ids: Collection[str], dry_run: bool, root: Path | None = None) -> dict[str, Any]:
    """Remove these records of this machine; returns what an agent's `cleaned` says. Raises RecordError."""
    root = root or state_root()
    removed: dict[str, int] = {}
    left: dict[str, str] = {}
    for run_id in run_ids:
        if not (root / run_id).is_dir():
            continue  # somebody else was quicker
        if dry_run:
            removed[run_id] = removal.Size(str(root / run_id)).bytes
        elif (aside := set_aside(run_id, root)) is None:
            left[run_id] = removal.ALIVE
        else:
            removed[run_id], problems = removal.free(str(aside))
            if problems:
                left[run_id] = "; ".join(problems[:3])
    rest = unfinished(root)
    sizes = [removal.Size(str(path)).bytes if dry_run else removal.free(os.fspath(path))[0] for path in rest]
    none = {"files": 0, "bytes": 0}
    return {"removed": removed, "left": left, "code": none, "environments": none, "rest_bytes": sum(sizes)}


def document(
    known: Sequence[Place],
    chosen: Selection,
    cleaned: Mapping[int, Mapping[str, Any]],
    dry_run: bool,
) -> dict[str, Any]:
    """What was removed, and what stays and why, as what JSON can hold; `cleaned` is what each place has said."""
    told = []
    stays = dict(chosen.stays)
    for number, said in cleaned.items():
        place, removed, code, made = known[number], said["removed"], said["code"], said["environments"]
        stays.update({run: removal.ALIVE for run, why in said["left"].items() if why == removal.ALIVE})
        staying = [kept for kept in place.runs if kept.run_id not in removed]
        told.append(
            {
                "hosts": list(place.names),
                "directory": place.directory,
                "removed": removed,
                "failed": {run: why for run, why in said["left"].items() if why != removal.ALIVE},
                "code": code,
                "environments": made,
                "rest_bytes": said["rest_bytes"],
                "freed_bytes": sum(removed.values()) + code["bytes"] + made["bytes"] + said["rest_bytes"],
                "stay": {"runs": len(staying), "bytes": sum(kept.bytes for kept in staying)},
                "unread": list(place.unread),
                "too_large_bytes": chosen.too_large.get(number, 0),
            }
        )
    return {"dry_run": dry_run, "places": told, "stays": stays}
