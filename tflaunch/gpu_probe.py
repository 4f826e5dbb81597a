"""NVML to facts: which cards this host has and which of them are in use, through NVIDIA's own `pynvml`."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

NVML_LIBRARY = "libnvidia-ml.so.1"
MODULE = "pynvml"
BUSY_MEMORY_BYTES = 512 * 1024 * 1024  # more in use than a driver takes for itself: somebody is there


def gpus() -> "Tuple[List[Dict[str, Any]], str, str]":
    """(cards, note, lacking): the fields of `tflaunch.inventory.Gpu` for each card of this host.

    `note` says why there is none although a driver is there; `lacking` names a module that must be sent
    first.  A host without a driver has no cards: that is a fact, not an error.
    """
    import ctypes

    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError as error:
        if "No such file" in str(error):
            return [], "", ""
        return [], "%s: %s" % (NVML_LIBRARY, error), ""
    nvml = _module()
    if nvml is None:
        return [], "", MODULE
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], "NVML: %s" % error, ""
    try:
        return [_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount())], "", ""
    except nvml.NVMLError as error:
        return [], "NVML: %s" % error, ""
    finally:
        nvml.nvmlShutdown()


def _module() -> "Any":
    if MODULE not in sys.modules:
        try:
            import site

            site.main()  # the agent starts without site-packages, to start fast
            import pynvml
        except Exception:  # whatever stands there by that name: ours is sent instead
            return None
    module = sys.modules[MODULE]
    return module if hasattr(module, "nvmlInit") else None  # some packages of that name hold nothing


def _card(nvml: "Any", index: int) -> "Dict[str, Any]":
    """One card; a lost or broken one is a busy card whose reason says so."""
    card = {
        "index": index,
        "uuid": "",
        "name": "?",
        "memory_total_bytes": 0,
        "memory_used_bytes": 0,
        "busy": "",
    }
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        card["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        card["name"] = _text(nvml.nvmlDeviceGetName(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        card["memory_total_bytes"], card["memory_used_bytes"] = memory.total, memory.used
    except nvml.NVMLError as error:
        card["busy"] = "broken: %s" % error
        return card
    card["busy"] = _busy(nvml, handle, memory.used)
    return card


def _busy(nvml: "Any", handle: "Any", used: int) -> str:
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # not every driver tells: then memory does
        processes = []
    if processes:
        return "in use by " + ", ".join(sorted({_owner(process.pid) for process in processes}))
    try:
        if nvml.nvmlDeviceGetComputeMode(handle) == nvml.NVML_COMPUTEMODE_PROHIBITED:
            return "compute mode is PROHIBITED"
    except nvml.NVMLError:
        pass
    if used > BUSY_MEMORY_BYTES:
        return "%.1f GiB in use by a process that is not visible here" % (used / 2.0**30)
    return ""


def _owner(pid: int) -> str:
    import pwd

    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        return "%s (pid %d)" % (pwd.getpwuid(uid).pw_name, pid)
    except (OSError, KeyError):
        return "pid %d" % pid


def _text(value: "Any") -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
