"""Machines that exist in tests alone, as /sys shows their networks, RDMA devices and GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class SimulatedSys:
    """A directory to be read in place of /sys."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "bus/pci/devices").mkdir(parents=True)
        (place / "class/net").mkdir(parents=True)

    def _pci(self, path: str, node: int) -> Path:
        """A PCI device below these bridges: `pci0000:00/0000:00:01.0/0000:01:00.0`."""
        device = self.place / "devices" / path
        if not device.exists():
            device.mkdir(parents=True)
            (device / "numa_node").write_text(f"{node}\n")
            (self.place / "bus/pci/devices" / device.name).symlink_to(device)
        return device

    def gpu(self, index: int, path: str, node: int) -> dict[str, Any]:
        """A GPU, as the probe knows it."""
        return {"index": index, "numa_node": node, "pci_bus_id": self._pci(path, node).name}

    def interface(self, name: str, path: str = "", node: int = -1, speed: str = "", below: str = "") -> None:
        """A network interface; without `path` a virtual one, of which `below` may be below."""
        place = self.place / "class/net" / name
        place.mkdir()
        if speed:
            (place / "speed").write_text(f"{speed}\n")
        if path:
            device = self._pci(path, node)
            (place / "device").symlink_to(device)
            (device / "net" / name).mkdir(parents=True)
        if below:
            (place / f"lower_{below}").symlink_to(self.place / "class/net" / below)

    def rdma(
        self, name: str, path: str, node: int, *, rate: str, layer: str, state: str = "4: ACTIVE"
    ) -> None:
        """An RDMA device with one port."""
        port = self.place / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (self.place / "class/infiniband" / name / "device").symlink_to(self._pci(path, node))
        for file, text in (("state", state), ("rate", rate), ("link_layer", layer)):
            (port / file).write_text(f"{text}\n")
