"""How GPUs are used, from one question to the next: what agent/gpus/use.py tells of each, and their Xids.

Runs in the process that asks NVML (driver_child.py).  What it knows, it knows as long as NVML stays open: NVML tells
only those Xids that come after it was asked to, and GPM compares two samples.
"""

import os

from tflaunch.gpu_probe import (
    BUSY_MEMORY_BYTES,
    BUSY_MIG_MEMORY_BYTES,
    ask,
    device_of,
    memory_of,
    slowed_by,
    watts,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

    from tflaunch.gpu_probe import Nvml

PIDS = 64  # of the processes on a GPU
XIDS = 64  # in one answer
WAIT_MS = 1  # for an Xid: those that have come are there
# Numbers of nvml.h.
BY_HEAT = 1  # nvmlPerfPolicyType_t; its times are nanoseconds
XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
WHOLE = 0xFFFFFFFF  # in place of a MIG instance: the Xid is not of one alone
# What an event says of the MIG instance, and which function says it of a device.
PARTS = {"gpuInstanceId": "nvmlDeviceGetGpuInstanceId", "computeInstanceId": "nvmlDeviceGetComputeInstanceId"}
LINK_SPEED, LINK_STATE = 164, 165  # NVML_FI_DEV_NVLINK_GET_SPEED (MB/s), _STATE
UP = (1, 2)  # NVML_NVLINK_STATE_ACTIVE, _SLEEP
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
GPM = (2, 5, 10)  # NVML_GPM_METRIC_SM_UTIL, _ANY_TENSOR_UTIL, _DRAM_BW_UTIL
MOST_LINKS = 36
NOTHING = ("use", "power_w", "limit_w", "pids", "heat_ms", "energy_j", "lanes", "pcie", "nvlinks", "gpm")


def unloaded(error: str) -> "Dict[str, Any]":
    """The load of a device that has said nothing."""
    load = dict.fromkeys(NOTHING)  # type: Dict[str, Any]
    load.update(memory_bytes=0, slowed_by=[], error=error)
    return load


class _Device:
    """What stays the same while NVML is open, and what the next question needs."""

    def __init__(self, handle: "Any", instance: bool) -> None:
        self.handle = handle
        self.instance = instance  # of MIG: what NVML says for one, where it says it, is the whole GPU's
        self.index = -1  # of the whole GPU
        self.hears = 0  # address of its handle, as events have it; 0: nobody has asked for its Xids
        self.parts = {}  # type: Dict[str, Optional[int]]  # of MIG: PARTS
        self.most = {}  # type: Dict[str, Optional[int]]  # of PCIe: Width, Generation
        self.links = -1  # NVLinks that it has; not asked yet
        self.samples = None  # type: Optional[List[Any]]  # of GPM, the older one first; []: it has none for us
        self.sampled = False  # the newer one of them is filled

    def has(self, event: "Any") -> bool:
        """Whether that Xid is one of its own, and not of another instance of its GPU."""
        return self.hears == _address(event.device) and all(
            part is None or getattr(event, name, WHOLE) in (WHOLE, part) for name, part in self.parts.items()
        )


class Loads:
    """Asks again and again."""

    def __init__(self, nvml: "Nvml") -> None:
        self._nvml = nvml
        self._devices = {}  # type: Dict[str, _Device]
        self._events = None  # type: Any  # the set of events; None: not asked for, or there is none

    def of(self, devices: "Sequence[Tuple[str, str]]", without: "Sequence[int]" = ()) -> "Iterator[Any]":
        """(number, load) of each of these (UUID, label), and the Xids since the last question as `xids` says."""
        nvml = self._nvml
        yield from self.xids()  # before what a sick card may do to this process
        for key, (uuid, label) in enumerate(devices):
            if key in without:
                continue
            nvml.key = key
            load = unloaded("")
            try:
                self._load(self._device(uuid, label), load)
            except nvml.NVMLError as error:
                load["error"] = "NVML: %s" % error
            yield key, load
        yield from self.xids()  # it may have been these calls that showed the driver what is wrong

    def xids(self) -> "Iterator[Any]":
        """(-1, {"xids": [[UUID, index, Xid]]}): what the driver has told of these GPUs since the last question."""
        nvml, found = self._nvml, []  # type: Any, List[List[Any]]
        nvml.key = -1
        while self._events is not None and len(found) < XIDS:
            try:
                event = ask(nvml, "nvmlEventSetWait", self._events, WAIT_MS)
            except nvml.NVMLError:
                break  # a GPU is lost, which its load says
            if event is None:
                break
            number = int(event.eventData)
            found += [[uuid, each.index, number] for uuid, each in self._devices.items() if each.has(event)]
        if found:
            yield -1, {"xids": found}

    def _device(self, uuid: str, label: str) -> _Device:
        found = self._devices.get(uuid)
        # MIG may have been changed meanwhile, and the handle stand for nothing.
        if found is None or ask(self._nvml, "nvmlDeviceGetUUID", found.handle) not in (uuid, uuid.encode()):
            handle = device_of(self._nvml, uuid, label)
            found = self._devices[uuid] = _Device(handle, uuid.startswith("MIG-"))
            self._hear_of_xids(found, label)
        return found

    def _hear_of_xids(self, device: _Device, label: str) -> None:
        """Have the driver note the Xids of that GPU from now on."""
        nvml, index = self._nvml, label.partition(".")[0]
        if not index.isdigit():
            return
        whole = device.handle
        if device.instance:
            whole = ask(nvml, "nvmlDeviceGetHandleByIndex", int(index))
            device.parts = {name: ask(nvml, function, device.handle) for name, function in PARTS.items()}
        if self._events is None:
            self._events = ask(nvml, "nvmlEventSetCreate")
        if whole is None or self._events is None:
            return
        heard = [each.hears for each in self._devices.values()]
        device.index, device.hears = int(index), _address(whole)
        if device.hears not in heard:
            ask(nvml, "nvmlDeviceRegisterEvents", whole, XID_EVENT, self._events)

    def _load(self, device: _Device, load: "Dict[str, Any]") -> None:
        nvml, handle = self._nvml, device.handle
        memory = memory_of(nvml, handle)
        load["memory_bytes"] = memory.used if memory else 0
        if not device.instance:
            usage = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
            load["use"] = usage.gpu if usage is not None else None
            load["power_w"] = watts(ask(nvml, "nvmlDeviceGetPowerUsage", handle))
            load["limit_w"] = watts(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle))
            load["slowed_by"] = slowed_by(nvml, handle)
            held = ask(nvml, "nvmlDeviceGetViolationStatus", handle, BY_HEAT)
            load["heat_ms"] = None if held is None else int(held.violationTime // 10**6)
            spent_mj = ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
            load["energy_j"] = None if spent_mj is None else int(spent_mj // 1000)
            load["lanes"] = self._pcie(device, "Width")
            load["pcie"] = self._pcie(device, "Generation")
            load["nvlinks"] = self._nvlinks(device)
            load["gpm"] = self._gpm(device)
        running = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        pids = sorted(process.pid for process in running or ())[:PIDS]
        most = BUSY_MIG_MEMORY_BYTES if device.instance else BUSY_MEMORY_BYTES
        hidden = (load["memory_bytes"] > most and not pids) or any(
            not os.path.exists("/proc/%d" % pid) for pid in pids
        )
        load["pids"] = None if running is None or hidden else pids

    def _pcie(self, device: _Device, what: str) -> "Optional[List[int]]":
        """[now, at most] of its PCIe."""
        if what not in device.most:
            device.most[what] = ask(self._nvml, "nvmlDeviceGetMaxPcieLink" + what, device.handle)
        most = device.most[what]
        now = None if most is None else ask(self._nvml, "nvmlDeviceGetCurrPcieLink" + what, device.handle)
        return None if now is None or most is None else [now, most]

    def _nvlinks(self, device: _Device) -> "Optional[List[int]]":
        """MB/s of each NVLink: 0 of one that is down, 1 of one that is up and does not tell; None without NVLink."""
        nvml, handle = self._nvml, device.handle
        if device.links < 0:
            device.links = 0
            while device.links < MOST_LINKS and self._is_up(device, device.links) is not None:
                device.links += 1
        if not device.links:
            return None
        wanted = [(field, link) for field in (LINK_STATE, LINK_SPEED) for link in range(device.links)]
        values = [_value(each) for each in ask(nvml, "nvmlDeviceGetFieldValues", handle, wanted) or ()]
        states, speeds = values[: device.links], values[device.links :]
        if None in states or not states:  # an older driver
            return [int(bool(self._is_up(device, link))) for link in range(device.links)]
        pairs = zip(states, speeds)  # noqa: B905 - Python 3.8
        return [(speed or 1) if state in UP else 0 for state, speed in pairs]

    def _is_up(self, device: _Device, link: int) -> "Any":
        return ask(self._nvml, "nvmlDeviceGetNvLinkState", device.handle, link)

    def _gpm(self, device: _Device) -> "Optional[List[float]]":
        """Percent of SMs that computed, of tensor cores, of the memory's speed, since the last question.

        None where the GPU has no GPM, as Hopper and newer do, and once another program has it.
        """
        nvml, handle = self._nvml, device.handle
        if device.samples is None:
            support = ask(nvml, "nvmlGpmQueryDeviceSupport", handle)
            has = support is not None and support.isSupportedDevice
            made = [ask(nvml, "nvmlGpmSampleAlloc") for _ in range(2)] if has else []
            device.samples = [] if None in made else made
        if not device.samples:
            return None
        device.samples.reverse()
        older, newer = device.samples
        if ask(nvml, "nvmlGpmSampleGet", handle, newer) is None:
            device.samples = []
            return None
        compared, device.sampled = device.sampled, True
        return self._since(older, newer) if compared else None

    def _since(self, older: "Any", newer: "Any") -> "Optional[List[float]]":
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        question.sample1, question.sample2 = older, newer
        for at, metric in enumerate(GPM):
            question.metrics[at].metricId = metric
        answer = ask(nvml, "nvmlGpmMetricsGet", question)
        metrics = [answer.metrics[at] for at in range(len(GPM))] if answer is not None else []
        # What is not a number compares with nothing.
        good = bool(metrics) and all(each.nvmlReturn == 0 and 0 <= each.value <= 100 for each in metrics)
        return [round(each.value, 1) for each in metrics] if good else None


def _value(field: "Any") -> "Optional[int]":
    """What NVML has filled into a field; None where it has not."""
    known = field.nvmlReturn == 0 and 0 <= field.valueType < len(VALUES)
    return int(getattr(field.value, VALUES[field.valueType])) if known else None


def _address(handle: "Any") -> int:
    from ctypes import addressof

    return addressof(handle.contents)
