"""What this host is: the fields of the `facts` message, which tflaunch.planning.inventory reads on the other side."""

import os
import struct
import sys
import time

from tflaunch import gpu_probe
from tflaunch.agent import slot
from tflaunch.agent.gpus import leases, limit, tickets
from tflaunch.agent.gpus.tickets import QueuePlace
from tflaunch.agent.host import cores
from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HostError
from tflaunch.agent.net import nics
from tflaunch.agent.tasks import pace
from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import socket
from tflaunch.protocol.machine import first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

# From rtnetlink(7), by which the kernel lists addresses.
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
RTM_NEWADDR, RTM_GETADDR = 20, 22
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
QUEUE_BYTES = wire.ANSWER_LIMIT // 4
MOST = 2**62  # bytes or files of a disk; file systems that are no disk (S3, EFS) say that they have no end
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def collect(
    ports: "List[int]",
    directory: str,
    asked: "Optional[Dict[str, Any]]",
    place: QueuePlace,
    *,
    lease: "Callable[[str, str], Optional[Dict[str, Any]]]" = leases.holder,
    strays: "Mapping[str, Dict[str, Any]]",
    run: str = "",
) -> "Dict[str, Any]":
    """All fields of `facts`.

    `ports` are the ports that the agent holds; `directory` is on the disk that holds the runs; `asked` is what NVML has
    just said (gpu_probe.assembled), None where it was not asked; `place` is the run's place in the queue.
    `lease(uuid, file)`, with the kernel's file for a device, says who holds it; `Leases.take` also takes the device if
    it is free.  `strays` says which devices dead runs still use (agent.host.strays).  `run` is the run that asks.
    A device that is promised to a run further ahead in the queue is only looked at, never taken.
    """
    probed = gpu_probe.assembled({}, {}, {}) if asked is None else asked
    nodes = cores.nodes(probed["gpus"])
    probed = dict(probed, gpus=slot.given(probed["gpus"]))
    queue = place.ahead()
    for device in devices_of(probed):
        uuid = device["uuid"]
        if uuid and not device.get("error"):
            device["promised"] = tickets.promise(uuid, queue)
            try:
                file = probed["locks"].get(uuid, "")
                device["lease"] = strays.get(uuid) or (leases.holder if device["promised"] else lease)(
                    uuid, file
                )
            except HostError as error:
                if slot.gives_gpus():
                    note("%s is not leased, but the engine has given it: %s" % (uuid, error.reason))
                else:
                    device["lease_error"] = error.reason
    probed["gpus"] = slot.as_many(probed["gpus"])
    named = interface_addresses()
    found = {
        "hostname": socket.gethostname(),
        "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
        "addresses": [address for _, address, _ in named],
        "interfaces": [name.partition(":")[0] for name, _, _ in named],  # eth0:1 is eth0
        "python": "%d.%d.%d" % sys.version_info[:3],
        "cores": len(os.sched_getaffinity(0)),
        "nodes": nodes,
        "cpu_quota": pace.quota_of(os.getpid())[0],
        "set_there": nics.set_there(),
        "nics": nics.nics(named, probed["gpus"]),
        "gpudirect": nics.gpudirect(),
        "load": os.getloadavg()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_available_bytes": _memory_available(),
        "disk_free_bytes": _disk_free(directory),
        "ports": ports,
        "gpus": probed["gpus"],
        "driver": probed["driver"],
        "cuda": probed["cuda"],
        "gpu_note": probed["note"],
        "lacks": probed["lacks"],  # a module that the launcher must send before the next probe
        "queue": _first_tickets(queue, probed["gpus"]),
        "queue_error": place.error,
        "clock": time.time(),
        "proxies": [name for name in PROXIES if os.environ.get(name)],
    }
    if probed["gpus"]:
        found["gpus_held"] = limit.held(devices_of(probed), run)
        found["gpu_limit"] = limit.most()
    return found


def devices_of(probed: "Dict[str, Any]") -> "List[Dict[str, Any]]":
    """The GPUs and MIG instances that processes can be given."""
    return [device for gpu in probed["gpus"] for device in gpu.get("mig") or [gpu]]


def _first_tickets(queue: "List[Dict[str, Any]]", gpus: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
    """As many of these tickets as a message may hold, without devices that this host does not have."""
    here = {device["uuid"] for gpu in gpus for device in (gpu, *gpu.get("mig", ()))}
    tickets_here = []  # type: List[Dict[str, Any]]
    size = 0
    for ticket in queue:
        tickets_here.append(dict(ticket, uuids=[uuid for uuid in ticket["uuids"] if uuid in here]))
        size += len(wire.dumps(tickets_here[-1]))
        if size > QUEUE_BYTES:
            return tickets_here[:-1]
    return tickets_here


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
    return min(space.f_bavail * space.f_frsize, MOST)


def interface_addresses() -> "List[Tuple[str, str, int]]":
    """(interface, address, bits of its network), IPv4 first; loopback and link-local addresses left out."""
    found = []
    for kind, message in _dump(RTM_GETADDR, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        family, bits, _, scope, index = _ADDRESS.unpack_from(message)
        if kind == RTM_NEWADDR and (family == socket.AF_INET or (family == socket.AF_INET6 and scope == 0)):
            attributes = _attributes(message[_ADDRESS.size :])
            # On a point-to-point link IFA_ADDRESS is the peer's.
            address = attributes.get(IFA_LOCAL) or attributes[IFA_ADDRESS]
            try:
                name = os.fsdecode(attributes.get(IFA_LABEL, b"").rstrip(b"\0")) or socket.if_indextoname(
                    index
                )
            except OSError:
                continue  # the interface has just gone
            found.append((family, name, address, bits))
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    named = [(name, socket.inet_ntop(family, address), bits) for family, name, address, bits in found]
    return [each for each in named if not each[1].startswith(("127.", "169.254."))]


def _dump(kind: int, about: bytes) -> "List[Tuple[int, bytes]]":
    """Ask the kernel for a list by that rtnetlink request; returns (type, message) of each entry."""
    with_header = _HEADER.pack(_HEADER.size + len(about), kind, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + about
    found = []  # type: List[Tuple[int, bytes]]
    try:
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        try:
            kernel.send(with_header)
            while True:
                data = kernel.recv(65536)
                while data:
                    size, answer = _HEADER.unpack_from(data)[:2]
                    if answer in (NLMSG_DONE, NLMSG_ERROR):
                        return found
                    found.append((answer, data[_HEADER.size : size]))
                    data = data[_aligned(size) :]
        finally:
            kernel.close()
    except OSError:  # a sandbox without netlink: the launcher uses the host's name
        return []


def _attributes(data: bytes) -> "Dict[int, bytes]":
    found = {}  # type: Dict[int, bytes]
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        found[kind] = data[_ATTRIBUTE.size : size]
        data = data[_aligned(size) :]
    return found


def _aligned(size: int) -> int:
    return max(size + 3 & ~3, 4)
