"""This machine: who it is, its C library, how many files a process may open."""

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


def libc(function: str, *arguments: "Any") -> int:
    """What that function of the C library returns; raises OSError or AttributeError when it has none of that name."""
    try:
        from _ctypes import call_function, dlopen, dlsym  # the rest of `ctypes` takes longer to load
    except ImportError:
        import ctypes

        return int(getattr(ctypes.CDLL(None), function)(*arguments))
    return int(call_function(dlsym(dlopen(None, 0), function), arguments))  # type: ignore[arg-type]


def allow_many_descriptors() -> None:
    """Let this process open as many files as it may."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # what there is mostly suffices


def this_machine() -> "List[str]":
    """[host name, boot id]: pids mean something only where both are the same."""
    return [socket.gethostname(), first_line("/proc/sys/kernel/random/boot_id")]


def first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
