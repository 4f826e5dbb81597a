"""NVML without a GPU: the library is simulated in C, everything above it is real.

fleet = Fleet(tmp_path, 'gpu name="NVIDIA H100" mem=81559', ...)
subprocess.run(..., env=fleet.env)            # the real pynvml finds it as libnvidia-ml.so.1
"""

from __future__ import annotations

import subprocess
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Compile the library into `directory` and return that; raises CalledProcessError when gcc does not like it."""
    source = Path(__file__).with_name("nvml_stub.c")
    argv = ["gcc", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*argv, "-o", str(directory / LIBRARY), str(source)], check=True)
    return directory


class Fleet:
    """The GPUs of one simulated host; `lines` as the head of nvml_stub.c describes them."""

    def __init__(self, library: Path, path: Path, *lines: str) -> None:
        self.path = path
        # Its GPUs are leased in a place of their own, never where those of this machine are.
        self.env = {
            "LD_LIBRARY_PATH": str(library),
            "NVML_STUB_FLEET": str(path),
            "TFLAUNCH_LEASES": f"{path}-leases",
        }
        self.change(*lines)

    def change(self, *lines: str) -> None:
        """Replace all GPUs, also under a program that is running."""
        self.path.write_text("".join(line + "\n" for line in lines))
