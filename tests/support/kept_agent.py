"""An agent as a host keeps it after its first run.

Every test has hosts of its own, whose first agent would get all sources, and compile them: a third of what a small run
costs.  That it does is tested with hosts that keep nothing: in tests/agent/test_boot.py, by other users' runs, after a
disk is lost, and wherever a hostfile's `run_dir` is not the one that all tests have.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support import ROOT
from tflaunch.sessions import payload

# With each Python, as the loader does it at the first import of each module.
COMPILE = """
import marshal, sys
sys.path.insert(0, sys.argv[1])
from tflaunch.agent import loader
modules = loader.Modules(sys.argv[3:])
modules.packed = loader.read(sys.argv[2] + ".z")
modules.get_source("tflaunch.agent.main")
prefix = "%s-%s-%x-" % (sys.argv[2], sys.implementation.cache_tag, sys.hexversion)
for name, source in modules.sources.items():
    if name not in modules.packages:
        loader.store(prefix + name + ".pyc", marshal.dumps(compile(source, modules.path(name), "exec")))
"""


def keep(run_dir: Path, *pythons: str) -> None:
    """Put the agent into a host's directory for runs, as root's runs with these Pythons have left it there."""
    code = run_dir / f"tflaunch-{os.getuid()}" / "code"
    for each in (code.parent, code):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    for python in pythons:
        for path in _compiled(python):
            with contextlib.suppress(FileExistsError):
                os.link(path, f"{code}/{path.name}")


def pythons_here() -> tuple[str, ...]:
    """Those that agents on this machine run with: that of the tests' PATH, and that of a login by sshd."""
    found = (shutil.which("python3", path=path) for path in (None, "/usr/bin:/bin"))
    return tuple(dict.fromkeys(os.path.realpath(each) for each in found if each))


@functools.cache
def _compiled(python: str) -> list[os.DirEntry[str]]:
    place = Path(tempfile.mkdtemp(prefix="tflaunch-kept-agent-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    frame = payload.agent()
    kept = place / f"agent-{payload.digest()}"
    body = frame[8 + int.from_bytes(frame[:4], "big") :]
    from tflaunch.agent import loader

    loader.store(f"{kept}.z", body)
    words = [python, "-I", "-S", "-c", COMPILE, str(ROOT), str(kept), *payload.packages()]
    subprocess.run(words, check=True)
    return list(os.scandir(place))
