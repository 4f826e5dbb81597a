"""This machine: its name and boot, its C library, how many files a process may open."""

import os

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

# What sizes the thread pools of OpenMP and TensorFlow, and names the network of NCCL and gloo, unless a program does.
YIELDING = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "GLOO_SOCKET_IFNAME",
    "HOROVOD_GLOO_IFACE",
)


def libc(function: str, *arguments: "Any") -> int:
    """Call a function of the C library, without importing ctypes; raises OSError or AttributeError if there is none."""
    try:
        from _ctypes import call_function, dlopen, dlsym  # the rest of `ctypes` takes longer to load
    except ImportError:
        import ctypes

        return int(getattr(ctypes.CDLL(None), function)(*arguments))
    return int(call_function(dlsym(dlopen(None, 0), function), arguments))  # type: ignore[arg-type]


def allow_many_descriptors() -> None:
    """Raise this process's limit of open files as far as the system allows."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # the usual limit is mostly enough


def this_machine() -> "List[str]":
    """[host name, boot id]; only where both are equal does a pid stand for the same process."""
    return [socket.gethostname(), first_line("/proc/sys/kernel/random/boot_id")]


def pid_namespace() -> int:
    """Which PID namespace this process is in: elsewhere, even on this machine, a pid stands for another process."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def first_line(path: str) -> str:
    """The first line of a file, stripped; "" where it cannot be read."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
