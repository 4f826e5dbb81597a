"""Hosts that slow their tasks down: packets that are sent again and again, swap, GPUs that heat or a brake holds
down, or that compute in half of the time only.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import goes_on
from tflaunch.text.numbers import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tflaunch.diagnosis.paces import GpuLoad, Paces

SEGMENTS = 50  # of fewer, a share says little
PARTS = 3
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


def lossy(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts many of whose packets are lost on the way."""
    watched, limits = paces.watched, paces.limits
    # In each of its parts, so that it was not a burst.
    parts = [
        paces.over(now - limits.slow_s * left / PARTS, now - limits.slow_s * (left - 1) / PARTS)
        for left in range(PARTS, 0, -1)
    ]
    shares = {
        name: min(part[name].again for part in parts)
        for name in parts[0]
        if all(name in part and part[name].segments >= SEGMENTS for part in parts)
    }
    worst = max(shares.values(), default=0.0)
    if worst < limits.lost_share:
        return {}
    found: dict[str, Finding] = {}
    # Those at the other end of a bad cable send less again, for they have other ways, too.
    for name, share in sorted(shares.items(), key=lambda each: -each[1]):
        host = watched.places[name].host
        if share < max(limits.lost_share, 0.7 * worst) or f"{host} loses" in found:
            continue
        who = watched.who([name])
        text = (
            f"{share:.0%} of the packets of {who} are lost on the way, and sent again (in the last"
            f" {limits.slow_s:.0f} s), which makes it slow; look at the cable, the port of the switch and the network"
            f" card of {host} (`ethtool -S`: errors, drops)"
        )
        found[f"{host} loses"] = Finding(text, f"packets of {who} are hardly lost any more", (name,))
    return found


def swapping(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts that move memory to and from their swap all the time."""
    limits = paces.limits
    found = {}
    for host, seen in paces.machines.items():
        since = [each for each in seen if each.at >= now - limits.slow_s - limits.look_s]
        names = [
            name
            for name, place in paces.watched.places.items()
            if place.host == host and paces.tasks[name].swapped and paces.tasks[name].samples
        ]
        if not names or len(since) < 3 or since[-1].at - since[0].at < limits.slow_s / 2:
            continue
        rate = (since[-1].swapped - since[0].swapped) / (since[-1].at - since[0].at)
        moving = sum(new.swapped > old.swapped for old, new in zip(since, since[1:]))  # noqa: B905, RUF007  Python 3.8
        if rate < limits.swap_bytes_s or 2 * moving < len(since):
            continue
        name = max(names, key=lambda each: paces.tasks[each].swapped)
        pace, who = paces.tasks[name], paces.watched.who([name])
        text = (
            f"{host} has moved {amount(rate)}/s to and from its swap for {limits.slow_s:.0f} s, and {who} has"
            f" {amount(pace.swapped)} there beside {amount(pace.memory)} in memory: it needs less memory (a smaller"
            " shuffle buffer, fewer batches ahead), or a host with more"
        )
        found[f"{host} swaps"] = Finding(text, f"{host} swaps no more", (name,))
    return found


def slow_gpus(paces: Paces, now: float) -> dict[str, Finding]:
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
    """GPUs that have fewer lanes of PCIe than they could have."""
    watched = paces.watched
    found = {}
    for name, uuid, seen in _loads(paces, now):
        lanes = [each.lanes for each in seen if each.lanes is not None]
        busy = all((each.use or 0) > paces.limits.gpu_idle_use for each in seen)
        # One that rests may have given lanes up.
        if not busy or len(lanes) < len(seen) or not all(0 < width < most for width, most in lanes):
            continue
        width, most = lanes[-1]
        who = watched.who([name])
        text = (
            f"the GPU of {who} has {width} of {most} lanes of PCIe: what goes to and from it takes {most / width:.2g}x"
            " as long; look at its slot, riser or cable, and at what shares them (`lspci -vv`: LnkSta,"
            f" `nvidia-smi -q -i {uuid}`: Link Width) on {watched.places[name].host}"
        )
        found[f"{name} {uuid} lanes"] = Finding(
            text, f"the GPU of {who} has all its lanes of PCIe again", (name,)
        )
    return found


def idle_gpus(paces: Paces, now: float) -> dict[str, Finding]:
    """GPUs of workers that train all the time, and compute in half of it."""
    limits = paces.limits
    windows = paces.over(now - limits.slow_s, now)
    uses: dict[str, list[float]] = {}
    powers = []  # (mean, limit)
    for name, _, seen in _loads(paces, now):
        known = [each.use for each in seen if each.use is not None]
        # Of a GPU that does nothing at all no_gpu.py tells.
        if len(known) < IDLE_LOOKS or name not in windows or max(known) <= limits.gpu_idle_use:
            continue
        if paces.tasks[name].trains and goes_on(windows[name]):
            uses.setdefault(name, []).append(sum(known) / len(known))
            watts = paces.watts(seen)
            if watts and seen[-1].limit_w:
                powers.append((watts, seen[-1].limit_w))
    means = {name: sum(of_it) / len(of_it) for name, of_it in uses.items()}
    idle = {name: mean for name, mean in means.items() if mean <= limits.gpu_idle_mean}
    if not idle:
        return {}
    names, mean = list(idle), sum(idle.values()) / len(idle)
    who, at = paces.watched.who(names), ""
    if powers:
        each_w, limit_w = (sum(each) / len(powers) for each in zip(*powers))  # noqa: B905  Python 3.8
        at = f", at {each_w:.0f} W of {limit_w:.0f} W"
    text = (
        f"the GPUs of {who} have computed in {mean:.0f} % of the last {paces.gpu_window_s:.0f} s on the average{at}: up"
        f" to {100 / max(mean, 1.0):.1f}x faster steps, or larger batches, are in them; `tflaunch stacks` shows what"
        " their programs wait for: their input (prefetch(), num_parallel_calls), a ps, or small operations"
        " (tf.function, a larger batch)"
    )
    return {"gpus idle": Finding(text, f"the GPUs of {who} compute more again", tuple(names))}


def _loads(paces: Paces, now: float) -> Iterator[tuple[str, str, list[GpuLoad]]]:
    """Each GPU of a task (task, UUID), with enough of what NVML said of it lately."""
    for name, uuids in paces.watched.gpus.items():
        for uuid in uuids:
            seen = [each for each in paces.gpus.get(uuid, ()) if each.at >= now - paces.gpu_window_s]
            if name in paces.watched.places and len(seen) >= GPU_LOOKS:
                yield name, uuid, seen
