"""NVML to facts: which GPUs a host has, how they are and who uses them, through NVIDIA's own `pynvml`.

Units are in the names.  What a GPU or its driver does not say is None; a GPU that is lost or broken has an `error`.  A
host without a driver has no GPUs: that is a fact, not an error.
"""

import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

# More than a driver or a desktop takes for itself: some program uses the GPU, even if a container hides its processes.
BUSY_MEMORY_BYTES = 512 * 1024 * 1024
BUSY_MIG_MEMORY_BYTES = (
    128 * 1024 * 1024
)  # a MIG instance has no desktop, and says nothing about its utilization
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


# What a question to NVML comes to where it does not answer; users and the launcher's advice know it by these words.
HANGS = "did not return"
CRASHED = "crashed"
SLOW = "too slow"
NOT_ASKED = "not asked"
WHO = "the user of pid"  # what hangs where a name service or a process hangs, not NVML


class Nvml:
    """The module pynvml, with a word before and after each call of a function of NVML: a call may never return.

    `tell(key, call)` gets the number of the device that is being asked, -1 for none, and the name of the function,
    "" once it has returned.
    """

    def __init__(self, module: "Any", tell: "Callable[[int, str], None]") -> None:
        self._module = module
        self._tell = tell
        self.key = -1
        self.users = True  # look up who owns the processes on a GPU: what names users may hang, too

    def __getattr__(self, name: str) -> "Any":
        function = getattr(self._module, name)
        if not (name.startswith("nvml") and callable(function)):
            return function

        def told(*arguments: "Any") -> "Any":
            self.begin(name)
            try:
                return function(*arguments)
            finally:
                self.begin("")

        self.__dict__[name] = told
        return told

    def begin(self, call: str) -> None:
        """Tell that this call begins; "": none does."""
        self._tell(self.key, call)


def probe(topology: bool = True) -> "Dict[str, Any]":
    """What NVML says of this host's GPUs, asked by this process itself: for what need not outlive a sick driver."""
    nvml, found = opened()
    if nvml is None:
        return assembled(found, {}, {})
    gpus = {}  # type: Dict[int, Any]
    for key, value in gpus_of(nvml, topology):
        if key < 0:
            found.update(value)
        else:
            gpus[key] = value
    nvml.nvmlShutdown()
    return assembled(found, gpus, {})


def opened(
    tell: "Optional[Callable[[int, str], None]]" = None, packed: bytes = b""
) -> "Tuple[Optional[Nvml], Dict[str, Any]]":
    """NVML, open; or None and why not: `note`, or `lacks`; {} where there is no driver.

    `packed` is the source of pynvml, for a host that has none.
    """
    try:
        from _ctypes import dlopen  # the rest of `ctypes` takes longer to load
    except ImportError:
        from ctypes import CDLL as dlopen  # type: ignore[assignment]

    say = tell or _silent
    say(-1, LIBRARY)
    try:
        dlopen(LIBRARY, 0)
    except OSError as error:
        return None, {} if "No such file" in str(error) else {"note": "%s: %s" % (LIBRARY, error)}
    say(-1, MODULE)
    try:
        module = _module(packed)
    except Exception as error:
        return None, {"note": "the module %s does not run on this host: %s" % (MODULE, error)}
    say(-1, "")
    if module is None:
        return None, {"lacks": MODULE}
    nvml = Nvml(module, say)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, {"note": "NVML: %s" % error}
    return nvml, {}


def _silent(key: int, call: str) -> None:
    """Tell nobody."""


def gpus_of(
    nvml: Nvml, topology: bool, known: "Sequence[int]" = (), without: "Sequence[int]" = ()
) -> "Iterator[Tuple[int, Any]]":
    """What NVML says, piece by piece: (-1, fields for `assembled`), and (index, [GPU, its locks]) for each GPU.

    Of each GPU its name comes first, with None for its locks: the calls that follow may hang.
    GPUs `known` are not asked again but for their connections; GPUs `without` are not touched.
    """
    nvml.key = -1
    try:
        version = ask(nvml, "nvmlSystemGetCudaDriverVersion") or 0
        yield (
            -1,
            {
                "driver": _text(ask(nvml, "nvmlSystemGetDriverVersion") or ""),
                "cuda": "%d.%d" % (version // 1000, version % 1000 // 10) if version else "",
            },
        )
        count = nvml.nvmlDeviceGetCount()
        yield -1, {"count": count}
        asked = [index for index in range(count) if index not in without]
        handles = {}  # type: Dict[int, Any]
        for index in asked:
            nvml.key = index
            if index not in known:
                yield from _gpu(nvml, index, handles)
        if topology:
            yield -1, {"links": _links(nvml, asked, handles)}
    except nvml.NVMLError as error:
        yield -1, {"note": "NVML: %s" % error}
    finally:
        nvml.key = -1


def assembled(said: "Dict[str, Any]", gpus: "Dict[int, Any]", failed: "Dict[int, str]") -> "Dict[str, Any]":
    """What a look at this host's GPUs has found.

    gpus      a dict for each GPU, in NVML's order: the fields of `tflaunch.planning.inventory.Gpu`
    driver    its version, "" without one; `cuda` is the newest CUDA version that it serves: "12.4"
    note      why there are no GPUs although there is a driver
    lacks     the module that the launcher has to send first, since this host does not have it; else ""
    locks     by UUID of a GPU or MIG instance: a file of root's that no user can delete, for a lease's lock

    `said` are the pieces of `gpus_of` for -1, `gpus` the others; `failed` says of other GPUs why they did not answer.
    """
    found = {"gpus": [], "driver": "", "cuda": "", "note": "", "lacks": "", "locks": {}}  # type: Dict[str, Any]
    found.update((name, said[name]) for name in said if name not in ("count", "links"))
    if found["note"]:
        return found
    links = said.get("links", {})
    for index in range(said.get("count", 0)):
        gpu, locks = gpus.get(index) or [_unknown(index), {}]
        gpu["error"] = gpu["error"] or failed.get(index, "")
        if str(index) in links and not gpu["error"]:
            gpu["links"] = links[str(index)]
        found["gpus"].append(gpu)
        found["locks"].update(locks or {})
    return found


def _unknown(index: int) -> "Dict[str, Any]":
    empty = {"uuid": "", "name": "", "memory_total_bytes": 0, "memory_used_bytes": 0, "error": ""}
    return dict(empty, index=index)


def uses(nvml: Nvml, devices: "Sequence[Tuple[str, str]]", without: "Sequence[int]" = ()) -> "Iterator[Any]":
    """(number, use) of each of these (UUID, label): `memory_used_bytes` and `processes`, or `error`."""
    for key, (uuid, label) in enumerate(devices):
        if key in without:
            continue
        nvml.key = key
        try:
            handle = device_of(nvml, uuid, label)
            memory = memory_of(nvml, handle)
            used = memory.used if memory else 0
            yield key, {"memory_used_bytes": used, "processes": _processes(nvml, handle)}
        except nvml.NVMLError as error:
            yield key, {"error": "NVML: %s" % error}


def device_of(nvml: Nvml, uuid: str, label: str) -> "Any":
    """That device, by its place (`3`, `3.1`) where it is still there: to find a UUID, NVML may touch every GPU."""
    index, _, instance = label.partition(".")
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(int(index))
        if instance:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, int(instance))
        if _text(nvml.nvmlDeviceGetUUID(handle)) == uuid:
            return handle
    except (ValueError, nvml.NVMLError):
        pass
    return nvml.nvmlDeviceGetHandleByUUID(uuid)


def _module(packed: bytes) -> "Any":
    if MODULE not in sys.modules and packed:
        module = type(sys)(MODULE)
        sys.modules[MODULE] = module  # before it runs: it looks itself up there
        source = zlib.decompress(packed)
        exec(compile(source, "<tflaunch>/%s.py" % MODULE, "exec"), module.__dict__)  # noqa: S102 - the launcher's own
    elif MODULE not in sys.modules:
        try:
            import site

            site.main()  # the agent starts without site-packages, to start fast
            import pynvml
        except Exception:  # whatever has that name there does not work: the launcher sends its own
            return None
    module = sys.modules[MODULE]
    return module if hasattr(module, "nvmlInit") else None  # some packages of that name hold nothing


def ask(nvml: "Any", function: str, *arguments: "Any") -> "Any":
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


def _gpu(nvml: Nvml, index: int, handles: "Dict[int, Any]") -> "Iterator[Tuple[int, List[Any]]]":
    gpu = _unknown(index)
    locks = {}  # type: Dict[str, str]
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        gpu["name"] = _text(ask(nvml, "nvmlDeviceGetName", handle) or "")
        gpu["minor"] = ask(nvml, "nvmlDeviceGetMinorNumber", handle)
        yield index, [gpu, None]
        _fill(nvml, handle, gpu)
        if gpu["pci_bus_id"]:
            locks[str(gpu["uuid"])] = "/sys/bus/pci/devices/%s/vendor" % gpu["pci_bus_id"]
        gpu["mig"] = _mig_devices(nvml, handle, gpu["minor"], locks) if gpu["mig_mode"] else []
        handles[index] = handle
    except nvml.NVMLError as error:
        gpu["error"] = str(error)
    yield index, [gpu, locks]


def _fill(nvml: "Any", handle: "Any", gpu: "Dict[str, Any]") -> None:
    memory = memory_of(nvml, handle)
    if memory is not None:
        gpu["memory_total_bytes"], gpu["memory_used_bytes"] = memory.total, memory.used
    usage = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    gpu["utilization_percent"] = usage.gpu if usage is not None else None
    gpu["temperature_c"] = ask(nvml, "nvmlDeviceGetTemperature", handle, 0)
    gpu["power_w"] = watts(ask(nvml, "nvmlDeviceGetPowerUsage", handle))
    gpu["power_limit_w"] = watts(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle))
    # Double-bit errors since the driver was loaded: what makes a result wrong.
    gpu["ecc_errors"] = ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    gpu["slowed_by"] = slowed_by(nvml, handle)
    mode = ask(nvml, "nvmlDeviceGetComputeMode", handle)
    gpu["compute_mode"] = COMPUTE_MODES.get(mode, "")
    persistence = ask(nvml, "nvmlDeviceGetPersistenceMode", handle)
    gpu["persistence"] = None if persistence is None else bool(persistence)
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    gpu["pci_bus_id"] = _bus_id(pci)
    gpu["numa_node"] = _numa_node(gpu["pci_bus_id"])
    mig = ask(nvml, "nvmlDeviceGetMigMode", handle)
    gpu["mig_mode"] = bool(mig[0]) if mig is not None else False
    gpu["processes"] = _processes(nvml, handle)


def slowed_by(nvml: "Any", handle: "Any") -> "List[str]":
    reasons = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # an older driver's name for it
        reasons = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return [word for bit, word in SLOWED_BY.items() if (reasons or 0) & bit]


def memory_of(nvml: "Any", handle: "Any") -> "Any":
    """`total` and `used` as nvidia-smi shows them, without what the driver reserves for itself (up to 1 GiB).

    In the older form of the answer, the only one before driver 510, newer drivers count that as used.
    """
    if hasattr(nvml, "nvmlMemory_v2"):
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        except nvml.NVMLError:
            pass
    return ask(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _processes(nvml: "Any", handle: "Any") -> "List[Dict[str, Any]]":
    """The processes on a GPU: `kind` compute, or graphics for those that only show a desktop with it."""
    found = {}  # type: Dict[int, Dict[str, Any]]
    for function, kind in (
        ("nvmlDeviceGetComputeRunningProcesses", "compute"),
        ("nvmlDeviceGetGraphicsRunningProcesses", "graphics"),
    ):
        for process in ask(nvml, function, handle) or ():
            found.setdefault(
                process.pid,
                dict(_who(nvml, process.pid), pid=process.pid, kind=kind, memory_bytes=process.usedGpuMemory),
            )
    return [found[pid] for pid in sorted(found)]


def _who(nvml: "Any", pid: int) -> "Dict[str, Any]":
    """User, command and start of a process; "" and None where a container or another user hides them."""
    import pwd

    who = {"user": "", "command": "", "started": None}  # type: Dict[str, Any]
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        who["user"] = str(uid)
        if not nvml.users:
            return who
        nvml.begin("%s %d" % (WHO, pid))
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
    finally:
        nvml.begin("")
    return who


def _mig_devices(
    nvml: "Any", handle: "Any", minor: "Optional[int]", locks: "Dict[str, str]"
) -> "List[Dict[str, Any]]":
    found = []
    for index in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if device is None:
            continue
        memory = memory_of(nvml, device)
        uuid = _text(ask(nvml, "nvmlDeviceGetUUID", device) or "")
        instances = [ask(nvml, "nvmlDeviceGet%sInstanceId" % kind, device) for kind in ("Gpu", "Compute")]
        if None not in (minor, *instances):
            locks[uuid] = "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/ci%d/access" % (minor, *instances)
        found.append(
            {
                "index": index,
                "uuid": uuid,
                "name": _text(ask(nvml, "nvmlDeviceGetName", device) or ""),
                "memory_total_bytes": memory.total if memory else 0,
                "memory_used_bytes": memory.used if memory else 0,
                "processes": _processes(nvml, device),
            }
        )
    return found


def _links(nvml: Nvml, asked: "Iterable[int]", handles: "Dict[int, Any]") -> "Dict[str, Dict[str, str]]":
    """By index of each GPU: the other's index to `NV18` (so many NVLinks) or `PIX` ... `SYS`."""
    nvlinks, buses = {}, {}  # type: Dict[int, List[str]], Dict[str, int]
    for index in asked:
        nvml.key = index
        try:
            if index not in handles:
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            nvlinks[index] = _nvlinks(nvml, handles[index])
            buses[_bus_id(ask(nvml, "nvmlDeviceGetPciInfo", handles[index]))] = index
        except nvml.NVMLError:
            nvlinks.pop(index, None)  # it is lost
    found = {}  # type: Dict[str, Dict[str, str]]
    for index, mine in nvlinks.items():
        nvml.key = index
        direct = {}  # type: Dict[int, int]
        for bus in mine:
            if bus in buses:
                direct[buses[bus]] = direct.get(buses[bus], 0) + 1
        found[str(index)] = {}
        for other, theirs in nvlinks.items():
            if other == index:
                continue
            # Links that end in no GPU end in an NVSwitch, which joins all GPUs that have such links.
            switched = min(_to_switch(mine, buses), _to_switch(theirs, buses))
            links = direct.get(other, 0) or switched
            level = None
            if not links:
                pair = (handles[index], handles[other])
                level = ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair)
            found[str(index)][str(other)] = "NV%d" % links if links else TOPOLOGY.get(level or 50, "SYS")
    return found


def _to_switch(links: "List[str]", buses: "Dict[str, int]") -> int:
    return sum(1 for bus in links if bus not in buses)


def _nvlinks(nvml: "Any", handle: "Any") -> "List[str]":
    """The PCI bus id at the far end of every NVLink that is up."""
    found = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # no NVLink, or no more of them
        if state:
            found.append(_bus_id(ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)))
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


def watts(milliwatts: "Optional[int]") -> "Optional[float]":
    return None if milliwatts is None else milliwatts / 1000.0


def _text(value: "Any") -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
