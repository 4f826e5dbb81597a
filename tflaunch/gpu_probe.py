"""NVML to facts: which GPUs a host has, how they are and who uses them, through NVIDIA's own `pynvml`.

Units are in the names.  What a GPU or its driver does not say is None; a GPU that is lost or broken has an `error`.  A
host without a driver has no GPUs: that is a fact, not an error.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional

# More than a driver or a desktop takes for itself: some program uses the GPU, even if a container hides its processes.
BUSY_MEMORY_BYTES = 512 * 1024 * 1024
BUSY_MIG_MEMORY_BYTES = (
    128 * 1024 * 1024
)  # a MIG instance has no desktop, and says nothing about its utilization
PIDS = 64  # of the processes on a GPU that are listed in `loads`
COMMAND_BYTES = 1024  # of the command line of a process on a GPU
LIBRARY = "libnvidia-ml.so.1"
MODULE = "pynvml"

# NVML's nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo`.
TOPOLOGY = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# Those of NVML's nvmlClocksEventReasons that slow a GPU down.
SLOWED_BY = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}


def probe(topology: bool = True) -> "Dict[str, Any]":
    """One `Look.probe`, for which NVML is opened and closed."""
    look = Look()
    try:
        return look.probe(topology)
    finally:
        look.close()


class Look:
    """NVML, open from the first probe to `close`: to open it takes longer than all questions.

    After an error the next probe opens it again, for the driver may be a new one.
    """

    def __init__(self) -> None:
        self._nvml = None  # type: Any
        self._worked = False
        # NVML was open and cannot be opened again: this process may have loaded the library of an old driver.
        self.stale = False

    def close(self) -> None:
        """Leave the driver alone; the next probe opens NVML again."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                pass  # the GPU or the driver is lost

    def probe(self, topology: bool = True) -> "Dict[str, Any]":
        """The GPUs of this host now.

        gpus      a dict for each GPU, in NVML's order: the fields of `tflaunch.planning.inventory.Gpu`
        driver    its version, "" without one; `cuda` is the newest CUDA version that it serves: "12.4"
        note      why there are no GPUs although there is a driver
        lacks     the module that the launcher has to send first, since this host does not have it; else ""
        locks     by UUID of a GPU or MIG instance: a file of root's that no user can delete, for a lease's lock

        With `topology` also how the GPUs are connected, which never changes and takes the most calls.
        """
        kept = self._nvml is not None
        found = self._probe(topology)
        if _ails(found):
            self.close()
            if kept:
                found = self._probe(topology)
                if _ails(found):
                    self.close()
        return found

    def _probe(self, topology: bool) -> "Dict[str, Any]":
        locks = {}  # type: Dict[str, str]
        found = {"gpus": [], "driver": "", "cuda": "", "note": "", "lacks": "", "locks": locks}  # type: Dict[str, Any]
        found.update(self._open())
        nvml = self._nvml
        if nvml is None:
            return found
        try:
            found["driver"] = _text(_ask(nvml, "nvmlSystemGetDriverVersion") or "")
            version = _ask(nvml, "nvmlSystemGetCudaDriverVersion") or 0
            found["cuda"] = "%d.%d" % (version // 1000, version % 1000 // 10) if version else ""
            count = nvml.nvmlDeviceGetCount()
            handles = {}  # type: Dict[int, Any]
            found["gpus"] = [_gpu(nvml, index, handles, locks) for index in range(count)]
            if topology:
                _connect(nvml, found["gpus"], handles)
        except nvml.NVMLError as error:
            found["note"] = "NVML: %s" % error
        return found

    def _open(self) -> "Dict[str, str]":
        """Open NVML; returns `note` or `lacks` when that fails, {} also when there is no driver."""
        if self._nvml is not None:
            return {}
        try:
            from _ctypes import dlopen  # the rest of `ctypes` takes longer to load
        except ImportError:
            from ctypes import CDLL as dlopen  # type: ignore[assignment]

        try:
            dlopen(LIBRARY, 0)
        except OSError as error:
            return {} if "No such file" in str(error) else {"note": "%s: %s" % (LIBRARY, error)}
        nvml = _module()
        if nvml is None:
            return {"lacks": MODULE}
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self.stale = self._worked
            return {"note": "NVML: %s" % error}
        self._nvml, self._worked, self.stale = nvml, True, False
        return {}

    def uses(self, uuids: "Iterable[str]") -> "Dict[str, Dict[str, Any]]":
        """By UUID of a GPU or MIG instance: `memory_used_bytes` and `processes`, or `error`."""
        failure = self._open()
        nvml = self._nvml
        found = {}  # type: Dict[str, Dict[str, Any]]
        for uuid in uuids:
            if nvml is None:
                found[uuid] = {"error": failure.get("note") or "NVML is not there"}
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                memory = _memory(nvml, handle)
                found[uuid] = {
                    "memory_used_bytes": memory.used if memory else 0,
                    "processes": _processes(nvml, handle),
                }
            except nvml.NVMLError as error:
                found[uuid] = {"error": "NVML: %s" % error}
        return found

    def loads(self, uuids: "Iterable[str]") -> "Dict[str, Dict[str, Any]]":
        """By UUID of a GPU or MIG instance: how it is used, as agent/gpus/use.py says."""
        failure = self._open()
        nvml = self._nvml
        found = {}  # type: Dict[str, Dict[str, Any]]
        for uuid in uuids:
            load = dict.fromkeys(("use", "power_w", "limit_w", "pids"))  # type: Dict[str, Any]
            load.update(memory_bytes=0, error="")
            found[uuid] = load
            if nvml is None:
                load["error"] = failure.get("note") or "NVML is not there"
                continue
            try:
                _load(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), uuid.startswith("MIG-"), load)
            except nvml.NVMLError as error:
                load["error"] = "NVML: %s" % error
        return found


def _load(nvml: "Any", handle: "Any", instance: bool, load: "Dict[str, Any]") -> None:
    memory = _memory(nvml, handle)
    load["memory_bytes"] = memory.used if memory else 0
    if not instance:  # what NVML says for an instance, where it says it, is the whole GPU's
        usage = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        load["use"] = usage.gpu if usage is not None else None
        load["power_w"] = _watts(_ask(nvml, "nvmlDeviceGetPowerUsage", handle))
        load["limit_w"] = _watts(_ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle))
    running = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    pids = sorted(process.pid for process in running or ())[:PIDS]
    most = BUSY_MIG_MEMORY_BYTES if instance else BUSY_MEMORY_BYTES
    hidden = (load["memory_bytes"] > most and not pids) or any(
        not os.path.exists("/proc/%d" % pid) for pid in pids
    )
    load["pids"] = None if running is None or hidden else pids


def _ails(found: "Dict[str, Any]") -> bool:
    return bool(found["note"] or any(gpu["error"] for gpu in found["gpus"]))


def _module() -> "Any":
    if MODULE not in sys.modules:
        try:
            import site

            site.main()  # the agent starts without site-packages, to start fast
            import pynvml
        except Exception:  # whatever has that name there does not work: the launcher sends its own
            return None
    module = sys.modules[MODULE]
    return module if hasattr(module, "nvmlInit") else None  # some packages of that name hold nothing


def _ask(nvml: "Any", function: str, *arguments: "Any") -> "Any":
    """What that NVML function answers; None when this GPU, driver or module does not know it.

    Raises NVMLError for a GPU that does not answer at all.
    """
    try:
        return getattr(nvml, function)(*arguments)
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        if error.value in (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_UNKNOWN,
            nvml.NVML_ERROR_IRQ_ISSUE,
        ):
            raise
        return None


def _gpu(nvml: "Any", index: int, handles: "Dict[int, Any]", locks: "Dict[str, str]") -> "Dict[str, Any]":
    gpu = {
        "index": index,
        "uuid": "",
        "name": "",
        "memory_total_bytes": 0,
        "memory_used_bytes": 0,
        "error": "",
    }
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        handles[index] = handle
        gpu["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        gpu["name"] = _text(_ask(nvml, "nvmlDeviceGetName", handle) or "")
        _fill(nvml, handle, gpu)
        if gpu["pci_bus_id"]:
            locks[str(gpu["uuid"])] = "/sys/bus/pci/devices/%s/vendor" % gpu["pci_bus_id"]
        gpu["mig"] = _mig_devices(nvml, handle, locks) if gpu["mig_mode"] else []
    except nvml.NVMLError as error:
        gpu["error"] = str(error)
    return gpu


def _fill(nvml: "Any", handle: "Any", gpu: "Dict[str, Any]") -> None:
    memory = _memory(nvml, handle)
    if memory is not None:
        gpu["memory_total_bytes"], gpu["memory_used_bytes"] = memory.total, memory.used
    usage = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    gpu["utilization_percent"] = usage.gpu if usage is not None else None
    gpu["temperature_c"] = _ask(nvml, "nvmlDeviceGetTemperature", handle, 0)
    gpu["power_w"] = _watts(_ask(nvml, "nvmlDeviceGetPowerUsage", handle))
    gpu["power_limit_w"] = _watts(_ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle))
    # Double-bit errors since the driver was loaded: what makes a result wrong.
    gpu["ecc_errors"] = _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # an older driver's name for it
        reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    gpu["slowed_by"] = [word for bit, word in SLOWED_BY.items() if (reasons or 0) & bit]
    mode = _ask(nvml, "nvmlDeviceGetComputeMode", handle)
    gpu["compute_mode"] = COMPUTE_MODES.get(mode, "")
    persistence = _ask(nvml, "nvmlDeviceGetPersistenceMode", handle)
    gpu["persistence"] = None if persistence is None else bool(persistence)
    pci = _ask(nvml, "nvmlDeviceGetPciInfo", handle)
    gpu["pci_bus_id"] = _bus_id(pci)
    gpu["numa_node"] = _numa_node(gpu["pci_bus_id"])
    mig = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    gpu["mig_mode"] = bool(mig[0]) if mig is not None else False
    gpu["processes"] = _processes(nvml, handle)


def _memory(nvml: "Any", handle: "Any") -> "Any":
    """`total` and `used` as nvidia-smi shows them, without what the driver reserves for itself (up to 1 GiB).

    In the older form of the answer, the only one before driver 510, newer drivers count that as used.
    """
    if hasattr(nvml, "nvmlMemory_v2"):
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        except nvml.NVMLError:
            pass
    return _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _processes(nvml: "Any", handle: "Any") -> "List[Dict[str, Any]]":
    """The processes on a GPU: `kind` compute, or graphics for those that only show a desktop with it."""
    found = {}  # type: Dict[int, Dict[str, Any]]
    for function, kind in (
        ("nvmlDeviceGetComputeRunningProcesses", "compute"),
        ("nvmlDeviceGetGraphicsRunningProcesses", "graphics"),
    ):
        for process in _ask(nvml, function, handle) or ():
            found.setdefault(
                process.pid,
                dict(_who(process.pid), pid=process.pid, kind=kind, memory_bytes=process.usedGpuMemory),
            )
    return [found[pid] for pid in sorted(found)]


def _who(pid: int) -> "Dict[str, Any]":
    """User, command and start of a process; "" and None where a container or another user hides them."""
    import pwd

    who = {"user": "", "command": "", "started": None}  # type: Dict[str, Any]
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        who["user"] = str(uid)
        who["user"] = pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        pass
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(COMMAND_BYTES).split(b"\0")
        who["command"] = b" ".join(words).decode("utf-8", "replace").strip()
        with open("/proc/%d/stat" % pid, "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
        who["started"] = booted + ticks / float(os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    return who


def _mig_devices(nvml: "Any", handle: "Any", locks: "Dict[str, str]") -> "List[Dict[str, Any]]":
    found = []
    minor = _ask(nvml, "nvmlDeviceGetMinorNumber", handle)
    for index in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if device is None:
            continue
        memory = _memory(nvml, device)
        uuid = _text(_ask(nvml, "nvmlDeviceGetUUID", device) or "")
        instances = [_ask(nvml, "nvmlDeviceGet%sInstanceId" % kind, device) for kind in ("Gpu", "Compute")]
        if None not in (minor, *instances):
            locks[uuid] = "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/ci%d/access" % (minor, *instances)
        found.append(
            {
                "index": index,
                "uuid": uuid,
                "name": _text(_ask(nvml, "nvmlDeviceGetName", device) or ""),
                "memory_total_bytes": memory.total if memory else 0,
                "memory_used_bytes": memory.used if memory else 0,
                "processes": _processes(nvml, device),
            }
        )
    return found


def _connect(nvml: "Any", gpus: "List[Dict[str, Any]]", handles: "Dict[int, Any]") -> None:
    """`links` of each GPU: the other's index to `NV18` (so many NVLinks) or `PIX` ... `SYS`."""
    working = [gpu for gpu in gpus if not gpu["error"]]
    nvlinks = {gpu["index"]: _nvlinks(nvml, handles[gpu["index"]]) for gpu in working}
    buses = {gpu["pci_bus_id"]: gpu["index"] for gpu in working}
    for gpu in working:
        mine = nvlinks[gpu["index"]]
        direct = {}  # type: Dict[int, int]
        for bus in mine:
            if bus in buses:
                direct[buses[bus]] = direct.get(buses[bus], 0) + 1
        gpu["links"] = {}
        for other in working:
            if other is gpu:
                continue
            # Links that end in no GPU end in an NVSwitch, which joins all GPUs that have such links.
            switched = min(_to_switch(mine, buses), _to_switch(nvlinks[other["index"]], buses))
            links = direct.get(other["index"], 0) or switched
            level = None
            if not links:
                pair = (handles[gpu["index"]], handles[other["index"]])
                level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair)
            gpu["links"][str(other["index"])] = "NV%d" % links if links else TOPOLOGY.get(level or 50, "SYS")


def _to_switch(links: "List[str]", buses: "Dict[str, int]") -> int:
    return sum(1 for bus in links if bus not in buses)


def _nvlinks(nvml: "Any", handle: "Any") -> "List[str]":
    """The PCI bus id at the far end of every NVLink that is up."""
    found = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = _ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # no NVLink, or no more of them
        if state:
            found.append(_bus_id(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)))
    return found


def _bus_id(pci: "Any") -> str:
    """`0000:18:00.0`, as /sys spells it; NVML's own has eight digits of domain."""
    if pci is None:
        return ""
    return "%04x:%02x:%02x.0" % (pci.domain, pci.bus, pci.device)


def _numa_node(bus_id: str) -> "Optional[int]":
    try:
        with open("/sys/bus/pci/devices/%s/numa_node" % bus_id) as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the machine has one


def _watts(milliwatts: "Optional[int]") -> "Optional[float]":
    return None if milliwatts is None else milliwatts / 1000.0


def _text(value: "Any") -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
