"""What this host is, as the `facts` message tells it (tflaunch.inventory reads it on the other side)."""

import array
import fcntl
import os
import struct
import sys
import time
import zlib

from tflaunch.agent import leases, socket, tickets
from tflaunch.agent.rundir import HostError
from tflaunch.agent.tickets import Place
from tflaunch.gpu_probe import Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

SIOCGIFCONF = 0x8912
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def ask(look: Look, topology: bool = True) -> "Dict[str, Any]":
    """What NVML says; raises HostError when only a fresh process can still ask it."""
    probed = look.probe(topology)
    if look.stale:
        raise HostError("its NVIDIA driver was replaced", "it is asked anew in a moment")
    return probed


def collect(
    ports: "List[int]",
    directory: str,
    probed: "Dict[str, Any]",
    place: Place,
    lease: "Callable[[str], Optional[Dict[str, Any]]]" = leases.holder,
) -> "Dict[str, Any]":
    """All fields of `facts`; `ports` are those that the agent holds, `directory` is on the runs' disk.

    `probed` is what NVML has just said.  `lease` tells who holds a device: `Leases.take` takes it in this same
    step when nobody does.  One that is promised to a run before `place` in the queue is only looked at.
    """
    queue = place.ahead()
    for card in probed["gpus"]:
        for device in card.get("mig") or [card]:
            uuid = device["uuid"]
            if uuid and not device.get("error"):
                device["promised"] = tickets.promise(uuid, queue)
                try:
                    device["lease"] = (leases.holder if device["promised"] else lease)(uuid)
                except HostError as error:
                    device["lease_error"] = error.reason
    return {
        "hostname": socket.gethostname(),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "addresses": addresses(),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_available_bytes": _memory_available(),
        "disk_free_bytes": _disk_free(directory),
        "ports": ports,
        "gpus": probed["gpus"],
        "driver": probed["driver"],
        "cuda": probed["cuda"],
        "gpu_note": probed["note"],
        "lacks": probed["lacks"],  # a module to send and probe again with
        "queue": queue,
        "queue_error": place.error,
        "clock": time.time(),
        "proxies": [name for name in PROXIES if os.environ.get(name)],
    }


def machine() -> "List[str]":
    """[host name, boot id]: pids mean something only where both are the same."""
    return [socket.gethostname(), _first_line("/proc/sys/kernel/random/boot_id")]


def take_module(name: str, packed: bytes) -> None:
    """A pure-Python module that this host lacks; kept in memory, never on disk. Raises HostError."""
    module = type(sys)(name)
    sys.modules[name] = module  # before it runs: pynvml looks itself up
    try:
        exec(compile(zlib.decompress(packed), "<tflaunch>/%s.py" % name, "exec"), module.__dict__)  # noqa: S102
    except Exception as error:
        del sys.modules[name]
        raise HostError("the module %s does not run on this host: %s" % (name, error)) from error


def _memory_available() -> int:
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 0


def _disk_free(directory: str) -> int:
    while directory != "/" and not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    try:
        space = os.statvfs(directory)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize


def addresses() -> "List[str]":
    """The addresses of the network interfaces, IPv4 first; loopback and link-local ones left out."""
    return [address for _, address in interface_addresses()]


def interface_addresses() -> "List[Tuple[str, str]]":
    """The same, each with the name of its interface."""
    found = []
    record = 40  # sizeof(struct ifreq) on 64-bit Linux: name[16], then a sockaddr
    buffer = array.array("B", bytes(record * 128))
    address, length = buffer.buffer_info()
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    reply = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iL", length, address))
    probe.close()
    for start in range(0, struct.unpack("iL", reply)[0], record):
        name = buffer[start : start + 16].tobytes().partition(b"\0")[0]
        found.append((os.fsdecode(name), socket.inet_ntoa(buffer[start + 20 : start + 24].tobytes())))
    try:
        with open("/proc/net/if_inet6") as table:
            for line in table:
                fields = line.split()
                if fields[3] == "00":  # global scope
                    found.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    except OSError:
        pass
    return [each for each in found if not each[1].startswith(("127.", "169.254."))]


def _first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
