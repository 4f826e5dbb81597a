"""The network interfaces and RDMA devices of this host: how fast each is, and which GPUs it is near."""

import os

from tflaunch.protocol.machine import YIELDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

    Address = Tuple[str, str, int]  # of an interface: its name, the address, the bits of its network

NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
READ_BYTES = 1 << 16  # of any file


def nics(
    addresses: "Iterable[Address]", gpus: "Sequence[Dict[str, Any]]", system: str = "/sys"
) -> "List[Dict[str, Any]]":
    """Fact `nics`: the interfaces with these addresses, and RDMA devices that are active."""
    faces = {}  # type: Dict[str, Dict[str, Any]]
    places = {}  # type: Dict[str, str]
    for label, address, bits in addresses:
        name = label.partition(":")[0]  # eth0:1 is eth0
        if name not in faces:
            places[name] = "%s/class/net/%s" % (system, name)
            speed = _read(places[name] + "/speed").strip()
            faces[name] = _face(name, int(speed) if speed.isdigit() and int(speed) else None)
        faces[name]["networks"].append("%s/%d" % (address, bits))
    below = {name: _below(name, system) for name in faces}
    for device in sorted(_names(system + "/class/infiniband")):
        place = "%s/class/infiniband/%s" % (system, device)
        ports = ["%s/ports/%s" % (place, port) for port in sorted(_names(place + "/ports"))]
        port = next((port for port in ports if "ACTIVE" in _read(port + "/state")), None)
        if port is None:
            continue
        own = set(_names(place + "/device/net"))
        name = next((name for name in below if own & below[name]), "")
        if not name:
            faces[device] = _face("", None)
        key = name or device
        rate = _read(port + "/rate").split()[:1]  # `400 Gb/sec (4X NDR)`
        if rate and not faces[key]["mbit_s"]:
            faces[key]["mbit_s"] = int(float(rate[0]) * 1000)
        places[key] = place
        faces[key].update(rdma=device, fabric=_read(port + "/link_layer").strip())
    for key, face in faces.items():
        for gpu in gpus:
            way = near(places[key] + "/device", gpu, system)
            if way:
                face["gpus"][str(gpu["index"])] = way
    return list(faces.values())


def _face(name: str, mbit_s: "Optional[int]") -> "Dict[str, Any]":
    return {"name": name, "networks": [], "mbit_s": mbit_s, "rdma": "", "fabric": "", "gpus": {}}


def _below(name: str, system: str) -> "Set[str]":
    """The interfaces at the bottom of a bond, a VLAN or a bridge; of any other one itself."""
    lower = [each[6:] for each in _names("%s/class/net/%s" % (system, name)) if each.startswith("lower_")]
    return {bottom for each in lower for bottom in _below(each, system)} or {name}


def near(place: str, gpu: "Dict[str, Any]", system: str) -> str:
    """How the device at that place and a GPU are connected, in the words of gpu_probe.TOPOLOGY; "" where unknown."""
    one, other = _bridges(place), _bridges("%s/bus/pci/devices/%s" % (system, gpu.get("pci_bus_id")))
    if not (one and other):
        return ""
    if one[0] != other[0]:
        node = _read(place + "/numa_node").strip()
        return "NODE" if node.isdigit() and int(node) == gpu.get("numa_node") else "SYS"
    common = sum(1 for a, b in zip(one, other) if a == b)  # noqa: B905 - Python 3.8
    if common == 1:
        return "PHB"
    return "PIX" if max(len(one), len(other)) - common <= 2 else "PXB"


def _bridges(place: str) -> "List[str]":
    """The PCI devices from the host bridge to that one: `pci0000:00`, `0000:00:01.0`, `0000:01:00.0`."""
    words = os.path.realpath(place).split("/")
    while words and not (words[0].startswith("pci") and ":" in words[0]):
        del words[0]  # all of them where the device is not there, or is virtual
    return [word for word in words if ":" in word]


def set_there() -> "List[str]":
    """Which of YIELDING the host itself sets, in its environment or in NCCL's own files."""
    files = (*NCCL_FILES, os.environ.get("NCCL_CONF_FILE", ""))
    lines = [line for path in files for line in _read(os.path.expanduser(path)).splitlines()]
    said = {line.partition("=")[0].strip() for line in lines}
    return [name for name in YIELDING if os.environ.get(name) or name in said]


def gpudirect(system: str = "/sys") -> str:
    """Fact `gpudirect`."""
    modules = (
        name for name in ("nvidia_peermem", "nv_peer_mem") if os.path.isdir("%s/module/%s" % (system, name))
    )
    return next(modules, "")


def _names(place: str) -> "List[str]":
    try:
        return os.listdir(place)
    except OSError:
        return []


def _read(path: str) -> str:
    """What a small file holds; "" where it cannot be read.  A user may have put anything in its place."""
    try:
        with open(path, "rb", 0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return (file.read(READ_BYTES) or b"").decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
