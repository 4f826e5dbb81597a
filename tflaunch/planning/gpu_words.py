"""Words for the GPUs that are there, in the errors where they are too few; pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tflaunch import gpu_probe
from tflaunch.hosts import fold
from tflaunch.planning.gpu_choice import LeftOut
from tflaunch.planning.inventory import GpuOrInstance, HostFacts
from tflaunch.protocol.errors import PlanError
from tflaunch.text.numbers import counted

_REASONS_SHOWN = 2


def one_of(*ways: str) -> str:
    """`Ask for less, or take more.`"""
    *most, last = ways
    sentence = ", or ".join(filter(None, [", ".join(most), last]))
    return f"{sentence[0].upper()}{sentence[1:]}."


def advice(said: str) -> str:
    """What to do about a driver, or a GPU, of which NVML says that; "" for what has no advice of its own."""
    return next((way for words, way in _WAYS if words in said.lower()), "")


def repair(said: str, hosts: str = "") -> str:
    """The same on these hosts; where nothing is known, how to find out more."""
    if way := advice(said):
        return f"on {hosts}, {way}" if hosts else way
    return f"look with nvidia-smi on {hosts}" if hosts else "look there with nvidia-smi -q"


_WAYS = (
    (
        gpu_probe.HANGS,
        "it fell off the bus, or the driver hangs: `sudo dmesg | grep -i xid` there; a reset of the GPU, or a reboot, "
        "helps; nvidia-smi may hang as well",
    ),
    (
        gpu_probe.CRASHED,
        "driver and library do not fit, or are damaged: reboot it, or install the driver again",
    ),
    (
        gpu_probe.SLOW,
        "wait longer (--connect-timeout 2m; of tflaunch gpus, --timeout); nvidia-persistenced keeps a driver awake",
    ),
    (gpu_probe.NOT_ASKED, "reboot it: nothing else ends what waits in its driver"),
    (
        "mismatch",
        "the driver was updated: reboot it, or reload its kernel modules (rmmod nvidia_uvm nvidia; modprobe nvidia)",
    ),
    ("not loaded", "the nvidia module is not loaded: `modprobe nvidia` says why"),
    ("is lost", "it fell off the bus: a reset of the GPU (nvidia-smi --gpu-reset), or a reboot, helps"),
)


def what_keeps_them(there: Iterable[GpuOrInstance]) -> list[str]:
    """`3 busy: in use by ada` and `4 left out: not in MIG mode (--mig)`; a GPU of both kinds counts as left out."""
    busy: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for device in there:
        if device.busy:
            (left_out if isinstance(device.busy, LeftOut) else busy)[device.busy] += 1
    told = []
    for name, reasons in (("busy", busy), ("left out", left_out)):
        if reasons:
            shown = [reason for reason, _ in reasons.most_common(_REASONS_SHOWN)]
            more = ["..."] if len(reasons) > len(shown) else []
            told.append(f"{reasons.total()} {name}: {', '.join(shown + more)}")
    return told


def not_one_of_it(hosts: Sequence[tuple[str, HostFacts]]) -> PlanError | None:
    """The error where --gpu-model leaves out every GPU of these hosts, with the models that are there."""
    found = [(name, device) for name, facts in hosts for device in facts.gpus_or_instances]
    reasons = [device.busy for _, device in found]
    if not found or not all(
        isinstance(why, LeftOut) and why.option.startswith("--gpu-model") for why in reasons
    ):
        return None
    option = next(why.option for why in reasons if isinstance(why, LeftOut))
    counts: Counter[str] = Counter(device.name for _, device in found)
    free = Counter(
        device.name for _, device in found if isinstance(device.busy, LeftOut) and not device.busy.in_use
    )
    where: dict[str, dict[str, None]] = defaultdict(dict)
    for name, device in found:
        where[device.name][name] = None
    there = "; ".join(
        f"{count} x {model} ({fold(where[model])}), {free[model]} free"
        for model, count in counts.most_common()
    )
    first = shlex.quote(short_name((free or counts).most_common(1)[0][0], counts))
    return PlanError(
        f"{option}: none of the {counted(len(found), 'GPU')} is one; there are {there}",
        one_of(f"name a model that is there: --gpu-model {first}", "leave --gpu-model out"),
    )


def short_name(name: str, others: Iterable[str]) -> str:
    """A word of the name that no other model has, if possible with a number in it; else the whole name."""
    rest = " ".join(other for other in others if other != name).lower()
    words = [word for word in name.split() if word.lower() not in rest]
    return next((word for word in words if any(map(str.isdigit, word))), (words or [name])[0])
