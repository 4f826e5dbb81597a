"""The GPUs of many hosts, ready to be shown: filtered, sorted, counted; as JSON, as CSV and as one line.  Pure.

A *device* is what a process can be given: a GPU, or a MIG instance.  It is `free`, `busy`, `leased`, `promised` (free,
but a run waits for it) or `broken`; a GPU that is divided into MIG instances is `mig`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tflaunch.planning.inventory import Gpu, GpuOrInstance, HostFacts, Ticket, in_use
from tflaunch.protocol.errors import ConnectError
from tflaunch.text.safe import one_line

State = Literal["free", "busy", "leased", "promised", "broken", "mig"]
STATES: tuple[State, ...] = ("free", "busy", "leased", "promised", "broken")  # of devices
Sort = Literal["host", "memory", "utilization", "temperature"]

NO_DRIVER = "no NVIDIA driver"
NO_GPU = "an NVIDIA driver, but no GPU"
IN_ORDER = (NO_DRIVER, NO_GPU)  # reasons for no GPUs that are no trouble
UNKNOWN = "unknown model"  # a lost GPU does not report its model


CSV_COLUMNS = (
    *("host", "index", "uuid", "name", "state", "busy", "error"),
    *("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"),
    *("utilization_percent", "temperature_c", "power_w", "power_limit_w", "ecc_errors"),
    *("users", "pids", "leased_by", "promised_to", "driver", "cuda"),
)


@dataclass(frozen=True)
class Answer:
    """What is known of one host: its last facts, and why it cannot be asked now; neither, before its first answer."""

    host: str
    facts: HostFacts | None = None
    age_s: float = 0.0  # of the facts
    error: ConnectError | None = None


@dataclass(frozen=True)
class Machine:
    """A host with GPUs, under all its names in the hostfile; `facts.gpus` are those to show."""

    names: tuple[str, ...]
    facts: HostFacts
    free: int  # free devices, those that are not shown included
    total: int  # all devices, those that are not shown included
    age_s: float
    error: ConnectError | None  # the host no longer answers: its GPUs are as they were `age_s` ago

    @property
    def gpus_or_instances(self) -> list[GpuOrInstance]:
        """Its devices, in the order in which they are shown."""
        return [device for gpu in self.facts.gpus for device in gpu.gpus_or_instances]


@dataclass(frozen=True)
class Overview:
    """All hosts of one look: those with GPUs, and why the others have none to show."""

    machines: tuple[Machine, ...]
    gpuless: Mapping[str, tuple[str, ...]]  # why -> hosts; empty under a filter
    failures: Mapping[str, ConnectError]  # hosts that never answered
    waiting: tuple[str, ...]  # hosts that have not answered yet
    hidden: int  # devices that a filter leaves out

    @property
    def counts(self) -> Counter[State]:
        """How many devices are in each state."""
        return Counter(state(device) for machine in self.machines for device in machine.gpus_or_instances)

    @property
    def models(self) -> dict[str, Counter[State]]:
        """The same for each model, the most frequent first."""
        found: dict[str, Counter[State]] = {}
        for machine in self.machines:
            for device in machine.gpus_or_instances:
                found.setdefault(short_name(device.name) or UNKNOWN, Counter())[state(device)] += 1
        return dict(sorted(found.items(), key=lambda item: -item[1].total()))

    @property
    def queue(self) -> list[Ticket]:
        """The runs that wait for any of these GPUs, in their order, each as one of the hosts knows it."""
        found = {(each.since, each.run): each for machine in self.machines for each in machine.facts.queue}
        return [found[place] for place in sorted(found)]

    @property
    def unreachable(self) -> dict[str, ConnectError]:
        """Every host that cannot be asked now, with why."""
        lost = {name: each.error for each in self.machines if each.error for name in each.names}
        return {**lost, **self.failures}


@dataclass(frozen=True)
class WantedGpus:
    """Which devices to show; a GPU in MIG mode is shown with those of its instances that fit."""

    free: bool = False
    model: str = ""  # part of the name; capitals do not matter
    min_free_bytes: int = 0

    @property
    def everything(self) -> bool:
        """Whether all devices are shown."""
        return self == WantedGpus()

    def pick(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """Those of `gpus` that fit."""
        if self.everything:
            return tuple(gpus)
        picked = []
        for gpu in gpus:
            fitting = {device.uuid for device in gpu.gpus_or_instances if self._fits(device, gpu)}
            if fitting and state(gpu) == "mig":
                picked.append(
                    dataclasses.replace(gpu, mig=tuple(each for each in gpu.mig if each.uuid in fitting))
                )
            elif fitting:
                picked.append(gpu)
        return tuple(picked)

    def _fits(self, device: GpuOrInstance, gpu: Gpu) -> bool:
        return (
            (not self.free or state(device) == "free")
            and self.model.lower() in f"{device.name} {gpu.name}".lower()
            and (device.memory_free_bytes if state(device) != "broken" else 0) >= self.min_free_bytes
        )


def state(device: GpuOrInstance) -> State:
    """The state of a GPU or a MIG instance."""
    if isinstance(device, Gpu):
        if device.error:
            return "broken"
        if device.mig:
            return "mig"
    if device.lease is not None:
        return "leased"
    if device.promised is not None and not in_use(device):
        return "promised"
    return "busy" if device.busy else "free"


def look(answers: Sequence[Answer], wanted: WantedGpus | None = None, sort: Sort = "host") -> Overview:
    """Return what these answers have to show.

    Two hosts that are one machine (equal boot_id and GPUs) become one.  `sort`: "host" keeps the order of `answers`
    and, within a host, NVML's.  "memory", "utilization" and "temperature" sort the GPUs of each host, and the hosts by
    their first GPU: the most free memory, the least utilization, the highest temperature first.
    """
    wanted = wanted or WantedGpus()
    machines: dict[object, Machine] = {}
    gpuless: dict[str, tuple[str, ...]] = {}
    failures: dict[str, ConnectError] = {}
    waiting = []
    for answer in answers:
        facts = answer.facts
        if facts is not None and facts.gpus:
            key = (facts.boot_id, tuple(gpu.uuid for gpu in facts.gpus))
            one = key if facts.boot_id and any(key[1]) else answer.host  # lost GPUs have no UUID to compare
            same = machines.get(one)
            names = (*(same.names if same else ()), answer.host)
            if same and (answer.error or not same.error):
                machines[one] = dataclasses.replace(same, names=names)
            else:
                free = sum(state(device) == "free" for device in facts.gpus_or_instances)
                machines[one] = Machine(
                    names, facts, free, len(facts.gpus_or_instances), answer.age_s, answer.error
                )
        elif answer.error is not None:
            failures[answer.host] = answer.error
        elif facts is None:
            waiting.append(answer.host)
        elif wanted.everything:
            reason = facts.gpu_note or (NO_GPU if facts.driver else NO_DRIVER)
            gpuless[reason] = (*gpuless.get(reason, ()), answer.host)
    shown = []
    for machine in machines.values():
        gpus = wanted.pick(machine.facts.gpus)
        if gpus or machine.error:
            gpus = tuple(sorted(gpus, key=_KEYS[sort]))
            shown.append(dataclasses.replace(machine, facts=dataclasses.replace(machine.facts, gpus=gpus)))
    if sort != "host":
        shown.sort(key=lambda machine: min(map(_KEYS[sort], machine.facts.gpus), default=(1, 0)))
    hidden = sum(each.total for each in machines.values()) - sum(
        len(each.gpus_or_instances) for each in shown
    )
    return Overview(tuple(shown), gpuless, failures, tuple(waiting), hidden)


def _most(value: int | None) -> tuple[int, int]:
    return (1, 0) if value is None else (0, -value)


# A GPU that does not report the value comes last; equal GPUs keep NVML's order.
_KEYS: Mapping[Sort, Any] = {
    "host": lambda _: (0, 0),
    "memory": lambda gpu: _most(
        max((each.memory_free_bytes for each in gpu.gpus_or_instances), default=None)
    ),
    "utilization": lambda gpu: (1, 0) if gpu.utilization_percent is None else (0, gpu.utilization_percent),
    "temperature": lambda gpu: _most(gpu.temperature_c),
}


def short_name(name: str) -> str:
    """A model without its maker: `H100 80GB HBM3`, `RTX 4090`."""
    return re.sub(r"^((NVIDIA|GeForce|Tesla)\s+)+", "", name)


def brief_name(name: str) -> str:
    """A model's shortest name, for narrow columns: `H100`, `RTX 4090`, `3g.20gb`."""
    instance = name.rpartition("MIG ")[2] if "MIG " in name else ""
    found = re.match(r"((RTX|GTX|TITAN|Quadro)\s+)*[^\s-]+", short_name(name))
    return instance or (found[0] if found else "")


def short_command(command: str) -> str:
    """A command line without the directories of the program and of its script: `python train.py --lr 1`."""
    words = command.split()
    paths = [number for number, word in enumerate(words) if not word.startswith("-")][:2]
    for number in paths:
        words[number] = words[number].rstrip("/").rpartition("/")[2] or words[number]
    return " ".join(words)


def document(overview: Overview, answers: Iterable[Answer], now: float) -> dict[str, Any]:
    """Everything, for `--json`: `hosts` in their order, each with its GPUs, or with its `error`; `summary`."""
    by_name = {name: machine for machine in overview.machines for name in machine.names}
    entries = []
    for answer in answers:
        machine = by_name.get(answer.host)
        if machine is not None and machine.names[0] != answer.host:
            continue
        error = machine.error if machine else answer.error
        entry: dict[str, Any] = {
            "host": answer.host,
            "names": list(machine.names) if machine else [answer.host],
            "error": error.data_for(answer.host) if error else None,
        }
        facts = machine.facts if machine else answer.facts
        if facts is not None:
            entry |= dataclasses.asdict(facts)
            del entry["ports"], entry["ports_taken"]  # this probe holds no ports
            entry["host"] = answer.host
            entry["age_s"] = round(machine.age_s if machine else answer.age_s, 3)
            entry["gpus"] = [_gpu_data(gpu) for gpu in (facts.gpus if machine else ())]
        entries.append(entry)
    return {
        "time": round(now, 3),
        "hosts": entries,
        "summary": {
            **_count_data(overview.counts),
            "models": {model: _count_data(counts) for model, counts in overview.models.items()},
        },
    }


def _gpu_data(gpu: Gpu) -> dict[str, Any]:
    data = dataclasses.asdict(gpu)
    for device, fields in zip((gpu, *gpu.mig), (data, *data["mig"]), strict=True):
        fields["label"] = device.label
        fields["state"] = state(device)
        fields["memory_free_bytes"] = device.memory_free_bytes
    return data


def _count_data(counts: Counter[State]) -> dict[str, int]:
    return {each: counts[each] for each in STATES}


def table(overview: Overview) -> str:
    """A line for each device, for `--csv`.  The first line names the columns; None is an empty field."""
    page = io.StringIO()

    def field(value: Any) -> Any:
        return one_line(value) if isinstance(value, str) else value

    writer = csv.DictWriter(page, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for machine in overview.machines:
        for gpu in machine.facts.gpus:
            for device in gpu.gpus_or_instances:
                row = {name: getattr(gpu, name) for name in CSV_COLUMNS if hasattr(gpu, name)}
                row |= {name: getattr(device, name) for name in CSV_COLUMNS if hasattr(device, name)}
                if device is not gpu:
                    row["utilization_percent"] = None  # NVML reports it for the whole GPU only
                row |= {
                    "host": machine.names[0],
                    "index": device.label,
                    "state": state(device),
                    "users": " ".join(sorted({each.user or "?" for each in device.processes})),
                    "pids": " ".join(str(each.pid) for each in device.processes),
                    "leased_by": device.lease.user if device.lease else "",
                    "promised_to": device.promised.user if device.promised else "",
                    "driver": machine.facts.driver,
                    "cuda": machine.facts.cuda,
                }
                writer.writerow({name: field(value) for name, value in row.items()})
    return page.getvalue()


def in_one_line(overview: Overview) -> str:
    """The devices of `overview` in a form that a script can split: `gpu01:0,2 gpu02:1`; "" when there is none."""
    found = (
        (machine.names[0], ",".join(device.label for device in machine.gpus_or_instances))
        for machine in overview.machines
        if not machine.error
    )
    return " ".join(one_line(f"{name}:{labels}") for name, labels in found if labels)
