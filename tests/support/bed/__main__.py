"""A bed to try by hand: `python -m tests.support.bed 4` gives a Python prompt.

`bed.shell()` there is the launcher's shell.
"""

from __future__ import annotations

import code
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.bed import Bed, missing


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="bed-") as directory:
        started = time.monotonic()
        bed = Bed(Path(directory))
        hosts = bed.up(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
        took_s = time.monotonic() - started
        home = Path(directory) / "home"
        home.mkdir()
        bed.ssh_directory(home)
        enter = bed.launcher.inside("HOME=" + str(home), os.environ.get("SHELL", "/bin/sh"), cwd=home)
        try:
            code.interact(
                f"{len(hosts)} hosts, up in {took_s:.2f} s.  bed.cut(host1), bed.heal(host1), bed.reboot(host1), ...\n"
                f"The launcher's shell, here with shell() or in another terminal:\n  {' '.join(enter)}",
                local={
                    "bed": bed,
                    "shell": lambda: subprocess.run(enter, check=False),
                    **{host.name: host for host in hosts},
                },
                exitmsg="",
            )
        finally:
            bed.close()


main()
