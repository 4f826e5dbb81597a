"""GPUs that slow their tasks down: held down by heat or a brake, behind narrow links, or at work in half of the time.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import goes_on, median
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tflaunch.diagnosis.paces import GpuLoad, Paces

# What holds a GPU down and should not: a power cap is what a GPU under full load meets.
HELD = {
    "sw_thermal": "it is too hot",
    "hw_thermal": "it is too hot",
    "hw_slowdown": "the board slows it",
    "power_brake": "the power supply's brake slows it",
}
GPU_LOOKS = 3
IDLE_LOOKS = 4
HEAT_SHARE = 0.1  # of the time


def held_gpus(paces: Paces, now: float) -> dict[str, Finding]:
    """GPUs that heat or a brake holds below their clocks."""
    watched = paces.watched
    found = {}
    for name, uuid, seen in _loads(paces, now):
        reasons = [[word for word in each.slowed_by if word in HELD] for each in seen]
        if not all(reasons):
            continue
        words = sorted({word for each in reasons for word in each})
        share = paces.held_by_heat(seen) if words[0].endswith("_thermal") else None
        if share is not None and share < HEAT_SHARE:
            continue
        who, seconds = watched.who([name]), seen[-1].at - seen[0].at
        how = (
            f"in {share:.0%} of the last {seconds:.0f} s"
            if share
            else f"in {len(seen)} looks of {seconds:.0f} s"
        )
        text = (
            f"the GPU of {who} is held below its clocks {how} ({', '.join(words)}): {HELD[words[0]]}; look at the"
            f" cooling and power of that host (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` on"
            f" {watched.places[name].host})"
        )
        found[f"{name} {uuid} held"] = Finding(text, f"the GPU of {who} has its clocks again", (name,))
    return found


def narrow_links(paces: Paces, now: float) -> dict[str, Finding]:
    """GPUs that have fewer lanes of PCIe than they could have, or an older generation of it."""
    watched = paces.watched
    found = {}
    for name, uuid, seen in _loads(paces, now):
        least = min(each.use or 0 for each in seen)
        # One that rests may have given lanes up, and one that does little may have slowed down its link.
        lanes = _less([each.lanes for each in seen]) if least > paces.limits.gpu_idle_use else None
        pcie = _less([each.pcie for each in seen]) if least > paces.limits.gpu_idle_mean else None
        parts, times = [], 1.0
        if lanes:
            parts.append(f"{lanes[0]} of {lanes[1]} lanes of PCIe")
            times *= lanes[1] / lanes[0]
        if pcie:
            parts.append(f"PCIe of generation {pcie[0]} in place of {pcie[1]}")
            times *= 2.0 ** min(9, pcie[1] - pcie[0])
        if not parts:
            continue
        who, host = watched.who([name]), watched.places[name].host
        much = f"{times:.2g}" if times < 10 else f"{times:.0f}"
        text = (
            f"the GPU of {who} has {' and '.join(parts)}: what goes to and from it takes {much}x as long; look at its"
            f" slot, riser or cable, and at what shares them (`lspci -vv`: LnkSta, `nvidia-smi -q -i {uuid}`: GPU Link"
            f" Info) on {host}"
        )
        found[f"{name} {uuid} lanes"] = Finding(text, f"the GPU of {who} has all of its PCIe again", (name,))
    return found


def _less(seen: Sequence[Sequence[int] | None]) -> Sequence[int] | None:
    """The last [now, at most], if `now` was less each time."""
    known = [each for each in seen if each is not None and 0 < each[0] < each[1]]
    return known[-1] if known and len(known) == len(seen) else None


def fewer_nvlinks(paces: Paces, now: float) -> dict[str, Finding]:
    """GPUs of which an NVLink is down, or slower, that was up before, or is on others that have as many."""
    watched, limits = paces.watched, paces.limits
    there: dict[str, tuple[str, Sequence[int]]] = {}
    for name, uuid, seen in _loads(paces, now):
        known = [each.nvlinks or () for each in seen]
        most = max(sum(map(bool, each)) for each in known)
        paces.most_nvlinks[uuid] = max(most, paces.most_nvlinks.get(uuid, 0))
        # In all of these looks: one may come up again by itself.
        if known[-1] and all(each == known[-1] for each in known):
            there[uuid] = name, known[-1]
    found = {}
    for uuid, (name, links) in there.items():
        alike = [each for other, (_, each) in there.items() if other != uuid and len(each) == len(links)]
        up, before = sum(map(bool, links)), paces.most_nvlinks[uuid]
        # Where most cards have fewer than they could, the board has no more wires.
        usual = max(before, int(median(sum(map(bool, each)) for each in alike)))
        speeds = [speed for speed in links if speed > 1]
        quick = max([*speeds, int(median(max(each) for each in alike))])
        slow = [speed for speed in speeds if speed < limits.nvlink_ratio * quick]
        if up >= usual and not slow:
            continue
        # A card without any may not be wired to the others, unless it was.
        if not up and not before:
            continue
        who, host = watched.who([name]), watched.places[name].host
        than = "as before" if before >= usual else "as the other GPUs of the run have"
        parts = [f"{up} of its NVLinks up, not {usual} {than}"] if up < usual else []
        if slow:
            parts.append(f"{counted(len(slow), 'NVLink')} at {min(slow)} MB/s in place of {quick}")
        text = (
            f"the GPU of {who} has {', and '.join(parts)}: all GPUs that exchange data with it wait for that; look at"
            f" `nvidia-smi nvlink -s -i {uuid}` and at the Xids of `dmesg` (74) on {host}; the links come back with a"
            " reset of its GPUs, or a reboot, if they are not broken"
        )
        found[f"{name} {uuid} nvlinks"] = Finding(text, f"the GPU of {who} has its NVLinks again", (name,))
    return found


def idle_gpus(paces: Paces, now: float) -> dict[str, Finding]:
    """GPUs of workers that train all the time, and compute in half of it, or on half of their processors."""
    limits = paces.limits
    windows = paces.over(now - limits.slow_s, now)
    uses: dict[str, list[float]] = {}
    parts: dict[str, list[Sequence[float]]] = {}  # of SMs, tensor cores, memory, where NVML tells
    powers = []  # (mean, limit)
    for name, _, seen in _loads(paces, now):
        known = [each.use for each in seen if each.use is not None]
        # Of a GPU that does nothing at all no_gpu.py tells.
        if len(known) < IDLE_LOOKS or name not in windows or max(known) <= limits.gpu_idle_use:
            continue
        if paces.tasks[name].trains and goes_on(windows[name]):
            use, gpm = sum(known) / len(known), [each.gpm for each in seen if each.gpm is not None]
            if len(gpm) >= IDLE_LOOKS - 1:  # the first question has nothing to compare with
                means = [sum(each) / len(gpm) for each in zip(*gpm)]  # noqa: B905  Python 3.8
                parts.setdefault(name, []).append(means)
                # A GPU whose memory is busy has no time for more.
                use = max(means[0], means[2])
            uses.setdefault(name, []).append(use)
            watts = paces.watts(seen)
            if watts and seen[-1].limit_w:
                powers.append((watts, seen[-1].limit_w))
    means_of = {name: sum(of_it) / len(of_it) for name, of_it in uses.items()}
    idle = {name: mean for name, mean in means_of.items() if mean <= limits.gpu_idle_mean}
    if not idle:
        return {}
    names, mean = list(idle), sum(idle.values()) / len(idle)
    who, at = paces.watched.who(names), ""
    if powers:
        each_w, limit_w = (sum(each) / len(powers) for each in zip(*powers))  # noqa: B905  Python 3.8
        at = f", at {each_w:.0f} W of {limit_w:.0f} W"
    text = (
        f"the GPUs of {who} have {_work(idle, parts, mean, paces.gpu_window_s)}{at}: up to"
        f" {100 / max(mean, 1.0):.1f}x faster steps, or larger batches, are in them; `tflaunch stacks` shows what"
        " their programs wait for: their input (prefetch(), num_parallel_calls), a ps, or small operations"
        " (tf.function, a larger batch)"
    )
    return {"gpus idle": Finding(text, f"the GPUs of {who} compute more again", tuple(names))}


def _work(
    idle: Mapping[str, float], parts: Mapping[str, list[Sequence[float]]], mean: float, seconds: float
) -> str:
    """What they have done, in words."""
    if not all(name in parts for name in idle):
        return f"computed in {mean:.0f} % of the last {seconds:.0f} s on the average"
    every = [each for name in idle for each in parts[name]]
    of_sms, tensor, memory = (sum(each) / len(every) for each in zip(*every))  # noqa: B905  Python 3.8
    return (
        f"used {of_sms:.0f} % of their SMs in the last {seconds:.0f} s on the average, {tensor:.0f} % of their tensor"
        f" cores and {memory:.0f} % of the speed of their memory"
    )


def _loads(paces: Paces, now: float) -> Iterator[tuple[str, str, list[GpuLoad]]]:
    """Each GPU of a task (task, UUID), with enough of what NVML said of it lately."""
    for name, uuids in paces.watched.gpus.items():
        for uuid in uuids:
            seen = [each for each in paces.gpus.get(uuid, ()) if each.at >= now - paces.gpu_window_s]
            if name in paces.watched.places and len(seen) >= GPU_LOOKS:
                yield name, uuid, seen
