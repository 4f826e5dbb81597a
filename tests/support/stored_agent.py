"""A host that has run this tflaunch before: the agent's modules lie in its store, compiled, as its loader keeps them.

A boot that finds none compiles some fifty modules, which costs more than all else that it does.  Hosts of most tests
are such hosts; tests/agent/test_boot.py has those that see the agent for the first time.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from tflaunch.sessions import payload

# In place of the loader's last line, which runs an agent.
FILL = """
modules = Modules(given["packages"])
try:
    modules.find(given["ancestry"], given["digest"], sys.argv[1], True)
except OSError:  # no sources yet
    pass
modules.receive(given["lacks"], given["frame"])
modules.get_source("tflaunch.agent.main")
for name in set(modules.sources) - set(modules.packages):
    code = compile(modules.sources[name], modules.path(name), "exec")
    store(modules.compiled + name + ".pyc", marshal.dumps(code))
"""


def keep(run_dir: Path, *pythons: str) -> None:
    """Have `run_dir` hold the agent as these Pythons compile it; without any, those that hosts here may find."""
    place = run_dir / f"tflaunch-{os.getuid()}"
    if run_dir.exists() and not run_dir.is_dir():
        return  # that is what the test is about
    for each in (place, place / "code"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    for python in {os.path.realpath(python) for python in pythons} or _usual():
        for file in _compiled(python):
            path = place / "code" / file.name
            if not path.exists():
                try:
                    path.hardlink_to(file)  # nobody writes into it: the loader replaces files
                except OSError:  # another file system
                    shutil.copy2(file, path)


@functools.cache
def _usual() -> frozenset[str]:
    found = (shutil.which("python3"), "/usr/bin/python3", sys.executable)
    return frozenset(os.path.realpath(python) for python in found if python and Path(python).exists())


@functools.cache
def _compiled(python: str) -> tuple[Path, ...]:
    directory = Path(tempfile.mkdtemp(prefix="tflaunch-stored-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    loader, _, call = zlib.decompress(payload.loader()).decode().rpartition("\nload(")
    program = f"{loader}\ngiven = dict({call}{FILL}"
    words = [python, "-I", "-S", "-X", "utf8", "-c", program, directory]
    subprocess.run(words, input=payload.agent(), stdout=subprocess.DEVNULL, check=True)
    return tuple(sorted(directory.glob("tflaunch-*/code/agent-*")))
