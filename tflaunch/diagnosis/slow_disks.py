"""Disks that take far longer for each read and write than they did, or than others of their kind do.

A disk that has much to do makes its programs wait, and is well.  What tells is the time for which it is busy with each
read and write, which a queue does not lengthen, and with each byte: where both are several times what they were until
the run was first looked at (by its coordinator, once it is detached), or are on the other hosts' disks of the same
model, the disk is sick, or held back.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import median
from tflaunch.text.numbers import amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from tflaunch.diagnosis.paces import Paces, Window

BUSY = 0.8  # of the time: a disk that has something to do
LEAST_IOS = 1000  # until the first look, so that they say what is usual ...
LEAST_IOS_NOW = 50  # ... and on another host
MIB = 1 << 20


class _Work(NamedTuple):
    """What a disk has done for a while."""

    ios: int
    bytes: int
    busy_ms: int
    busy: float  # share of the time
    seconds: float

    @property
    def each_ms(self) -> float:
        """How long it is busy with one read or write."""
        return self.busy_ms / max(1, self.ios)

    @property
    def mib_ms(self) -> float:
        """... and with a MiB."""
        return self.busy_ms * MIB / max(1, self.bytes)


def disk_of(window: Window, host: str, paces: Paces) -> str:
    """That a task with that window waits for a disk, and what that one does; "" if it does not."""
    limits, now = paces.limits, paces.now
    stalled = paces.stalled(host, "io", now - limits.slow_s, now)
    # Some programs wait by other means than state D, which the kernel counts all the same.
    if window.in_disk < limits.disk_share and not (
        window.in_disk >= limits.disk_share / 3 and stalled >= limits.disk_share
    ):
        return ""
    text = (
        f"it waits for a disk of {host} (state D) in {window.in_disk:.0%} of the looks, which moves"
        f" {amount(window.disk_bytes_s)}/s for it"
    )
    sick = _sick(paces, host, now)
    if sick:
        return f"{text}: {sick}"
    busiest = max(_works(paces, host, now), key=lambda each: each[2].busy, default=None)
    if busiest is not None and busiest[2].busy >= BUSY:
        name, _, work = busiest
        text += f"; {name} is busy in {work.busy:.0%} of the time, with {amount(work.bytes / work.seconds)}/s in all"
        return f"{text}: put the data on a faster one, or keep them in memory, and use prefetch()"
    return (
        f"{text}; is that disk slow, or full of others' work (`iostat -x 1`)? Put the data on a faster one, or keep"
        " them in memory, and use prefetch()"
    )


def sick_disks(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts with such a disk, for which tasks of theirs wait."""
    limits = paces.limits
    windows = paces.over(now - limits.slow_s, now)
    found = {}
    for host in paces.machines:
        waits = [
            name
            for name, window in windows.items()
            if paces.watched.places[name].host == host and window.in_disk >= limits.disk_share
        ]
        sick = _sick(paces, host, now) if waits else ""
        if sick:
            who, verb = paces.watched.who(waits), "waits" if len(waits) == 1 else "wait"
            share = max(windows[name].in_disk for name in waits)
            found[f"{host} sick disk"] = Finding(
                f"{who} {verb} for a disk in {share:.0%} of the looks of the last {limits.slow_s:.0f} s: {sick}",
                f"the disks of {host} are as quick as usual again",
                tuple(waits),
            )
    return found


def _sick(paces: Paces, host: str, now: float) -> str:
    """That a disk of that host is, and what to do; "" if none is."""
    limits = paces.limits
    for name, model, work in sorted(_works(paces, host, now), key=lambda each: -each[2].each_ms):
        if work.busy < BUSY or work.each_ms < limits.sick_disk_ms:
            continue
        for usual, whose in _usual(paces, host, name, model, now):
            times = work.each_ms / max(usual[0], 0.001)
            if min(times, work.mib_ms / max(usual[1], 0.001)) < limits.sick_disk_ratio:
                continue
            kind = f" ({model})" if _is_named(model) else ""
            return (
                f"{name} of {host}{kind} takes {work.each_ms:.0f} ms for each read or write, {times:.0f}x as long as"
                f" {whose}, with {amount(work.bytes / work.seconds)}/s in all: it is sick, or held back (a RAID that is"
                " rebuilt, a volume in the cloud that has used up its credits); look at `dmesg` and `smartctl -a"
                f" /dev/{name}` on {host}, and put the data on another disk"
            )
    return ""


def _is_named(model: str) -> bool:
    """Whether that is a model; of a disk that has none (`vda`, `dm-0`) it is what begins its name, which is no kind."""
    return len(model) > 2


def _works(paces: Paces, host: str, now: float) -> Iterator[tuple[str, str, _Work]]:
    """(name, model, work) of each disk there over the last while."""
    looks = paces.host_over(host, now - paces.limits.slow_s, now)
    if looks is None:
        return
    first, last = looks
    seconds = last.at - first.at
    for name, (*counters, model) in last.disks.items():
        if name in first.disks:
            pairs = zip(first.disks[name], counters)  # noqa: B905  Python 3.8
            ios, size, busy_ms = (max(0, after - before) for before, after in pairs)
            yield name, model, _Work(ios, size, busy_ms, min(1.0, busy_ms / 1000 / seconds), seconds)


def _usual(
    paces: Paces, host: str, name: str, model: str, now: float
) -> Iterator[tuple[tuple[float, float], str]]:
    """(ms for a read or write, for a MiB) that are usual for that disk, and by what they are known."""
    before: Sequence[Any] = paces.first_looks[host].disks.get(name, (0, 0, 0, ""))
    if before[0] >= LEAST_IOS:
        usual = _Work(before[0], before[1], before[2], 0.0, 1.0)
        yield (usual.each_ms, usual.mib_ms), "it used to"
    if not _is_named(model):
        return
    alike = [
        (other, work)
        for other in paces.machines
        if other != host
        for _, kind, work in _works(paces, other, now)
        if kind == model and work.ios >= LEAST_IOS_NOW
    ]
    if alike:
        hosts = ", ".join(dict.fromkeys(other for other, _ in alike[:3]))
        each = median(work.each_ms for _, work in alike), median(work.mib_ms for _, work in alike)
        yield each, f"the disks of its kind on {hosts}"
