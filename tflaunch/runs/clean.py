"""Which runs `tflaunch clean` removes, and from where.  Pure.

A *place* is a directory in which runs leave something: a host's run directory (one place, if two hosts share it), or
the records of this machine.  `clean` never removes a run that is alive.  It removes a run that is too old, or
beyond the number to keep, from all places; where a place is too large, it removes the oldest runs there alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tflaunch.hosts import fold
from tflaunch.protocol import removal
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.wire import Message

HERE = "this machine"  # its records of runs


@dataclass(frozen=True)
class Kept:
    """What one place keeps of one run."""

    run_id: str
    bytes: int
    idle_s: float  # for how long nothing of the run was written here
    alive: bool
    keep: str  # why the run must stay here, or ""
    ended: bool  # the run ended in order: nothing of it was left on any host
    here: tuple[str, ...]  # the hosts whose part of the run this is
    hosts: tuple[str, ...]  # all hosts of the run, as far as this place knows them


@dataclass(frozen=True)
class RunsPlace:
    """What one directory of runs holds; `names` are the hosts that share it, none for this machine's records."""

    names: tuple[str, ...]
    directory: str
    runs: tuple[Kept, ...]
    code_bytes: int = 0
    rest_bytes: int = 0  # what an interrupted clean left
    unread: tuple[str, ...] = ()  # what could not be measured, and why
    environment_bytes: int = 0  # virtual environments

    @property
    def title(self) -> str:
        """The name of this place in messages."""
        return named(self.names or (HERE,))

    @property
    def bytes(self) -> int:
        """Bytes of all that it holds."""
        return (
            sum(kept.bytes for kept in self.runs) + self.code_bytes + self.rest_bytes + self.environment_bytes
        )


def named(names: Sequence[str]) -> str:
    """These hosts, folded, and then this machine, if `names` holds HERE."""
    hosts = [name for name in names if name != HERE]
    return ", ".join(filter(None, (fold(hosts), HERE if len(hosts) < len(names) else "")))


def titles(known: Sequence[RunsPlace]) -> str:
    """The names of these places in messages."""
    return named([name for place in known for name in place.names or (HERE,)])


@dataclass(frozen=True)
class Criteria:
    """Which runs to remove: those named in `runs`; else those idle for `older_s`, and the oldest beyond `max_bytes`.

    The newest `keep_last` stay in any case; without other criteria all others go.
    """

    older_s: float | None = None
    keep_last: int | None = None
    max_bytes: int | None = None  # in each place
    runs: tuple[str, ...] = ()

    @property
    def code_older_s(self) -> float | None:
        """Seconds without use after which `clean` removes code that no kept run uses; None: it keeps all code."""
        return None if self.runs else self.older_s or 0.0


@dataclass(frozen=True)
class Selection:
    """Which runs to remove from each place, by the number of the place."""

    goes: Mapping[int, tuple[str, ...]]
    stays: Mapping[str, str]  # run that the criteria would remove -> why it stays
    too_large: Mapping[int, int] = field(
        default_factory=dict
    )  # place -> bytes by which it still exceeds `max_bytes`


def places(usages: Mapping[str, Message]) -> list[RunsPlace]:
    """The places of these hosts, from what each answered; hosts that share a directory have one place."""
    found: dict[object, RunsPlace] = {}
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
        found[key] = RunsPlace(
            names,
            said["directory"],
            tuple(kept),
            said["code_bytes"],
            said["rest_bytes"],
            unread,
            said["environment_bytes"],
        )
    return list(found.values())


def full_names(named: Collection[str], known: Sequence[RunsPlace]) -> tuple[str, ...]:
    """The ids of the runs that the user names, by whole ids or their beginnings.

    Raises UsageError for a name that fits no run, or several.
    """
    runs = sorted({kept.run_id for place in known for kept in place.runs})
    found = []
    for name in named:
        fitting = [name] if name in runs else [run for run in runs if run.startswith(name)]
        if not fitting:
            raise UsageError(
                f"no run {name} is kept here or on these hosts", "list those that are: tflaunch ps -a"
            )
        if len(fitting) > 1:
            raise UsageError(
                f"{len(fitting)} runs begin with {name}: {', '.join(fitting[:8])}", "write more of the id"
            )
        found += fitting
    return tuple(dict.fromkeys(found))


def select(known: Sequence[RunsPlace], criteria: Criteria) -> Selection:
    """Choose which runs to remove from each place, never one that may be alive."""
    parts: dict[str, list[tuple[int, Kept]]] = {}
    for number, place in enumerate(known):
        for kept in place.runs:
            parts.setdefault(kept.run_id, []).append((number, kept))
    idle_s = {run: min(kept.idle_s for _, kept in shares) for run, shares in parts.items()}
    newest_first = sorted(parts, key=lambda run: (idle_s[run], run))
    held = _held(known, parts)
    for run in newest_first[: criteria.keep_last or 0]:
        held.setdefault(run, f"it is one of the newest {criteria.keep_last}")

    def due(run: str) -> bool:
        if criteria.runs:
            return run in criteria.runs
        if criteria.older_s is not None:
            return idle_s[run] >= criteria.older_s
        return criteria.max_bytes is None and criteria.keep_last is not None

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


def _held(known: Sequence[RunsPlace], parts: Mapping[str, list[tuple[int, Kept]]]) -> dict[str, str]:
    """The runs that are alive, or may be alive on a host that did not answer, each with the reason it stays."""
    held = {}
    for run, shares in parts.items():
        alive = [known[number] for number, kept in shares if kept.alive]
        asked = {host for _, kept in shares for host in kept.here}
        asked.update(name for place in known for name in place.names)
        silent = {host for _, kept in shares for host in kept.hosts} - asked
        if alive:
            held[run] = f"it is alive on {titles(alive)}"
        elif silent and not any(kept.ended for _, kept in shares):
            held[run] = f"it may be alive on {fold(sorted(silent))}, not asked"
    return held


def document(
    known: Sequence[RunsPlace],
    chosen: Selection,
    cleaned: Mapping[int, Mapping[str, Any]],
    dry_run: bool,
) -> dict[str, Any]:
    """What was removed, and what stays and why, as JSON can hold it; `cleaned` is what each place answered."""
    entries = []
    stays = dict(chosen.stays)
    for number, said in cleaned.items():
        place, removed, code, made = known[number], said["removed"], said["code"], said["environments"]
        stays.update({run: removal.ALIVE for run, why in said["left"].items() if why == removal.ALIVE})
        staying = [kept for kept in place.runs if kept.run_id not in removed]
        entries.append(
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
    return {"dry_run": dry_run, "places": entries, "stays": stays}
